"""A notebook can monitor automations: pauses, the audit log, statistics, test sends and versions."""

from datetime import UTC, date, datetime

import pytest

from tests.inapp.wallet import evm_wallet
from tests.installation import until
from tests.running import Running
from workbench import Automation, InvalidArgumentError, InvalidRequestError, NotFoundError, Workbench
from workbench.display.words import entry_counts, quantity
from workbench.language.lift import Lift, LiftGroup, lift
from workbench.language.responses import DayView
from workbench.stats import GoalRate

WALLET = "0xAbCd000000000000000000000000000000004321"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def send(wb: Workbench, event: str, *people: str) -> None:
    for person in people:
        assert wb.events.send(event, external_id=person).accepted


def ended(automation: Automation, how_many: int) -> None:
    """Return when `how_many` entries have ended."""
    until(lambda: sum(entry.ended for entry in automation.entries()) == how_many, "they ended")


def test_an_automation_is_paused_and_resumed(wb: Workbench) -> None:
    automation = wb.automation("pausing").on("pausing:event").delay(minutes=10).publish().pause()
    assert "(paused, version 1)" in repr(automation)
    assert wb.automation("pausing").simulate({"contact": {"walletAddress": WALLET}}).note.startswith("It is paused")
    send(wb, "pausing:event", "p1")
    assert "(live, version 1)" in repr(automation.resume())
    send(wb, "pausing:event", "p2")
    until(lambda: len(automation.entries(state="waiting")) == 1, "the second waits")
    assert len(automation.entries()) == 1


def test_everything_is_stopped_and_resumed(wb: Workbench) -> None:
    automation = wb.automation("stopping").on("stopping:event").delay(minutes=10).publish()
    send(wb, "stopping:event", "s1")
    until(lambda: len(automation.entries(state="waiting")) == 1, "it waits")
    stopped = wb.stop_all()
    try:
        assert wb.automation("stopping").state == "paused"
        for shown in (repr(stopped), stopped._repr_html_()):
            assert f"Stopped: {stopped.counts()}." in shown
        with pytest.raises(InvalidRequestError, match="everything is stopped"):
            automation.resume()
    finally:
        resumed = wb.resume_all()
    assert repr(resumed).startswith(f"Running again: {quantity(stopped.automations, 'automation')}, ")
    assert wb.automation("stopping").state == "live"
    assert "Stopped: 1 automation, 1 entry and 0 messages not sent yet." in repr(automation.pause())


def test_entries_from_before_the_first_publication_are_left_out(wb: Workbench) -> None:
    automation = wb.automation("unpublished").on("unpublished:event").add_tag("x").save()
    before = automation.wait_for_entry(wb.events.send("unpublished:event", external_id="p1"))
    assert (before.state.value, before.outcome) == ("completed", "no_published_version")
    assert (len(automation.entries()), sum(automation.stats().states.values())) == (0, 0)
    after = automation.publish().wait_for_entry(wb.events.send("unpublished:event", external_id="p1"))
    assert [entry.id for entry in automation.entries()] == [after.id]
    assert sum(automation.stats().states.values()) == 1


def test_an_inactive_automation_cannot_be_paused_and_an_unknown_option_is_refused(wb: Workbench) -> None:
    automation = wb.automation("pausing-off").on("pausing-off:event").add_tag("x").publish().deactivate()
    with pytest.raises(InvalidRequestError, match="nothing to pause"):
        automation.pause()
    with pytest.raises(InvalidRequestError, match="must be run or cancel"):
        automation.resume(overdue="later")  # type: ignore[arg-type]


def test_the_audit_log_is_a_frame(wb: Workbench) -> None:
    automation = wb.automation("audited").on("audited:event").add_tag("x").publish()
    automation.add_tag("y").publish()
    mine = automation.audit()
    assert mine["action"].to_list() == [
        "automation.publish",
        "automation.update",
        "automation.publish",
        "automation.create",
    ]
    assert mine["to_version"].to_list() == [2, None, 1, None]
    assert mine["from_version"].to_list() == [1, None, None, None]
    assert "1 → 2" in repr(mine)
    assert "automation: publish" in mine._repr_html_()
    assert "audited" in wb.audit(3, action="automation.publish")["subject"].to_list()
    assert wb.audit(3, action="nothing").is_empty()


def held_out_contact(wb: Workbench, automation: Automation) -> str:
    """Return the external id of a contact that is held out."""
    entry = next(entry for entry in automation.entries() if entry.outcome == "holdout")
    (external_id,) = wb.sql("SELECT external_id FROM contacts WHERE id = :id", id=entry.contact_id)["external_id"]
    return str(external_id)


def test_stats_have_entries_per_step_failures_and_the_goal_rate(wb: Workbench) -> None:
    automation = (
        wb.automation("figures")
        .on("figures:event")
        .goal("figures:bought")
        .holdout(50)
        .delay(days=1)
        .add_tag("late")
        .publish()
    )
    people = [f"figures-{number}" for number in range(12)]
    send(wb, "figures:event", *people)
    until(lambda: len([entry for entry in automation.entries() if entry.state != "pending"]) == 12, "all begun")
    send(wb, "figures:bought", *people[:4])
    until(lambda: automation.stats().goal.treated.reached + automation.stats().goal.held_out.reached == 4, "counted")
    stats = automation.stats()
    held_out = stats.states["completed"]
    assert (stats.goal.treated.contacts, stats.goal.held_out.contacts) == (12 - held_out, held_out)
    until(lambda: automation.stats().states["exited"] == stats.goal.treated.reached, "the goal ends them")
    stats = automation.stats()
    steps = {step.node_id: step for step in stats.steps}
    assert steps["delay_1_day"].live == stats.states["waiting"] == 12 - held_out - stats.goal.treated.reached
    assert steps["trigger"].outcomes["held_out"] == held_out
    for shown in (repr(stats), stats._repr_html_()):
        assert "Goal figures:bought: reached by" in shown
        assert "Held out (50 %): reached by" in shown
        assert "not enough data" in shown
        assert "wait 1 day" in shown
    explained = wb.contact(external_id=held_out_contact(wb, automation)).explain(automation)
    assert "is in the holdout" in repr(explained)
    counts = {(step, outcome): count for step, outcome, count in stats.frame().rows()}
    assert counts["delay_1_day", "live"] == steps["delay_1_day"].live


def test_the_dashboard_replays_failed_entries(wb: Workbench) -> None:
    automation = wb.automation("live").on("live:event").send_inapp("Hi {{ who }}", "!", on_missing="fail").publish()
    assert wb.events.send("live:event", wallet_address=WALLET).accepted
    until(lambda: len(automation.entries(state="dead")) == 1, "it failed")
    live = automation.dashboard()
    page = live.answer({"ask": "look"})
    assert page["dead"]["rows"][0][0] == "template_error"
    assert page["lines"][:1] == ["1 entry: 1 dead."]
    assert live.answer({"ask": "replay", "cause": "template_error"})["notice"].startswith("1 entry is tried again")
    until(lambda: automation.entries().latest.attempts == 1 and automation.entries().latest.ended, "it failed again")
    assert "1 dead" in repr(live)


def test_stats_of_an_unpublished_automation_are_empty(wb: Workbench) -> None:
    stats = wb.automation("unwatched").on("unwatched:event").add_tag("x").save().stats()
    assert "No entries yet." in repr(stats)
    assert "No goal" in stats._repr_html_()


def rate(treated: LiftGroup, held_out: LiftGroup, **more: object) -> GoalRate:
    values = {"holdout": 10, "since_version": 3, "within_seconds": 604_800, "lift": lift(treated, held_out)} | more
    return GoalRate("bought", 30, treated=treated, held_out=held_out, **values)  # type: ignore[arg-type]


def test_a_lift_is_shown_with_its_interval_or_not_at_all() -> None:
    assert rate(LiftGroup(1_000, 200), LiftGroup(100, 9)).lines() == [
        "Goal bought: reached by 200 of 1,000 contacts (20.0%) within 7 days of first entering, in the last 30 days.",
        "Held out (10 %, since version 3): reached by 9 of 100 contacts (9.0%).",
        "Lift: +11.0 points (95 % interval: +3.4 to +15.9). More contacts reach the goal with it than without.",
    ]
    assert "not significant yet" in rate(LiftGroup(1_000, 100), LiftGroup(100, 9)).lines()[2]
    assert rate(LiftGroup(9, 9), LiftGroup()).lines()[1:] == [
        "Held out (10 %, since version 3): reached by 0 contacts so far.",
        "Lift: not enough data. It takes 30 contacts per side, and 5 that reach the goal.",
    ]
    assert len(rate(LiftGroup(1, 1), LiftGroup(), lift=None).lines()) == 1
    assert Lift("too_few") == lift(LiftGroup(9, 9), LiftGroup())


def test_limits_of_a_goal_rate_are_shown() -> None:
    limited = rate(
        LiftGroup(9, 9),
        LiftGroup(),
        later_entries=1_200,
        mixed=1,
        unknown=2,
        cut_at=datetime(2026, 11, 21, 8, tzinfo=UTC),
    )
    assert limited.lines()[3:] == [
        "There are too many to count them all: only entries since 2026-11-21 08:00:00 UTC count.",
        "1,200 entries of contacts that had entered before: not counted.",
        "1 contact on both sides after a merge: counted on the side of the first entry.",
        "2 contacts with too many events to look at: counted as not reaching it.",
    ]


def test_counts_of_only_the_newest_entries_are_marked() -> None:
    assert (
        entry_counts({"waiting": 0, "completed": 99_999, "dead": 1})
        == "The newest 100,000 entries: 99,999 completed, 1 dead"
    )
    assert entry_counts({"completed": 1}) == "1 entry: 1 completed"


def test_the_goal_rate_has_a_row_per_day() -> None:
    days = (
        DayView(date(2026, 11, 20), LiftGroup(4, 1), LiftGroup()),
        DayView(date(2026, 11, 21), LiftGroup(), LiftGroup(2, 1)),
    )
    columns, rows = rate(LiftGroup(4, 1), LiftGroup(2, 1), by_day=days).table()
    assert [column.title for column in columns][4] == "held out: contacts"
    assert rows == [("2026-11-21", "0", "0", "", "2", "1", "50.0%"), ("2026-11-20", "4", "1", "25.0%", "0", "0", "")]


def test_a_simulation_predicts_the_holdout(wb: Workbench) -> None:
    automation = wb.automation("predicted-holdout").on("predicted-holdout:event").holdout(50).add_tag("x").publish()
    people = [f"predicted-{number}" for number in range(8)]
    send(wb, "predicted-holdout:before", *people)
    predicted = [automation.simulate({"contact": {"externalId": person}}).outcome for person in people]
    send(wb, "predicted-holdout:event", *people)
    ended(automation, 8)
    outcomes = wb.sql(
        "SELECT e.outcome FROM automation_entries e JOIN contacts c ON c.id = e.contact_id"
        " WHERE c.external_id LIKE 'predicted-%' ORDER BY c.external_id"
    )
    assert outcomes["outcome"].to_list() == predicted


def test_a_test_send_goes_to_the_given_addresses_and_returns_results(wb: Workbench) -> None:
    automation = (
        wb.automation("tested")
        .on("tested:event")
        .send_inapp(title="Hi {{ name }}", body="!")
        .send_email(subject="Hi", body="{{ name }}")
    )
    event = {"contact": {"walletAddress": WALLET, "email": "someone@example.com"}, "payload": {"name": "Ann"}}
    sent = automation.send_test(event, to={"email": "me@example.com"})
    assert [(result.node_id, result.outcome, result.reason) for result in sent] == [
        ("send_inapp", "skipped", "no_address"),
        ("send_email", "sent", None),
    ]
    for shown in (repr(sent), sent._repr_html_()):
        assert "you gave no address for it" in shown
    with pytest.raises(InvalidRequestError, match="does not belong to any of your contacts"):
        automation.send_test(event, to={"walletAddress": evm_wallet("20b0d45")})
    assert wb.events.send("tested:me", wallet_address=evm_wallet("3e")).accepted
    assert [
        result.node_id
        for result in automation.send_test(event, to={"walletAddress": evm_wallet("3e")}, node="send_inapp")
    ] == ["send_inapp"]
    with pytest.raises(InvalidArgumentError, match="add an address"):
        automation.send_test(event, to={})
    with pytest.raises(InvalidArgumentError, match="wallet_address is not a kind of address"):
        automation.send_test(event, to={"wallet_address": evm_wallet("3e")})
    with pytest.raises(InvalidRequestError, match=r"to\.email"):
        automation.send_test(event, to={"email": "nobody"})


def test_a_test_send_saves_nothing_and_continues_after_a_message_that_lacks_something(wb: Workbench) -> None:
    automation = (
        wb.automation("unsaved test")
        .on("tested:unsaved")
        .send_inapp("Hi", "there", on_missing="fail")
        .send_email("Hi {{ contact.name }}", "there", on_missing="fail")
        .send_email("Bye", "there")
    )
    event = {"contact": {"email": "someone@example.com"}}
    assert [
        (result.node_id, result.outcome, result.why())
        for result in automation.send_test(event, to={"email": "me@x.co"})
    ] == [
        ("send_inapp", "skipped", "the contact has no wallet"),
        ("send_email", "skipped", "a value of its text is missing (the value before it has no key 'name')"),
        ("send_email_2", "sent", ""),
    ]
    assert "unsaved test" not in [row.name for row in wb.automations]
    saved = automation.save()
    assert saved.add_tag("later").send_test(event, to={"email": "me@x.co"}, node="send_email_2")[0].outcome == "sent"
    assert wb.automation("unsaved test").to_json() == automation.to_json()
    assert saved.audit()["action"].to_list() == ["automation.test", "automation.create"]
    assert len(saved.entries()) == 0


def test_versions_show_their_differences(wb: Workbench) -> None:
    first = wb.automation("versions").on("versions:event").goal("bought").add_tag("x").publish()
    second = first.holdout(10).delay(days=1).publish()
    second.rollback(1)
    versions = second.versions()
    assert repr(versions.diff(1, 2)) == (
        "Version 2 against version 1: 3 differences\n"
        "  ~ settings: hold out 10 % of contacts\n"
        "  + delay_1_day: Wait 1 day\n"
        "  → add_tag_x: leads to delay_1_day, before: no step"
    )
    assert not versions.diff(1)
    assert repr(versions.diff(1)) == "Version 3 against version 1: no difference"
    assert "hold out 10 %" in versions.diff(1, 2)._repr_html_()
    for shown in (repr(versions), versions._repr_html_()):
        assert "the first" in shown
        assert "Wait 1 day" in shown
    with pytest.raises(NotFoundError, match="version not found: 9"):
        versions.diff(9)
