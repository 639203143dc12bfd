"""Whole diagnostics of a check: level, text, node, field, and the consent that they need."""

from typing import Any

import pytest

from tests.language.test_check import EXIT, TAG, T, condition, message
from workbench.language.check import (
    CatalogFacts,
    ChainFacts,
    Diagnostic,
    Need,
    check,
    check_against,
    compares_attributes,
    context_paths,
    errors,
    unknown_topics,
    without_consent,
)
from workbench.language.codec import normalize
from workbench.language.graph import Graph, read_graph
from workbench.language.trigger import Trigger, read_trigger

CONTRACT = "0x" + "ab" * 20
LOGS = {
    "type": "onchain_event",
    "chainId": 5,
    "contract": CONTRACT,
    "signature": "Transfer(address from,address to,uint256 value)",
    "walletArg": "to",
}


def shape(nodes: list[dict[str, Any]], *edges: str, **settings: Any) -> Graph:
    written = []
    for edge in edges:
        source, _, target = edge.partition(">")
        name, _, handle = source.partition(":")
        written.append({"source": name, "target": target, "sourceHandle": handle or None})
    graph = read_graph(normalize({"nodes": nodes, "edges": written, "settings": settings or None}))
    assert isinstance(graph, Graph), graph
    return graph


def started(**spec: Any) -> Trigger:
    trigger = read_trigger({"type": "app_event"} | spec)
    assert isinstance(trigger, Trigger), trigger
    return trigger


def node(kind: str, **data: Any) -> dict[str, Any]:
    return {"id": "n", "type": kind, "data": data}


def warning(text: str, node_id: str | None = None, field: str | None = None, consent: Any = None) -> Diagnostic:
    return Diagnostic("warning", text, node_id, field, consent)


TAGGED = shape([T, TAG, EXIT], "t>tag", "tag>x")
PAID = started(event="paid")


@pytest.mark.parametrize(
    ("trigger", "graph", "expected"),
    [
        (PAID, TAGGED, []),
        (
            started(),
            TAGGED,
            [
                warning(
                    "no event name: every custom event of the organization starts this automation", field="triggerSpec"
                )
            ],
        ),
        (
            started(event=""),
            TAGGED,
            [
                warning(
                    "no event name: every custom event of the organization starts this automation",
                    field="triggerSpec",
                    consent="every_event",
                )
            ],
        ),
        (started(event="a b"), TAGGED, [warning("'a b' is not a valid event name", field="triggerSpec")]),
        (
            PAID,
            shape([T, TAG], "t>tag", holdout=10),
            [warning("set a goal so that the holdout has something to measure", field="graph.settings.holdout")],
        ),
        (PAID, shape([T, TAG], "t>tag", holdout=10, goal={"event": "bought"}), []),
        (
            PAID,
            shape([T, TAG], "t>tag", holdout=100),
            [Diagnostic("error", "must be a whole percentage from 1 to 50", field="graph.settings.holdout")],
        ),
        (
            PAID,
            shape([T, condition("c"), TAG], "t>c", "c:true>tag"),
            [warning("has no filters: every contact follows true", "c")],
        ),
        (
            PAID,
            shape([T, condition("c", ("a", "like", 1)), TAG], "t>c", "c:true>tag"),
            [
                warning(
                    "the operator 'like' on 'a' is unknown and will be dropped;"
                    " the operators are eq, neq, in, contains, exists",
                    "c",
                    consent="accept_dropped",
                )
            ],
        ),
        (
            started(event="paid", filters=[{"path": "a", "operator": "in", "value": []}]),
            TAGGED,
            [warning("'in' on 'a' has an empty array: no event passes it", field="triggerSpec.filters")],
        ),
        (
            PAID,
            shape([T, TAG], "t>tag", goal={"event": "b", "filters": [{"path": "a", "operator": "in", "value": 5}]}),
            [warning("'in' on 'a' needs an array of values: no event passes it", field="graph.settings.goal.filters")],
        ),
        (
            started(event="paid", where="payload.a > 1 and contact.b > 2"),
            TAGGED,
            [
                warning(
                    "the trigger does not see the contact: test 'contact.b' in a condition", field="triggerSpec.where"
                ),
                warning(
                    "the trigger sees the keys of the payload directly: write 'a', not 'payload.a'",
                    field="triggerSpec.where",
                ),
            ],
        ),
        *(
            (
                PAID,
                shape([T, condition("c", (path, operator, value)), TAG], "t>c", "c:true>tag"),
                [warning(f"{path} is a list: test whether it contains a value", "c")],
            )
            for path, operator, value in [
                ("contact.tags", "eq", "vip"),
                ("contact.segments", "neq", "vip"),
                ("contact.tags", "in", ["vip", 5]),
            ]
        ),
        (PAID, shape([T, condition("c", ("contact.tags", "eq", 5)), TAG], "t>c", "c:true>tag"), []),
        (
            PAID,
            shape(
                [
                    T,
                    node("add_tag", tag="a"),
                    condition("c", ("payload.email", "exists", 1), ("email", "exists", 1)),
                    TAG,
                ],
                "t>n",
                "n>c",
                "c:true>tag",
            ),
            [warning("'email' is the payload's key of that name if the event has one, not the built-in value", "c")],
        ),
        (
            started(type="segment_entered", segment="vip", where="amount > 1"),
            TAGGED,
            [
                warning(
                    "'amount' is always missing: the payload of segment_entered has only segment",
                    field="triggerSpec.where",
                )
            ],
        ),
        (started(type="segment_entered", segment="vip", where="segment == 'vip'"), TAGGED, []),
        (
            started(type="segment_entered", segment="vip"),
            shape([T, node("collect", seconds=60), EXIT], "t>n", "n>x"),
            [
                Diagnostic(
                    "error",
                    "collects events, but a segment_entered starts this automation: an app_event must start it",
                    "n",
                    "graph.nodes[1].type",
                )
            ],
        ),
        (
            PAID,
            shape([T, condition("c", ("events", "exists", 1)), TAG], "t>c", "c:true>tag"),
            [
                warning(
                    "reads 'events', which is a value of the event: no step before it on every way collects events", "c"
                )
            ],
        ),
        (
            PAID,
            shape(
                [T, condition("c", ("events.x", "exists", 1)), node("collect", seconds=60), TAG],
                "t>c",
                "c:true>n",
                "n>tag",
            ),
            [
                warning(
                    "reads 'events', which has only the event that started the entry: no step before it on every way"
                    " collects events",
                    "c",
                )
            ],
        ),
        (
            PAID,
            shape(
                [T, node("collect", seconds=60), condition("c", ("events", "exists", 1)), TAG],
                "t>n",
                "n>c",
                "c:true>tag",
            ),
            [],
        ),
    ],
    ids=[
        "no fault",
        "any event",
        "empty event name",
        "invalid event name",
        "holdout without goal",
        "holdout with goal",
        "holdout too large",
        "condition without filters",
        "unknown operator",
        "empty array",
        "no array",
        "contact in a trigger",
        "tags equal",
        "segments differ",
        "tags in",
        "tag of another type",
        "built-in name in the payload",
        "payload of a segment",
        "field of a segment",
        "collect after a segment",
        "events without collect",
        "events before collect",
        "events after collect",
    ],
)
def test_each_fault_has_its_diagnostic(trigger: Trigger, graph: Graph, expected: list[Diagnostic]) -> None:
    assert list(check(trigger, graph)) == expected


def test_a_message_that_confirms_a_topic_has_the_link_in_every_locale() -> None:
    text = {"subject": "Hi", "body": "Hi", "confirms": "news", "locales": {"de": {"subject": "Hi", "body": "Hi"}}}
    graph = shape([T, condition("c", ("email", "exists", 1)), node("send_email", **text)], "t>c", "c:true>n")
    reason = "must have the link {{ confirm_url }}, which confirms the topic 'news'"
    assert errors(check(PAID, graph)) == (
        Diagnostic("error", reason, "n", "body"),
        Diagnostic("error", reason, "n", "locales.de.body"),
    )


def test_unknown_topics_are_errors_at_their_field() -> None:
    graph = shape([T, node("send_email", subject="Hi", body="Hi", topic="newz")], "t>n")
    assert [*unknown_topics(graph, ["news"])] == [
        Diagnostic("error", "unknown topic 'newz'; did you mean 'news'?", "n", "topic")
    ]
    assert [*unknown_topics(graph, [])] == [
        Diagnostic("error", "unknown topic 'newz': save it first (wb.topics.save)", "n", "topic")
    ]
    assert [*unknown_topics(graph, ["newz"])] == []


def test_consent_is_asked_for_until_it_is_given() -> None:
    asks, other = warning("a", consent="every_event"), warning("b", consent="accept_dropped")
    assert [*without_consent([asks, warning("c"), other], ["every_event"])] == [(other, "accept_dropped")]


@pytest.mark.parametrize(
    ("written", "paths"),
    [
        (condition("n", ("a", "exists", 1), ("contact.b", "exists", 1)), {"a", "contact.b"}),
        (node("wait_until", attribute="contact.ends", time="09:00"), {"contact.ends"}),
        (node("collect", seconds=60, key="payload.order.id"), {"payload.order.id"}),
        (message("n", "{{ a }}", "{{ contact.b | default(c) }}"), {"a", "contact.b", "c"}),
        (node("wait_for_event", event="b", timeoutSeconds=60, where="a > 1"), set()),
        (node("exit"), set()),
    ],
)
def test_the_paths_that_a_node_reads(written: dict[str, Any], paths: set[str]) -> None:
    assert context_paths(shape([T, written], "t>n").by_id["n"]) == paths


@pytest.mark.parametrize(
    ("where", "compares"),
    [("contact.age > 3", True), ("age > 3", False), ("contact.age", True), ("1 > contact.a", True)],
)
def test_whether_an_expression_compares_an_attribute(where: str, compares: bool) -> None:
    graph = shape([T, node("condition", where=where), TAG], "t>n", "n:true>tag")
    assert compares_attributes(PAID, graph) is compares
    assert compares_attributes(PAID, TAGGED) is False


INAPP = [T, message("m"), EXIT]


@pytest.mark.parametrize(
    ("catalog", "trigger", "nodes", "expected"),
    [
        (
            CatalogFacts(("bought",), {}),
            PAID,
            [T, TAG],
            [warning("no event 'paid' was received in the last 30 days", field="triggerSpec")],
        ),
        (
            CatalogFacts(("paid",), {"paid": frozenset({"email", "plan.name"})}),
            started(event="paid", filters=[{"path": "email", "operator": "exists"}]),
            [T, condition("c", ("email", "exists", 1), ("plan", "exists", 1))],
            [
                warning(
                    "'email' is a key of paid's payload, which hides the built-in value", field="triggerSpec.filters"
                ),
                warning("'email' is a key of paid's payload, which hides the built-in value", "c"),
            ],
        ),
        (
            CatalogFacts(("paid",), {}, undeliverable={"paid": (1_200, 5_000)}),
            PAID,
            INAPP,
            [
                warning(
                    "is undeliverable to the wallets of 1,200 of the newest 5,000 events 'paid':"
                    " only EVM wallets (0x…) can sign in",
                    "m",
                )
            ],
        ),
        (
            CatalogFacts(("paid",), {}, undeliverable={"": (2, 3), "paid": (1, 1)}),
            started(),
            INAPP,
            [
                warning(
                    "is undeliverable to the wallets of 2 of the newest 3 events: only EVM wallets (0x…) can sign in",
                    "m",
                )
            ],
        ),
        (CatalogFacts(("paid",), {}, undeliverable={"paid": (0, 3)}), PAID, INAPP, []),
        (
            CatalogFacts(("paid",), {}, segments=("vip",)),
            PAID,
            [T, condition("c", ("contact.segments", "contains", "vib"), ("contact.tags", "contains", "vib"))],
            [warning("unknown segment 'vib'; did you mean 'vip'?", "c")],
        ),
        (
            CatalogFacts((), {}, segments=()),
            started(type="segment_left", segment="vip"),
            [T, TAG],
            [warning("unknown segment 'vip': no contact is in it", field="triggerSpec.segment")],
        ),
        (
            CatalogFacts((), {}, chain=ChainFacts(frozenset({1}), frozenset())),
            started(**LOGS),
            [T, node("wait_for_event", event=f"{CONTRACT}:Other", timeoutSeconds=60), TAG],
            [
                warning(
                    "chain 5 is not followed: add one of its nodes to WORKBENCH_EVM_RPC", field="triggerSpec.chainId"
                ),
                warning(
                    f"no log {CONTRACT}:other is stored: start an automation from it, or run `workbench chain watch`",
                    "n",
                ),
            ],
        ),
        (
            CatalogFacts((), {}, chain=ChainFacts(frozenset({5}), frozenset())),
            started(**LOGS),
            [T, node("wait_for_event", event=f"{CONTRACT}:Transfer", timeoutSeconds=60), TAG],
            [],
        ),
    ],
    ids=[
        "unknown event",
        "hidden built-in value",
        "undeliverable",
        "undeliverable of any event",
        "all deliverable",
        "unknown segment in a condition",
        "unknown segment in a trigger",
        "unknown chain and log",
        "known chain and log",
    ],
)
def test_each_contradiction_with_the_catalog_has_its_diagnostic(
    catalog: CatalogFacts, trigger: Trigger, nodes: list[dict[str, Any]], expected: list[Diagnostic]
) -> None:
    assert [*check_against(catalog, trigger, shape(nodes))] == expected


@pytest.mark.parametrize(
    ("spec", "is_sample", "contacts"),
    [
        ({"event": "paid"}, False, "contacts of the newest events"),
        ({"type": "segment_left", "segment": "vip"}, False, "contacts of the segment 'vip'"),
        ({"type": "segment_left", "segment": "vip"}, True, "newest contacts of the segment 'vip', a sample"),
        ({"type": "schedule", "cron": "0 9 * * *"}, False, "contacts of the organization"),
    ],
)
def test_contacts_that_lack_a_value_are_those_that_the_trigger_reaches(
    spec: dict[str, Any], is_sample: bool, contacts: str
) -> None:
    need = Need("m", "contact.name", ())
    catalog = CatalogFacts(("paid",), {}, missing={need: {None: (3, 1_000)}}, is_sample=is_sample)
    graph = shape([T, message("m", "Hi", "{{ contact.name }}"), EXIT], "t>m", "m>x")
    found = [item for item in check_against(catalog, started(**spec), graph) if item.node_id == "m"]
    assert found == [warning(f"fails for 3 of the 1,000 {contacts}: contact.name is missing", "m")]


SIX = {tag: (0, number) for number, tag in enumerate(("ab", "cd", "ef", "gh", "ij", "kl"), 1)}
SET_DEFAULT = "; set defaultLocale if that is their locale"


@pytest.mark.parametrize(
    ("default", "counts", "contacts", "locales", "hint"),
    [
        (None, {"fr": (0, 5), "de": (0, 2), "nonsense!": (0, 1), None: (0, 9)}, "5 of the 17", "fr (5)", SET_DEFAULT),
        ("en", {"fr": (0, 5), "en": (0, 2)}, "5 of the 7", "fr (5)", ""),
        ("en", SIX, "21 of the 21", "kl (6), ij (5), gh (4), ef (3), cd (2), 1 more", ""),
        (None, {"de": (0, 5)}, "", "", ""),
    ],
    ids=["no default", "default", "many", "all have texts"],
)
def test_contacts_whose_locale_has_no_texts(
    default: str | None, counts: Any, contacts: str, locales: str, hint: str
) -> None:
    texts = {"de": {"subject": "s", "body": "b"}}
    nodes = [T, node("send_email", subject="s", body="b", locales=texts), EXIT]
    graph = shape(nodes, "t>n", "n>x", defaultLocale=default)
    catalog = CatalogFacts(("paid",), {}, missing={Need("n", "", ()): counts})
    found = [item for item in check_against(catalog, started(event="paid"), graph) if item.node_id == "n"]
    text = f"has no texts in the locales of {contacts} contacts of the newest events: {locales}."
    assert found == ([warning(f"{text} They get the default texts{hint}", "n")] if locales else [])


def test_a_diagnostic_is_printed_with_its_node() -> None:
    assert [str(warning("text")), str(warning("text", "n"))] == ["text", "n: text"]
