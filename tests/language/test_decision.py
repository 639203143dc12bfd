"""Each way in which a step ends, from the first node and from a run that waited, failed and was paused there."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from workbench.language.actions import AddTag, TriggerNode
from workbench.language.channel import RetryPolicy
from workbench.language.contact import ContactState
from workbench.language.decision import (
    Decision,
    Failure,
    StepContext,
    end_entry,
    fail,
    fail_permanently,
    follow_edge,
    record_step,
    wait,
)
from workbench.language.event import Identifiers
from workbench.language.facts import Facts
from workbench.language.graph import Edge, Graph, Node
from workbench.language.run import IllegalTransitionError, Run, State, Step, TagAdded, delay_after

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
NODE = Node("t", "app_event", TriggerNode())
LINE = Graph((NODE, Node("n", "add_tag", AddTag("x"))), (Edge("", "t", "n"),))
FACTS = Facts("paid", Identifiers(), {}, ContactState("c1"), retries=RetryPolicy((100.0, 50.0)))
FRESH = Run("e1", "a1", State.RUNNING, None, 0, 1)
USED = Run("e1", "a1", State.RUNNING, "t", 4, 2, None, "earlier", None, NOW - HOUR, "v1", "v0", resumed=True)


def end(way: str, run: Run, graph: Graph = LINE) -> Decision:
    ctx = StepContext(graph, NODE, run, FACTS, NOW)
    step = record_step(ctx, "done", "yes" if way == "no edge" else None)
    failure = Failure("http_500", "it broke")
    return {
        "edge": lambda: follow_edge(ctx, step, TagAdded("x")),
        "no edge": lambda: follow_edge(ctx, step, TagAdded("x")),
        "wait": lambda: wait(ctx, NOW + HOUR, "delay"),
        "retry": lambda: fail(ctx, failure),
        "fail": lambda: fail_permanently(ctx, "gone", "it left"),
        "exit": lambda: end_entry(ctx, State.EXITED, "exit", step),
    }[way]()


FAILED = {"cause": "http_500", "error": "it broke"}
WAITING = {"cause": "delay", "until": "2026-11-20T11:00:00Z"}


@pytest.mark.parametrize(
    ("way", "run", "changes", "outcome", "handle", "detail"),
    [
        ("edge", FRESH, {"node_id": "n", "step": 1}, "done", None, {}),
        ("no edge", FRESH, {"state": State.COMPLETED, "outcome": "completed", "step": 1}, "done", "yes", {}),
        ("wait", FRESH, {"state": State.WAITING, "attempt": 0, "due_at": NOW + HOUR, "since": NOW}, "waiting", None,
         WAITING),
        ("retry", FRESH, {"state": State.RETRYING, "error": "http_500: it broke"}, "failed", None, FAILED),
        ("fail", FRESH, {"state": State.DEAD, "outcome": "gone", "error": "gone: it left"}, "failed", None,
         {"cause": "gone", "error": "it left"}),
        ("exit", FRESH, {"state": State.EXITED, "outcome": "exit", "step": 1}, "done", None, {}),
        ("edge", USED, {"node_id": "n", "step": 5, "attempt": 1, "error": None, "since": None, "since_id": None,
                        "resumed": False}, "done", None, {}),
        ("no edge", USED, {"state": State.COMPLETED, "outcome": "completed", "step": 5, "error": None, "since": None},
         "done", "yes", {}),
        ("wait", USED, {"state": State.WAITING, "attempt": 1, "due_at": NOW + HOUR}, None, None, {}),
        ("retry", USED, {"state": State.RETRYING, "error": "http_500: it broke", "since": None, "since_id": None},
         "failed", None, FAILED),
        ("fail", USED, {"state": State.DEAD, "outcome": "gone", "error": "gone: it left", "since": None}, "failed",
         None, {"cause": "gone", "error": "it left"}),
        ("exit", USED, {"state": State.EXITED, "outcome": "exit", "step": 5, "error": None, "since": None}, "done",
         None, {}),
    ],
)  # fmt: skip
def test_each_way_to_end_a_step_gives_its_whole_decision(
    way: str, run: Run, changes: dict[str, Any], outcome: str | None, handle: str | None, detail: dict[str, Any]
) -> None:
    if way == "retry":
        delay = delay_after((100.0, 50.0), run.attempt, run.jitter_key)
        assert delay is not None
        changes = {**changes, "due_at": NOW + delay}
    after = msgspec.structs.replace(run, **{"node_id": "t", **changes})
    step = None if outcome is None else Step("t", "app_event", NOW, outcome, run.attempt, handle, detail)
    assert end(way, run) == Decision(after, step, (TagAdded("x"),) if "edge" in way else ())


def test_the_jitter_of_a_retry_is_always_the_same() -> None:
    first, second, none = (delay_after((100.0, 200.0), attempt, "a1/v0") for attempt in (1, 2, 3))
    assert (first, second, none) == (timedelta(seconds=93.121806), timedelta(seconds=203.624921), None)


def test_a_transition_that_is_not_in_the_table_is_named() -> None:
    with pytest.raises(IllegalTransitionError, match=r"^pending -> completed$"):
        Run("e1", "a1").to(State.COMPLETED)
