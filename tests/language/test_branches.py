"""Several edges from one handle: their branches are run one after the other, in the order of the edges."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import assume, find, given
from hypothesis import strategies as st

from tests.language.strategies import NOW, contacts, events, graph_of, sound_graphs
from tests.language.test_check import EXIT, WAIT, T, condition, remarks
from workbench.language.actions import Handle
from workbench.language.advance import max_duration
from workbench.language.channel import RetryPolicy
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers
from workbench.language.graph import (
    BranchSequence,
    Graph,
    Route,
    find_route,
    read_graph,
    search_depth_first,
    targets_by_source,
)
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.trigger import Trigger


def tag(name: str) -> dict[str, Any]:
    return {"id": name, "type": "add_tag", "data": {"tag": name}}


A, B, C, D, E, Z = map(tag, "abcdez")
PRO = condition("pro", ("plan", "eq", "pro"))
DELAY: dict[str, Any] = {"id": "wait", "type": "delay", "data": {"seconds": 3_600}}


def graph(nodes: list[dict[str, Any]], *edges: str) -> Graph:
    written = []
    for edge in edges:
        source, _, target = edge.partition(">")
        name, _, handle = source.partition(":")
        written.append({"source": name, "target": target, "sourceHandle": handle or None})
    read = read_graph({"nodes": [T, *nodes], "edges": written})
    assert isinstance(read, Graph), read
    return read


def order(graph: Graph, plan: str = "pro") -> str:
    """Return the ids of the nodes that an entry of a contact with this plan runs, without the trigger."""
    event = Event("paid", Identifiers(), payload=f'{{"plan": "{plan}"}}'.encode())
    trace = simulate(SimulatedAutomation(Trigger(), graph), event, ContactState("1"), NOW)
    return " ".join(step.node_id for step in trace.steps if step.outcome != "waiting")[2:]


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        ([A, B, C], ["t>a", "t>b", "t>c"], "a b c"),
        ([A, B, C], ["t>c", "t>a", "t>b"], "c a b"),
        ([A, B, C, D], ["t>a", "t>b", "a>c", "b>d"], "a c b d"),
        ([A, B, C, D], ["t>a", "t>b", "a>c", "b>c", "c>d"], "a b c d"),
        ([A, B, C], ["t>a", "t>b", "a>b", "b>c"], "a b c"),
        ([A, B, C], ["t>b", "t>a", "a>b", "b>c"], "a b c"),
        ([A, B, C, D, E], ["t>a", "t>e", "a>b", "a>c", "b>d", "c>d"], "a b c d e"),
        ([PRO, A, B, C], ["t>pro", "t>c", "pro:true>a", "pro:false>b"], "pro a c"),
        ([PRO, A, C], ["t>pro", "t>c", "pro:false>a"], "pro c"),
        ([PRO, A, B, C], ["t>a", "a>pro", "pro:true>b", "pro:true>c"], "a pro b c"),
        ([A, B, C], ["t>a", "t>b", "t>c", "c>b"], "a c b"),
        ([A, B, C, E], ["t>a", "t>e", "a>b", "a>c"], "a b c e"),
        ([Z, B, C, E], ["t>z", "t>e", "z>b", "z>c"], "z b c e"),
        ([EXIT, A], ["t>x", "t>a"], "x"),
        ([DELAY, A, B], ["t>wait", "t>b", "wait>a"], "wait a b"),
    ],
)
def test_branches_are_run_in_the_order_of_their_edges(
    nodes: list[dict[str, Any]], edges: list[str], expected: str
) -> None:
    assert order(graph(nodes, *edges)) == expected


def test_a_branch_that_a_condition_skips_leads_to_the_next_one() -> None:
    forked = graph([PRO, A, B, C], "t>pro", "t>c", "pro:true>a", "pro:false>b")
    assert order(forked, "free") == "pro b c"


def test_the_waits_of_all_branches_add_up() -> None:
    later = DELAY | {"id": "later"}
    assert max_duration(graph([DELAY, later], "t>wait", "t>later"), RetryPolicy({})).total_seconds() == 7_200


def test_a_route_names_its_forks_also_those_that_do_not_exist() -> None:
    """A draft may have edges that start nowhere."""
    handles: dict[str, tuple[Handle, ...]] = dict.fromkeys("tab", (None,))
    branches = ("a", frozenset({"a"})), ("b", frozenset({"b"}))
    forked = {("t", None): "a", ("a", None): "b"}
    edges = [(source, None, target) for source in ("t", "nowhere") for target in "ab"]
    assert find_route(handles, edges[:2]) == Route(forked, (BranchSequence("t", branches),))
    assert {sequence.source for sequence in find_route(handles, edges).sequences} == {"t", "nowhere"}


def test_a_branch_may_lead_to_a_node_that_does_not_exist() -> None:
    forked = find_route({"t": (None,), "a": (None,)}, [("t", None, "gone"), ("t", None, "a")])
    assert forked.sequences == (BranchSequence("t", (("gone", frozenset({"gone"})), ("a", frozenset({"a"})))),)


def test_a_search_visits_a_node_once() -> None:
    assert search_depth_first(["a", "b"], {"a": ["b"]}) == (["b", "a"], [])


@given(sound_graphs(), events(), contacts)
def test_no_node_is_run_twice(written: dict[str, Any], event: Event, contact: ContactState) -> None:
    trace = simulate(SimulatedAutomation(Trigger(), graph_of(written)), event, contact, NOW)
    entered = [step.node_id for step in trace.steps if step.attempt == 1]
    changes = [node_id for node_id, following in pairwise([*entered, None]) if node_id != following]
    assert len(changes) == len(set(changes))


def test_random_graphs_have_several_branches_with_steps_and_waits() -> None:
    forked = graph_of(find(sound_graphs(), lambda written: len(graph_of(written).route.sequences) == 1))
    assert len(forked.route.sequences[0].branches) > 1


def test_a_branch_after_a_wait_is_a_warning() -> None:
    waiting = remarks([T, WAIT, A, B], "t>w", "t>b", "w:matched>a")
    assert waiting == [("warning", "b", "begins after 'w', which waits: draw its edge first if it should not wait")]
    assert remarks([T, WAIT, A, B], "t>b", "t>w", "w:matched>a") == []


def test_a_step_of_an_earlier_branch_has_one_way_on() -> None:
    entered = remarks([T, PRO, A, B, C], "t>pro", "pro:true>a", "pro:true>b", "pro:false>a", "a>c")
    message = "is in a branch of 'pro' that another branch follows: only steps of that branch may lead to it"
    assert entered == [("error", "a", message)]
    assert remarks([T, PRO, A, B, C], "t>pro", "pro:true>a", "pro:true>b", "pro:false>b", "a>c") == []


def test_a_step_where_branches_meet_is_not_left_out_by_the_last_one() -> None:
    message = "would be left out where a later branch of 't' does not lead to it: draw that branch first"
    for edges in (["t>a", "t>pro", "a>c", "pro:true>c"], ["t>c", "t>pro", "t>a", "pro:true>c"]):
        assert remarks([T, PRO, A, C], *edges) == [("error", "c", message)]
    assert remarks([T, PRO, A, C], "t>pro", "t>a", "pro:true>c", "a>c") == []
    assert remarks([T, PRO, A, C], "t>a", "t>pro", "a>c", "pro:true>c", "pro:false>c") == []


@given(st.lists(st.sampled_from([(None,), ("t", "f"), ()]), min_size=2, max_size=6), st.randoms())
def test_a_node_is_run_if_a_branch_leads_to_it(shapes: list[tuple[Handle, ...]], random: Random) -> None:
    handles = {str(number): shape for number, shape in enumerate([(None,), *shapes])}
    ends = [[(i, handle) for i in list(handles)[:number] for handle in handles[i]] for number in range(len(handles))]
    edges = [(*end, str(number)) for number in range(1, len(ends)) for end in {*random.choices(ends[number], k=2)}]
    random.shuffle(edges)
    route = find_route(handles, edges)
    assume(not route.shared and not route.missed)
    taken = {node_id: random.choice(shape) if shape else "exit" for node_id, shape in handles.items()}
    targets = targets_by_source((source, target) for source, handle, target in edges if taken[source] == handle)
    every_target = targets_by_source((source, target) for source, _, target in edges)
    reached = {node_id: set(search_depth_first([node_id], every_target)[0]) for node_id in handles}
    expected, pending = list[str](), ["0"]
    while pending:  # the first that no other one leads to
        node_id = next(i for i in pending if not any(i in reached[other] for other in pending if other != i))
        expected.append(node_id)
        new = [target for target in targets.get(node_id, ()) if target not in pending]
        pending = [] if taken[node_id] == "exit" else [*new, *(other for other in pending if other != node_id)]
    run = ["0"]
    while following := route.next_node_ids.get((run[-1], taken[run[-1]])):
        run.append(following)
    assert run == expected


def test_a_branch_after_an_exit_cannot_be_reached() -> None:
    assert remarks([T, EXIT, A], "t>x", "t>a") == [("error", "a", "cannot be reached from the trigger")]
