"""The fields of an event are accepted up to their bounds and refused beyond them (docs/trust.md E1-E21)."""

import json
import unicodedata
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from workbench.language.event import (
    MAX_UNKNOWN_FIELDS,
    Event,
    Identifiers,
    normalize_email,
    parse_timestamp,
    read_event,
    unknown_field,
)
from workbench.language.problem import Problem

NOW = datetime.fromisoformat("2026-11-20T10:00:00+00:00")
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def read(fields: dict[str, Any], *, history: bool = False, ascii_only: bool = True) -> Event | list[str]:
    raw = json.dumps({"event": "e", "contact": {"externalId": "u"}} | fields, ensure_ascii=ascii_only).encode()
    result = read_event(raw, us(NOW), history=history)
    return result if isinstance(result, Event) else [problem.field for problem in result]


def accepted(**fields: Any) -> Event:
    event = read(fields)
    assert isinstance(event, Event), event
    return event


@pytest.mark.parametrize("name", ["a", "a" * 64, "A.b:c-d_9", "First_Deposit"])
def test_e1_e3_a_name_is_1_to_64_characters_and_kept_in_lower_case(name: str) -> None:
    assert accepted(event=name).name == name.lower()


@pytest.mark.parametrize("name", ["", "a" * 65, "a b", "é", "a\n", "a/b", "\uff41", "a\u200b"])
def test_e1_other_names_are_refused(name: str) -> None:
    assert read({"event": name}) == ["event"]


@pytest.mark.parametrize("name", [5, 1.5, True, {}, [], None])
def test_e4_a_name_is_a_string(name: Any) -> None:
    assert read({"event": name}) == ["event"]


@pytest.mark.parametrize("contact", [None, {}, [], "u", 5, {"email": None, "walletAddress": None, "externalId": None}])
def test_e5_a_contact_has_an_identifier(contact: Any) -> None:
    assert read({"contact": contact}) == ["contact"]


@pytest.mark.parametrize("field", ["email", "walletAddress", "externalId"])
@pytest.mark.parametrize("value", ["", 5, True, [], {}])
def test_e5_an_empty_or_odd_identifier_is_refused_by_name(field: str, value: Any) -> None:
    assert read({"contact": {field: value}}) == [f"contact.{field}"]
    assert read({"contact": {field: value, "other": 1}}) == [f"contact.{field}"]


def test_null_identifiers_are_absent() -> None:
    contact = {"email": None, "walletAddress": "0xAB", "externalId": None}
    assert accepted(contact=contact).identifiers == Identifiers(wallet="0xab", wallet_raw="0xAB")


@pytest.mark.parametrize(
    "email",
    [
        "a@b.co",
        "a+tag@b.co",
        "o'neil.x@b-c.co.uk",
        "a" * 64 + "@b.co",
        "a@" + ".".join(["b" * 63] * 3) + "." + "c" * 63,
        "a" * 64 + "@" + ".".join(["b" * 63] * 3) + "." + "c" * 63,
        "mü@bücher.example",
        "हिन्दी@b.co",
        "a@xn--bcher-kva.example",
    ],
)
def test_e6_valid_addresses_are_accepted(email: str) -> None:
    assert accepted(contact={"email": email}).identifiers.email == normalize_email(email)


@pytest.mark.parametrize(
    "email",
    [
        "a" * 65 + "@b.co",
        "a@" + ".".join(["b" * 63] * 4) + ".co",
        "a" * 64 + "@" + ".".join(["b" * 63] * 3) + "." + "c" * 64,
        "x" * 321,
        "plain",
        "@b.co",
        "a@",
        "a@b",
        "a@@b.co",
        "a@c@b.co",
        "a b@c.co",
        " a@b.co",
        "a@b.co ",
        "a@b.co\r\nBcc: x@y.co",
        '"a b"@b.co',
        "a@[127.0.0.1]",
        "a@127.0.0.1",
        ".a@b.co",
        "a.@b.co",
        "a..b@c.co",
        "a@-b.co",
        "a@b-.co",
        "a@b..co",
        "a@b.co.",
        "<a@b.co>",
        "a@b_c.co",
        "a@ä_c.co",
        "a@ä..co",
        "a@☕.example",  # IDNA 2008 has no symbols
    ],
)
def test_e6_invalid_addresses_are_refused(email: str) -> None:
    assert read({"contact": {"email": email}}) == ["contact.email"]


def test_e6_an_address_has_at_most_320_characters() -> None:
    longest = "a" * 64 + "@" + ".".join(["b" * 63] * 3) + "." + "c" * 63
    assert len(longest) == 320
    assert isinstance(read({"contact": {"email": longest}}), Event)
    assert read({"contact": {"email": longest + "c"}}) == ["contact.email"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("A@B.co", "a@b.co"),
        ("Mü@Example.com", unicodedata.normalize("NFD", "mü@example.com")),
        ("a@BÜCHER.example", "a@xn--bcher-kva.example"),
        ("a@bücher。example", "a@bücher.example"),
    ],
)
def test_e7_variants_of_an_address_have_one_normal_form(one: str, other: str) -> None:
    assert normalize_email(one) == normalize_email(other) is not None


def test_domains_that_idna_2008_distinguishes_stay_distinct() -> None:
    assert normalize_email("a@straße.de") == "a@xn--strae-oqa.de"
    assert normalize_email("a@σς.gr") == "a@xn--3xab.gr"


def test_a_domain_in_ascii_is_kept_whatever_the_local_part() -> None:
    assert normalize_email("zoë@R3---sn.example") == "zoë@r3---sn.example"


@pytest.mark.parametrize("odd", ["\u200b", "\0", "\u202e", "\n", "\u00a0", "\u2028", "\ufeff", "\u0085", "\ud800"])
def test_e8_invisible_characters_in_an_address_are_refused(odd: str) -> None:
    assert normalize_email(f"a{odd}b@c.co") is None
    assert normalize_email(f"ab@c{odd}d.co") is None
    assert read({"contact": {"email": f"a{odd}b@c.co"}}) == ["contact.email"]


def test_wallets_match_in_lower_case_and_keep_their_raw_form() -> None:
    identifiers = accepted(contact={"walletAddress": "0xAbC"}).identifiers
    assert (identifiers.wallet, identifiers.wallet_raw) == ("0xabc", "0xAbC")


@pytest.mark.parametrize(("field", "most"), [("walletAddress", 128), ("externalId", 128)])
def test_e10_identifiers_have_1_to_128_characters(field: str, most: int) -> None:
    assert isinstance(read({"contact": {field: "x"}}), Event)
    assert isinstance(read({"contact": {field: "é" * most}}), Event)
    assert read({"contact": {field: "x" * (most + 1)}}) == [f"contact.{field}"]


@pytest.mark.parametrize("text", ["Abc", "abc", " abc ", "\uff41bc"])
def test_e10_an_external_id_is_kept_unchanged(text: str) -> None:
    assert accepted(contact={"externalId": text}).identifiers.external_id == text


@pytest.mark.parametrize(("count", "fits"), [(0, True), (49, True), (50, True), (51, False)])
def test_e11_attributes_have_at_most_50_keys(count: int, fits: bool) -> None:
    result = read({"attributes": {str(index): index for index in range(count)}})
    assert isinstance(result, Event) if fits else result == ["attributes"]


def test_e11_too_many_attributes_are_one_problem() -> None:
    assert read({"attributes": {str(index): None for index in range(10_000)}}) == ["attributes"]


@pytest.mark.parametrize("value", ["é" * 512, "x" * 1024, "", 0, -1, True, False, 1.5, 10**100])
def test_e12_attributes_are_strings_numbers_and_booleans(value: Any) -> None:
    expected = Decimal(repr(value)) if isinstance(value, float) else value
    assert accepted(attributes={"k": value}).attributes == {"k": expected}


@pytest.mark.parametrize("value", ["é" * 512 + "x", "x" * 1025, None, [], {}, "\0"])
def test_e12_other_attributes_are_refused_by_key(value: Any) -> None:
    assert read({"attributes": {"ok": 1, "k": value}}) == ["attributes.k"]


@pytest.mark.parametrize("key", ["", "k" * 129, "k" * 65_536, "a\0"])
def test_e13_odd_attribute_keys_are_refused(key: str) -> None:
    assert read({"attributes": {key: 1}}) == ["attributes"]


@pytest.mark.parametrize("key", ["k" * 128, "é" * 128, "__proto__", "a.b", " "])
def test_e13_other_attribute_keys_are_accepted(key: str) -> None:
    assert accepted(attributes={key: 1}).attributes == {key: 1}


@pytest.mark.parametrize(("size", "fits"), [(16_383, True), (16_384, True), (16_385, False)])
@pytest.mark.parametrize("character", ["x", "é", "😀"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_e14_a_payload_is_measured_as_compact_utf_8(size: int, fits: bool, character: str, ascii_only: bool) -> None:
    wide = len(character.encode())
    room = size - len('{"k":""}')
    payload = {"k": character * (room // wide) + "x" * (room % wide)}
    result = read({"payload": payload}, ascii_only=ascii_only)
    assert isinstance(result, Event) if fits else result == ["payload"]


def test_e14_white_space_does_not_count_and_numbers_count_as_written() -> None:
    numbers = "[" + ",".join(["1e2"] * 4_094) + "]"
    compact = f'{{"k":{numbers}}}'
    assert len(compact) == 16_383
    for text in (compact, compact.replace(",", " , ")):
        raw = f'{{"event":"e","contact":{{"externalId":"u"}},"payload":{text}}}'
        assert isinstance(read_event(raw.encode(), us(NOW)), Event)


@pytest.mark.parametrize("payload", [[], "x", 1, True, [{}]])
def test_e15_a_payload_is_an_object(payload: Any) -> None:
    assert read({"payload": payload}) == ["payload"]


@pytest.mark.parametrize("field", ["payload", "attributes", "idempotencyKey", "occurredAt", "test"])
def test_null_is_absent_for_optional_fields(field: str) -> None:
    assert accepted(**{field: None}) == accepted()


@pytest.mark.parametrize("key", ["k", "k" * 256, " k ", "é" * 256, "K"])
def test_e16_an_idempotency_key_is_kept_unchanged(key: str) -> None:
    assert accepted(idempotencyKey=key).idempotency_key == key


@pytest.mark.parametrize("key", ["", "k" * 257, 5, True, [], {}])
def test_e16_other_idempotency_keys_are_refused(key: Any) -> None:
    assert read({"idempotencyKey": key}) == ["idempotencyKey"]


@pytest.mark.parametrize(
    ("shift", "fits"),
    [
        (timedelta(days=-7), True),
        (timedelta(days=-7, microseconds=-1), False),
        (timedelta(days=-7, seconds=-1), False),
        (timedelta(minutes=5), True),
        (timedelta(minutes=5, microseconds=1), False),
        (timedelta(minutes=5, seconds=1), False),
        (timedelta(0), True),
    ],
)
def test_e17_the_bounds_of_occurred_at_are_inclusive(shift: timedelta, fits: bool) -> None:
    result = read({"occurredAt": (NOW + shift).isoformat()})
    assert isinstance(result, Event) is fits
    assert result == ["occurredAt"] or isinstance(result, Event)


def test_history_may_be_old_but_not_in_the_future() -> None:
    old = {"occurredAt": "2019-01-01T00:00:00Z"}
    assert read(old) == ["occurredAt"]
    assert isinstance(read(old, history=True), Event)
    assert read({"occurredAt": "2027-01-01T00:00:00Z"}, history=True) == ["occurredAt"]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-20T10:00:00Z", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20t10:00:00z", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T12:00:00+02:00", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10:00:00-00:00", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10:00:00.5Z", "2026-11-20T10:00:00.500000+00:00"),
        ("2026-11-20T10:00:00.123456789Z", "2026-11-20T10:00:00.123456+00:00"),
        ("2026-11-20T10:00:00.1000000000000000001Z", "2026-11-20T10:00:00.100000+00:00"),
        ("2026-11-20T10:00:00+0000", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10:00:00+00", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20 12:00:00.25+02", "2026-11-20T10:00:00.250000+00:00"),
        ("2026-11-20T10:00Z", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10Z", "2026-11-20T10:00:00+00:00"),
        ("2026-11-20T10:00:00,5Z", "2026-11-20T10:00:00.500000+00:00"),
        ("20261120T100000Z", "2026-11-20T10:00:00+00:00"),
        ("20261120T123000.5+0230", "2026-11-20T10:00:00.500000+00:00"),
        ("2026-W47-5T10:00:00Z", "2026-11-20T10:00:00+00:00"),
        ("2026W475T1000Z", "2026-11-20T10:00:00+00:00"),
        ("2024-02-29T23:59:59.999999Z", "2024-02-29T23:59:59.999999+00:00"),
    ],
)
def test_e18_iso_8601_timestamps_are_read(text: str, moment: str) -> None:
    assert parse_timestamp(text) == us(datetime.fromisoformat(moment))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "2026-11-20T10:00:00",
        "2026-11-20",
        "2026-W47-5",
        "20261120T100000",
        "2026-11-20  10:00:00Z",
        "2026-11-20_10:00:00Z",
        "2026-11-20T1000:00Z",
        "2026-11-20T10:00:00 +0000",
        "2026-11-20T24:00:00Z",
        "2026-11-20T10:00:60Z",
        "2026-11-20T10:60:00Z",
        "1795000000",
        "10000-01-01T00:00:00Z",
        "2026-11-20T10:00:00+99:99",
        "2026-11-20T10:00:00+10:75",
        "2026-11-20T10:00:00+24:00",
        "2026-11-20T10:00:00+02:00:30",
        "2026-11-20T10:00:00.Z",
        "2026-02-29T10:00:00Z",
        "2026-13-01T10:00:00Z",
        "0000-01-01T00:00:00Z",
        "0001-01-01T00:00:00+23:00",
        "9999-12-31T23:59:59-23:00",
        "\uff12\uff10\uff12\uff16-11-20T10:00:00Z",
        "2026-11-20T10:00:00Z\n",
        " 2026-11-20T10:00:00Z",
    ],
)
def test_e18_other_forms_are_refused(text: str) -> None:
    assert parse_timestamp(text) is None
    assert read({"occurredAt": text}) == ["occurredAt"]


@pytest.mark.parametrize("value", [1_795_000_000, 1.5, True, {}, []])
def test_e18_a_timestamp_is_a_string(value: Any) -> None:
    assert read({"occurredAt": value}) == ["occurredAt"]


def test_e18_the_first_day_is_only_too_old() -> None:
    assert read({"occurredAt": "0001-01-01T00:00:00Z"}) == ["occurredAt"]
    assert isinstance(read({"occurredAt": "0001-01-01T00:00:00Z"}, history=True), Event)


@pytest.mark.parametrize(("value", "is_test"), [(True, True), (False, False), (None, False)])
def test_e19_test_is_a_boolean(value: Any, is_test: bool) -> None:
    assert accepted(test=value).test is is_test


@pytest.mark.parametrize("value", ["true", 1, 0, "", [], {}])
def test_e19_other_values_of_test_are_refused(value: Any) -> None:
    assert read({"test": value}) == ["test"]


def test_e20_e21_unknown_fields_are_dropped() -> None:
    more = {"org_id": 1, "id": "x", "created_at": 1, "contact_id": "y", "Event": "z", "idempotency_key": "k"}
    contact = {"externalId": "u", "id": "x", "external_id": "y", "tags": ["a"]}
    assert msgspec.structs.replace(accepted(**more, contact=contact), warnings=()) == accepted()


def test_an_event_has_the_values_that_were_sent() -> None:
    event = accepted(
        event="Paid",
        contact={"email": "Ann@Example.com", "walletAddress": "0xA", "externalId": "u1"},
        attributes={"tier": "gold"},
        payload={"amount": 5},
        idempotencyKey="k1",
        occurredAt=NOW.isoformat(),
        test=True,
    )
    assert event == Event(
        "paid",
        Identifiers("0xa", "ann@example.com", "u1", "0xA"),
        {"tier": "gold"},
        b'{"amount": 5}',
        "k1",
        us(NOW),
        True,
    )


@pytest.mark.parametrize(
    ("field", "meant"),
    [
        *[("properties", "payload"), ("traits", "attributes"), ("userId", "contact.externalId")],
        *[("user_id", "contact.externalId"), ("anonymousId", "contact.externalId"), ("timestamp", "occurredAt")],
        *[("idempotency_key", "idempotencyKey"), ("paylod", "payload"), ("Attributes", "attributes")],
        *[("occured_at", "occurredAt"), ("email", "contact.email"), ("contact.email", "contact.email")],
        *[("contact.userId", "contact.externalId"), ("contact.wallet_address", "contact.walletAddress")],
        *[("contact.traits", "attributes"), ("contact.id", "contact.externalId")],
        *[(field, "occurredAt") for field in ("ts", "sentAt", "createdAt", "created_at")],
        *[("metadata", "payload"), ("meta", "payload"), ("name", "event"), ("contact.name", "attributes")],
        *[("contact.address", "contact.walletAddress"), ("contact.metadata", "attributes")],
        *[(field, None) for field in ("source", "context", "type", "version", "id", "x" * 65)],
    ],
)
def test_the_problem_of_an_unknown_field_says_what_was_meant(field: str, meant: str | None) -> None:
    reason = "unknown field" if meant is None else f"unknown field, did you mean {meant}?"
    assert unknown_field(field) == Problem(field if len(field) <= 64 else f"{field[:64]}…", reason)


def read_strictly(fields: dict[str, Any]) -> Any:
    raw = json.dumps({"event": "e", "contact": {"externalId": "u"}} | fields).encode()
    return read_event(raw, us(NOW), strict=True)


def test_unknown_fields_are_dropped_and_only_misspelt_ones_are_warnings() -> None:
    event = accepted(contact={"externalId": "u", "userId": "v"}, properties={"a": 1}, source="x")
    warnings = (unknown_field("properties"), unknown_field("contact.userId"))
    assert event == Event("e", Identifiers(external_id="u"), warnings=warnings)


def test_a_strict_event_has_no_unknown_field() -> None:
    source, user_id = Problem("source", "unknown field"), unknown_field("contact.userId")
    assert read_strictly({"source": "x"}) == (source,)
    missing = Problem("contact", "needs at least one of email, walletAddress, externalId")
    assert read_strictly({"source": "x", "contact": {"userId": "v"}}) == (missing, source, user_id)
    assert read_strictly({}) == Event("e", Identifiers(external_id="u"))


def test_only_the_first_unknown_fields_are_named() -> None:
    problems = tuple(Problem(f"x{number}", "unknown field") for number in range(1_000))
    assert read_strictly({problem.field: 1 for problem in problems}) == problems[:MAX_UNKNOWN_FIELDS]
