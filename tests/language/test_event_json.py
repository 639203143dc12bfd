"""JSON bodies of events are read alike on both paths of `read_event` (docs/trust.md D1-D12)."""

import json
from typing import Any

import pytest

from workbench.language.codec import decode
from workbench.language.event import Event, read_event
from workbench.language.problem import Problem

NOW_US = 1_795_000_000_000_000
NUL = "contains U+0000 or an unpaired surrogate"


def read(raw: bytes) -> Event | tuple[Problem, ...]:
    return read_event(raw, NOW_US)


def accepted(raw: bytes) -> Event:
    event = read(raw)
    assert isinstance(event, Event), event
    return event


def refused(raw: bytes) -> list[str]:
    problems = read(raw)
    assert isinstance(problems, tuple), problems
    assert problems
    return [problem.field for problem in problems]


def with_payload(value: bytes) -> bytes:
    return b'{"event":"e","contact":{"externalId":"u"},"payload":{"a":' + value + b"}}"


def body(**fields: Any) -> bytes:
    return json.dumps({"event": "e", "contact": {"externalId": "u"}} | fields).encode()


@pytest.mark.parametrize("raw", [b"", b"null", b"[]", b'"x"', b"1", b"true", b"[{}]"])
def test_d1_a_body_is_an_object(raw: bytes) -> None:
    assert refused(raw) == [""]


@pytest.mark.parametrize(
    "raw",
    [
        body() + b"x",
        body() + body(),
        body()[:-1] + b",}",
        body()[:-1],
        b"/* c */" + body(),
        body().replace(b'"', b"'"),
        b"\xef\xbb\xbf" + body(),
        body().decode().encode("utf-16"),
        body().replace(b'"e"', b'"e\n"'),
    ],
)
def test_d2_d12_malformed_json_is_refused_as_a_whole(raw: bytes) -> None:
    assert refused(raw) == [""]


def test_malformed_json_after_a_field_of_the_wrong_type_is_still_malformed() -> None:
    assert str(read(b'{"event":5,"contact":{} garbage')[0]).startswith("malformed JSON")  # type: ignore[index]


@pytest.mark.parametrize("text", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80"])
@pytest.mark.parametrize(
    "around",
    [
        (b'{"event":"', b'","contact":{"externalId":"u"}}'),
        (b'{"event":"e","contact":{"externalId":"', b'"}}'),
        (b'{"event":"e","contact":{"externalId":"u"},"payload":{"a":"', b'"}}'),
        (b'{"event":"e","contact":{"externalId":"u"},"payload":{"', b'":1}}'),
        (b'{"event":"e","contact":{"externalId":"u"},"unknown":"', b'"}'),
    ],
)
def test_d3_invalid_utf_8_is_refused_in_every_field(text: bytes, around: tuple[bytes, bytes]) -> None:
    assert refused(around[0] + text + around[1]) == [""]


@pytest.mark.parametrize("escape", [r"\u0000", r"\ud800", r"\udc00", r"\udc00\ud800", r"\uD83Dx"])
@pytest.mark.parametrize(
    ("field", "raw"),
    [
        ("event", '{"event":"e%s","contact":{"externalId":"u"}}'),
        ("contact.email", '{"event":"e","contact":{"email":"a%s@b.co"}}'),
        ("contact.walletAddress", '{"event":"e","contact":{"walletAddress":"0x%s"}}'),
        ("contact.externalId", '{"event":"e","contact":{"externalId":"%s"}}'),
        ("idempotencyKey", '{"event":"e","contact":{"externalId":"u"},"idempotencyKey":"k%s"}'),
        ("attributes", '{"event":"e","contact":{"externalId":"u"},"attributes":{"k%s":1}}'),
        ("attributes.k", '{"event":"e","contact":{"externalId":"u"},"attributes":{"k":"%s"}}'),
        ("payload", '{"event":"e","contact":{"externalId":"u"},"payload":{"k%s":1}}'),
        ("payload", '{"event":"e","contact":{"externalId":"u"},"payload":{"k":"%s"}}'),
        ("payload", '{"event":"e","contact":{"externalId":"u"},"payload":' + '{"a":' * 9 + '{"%s":1}' + "}" * 10),
    ],
)
def test_d4_d5_nul_and_lone_surrogates_name_their_field(field: str, raw: str, escape: str) -> None:
    assert refused((raw % escape).encode()) == [field]


def test_d5_a_surrogate_pair_is_a_character() -> None:
    assert accepted(body(contact={"externalId": "😀"})).identifiers.external_id == "😀"


def test_a_dropped_field_may_have_any_json_value() -> None:
    assert accepted(rb'{"event":"e","contact":{"externalId":"u","x":"\ud800"},"y":"\u0000"}') == accepted(body())


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"01", b"+1", b".5", b"1.", b"1e", b"--1"])
def test_d6_an_invalid_number_is_malformed(number: bytes) -> None:
    assert refused(with_payload(number)) == [""]


@pytest.mark.parametrize(
    "number",
    [
        b"1e400",
        b"-1e400",
        b"1e130000",
        b"1e-130000",
        b"0e-20000",
        b"0e99999999999999999999",
        b"0.00E+400",
        b"1e99999999999999999999",
        b"[1,2,1E+400]",
        b"1" * 400,
        b"1" * 5_000,
        b"-" + b"1" * 5_000,
        b"0." + b"0" * 400 + b"1",
        b"0." + b"1" * 5_000,
        b"1" * 250 + b"e99",
        b"\n1e400",
    ],
)
def test_d6_d9_numbers_out_of_range_are_refused_in_payload_and_attributes(number: bytes) -> None:
    assert refused(with_payload(number)) == ["payload"]
    attribute = b'{"event":"e","contact":{"externalId":"u"},"attributes":{"a":' + number + b"}}"
    assert refused(attribute)[0].startswith("attributes")


@pytest.mark.parametrize(
    "number",
    [b"1e308", b"-0", b"-0.0", b"18446744073709551616", b"1" * 100, b"0.1000000000000000055511151231257827", b"1e-308"],
)
def test_d7_numbers_keep_their_exact_value(number: bytes) -> None:
    event = accepted(with_payload(number))
    assert decode(event.payload) == {"a": decode(number)}
    assert number in event.payload


def test_a_hash_that_looks_like_a_large_exponent_is_a_text() -> None:
    payload = {"tx": "0x12e400", "note": "a:1e999"}
    assert decode(accepted(body(payload=payload)).payload) == payload


@pytest.mark.parametrize(("depth", "fits"), [(31, True), (32, True), (33, False), (1_025, False)])
def test_d10_a_payload_is_at_most_32_levels_deep(depth: int, fits: bool) -> None:
    payload = b'{"a":' * depth + b"1" + b"}" * depth
    raw = b'{"event":"e","contact":{"externalId":"u"},"payload":' + payload + b"}"
    assert isinstance(read(raw), Event) is fits
    lists = with_payload(b"[" * (depth - 1) + b"]" * (depth - 1))
    assert isinstance(read(lists), Event) is fits


@pytest.mark.parametrize("depth", [1_025, 5_000, 100_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("field", [b"payload", b"attributes", b"contact", b"event", b"unknown"])
def test_d10_endless_nesting_is_refused_in_every_field(field: bytes, opening: bytes, depth: int) -> None:
    raw = b'{"event":"e","contact":{"externalId":"u"},"' + field + b'":' + opening * depth
    assert isinstance(read(raw), tuple)
    assert isinstance(read(opening * depth), tuple)


@pytest.mark.parametrize(
    ("twice", "once"),
    [
        (b'{"event":5,"event":"e","contact":{"externalId":"u"}}', body()),
        (b'{"event":"x","event":"e","contact":{"externalId":"u"}}', body()),
        (b'{"event":"e","contact":[],"contact":{"externalId":"u"}}', body()),
        (b'{"event":"e","contact":{"externalId":1,"externalId":"u"}}', body()),
        (b'{"event":"e","contact":{"email":"x","externalId":"u"},"contact":{"externalId":"u"}}', body()),
        (b'{"event":"e","contact":{"externalId":"u"},"test":1,"test":true}', body(test=True)),
        (b'{"event":"e","contact":{"externalId":"u"},"payload":[],"payload":{"a":1}}', body(payload={"a": 1})),
        (b'{"event":"e","contact":{"externalId":"u"},"attributes":{"a":[],"a":1}}', body(attributes={"a": 1})),
    ],
)
def test_d11_the_last_of_duplicate_keys_wins_on_both_paths(twice: bytes, once: bytes) -> None:
    first, second = accepted(twice), accepted(once)
    assert decode(first.payload) == decode(second.payload)
    assert (first.name, first.identifiers, first.attributes) == (second.name, second.identifiers, second.attributes)
    assert first.test is second.test


def test_every_problem_is_named_at_once() -> None:
    wrong = body(
        event="a b",
        contact={"email": "x", "walletAddress": 5},
        payload=[1],
        test="true",
        occurredAt="2026-11-20",
        idempotencyKey="",
    )
    assert set(refused(wrong)) == {
        "event",
        "contact.email",
        "contact.walletAddress",
        "payload",
        "test",
        "occurredAt",
        "idempotencyKey",
    }


def test_an_empty_name_is_reported_together_with_a_field_of_a_wrong_type() -> None:
    assert set(refused(b'{"event":"","contact":5}')) == {"event", "contact"}


def test_missing_required_fields_are_named_once_each() -> None:
    assert read(b"{}") == (Problem("event", "is required"), Problem("contact", "is required"))


def test_a_problem_reads_as_a_sentence() -> None:
    assert str(read(body(contact={"email": "x"}))[0]) == "contact.email: not a valid email address"  # type: ignore[index]
