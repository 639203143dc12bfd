"""What comes first at one moment: events, changes, entries that are due or woken, and messages of other automations."""

from datetime import timedelta
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from tests.inapp.wallet import evm_wallet
from tests.language.test_collect import body, deposit, digest, run
from tests.language.test_simulate_waits import MESSAGE, NO, WAIT, YES, build_automation, node
from tests.language.test_timeline import ANN, BEGIN, DAY, DELAY, HOUR, events, log, paid, run_backtest, steps_of
from workbench.language.channel import EmailMessage, InappMessage, WebhookMessage
from workbench.language.contact import ChangeOrder, ContactState, IdentifierKind, ValueChange
from workbench.language.decision import Decision, Failure
from workbench.language.event import Identifiers
from workbench.language.facts import CollectingEntry, ContactHistory, Facts, LaterEvent
from workbench.language.run import Run, State, Step, TagAdded
from workbench.language.simulate import SimulatedAutomation, _start_entry, backtest
from workbench.language.timeline import (
    EventRecord,
    OtherMessage,
    RecordedFailure,
    SimulatedEntry,
    Timeline,
    UnsentMessage,
    Walk,
)
from workbench.language.trigger import Trigger

PAID = Trigger(frozenset({"paid"}))
ASK = node("c", "condition", filters=[{"path": "contact.tags", "operator": "contains", "value": "yes"}])
NINE = node("n", "wait_until", time="09:00", timezoneAttribute="tz")
SOLD = node("w2", "wait_for_event", event="sold", timeoutSeconds=2 * 86_400)
NEVER = {"path": "plan", "operator": "eq", "value": "never"}


def automation(*nodes: dict[str, Any], trigger: Trigger = PAID, **more: Any) -> SimulatedAutomation:
    return SimulatedAutomation(trigger, build_automation(*nodes, **more).graph, "a")


def play(timeline: Timeline, *records: EventRecord, until: timedelta = 30 * DAY) -> list[Walk]:
    """Return the walks of entries that `paid` starts."""
    of = SimulatedAutomation(PAID, timeline.graph, "a")
    return [*timeline.play(records, lambda event: _start_entry(of, timeline.contact, event), BEGIN + until)]


def timeline_of(*nodes: dict[str, Any], contact: ContactState = ANN, edges: str = "", **more: Any) -> Timeline:
    settings = more.pop("settings", None)
    graph = build_automation(*nodes, edges=edges, settings=settings).graph
    return Timeline(graph, contact, **more)


def zone(
    after: timedelta, name: str, event_id: str = "", order: ChangeOrder = ChangeOrder.BEFORE_WAKING
) -> ValueChange:
    return ValueChange(BEGIN + after, "attributes.tz", UNSET, name, event_id, order)


@pytest.mark.parametrize(
    ("run", "counts"),
    [
        (Run("e", "a", State.CANCELLED), False),
        (Run("e", "a", State.COMPLETED), False),
        (Run("e", "a", State.COMPLETED, step=1), True),
        (Run("e", "a", State.DEAD), True),
        (Run("e", "a", State.WAITING), True),
    ],
)
def test_an_entry_counts_for_reentry_unless_it_ended_before_its_first_step(run: Run, counts: bool) -> None:
    assert SimulatedEntry(events((HOUR, "paid"))[0], {}, run).has_entered is counts


def test_messages_to_the_contact_count_from_their_first_attempt() -> None:
    mail, late = EmailMessage("1", "m", "a@b.co", "", ""), InappMessage("2", "i", "0x", "", "")
    hook = WebhookMessage("3", "h", "https://a.co", "")
    steps = [Step("n", "", BEGIN + hour * HOUR, "sent") for hour in range(4)]
    run = Run("e", "a")
    decisions = [
        Decision(run, steps[0], (TagAdded("x"),)),
        Decision(run, steps[1], (mail,)),
        Decision(run, steps[2], (hook,)),
        Decision(run, steps[3], (late,)),
        Decision(run),
    ]
    entry = SimulatedEntry(events((HOUR, "paid"))[0], {}, run, decisions, stored_at={"2": BEGIN + 2.5 * HOUR})
    assert entry.messages_at == [BEGIN + HOUR, BEGIN + 2.5 * HOUR]
    entry.unsent = UnsentMessage(mail, BEGIN - HOUR)
    assert entry.messages_at == [BEGIN - HOUR, BEGIN + HOUR, BEGIN + 2.5 * HOUR]
    entry.unsent = UnsentMessage(hook, BEGIN - HOUR)
    assert entry.messages_at == [BEGIN + HOUR, BEGIN + 2.5 * HOUR]


def test_an_entry_sees_what_all_events_of_its_moment_changed_and_no_later_one() -> None:
    ask = node("c", "condition", filters=[{"path": "contact.plan", "operator": "exists"}])
    two = node("d", "condition", filters=[{"path": "contact.age", "operator": "exists"}])
    timeline = timeline_of(ask, two, YES, NO, edges="t>c c:true>d d:true>yes d:false>no")
    written: list[dict[str, Any]] = [{}, {"plan": "pro"}, {"age": 3}]
    records = [
        replace(event, attributes=attributes)
        for event, attributes in zip(events(*paid(HOUR, HOUR, 2 * HOUR)), written, strict=True)
    ]
    assert [walk.entry.steps[-1].node_id for walk in play(timeline, *records)] == ["no", "no", "yes"]


def test_an_identifier_of_another_contact_stays_there() -> None:
    owners = {(IdentifierKind.EXTERNAL_ID, "b"): "bob"}
    timeline = timeline_of(owners=owners)
    record = EventRecord("e0", "paid", BEGIN, Identifiers(evm_wallet("a"), external_id="b"), b"{}", attributes={})
    play(timeline, record)
    assert timeline.contact == ANN


def test_a_log_wakes_nothing_by_its_short_name() -> None:
    wait = node("w", "wait_for_event", event="deposit", timeoutSeconds=86_400)
    (entry,) = backtest(automation(wait), ANN, [*events((timedelta(0), "paid")), log(HOUR, "1")], BEGIN + 9 * DAY)
    assert steps_of(entry)[-1] == ("w", "timed_out", DAY)


def test_a_wait_that_is_over_ends_before_the_start_if_the_event_of_the_moment_does_not_pass() -> None:
    wait = node("w", "wait_for_event", event="bought", timeoutSeconds=2 * 86_400, filters=[NEVER])
    of = automation(
        *(ASK, wait, YES, MESSAGE),
        edges="t>c c:false>w w:timeout>yes c:true>m",
        trigger=Trigger(frozenset({"paid", "bought"})),
    )
    entries = run_backtest(of, (timedelta(0), "paid"), (2 * DAY, "bought"), (2 * DAY, "sold"))
    assert [steps_of(entry)[-1][0] for entry in entries] == ["yes", "m"]


def test_a_goal_that_came_before_counts_after_another_entry_began() -> None:
    goal = {"event": "bought", "filters": [{"path": "contact.tags", "operator": "contains", "value": "yes"}]}
    short = node("e", "delay", seconds=3_600)
    of = automation(short, YES, DELAY, settings={"goal": goal})
    entries = run_backtest(of, (timedelta(0), "paid"), (HOUR / 2, "bought"), (HOUR * 0.75, "paid"))
    assert [entry.run.outcome for entry in entries] == ["goal", "completed"]


def test_events_join_an_entry_that_has_a_cap() -> None:
    graph = digest({"seconds": 3_600}, frequencyCap={"messages": 1, "seconds": 60})
    assert body(run(graph, (60, deposit(2)))) == "2: 1 2 = 3"


def test_a_change_at_the_end_takes_effect_when_the_contact_is_played_on() -> None:
    timeline = timeline_of(MESSAGE, changes=[zone(HOUR, "Asia/Tokyo")])
    play(timeline, until=HOUR)
    assert timeline.contact == ANN
    play(timeline, until=2 * HOUR)
    assert timeline.contact.attributes == {"tz": "Asia/Tokyo"}


def test_all_changes_of_an_event_take_effect_with_it() -> None:
    plan = ValueChange(BEGIN + HOUR, "attributes.plan", UNSET, "pro", "e0")
    changes = [zone(HOUR, "UTC", "e0"), plan, replace(plan, field="attributes.age", new=3)]
    timeline = timeline_of(MESSAGE, changes=changes)
    (walk,) = play(timeline, *events((HOUR, "paid")))
    assert walk.facts.contact.attributes == {"tz": "UTC", "plan": "pro", "age": 3}


@pytest.mark.parametrize("order", [ChangeOrder.BEFORE_WAKING, ChangeOrder.BEFORE_START])
def test_an_entry_that_a_change_ends_comes_before_the_one_that_the_event_starts(order: ChangeOrder) -> None:
    """At 13:00 it is nine in Caracas."""
    of = automation(ASK, NINE, YES, MESSAGE, edges="t>c c:false>n n>yes c:true>m")
    changes = [zone(3 * HOUR, "America/Caracas", "e1", order)]
    entries = run_backtest(of, *paid(timedelta(0), 3 * HOUR), changes=changes)
    assert [steps_of(entry)[-1] for entry in entries] == [("yes", "tagged", 3 * HOUR), ("m", "sent", 3 * HOUR)]


@pytest.mark.parametrize(
    ("change", "others", "outcome"),
    [
        (zone(3 * HOUR, "America/Caracas", "e1", ChangeOrder.BEFORE_START), [("e1", False)], "skipped"),
        (zone(3 * HOUR, "America/Caracas", "e1", ChangeOrder.BEFORE_START), [("e1", True)], "sent"),
        (zone(3 * HOUR, "America/Caracas", "e1"), [("e0", False)], "skipped"),
        (zone(3 * HOUR, "America/Caracas", "e1"), [("e1", False)], "sent"),
        (zone(3 * HOUR, "America/Caracas", "e0"), [("e0", True)], "skipped"),
        (zone(3 * HOUR, "America/Caracas", "e0"), [("e1", False)], "sent"),
    ],
)
def test_messages_of_the_moment_count_for_an_entry_if_the_change_that_ends_it_came_after_them(
    change: ValueChange, others: list[tuple[str, bool]], outcome: str
) -> None:
    cap = {"frequencyCap": {"messages": 1, "seconds": 60}}
    of = automation(NINE, MESSAGE, settings=cap)
    messages = [OtherMessage(BEGIN + 3 * HOUR, *other) for other in others]
    records = (timedelta(0), "paid"), (3 * HOUR, "sold")
    (entry,) = run_backtest(of, *records, changes=[change], other_messages=messages)
    assert steps_of(entry)[-1] == ("m", outcome, 3 * HOUR)


@pytest.mark.parametrize(
    ("at", "event_id", "outcome"),
    [(2 * DAY, "", "skipped"), (2 * DAY, "0", "sent"), (2 * DAY + HOUR, "", "sent"), (2 * DAY - HOUR, "", "sent")],
)
def test_a_due_entry_counts_the_messages_of_its_moment_that_no_event_caused(
    at: timedelta, event_id: str, outcome: str
) -> None:
    of = automation(DELAY, MESSAGE, settings={"frequencyCap": {"messages": 1, "seconds": 60}})
    other = OtherMessage(BEGIN + at, event_id, is_younger=True)
    (entry,) = run_backtest(of, (timedelta(0), "paid"), other_messages=[other])
    assert steps_of(entry)[-1] == ("m", outcome, 2 * DAY)


def test_a_woken_entry_counts_the_messages_of_an_earlier_event_of_its_moment() -> None:
    of = automation(WAIT, MESSAGE, edges="t>w w:matched>m", settings={"frequencyCap": {"messages": 1, "seconds": 60}})
    records = (timedelta(0), "paid"), (HOUR, "sold"), (HOUR, "bought")
    other = OtherMessage(BEGIN + HOUR, "e1", is_younger=False)
    (entry,) = run_backtest(of, *records, other_messages=[other])
    assert steps_of(entry)[-1] == ("m", "skipped", HOUR)


@pytest.mark.parametrize("order", [ChangeOrder.BEFORE_WAKING, ChangeOrder.BEFORE_START])
@pytest.mark.parametrize(("goal", "outcome"), [({}, "goal"), ({"filters": [NEVER]}, "completed")])
def test_entries_that_an_event_changes_decide_once_with_the_goal_of_the_same_moment(
    order: ChangeOrder, goal: dict[str, Any], outcome: str
) -> None:
    of = automation(NINE, YES, settings={"goal": {"event": "bought"} | goal})
    changes = [zone(3 * HOUR, "America/Caracas", "e2", order)]
    records = *paid(timedelta(0), HOUR / 2), (3 * HOUR, "sold"), (3 * HOUR, "bought")
    entries = run_backtest(of, *records, changes=changes)
    assert [(entry.run.outcome, entry.steps[-1].at) for entry in entries] == [(outcome, BEGIN + 3 * HOUR)] * 2


def test_a_wait_that_is_over_waits_for_its_event_of_the_moment_while_another_is_woken() -> None:
    edges = "t>c c:false>yes yes>w w:matched>m c:true>w2"
    of = automation(ASK, YES, WAIT, SOLD, MESSAGE, edges=edges)
    entries = run_backtest(of, *paid(timedelta(0), HOUR), (2 * DAY, "sold"), (2 * DAY, "bought"))
    assert [steps_of(entry)[-1] for entry in entries] == [("m", "sent", 2 * DAY), ("w2", "matched", 2 * DAY)]


def test_a_filter_of_a_wait_reads_the_name_of_its_event() -> None:
    filters = [{"path": "event", "operator": "eq", "value": "bought"}]
    wait = node("w", "wait_for_event", event="bought", timeoutSeconds=86_400, filters=filters)
    (entry,) = run_backtest(automation(wait), (timedelta(0), "paid"), (HOUR, "bought"))
    step = entry.steps[-1]
    assert (step.outcome, step.detail) == ("matched", {"event": "bought", "eventId": "e1"})


def test_an_entry_advances_when_what_it_follows_changes_not_when_it_changed_it_itself() -> None:
    move = node("u", "update_contact", attributes={"tz": "Asia/Tokyo"})
    later = ValueChange(BEGIN + 3 * DAY, "attributes.plan", UNSET, "pro")
    timeline = timeline_of(DELAY, move, NINE, changes=[later, zone(3 * DAY + HOUR, "UTC")])
    walks = play(timeline, *events((timedelta(0), "paid")))
    # It changes the zone at 10:00 UTC, which is 19:00 there.
    assert [walk.now - BEGIN for walk in walks] == [timedelta(0), 2 * DAY, 2 * DAY + 14 * HOUR]
    other = ValueChange(BEGIN + HOUR, "attributes.plan", UNSET, "pro")
    changes = [other, zone(2 * HOUR, "Asia/Tokyo")]
    timeline = timeline_of(NINE, contact=replace(ANN, attributes={"tz": "UTC"}), changes=changes)
    walks = play(timeline, *events((timedelta(0), "paid")))
    assert [walk.now - BEGIN for walk in walks] == [timedelta(0), 2 * HOUR, 14 * HOUR]


def test_an_entry_that_changes_an_attribute_wakes_another_that_follows_it() -> None:
    """At 13:00 it is nine in Caracas."""
    short, move = (
        node("e", "delay", seconds=3 * 3_600),
        node("u", "update_contact", attributes={"tz": "America/Caracas"}),
    )
    of = automation(ASK, YES, short, move, NINE, edges="t>c c:false>yes yes>e e>u c:true>n")
    entries = run_backtest(of, *paid(timedelta(0), HOUR))
    assert [steps_of(entry)[-1] for entry in entries] == [("u", "updated", 3 * HOUR), ("n", "waited", 3 * HOUR)]


def test_the_facts_of_an_entry_are_those_that_its_graph_can_read() -> None:
    records = events(*paid(timedelta(0), HOUR))
    timeline = timeline_of(DELAY, settings={"goal": {"event": "sold"}})
    expected = [_facts(record) for record in records]
    assert [walk.facts for walk in play(timeline, *records, until=DAY)] == expected


def test_a_graph_with_a_cap_reads_messages_within_its_period() -> None:
    cap = {"frequencyCap": {"messages": 9, "seconds": 7_200}}
    others = [OtherMessage(BEGIN + hour * HOUR, "", is_younger=False) for hour in (-3, -1)]
    records = events(*paid(timedelta(0), HOUR))
    walks = play(timeline_of(MESSAGE, DELAY, settings=cap, other_messages=others), *records, until=DAY)
    histories = [(BEGIN - HOUR,), (BEGIN,)]
    assert [walk.facts for walk in walks] == [
        _facts(record, history=ContactHistory(messages_at=messages_at))
        for record, messages_at in zip(records, histories, strict=True)
    ]


def test_a_message_that_is_tried_again_does_not_count_for_itself() -> None:
    cap = {"frequencyCap": {"messages": 9, "seconds": 86_400}}
    failures = {"e1": (RecordedFailure("m", Failure("refused", "no"), BEGIN + 3 * HOUR, BEGIN + HOUR),)}
    mail = node("m", "send_email", subject="Hi", body="Hi")
    timeline = timeline_of(mail, settings=cap, failures=failures)
    walks = play(timeline, *events(*paid(timedelta(0), HOUR, 2 * HOUR)))
    assert [(walk.now - BEGIN, walk.facts.history.messages_at) for walk in walks] == [
        (timedelta(0), ()),
        (HOUR, (BEGIN,)),
        (2 * HOUR, (BEGIN, BEGIN + HOUR)),
        (3 * HOUR, (BEGIN, BEGIN + 2 * HOUR)),
    ]


def test_a_graph_with_a_webhook_reads_the_number_of_entries_in_the_minute_before() -> None:
    hook, minute = node("h", "send_webhook", url="https://a.co"), timedelta(minutes=1)
    records = events(*paid(timedelta(0), minute / 2, 1.2 * minute))
    walks = play(timeline_of(hook, DELAY), *records, until=DAY)
    assert [walk.facts.history for walk in walks] == [ContactHistory(recent=recent) for recent in (0, 1, 1)]


def test_a_graph_that_collects_reads_the_other_entries_that_collect() -> None:
    collect = node("k", "collect", seconds=3_600, key="plan")
    records = events(*paid(timedelta(0), HOUR / 2, 2 * HOUR))
    records[1] = replace(records[1], payload=b'{"plan": "free"}')
    walks = play(timeline_of(collect), *records, until=DAY)
    first, second = (
        CollectingEntry(record.id, "k", "paid", record.read_payload(), record.at, record.id, record.at + HOUR, 0)
        for record in records[:2]
    )
    assert [(walk.entry.event.id, walk.facts.history.collecting) for walk in walks] == [
        *[("e0", ()), ("e1", (first,)), ("e0", (second,))],
        *[("e1", ()), ("e2", ()), ("e2", ())],
    ]


def test_later_events_are_those_that_an_entry_waits_for_after_its_own() -> None:
    """The contact may be merged, so its events count for entries that are not on its timeline yet."""
    goal = {"event": "paid", "filters": [{"path": "contact.tags", "operator": "contains", "value": "never"}]}
    timeline = timeline_of(WAIT, DELAY, edges="t>w w:timeout>d", settings={"goal": goal}, members={"ann": None})
    records = events((-HOUR, "bought"), *paid(timedelta(0), HOUR), (2.5 * DAY, "bought"))
    walks = play(timeline, *records, until=3 * DAY)
    own = {record.id: LaterEvent(record.at, record.name, record.sent, {"plan": "pro"}, record.id) for record in records}
    assert [(walk.entry.event.id, walk.facts.later_events) for walk in walks] == [
        ("e1", ()),
        ("e1", (own["e2"],)),
        ("e2", ()),
        ("e1", (own["e2"],)),
        ("e2", ()),
    ]


def _facts(record: EventRecord, **more: Any) -> Facts:
    return Facts(record.name, record.sent, {"plan": "pro"}, ANN, at=record.at, **more)


def test_joined_events_are_those_of_the_entry_that_joins() -> None:
    collect = node("k", "collect", seconds=3_600)
    records = events(*paid(timedelta(0), HOUR / 4, HOUR / 2))
    walks = play(timeline_of(collect), *records, until=DAY)
    assert walks[0].entry.joined == [
        LaterEvent(record.at, "paid", ANN.identifiers, {"plan": "pro"}, record.id) for record in records[1:]
    ]
