"""A step that collects waits, and joins an older entry that collects the same events, with its whole decision."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec
import pytest

from workbench.language.actions import Collect, Exit, TriggerNode
from workbench.language.advance import advance
from workbench.language.contact import ContactState
from workbench.language.decision import Decision
from workbench.language.event import Identifiers
from workbench.language.facts import CollectingEntry, ContactHistory, Facts, LaterEvent
from workbench.language.graph import Edge, Graph, Node
from workbench.language.run import EntryJoined, Run, State, Step

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
EVENT = LaterEvent(NOW, "paid", Identifiers(), {})
NEW = Run("e2", "a1", State.RUNNING, None, 0, 1, event_id="v2")
COLLECTING = Run("e2", "a1", State.RUNNING, "c", 1, 1, since=NOW - HOUR, event_id="v2")
OLDER = CollectingEntry("e1", "c", "paid", {"plan": "pro"}, NOW - 2 * HOUR, "v1", NOW + HOUR, 3)


def changed(**changes: Any) -> CollectingEntry:
    return msgspec.structs.replace(OLDER, **changes)


def decide(run: Run, *others: CollectingEntry, joined: int = 0, now: datetime = NOW, **collect: Any) -> Decision:
    action = Collect(**({"wait": DAY, "key": "plan", "max": 10} | collect))
    nodes = (Node("t", "app_event", TriggerNode()), Node("c", "collect", action), Node("x", "exit", Exit()))
    graph = Graph(nodes, (Edge("", "t", "c"), Edge("", "c", "x")))
    history, at = ContactHistory(collecting=others), NOW - HOUR
    contact = ContactState("c1", attributes={"timezone": "Asia/Tokyo"})
    facts = Facts("paid", Identifiers(), {"plan": "pro"}, contact, history=history, joined=(EVENT,) * joined, at=at)
    return advance(graph, run, facts, now)


def joins(run: Run, *, is_last: bool = False, to: str = "e1") -> Decision:
    node_id, kind, steps = ("t", "app_event", 0) if run.node_id is None else ("c", "collect", 1)
    ended = msgspec.structs.replace(
        run, state=State.CANCELLED, node_id=node_id, step=run.step + steps, outcome="joined", since=None
    )
    return Decision(
        ended, Step(node_id, kind, NOW, "joined", detail={"entryId": to}), (EntryJoined(to, is_last=is_last),)
    )


@pytest.mark.parametrize("run", [NEW, COLLECTING])
def test_an_entry_joins_an_older_one_that_collects_the_same_events(run: Run) -> None:
    others = [
        changed(entry_id="e3", node_id="gone"),
        changed(entry_id="e4", node_id="x"),
        changed(entry_id="e5", event="bought"),
        changed(entry_id="e6", payload={"plan": "free"}),
        changed(entry_id="e7", payload={}),
        changed(entry_id="e8", until=NOW),
    ]
    assert decide(run, *others, OLDER, changed(entry_id="e9")) == joins(run)
    assert EntryJoined not in {type(effect) for effect in decide(run, *others).effects}
    assert decide(run, changed(payload={}), key=None) == joins(run)


@pytest.mark.parametrize(
    ("at", "event_id", "is_older"),
    [
        (NOW - 2 * HOUR, "v9", True),
        (NOW - HOUR, "v1", True),
        (NOW - HOUR, "v2", False),
        (NOW - HOUR, "v3", False),
        (NOW, "v1", False),
    ],
)
def test_an_entry_that_collects_joins_only_an_older_one(at: datetime, event_id: str, is_older: bool) -> None:
    other = changed(at=at, event_id=event_id)
    assert (decide(COLLECTING, other) == joins(COLLECTING)) is is_older
    assert decide(NEW, other) == joins(NEW)


@pytest.mark.parametrize(("joined", "max_", "is_last"), [(0, 6, False), (0, 5, True), (2, 8, False), (2, 7, True)])
def test_the_last_event_that_an_entry_can_have_is_known(joined: int, max_: int, is_last: bool) -> None:
    assert decide(NEW, OLDER, joined=joined, max=max_) == joins(NEW, is_last=is_last)


AT_C = msgspec.structs.replace(COLLECTING, since=None)


@pytest.mark.parametrize(
    ("collect", "until"), [({}, NOW + DAY), ({"wait": None, "clock": time(9)}, NOW + 14 * HOUR)], ids=["time", "clock"]
)
def test_a_step_that_collects_waits_until_its_time(collect: dict[str, Any], until: datetime) -> None:
    waiting = msgspec.structs.replace(AT_C, state=State.WAITING, attempt=0, due_at=until, since=NOW)
    text = until.isoformat().replace("+00:00", "Z")
    step = Step("c", "collect", NOW, "waiting", detail={"cause": "collect", "until": text})
    assert decide(AT_C, **collect) == Decision(waiting, step)
    ended = decide(waiting.claimed(), now=until, joined=2, **collect)
    assert ended == Decision(AT_C.at("x"), Step("c", "collect", until, "collected", detail={"events": 3}))


def test_a_step_that_has_all_the_events_it_can_have_ends() -> None:
    assert [decide(AT_C, joined=joined, max=3).run.node_id for joined in (1, 2)] == ["c", "x"]
