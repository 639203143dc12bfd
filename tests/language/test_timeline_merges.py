"""A backtest plays contacts that were merged as separate ones until then, and from then on as one."""

from datetime import timedelta
from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation
from tests.language.test_timeline import ANN, BEGIN, DAY, DELAY, HOUR, events, outcomes, steps_of
from workbench.language.contact import (
    ContactState,
    ValueChange,
    apply_change,
    contact_before,
    merge_contacts,
    separate_contacts,
)
from workbench.language.event import Identifiers
from workbench.language.simulate import ContactMerge, MergedContact, SimulatedAutomation, backtest
from workbench.language.timeline import EventRecord, PastEntries, Timeline
from workbench.language.trigger import Trigger

BOB = ContactState("bob", Identifiers(evm_wallet("b"), external_id="b"), {"plan": "pro", "age": 3}, ("vip",))
WAITING = SimulatedAutomation(
    Trigger(frozenset({"paid"})), build_automation(WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no").graph
)
MERGE = ContactMerge("bob", "ann", BEGIN + DAY)


def bobs(*arrivals: tuple[timedelta, str]) -> list[EventRecord]:
    return [
        EventRecord(event.id.replace("e", "f"), event.name, event.at, BOB.identifiers, event.payload)
        for event in events(*arrivals)
    ]


def play(
    automation: SimulatedAutomation,
    anns: list[EventRecord],
    others: list[EventRecord],
    merged_after: timedelta,
    **more: Any,
) -> dict[str, list[tuple[str, str, timedelta]]]:
    merged = MergedContact(BOB, others, **more)
    entries = backtest(
        automation,
        ANN,
        anns,
        BEGIN + 30 * DAY,
        merged=[merged],
        merges=[ContactMerge("bob", "ann", BEGIN + merged_after)],
    )
    return {entry.event.id: steps_of(entry) for entry in entries}


@pytest.mark.parametrize(
    ("bought_by", "merged_after", "ends"),
    [
        (bobs, 2 * HOUR, ("w", "matched", 2 * HOUR)),  # the merge brings an event that came before it
        (bobs, 3 * DAY, ("w", "timed_out", 2 * DAY)),  # it is another contact's until the end of the wait
        (events, 2 * HOUR, ("w", "matched", HOUR)),
    ],
)
def test_an_event_of_the_other_contact_ends_a_wait_from_the_merge_on(
    bought_by: Any, merged_after: timedelta, ends: tuple[str, str, timedelta]
) -> None:
    paid, bought = events((timedelta(0), "paid")), bought_by((timedelta(0), "sold"), (HOUR, "bought"))[1:]
    anns, others = (paid + bought, []) if bought_by is events else (paid, bought)
    entered = [("t", "entered", timedelta(0)), ("w", "waiting", timedelta(0))]
    last = ("yes" if ends[1] == "matched" else "no", "tagged", ends[2])
    assert play(WAITING, anns, others, merged_after) == {"e0": [*entered, ends, last]}


def test_entries_of_the_absorbed_contact_continue_with_the_values_of_both() -> None:
    automation = build_automation(DELAY, MESSAGE)
    merged = [MergedContact(BOB, bobs((HOUR, "paid")))]
    (entry,) = backtest(automation, ANN, events(), BEGIN + 30 * DAY, merged=merged, merges=[MERGE])
    assert [effect.body for decision in entry.decisions for effect in decision.effects] == ["pro"]
    assert steps_of(entry)[-1] == ("m", "sent", 2 * DAY + HOUR)


def test_entries_of_both_contacts_count_for_reentry_from_the_merge_on() -> None:
    automation = build_automation(MESSAGE, settings={"reentry": {"policy": "once"}})
    merged = [MergedContact(BOB, bobs((HOUR, "paid")))]
    anns = events((HOUR, "paid"), (2 * DAY, "paid"))
    assert sorted(outcomes([*backtest(automation, ANN, anns, BEGIN + 30 * DAY, merged=merged, merges=[MERGE])])) == [
        ("cancelled", "reentry"),
        ("completed", "completed"),
        ("completed", "completed"),
    ]


def play_undone(automation: SimulatedAutomation, anns: list[EventRecord], others: list[EventRecord]) -> dict[str, Any]:
    """Return the steps of entries; the contacts are one from an hour to a day after the beginning."""
    merges = [ContactMerge("bob", "ann", BEGIN + HOUR, BEGIN + DAY)]
    entries = backtest(automation, ANN, anns, BEGIN + 30 * DAY, merged=[MergedContact(BOB, others)], merges=merges)
    return {entry.event.id: (entry.contact_id, steps_of(entry)[-1]) for entry in entries}


def test_entries_go_back_to_the_contact_that_is_separate_again() -> None:
    """The event at two hours ends the waits of both; without it, each waits for an event of its own contact."""
    both = events((timedelta(0), "paid")), bobs((timedelta(0), "paid"), (26 * HOUR, "bought"))
    matched = ("yes", "tagged", 26 * HOUR)
    assert play_undone(WAITING, *both) == {"e0": ("ann", ("no", "tagged", 2 * DAY)), "f0": ("bob", matched)}
    bought = [*both[0], *events((timedelta(0), "paid"), (2 * HOUR, "bought"))[1:]]
    last = ("yes", "tagged", 2 * HOUR)
    assert play_undone(WAITING, bought, both[1]) == {"e0": ("ann", last), "f0": ("bob", last)}


def test_each_contact_has_its_own_past_after_the_undo() -> None:
    """Bob's entry counts for Ann only while they are one; what began in that time stays with Ann."""
    automation = build_automation(MESSAGE, settings={"reentry": {"policy": "once"}})
    anns = events((2 * HOUR, "paid"), (2 * DAY, "paid"), (3 * DAY, "paid"))
    ends = play_undone(automation, anns, bobs((timedelta(0), "paid"), (2 * DAY, "paid")))
    refused = {event_id for event_id, (_, (node_id, *_)) in ends.items() if node_id == "t"}
    assert refused == {"e0", "e2", "f1"}


def test_the_values_after_an_undo_are_those_from_before_without_what_has_changed_since() -> None:
    merged = merge_contacts(ANN, BOB)
    changed = apply_change(merged, ValueChange(BEGIN, "attributes.age", 3, 4))
    assert separate_contacts(merged, BOB, ANN) == ANN
    assert separate_contacts(changed, BOB, ANN).attributes == {**ANN.attributes, "age": 4}


def test_a_merge_after_the_end_of_the_backtest_changes_nothing() -> None:
    anns, others = events((timedelta(0), "paid")), bobs((HOUR, "bought"), (DAY, "paid"))
    steps = play(WAITING, anns, others, 40 * DAY)
    assert {event_id: own[-1] for event_id, own in steps.items()} == {
        "e0": ("no", "tagged", 2 * DAY),
        "f1": ("no", "tagged", 3 * DAY),
    }


def test_the_latest_entry_of_both_counts_and_an_open_one_stays_open() -> None:
    for ends, ended_at in ((None, DAY), None), ((HOUR, DAY), DAY):
        timelines = []
        for number, end in enumerate(ends):
            timeline = Timeline(None, (ANN, BOB)[number])
            past = PastEntries(BEGIN + number * HOUR, None if end is None else BEGIN + end)
            timeline.members = {timeline.contact.id: past}
            timelines.append(timeline)
        timelines[0].absorb(timelines[1], BEGIN + 2 * DAY)
        expected = PastEntries(BEGIN + HOUR, None if ended_at is None else BEGIN + ended_at)
        assert timelines[0].past_entries == expected


def test_the_values_of_the_kept_contact_win() -> None:
    keep = ContactState(
        "ann", Identifiers(evm_wallet("a"), "ann@b.co"), {"plan": "free"}, ("a",), ("z",), ("email",), ("news",)
    )
    absorbed = ContactState("bob", BOB.identifiers, BOB.attributes, ("vip", "a"), ("b",), ("inapp",), ("deals",))
    assert merge_contacts(keep, absorbed) == ContactState(
        "ann",
        Identifiers(evm_wallet("a"), "ann@b.co", "b"),
        {"age": 3, "plan": "free"},
        ("a", "vip"),
        ("b", "z"),
        ("email", "inapp"),
        ("news",),
    )
    full = ContactState("bob", attributes={f"a{number}": 1 for number in range(1_000)})
    assert merge_contacts(keep, full) == keep


def test_a_closed_address_gets_no_emails_from_then_on() -> None:
    bounced = ValueChange(BEGIN, "suppressed", False, True)
    assert contact_before(ANN, [bounced]) == ANN
    assert [apply_change(own, bounced).opted_out for own in (ANN, BOB)] == [("email",), ("email",)]
