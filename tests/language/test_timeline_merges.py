"""A backtest plays contacts that were merged as separate ones until then, and from then on as one."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from tests.inapp.wallet import evm_wallet
from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation, node
from tests.language.test_timeline import ANN, BEGIN, DAY, DELAY, HOUR, events, outcomes, paid, steps_of
from tests.language.test_timeline_live import HOOK, REFUSED, SECOND, change, version
from workbench.language.contact import (
    ContactState,
    ValueChange,
    apply_change,
    contact_before,
    merge_contacts,
    separate_contacts,
)
from workbench.language.event import Identifiers
from workbench.language.live import LiveChange, PastMove
from workbench.language.simulate import ContactMerge, LivePast, MergedContact, SimulatedAutomation, backtest
from workbench.language.timeline import EventRecord, OtherMessage, PastEntries, RecordedFailure, Timeline
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


def test_entries_of_the_kept_contact_count_for_reentry_after_a_merge() -> None:
    automation = build_automation(MESSAGE, settings={"reentry": {"policy": "once"}})
    assert {
        event_id: last for event_id, (*_, last) in play(automation, events(*paid(HOUR, 2 * DAY)), [], DAY).items()
    } == {"e0": ("m", "sent", HOUR), "e1": ("t", "refused", 2 * DAY)}


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


def test_messages_of_other_automations_to_both_count_while_they_are_one() -> None:
    own, others = (
        [OtherMessage(BEGIN + hours * HOUR, "", is_younger=False) for hours in at] for at in ((1, 3), (2, 3))
    )
    kept, other = (
        Timeline(None, contact, other_messages=messages, members={contact.id: None})
        for contact, messages in ((ANN, own), (BOB, others))
    )
    kept.absorb(other, BEGIN + DAY)
    assert kept.other_messages == [own[0], others[0], own[1], others[1]]
    kept.separate(other, BEGIN + 2 * DAY)
    assert (kept.other_messages, other.other_messages) == (own, others)


def test_the_goal_is_the_first_event_of_both_that_passes() -> None:
    """Ann has no plan before the merge."""
    goal = {"event": "bought", "filters": [{"path": "contact.plan", "operator": "eq", "value": "pro"}]}
    automation = SimulatedAutomation(
        Trigger(frozenset({"paid"})), build_automation(DELAY, settings={"goal": goal}).graph
    )
    anns = [
        replace(event, id=id_)
        for event, id_ in zip(events((HOUR, "paid"), (2 * HOUR, "bought")), ("e", "z"), strict=True)
    ]
    others = [
        replace(event, id=id_)
        for event, id_ in zip(bobs((2 * HOUR, "bought"), (3 * HOUR, "bought")), ("y", "a"), strict=True)
    ]
    merges = [ContactMerge("bob", "ann", BEGIN + DAY)]
    (entry,) = backtest(automation, ANN, anns, BEGIN + 30 * DAY, merged=[MergedContact(BOB, others)], merges=merges)
    assert (steps_of(entry)[-1], entry.steps[-1].detail) == (("d", "goal", DAY), {"event": "bought", "eventId": "y"})


def test_a_merge_brings_events_that_came_before_an_entry_that_has_ended() -> None:
    """Bob's own entry, which begins after the event, is merged while it waits; Ann's began before the event."""
    others = bobs((HOUR, "bought"), (2 * HOUR, "paid"))
    ends = play(WAITING, events((timedelta(0), "paid")), others, 3 * HOUR)
    assert {event_id: steps[-1] for event_id, steps in ends.items()} == {
        "e0": ("yes", "tagged", 3 * HOUR),
        "f1": ("no", "tagged", 2 * DAY + 2 * HOUR),
    }


def test_events_of_the_kept_contact_stay_with_it_after_the_undo() -> None:
    goal = {"event": "bought", "filters": [{"path": "contact.tags", "operator": "contains", "value": "yes"}]}
    graph = build_automation(node("e", "delay", seconds=30 * 3_600), YES, DELAY, settings={"goal": goal}).graph
    automation = SimulatedAutomation(Trigger(frozenset({"paid"})), graph)
    arrivals = (timedelta(0), "paid"), (HOUR / 2, "bought")
    assert play_undone(automation, events(*arrivals), []) == {"e0": ("ann", ("d", "goal", 30 * HOUR))}
    assert play_undone(automation, events(arrivals[0]), bobs(*arrivals)[1:]) == {
        "e0": ("ann", ("d", "waited", 30 * HOUR + 2 * DAY))
    }


def test_a_merge_wakes_an_entry_that_follows_an_attribute_of_the_other_contact() -> None:
    """At 13:00 it is nine in Caracas."""
    bob = replace(BOB, attributes={"tz": "America/Caracas"})
    automation = build_automation(node("n", "wait_until", time="09:00", timezoneAttribute="tz"), YES)
    merges = [ContactMerge("bob", "ann", BEGIN + 2 * HOUR)]
    anns = events((timedelta(0), "paid"))
    (entry,) = backtest(automation, ANN, anns, BEGIN + 9 * DAY, merged=[MergedContact(bob, [])], merges=merges)
    assert steps_of(entry)[-1] == ("yes", "tagged", 3 * HOUR)


def test_a_merge_wakes_no_entry_that_nothing_can_wake() -> None:
    """The kept contact gets no emails from the merge on, but the entry waits for the end of the quiet hours."""
    bob = replace(BOB, opted_out=("email",))
    mail = node("e", "send_email", subject="Hi", body="Hi")
    automation = build_automation(mail, settings={"quietHours": {"from": "09:00", "to": "12:00"}})
    merges = [ContactMerge("bob", "ann", BEGIN + HOUR)]
    anns = events((timedelta(0), "paid"))
    (entry,) = backtest(automation, ANN, anns, BEGIN + 9 * DAY, merged=[MergedContact(bob, [])], merges=merges)
    assert steps_of(entry)[-1] == ("e", "skipped", 2 * HOUR)


def test_a_merge_does_not_try_a_failed_step_again() -> None:
    changes = (change(timedelta(0), version(1, HOOK, settings={"goal": {"event": "bought"}})),)
    live = LivePast(changes, failures={"e0": (RecordedFailure("h", REFUSED, BEGIN + 5 * HOUR, BEGIN + HOUR),)})
    merges = [ContactMerge("bob", "ann", BEGIN + 2 * HOUR)]
    anns = events((HOUR, "paid"))
    (entry,) = backtest(WAITING, ANN, anns, BEGIN + 9 * DAY, live=live, merged=[MergedContact(BOB, [])], merges=merges)
    assert steps_of(entry)[1:] == [("h", "failed", HOUR), ("h", "sent", 5 * HOUR)]


def test_the_younger_entry_that_collects_joins_the_older_one_at_the_merge() -> None:
    """Both began at the same moment, so their events decide."""
    automation = build_automation(node("k", "collect", seconds=2 * 86_400))
    anns = [
        replace(event, id=id_)
        for event, id_ in zip(events(*paid(timedelta(0), HOUR / 2, 0.75 * HOUR)), ("e0", "z1", "a9"), strict=True)
    ]
    merges = [ContactMerge("bob", "ann", BEGIN + HOUR)]
    others = bobs(*paid(timedelta(0), HOUR / 2))
    entries = {
        entry.event.id: entry
        for entry in backtest(
            automation, ANN, anns, BEGIN + 9 * DAY, merged=[MergedContact(BOB, others)], merges=merges
        )
    }
    assert [event.id for event in entries["e0"].joined] == ["f0", "f1", "z1", "a9"]
    assert {event_id: steps_of(entry)[-1] for event_id, entry in entries.items()} == {
        "z1": ("t", "joined", HOUR / 2),
        "a9": ("t", "joined", 0.75 * HOUR),
        "f1": ("t", "joined", HOUR / 2),
        "f0": ("k", "joined", HOUR),
        "e0": ("k", "collected", 2 * DAY),
    }


def test_entries_from_before_a_merge_count_for_the_loop_guard() -> None:
    automation = build_automation(HOOK, settings={"reentry": {"policy": "once"}})
    anns = events(*paid(*(timedelta(milliseconds=milliseconds) for milliseconds in range(103))))
    merged = [MergedContact(BOB, [])]
    merges = [ContactMerge("bob", "ann", BEGIN + timedelta(milliseconds=60))]
    entries = [*backtest(automation, ANN, anns, BEGIN + DAY, merged=merged, merges=merges)]
    assert sorted(entry.run.outcome or "" for entry in entries) == ["completed", *["loop_guard"] * 3, *["reentry"] * 99]


@pytest.mark.parametrize(("merged_at", "undone_at"), [(DAY, None), (HOUR, 1.2 * DAY), (HOUR, None)])
def test_an_entry_of_the_absorbed_contact_is_moved_when_it_was(
    merged_at: timedelta, undone_at: timedelta | None
) -> None:
    changes = change(timedelta(0), version(1, DELAY, YES)), change(DAY, SECOND)
    live = LivePast(changes, moves={"f0": (PastMove(BEGIN + 1.5 * DAY, "f0", 1, "d", SECOND, "d"),)})
    merges = [ContactMerge("bob", "ann", BEGIN + merged_at, None if undone_at is None else BEGIN + undone_at)]
    merged = [MergedContact(BOB, bobs((timedelta(0), "paid")))]
    (entry,) = backtest(WAITING, ANN, [], BEGIN + 9 * DAY, live=live, merged=merged, merges=merges)
    assert (entry.version, steps_of(entry)[-1]) == (2, ("no", "tagged", 2 * DAY))


def test_a_contact_takes_over_what_changed_while_it_was_merged() -> None:
    first, second = version(1, YES), version(2, NO)
    changes: list[ValueChange | LiveChange | PastMove] = [
        change(2 * HOUR, first),
        ValueChange(BEGIN + 3 * HOUR, "attributes.age", 3, 4),
        change(4 * HOUR, None, "off"),
        change(5 * HOUR, second),
        change(DAY, first),
    ]
    kept, other = (
        Timeline(None, ANN, members={"ann": None}),
        Timeline(None, BOB, changes=changes, members={"bob": None}),
    )
    kept.absorb(other, BEGIN + HOUR)
    kept.separate(other, BEGIN + DAY)
    aged = replace(BOB, attributes={"plan": "pro", "age": 4})
    assert (other.live, other.graph, other.contact) == (changes[3], second.graph, aged)
    assert kept.live is None


def test_contacts_can_be_merged_without_a_published_version() -> None:
    ends = play(SimulatedAutomation(Trigger(), None), events((HOUR, "paid")), bobs((2 * HOUR, "paid")), 3 * HOUR)
    assert ends == {"e0": [], "f0": []}
