"""Moves of entries from one version of an automation to another: which steps they continue at, and what follows.

An entry that waits at a step continues at a step of the other version, as if it had waited there since its wait began.
What that means is decided by the interpreter, so an entry is moved only where the interpreter says what it does next.
"""

from collections.abc import Iterable
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypeAlias

import msgspec

from workbench.language.actions import InvalidAction, TriggerNode, fields_of_type
from workbench.language.advance import advance
from workbench.language.codec import same_json
from workbench.language.facts import Facts
from workbench.language.graph import Graph, Node, read_graph, search_depth_first, targets_by_source
from workbench.language.problem import Problem, Problems
from workbench.language.run import Run, State

_MAX_WAITS = 10  # of one step that is decided again when its wait ends: it may wait for the end of quiet hours

NodeMapping: TypeAlias = dict[str, str]
"""The step of the new version that entries at a step of an earlier version continue at, by id."""
MoveMode: TypeAlias = Literal["none", "safe"] | NodeMapping


class VersionedGraph(msgspec.Struct, frozen=True, dict=True):
    """The graph of a version. `json`: as it is stored."""

    version: int
    json: dict[str, Any]

    @cached_property
    def graph(self) -> Graph:
        graph = read_graph(self.json)
        return graph if isinstance(graph, Graph) else Graph()

    @cached_property
    def data(self) -> dict[str, Any]:
        """The data of each node, by id."""
        return {node["id"]: node.get("data", {}) for node in self.json.get("nodes", ())}

    @cached_property
    def reachable(self) -> dict[str, frozenset[str]]:
        """The nodes that an entry can reach from each node, with the node itself."""
        return {node_id: reachable_from(self.graph, node_id) for node_id in self.graph.by_id}


class Move(msgspec.Struct, frozen=True, dict=True):
    """A move of entries to a version. `mode`: the mapping; "safe": that of the steps that are the same in both.

    `label`: how sentences call the version.
    """

    to: VersionedGraph
    mode: MoveMode
    label: str

    def target(self, start: VersionedGraph, node_id: str) -> Node | str:
        """Return the node at which an entry that waits at a node of another version continues, or why there is none."""
        if isinstance(self.mode, dict):
            mapped = self.mode.get(node_id)
            if mapped is None:
                return f"the mapping has no step for {node_id!r}"
            node = self.to.graph.by_id.get(mapped)
            return f"{self.label} has no step {mapped!r}" if node is None else node
        node = self.to.graph.by_id.get(node_id)
        if node is None:
            return f"{self.label} has no step {node_id!r}"
        return node if waits_alike(start, self.to, node_id) else f"the step {node_id!r} differs in {self.label}"

    def repeated_step(self, node_id: str, passed: Iterable[str]) -> str | None:
        """Return a step that an entry at this node would take again, of those that it has passed."""
        reachable = self.to.reachable[node_id]
        return next((passed_id for passed_id in passed if passed_id in reachable), None)


def reachable_from(graph: Graph, node_id: str) -> frozenset[str]:
    """Return the nodes that an entry can reach from a node, with the node itself."""
    return frozenset(search_depth_first([node_id], targets_by_source(graph.links))[0])


def steps_before(graph: Graph, node_id: str, steps: int) -> int:
    """Return the number of steps to continue to count from, so that all that follow are within the loop guard."""
    return min(steps, len(graph.nodes) - len(reachable_from(graph, node_id)))


def check_mapping(mode: MoveMode, graph: Graph, earlier: Iterable[Graph], field: str) -> Problems:
    """Return what is wrong with a mapping to a graph from `earlier` ones."""
    if not isinstance(mode, dict):
        return ()
    former_ids = {node_id for former in earlier for node_id in former.by_id}
    problems = []
    for node_id, mapped in mode.items():
        node = graph.by_id.get(mapped)
        if node_id not in former_ids:
            problems.append(Problem(f"{field}.{node_id}", "no earlier version with entries has this step"))
        elif node is None:
            problems.append(Problem(f"{field}.{node_id}", f"the new version has no step {mapped!r}"))
        elif isinstance(node.action, TriggerNode) or node is graph.start:
            problems.append(Problem(f"{field}.{node_id}", f"{mapped!r} is the trigger, at which no entry can wait"))
    return tuple(problems)


def waits_alike(start: VersionedGraph, to: VersionedGraph, node_id: str) -> bool:
    """Return whether a node is the same in two versions, or the same but for its texts, and waits in the same way.

    The same: the same kind, and the same JSON as data, without the fields that are texts of messages. A node that
    depends on the time of day must have the same time zone, one that observes quiet hours the same quiet hours, too.
    """
    old, new = start.graph.by_id[node_id], to.graph.by_id[node_id]
    if old.kind != new.kind or isinstance(old.action, InvalidAction) or isinstance(new.action, InvalidAction):
        return False
    texts = {field.key for field in fields_of_type(old.kind, "line", "text", "locales")}
    written = [{key: value for key, value in of.data[node_id].items() if key not in texts} for of in (start, to)]
    if not same_json(*written):
        return False
    channel = old.action.channel
    is_quiet = channel is not None and channel.to_contact
    clocks = fields_of_type(old.kind, "clock", "date")  # without one of them weekdays and a zone mean nothing
    has_zone = is_quiet or any(field.key in start.data[node_id] for field in clocks)
    before, after = start.graph.settings, to.graph.settings
    return (not has_zone or before.zone_of(None) == after.zone_of(None)) and (
        not is_quiet or before.quiet_hours == after.quiet_hours
    )


class Prediction(msgspec.Struct, frozen=True):
    """The next step of a moved entry, if no event and no change of the contact comes before.

    `run`: the entry after the move: waiting, or, if its wait is over, running. `at`: when its step ends. `outcome`:
    that of the step. `next_node_id`: the next step; None: the entry ends, as `ends`.
    """

    run: Run
    at: datetime
    outcome: str
    next_node_id: str | None = None
    ends: str | None = None


def predict(graph: Graph, run: Run, facts: Facts, now: datetime) -> Prediction | str:
    """Return what an entry does next that waits at a node of a graph, decided at `now`; or why it can do nothing.

    `run` is running at the node. `facts` are those of `now`; the contact is taken to stay as it is.
    """
    waiting: Run | None = None
    decision = advance(graph, run, facts, now)
    for _ in range(_MAX_WAITS):
        after = decision.run
        if after.state is not State.WAITING or after.node_id != run.node_id:
            break
        assert after.due_at is not None
        waiting, now = waiting or after, after.due_at
        decision = advance(graph, after.claimed(), facts, now)
    after, moved = decision.run, waiting or run
    if after.state in (State.DEAD, State.CANCELLED, State.RETRYING):
        return f"it would fail: {after.error or after.outcome}"
    outcome = "waiting" if decision.step is None else decision.step.outcome
    if after.state is State.RUNNING:
        return Prediction(moved, now, outcome, next_node_id=after.node_id)
    return Prediction(moved, now, outcome, ends=after.outcome)
