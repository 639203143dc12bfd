"""Why an event is refused: each reason with its field, and what is still accepted at each bound."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from workbench.language.codec import encode
from workbench.language.event import (
    MAX_AGE,
    MAX_ATTRIBUTES,
    MAX_ATTRIBUTES_BYTES,
    MAX_EMAIL,
    MAX_EVENT_BYTES,
    MAX_FUTURE,
    MAX_PAYLOAD_BYTES,
    MAX_RAW_PAYLOAD_BYTES,
    Event,
    normalize_email,
    parse_timestamp,
    read_event,
    unknown_field,
)
from workbench.language.problem import Problem

NOW_US = 1_800_000_000_000_000
NOW = datetime.fromtimestamp(NOW_US / 1_000_000, UTC)


def body(**fields: Any) -> bytes:
    return encode({"event": "paid", "contact": {"externalId": "u"}} | fields)


def reasons(raw: bytes, **how: Any) -> list[str]:
    result = read_event(raw, NOW_US, **how)
    if isinstance(result, Event):
        return []
    assert all(problem.field is not None for problem in result)
    return list(map(str, result))


def padded(raw: bytes, size: int) -> bytes:
    """Return a JSON object with white space before its end, so that it has this many bytes."""
    return raw[:-1] + b" " * (size - len(raw)) + raw[-1:]


def raw_field(name: str, value: bytes) -> bytes:
    return body()[:-1] + b',"' + name.encode() + b'":' + value + b"}"


DEEP = b"[" * 20_000 + b"]" * 20_000
TOO_LARGE_NUMBER = b'{"a":[-' + b"9" * 5_000 + b"]}"


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (padded(body(), MAX_EVENT_BYTES), []),
        (padded(body(), MAX_EVENT_BYTES + 1), ["is larger than 1048576 bytes"]),
        (b"[]", ["must be a JSON object"]),
        (b'{"event":', ["malformed JSON: Input data was truncated"]),
        (raw_field("payload", b'{"a":' + DEEP + b"}"), ["payload: is nested more than 32 levels deep"]),
        (padded(raw_field("more", DEEP), MAX_RAW_PAYLOAD_BYTES), []),
        (padded(raw_field("more", DEEP), MAX_RAW_PAYLOAD_BYTES + 1), ["is nested too deeply"]),
        (body(event="a b"), ["event: must be 1 to 64 characters of a-z A-Z 0-9 _ . : -"]),
        (body(event=None), ["event: is required"]),
        (body(contact=None), ["contact: is required"]),
        (body(contact=[]), ["contact: must be an object"]),
        (body(contact={"email": "x" * MAX_EMAIL}), ["contact.email: not a valid email address"]),
        (body(contact={"email": "x" * (MAX_EMAIL + 1)}), ["contact.email: must be at most 320 characters"]),
        (body(contact={"externalId": ""}), ["contact.externalId: must be 1 to 128 characters"]),
        (body(contact={"externalId": "\0"}), ["contact.externalId: contains U+0000 or an unpaired surrogate"]),
        (raw_field("test", TOO_LARGE_NUMBER), ["test: must be true or false"]),
        (body(occurredAt=NOW + MAX_FUTURE), []),
        (
            body(occurredAt=NOW + MAX_FUTURE + timedelta.resolution),
            ["occurredAt: is more than 5 minutes in the future"],
        ),
        (body(occurredAt=NOW - MAX_AGE), []),
        (body(occurredAt=NOW - MAX_AGE - timedelta.resolution), ["occurredAt: is older than 7 days"]),
        (body(attributes=[]), ["attributes: must be an object"]),
        (body(attributes="a"), ["attributes: must be an object"]),
        (body(attributes={f"a{n}": 1.5 for n in range(MAX_ATTRIBUTES)}), []),
        (
            body(attributes={f"a{n}": 1.5 for n in range(MAX_ATTRIBUTES + 1)}),
            ["attributes: has 51 keys, at most 50 are allowed"],
        ),
        (raw_field("attributes", padded(b'{"a":1.5}', MAX_ATTRIBUTES_BYTES)), []),
        (
            raw_field("attributes", padded(b'{"a":1.5}', MAX_ATTRIBUTES_BYTES + 1)),
            ["attributes: is larger than 524288 bytes"],
        ),
        (
            raw_field("attributes", TOO_LARGE_NUMBER),
            ["attributes: contains a number outside ±1e308 or of more than 400 digits"],
        ),
        (body(attributes={"a": None}), ["attributes.a: must be a string, number or boolean"]),
        (body(attributes={"a": "\0"}), ["attributes.a: contains U+0000 or an unpaired surrogate"]),
        (body(attributes={"a": "é" * 513}), ["attributes.a: must be at most 1024 bytes"]),
        (
            raw_field("payload", TOO_LARGE_NUMBER),
            ["payload: contains a number outside ±1e308 or of more than 400 digits"],
        ),
        (body(payload={"a": "x" * (MAX_PAYLOAD_BYTES - 8)}), []),
        (
            body(payload={"a": "x" * (MAX_PAYLOAD_BYTES - 7)}),
            ["payload: is 16385 bytes as compact JSON, at most 16384 are allowed"],
        ),
        (raw_field("payload", padded(b"{}", MAX_RAW_PAYLOAD_BYTES)), []),
        (
            raw_field("payload", padded(b"{}", MAX_RAW_PAYLOAD_BYTES + 1)),
            ["payload: is 262145 bytes, at most 16384 are allowed as compact JSON"],
        ),
    ],
)
def test_a_reason_and_its_field(raw: bytes, expected: list[str]) -> None:
    assert reasons(raw) == expected


def test_history_has_no_bound_in_the_past() -> None:
    old = body(occurredAt=NOW - MAX_AGE - timedelta.resolution)
    assert reasons(old) == ["occurredAt: is older than 7 days"]
    assert reasons(old, history=True) == []
    deep = raw_field("more", DEEP)
    assert reasons(deep[:-1] + b',"occurredAt":"2020-01-01T00:00:00Z"}', history=True) == []
    assert reasons(deep[:-1] + b',"occurredAt":"2027-01-15T08:00:00Z"}') == []


def test_strict_refuses_unknown_fields_in_deep_bodies_too() -> None:
    assert reasons(body(more=1)) == []
    assert reasons(body(more=1), strict=True) == ["more: unknown field"]
    assert reasons(raw_field("more", DEEP), strict=True) == ["more: unknown field"]
    old = body(occurredAt=NOW - MAX_AGE - timedelta.resolution, more=1)
    assert reasons(old, history=True, strict=True) == ["more: unknown field"]


def test_a_body_with_an_unknown_field_keeps_its_attributes_and_its_payload() -> None:
    event = read_event(body(more=1, attributes={"tier": "gold"}, payload={"n": 1}), NOW_US)
    assert isinstance(event, Event)
    assert (event.attributes, event.payload) == ({"tier": "gold"}, b'{"n":1}')


def test_a_payload_is_stored_as_it_was_sent_unless_only_its_compact_form_fits() -> None:
    for size, stored in (
        (MAX_PAYLOAD_BYTES, padded(b'{"a":1}', MAX_PAYLOAD_BYTES)),
        (MAX_PAYLOAD_BYTES + 1, b'{"a":1}'),
    ):
        event = read_event(raw_field("payload", padded(b'{"a":1}', size)), NOW_US)
        assert isinstance(event, Event)
        assert event.payload == stored
    for written in b'{"a": "\\u0041"}', padded(b'{"a": "\\u0041"}', MAX_PAYLOAD_BYTES):
        escaped = read_event(raw_field("payload", written), NOW_US)
        assert isinstance(escaped, Event)
        assert escaped.payload == written


def test_names_that_are_not_known() -> None:
    assert unknown_field("x" * 64) == Problem("x" * 64, "unknown field")
    assert unknown_field("x" * 65) == Problem("x" * 64 + "…", "unknown field")
    assert unknown_field("propertys", " of x") == Problem("propertys", "unknown field, did you mean payload of x?")


@pytest.mark.parametrize(
    ("email", "normal"),
    [
        ("A@B.co", "a@b.co"),
        ("a@b@c.co", None),
        ("ä@b.co", "ä@b.co"),
        ("ä b@b.co", None),
        (f"{'a' * 64}@b.co", f"{'a' * 64}@b.co"),
        (f"{'a' * 65}@b.co", None),
        (f"a@{'b.' * 126}co1", f"a@{'b.' * 126}co1"),  # 255 characters
        (f"a@{'b.' * 126}co12", None),
        (f"{'a' * 64}@{'b.' * 126}co1", f"{'a' * 64}@{'b.' * 126}co1"),  # 320
        ("a" * 10_000, None),
    ],
)
def test_the_normal_form_of_an_address(email: str, normal: str | None) -> None:
    assert normalize_email(email) == normal


def test_the_first_and_the_last_moment() -> None:
    moments = ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "0001-01-01T00:00:00+00:01"]
    assert list(map(parse_timestamp, moments)) == [-62_135_596_800_000_000, 253_402_300_799_999_999, None]
