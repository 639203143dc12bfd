"""A backtest plays stored events with the given circumstances: retries, changes of the contact, versions, merges."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET

from tests.inapp.wallet import evm_wallet
from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation
from tests.language.test_timeline import ANN, BEGIN, DAY, HOUR, TOKEN, events, log, paid, run_backtest, steps_of
from tests.language.test_timeline_live import ASK, ASKING, change, play, version
from tests.language.test_timeline_merges import BOB, WAITING, bobs
from workbench.language.channel import RetryPolicy
from workbench.language.contact import ContactState, ValueChange
from workbench.language.event import Identifiers
from workbench.language.filter import Where
from workbench.language.simulate import ContactMerge, LivePast, MergedContact, SimulatedAutomation, backtest
from workbench.language.timeline import EventRecord, PastEntries
from workbench.language.trigger import Trigger, read_trigger

ONCE = {"reentry": {"policy": "once"}}
PAID = Trigger(frozenset({"paid"}))
CAL = ContactState("cal", Identifiers(evm_wallet("c")))


def test_a_message_is_tried_as_often_as_the_policy_says() -> None:
    nobody = ContactState("n")
    entries = [
        [
            *backtest(
                build_automation(MESSAGE), nobody, _of(nobody, "e", (HOUR, "paid")), BEGIN + DAY, RetryPolicy(delays)
            )
        ]
        for delays in ((), (1.0, 1.0))
    ]
    assert [[step.attempt for step in entry.steps[1:]] for (entry,) in entries] == [[1], [1, 2, 3]]


def _of(contact: ContactState, prefix: str, *arrivals: tuple[timedelta, str]) -> list[EventRecord]:
    return [
        EventRecord(record.id.replace("e", prefix), record.name, record.at, contact.identifiers, record.payload)
        for record in events(*arrivals)
    ]


def test_the_contact_changes_as_it_did() -> None:
    automation = build_automation(ASK, YES, NO, **ASKING)
    values = (ValueChange(BEGIN + 2 * HOUR, "attributes.plan", UNSET, "pro"),)
    entries = run_backtest(automation, *paid(HOUR, 3 * HOUR), changes=values)
    assert [steps_of(entry)[-1][0] for entry in entries] == ["no", "yes"]


def test_a_trigger_is_judged_at_the_moment_of_its_event() -> None:
    trigger = Trigger(frozenset({"paid"}), (Where("day | days_since == 2"),))
    records = [
        EventRecord(f"e{number}", "paid", BEGIN + number * DAY, ANN.identifiers, b'{"day": "2026-11-01"}')
        for number in range(5)
    ]
    automation = SimulatedAutomation(trigger, build_automation(YES).graph)
    assert [entry.event.id for entry in backtest(automation, ANN, records, BEGIN + 30 * DAY)] == ["e2"]


def test_a_trigger_sees_the_parameters_of_a_log() -> None:
    spec: dict[str, Any] = {
        "type": "onchain_event",
        "chainId": 1,
        "contract": TOKEN,
        "signature": "deposit(address to, uint256 value)",
        "walletArg": "to",
        "filters": [{"path": "value", "operator": "eq", "value": "2"}],
    }
    trigger = read_trigger(spec)
    assert isinstance(trigger, Trigger)
    automation = SimulatedAutomation(trigger, build_automation(YES).graph)
    entries = backtest(automation, ANN, [log(HOUR, "1"), log(HOUR, "2")], BEGIN + DAY)
    assert [entry.payload for entry in entries] == [{"chainId": 1, "to": evm_wallet("a"), "value": "2"}]


def test_what_is_live_changes_in_the_order_of_moments() -> None:
    asking, other = version(1, ASK, YES, NO, **ASKING), version(2, MESSAGE)
    values = (
        ValueChange(BEGIN + 3 * HOUR, "attributes.plan", UNSET, "pro"),
        ValueChange(BEGIN + 6 * HOUR, "attributes.plan", "pro", "free", "e2"),
    )
    changes = [change(HOUR, asking), change(6 * HOUR, other)]
    entries = play(changes, *paid(2 * HOUR, 4 * HOUR, 6 * HOUR), values=values)
    assert [(entry.version, steps_of(entry)[-1][0]) for entry in entries] == [(1, "no"), (1, "yes"), (2, "m")]
    assert {entry.run.automation_id for entry in entries} == {"a"}


def test_an_event_wakes_an_entry_of_an_earlier_version() -> None:
    changes = [
        change(timedelta(), version(1, WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no")),
        change(2 * HOUR, version(2, NO)),
    ]
    (entry,) = play(changes, (HOUR, "paid"), (3 * HOUR, "bought"))
    assert steps_of(entry)[-1] == ("yes", "tagged", 3 * HOUR)


def merged_ends(
    automation: SimulatedAutomation,
    anns: list[EventRecord],
    others: list[MergedContact],
    *merges: ContactMerge,
    **more: Any,
) -> list[tuple[str, str, str, timedelta]]:
    entries = backtest(automation, ANN, anns, BEGIN + 30 * DAY, merged=others, merges=merges, **more)
    return sorted((entry.event.id, *steps_of(entry)[-1]) for entry in entries)


def test_entries_of_the_other_contact_from_before_count_after_the_merge() -> None:
    once = version(1, MESSAGE, settings=ONCE)
    past = PastEntries(BEGIN - DAY, BEGIN - DAY)
    for own, last in (None, "sent"), (past, "refused"):
        bob = MergedContact(BOB, bobs((HOUR, "paid")), past_entries=own)
        live = LivePast((change(timedelta(), once),))
        ends = merged_ends(build_automation(), [], [bob], ContactMerge("bob", "ann", BEGIN + DAY), live=live)
        assert [end[2] for end in ends] == [last]


def test_an_event_at_the_moment_of_a_merge_is_of_both() -> None:
    automation = build_automation(MESSAGE, settings=ONCE)
    merge = ContactMerge("bob", "ann", BEGIN + DAY)
    ends = merged_ends(automation, events((HOUR, "paid")), [MergedContact(BOB, bobs((DAY, "paid")))], merge)
    assert ends == [("e0", "m", "sent", HOUR), ("f0", "t", "refused", DAY)]


def test_events_of_both_contacts_come_in_their_order() -> None:
    automation = build_automation(MESSAGE, settings=ONCE)
    merge = ContactMerge("bob", "ann", BEGIN)
    for anns, others, entered in ((2 * HOUR, HOUR, "d0"), (HOUR, 2 * HOUR, "e0"), (HOUR, HOUR, "d0")):
        bob = MergedContact(BOB, _of(BOB, "d", (others, "paid")))
        ends = merged_ends(automation, events((anns, "paid")), [bob], merge)
        assert [end[0] for end in ends if end[2] == "sent"] == [entered]


@pytest.mark.parametrize(
    ("merges", "ends"),
    [
        ((("cal", "bob", 1), ("bob", "ann", 5)), (("yes", 5), ("yes", 3))),
        ((("bob", "ann", 1), ("cal", "bob", 2)), (("yes", 3), ("yes", 3))),
        ((("bob", "ann", 1), ("cal", "ann", 1)), (("yes", 3), ("yes", 3))),
        ((("bob", "ann", 1, 2), ("cal", "ann", 4)), (("yes", 4), ("no", 48))),
    ],
    ids=["into one that is merged later", "into one that was merged", "of two at once", "after an undo"],
)
def test_several_merges(merges: tuple[tuple[Any, ...], ...], ends: tuple[tuple[str, int], ...]) -> None:
    """Ann and Bob wait for an event that Cal sends after three hours."""
    others = [MergedContact(BOB, bobs((timedelta(), "paid"))), MergedContact(CAL, _of(CAL, "g", (3 * HOUR, "bought")))]
    written = [ContactMerge(own, into, *(BEGIN + hours * HOUR for hours in at)) for own, into, *at in merges]
    assert merged_ends(WAITING, events((timedelta(), "paid")), others, *written) == [
        (event_id, tag, "tagged", hours * HOUR) for event_id, (tag, hours) in zip(("e0", "f0"), ends, strict=True)
    ]


def test_a_merge_at_the_end_of_the_backtest_changes_nothing() -> None:
    until = BEGIN + DAY
    bob = MergedContact(BOB, bobs((timedelta(), "paid")))
    entries = [
        *backtest(
            WAITING, ANN, events((timedelta(), "paid")), until, merged=[bob], merges=[ContactMerge("bob", "ann", until)]
        )
    ]
    assert [(entry.event.id, entry.run.due_at) for entry in entries] == [
        (name, BEGIN + 2 * DAY) for name in ("e0", "f0")
    ]
