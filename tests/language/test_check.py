"""A check reports the errors that prevent publication, and warnings. Every diagnostic names its node or field."""

from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from workbench.language.actions import AddTag, Condition, Exit, SendInapp, TriggerNode
from workbench.language.check import Diagnostic, check, errors
from workbench.language.filter import Filter
from workbench.language.graph import Edge, Graph, Node, read_graph
from workbench.language.trigger import Trigger

PAID = Trigger(frozenset({"paid"}))
T: dict[str, Any] = {"id": "t", "type": "app_event"}
TAG: dict[str, Any] = {"id": "tag", "type": "add_tag", "data": {"tag": "vip"}}
EXIT: dict[str, Any] = {"id": "x", "type": "exit"}
WAIT: dict[str, Any] = {"id": "w", "type": "wait_for_event", "data": {"event": "bought", "timeoutSeconds": 60}}
SPLIT: dict[str, Any] = {
    "id": "s",
    "type": "split",
    "data": {"branches": [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 50}]},
}
SETTINGS: dict[str, Any] = {
    "reentry": {"policy": "once"},
    "goal": {"event": "bought"},
    "quietHours": {"from": "22:00", "to": "08:00"},
    "frequencyCap": {"messages": 3, "seconds": 86_400},
}


def condition(name: str, *filters: tuple[str, str, Any]) -> dict[str, Any]:
    written = [{"path": path, "operator": operator, "value": value} for path, operator, value in filters]
    return {"id": name, "type": "condition", "data": {"filters": written}}


def message(name: str, title: str = "Hi", body: str = "there") -> dict[str, Any]:
    return {"id": name, "type": "send_inapp", "data": {"title": title, "body": body}}


def remarks(
    nodes: list[dict[str, Any]], *edges: str, trigger: Trigger = PAID, settings: Any = None
) -> list[tuple[str, str | None, str]]:
    """Check a graph with edges in the form `source>target` or `source:handle>target`."""
    written = []
    for index, edge in enumerate(edges):
        source, _, target = edge.partition(">")
        name, _, handle = source.partition(":")
        written.append({"id": str(index), "source": name, "target": target, "sourceHandle": handle or None})
    graph = read_graph({"nodes": nodes, "edges": written, "settings": settings})
    assert isinstance(graph, Graph), graph
    return [(remark.level, remark.node_id, remark.message) for remark in check(trigger, graph)]


UNREACHED = "cannot be reached from the trigger"


def test_a_valid_graph_has_no_diagnostics() -> None:
    assert remarks([T, TAG, EXIT], "t>tag", "tag>x") == []


def test_every_kind_of_node_and_every_setting_can_be_published() -> None:
    has_email = ("email", "exists", None)
    has_wallet = ("walletAddress", "exists", None)
    nodes = [T, condition("c", has_email, has_wallet), message("m"), WAIT, SPLIT, TAG, EXIT]
    nodes += [
        {"id": "e", "type": "send_email", "data": {"subject": "s", "body": "<p>{{ amount }}</p>"}},
        {"id": "h", "type": "send_webhook", "data": {"url": "https://a.co", "body": {"a": "{{ amount }}"}}},
        {"id": "u", "type": "update_contact", "data": {"attributes": {"tier": "{{ tier }}"}}},
        {"id": "r", "type": "remove_tag", "data": {"tag": "old"}},
        {"id": "d", "type": "delay", "data": {"seconds": 60}},
    ]
    edges = [
        "t>c",
        "c:true>m",
        "m>e",
        "e>h",
        "h>u",
        "u>r",
        "r>d",
        "d>w",
        "w:matched>s",
        "w:timeout>x",
        "s:a>tag",
        "s:b>x",
        "tag>x",
    ]
    assert remarks(nodes, *edges, settings=SETTINGS) == []


def test_an_empty_graph_is_refused() -> None:
    message = "the graph is empty: it needs a trigger node and at least one step"
    assert remarks([]) == [("error", None, message)]


def test_a_trigger_without_steps_is_refused() -> None:
    assert remarks([T]) == [("error", "t", "nothing follows the trigger")]


WITHOUT_TRIGGER = "starts the entries as the first node, because the graph has no trigger node"


def test_a_graph_without_trigger_starts_at_its_first_node() -> None:
    assert remarks([TAG, EXIT], "tag>x") == [("warning", "tag", WITHOUT_TRIGGER)]


def test_a_first_node_of_an_unknown_kind_needs_consent() -> None:
    odd = {"id": "u", "type": "teleport"}
    graph = read_graph({"nodes": [odd, TAG], "edges": [{"source": "u", "target": "tag"}]})
    assert isinstance(graph, Graph)
    [diagnostic] = check(PAID, graph)
    message = f"the node kind 'teleport' is unknown and will be dropped: the step only {WITHOUT_TRIGGER}"
    dropped = ("warning", "u", message)
    assert diagnostic == Diagnostic(*dropped[::2], "u", consent="accept_dropped")
    assert [(level, text.partition(";")[0]) for level, _, text in remarks([T, odd], "t>u")] == [
        ("error", "unknown node kind 'teleport'")
    ]
    assert remarks([odd]) == [("error", "u", "nothing follows the trigger"), dropped]
    no_branch = "does not branch: its edge has no sourceHandle, such as 'true'"
    assert remarks([odd, TAG], "u:true>tag") == [("error", "u", no_branch), dropped]


def test_the_trigger_should_come_first() -> None:
    assert remarks([TAG, T], "t>tag") == [("warning", "t", "should be the first node of the graph")]


def test_a_second_trigger_is_refused() -> None:
    second = T | {"id": "t2"}
    assert remarks([T, second, TAG], "t>tag", "t2>tag") == [
        ("error", "t2", "is a second trigger node: a graph has one"),
        ("error", "t2", UNREACHED),
    ]


def test_duplicate_ids_are_refused() -> None:
    assert remarks([T, TAG, TAG], "t>tag") == [("error", "tag", "has the same id as another node")]


@pytest.mark.parametrize(
    ("edge", "node_id", "message"),
    [
        ("tag>nowhere", "tag", "an edge leads to node 'nowhere', which does not exist"),
        ("nowhere>tag", "tag", "an edge starts at node 'nowhere', which does not exist"),
        ("nowhere>away", None, "an edge starts at node 'nowhere', which does not exist"),
        ("tag:true>x", "tag", "does not branch: its edge has no sourceHandle, such as 'true'"),
        ("t:a>x", "t", "does not branch: its edge has no sourceHandle, such as 'a'"),
        ("x>tag", "x", "ends the entry: no edge leaves it"),
        ("c>x", "c", "has an edge without sourceHandle: its branches are true and false"),
        ("c:maybe>x", "c", "has no branch 'maybe': its branches are true and false"),
        ("t>tag", "t", "has two edges from the same handle to 'tag'"),
        ("w>x", "w", "has an edge without sourceHandle: its branches are matched and timeout"),
        ("w:true>x", "w", "has no branch 'true': its branches are matched and timeout"),
        ("s:c>x", "s", "has no branch 'c': its branches are a and b"),
    ],
)
def test_edges_lead_from_a_handle_to_a_node(edge: str, node_id: str | None, message: str) -> None:
    nodes = [T, TAG, condition("c", ("a", "exists", None)), WAIT, SPLIT, EXIT]
    row = ["t>tag", "tag>c", "c:true>x", "c:false>w", "w:matched>s", "s:a>x"]
    loop = [("error", "x", "leads back to 'tag': a graph has no loops")] if edge == "x>tag" else []
    assert remarks(nodes, *row, edge) == [("error", node_id, message), *loop]


def test_a_condition_needs_at_least_one_connected_handle() -> None:
    nodes = [T, condition("c", ("a", "exists", None)), EXIT]
    assert remarks(nodes, "t>c", "c:false>x") == []
    assert remarks(nodes, "t>c") == [("error", "c", "connect true or false to a step"), ("error", "x", UNREACHED)]


@pytest.mark.parametrize(("node", "ways"), [(WAIT, "matched or timeout"), (SPLIT, "a or b")])
def test_every_branching_node_needs_an_edge(node: dict[str, Any], ways: str) -> None:
    diagnostics = remarks([T, node], f"t>{node['id']}")
    assert diagnostics == [("error", node["id"], f"connect {ways} to a step")]


def test_unreachable_nodes_are_refused() -> None:
    diagnostics = remarks([T, TAG, EXIT, message("m")], "t>tag", "m>x")
    assert diagnostics == [("error", "x", UNREACHED), ("error", "m", UNREACHED)]


@pytest.mark.parametrize(
    ("edges", "node_id", "target"),
    [
        (["t>tag", "tag>tag"], "tag", "tag"),
        (["t>tag", "tag>t"], "tag", "t"),
        (["t>tag", "tag>c", "c:true>tag", "c:false>x"], "c", "tag"),
        (["t>x", "tag>c", "c:true>tag"], "c", "tag"),
    ],
)
def test_loops_are_refused(edges: list[str], node_id: str, target: str) -> None:
    nodes = [T, TAG, condition("c", ("a", "exists", None)), EXIT]
    loops = [remark for remark in remarks(nodes, *edges) if "loops" in remark[2]]
    assert loops == [("error", node_id, f"leads back to {target!r}: a graph has no loops")]


def test_two_edges_to_one_node_are_not_a_loop() -> None:
    nodes = [T, condition("c", ("a", "exists", None)), TAG]
    assert remarks(nodes, "t>c", "c:true>tag", "c:false>tag") == []


def test_an_unknown_kind_and_an_invalid_template_are_refused_by_field() -> None:
    nodes = [T, message("m", title="{{ x", body="{% set a = 1 %}"), {"id": "u", "type": "teleport"}]
    graph = read_graph({"nodes": nodes, "edges": []})
    assert isinstance(graph, Graph)
    refused = {(remark.node_id, remark.field) for remark in errors(check(PAID, graph))}
    assert {
        ("m", "graph.nodes[1].data.title"),
        ("m", "graph.nodes[1].data.body"),
        ("u", "graph.nodes[2].type"),
    } <= refused


def test_a_wildcard_trigger_is_a_warning() -> None:
    message = "no event name: every custom event of the organization starts this automation"
    assert remarks([T, TAG], "t>tag", trigger=Trigger()) == [("warning", None, message)]


def test_an_invalid_event_name_is_a_warning() -> None:
    trigger = Trigger(frozenset({"first deposit", "paid"}))
    diagnostics = remarks([T, TAG], "t>tag", trigger=trigger)
    assert diagnostics == [("warning", None, "'first deposit' is not a valid event name")]


def test_an_unknown_operator_is_a_warning_at_its_node() -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter("amount", "gt", 5),))
    diagnostics = remarks([T, condition("c", ("a", "lt", 1)), EXIT], "t>c", "c:true>x", trigger=trigger)
    dropped = "is unknown and will be dropped; the operators are eq, neq, in, contains, exists"
    assert diagnostics == [
        ("warning", None, f"the operator 'gt' on 'amount' {dropped}"),
        ("warning", "c", f"the operator 'lt' on 'a' {dropped}"),
    ]


def test_an_unknown_operator_in_a_wait_or_goal_is_a_warning() -> None:
    odd = {"filters": [{"path": "a", "operator": "gt", "value": 1}]}
    nodes = [T, WAIT | {"data": WAIT["data"] | odd}, EXIT]
    diagnostics = remarks(nodes, "t>w", "w:matched>x", settings={"goal": {"event": "bought"} | odd})
    assert [diagnostic[:2] for diagnostic in diagnostics] == [("warning", None), ("warning", "w")]


def test_invalid_settings_refuse_publication() -> None:
    graph = read_graph(
        {"nodes": [T, TAG], "edges": [{"source": "t", "target": "tag"}], "settings": {"goals": {}, "goal": {}}}
    )
    assert isinstance(graph, Graph)
    assert [(remark.level, remark.field) for remark in check(PAID, graph)] == [
        ("error", "graph.settings.goals"),
        ("error", "graph.settings.goal.event"),
    ]


def test_a_condition_without_filters_is_a_warning() -> None:
    message = "has no filters: every contact follows true"
    assert remarks([T, condition("c"), EXIT], "t>c", "c:true>x") == [("warning", "c", message)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("payload.amount", "the trigger sees the keys of the payload directly: write 'amount', not 'payload.amount'"),
        ("contact.tier", "the trigger does not see the contact: test 'contact.tier' in a condition"),
        ("amount", None),
    ],
)
def test_a_path_outside_the_flat_context_is_a_warning_in_a_trigger(path: str, message: str | None) -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter(path, "eq", 5),))
    diagnostics = remarks([T, TAG], "t>tag", trigger=trigger)
    assert diagnostics == ([] if message is None else [("warning", None, message)])


def test_an_overridden_built_in_is_a_warning_where_it_is_used() -> None:
    nodes = [
        T,
        condition("c", ("email", "exists", None), ("walletAddress", "exists", None)),
        message("m", "Hi {{ payload.email }}", "{{ email }} {{ contact.email }}"),
    ]
    overridden = "'email' is the payload's key of that name if the event has one, not the built-in value"
    assert remarks(nodes, "t>c", "c:true>m") == [("warning", "c", overridden), ("warning", "m", overridden)]


def test_a_message_without_a_condition_on_the_wallet_is_a_warning() -> None:
    text = "fails for contacts without a wallet: test walletAddress in a condition before this step"
    assert remarks([T, message("m")], "t>m") == [("warning", "m", text)]


def test_an_email_without_a_condition_on_the_address_is_a_warning() -> None:
    email = {"id": "e", "type": "send_email", "data": {"subject": "s", "body": "b"}}
    text = "fails for contacts without an email address: test email in a condition before this step"
    assert remarks([T, email], "t>e") == [("warning", "e", text)]
    assert remarks([T, condition("c", ("email", "exists", None)), email], "t>c", "c:true>e") == []


@pytest.mark.parametrize("path", ["walletAddress", "contact.walletAddress"])
def test_a_condition_on_the_wallet_covers_only_its_true_branch(path: str) -> None:
    nodes = [T, condition("c", (path, "exists", None)), message("yes"), message("no")]
    diagnostics = remarks(nodes, "t>c", "c:true>yes", "c:false>no")
    assert [diagnostic[1] for diagnostic in diagnostics] == ["no"]


def test_a_wallet_filter_on_the_trigger_covers_the_whole_graph() -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter("walletAddress", "exists"),))
    assert remarks([T, message("m")], "t>m", trigger=trigger) == []


@pytest.mark.parametrize(("operator", "wallets"), [("eq", "So1ana"), ("in", ["So1ana", "vitalik.eth"])])
def test_a_message_to_wallets_that_can_never_sign_in_is_a_warning(operator: str, wallets: Any) -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter("walletAddress", operator, wallets),))
    text = "is undeliverable: only EVM wallets (0x…) can sign in, and its contacts have others"
    undeliverable = [("warning", "m", text)]
    assert remarks([T, message("m")], "t>m", trigger=trigger) == undeliverable
    nodes = [T, condition("c", ("contact.walletAddress", operator, wallets)), message("m"), TAG]
    assert remarks(nodes, "t>c", "c:true>m", "c:false>tag") == undeliverable
    assert text not in {remark[-1] for remark in remarks(nodes, "t>c", "c:true>tag", "c:false>m")}
    mixed = Trigger(frozenset({"paid"}), (Filter("walletAddress", "in", ["So1ana", evm_wallet("1")]),))
    assert remarks([T, message("m")], "t>m", trigger=mixed) == []


def test_errors_come_first_and_refuse_publication() -> None:
    graph = read_graph({"nodes": [TAG, T, T], "edges": []})
    assert isinstance(graph, Graph)
    levels = [remark.level for remark in check(Trigger(), graph)]
    assert levels == sorted(levels)
    assert {remark.level for remark in errors(check(Trigger(), graph))} == {"error"}
    assert str(Diagnostic("error", "is odd", "n")) == "n: is odd"


def test_ten_thousand_nodes_in_a_row_are_checked() -> None:
    nodes = (Node("0", "app_event", TriggerNode()), *(Node(str(n), "add_tag", AddTag("a")) for n in range(1, 10_000)))
    edges = tuple(Edge("", str(n), str(n + 1)) for n in range(9_999))
    assert check(PAID, Graph(nodes, edges)) == ()
    ring = check(PAID, Graph(nodes, (*edges, Edge("", "9999", "0"))))
    assert [(remark.level, remark.node_id) for remark in ring] == [("error", "9999")]


def test_an_adversarial_graph_is_checked_in_linear_time() -> None:
    same = tuple(Node("n", "exit", Exit()) for _ in range(10_000))
    loops = tuple(Edge("", "n", "n", handle) for handle in (None, "true") * 5_000)
    assert len(errors(check(PAID, Graph(same, loops)))) >= 20_000
    ladder = tuple(Node(str(n), "condition", Condition((Filter("a", "exists"),))) for n in range(2_000))
    rungs = tuple(Edge("", str(n), str(n + 1), handle) for n in range(1_999) for handle in ("true", "false"))
    end = (Node("end", "send_inapp", SendInapp("t", "b")), Edge("", "1999", "end", "true"))
    diagnostics = check(PAID, Graph((*ladder, end[0]), (*rungs, end[1])))
    assert [(remark.level, remark.node_id) for remark in diagnostics] == [("warning", "0"), ("warning", "end")]


def test_a_comparison_with_a_list_of_the_contact_is_a_warning() -> None:
    message = "contact.segments is a list: test whether it contains a value"
    for operator, value in (("eq", "whales"), ("neq", "whales"), ("in", ["whales"])):
        node = condition("c", ("contact.segments", operator, value))
        assert remarks([T, node, TAG], "t>c", "c:true>tag") == [("warning", "c", message)]
    for operator, value in (("contains", "whales"), ("eq", ["whales"]), ("exists", None)):
        node = condition("c", ("contact.tags", operator, value))
        assert remarks([T, node, TAG], "t>c", "c:true>tag") == []


def test_in_without_an_array_is_a_warning() -> None:
    trigger = Trigger(frozenset({"paid"}), (Filter("asset", "in", "USDC"),))
    message = "'in' on 'asset' needs an array of values: no event passes it"
    assert remarks([T, TAG], "t>tag", trigger=trigger) == [("warning", None, message)]
    nothing = Trigger(frozenset({"paid"}), (Filter("asset", "in", []),))
    message = "'in' on 'asset' has an empty array: no event passes it"
    assert remarks([T, TAG], "t>tag", trigger=nothing) == [("warning", None, message)]
    listed = Trigger(frozenset({"paid"}), (Filter("asset", "in", ["USDC"]),))
    assert remarks([T, TAG], "t>tag", trigger=listed) == []


@pytest.mark.parametrize(
    ("name", "trigger", "part"),
    [("refund", PAID, "starts on paid"), ("refund", Trigger(), "starts on every event"), ("Paid", PAID, None)],
)
def test_an_event_of_the_trigger_node_that_contradicts_the_trigger_is_a_warning(
    name: str, trigger: Trigger, part: str | None
) -> None:
    node = T | {"data": {"actionType": "app_event", "event": name}}
    named = [text for level, node_id, text in remarks([node, TAG], "t>tag", trigger=trigger) if node_id == "t"]
    assert named == (
        [] if part is None else [f"names the event {name!r}, but triggerSpec decides: the automation {part}"]
    )


def test_event_names_of_the_trigger_node_that_contradict_the_trigger_are_a_warning() -> None:
    node = T | {"data": {"event": "paid", "eventNames": ["Paid", "refund", 5, "", "refund", "deposit"]}}
    message = "names the event 'refund', 'deposit', but triggerSpec decides: the automation starts on paid"
    assert remarks([node, TAG], "t>tag", trigger=PAID) == [("warning", "t", message)]
    assert remarks([T | {"data": {"eventNames": "refund"}}, TAG], "t>tag", trigger=PAID) == []


GUARD = condition("c", ("contact.tags", "contains", "vip"))
LEVEL = condition("c", ("contact.level", "eq", 1))
SET_LEVEL: dict[str, Any] = {"id": "tag", "type": "update_contact", "data": {"attributes": {"level": 1}}}
TAG_LAST = ("t>c", "c:false>m", "m>w", "w:timeout>tag")


@pytest.mark.parametrize(
    ("nodes", "edges", "settings", "waiting"),
    [
        ([GUARD, WAIT, TAG], TAG_LAST, None, "'w'"),
        ([LEVEL, WAIT, SET_LEVEL], TAG_LAST, None, "'w'"),
        ([GUARD, WAIT, TAG], ("t>c", "c:false>tag", "tag>m", "m>w"), None, None),
        ([GUARD, TAG], ("t>c", "c:false>m", "m>tag"), None, None),
        ([GUARD, TAG], ("t>c", "c:false>m", "m>tag"), {"quietHours": SETTINGS["quietHours"]}, "'m'"),
        ([GUARD, WAIT, SET_LEVEL], TAG_LAST, None, None),
    ],
    ids=["tag", "attribute", "written before the wait", "no wait", "quiet hours", "another attribute"],
)
def test_a_guard_that_is_written_after_a_wait_is_reported(
    nodes: list[dict[str, Any]], edges: tuple[str, ...], settings: Any, waiting: str | None
) -> None:
    warnings = [remark[2] for remark in remarks([T, message("m"), *nodes], *edges, settings=settings)]
    path = "contact.level" if LEVEL in nodes else "contact.tags"
    guard = (
        f"{path} is written after {waiting}, which waits: until then, other entries of the contact pass this condition."
        " Write it before that step"
    )
    assert [warning for warning in warnings if "is written after" in warning] == [guard] * (waiting is not None)


def test_every_guard_before_a_wait_and_a_late_tag_is_reported() -> None:
    nodes, edges, last = [T, TAG], ["t>tag"], "tag"
    for number in range(450):
        nodes.append(condition(f"c{number}", ("contact.tags", "contains", "vip")))
        nodes.append({"id": f"d{number}", "type": "delay", "data": {"seconds": 60}})
        edges += [f"{last}>c{number}", f"c{number}:true>d{number}"]
        last = f"d{number}"
    assert remarks(nodes, *edges) == []
    nodes.append({**TAG, "id": "last"})
    assert [remark[1] for remark in remarks(nodes, *edges, f"{last}>last")] == [f"c{number}" for number in range(450)]
