"""The excerpt of a refused event has keys and types without values, is at most 2 KB, and is always JSON."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest.rejected import MAX_EXCERPT_BYTES, Excerpt, excerpt, readable
from workbench.language.codec import decode, encode

CANARY = "canary-7d1f"


def body(raw: bytes) -> Any:
    body_excerpt = excerpt(raw).body
    return None if body_excerpt is None else decode(body_excerpt.encode())


def test_keys_are_kept_and_values_become_their_types() -> None:
    sent = {
        "event": "First Deposit",
        "contact": {"email": CANARY, "walletAddress": 7, "externalId": None},
        "attributes": {"tier": CANARY, "age": 44, "member": True},
        "payload": {"amountUsd": 9.99, "order": {"lines": [{"sku": CANARY}, 1, None, 2, 3]}, "nothing": {}},
        "idempotencyKey": "order-7",
        "occurredAt": "yesterday",
        "test": False,
        "unknown": CANARY,
    }
    body_excerpt = excerpt(encode(sent))
    assert (body_excerpt.event, body_excerpt.idempotency_key) == ("First Deposit", "order-7")
    assert body(encode(sent)) == {
        "event": "First Deposit",
        "contact": {"email": "string", "walletAddress": "number", "externalId": "null"},
        "attributes": {"tier": "string", "age": "number", "member": "boolean"},
        "payload": {
            "amountUsd": "number",
            "order": {"lines": [{"sku": "string"}, "number", "null", "2 more"]},
            "nothing": {},
        },
        "idempotencyKey": "order-7",
        "occurredAt": "yesterday",
        "test": False,
        "unknown": "string",
    }


@pytest.mark.parametrize(
    ("sent", "body_excerpt"),
    [
        (b'{"event": {"name": "x"}, "test": "yes"}', {"event": {"name": "string"}, "test": "yes"}),
        (b'{"contact": "ann@example.com"}', {"contact": "string"}),
        (b'{"payload": {"ann@example.com": 1, "a\\u0000b": 1}}', {"payload": {"•••": "number", "a\ufffdb": "number"}}),
        (b'{"event": "mail to Ann@Example.com now"}', {"event": "mail to ••• now"}),
        (b'{"idempotencyKey": "' + b"k" * 500 + b'"}', {"idempotencyKey": "k" * 128 + "…"}),
        (b"[1, [2]]", ["number", ["number"]]),
        (b'"text"', "string"),
        (b"{", None),
        (b"\xff", None),
        (b"", None),
    ],
)
def test_values_in_unexpected_places_are_redacted(sent: bytes, body_excerpt: Any) -> None:
    assert body(sent) == body_excerpt


def test_an_unreadable_body_has_an_empty_excerpt() -> None:
    assert excerpt(b'{"event": "x"') == Excerpt()


def test_a_deeply_nested_body_is_read() -> None:
    deep = b'{"event": "x", "payload": ' + b"[" * 5_000 + b"]" * 5_000 + b"}"
    assert excerpt(deep).event == "x"
    assert len(excerpt(deep).body or "") <= MAX_EXCERPT_BYTES


def test_all_addresses_of_a_long_text_are_masked() -> None:
    assert "@" not in readable("ann@example.com " * 9 + "x" * 200 + "@")


_READABLE = ("event", "idempotencyKey", "occurredAt", "test")
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20).map(lambda text: CANARY + text),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=150), inner, max_size=12),
    max_leaves=25,
)


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=20).filter(lambda key: key not in _READABLE), _VALUES, max_size=25))
def test_no_value_is_kept_and_the_excerpt_stays_small(sent: dict[str, Any]) -> None:
    body_excerpt = excerpt(encode(sent)).body
    assert body_excerpt is not None
    assert CANARY not in body_excerpt
    as_postgres_writes_it = body_excerpt.replace('":', '": ').replace(",", ", ")
    assert len(as_postgres_writes_it.encode()) <= MAX_EXCERPT_BYTES


@given(st.binary(max_size=200))
def test_any_bytes_have_an_excerpt(raw: bytes) -> None:
    body_excerpt = excerpt(raw).body
    assert body_excerpt is None or decode(body_excerpt.encode()) is not ...
