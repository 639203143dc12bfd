"""A fault hides no other one, and looks like no other one; each has its node or its field."""

from typing import Any

import pytest

from tests.inapp.wallet import evm_wallet
from tests.language.test_check import EXIT, TAG, WAIT, T, condition, message
from tests.language.test_check_diagnostics import LOGS, PAID, shape, started, warning
from workbench.language.check import CatalogFacts, Diagnostic, Need, check, check_against, needs_of
from workbench.language.trigger import Trigger

ANY = ("a", "exists", 1)
BRANCHES = [{"handle": "a", "percent": 50}, {"handle": "b", "percent": 30}, {"handle": "c", "percent": 20}]
SPLIT = {"id": "s", "type": "split", "data": {"branches": BRANCHES}}
EMAIL: dict[str, Any] = {"id": "e", "type": "send_email", "data": {"subject": "s", "body": "b"}}
CONFIRMING = {"subject": "s", "body": "{{ confirm_url }}", "confirms": "news"}
COLLECT = {"id": "k", "type": "collect", "data": {"seconds": 60}}
DATE = {"id": "d", "type": "wait_until", "data": {"attribute": "ends", "time": "09:00"}}
NO_WALLET = "fails for contacts without a wallet: test walletAddress in a condition before this step"
NO_ADDRESS = "fails for contacts without an email address: test email in a condition before this step"
NO_LIST = "contact.tags is a list: test whether it contains a value"
UNREACHED = "cannot be reached from the trigger"


def error(text: str, node_id: str | None = None, field: str | None = None) -> Diagnostic:
    return Diagnostic("error", text, node_id, field)


def where(name: str, text: str) -> dict[str, Any]:
    return {"id": name, "type": "condition", "data": {"where": text}}


def written(path: str, waiting: str) -> str:
    return (
        f"{path} is written after {waiting!r}, which waits: until then, other entries of the contact pass this"
        " condition. Write it before that step"
    )


@pytest.mark.parametrize(
    ("nodes", "edges", "expected"),
    [
        (
            [EXIT, TAG],
            ("x>tag",),
            [
                error("ends the entry: no edge leaves it", "x"),
                warning("starts the entries as the first node, because the graph has no trigger node", "x"),
            ],
        ),
        (
            [T, TAG, EXIT],
            ("nowhere>away", "t>tag", "tag>gone"),
            [
                error("an edge starts at node 'nowhere', which does not exist"),
                error("an edge leads to node 'gone', which does not exist", "tag"),
                error(UNREACHED, "x"),
            ],
        ),
        (
            [T, SPLIT, TAG],
            ("t>s", "s:d>tag"),
            [error("has no branch 'd': its branches are a, b and c", "s"), error("connect a, b or c to a step", "s")],
        ),
        (
            [T, {"id": "u", "type": "add_tag", "data": {"tag": 5}}, condition("c", ANY)],
            ("t>u", "u>c"),
            [
                error("must be 1 to 64 characters", "u", "graph.nodes[1].data.tag"),
                error("connect true or false to a step", "c"),
            ],
        ),
        (
            [T, DATE, TAG, EXIT],
            ("t>d", "d:reached>tag", "d:missed>tag", "tag>x"),
            [warning("contacts that have no date or a past date reach 'tag', too", "d")],
        ),
        ([T, DATE, TAG, EXIT], ("t>d", "d:reached>tag", "d:missed>x"), []),
        (
            [T, WAIT, TAG, EXIT],
            ("t>w", "t>gone", "t>tag", "w:timeout>x"),
            [
                error("an edge leads to node 'gone', which does not exist", "t"),
                error(UNREACHED, "tag"),
                warning("begins after 'w', which waits: draw its edge first if it should not wait", "tag"),
            ],
        ),
        ([T, condition("c", ("contact.tags", "in", ["vip"])), TAG], ("t>c", "c:true>tag"), [warning(NO_LIST, "c")]),
        (
            [T, condition("c", ("contact.tags", "contains", "a"), ("contact.tags", "eq", "b")), TAG],
            ("t>c", "c:true>tag"),
            [warning(NO_LIST, "c")],
        ),
        (
            [T, condition("c", ("a", "in", [])), TAG],
            ("t>c", "c:true>tag"),
            [warning("'in' on 'a' has an empty array: no event passes it", "c")],
        ),
        (
            [T, where("c", "1 == 'a'"), TAG],
            ("t>c", "c:true>tag"),
            [warning("compares a number with a text: this never holds", "c")],
        ),
        ([T, condition("c", ("walletAddress", "eq", evm_wallet("1" * 40))), message("m")], ("t>c", "c:true>m"), []),
        ([T, condition("c", ("order id", "exists", 1)), TAG], ("t>c", "c:true>tag"), []),
        (
            [COLLECT, condition("c", ("events", "exists", 1)), TAG],
            ("k>c", "c:true>tag"),
            [warning("starts the entries as the first node, because the graph has no trigger node", "k")],
        ),
    ],
    ids=[
        "first node",
        "edges from and to nowhere",
        "three branches",
        "unknown node",
        "one way after a date",
        "two ways after a date",
        "branch to nowhere",
        "tags in",
        "second filter",
        "empty array",
        "constants",
        "deliverable wallet",
        "key that is no name",
        "collect as the first node",
    ],
)
def test_each_fault_of_a_graph(nodes: list[dict[str, Any]], edges: tuple[str, ...], expected: list[Diagnostic]) -> None:
    assert [*check(PAID, shape(nodes, *edges))] == expected


@pytest.mark.parametrize(
    ("guard", "last", "expected"),
    [
        (condition("c", ("contact.tags", "contains", "vip")), TAG, [written("contact.tags", "w")]),
        (condition("c", ("contact.tags", "contains", ["vip"])), TAG, [written("contact.tags", "w")]),
        (condition("c", ("plan", "eq", "vip")), TAG, []),
        (where("c", "plan == 'vip'"), TAG, []),
        (
            condition("c", ("contact.tier.level", "exists", 1)),
            {"id": "tag", "type": "update_contact", "data": {"attributes": {"tier": 1}}},
            [written("contact.tier.level", "w")],
        ),
    ],
    ids=["tag", "one of tags", "another path", "another path in an expression", "part of an attribute"],
)
def test_a_guard_is_on_what_is_written_later(guard: dict[str, Any], last: dict[str, Any], expected: list[str]) -> None:
    graph = shape([T, guard, WAIT, last], "t>c", "c:true>w", "w:timeout>tag")
    assert [*check(PAID, graph)] == [warning(text, "c") for text in expected]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"filters": [{"path": "a.b", "operator": "exists"}]}, []),
        (
            {"filters": [{"path": "payload.a.b", "operator": "exists"}]},
            [
                warning(
                    "the trigger sees the keys of the payload directly: write 'a.b', not 'payload.a.b'",
                    field="triggerSpec.filters",
                )
            ],
        ),
        (
            {"filters": [{"path": "a", "operator": "gt", "value": 1}]},
            [
                warning(
                    "the operator 'gt' on 'a' is unknown and will be dropped;"
                    " the operators are eq, neq, in, contains, exists",
                    field="triggerSpec.filters",
                    consent="accept_dropped",
                )
            ],
        ),
        ({"type": "segment_entered", "segment": "vip", "where": "segment.name == 'a'"}, []),
        (LOGS, [warning(NO_ADDRESS, "e")]),
    ],
    ids=["dots", "dots in the payload", "unknown operator", "in a segment", "logs have a wallet"],
)
def test_each_fault_of_a_trigger(spec: dict[str, Any], expected: list[Diagnostic]) -> None:
    nodes = [T, message("m"), EMAIL] if spec is LOGS else [T, TAG, EXIT]
    first, second, third = (node["id"] for node in nodes)
    graph = shape(nodes, f"{first}>{second}", f"{second}>{third}")
    assert [*check(started(**{"event": "paid"} | spec), graph)] == expected


def test_the_events_that_start_an_automation_are_listed() -> None:
    named = T | {"data": {"event": "refund"}}
    text = "names the event 'refund', but triggerSpec decides: the automation starts on bought, paid"
    graph = shape([named, TAG], "t>tag")
    assert [*check(started(eventNames=["paid", "bought"]), graph)] == [warning(text, "t")]


def test_a_fault_of_a_filter_is_reported_beside_an_expression() -> None:
    trigger = started(event="paid", where="email == 'a@b.co'")
    read = condition("c", ("payload.email", "exists", 1), ("b", "lt", 1))
    graph = shape([T, read, TAG], "t>c", "c:true>tag", goal={"event": "bought", "where": "1 == 'a'"})
    assert [*check(trigger, graph)] == [
        warning(
            "the operator 'lt' on 'b' is unknown and will be dropped; the operators are eq, neq, in, contains, exists",
            "c",
            consent="accept_dropped",
        ),
        warning("compares a number with a text: this never holds", field="graph.settings.goal.where"),
        warning(
            "'email' is the payload's key of that name if the event has one, not the built-in value",
            field="triggerSpec.filters",
        ),
    ]


SEEN = CatalogFacts(
    ("bought", "paid"),
    {name: frozenset({"total"}) for name in ("paid", "a", "b", "c")},
    types={"paid": {"total": {"string", "boolean"}}},
    attributes={"age": {"date"}},
)


@pytest.mark.parametrize(
    ("trigger", "nodes", "settings", "expected"),
    [
        (
            PAID,
            [T, where("c", "payload.total > 1"), where("d", "1 == 'a'")],
            {},
            [warning("compares 'payload.total' (true or false or a text) with a number: this never holds", "c")],
        ),
        (
            PAID,
            [T, where("c", "contact.age > 1")],
            {},
            [warning("compares 'contact.age' (a date) with a number: this never holds", "c")],
        ),
        (started(event="paid", where="payload.x > 1"), [T, TAG], {}, []),
        (PAID, [T, EMAIL | {"data": CONFIRMING}], {}, []),
        (
            PAID,
            [T, condition("c", ("z", "exists", 1))],
            {"goal": {"event": "bought", "filters": [{"path": "payload.a", "operator": "exists"}]}},
            [warning("'z' was never seen in paid; wb.catalog[\"paid\"] shows its properties", "c")],
        ),
        (
            PAID,
            [T, TAG],
            {"goal": {"event": "paid", "filters": [{"path": "payload.totals", "operator": "exists"}]}},
            [warning("'totals' was never seen in paid: did you mean 'total'?", field="graph.settings.goal.filters")],
        ),
        (
            PAID,
            [
                T,
                COLLECT,
                condition(
                    "c",
                    ("contact", "exists", 1),
                    ("events", "exists", 1),
                    ("events.0.x", "exists", 1),
                    ("z", "exists", 1),
                ),
            ],
            {},
            [warning("'z' was never seen in paid; wb.catalog[\"paid\"] shows its properties", "c")],
        ),
        (
            PAID,
            [T, condition("c", ("events", "exists", 1))],
            {},
            [warning("'events' was never seen in paid; wb.catalog[\"paid\"] shows its properties", "c")],
        ),
        (
            started(eventNames=["a", "b", "c"], where="z > 1"),
            [T, TAG],
            {},
            [
                *(
                    warning(f"no event {name!r} was received in the last 30 days", field="triggerSpec")
                    for name in "abc"
                ),
                warning(
                    "'z' was never seen in a, b or c; wb.catalog[\"a\"] shows its properties", field="triggerSpec.where"
                ),
            ],
        ),
    ],
    ids=[
        "two types",
        "attribute",
        "payload in a trigger",
        "link in a text",
        "an event that was not examined",
        "payload in a goal",
        "collected events",
        "events without collect",
        "three events",
    ],
)
def test_each_contradiction_with_the_catalog(
    trigger: Trigger, nodes: list[dict[str, Any]], settings: Any, expected: list[Diagnostic]
) -> None:
    assert [*check_against(SEEN, trigger, shape(nodes, **settings))] == expected


def test_what_messages_need_on_each_branch() -> None:
    vip = condition("c", ("contact.segments", "contains", "vip"), ("email", "exists", 1))
    nodes = [T, vip, EMAIL | {"data": CONFIRMING}, EMAIL | {"id": "other", "data": CONFIRMING}]
    assert needs_of(PAID, shape(nodes, "t>c", "c:true>e", "c:false>other")) == (Need("other", "email"),)
    local = EMAIL | {"data": CONFIRMING | {"locales": {"de": {"subject": "s", "body": "{{ confirm_url }}"}}}}
    assert needs_of(PAID, shape([T, vip, local], "t>c", "c:true>e")) == (Need("e", "", ("vip",)),)


def test_a_start_without_an_event_has_values_of_the_contact() -> None:
    hook = {
        "id": "h",
        "type": "send_webhook",
        "data": {"url": "https://a.example", "body": "{{ a }} {{ contact.name }}"},
    }
    trigger = started(type="schedule", cron="0 9 * * *")
    graph = shape([T, hook], "t>h")
    assert needs_of(trigger, graph) == (Need("h", "contact.name"),)
    catalog = CatalogFacts(missing={Need("h", "contact.name"): {None: (9, 9)}})
    assert [*check_against(catalog, trigger, graph)] == [
        warning("fails for 9 of the 9 contacts of the organization: contact.name is missing", "h")
    ]


def test_an_attribute_is_no_key_of_the_payload() -> None:
    hook = {"id": "h", "type": "send_webhook", "data": {"url": "https://a.example", "body": "{{ contact.name }}"}}
    graph = shape([T, condition("c", ("payload.contact.name", "exists", 1)), hook], "t>c", "c:true>h")
    assert needs_of(PAID, graph) == (Need("h", "contact.name"),)
