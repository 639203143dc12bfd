"""Backtests in the notebook package equal the entries of the engine for the same events."""

import os
import re
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import polars as pl
import pytest

from tests.running import Running
from workbench import Automation, InvalidArgumentError, NotFoundError, StoppedError, Workbench, WorkbenchError
from workbench.backtest.buckets import BucketWriter
from workbench.backtest.simulate_bucket import AutomationPayload, BucketSummary, BucketTask
from workbench.backtest.source import BacktestSource
from workbench.backtest.worker import WorkerPool

PEOPLE = 12


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def event_of(event: str, number: int, **payload: Any) -> dict[str, Any]:
    contact = {"externalId": f"bt-{number}", "walletAddress": f"0xb7{number:038x}"}
    return {"event": event, "contact": contact, "payload": payload}


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def finished(wb: Workbench) -> Automation:
    """An automation with real entries: completed, waiting, failed and cancelled ones, and one refused entry."""
    automation = (
        wb.automation("backtested")
        .on("bt:paid")
        .where("amount", is_in=[1, 2])
        .when("amount", eq=2)
        .then(lambda b: b.add_tag("two").send_inapp("Two", "{{ amount }} and {{ contact.tags | length }} tags"))
        .otherwise(lambda b: b.delay("1s").send_inapp("One", "{{ nothing }}", on_missing="fail"))
        .wait_for("bt:bought", within="3h")
        .then(lambda b: b.send_inapp("Bought", "{{ amount }}"))
        .reentry("after_exit")
        .publish()
    )
    events = [event_of("bt:paid", number, amount=1 + number % 3) for number in range(PEOPLE)]
    assert not wb.events.send_many(events).failed
    wait_until(lambda: states(automation) == {"waiting": 4, "dead": 4})
    assert not wb.events.send_many(events[:3]).failed
    wait_until(lambda: states(automation) == {"waiting": 4, "dead": 5, "cancelled": 1})
    assert not wb.events.send_many([event_of("bt:bought", number, amount=1) for number in range(6)]).failed
    wait_until(lambda: states(automation) == {"waiting": 2, "completed": 2, "dead": 5, "cancelled": 1})
    return automation


def states(automation: Automation) -> Counter[str]:
    return Counter(entry.state.value for entry in automation.entries())


def test_a_backtest_takes_the_same_steps_as_the_engine(wb: Workbench, finished: Automation) -> None:
    backtest = finished.backtest(days=1)
    entries = [entry.refresh() for entry in finished.entries()]
    assert {(entry.event_id, entry.state.value, entry.outcome) for entry in entries} == {
        *backtest.entries().select("entry", "state", "outcome").iter_rows()
    }
    steps = backtest.frame().group_by("entry").agg(pl.struct("node", "outcome", "handle"))
    simulated = {entry: [tuple(step.values()) for step in rows] for entry, rows in steps.iter_rows()}
    assert simulated == {
        entry.event_id: [(step.node_id, step.outcome, step.handle) for step in entry.steps] for entry in entries
    }


def test_a_backtest_counts_the_messages_that_were_sent(wb: Workbench, finished: Automation) -> None:
    totals = finished.backtest(days=1).totals
    messages = wb.sql(
        "SELECT m.contact_id, count(*) AS n FROM messages m JOIN automations a ON a.id = m.automation_id "
        "WHERE a.name = 'backtested' GROUP BY 1"
    )
    assert (totals.messages, totals.reached, totals.most) == (messages["n"].sum(), messages.height, messages["n"].max())
    assert (totals.entries, totals.turned_away, totals.failed, totals.waiting) == (9, 1, 5, 2)


def test_the_page_shows_the_results_and_the_assumptions(finished: Automation) -> None:
    backtest = finished.backtest(days=1)
    page, text = backtest._repr_html_(), repr(backtest)
    assert "Would have started" in page
    assert page.count("data:image/svg+xml") == 2
    assert "a template could not be filled in" in text
    assert "Contacts have the values that they had at each moment" in text
    assert [message.title for message in backtest.messages] == ["Two", "Bought"]
    assert backtest.days()["entries"].sum() == backtest.totals.entries
    assert backtest.branches().filter(pl.col("node") == "if_amount")["entries"].to_list() == [4, 5]
    assert [(edge.source, edge.target) for edge in backtest.untaken] == [("send_inapp_2", "wait_for_bt_bought")]
    assert backtest.chart().to_dict()


def test_a_backtest_says_how_many_entries_are_held_out(wb: Workbench, finished: Automation) -> None:
    draft = wb.automation("half").on("bt:paid").holdout(50).send_inapp("Hi", "there")
    backtest = draft.backtest(days=1)
    held_out = backtest.entries().filter(pl.col("outcome") == "holdout").height
    assert backtest.totals.held_out == held_out > 0
    assert "of these, held out" in backtest._repr_html_()
    assert "of these, held out" not in finished.backtest(days=1)._repr_html_()


def test_a_draft_is_compared_with_the_published_version(wb: Workbench, finished: Automation) -> None:
    draft = wb.automation("backtested").on("bt:paid").where("amount", is_in=[2, 3]).send_inapp("Hi", "{{ amount }}")
    backtest = draft.backtest(days=1, against="published")
    before = finished.backtest(days=1)
    assert backtest.before == before.totals
    assert backtest.gains().height == len([number for number in range(PEOPLE) if number % 3 == 2])
    new, old = (set(result.contacts().filter(pl.col("messages") > 0)["contact"]) for result in (backtest, before))
    assert (set(backtest.gains()["contact"]), set(backtest.losses()["contact"])) == (new - old, old - new)
    assert "version 1" in backtest._repr_html_()
    with pytest.raises(InvalidArgumentError, match="has no comparison"):
        before.gains()


def test_a_draft_opened_before_the_publication_is_compared_with_it(wb: Workbench) -> None:
    draft = wb.automation("opened before").on("deposit").add_tag("x")
    wb.automation("opened before").on("deposit").add_tag("y").publish().deactivate()
    assert draft.backtest(days=2, against="published").before is not None


def test_the_cap_counts_messages_of_other_automations(wb: Workbench, finished: Automation) -> None:
    draft = wb.automation("capped").on("bt:bought").send_inapp("Hi", "there")
    assert draft.backtest(days=1).totals.messages == 6
    capped = draft.frequency_cap(1, per="1h").backtest(days=1).totals
    assert (capped.messages, capped.skipped) == (4, 2)


def test_the_cap_counts_messages_of_older_automations_on_the_same_event(wb: Workbench) -> None:
    def capped_draft(name: str, messages: int) -> Automation:
        return wb.automation(name).on("bt:same").send_inapp("Hi", "there").frequency_cap(messages, per="1h")

    older, capped = capped_draft("older", 2).publish(), capped_draft("capped between", 1).publish()
    capped_draft("younger", 9).publish()
    assert not wb.events.send_many([event_of("bt:same", 100 + number) for number in range(PEOPLE)]).failed
    wait_until(lambda: states(capped) == {"completed": PEOPLE})
    outcomes = Counter(step.outcome for entry in capped.entries() for step in entry.refresh().steps)
    assert outcomes == {"entered": PEOPLE, "skipped": PEOPLE}
    totals = capped.backtest(days=1).totals
    assert (totals.messages, totals.skipped) == (0, PEOPLE)
    totals = capped_draft("youngest", 3).backtest().totals
    assert (totals.messages, totals.skipped) == (PEOPLE, 0)
    assert older.frequency_cap(1, per="1h").backtest(days=1).totals.messages == PEOPLE


def test_a_sample_always_has_the_same_contacts(wb: Workbench) -> None:
    draft = wb.automation("sampled").on("deposit").add_tag("x")
    half, again, whole = (draft.backtest(sample=share).contacts() for share in (0.5, 0.5, 1.0))
    assert half.sort("contact").equals(again.sort("contact"))
    assert 0.3 < half.height / whole.height < 0.7
    assert whole.join(half, on=whole.columns, how="semi").height == half.height


def test_a_segment_restricts_to_its_current_members(wb: Workbench) -> None:
    draft = wb.automation("of members").on("deposit").send_inapp("Hi", "{{ amountUsd }}").frequency_cap(2, per="1d")
    rows = wb.sql(
        "SELECT contact_id, count(*) AS n FROM app_events WHERE event = 'deposit' GROUP BY 1 HAVING count(*) = 3"
    )
    wb.audience(rows, name="three-times")
    backtest = draft.backtest(days=90, segment="three-times")
    assert {*backtest.contacts()["contact"]} == {*rows["contact_id"]}
    assert backtest.totals.entries == 3 * rows.height
    assert f"of {rows.height} members of three-times" in repr(backtest)
    assert "for contacts that are in the segment three-times now." in repr(backtest)
    part = draft.backtest(days=90, segment="three-times", sample=0.5)
    assert {*part.contacts()["contact"]} < {*rows["contact_id"]}


def test_worker_processes_give_the_same_result(wb: Workbench) -> None:
    draft = (
        wb.automation("shared").on("deposit").wait_for("withdrawal", within="2d").send_inapp("Hi", "{{ amountUsd }}")
    )
    now = datetime.now(UTC)
    period = {"since": now - timedelta(days=30), "until": now}
    alone, together = (draft.backtest(**period, processes=number) for number in (0, 2))
    by = ["entry", "at", "node", "outcome"]
    assert together.totals == alone.totals
    assert together.frame().sort(by).equals(
        alone.frame().filter(pl.col("at") < together.frame()["at"].max()).sort(by)
    ) or (abs(together.frame().height - alone.frame().height) < 5)


def test_a_period_without_matching_events_is_explained(wb: Workbench) -> None:
    backtest = wb.automation("never").on("depositt").add_tag("x").backtest()
    assert backtest.headline() == "Would never have started"
    assert backtest.remarks[0] == "No event in this period could have started it: depositt."
    assert "depositt" in backtest._repr_html_()
    assert backtest.frame().is_empty()
    none = wb.automation("none").on("deposit").where("amountUsd", eq=-1).add_tag("x").backtest()
    assert none.remarks[0].endswith("could have started it: deposit where amountUsd is -1.")


def test_the_remarks_name_what_may_differ_from_a_real_run(wb: Workbench) -> None:
    draft = (
        wb.automation("knowing")
        .on("deposit")
        .when("contact.tags", contains="vip")
        .then(lambda b: b.add_tag("vip"))
        .when("email", eq="ada@example.com")
        .then(lambda b: b.split({"a": 50, "b": 50}))
    )
    remarks = " ".join(draft.backtest(days=2).remarks)
    assert "add_tag_vip changes contact.tags, and later steps use contact.tags. The backtest sees these" in remarks
    assert "your API key sees them masked" in remarks
    assert "It is not saved yet" in remarks
    assert "Never taken:" in remarks
    draft = wb.automation("setting").on("deposit").update_contact(level=2)
    assert "update_contact changes contact.level. The backtest sees" in " ".join(draft.backtest(days=2).remarks)
    draft = wb.automation("there").on("deposit").when("contact.email").then(lambda b: b.add_tag("reachable"))
    assert "masked" not in " ".join(draft.backtest(days=2).remarks)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: a.backtest(sample=0), "more than 0 and at most 1"),
        (lambda a: a.backtest(sample="all"), "more than 0 and at most 1"),
        (lambda a: a.backtest(days=0), "days=0 must be a whole number"),
        (lambda a: a.backtest(days=3, since="2026-01-01"), "not both"),
        (lambda a: a.backtest(since="2026-01-02", until="2026-01-01"), "the period is empty"),
        (lambda a: a.backtest(months=1), r"\.backtest\(days=30\)"),
        (lambda a: a.backtest(against="published"), "was never published"),
        (lambda a: a.backtest(against="draft"), "was never published"),
        (lambda a: a.backtest(processes=-1), "processes=-1"),
        (lambda a: a.backtest(segment="whale"), "Segment not found: 'whale'"),
        (lambda a: a.backtest(segment=7), "not the name of a segment"),
        (lambda a: Automation.from_json(a.to_json()).backtest(), "not connected"),
    ],
)
def test_invalid_arguments_are_explained(wb: Workbench, call: Any, message: str) -> None:
    with pytest.raises(WorkbenchError, match=message):
        call(wb.automation("slips").on("deposit").add_tag("x"))


def test_an_unknown_version_is_an_error(finished: Automation) -> None:
    with pytest.raises(NotFoundError, match="version not found: 7"):
        finished.backtest(against=7)
    with pytest.raises(InvalidArgumentError, match="number of a version"):
        finished.backtest(against="draft")


def child_processes() -> set[str]:
    return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


@contextmanager
def interrupted_at(function: Any, event: str) -> Iterator[None]:
    """Raise KeyboardInterrupt at one event of a function ("call", "return" or "c_return").

    A timer would interrupt wherever a slow machine happens to be, also before the backtest begins.
    """

    def profile(frame: FrameType, seen: str, argument: Any) -> None:
        if seen == event and (argument if event == "c_return" else frame.f_code) is function:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("function", "event"),
    [
        pytest.param(os.mkdir, "c_return", id="folder created"),
        pytest.param(BacktestSource.slices.__code__, "return", id="events counted"),
        pytest.param(BucketWriter.write.__code__, "return", id="first events written"),
        pytest.param(BucketWriter.flush.__code__, "call", id="all events read"),
        pytest.param(BucketSummary.plus.__code__, "return", id="first events simulated"),
    ],
)
def test_an_interrupt_leaves_no_files_and_no_processes(
    wb: Workbench, function: Any, event: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    draft = wb.automation("interrupted").on_any_event().delay("1h").send_inapp("Hi", "{{ event }}")
    processes = child_processes()
    # IPython keeps the last exception, and with it the frames that hold the folder.
    with interrupted_at(function, event), pytest.raises(StoppedError, match=r"has no result\. sample=0\.1") as kept:
        draft.backtest(days=60, processes=1)
    assert (list(tmp_path.iterdir()), child_processes()) == ([], processes)
    del kept


def test_a_worker_that_dies_is_reported(tmp_path: Path) -> None:
    processes = child_processes()
    automation = AutomationPayload("a", {"type": "app_event"}, {"nodes": [], "edges": []})
    task = BucketTask(str(tmp_path), datetime.now(UTC), (automation,))
    with closing(WorkerPool(task, 1)) as workers:
        (worker,) = child_processes() - processes
        os.kill(int(worker), signal.SIGKILL)
        with pytest.raises(StoppedError, match=r"ended unexpectedly \(exit code -9\)"):
            list(workers.simulate([0, 1]))


def test_a_result_deletes_its_files(wb: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    backtest = wb.automation("files").on("deposit").add_tag("x").backtest(days=2)
    assert [path.name[:18] for path in tmp_path.iterdir()] == ["workbench-backtest"]
    since = datetime.now(UTC) - timedelta(days=3)
    assert backtest.frame()["at"].min() > since
    del backtest
    assert list(tmp_path.iterdir()) == []


def test_the_examples_of_the_docs_run(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "backtest.md").read_text()
    for name in ("WORKBENCH_URL", "WORKBENCH_KEY", "WORKBENCH_EVENTS_KEY"):
        monkeypatch.setenv(name, running.environment()[name])
    names: dict[str, Any] = {}
    for example in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(example, names)
    assert names["backtest"].totals.entries > 0  # its period begins some seconds before that of `b`
    assert names["b"].totals.entries == names["b"].before.entries > 0
    assert names["b"].totals.messages < names["b"].before.messages


def test_what_was_live_agrees_with_the_entries_of_the_engine(wb: Workbench, finished: Automation) -> None:
    backtest = finished.backtest(days=1, version="live")
    assert backtest.differences().rows() == []
    assert backtest.agreement == "Agrees with 10 of 10 real entries."
    with pytest.raises(InvalidArgumentError, match="has no entries to agree with"):
        finished.backtest(days=1).differences()
