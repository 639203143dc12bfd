"""A check against the catalog reports unknown names and suggests the nearest one."""

from typing import Any

import msgspec
import pytest

from workbench.language.check import (
    CatalogFacts,
    ChainFacts,
    Need,
    check_against,
    events_of,
    needs_of,
    segments_of,
    uses_chain,
)
from workbench.language.codec import normalize
from workbench.language.filter import Filter
from workbench.language.graph import Graph, read_graph
from workbench.language.trigger import Trigger, read_trigger

SEEN = CatalogFacts(
    ("deposit", "purchase", "trade"),
    {"deposit": frozenset({"amountUsd", "order.total", "items"}), "purchase": frozenset({"plan"})},
)


def exists(path: str) -> list[dict[str, Any]]:
    return [{"path": path, "operator": "exists"}]


def graph(*nodes: dict[str, Any], **settings: Any) -> Graph:
    numbered = [node | {"id": str(number)} for number, node in enumerate(nodes)]
    parsed = read_graph(normalize({"nodes": numbered, "edges": [], "settings": settings or None}))
    assert isinstance(parsed, Graph), parsed
    return parsed


def warnings(trigger: Trigger, shape: Graph, catalog: CatalogFacts = SEEN) -> list[tuple[str | None, str | None, str]]:
    remarks = [*check_against(catalog, trigger, shape)]
    assert {remark.level for remark in remarks} <= {"warning"}
    return [(remark.node_id, remark.field, remark.message) for remark in remarks]


def trigger(name: str = "deposit", *paths: str) -> Trigger:
    return Trigger(frozenset({name}), tuple(Filter(path, "exists") for path in paths))


WAIT = {"type": "wait_for_event", "data": {"event": "purchas", "timeoutSeconds": 1}}


def test_an_event_that_was_never_received_is_reported_with_the_nearest_name() -> None:
    hint = "was received in the last 30 days; did you mean"
    assert warnings(trigger("deposits"), graph(WAIT, goal={"event": "trades"})) == [
        (None, "triggerSpec", f"no event 'deposits' {hint} 'deposit'?"),
        (None, "graph.settings.goal", f"no event 'trades' {hint} 'trade'?"),
        ("0", None, f"no event 'purchas' {hint} 'purchase'?"),
    ]
    assert warnings(trigger("zzz"), graph()) == [
        (None, "triggerSpec", "no event 'zzz' was received in the last 30 days")
    ]


@pytest.mark.parametrize(
    "path",
    [
        "amountUsd",
        "order.total",
        "order",
        "items.0.name",
        "email",
        "walletAddress",
        "event",
        "payload",
        "contact.plan",
        "payload.amountUsd",
    ],
)
def test_observed_and_built_in_names_are_not_reported(path: str) -> None:
    nodes = [
        {"type": "condition", "data": {"filters": exists(path)}},
        {"type": "send_inapp", "data": {"title": "t", "body": f"{{{{ {path} }}}}"}},
    ]
    assert warnings(trigger(), graph(*nodes)) == []


def test_a_property_that_was_never_sent_is_reported_with_the_nearest_path() -> None:
    message = "'amountUSD' was never seen in deposit: did you mean 'amountUsd'?"
    nodes: list[dict[str, Any]] = [
        {"type": "condition", "data": {"filters": exists("payload.amountUSD")}},
        {"type": "send_email", "data": {"subject": "{{ amountUSD }}", "body": "{{ contact.x }}"}},
        {"type": "update_contact", "data": {"attributes": {"a": "{{ amountUSD }}"}}},
        {"type": "send_webhook", "data": {"url": "https://a.co", "body": {"a": ["{{ amountUSD }}"]}}},
    ]
    assert warnings(trigger("deposit", "amountUSD"), graph(*nodes)) == [
        (None, "triggerSpec.filters", message),
        *((str(number), None, message) for number in range(4)),
    ]
    assert warnings(trigger("deposit", "qqq"), graph()) == [
        (None, "triggerSpec.filters", "'qqq' was never seen in deposit; wb.catalog[\"deposit\"] shows its properties")
    ]


def test_waits_and_goals_are_checked_against_their_own_event() -> None:
    wait = {
        "type": "wait_for_event",
        "data": {"event": "purchase", "timeoutSeconds": 1, "filters": exists("amountUsd") + exists("plan")},
    }
    goal = {"event": "purchase", "filters": exists("plann")}
    assert warnings(trigger(), graph(wait, goal=goal)) == [
        (None, "graph.settings.goal.filters", "'plann' was never seen in purchase: did you mean 'plan'?"),
        ("0", None, "'amountUsd' was never seen in purchase; wb.catalog[\"purchase\"] shows its properties"),
    ]


@pytest.mark.parametrize(
    "start", [Trigger(filters=(Filter("x", "exists"),)), trigger("trade", "x")], ids=["a wildcard", "not looked into"]
)
def test_properties_of_events_that_were_not_examined_are_not_reported(start: Trigger) -> None:
    assert warnings(start, graph()) == []


def test_several_events_have_the_paths_of_each() -> None:
    both = Trigger(
        frozenset({"deposit", "purchase"}),
        (Filter("plan", "exists"), Filter("amountUsd", "exists"), Filter("x", "exists")),
    )
    assert [message for _, _, message in warnings(both, graph())] == [
        "'x' was never seen in deposit or purchase; wb.catalog[\"deposit\"] shows its properties"
    ]


def test_a_payload_key_that_hides_a_built_in_is_reported_where_it_is_used() -> None:
    catalog = CatalogFacts(("deposit",), {"deposit": frozenset({"email", "event.id"})})
    nodes = [{"type": "send_inapp", "data": {"title": "{{ email }}", "body": "{{ contact.email }} {{ event }}"}}]
    message = "'email' is a key of deposit's payload, which hides the built-in value"
    assert warnings(trigger("deposit", "email"), graph(*nodes), catalog) == [
        (None, "triggerSpec.filters", message),
        ("0", None, message),
        ("0", None, message.replace("email", "event")),
    ]


def test_events_of_returns_every_name_once() -> None:
    assert events_of(trigger(), graph(WAIT, WAIT, goal={"event": "deposit"})) == ("deposit", "purchas")


def segment_condition(name: object, operator: str = "contains") -> dict[str, Any]:
    filters = [{"path": "contact.segments", "operator": operator, "value": name}]
    return {"type": "condition", "data": {"filters": filters}}


def test_an_undefined_segment_is_reported_with_the_nearest_name() -> None:
    catalog = msgspec.structs.replace(SEEN, segments=("whales",))
    shape = graph(segment_condition("wales"), segment_condition("whales"), segment_condition("x"), segment_condition(5))
    assert warnings(trigger(), shape, catalog) == [
        ("0", None, "unknown segment 'wales'; did you mean 'whales'?"),
        ("2", None, "unknown segment 'x': no contact is in it"),
    ]
    assert warnings(trigger(), shape) == []  # without a catalog any segment may exist
    assert segments_of(trigger(), shape) == ("wales", "whales", "x")


TOKEN = f"0x{'c0' * 20}"


def on_chain(chain_id: int = 1) -> Trigger:
    spec = {
        "type": "onchain_event",
        "chainId": chain_id,
        "contract": TOKEN,
        "signature": "A(address to)",
        "walletArg": "to",
    }
    parsed = read_trigger(spec)
    assert isinstance(parsed, Trigger)
    return parsed


def test_chains_that_are_not_followed_and_logs_that_are_not_stored_are_reported() -> None:
    waits = graph(
        {"type": "wait_for_event", "data": {"event": f"{TOKEN}:B", "timeoutSeconds": 1}}, goal={"event": f"{TOKEN}:A"}
    )
    assert uses_chain(trigger(), waits)
    assert not uses_chain(trigger(), graph(WAIT))
    catalog = CatalogFacts(("deposit",), chain=ChainFacts(frozenset({1}), frozenset()))
    assert [(node, field) for node, field, _ in warnings(on_chain(5), waits, catalog)] == [
        (None, "triggerSpec.chainId"),
        ("0", None),
    ]
    assert [(node, field) for node, field, _ in warnings(trigger(), waits, catalog)] == [
        (None, "graph.settings.goal"),
        ("0", None),
    ]
    with_logs = CatalogFacts(("deposit",), chain=ChainFacts(frozenset({1}), frozenset({f"{TOKEN}:a", f"{TOKEN}:b"})))
    assert warnings(on_chain(), waits, with_logs) == []


def test_wallets_of_events_that_can_never_sign_in_are_reported_at_messages_to_them() -> None:
    message = graph({"type": "send_inapp", "data": {"title": "x", "body": "y"}})
    catalog = CatalogFacts(("deposit", "trade"), undeliverable={"deposit": (3, 50), "trade": (0, 9)})
    text = "is undeliverable to the wallets of 3 of the newest 50 events 'deposit': only EVM wallets (0x…) can sign in"
    assert warnings(trigger(), message, catalog) == [("0", None, text)]
    assert warnings(trigger("trade"), message, catalog) == warnings(trigger(), graph(), catalog) == []


def path_to(message: dict[str, Any], *conditions: dict[str, Any]) -> Graph:
    """Return a graph in which the true branches of conditions lead to a message."""
    nodes = [
        {"type": "app_event"},
        *({"type": "condition", "data": {"filters": [item]}} for item in conditions),
        message,
    ]
    edges = [
        {"source": str(number), "target": str(number + 1)} | ({"sourceHandle": "true"} if number else {})
        for number in range(len(nodes) - 1)
    ]
    parsed = read_graph(normalize({"nodes": [node | {"id": str(n)} for n, node in enumerate(nodes)], "edges": edges}))
    assert isinstance(parsed, Graph), parsed
    return parsed


EMAIL = {
    "type": "send_email",
    "data": {
        "subject": "{{ payload.order.total }} {{ contact.tier | default('x') }} {{ contact.walletAddress }}",
        "body": "{% if contact.plan %}{{ contact.city }}{% endif %}{{ event }} {{ contact.tags | length }} {{ pair }}",
        "onMissing": "skip",
    },
}
IN_SEGMENT = {"path": "contact.segments", "operator": "contains", "value": "whales"}


def test_a_message_needs_its_address_and_the_values_that_its_texts_always_read() -> None:
    paths = [need.path for need in needs_of(trigger(), path_to(EMAIL))]
    assert paths == ["contact.plan", "walletAddress", "email", "pair", "payload.order.total"]
    webhook = {"type": "send_webhook", "data": {"url": "https://a.co", "body": {"a": "{{ pair }}"}}}
    assert needs_of(trigger(), path_to(webhook)) == (Need("1", "pair"),)
    assert needs_of(Trigger(), path_to(webhook)) == ()


def test_a_wait_needs_its_date() -> None:
    waits = path_to({"type": "wait_until", "data": {"attribute": "ends"}})
    (need,) = needs_of(trigger(), waits)
    catalog = msgspec.structs.replace(SEEN, missing={need: {None: (12, 340)}})
    assert warnings(trigger(), waits, catalog) == [
        ("1", None, "takes 'missed' for 12 of the 340 contacts of the newest events: contact.ends is missing")
    ]
    unknown = path_to({"type": "wait_until", "data": {"attribute": "payload.nope"}})
    assert "'nope' was never seen" in warnings(trigger(), unknown, SEEN)[0][2]


def test_a_value_that_a_condition_or_the_trigger_requires_is_not_needed() -> None:
    conditions = [{"path": "contact.plan", "operator": "exists"}, {"path": "email", "operator": "exists"}, IN_SEGMENT]
    needs = needs_of(trigger("deposit", "pair", "walletAddress"), path_to(EMAIL, *conditions))
    assert needs == (Need("4", "payload.order.total", ("whales",)),)


@pytest.mark.parametrize(("text", "tested"), [("payload.pair", "pair"), ("pair", "payload.pair"), ("plan", "plan")])
def test_a_value_of_the_payload_is_not_needed_where_its_other_spelling_is_tested(text: str, tested: str) -> None:
    message = {"type": "send_webhook", "data": {"url": "https://a.example", "body": f"{{{{ {text} }}}}"}}
    assert needs_of(trigger("deposit", tested), path_to(message)) == ()
    assert needs_of(trigger("deposit"), path_to(message, {"path": tested, "operator": "exists"})) == ()
    assert needs_of(trigger("deposit", f"contact.{tested}"), path_to(message)) == (Need("1", text),)


def test_contacts_that_lack_what_a_message_needs_are_counted() -> None:
    plan, email, seen, unseen = (Need("1", path) for path in ("contact.plan", "email", "items", "order.total"))
    missing = {plan: (12, 340), email: (340, 340), seen: (0, 340), unseen: (340, 340)}
    by_locale = {need: {None: counts} for need, counts in missing.items()}
    catalog = msgspec.structs.replace(SEEN, missing=by_locale)
    texts = {"subject": "{{ contact.plan }}", "body": "{{ items }} {{ order.total }}"}
    message = path_to({"type": "send_email", "data": texts | {"onMissing": "skip"}})
    text = "of the 340 contacts of the newest events:"
    assert warnings(trigger(), message, catalog) == [
        ("1", None, f"is skipped for 12 {text} contact.plan is missing"),
        ("1", None, f"is skipped for 340 {text} email is missing"),
    ]
    failing = path_to({"type": "send_email", "data": texts})
    assert warnings(trigger(), failing, catalog)[0][2] == f"fails for 12 {text} contact.plan is missing"
