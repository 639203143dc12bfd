"""Backtests of automations that start from segments, schedules and broadcasts, with the engine of a running system."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidArgumentError, Workbench

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture(scope="module")
def members(wb: Workbench) -> Callable[[str], Any]:
    """Refreshes the segment `bts-in`, whose members are the contacts whose newest event is `bts:in`."""

    def send(word: str) -> Any:
        for number in range(4):
            name = word if number < 3 else "bts:seen"
            assert wb.events.send(name, external_id=f"bts-{number}").accepted
        sql = """
            SELECT contact_id FROM (
                SELECT DISTINCT ON (contact_id) contact_id, event FROM app_events WHERE event ^@ 'bts:'
                ORDER BY contact_id, created_at DESC, id DESC) e
            WHERE event = 'bts:in'
        """
        return wb.segments.define("bts-in", sql=sql) if word == "bts:first" else wb.segments["bts-in"].refresh()

    send("bts:first")
    return send


@pytest.fixture(scope="module")
def greeted(wb: Workbench, members: Callable[[str], Any]) -> Automation:
    """An automation with entries of contacts that entered the segment."""
    automation = (
        wb.automation("bts greeted")
        .on_segment_entered("bts-in")
        .when("externalId", is_in=["bts-0", "bts-1"])
        .then(lambda b: b.wait_for("bts:out", within="2h").then(lambda c: c.add_tag("bts-left")))
        .otherwise(lambda b: b.update_contact(origin="{{ segment }}"))
        .publish()
    )
    members("bts:in")
    until(lambda: states(automation) == ["completed", "waiting", "waiting"], "the contacts wait")
    members("bts:out")
    until(lambda: states(automation) == ["completed"] * 3, "the contacts have left")
    return automation


def states(automation: Automation) -> list[str]:
    return sorted(entry.state.value for entry in automation.entries())


def started(wb: Workbench, automation: Automation) -> list[tuple[str, str, datetime]]:
    """Return start, contact and moment of the real entries of an automation."""
    ids = [entry.id for entry in automation.entries()]
    rows = wb.sql("SELECT event_id, contact_id, created_at FROM automation_entries WHERE id = ANY (:ids)", ids=ids)
    return sorted(rows.rows())


def test_contacts_that_entered_take_the_same_steps_as_in_the_engine(wb: Workbench, greeted: Automation) -> None:
    backtest = greeted.backtest(days=1)
    assert sorted(backtest.entries().select("entry", "contact", "at").rows()) == started(wb, greeted)
    entries = {entry.event_id: entry.refresh() for entry in greeted.entries()}
    played = {row["entry"]: row for row in backtest.entries().iter_rows(named=True)}
    assert played.keys() == entries.keys()
    for start_id, entry in entries.items():
        row = played[start_id]
        assert (row["event"], row["state"], row["outcome"]) == ("segment_entered", entry.state.value, entry.outcome)
    steps = sorted(backtest.frame().select("entry", "node", "outcome", "at").iter_rows())
    assert steps == sorted(
        (entry.event_id, step.node_id, step.outcome, step.at) for entry in entries.values() for step in entry.steps
    )
    assert "bts greeted: on contacts that enter bts-in, from" in repr(backtest)
    assert "entered the segment" in repr(next(iter(entries.values())))


def test_what_no_automation_took_is_played_too(wb: Workbench, greeted: Automation) -> None:
    draft = wb.automation("bts left").on_segment_left("bts-in").add_tag("bts-gone")
    backtest = draft.backtest(days=1)
    assert (backtest.totals.entries, backtest.totals.contacts) == (3, 3)
    assert backtest.entries()["entry"].str.contains(r"^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-8[0-9a-f]{3}-").all()
    assert backtest.entries()["entry"].n_unique() == 3
    assert draft.backtest(days=1).entries().equals(backtest.entries())
    filtered = wb.automation("bts left").on_segment_left("bts-in").where("externalId", eq="bts-9").add_tag("x")
    assert "3 starts could have started it, but none passed its filters." in filtered.backtest(days=1).remarks
    assert "The segment bts-in was defined on" in " ".join(backtest.remarks)
    none = wb.automation("bts none").on_segment_left("bts-unknown").add_tag("x").backtest(days=1)
    assert none.remarks[:1] == ("Nothing in this period could have started it: contacts that leave bts-unknown.",)
    assert "The segment bts-unknown does not exist." in none.remarks


def test_versions_with_other_starts_are_compared(wb: Workbench, greeted: Automation) -> None:
    draft = wb.automation("bts greeted").on_segment_left("bts-in").add_tag("bts-gone")
    backtest = draft.backtest(days=1, against="published")
    assert backtest.before is not None
    assert (backtest.totals.entries, backtest.before.entries) == (3, 3)
    assert set(backtest.entries()["event"]) == {"segment_left"}
    now = datetime.now(UTC)
    hourly = wb.automation("bts greeted").on_schedule(f"{(now - MINUTE).minute} * * * *").add_tag("x")
    some = hourly.backtest(since=now - 3 * MINUTE, against="published")
    assert some.before is not None
    assert some.totals.entries > some.before.entries == 3


def test_runs_of_a_schedule_start_the_members_of_their_time(wb: Workbench, greeted: Automation) -> None:
    ((_, _, entered_at), *_) = started(wb, greeted)
    every = wb.automation("bts every").on_schedule("* * * * *", segment="bts-in").add_tag("x")
    times = every.backtest(since=entered_at - 5 * MINUTE).entries()["at"]
    changes = wb.sql(
        "SELECT changed_at, new FROM contact_changes WHERE field = 'segments.bts-in' AND cause = 'refresh'"
    )
    moments = {is_member: at for at, is_member in changes.iter_rows()}
    first, last = (moments[word] for word in ("true", "false"))
    assert [at for at in times if not first <= at < last] == []
    now = datetime.now(UTC)
    for_all = wb.automation("bts all").on_schedule("0 */4 * * *").add_tag("x")
    backtest = for_all.backtest(since=now - timedelta(days=1), until=now)
    contacts = wb.sql("SELECT id, created_at FROM contacts WHERE erased_at IS NULL")
    frame = backtest.entries()
    for at in sorted(set(frame["at"]))[-3:]:
        existing = set(contacts.filter(contacts["created_at"] <= at)["id"])
        assert set(frame.filter(frame["at"] == at)["contact"]) == existing
    sampled = for_all.backtest(since=now - timedelta(days=1), until=now, sample=0.3).entries()
    assert set() < set(sampled["contact"]) < set(frame["contact"])
    assert "on the schedule 0 */4 * * * in UTC, from" in repr(backtest)


def test_a_broadcast_is_played_as_it_was_sent_and_otherwise_at_a_time_of_choice(
    wb: Workbench, greeted: Automation
) -> None:
    for number in range(3):
        wb.events.send("bts:seen", external_id=f"bts-{number}")
    wb.segments.define("bts-seen", sql="SELECT contact_id FROM app_events WHERE event = 'bts:seen'")
    news = wb.automation("bts news").on_broadcast().add_tag("bts-news")
    draft = news.backtest(days=1, segment="bts-seen")
    assert draft.totals.entries == 0  # the segment had no members then
    assert "It was not broadcast in this period, so this is a broadcast at its beginning" in " ".join(draft.remarks)
    chosen = news.backtest(days=1, segment="bts-seen", at=datetime.now(UTC) - timedelta(milliseconds=1))
    assert (chosen.totals.entries, chosen.totals.contacts) == (4, 4)
    assert "to the contacts that were in bts-seen then." in " ".join(chosen.remarks)
    news.publish()
    sent = news.send_to("bts-seen")
    until(lambda: sent.refresh().state == "done" and states(news) == ["completed"] * 4, "the engine sends it")
    played = news.backtest(days=1).entries().select("entry", "contact", "at").rows()
    assert sorted(played) == started(wb, news)
    with pytest.raises(InvalidArgumentError, match="is not in the period"):
        news.backtest(days=1, at="2020-01-01")
    with pytest.raises(InvalidArgumentError, match="the trigger must be"):
        greeted.backtest(days=1, at=datetime.now(UTC))


def test_a_schedule_that_starts_too_much_is_refused(wb: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = wb.automation("bts minutes").on_schedule("* * * * *").add_tag("x")
    with pytest.raises(InvalidArgumentError, match="has more than 5,000 times in this period"):
        draft.backtest(days=30)
    monkeypatch.setattr("workbench.backtest.source.MAX_STARTS", 3)
    with pytest.raises(InvalidArgumentError, match=r"starts [\d,]+ entries in this period, and a backtest at most"):
        draft.backtest(days=2)
    idle = wb.automation("bts minutes").on_schedule("* * * * *", segment="bts-nobody").add_tag("x")
    assert idle.backtest(days=2).totals.entries == 0
