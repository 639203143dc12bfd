"""What is kept of a refused event: keys and types, no values; 2 KB at most, and always JSON."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest.rejected import MAX_EXCERPT_BYTES, Excerpt, excerpt, readable
from workbench.language.codec import decode, encode

CANARY = "canary-7d1f"


def body(raw: bytes) -> Any:
    kept = excerpt(raw).body
    return None if kept is None else decode(kept.encode())


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
    kept = excerpt(encode(sent))
    assert (kept.event, kept.idempotency_key) == ("First Deposit", "order-7")
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
    ("sent", "kept"),
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
def test_values_in_unexpected_places_are_redacted(sent: bytes, kept: Any) -> None:
    assert body(sent) == kept


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
    kept = excerpt(encode(sent)).body
    assert kept is not None
    assert CANARY not in kept
    assert (
        len(kept.replace('":', '": ').replace(",", ", ").encode()) <= MAX_EXCERPT_BYTES
    )  # at least as Postgres writes it


@given(st.binary(max_size=200))
def test_any_bytes_have_an_excerpt(raw: bytes) -> None:
    kept = excerpt(raw).body
    assert kept is None or decode(kept.encode()) is not ...
