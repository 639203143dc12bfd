"""A backtest of one contact simulates entries that are open at the same time, until its end."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.inapp.wallet import evm_wallet
from tests.language.strategies import EVENTS, SECONDS, contacts, graph_of, sound_graphs
from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation, node
from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers, attribute_key
from workbench.language.filter import Filter
from workbench.language.run import Run, State
from workbench.language.simulate import (
    SIMULATED_ID,
    ScheduledEvent,
    SimulatedAutomation,
    SimulationInput,
    backtest,
    simulate,
)
from workbench.language.timeline import EventRecord, OtherMessage, SimulatedEntry
from workbench.language.trigger import Trigger, read_trigger

BEGIN = datetime(2026, 11, 1, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ANN = ContactState("ann", Identifiers(evm_wallet("a"), "ann@b.co"))
DELAY = node("d", "delay", seconds=2 * 86_400)


def events(*arrivals: tuple[timedelta, str]) -> list[EventRecord]:
    numbers = count()
    return [
        EventRecord(f"e{next(numbers)}", name, BEGIN + after, ANN.identifiers, b'{"plan": "pro"}')
        for after, name in arrivals
    ]


def run_backtest(
    automation: SimulatedAutomation, *arrivals: tuple[timedelta, str], until: timedelta = 30 * DAY, **more: Any
) -> list[SimulatedEntry]:
    entries = backtest(automation, ANN, events(*arrivals), BEGIN + until, **more)
    return sorted(entries, key=lambda entry: entry.event.id)


def steps_of(entry: SimulatedEntry) -> list[tuple[str, str, timedelta]]:
    return [(step.node_id, step.outcome, step.at - BEGIN) for step in entry.steps]


def outcomes(entries: list[SimulatedEntry]) -> list[tuple[str, str | None]]:
    return [(entry.run.state.value, entry.run.outcome) for entry in entries]


def paid(*arrivals: timedelta) -> list[tuple[timedelta, str]]:
    return [(after, "paid") for after in arrivals]


def test_every_matching_event_starts_an_entry_at_its_time() -> None:
    entries = run_backtest(build_automation(MESSAGE), *paid(HOUR, DAY))
    assert [steps_of(entry) for entry in entries] == [
        [("t", "entered", HOUR), ("m", "sent", HOUR)],
        [("t", "entered", DAY), ("m", "sent", DAY)],
    ]


def test_an_entry_has_the_ids_of_its_event_and_of_its_automation() -> None:
    (entry,) = run_backtest(build_automation(DELAY), (HOUR, "paid"), until=DAY)
    assert (entry.run, entry.contact_id) == (
        Run(
            "e0",
            SIMULATED_ID,
            State.WAITING,
            "d",
            step=1,
            due_at=BEGIN + HOUR + 2 * DAY,
            since=BEGIN + HOUR,
            since_id="e0",
            event_id="e0",
        ),
        "ann",
    )


def test_a_payload_is_read_as_the_engine_reads_it() -> None:
    payload = b'{"bb": 1E+2, "a": 1}'
    stored = EventRecord("e0", "paid", BEGIN, ANN.identifiers, payload)
    assert repr(stored.read_payload()) == "{'bb': Decimal('1E+2'), 'a': 1}"  # Postgres has changed it before
    assert repr(replace(stored, attributes={}).read_payload()) == "{'a': 1, 'bb': 100}"
    assert repr(replace(stored, attributes={}, source="1:0x1:a()").read_payload()) == repr(stored.read_payload())


def test_a_stored_event_ends_a_wait_if_it_passes_its_filters_at_its_moment() -> None:
    for day, outcome in (("2026-10-31", "matched"), ("2026-10-30", "timed_out")):
        wait = node("w", "wait_for_event", event="bought", timeoutSeconds=86_400, where="day | days_since == 1")
        records = events((timedelta(), "paid"), (HOUR, "bought"))
        records[1] = replace(records[1], payload=encode({"day": day}))
        automation = SimulatedAutomation(Trigger(frozenset({"paid"})), build_automation(wait).graph)
        (entry,) = backtest(automation, ANN, records, BEGIN + 30 * DAY)
        assert steps_of(entry)[-1][1] == outcome


def test_trigger_filters_see_only_the_event() -> None:
    automation = build_automation(MESSAGE)
    filtered = SimulatedAutomation(Trigger(frozenset({"paid"}), _filters("contact.plan")), automation.graph)
    assert run_backtest(filtered, (HOUR, "paid")) == []
    filtered = SimulatedAutomation(Trigger(frozenset({"paid"}), _filters("plan")), automation.graph)
    assert len(run_backtest(filtered, (HOUR, "paid"), (HOUR, "sold"))) == 1


def _filters(path: str) -> Any:
    return (Filter(path, "eq", "pro"),)


def test_a_delay_ends_on_the_virtual_clock_between_other_events() -> None:
    first, second = run_backtest(build_automation(DELAY, MESSAGE), *paid(HOUR, DAY))
    assert steps_of(first)[-1] == ("m", "sent", 2 * DAY + HOUR)
    assert steps_of(second)[-1] == ("m", "sent", 3 * DAY)


def test_an_entry_open_at_the_end_waits_at_its_node() -> None:
    (entry,) = run_backtest(build_automation(DELAY, MESSAGE), (HOUR, "paid"), until=DAY)
    assert (entry.run.state.value, entry.run.node_id, entry.run.due_at) == ("waiting", "d", BEGIN + 2 * DAY + HOUR)
    (entry,) = run_backtest(build_automation(DELAY, MESSAGE), (HOUR, "paid"), until=2 * DAY + HOUR)
    assert entry.run.state.value == "waiting"


def test_an_entry_sees_what_an_earlier_entry_changed() -> None:
    ask = node("c", "condition", filters=[{"path": "contact.tags", "operator": "contains", "value": "yes"}])
    automation = build_automation(ask, YES, MESSAGE, edges="t>c c:false>yes c:true>m")
    assert [steps_of(entry)[-1][0] for entry in run_backtest(automation, *paid(HOUR, DAY))] == ["yes", "m"]


def test_an_event_wakes_every_entry_that_waits_for_it() -> None:
    automation = build_automation(WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no")
    automation = SimulatedAutomation(Trigger(frozenset({"paid"})), automation.graph)
    entries = run_backtest(automation, *paid(HOUR, 2 * HOUR), (DAY, "bought"), *paid(2 * DAY))
    assert [steps_of(entry)[-1] for entry in entries] == [
        ("yes", "tagged", DAY),
        ("yes", "tagged", DAY),
        ("no", "tagged", 4 * DAY),
    ]


def test_an_entry_that_is_due_at_the_moment_of_an_event_comes_before_the_one_that_it_starts() -> None:
    ask = node("c", "condition", filters=[{"path": "contact.tags", "operator": "contains", "value": "yes"}])
    automation = build_automation(ask, DELAY, YES, MESSAGE, edges="t>c c:false>d d>yes c:true>m")
    first, second = run_backtest(automation, *paid(HOUR, 2 * DAY + HOUR))
    assert steps_of(first)[-1] == ("yes", "tagged", 2 * DAY + HOUR)
    assert steps_of(second)[-1] == ("m", "sent", 2 * DAY + HOUR)


def test_a_wait_that_is_over_ends_with_an_event_of_a_batch_of_that_moment() -> None:
    automation = build_automation(WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no")
    first, *_ = run_backtest(automation, *paid(HOUR, 2 * DAY + HOUR), (2 * DAY + HOUR, "bought"))
    assert steps_of(first)[-1] == ("yes", "tagged", 2 * DAY + HOUR)


def test_an_event_that_wakes_and_starts_wakes_first() -> None:
    wait = node("w", "wait_for_event", event="paid", timeoutSeconds=86_400)
    entries = run_backtest(build_automation(wait, YES, edges="t>w w:matched>yes"), *paid(HOUR, 2 * HOUR))
    assert steps_of(entries[0])[-1] == ("yes", "tagged", 2 * HOUR)
    assert steps_of(entries[1])[-1] == ("w", "timed_out", DAY + 2 * HOUR)


def test_an_event_comes_before_an_entry_due_at_the_same_time() -> None:
    automation = build_automation(WAIT, YES, NO, edges="t>w w:matched>yes w:timeout>no")
    automation = SimulatedAutomation(Trigger(frozenset({"paid"})), automation.graph)
    (entry,) = run_backtest(automation, (HOUR, "paid"), (2 * DAY + HOUR, "bought"))
    assert steps_of(entry)[-1] == ("yes", "tagged", 2 * DAY + HOUR)


def test_the_goal_ends_every_earlier_entry() -> None:
    automation = build_automation(DELAY, MESSAGE, settings={"goal": {"event": "bought"}})
    automation = SimulatedAutomation(Trigger(frozenset({"paid"})), automation.graph)
    entries = run_backtest(automation, (HOUR, "bought"), *paid(2 * HOUR, 3 * HOUR), (DAY, "bought"), *paid(2 * DAY))
    assert outcomes(entries) == [("exited", "goal"), ("exited", "goal"), ("completed", "completed")]


def test_reentry_policies_use_the_earlier_entries() -> None:
    def policy(name: str, **more: int) -> list[str | None]:
        automation = build_automation(DELAY, MESSAGE, settings={"reentry": {"policy": name} | more})
        return [entry.run.outcome for entry in run_backtest(automation, *paid(HOUR, 2 * HOUR, 3 * DAY, 9 * DAY))]

    assert policy("once") == ["completed", "reentry", "reentry", "reentry"]
    assert policy("once_per", days=5) == ["completed", "reentry", "reentry", "completed"]
    assert policy("not_while_running") == ["completed", "reentry", "completed", "completed"]


def test_a_refused_entry_does_not_count_for_reentry() -> None:
    automation = build_automation(MESSAGE, settings={"reentry": {"policy": "once_per", "days": 2}})
    assert [entry.run.outcome for entry in run_backtest(automation, *paid(HOUR, DAY, 2 * DAY + HOUR, 3 * DAY))] == [
        "completed",
        "reentry",
        "completed",
        "reentry",
    ]


def test_the_cap_counts_messages_of_all_entries_and_of_other_automations() -> None:
    automation = build_automation(MESSAGE, settings={"frequencyCap": {"messages": 2, "seconds": 86_400}})
    sends = [steps_of(entry)[-1][1] for entry in run_backtest(automation, *paid(HOUR, 2 * HOUR, 3 * HOUR, 2 * DAY))]
    assert sends == ["sent", "sent", "skipped", "sent"]
    others = [OtherMessage(BEGIN + after, "", is_younger=False) for after in (-HOUR, 1.5 * HOUR, 5 * HOUR)]
    sends = [
        steps_of(entry)[-1][1]
        for entry in run_backtest(automation, *paid(HOUR, 2 * HOUR, 3 * HOUR, 2 * DAY), other_messages=others)
    ]
    assert sends == ["sent", "skipped", "skipped", "sent"]


def test_the_cap_counts_messages_of_the_same_event_if_their_automation_is_older() -> None:
    """Three events of one moment; another automation sends a message for the second one."""

    def sends(*, is_younger: bool) -> list[str]:
        automation = build_automation(MESSAGE, settings={"frequencyCap": {"messages": 2, "seconds": 3_600}})
        others = [OtherMessage(BEGIN, "e1", is_younger)]
        return [
            steps_of(entry)[-1][1]
            for entry in run_backtest(automation, *paid(*[timedelta()] * 3), other_messages=others)
        ]

    assert sends(is_younger=False) == ["sent", "skipped", "skipped"]
    assert sends(is_younger=True) == ["sent", "sent", "skipped"]


def test_an_entry_that_an_event_wakes_is_advanced_before_those_that_it_starts() -> None:
    cap = {"frequencyCap": {"messages": 1, "seconds": 3_600}}
    automation = build_automation(WAIT, MESSAGE, edges="t>w w:matched>m", settings=cap)
    others = [OtherMessage(BEGIN + HOUR, "e1", is_younger=False)]
    entry, _ = run_backtest(automation, (timedelta(), "paid"), (HOUR, "bought"), other_messages=others)
    assert steps_of(entry)[-1] == ("m", "sent", HOUR)


def test_messages_wait_until_the_quiet_hours_end() -> None:
    automation = build_automation(MESSAGE, settings={"quietHours": {"from": "09:00", "to": "12:00"}})
    (entry,) = run_backtest(automation, (timedelta(), "paid"))
    assert steps_of(entry)[-2:] == [("m", "waiting", timedelta()), ("m", "sent", 2 * HOUR)]


def test_a_loop_of_entries_is_stopped() -> None:
    hook = node("h", "send_webhook", url="https://a.co")
    entries = run_backtest(
        build_automation(hook), *paid(*(timedelta(milliseconds=milliseconds) for milliseconds in range(103)))
    )
    assert sorted(entry.run.outcome or "" for entry in entries).count("loop_guard") == 3


def test_opt_outs_and_missing_addresses_end_as_in_the_engine() -> None:
    bob = ContactState("bob", Identifiers(external_id="b"), opted_out=("email",))
    mail = node("e", "send_email", subject="Hi", body="Hi")
    sent = EventRecord("e0", "paid", BEGIN, Identifiers(external_id="b"), b"{}")
    (entry,) = backtest(build_automation(mail, MESSAGE), bob, [sent], BEGIN + DAY)
    assert steps_of(entry)[1][:2] == ("e", "skipped")
    assert (entry.run.state.value, entry.run.outcome) == ("dead", "no_wallet")
    assert [step.attempt for step in entry.steps if step.outcome == "failed"] == [1, 2, 3, 4, 5, 6]


def test_an_unpublished_automation_starts_entries_that_do_nothing() -> None:
    entries = run_backtest(SimulatedAutomation(Trigger(), None), *paid(HOUR))
    assert (outcomes(entries), steps_of(entries[0])) == ([("completed", "no_published_version")], [])


def test_the_awaited_events_are_those_of_waits_and_of_the_goal() -> None:
    graph = build_automation(WAIT, edges="t>w", settings={"goal": {"event": "sold"}}).graph
    assert graph is not None
    assert graph.awaited.keys() == {"bought", "sold"}


@pytest.mark.parametrize("path", ["plan", "contact.plan"])
def test_events_that_no_entry_waits_for_change_nothing(path: str) -> None:
    never = {"event": "paid", "filters": [{"path": path, "operator": "eq", "value": "never"}]}
    entries = run_backtest(
        build_automation(DELAY, MESSAGE, settings={"goal": never}), *paid(*(hour * HOUR for hour in range(24)))
    )
    assert {tuple(steps_of(entry)) for entry in entries} == {
        (("t", "entered", at), ("d", "waiting", at), ("d", "waited", at + 2 * DAY), ("m", "sent", at + 2 * DAY))
        for at in (hour * HOUR for hour in range(24))
    }


def test_an_event_can_pass_later_when_the_contact_has_changed() -> None:
    goal = {"event": "bought", "filters": [{"path": "contact.tags", "operator": "contains", "value": "yes"}]}
    automation = build_automation(node("e", "delay", seconds=3_600), YES, DELAY, MESSAGE, settings={"goal": goal})
    automation = SimulatedAutomation(Trigger(frozenset({"paid"})), automation.graph)
    (entry,) = run_backtest(automation, (timedelta(), "paid"), (HOUR / 2, "bought"))
    assert entry.run.outcome == "goal"


later = st.lists(st.tuples(SECONDS, st.sampled_from(EVENTS)), max_size=4, unique_by=lambda pair: pair[0])


@given(written=sound_graphs(), contact=contacts, arrivals=later)
def test_a_single_entry_ends_as_in_a_simulation(
    written: dict[str, Any], contact: ContactState, arrivals: list[tuple[int, str]]
) -> None:
    automation = SimulatedAutomation(Trigger(frozenset({"deposit"})), graph_of(written), "a")
    stored = [EventRecord("e0", "deposit", BEGIN, Identifiers(), b'{"plan":"pro"}')]
    stored += [
        EventRecord(f"e{number}", name, BEGIN + timedelta(seconds=seconds), Identifiers(), b'{"size":1}')
        for number, (seconds, name) in enumerate(sorted(arrivals), 1)
    ]
    later_events = tuple(
        ScheduledEvent(record.at - BEGIN, Event(record.name, Identifiers(), {}, encode({"size": 1})))
        for record in stored[1:]
    )
    trace = simulate(
        automation,
        Event("deposit", Identifiers(), {}, stored[0].payload),
        contact,
        BEGIN,
        SimulationInput(later=later_events, entry_id="e0", event_id="e0"),
    )
    (entry,) = backtest(automation, contact, stored, BEGIN + 3_650 * DAY)
    without_ids = [(step.node_id, step.outcome, step.handle, step.at) for step in entry.steps]
    assert without_ids == [(step.node_id, step.outcome, step.handle, step.at) for step in trace.steps]
    assert (entry.run.state, entry.run.outcome) == (trace.state, trace.outcome)
    assert [effect for decision in entry.decisions for effect in decision.effects if effect in trace.messages] == [
        *trace.messages
    ]


TOKEN = "0x" + "c0" * 20


def log(
    after: timedelta, value: str, wallet: str = evm_wallet("a"), signature: str = "deposit(address,uint256)"
) -> EventRecord:
    """Return the log of a `deposit` in TOKEN with this `value`."""
    payload = encode({"chainId": 1, "args": {"to": wallet, "value": value}})
    return EventRecord(f"l{value}", "deposit", BEGIN + after, Identifiers(wallet), payload, f"1:{TOKEN}:{signature}")


def log_trigger(signature: str) -> Trigger:
    """Return the trigger for these logs of TOKEN about the wallet in `to`."""
    source = {"chainId": 1, "contract": TOKEN, "signature": signature, "walletArg": "to"}
    trigger = read_trigger({"type": "onchain_event", **source})
    assert isinstance(trigger, Trigger)
    return trigger


def test_logs_start_entries_and_end_waits_by_their_own_name() -> None:
    trigger = log_trigger("deposit(address to, uint256 value)")
    automation = build_automation(node("w", "wait_for_event", event=f"{TOKEN}:deposit", timeoutSeconds=86_400))
    awaited = EventRecord("l9", f"{TOKEN}:deposit", BEGIN + 2 * HOUR, Identifiers(), b"{}")
    records = [
        log(HOUR, "1"),
        log(HOUR, "2", wallet=evm_wallet("b")),
        log(HOUR, "3", signature="deposit(address)"),
        awaited,
    ]
    until = BEGIN + 30 * DAY
    (entry,) = backtest(SimulatedAutomation(trigger, automation.graph), ANN, records, until)
    assert steps_of(entry)[-1] == ("w", "matched", 2 * HOUR)
    assert entry.event.id == "l1"
    by_name = SimulatedAutomation(Trigger(frozenset({"deposit"})), automation.graph)
    assert [*backtest(by_name, ANN, records, until)] == []


def test_of_two_versions_each_starts_for_the_wallet_in_its_own_parameter() -> None:
    spec = {"type": "onchain_event", "chainId": 1, "contract": TOKEN, "signature": "paid(address from, address to)"}
    payload = encode({"chainId": 1, "args": {"from": evm_wallet("a"), "to": evm_wallet("b")}})
    # A backtest reads the log once for each of the two wallets.
    record = EventRecord("l1", "paid", BEGIN + HOUR, ANN.identifiers, payload, f"1:{TOKEN}:paid(address,address)")
    started = {}
    for wallet_arg in ("from", "to"):
        trigger = read_trigger(spec | {"walletArg": wallet_arg})
        assert isinstance(trigger, Trigger)
        automation = SimulatedAutomation(trigger, build_automation().graph)
        started[wallet_arg] = len([*backtest(automation, ANN, [record], BEGIN + DAY)])
    assert started == {"from": 1, "to": 0}


STEADY = {"path": "size", "operator": "eq", "value": 1}
OF_CONTACT = {"path": "contact.plan", "operator": "eq", "value": 1}
OF_EVENTS = {"path": "events", "operator": "exists"}
COLLECT = node("k", "collect", seconds=60)
NIGHT = {"quietHours": {"from": "22:00", "to": "08:00", "timezoneAttribute": "tz"}}
MOVE = node("u", "update_contact", attributes={"tz": "Europe/Zurich"})


@pytest.mark.parametrize(
    ("nodes", "settings", "steadily"),
    [
        ([], {}, True),
        ([node("w", "wait_for_event", event="bought", timeoutSeconds=60, filters=[STEADY])], NIGHT, True),
        ([node("w", "wait_for_event", event="bought", timeoutSeconds=60, filters=[OF_CONTACT])], {}, False),
        ([node("w", "wait_for_event", event="bought", timeoutSeconds=60, filters=[OF_EVENTS])], {}, True),
        ([COLLECT, node("w", "wait_for_event", event="bought", timeoutSeconds=60, filters=[OF_EVENTS])], {}, False),
        ([COLLECT, node("w", "wait_for_event", event="bought", timeoutSeconds=60, filters=[STEADY])], {}, True),
        ([MOVE], NIGHT, False),
        ([MOVE], {}, True),
        ([node("u", "update_contact", attributes={"plan": "pro"})], NIGHT, True),
    ],
)
def test_an_awaited_event_may_be_judged_once_if_nothing_else_can_change_the_answer(
    nodes: list[dict[str, Any]], settings: dict[str, Any], steadily: bool
) -> None:
    graph = build_automation(*nodes, settings=settings).graph
    assert graph is not None
    assert graph.awaits_steadily is steadily


def test_what_wakes_an_entry() -> None:
    nine = node("n", "wait_until", time="09:00", timezoneAttribute="tz")
    graph = build_automation(WAIT, nine, settings={"goal": {"event": "sold"}}).graph
    assert graph is not None
    assert graph.wakes == {"bought", "sold", attribute_key("tz")}
