"""What was live in a period, played with the versions and pauses of that time, agrees with what the engine did."""

from collections import Counter
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidArgumentError, NotFoundError, Workbench
from workbench.backtest.source import BacktestSource, Window


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def paid(number: int, event: str = "lv:paid", **more: Any) -> dict[str, Any]:
    return {"event": event, "contact": {"externalId": f"lv-{number}", "walletAddress": f"0x17e{number:037x}"}, **more}


def wait_for_states(automation: Automation, **states: int) -> None:
    until(
        lambda: Counter(entry.state.value for entry in automation.entries(limit=500)) == Counter(states),
        f"the entries are {states}",
        seconds=60,
    )


@pytest.fixture(scope="module")
def versions(wb: Workbench) -> Automation:
    """An automation with two versions, a pause, and a time when it was off; contacts change in between."""
    first = (
        wb.automation("lived")
        .on("lv:paid")
        .when("contact.plan", eq="pro")
        .then(lambda b: b.add_tag("lv-pro").send_inapp("One", "{{ contact.tags | length }} {{ contact.plan }}"))
        .otherwise(lambda b: b.update_contact(plan="free"))
        .wait_for("lv:bought", within="3h")
        .then(lambda b: b.send_inapp("Bought", "{{ contact.plan }}"))
        .publish()
    )
    for number in range(4):
        wb.events.send_many([paid(number, attributes={"plan": "pro"})] if number % 2 else [paid(number)])
    wait_for_states(first, waiting=4)
    second = wb.automation("lived").on("lv:paid").send_inapp("Two", "{{ contact.plan }}").publish()
    wb.events.send_many([paid(number) for number in range(2, 6)])
    wait_for_states(second, waiting=4, completed=4)
    wb.events.send_many([paid(0, "lv:other", attributes={"plan": "max"})])
    second.pause()
    wb.events.send_many([paid(0, "lv:bought"), paid(7)])
    wait_for_states(second, waiting=3, completed=4, paused=1)
    second.resume()
    wait_for_states(second, waiting=3, completed=5)
    wb.events.send_many([paid(0, "lv:other", attributes={"plan": "last"})])
    second.deactivate()
    wb.events.send_many([paid(8)])
    wait_for_states(second, completed=5, cancelled=3)
    second.activate()
    wb.events.send_many([paid(9)])
    wait_for_states(second, completed=6, cancelled=3)
    return second


def test_each_event_is_played_by_the_version_of_its_time(versions: Automation) -> None:
    backtest = versions.backtest(days=1, version="live")
    assert backtest.differences().rows() == []
    assert backtest.agreement == "Agrees with 9 of 9 real entries."
    assert "Agrees with 9 of 9 real entries" in repr(backtest)
    assert "Agrees with 9 of 9 real entries" in backtest._repr_html_()


def test_a_draft_sees_the_contacts_of_then_without_what_was_live(wb: Workbench, versions: Automation) -> None:
    """Contact 0 had no plan until its entry set one, which a draft that sets none must not see."""
    text = "{{ contact.plan | default('none') }} {{ contact.tags | length }}"
    draft = wb.automation("lived").on("lv:paid").send_inapp("Three", text)
    backtest = draft.backtest(days=1)
    (message,) = backtest.messages
    assert message.body in ("none 0", "pro 0")
    tagged = wb.automation("other").on("lv:paid").when("contact.tags", contains="lv-pro").then(lambda b: b.exit())
    assert tagged.backtest(days=1).branches()["entries"].to_list() == [3, 8]  # what another automation did is seen


def test_entries_from_before_the_period_are_left_out(wb: Workbench, versions: Automation) -> None:
    began = wb.sql("SELECT created_at FROM app_events WHERE event = 'lv:paid' ORDER BY created_at")["created_at"]
    until = datetime.now(UTC) + timedelta(days=1)
    backtest = versions.backtest(since=began[4], until=until, version="live")
    assert (backtest.agreement, backtest.totals.entries) == ("Agrees with 5 of 5 real entries.", 5)


def test_an_entry_that_differs_is_listed_with_the_reason(wb: Workbench) -> None:
    """A replayed dead letter takes its failed step a second time, which a backtest does not."""
    automation = wb.automation("differing").on("lv:seen").send_inapp("Hi", "{{ name }}", on_missing="fail").publish()
    wb.events.send_many([paid(20, "lv:seen", payload={"name": "Ann"}), paid(21, "lv:seen")])
    wait_for_states(automation, completed=1, dead=1)
    automation.dead_letters().replay()
    wait_for_states(automation, completed=1, dead=1)
    until(lambda: automation.backtest(days=1, version="live").differences().height == 1, "it differs", seconds=30)
    backtest = automation.backtest(days=1, version="live")
    assert backtest.agreement == "Agrees with 1 of 2 real entries."
    ((node, real, simulated, reason),) = backtest.differences().select("node", "real", "simulated", "reason").rows()
    assert (node, real, simulated) == ("send_inapp", "failed (template_error)", "")
    assert reason == "only the engine took this step"


def test_moved_entries_are_played_on_the_version_that_they_continued_on(wb: Workbench) -> None:
    def automation(text: str) -> Automation:
        waiting = wb.automation("moved").on("lv:ordered").wait_for("lv:shipped", within="3h", node="wait")
        return waiting.then(lambda b: b.send_inapp(text, "{{ contact.plan | default('') }}", node=text))

    first = automation("One").publish()
    wb.events.send_many([paid(number, "lv:ordered") for number in range(30, 33)])
    wait_for_states(first, waiting=3)
    moved = automation("Two").publish(move="safe")
    wb.events.send_many([paid(30, "lv:shipped", attributes={"plan": "pro"})])
    wait_for_states(moved, waiting=2, completed=1)
    moved.move_back()
    wb.events.send_many([paid(31, "lv:shipped"), paid(33, "lv:ordered"), paid(33, "lv:shipped")])
    wait_for_states(moved, waiting=1, completed=3)
    backtest = moved.backtest(days=1, version="live")
    assert backtest.differences().rows() == []
    assert backtest.agreement == "Agrees with 4 of 4 real entries."
    assert sorted(backtest.frame().filter(pl.col("outcome") == "sent")["node"]) == ["One", "Two", "Two"]


def test_contacts_that_change_while_they_are_read_are_read_again(
    wb: Workbench, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation = wb.automation("meanwhile").on("lv:met").send_inapp("Hi", "there").publish()
    identifiers = [{"walletAddress": f"0x17f{0:037x}"}, {"externalId": "lv-met-1"}, {"externalId": "lv-met-2"}]
    names = ["lv-other-1", "lv-other-2"]
    unread = [{"event": "lv:other", "contact": {"externalId": name}} for name in names]
    wb.events.send_many([*unread, *({"event": "lv:met", "contact": sent} for sent in identifiers)])
    wait_for_states(automation, completed=3)
    others = running.workbench_with("contacts:read,contacts:erase,automations:write,automations:publish")
    kept = others.contact(wallet_address=identifiers[0]["walletAddress"])
    absorbed, erased = (others.contact(external_id=sent["externalId"]) for sent in identifiers[1:])
    not_read = [others.contact(external_id=name) for name in names]
    changes = [others.merge(kept, absorbed).apply, erased.erase, others.merge(*not_read).apply]
    read_contacts = BacktestSource.contacts

    def read_before_a_change(source: BacktestSource, window: Window) -> Generator[pl.DataFrame]:
        yield from read_contacts(source, window)
        changes.pop(0)()

    monkeypatch.setattr(BacktestSource, "contacts", read_before_a_change)
    backtest = automation.backtest(days=1, version="live")
    assert changes == []
    assert backtest.differences().rows() == []
    assert backtest.agreement == "Agrees with 2 of 2 real entries."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"against": "published"}, "leave out `against`"), ({"version": "published"}, 'write version="live"')],
)
def test_what_cannot_be_played_is_an_error(versions: Automation, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        versions.backtest(**({"days": 1, "version": "live"} | arguments))


def test_an_automation_that_was_never_published_was_not_live(wb: Workbench) -> None:
    with pytest.raises(NotFoundError, match="was never published"):
        wb.automation("never").on("lv:paid").add_tag("x").backtest(version="live")


def test_erased_contacts_and_entries_from_before_the_first_publication_are_not_compared(
    wb: Workbench, running: Running
) -> None:
    automation = wb.automation("begun").on("lv:begun").send_inapp("Hi", "{{ name }}").save().activate()
    wb.events.send_many([paid(30, "lv:begun")])
    entries = "automation_entries e JOIN automations a ON a.id = e.automation_id WHERE a.name = 'begun'"
    query = f"SELECT e.id FROM {entries} AND e.outcome = 'no_published_version'"
    until(lambda: wb.sql(query).height == 1, "the draft has an entry", seconds=60)
    automation.publish()
    wb.events.send_many([paid(number, "lv:begun", payload={"name": "Ann"}) for number in (31, 32)])
    wait_for_states(automation, completed=2)
    running.workbench_with("contacts:read,contacts:erase").contact(external_id="lv-32").erase()
    backtest = automation.backtest(days=1, version="live")
    assert backtest.differences().rows() == []
    assert backtest.agreement == "Agrees with 1 of 1 real entry."
