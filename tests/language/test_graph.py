"""Reading turns React Flow's shape into typed actions, and returns problems for any other input."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.actions import AddTag, Condition, Exit, InvalidAction, SendInapp, TriggerNode
from workbench.language.filter import Filter
from workbench.language.graph import Edge, Graph, Node, read_graph


def graph(value: Any) -> Graph:
    parsed = read_graph(value)
    assert isinstance(parsed, Graph), parsed
    return parsed


def problems(value: Any) -> list[str]:
    problems = read_graph(value)
    assert isinstance(problems, tuple), problems
    return [problem.field for problem in problems]


def only_action(kind: str, data: Any = None) -> Any:
    return graph({"nodes": [{"id": "n", "type": kind, "data": data}]}).nodes[0].action


def reasons(kind: str, data: Any = None) -> list[str]:
    action = only_action(kind, data)
    assert isinstance(action, InvalidAction), action
    return [problem.field for problem in action.problems]


def test_the_contracts_in_app_flow_is_read() -> None:
    parsed = graph(
        {
            "nodes": [
                {
                    "id": "t",
                    "type": "app_event",
                    "position": {"x": 0, "y": 0},
                    "data": {"actionType": "app_event", "event": "paid"},
                },
                {
                    "id": "m",
                    "type": "send_inapp",
                    "data": {
                        "actionType": "send_inapp",
                        "recipientMode": "triggering_profile",
                        "title": "Hi",
                        "body": "You paid",
                    },
                },
            ],
            "edges": [{"id": "e", "source": "t", "target": "m"}],
        }
    )
    assert parsed == Graph(
        (Node("t", "app_event", TriggerNode(("paid",))), Node("m", "send_inapp", SendInapp("Hi", "You paid"))),
        (Edge("e", "t", "m"),),
    )


@pytest.mark.parametrize("kind", ["app_event", "custom_event", "app-event", "custom-event", "appevent"])
def test_trigger_nodes_accept_all_aliases(kind: str) -> None:
    assert only_action(kind) == TriggerNode()


def test_each_kind_has_its_action() -> None:
    assert only_action("add_tag", {"tag": "vip"}) == AddTag("vip")
    assert only_action("exit") == Exit()
    filters = [{"path": "a", "operator": "eq", "value": 1}]
    assert only_action("condition", {"filters": filters}) == Condition((Filter("a", "eq", 1),))
    assert only_action("send_inapp", {"title": "t", "body": "b", "data": {"k": 1}}) == SendInapp("t", "b", {"k": 1})


@pytest.mark.parametrize(
    ("kind", "data", "field"),
    [
        ("teleport", {}, "graph.nodes[0].type"),
        ("", {}, "graph.nodes[0].type"),
        ("send_inapp", {"body": "b"}, "graph.nodes[0].data.title"),
        ("send_inapp", {"title": "", "body": "b"}, "graph.nodes[0].data.title"),
        ("send_inapp", {"title": 5, "body": "b"}, "graph.nodes[0].data.title"),
        ("send_inapp", {"title": "{{ x", "body": "b"}, "graph.nodes[0].data.title"),
        ("send_inapp", {"title": "t", "body": "{% import 'x' as x %}"}, "graph.nodes[0].data.body"),
        ("send_inapp", {"title": "t", "body": "b", "recipientMode": "all"}, "graph.nodes[0].data.recipientMode"),
        ("send_inapp", {"title": "t", "body": "b", "data": [1]}, "graph.nodes[0].data.data"),
        ("add_tag", {}, "graph.nodes[0].data.tag"),
        ("add_tag", {"tag": ""}, "graph.nodes[0].data.tag"),
        ("add_tag", {"tag": "x" * 65}, "graph.nodes[0].data.tag"),
        ("add_tag", {"tag": 5}, "graph.nodes[0].data.tag"),
        ("condition", {"filters": [{"path": "a"}]}, "graph.nodes[0].data.filters[0].operator"),
        ("condition", {"filters": "x"}, "graph.nodes[0].data.filters"),
    ],
)
def test_an_invalid_node_is_read_with_its_problems(kind: str, data: Any, field: str) -> None:
    assert reasons(kind, data) == [field]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (None, "graph"),
        ([], "graph"),
        ("x", "graph"),
        ({"nodes": {}}, "graph.nodes"),
        ({"edges": 5}, "graph.edges"),
        ({"nodes": [5]}, "graph.nodes[0].id"),
        ({"nodes": [{"id": ""}]}, "graph.nodes[0].id"),
        ({"nodes": [{"id": 5, "type": "exit"}]}, "graph.nodes[0].id"),
        ({"nodes": [{"id": "a"}]}, "graph.nodes[0].type"),
        ({"nodes": [{"id": "a", "type": []}]}, "graph.nodes[0].type"),
        ({"nodes": [{"id": "a", "type": "exit", "data": []}]}, "graph.nodes[0].data"),
        ({"edges": [5]}, "graph.edges[0]"),
        ({"edges": [{"source": "a"}]}, "graph.edges[0].target"),
        ({"edges": [{"source": [], "target": "a"}]}, "graph.edges[0].source"),
        ({"edges": [{"source": "a", "target": "b", "sourceHandle": 5}]}, "graph.edges[0].sourceHandle"),
        ({"edges": [{"source": "a", "target": "b", "id": {}}]}, "graph.edges[0].id"),
        ({"nodes": [{"id": "a\0", "type": "exit"}]}, "graph"),
        ({"nodes": [{"id": "a", "type": "exit", "data": {"x": [[[]]] * 2, "y": "\ud800"}}]}, "graph"),
    ],
)
def test_an_invalid_shape_is_refused(value: Any, field: str) -> None:
    assert problems(value) == [field]


def test_null_is_absent() -> None:
    assert graph({"nodes": None, "edges": None}) == Graph() == graph({})
    edge = {"id": None, "source": "a", "target": "b", "sourceHandle": None}
    assert graph({"edges": [edge]}).edges == (Edge("", "a", "b"),)
    assert graph({"edges": [edge | {"sourceHandle": ""}]}).edges == (Edge("", "a", "b"),)


def test_the_start_is_the_trigger_or_the_first_node() -> None:
    first, trigger = {"id": "a", "type": "exit"}, {"id": "t", "type": "app_event"}
    assert graph({"nodes": [first, trigger]}).start == Node("t", "app_event", TriggerNode())
    assert graph({"nodes": [first]}).start == Node("a", "exit", Exit())
    assert Graph().start is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4) | st.sampled_from(["send_inapp", "{{ x", "t"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "type", "data", "nodes", "edges", "source", "target", "filters", "title"]), inner
        )
    ),
    max_leaves=15,
)


@given(values)
def test_reading_never_raises(value: Any) -> None:
    assert isinstance(read_graph(value), Graph | tuple)
    assert isinstance(read_graph({"nodes": [value], "edges": [value]}), Graph | tuple)


def test_collecting_entries_read_a_contact_that_changes() -> None:
    filters = [{"path": "contact.plan", "operator": "exists"}]
    wait = {"id": "w", "type": "wait_for_event", "data": {"event": "b", "timeoutSeconds": 60, "filters": filters}}
    collect = {"id": "k", "type": "collect", "data": {"seconds": 60}}
    assert graph({"nodes": [collect, wait]}).awaits_steadily is False
