"""A backtest of what was live: versions, pauses, ends, moves and failures take effect as they did."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation, node
from tests.language.test_timeline import ANN, BEGIN, DAY, DELAY, HOUR, events, outcomes, paid, steps_of
from workbench.language.channel import RetryPolicy
from workbench.language.contact import ChangeOrder, ContactState, ValueChange
from workbench.language.decision import Failure
from workbench.language.event import Identifiers
from workbench.language.live import ActivationState, LiveChange, PastMove, PublishedVersion
from workbench.language.simulate import LivePast, SimulatedAutomation, backtest
from workbench.language.timeline import OtherMessage, PastEntries, RecordedFailure, SimulatedEntry
from workbench.language.trigger import Trigger

HOOK = node("h", "send_webhook", url="https://a.co")
RETRIES = RetryPolicy((10.0, 10.0))
PAID = Trigger(frozenset({"paid"}))


def version(number: int, *nodes: dict[str, Any], trigger: Trigger = PAID, **more: Any) -> PublishedVersion:
    graph = build_automation(*nodes, **more).graph
    assert graph is not None
    return PublishedVersion(BEGIN, number, trigger, graph)


def failed(node_id: str, failure: Failure, at: timedelta, next_at: timedelta | None = None) -> RecordedFailure:
    return RecordedFailure(node_id, failure, None if next_at is None else BEGIN + next_at, BEGIN + at)


def change(after: timedelta, of: PublishedVersion | None, state: ActivationState = "live", **more: Any) -> LiveChange:
    return LiveChange(BEGIN + after, of, state, **more)


def play(
    changes: list[LiveChange], *arrivals: tuple[timedelta, str], values: tuple[ValueChange, ...] = (), **past: Any
) -> list[SimulatedEntry]:
    live = LivePast(tuple(changes), **past)
    automation = SimulatedAutomation(Trigger(frozenset({"other"})), None, "a")
    entries = backtest(automation, ANN, events(*arrivals), BEGIN + 30 * DAY, RETRIES, (), values, live)
    return sorted(entries, key=lambda entry: entry.event.id)


def last_steps(entries: list[SimulatedEntry]) -> list[tuple[int | None, str, str, timedelta]]:
    return [(entry.version, *steps_of(entry)[-1]) for entry in entries]


def test_each_event_starts_an_entry_of_the_version_that_was_live() -> None:
    changes = [change(HOUR, version(1, YES)), change(DAY, version(2, NO)), change(3 * DAY, None)]
    entries = play(changes, *paid(timedelta(0), 2 * HOUR, 2 * DAY, 4 * DAY))
    assert last_steps(entries) == [(1, "yes", "tagged", 2 * HOUR), (2, "no", "tagged", 2 * DAY)]


@pytest.mark.parametrize("state", ["paused", "off", "archived"])
def test_no_entry_starts_while_the_automation_is_not_live(state: ActivationState) -> None:
    only = version(1, YES)
    changes = [change(HOUR, only, state), change(DAY, only)]
    assert [entry.event.id for entry in play(changes, *paid(2 * HOUR, 2 * DAY))] == ["e1"]


def test_an_entry_keeps_its_version() -> None:
    changes = [change(timedelta(0), version(1, DELAY, YES)), change(DAY, version(2, NO))]
    assert last_steps(play(changes, *paid(HOUR))) == [(1, "yes", "tagged", 2 * DAY + HOUR)]


@pytest.mark.parametrize(("state", "outcome"), [("off", "automation_inactive"), ("archived", "automation_archived")])
def test_open_entries_are_cancelled_when_the_automation_ends(state: ActivationState, outcome: str) -> None:
    only = version(1, DELAY, YES)
    changes = [change(timedelta(0), only), change(DAY, only, state), change(2 * DAY, only)]
    entries = play(changes, *paid(HOUR, 2 * HOUR, 25 * DAY))
    assert outcomes(entries) == [("cancelled", outcome), ("cancelled", outcome), ("completed", "completed")]
    assert last_steps(entries[:1]) == [(1, "d", "waiting", HOUR)]


def test_an_entry_that_comes_due_in_a_pause_continues_when_it_ends() -> None:
    only = version(1, DELAY, YES)
    changes = [change(timedelta(0), only), change(DAY, only, "paused"), change(5 * DAY, only)]
    assert last_steps(play(changes, *paid(HOUR))) == [(1, "yes", "tagged", 5 * DAY)]


def test_an_entry_that_is_due_after_the_pause_is_not_changed_by_it() -> None:
    only = version(1, DELAY, YES)
    changes = [change(timedelta(0), only), change(DAY, only, "paused"), change(2 * DAY, only, cancels_overdue=True)]
    assert last_steps(play(changes, *paid(HOUR))) == [(1, "yes", "tagged", 2 * DAY + HOUR)]


NINE = node("n", "wait_until", time="09:00", timezoneAttribute="tz")


def test_a_time_of_day_that_passed_in_a_pause_has_not_been_missed() -> None:
    only = version(1, NINE, YES)
    changes = [change(timedelta(0), only), change(HOUR, only, "paused"), change(5 * DAY, only)]
    assert last_steps(play(changes, *paid(timedelta(0)))) == [(1, "yes", "tagged", 5 * DAY)]


def test_a_pause_that_is_over_does_not_matter_to_the_next_decision() -> None:
    """An event wakes the entry in the pause. Later the time zone changes, at 15:00; nine in Caracas is 13:00."""
    never = {"event": "bought", "filters": [{"path": "contact.plan", "operator": "eq", "value": "never"}]}
    only = version(1, NINE, YES, settings={"goal": never})
    changes = [change(timedelta(0), only), change(2 * HOUR, only, "paused"), change(4 * HOUR, only)]
    moved_to = ValueChange(BEGIN + 5 * HOUR, "attributes.tz", UNSET, "America/Caracas")
    entries = play(changes, (timedelta(0), "paid"), (3 * HOUR, "bought"), values=(moved_to,))
    assert last_steps(entries) == [(1, "yes", "tagged", DAY + 3 * HOUR)]


def test_overdue_entries_are_cancelled_when_the_pause_ends_so() -> None:
    only = version(1, DELAY, YES)
    changes = [change(timedelta(0), only), change(DAY, only, "paused"), change(5 * DAY, only, cancels_overdue=True)]
    (entry,) = play(changes, *paid(HOUR))
    assert (outcomes([entry]), entry.run.due_at) == ([("cancelled", "overdue")], None)


def test_what_is_live_changes_before_the_events_of_its_moment() -> None:
    changes = [change(timedelta(0), version(1, YES)), change(HOUR, version(2, NO))]
    assert [entry.version for entry in play(changes, *paid(0.5 * HOUR, HOUR, HOUR))] == [1, 2, 2]


ASK = node("c", "condition", filters=[{"path": "contact.plan", "operator": "eq", "value": "pro"}])
ASKING = {"edges": "t>c c:true>yes c:false>no"}


@pytest.mark.parametrize(
    ("order", "last"),
    [(ChangeOrder.BEFORE_WAKING, "yes"), (ChangeOrder.BEFORE_START, "yes"), (ChangeOrder.AFTER_START, "no")],
)
def test_a_value_changes_before_its_event_starts_an_entry_or_after(order: ChangeOrder, last: str) -> None:
    values = (ValueChange(BEGIN + HOUR, "attributes.plan", UNSET, "pro", "e0", order),)
    changes = [change(timedelta(0), version(1, ASK, YES, NO, **ASKING))]
    entries = play(changes, *paid(HOUR, 2 * HOUR), values=values)
    assert [steps_of(entry)[-1][0] for entry in entries] == [last, "yes"]


def test_recorded_failures_are_repeated_when_they_were() -> None:
    failure = Failure("refused", "no")
    tried = (failed("h", failure, HOUR, 2 * HOUR), failed("h", failure, 2 * HOUR, 3 * HOUR))
    changes = [change(timedelta(0), version(1, HOOK, YES))]
    entries = play(changes, *paid(HOUR, HOUR), failures={"e0": tried})
    assert [steps_of(entry)[1:] for entry in entries] == [
        [("h", "failed", HOUR), ("h", "failed", 2 * HOUR), ("h", "sent", 3 * HOUR), ("yes", "tagged", 3 * HOUR)],
        [("h", "sent", HOUR), ("yes", "tagged", HOUR)],
    ]
    assert [step.detail for step in entries[0].steps[1:3]] == [{"cause": "refused", "error": "no"}] * 2


def test_a_recorded_failure_without_another_attempt_ends_the_entry() -> None:
    gone = failed("h", Failure("gone", "never", permanent=True), HOUR)
    (entry,) = play([change(timedelta(0), version(1, HOOK, YES))], *paid(HOUR), failures={"e0": (gone,)})
    assert (outcomes([entry]), steps_of(entry)[-1]) == ([("dead", "gone")], ("h", "failed", HOUR))


def test_a_failure_without_a_recorded_attempt_is_tried_again_after_the_computed_delay() -> None:
    lost = failed("h", REFUSED, HOUR)
    (entry,) = play([change(timedelta(0), version(1, HOOK, YES))], *paid(HOUR), failures={"e0": (lost,)})
    assert [step.outcome for step in entry.steps] == ["entered", "failed", "sent", "tagged"]
    assert entry.steps[2].at - entry.steps[1].at < timedelta(seconds=13)


def test_a_step_that_fails_without_a_delivery_is_tried_again_when_it_was() -> None:
    """The next attempt comes due in a pause; of the one after it nothing is known."""
    bob = ContactState("bob", Identifiers(external_id="b"))
    only = version(1, YES, MESSAGE)
    changes = (change(timedelta(0), only), change(2 * HOUR, only, "paused"), change(4 * HOUR, only))
    lost = failed("m", Failure("no_wallet", "?"), HOUR, 3 * HOUR)
    live = LivePast(changes, failures={"e0": (lost,)})
    records = [replace(event, sent=bob.identifiers) for event in events(*paid(HOUR))]
    automation = SimulatedAutomation(PAID, None, "a")
    (entry,) = backtest(automation, bob, records, BEGIN + 30 * DAY, RETRIES, live=live)
    assert (outcomes([entry]), steps_of(entry)[2:4]) == (
        [("dead", "no_wallet")],
        [("m", "failed", HOUR), ("m", "failed", 4 * HOUR)],
    )
    assert entry.steps[-1].at - entry.steps[-2].at < timedelta(seconds=13)


def test_a_step_that_is_tried_again_is_not_woken() -> None:
    """The goal comes, and the contact changes its time zone, while the webhook fails."""
    only = version(1, HOOK, NINE, settings={"goal": {"event": "bought"}})
    lost = failed("h", REFUSED, HOUR, 5 * HOUR)
    moved_to = ValueChange(BEGIN + 2 * HOUR, "attributes.tz", UNSET, "UTC")
    records = (HOUR, "paid"), (3 * HOUR, "bought")
    entries = play([change(timedelta(0), only)], *records, values=(moved_to,), failures={"e0": (lost,)})
    assert [steps_of(entry)[1:] for entry in entries] == [[("h", "failed", HOUR), ("h", "goal", 5 * HOUR)]]


def test_failures_are_those_of_the_node_that_sends() -> None:
    other = failed("other", Failure("gone", "never", permanent=True), HOUR)
    changes = [change(timedelta(0), version(1, YES, HOOK))]
    (entry,) = play(changes, *paid(HOUR), failures={"e0": (other,)})
    assert outcomes([entry]) == [("completed", "completed")]


MAIL = node("m", "send_email", subject="Hi", body="{{ contact.plan | default('?') }}")
REFUSED, GONE = Failure("refused", "no"), Failure("gone", "never", permanent=True)
FINAL = Failure("refused", "no", permanent=True)


def mailed(failures: list[RecordedFailure], *after: timedelta) -> list[str]:
    """Return the outcomes of an email for each event, with a cap of one in two days; the first one fails so."""
    settings = {"frequencyCap": {"messages": 1, "seconds": 2 * 86_400}}
    changes = [change(timedelta(0), version(1, MAIL, settings=settings))]
    entries = play(changes, *paid(*after), failures={"e0": failures})
    return [" ".join(step.outcome for step in entry.steps[1:]) for entry in entries]


@pytest.mark.parametrize(
    ("failures", "second_at", "expected"),
    [
        ([failed("m", REFUSED, timedelta(0), 3 * HOUR)], 2 * HOUR, ["failed sent", "skipped"]),  # while it waits
        ([failed("m", REFUSED, timedelta(0), DAY)], 2 * DAY + 2 * HOUR, ["failed sent", "sent"]),  # from the first
        ([failed("m", FINAL, timedelta(0))], 2 * HOUR, ["failed", "sent"]),
        ([failed("m", Failure("no_answer", "?", permanent=True), timedelta(0))], 2 * HOUR, ["failed", "skipped"]),
        (
            [failed("m", Failure("no_answer", "?"), timedelta(0), HOUR), failed("m", FINAL, HOUR)],
            2 * HOUR,
            ["failed failed", "skipped"],
        ),
        ([failed("m", REFUSED, timedelta(0), HOUR), failed("m", FINAL, HOUR)], 2 * HOUR, ["failed failed", "sent"]),
    ],
)
def test_a_failed_message_counts_from_its_first_attempt_until_it_is_given_up(
    failures: list[RecordedFailure], second_at: timedelta, expected: list[str]
) -> None:
    assert mailed(failures, timedelta(0), second_at) == expected


@pytest.mark.parametrize("failures", [[], [failed("h", REFUSED, timedelta(0), HOUR)]])
def test_a_failed_webhook_is_not_taken_for_a_message_of_its_moment(failures: list[RecordedFailure]) -> None:
    settings = {"frequencyCap": {"messages": 1, "seconds": 2 * 86_400}}
    changes = [change(timedelta(0), version(1, MESSAGE, HOOK, MESSAGE | {"id": "n"}, settings=settings))]
    (entry,) = play(changes, *paid(timedelta(0)), failures={"e0": failures})
    assert [step.outcome for step in entry.steps[1:] if step.outcome != "failed"] == ["sent", "sent", "skipped"]


def test_a_failed_message_does_not_count_after_its_entry_continues_without_it() -> None:
    """The address is closed while the email waits for its next attempt."""
    ask = node("c", "condition", filters=[{"path": "contact.plan", "operator": "exists"}])
    nodes, cap = (ask, MAIL, DELAY, MESSAGE | {"id": "i"}), {"messages": 1, "seconds": 86_400}
    only = version(1, *nodes, edges="t>c c:false>m m>d c:true>i", settings={"frequencyCap": cap})
    values = (
        ValueChange(BEGIN + HOUR, "suppressed", False, True),
        ValueChange(BEGIN + HOUR, "attributes.plan", UNSET, "pro"),
    )
    lost = failed("m", REFUSED, timedelta(0), 2 * HOUR)
    entries = play([change(timedelta(0), only)], *paid(timedelta(0), 3 * HOUR), values=values, failures={"e0": (lost,)})
    assert [steps_of(entry)[2:] for entry in entries] == [
        [
            ("m", "failed", timedelta(0)),
            ("m", "skipped", 2 * HOUR),
            ("d", "waiting", 2 * HOUR),
            ("d", "waited", 2 * DAY + 2 * HOUR),
        ],
        [("i", "sent", 3 * HOUR)],
    ]


def test_a_message_that_is_tried_again_counts_the_others_since_its_first_attempt() -> None:
    only = version(1, MAIL, settings={"frequencyCap": {"messages": 1, "seconds": 2 * 86_400}})
    live = LivePast((change(timedelta(0), only),), failures={"e0": (failed("m", REFUSED, timedelta(0), 2 * HOUR),)})
    others = [OtherMessage(BEGIN + HOUR, "", is_younger=False)]
    (entry,) = backtest(
        SimulatedAutomation(PAID, None), ANN, events(*paid(timedelta(0))), BEGIN + DAY, RETRIES, others, live=live
    )
    assert [step.outcome for step in entry.steps] == ["entered", "failed", "skipped"]


def test_a_delivery_fails_when_it_did() -> None:
    slow = failed("h", REFUSED, HOUR + timedelta(seconds=30), 2 * HOUR)
    (entry,) = play([change(timedelta(0), version(1, HOOK))], *paid(HOUR), failures={"e0": (slow,)})
    assert steps_of(entry)[1:] == [("h", "failed", HOUR + timedelta(seconds=30)), ("h", "sent", 2 * HOUR)]


def test_a_message_that_is_tried_again_keeps_its_text() -> None:
    plan = ValueChange(BEGIN + 2 * HOUR, "attributes.plan", UNSET, "pro")
    changes = [change(timedelta(0), version(1, MAIL, MAIL | {"id": "n"}))]
    tried = failed("m", REFUSED, HOUR, 3 * HOUR)
    (entry,) = play(changes, *paid(HOUR), values=(plan,), failures={"e0": (tried,)})
    assert [effect.body for decision in entry.decisions for effect in decision.effects] == ["?", "pro"]  # type: ignore[union-attr]


def test_an_address_that_a_delivery_closes_gets_no_more_emails() -> None:
    changes = [change(timedelta(0), version(1, MAIL))]
    entries = play(changes, *paid(HOUR, DAY), failures={"e0": (failed("m", GONE, HOUR),)})
    assert [steps_of(entry)[-1] for entry in entries] == [("m", "failed", HOUR), ("m", "skipped", DAY)]


def moved(
    move: PastMove | None, *changes: LiveChange, arrivals: tuple[timedelta, ...] = (HOUR,)
) -> list[SimulatedEntry]:
    first, second = version(1, DELAY, YES), version(2, DELAY, NO)
    own = [change(timedelta(0), first), change(DAY, second), *changes]
    return play(own, *paid(*arrivals), moves={} if move is None else {move.entry_event_id: (move,)})


SHORT = version(2, node("s", "delay", seconds=86_400 + 3_600), NO)
SECOND = version(2, DELAY, NO)
FAILING = version(2, DELAY, node("m", "send_inapp", title="Hi", body="{{ payload.nothing }}"))


@pytest.mark.parametrize(
    ("move", "last"),
    [
        (None, (1, "yes", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + DAY, "e0", 1, "d", SECOND, "d"), (2, "no", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + HOUR, "e0", 1, "d", SECOND, "d"), (2, "no", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + 1.5 * DAY, "e0", 1, "d", SHORT, "s"), (2, "no", "tagged", 1.5 * DAY)),
        (PastMove(BEGIN + 1.5 * DAY, "e0", 1, "d", FAILING, "m"), (1, "yes", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + DAY, "e0", 1, "x", SECOND, "d"), (1, "yes", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + DAY, "e0", 2, "d", SECOND, "d"), (1, "yes", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + 3 * DAY, "e0", 1, "d", SECOND, "d"), (1, "yes", "tagged", 2 * DAY + HOUR)),
        (PastMove(BEGIN + timedelta(minutes=1), "e0", 1, "d", SECOND, "d"), (1, "yes", "tagged", 2 * DAY + HOUR)),
    ],
)
def test_an_entry_is_moved_if_it_is_where_it_was(move: PastMove | None, last: tuple[int, str, str, timedelta]) -> None:
    assert last_steps(moved(move)) == [last]


def test_an_entry_that_would_fail_is_not_moved_in_a_pause() -> None:
    paused, live = change(2 * DAY, SECOND, "paused"), change(5 * DAY, SECOND)
    move = PastMove(BEGIN + 3 * DAY, "e0", 1, "d", FAILING, "m")
    assert last_steps(moved(move, paused, live)) == [(1, "yes", "tagged", 5 * DAY)]


def test_a_move_leaves_the_changes_to_come() -> None:
    move = PastMove(BEGIN + 1.5 * DAY, "e0", 1, "d", SECOND, "d")
    assert last_steps(moved(move, arrivals=(HOUR, 1.2 * DAY))) == [
        (2, "no", "tagged", 2 * DAY + HOUR),
        (2, "no", "tagged", 3.2 * DAY),
    ]


def test_a_move_comes_before_the_events_of_its_moment() -> None:
    first, second = version(1, WAIT, YES, edges="t>w w:matched>yes"), version(2, WAIT, NO, edges="t>w w:matched>no")
    move = PastMove(BEGIN + 2 * HOUR, "e0", 1, "w", second, "w")
    plan = ValueChange(BEGIN + 2 * HOUR, "attributes.plan", UNSET, "pro", "e1")
    entries = play(
        [change(timedelta(0), first)], *((HOUR, "paid"), (2 * HOUR, "bought")), values=(plan,), moves={"e0": (move,)}
    )
    assert last_steps(entries) == [(2, "no", "tagged", 2 * HOUR)]


def test_a_moved_entry_is_woken_by_what_its_new_version_waits_for_and_has_its_cap() -> None:
    cap = {"frequencyCap": {"messages": 1, "seconds": 60}}
    second = version(2, WAIT, MESSAGE, edges="t>w w:matched>m", settings=cap)
    move = PastMove(BEGIN + DAY, "e0", 1, "d", second, "w")
    entries = play(
        [change(timedelta(0), version(1, DELAY)), change(HOUR / 2, second), change(HOUR / 2, version(1, DELAY))],
        *((HOUR, "paid"), (1.5 * DAY, "bought")),
        moves={"e0": (move,)},
    )
    assert last_steps(entries) == [(2, "m", "sent", 1.5 * DAY)]


def test_a_moved_entry_has_passed_no_more_steps_than_its_new_version_has() -> None:
    first = version(1, YES, MESSAGE, DELAY)
    moves = {"e0": (PastMove(BEGIN + DAY, "e0", 1, "d", SECOND, "d"),)}
    (entry,) = play([change(timedelta(0), first)], *paid(HOUR), moves=moves)
    assert (last_steps([entry]), entry.run.step) == ([(2, "no", "tagged", 2 * DAY + HOUR)], 3)


def test_only_the_entry_of_the_move_is_moved() -> None:
    move = PastMove(BEGIN + DAY, "e1", 1, "d", SECOND, "d")
    assert last_steps(moved(move, arrivals=(HOUR, 2 * HOUR, 3 * HOUR))) == [
        (1, "yes", "tagged", 2 * DAY + HOUR),
        (2, "no", "tagged", 2 * DAY + 2 * HOUR),
        (1, "yes", "tagged", 2 * DAY + 3 * HOUR),
    ]


def test_a_paused_entry_is_moved_and_continues_after_the_pause() -> None:
    paused, live = change(2 * DAY, SECOND, "paused"), change(5 * DAY, SECOND)
    move = PastMove(BEGIN + 3 * DAY, "e0", 1, "d", SECOND, "d")
    assert last_steps(moved(move, paused, live)) == [(2, "no", "tagged", 5 * DAY)]


@pytest.mark.parametrize(
    ("policy", "past", "outcome"),
    [
        ({"policy": "once"}, None, "completed"),
        ({"policy": "once"}, PastEntries(BEGIN - DAY, BEGIN - DAY), "reentry"),
        ({"policy": "once_per", "days": 2}, PastEntries(BEGIN - 3 * DAY, None), "completed"),
        ({"policy": "once_per", "days": 2}, PastEntries(BEGIN - DAY, None), "reentry"),
        ({"policy": "not_while_running"}, PastEntries(BEGIN - DAY, None), "reentry"),
        ({"policy": "not_while_running"}, PastEntries(BEGIN - DAY, BEGIN + HOUR), "completed"),
        ({"policy": "not_while_running"}, PastEntries(BEGIN - DAY, BEGIN + 2 * HOUR), "reentry"),
    ],
)
def test_entries_from_before_count_for_reentry(policy: dict[str, Any], past: PastEntries | None, outcome: str) -> None:
    changes = [change(timedelta(0), version(1, MESSAGE, settings={"reentry": policy}))]
    assert [entry.run.outcome for entry in play(changes, *paid(HOUR), past_entries=past)] == [outcome]
