"""Values as Postgres gives them back, values that JSON cannot keep, and texts that a terminal may show."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from workbench.language.codec import (
    MISSING,
    MalformedJsonError,
    as_stored,
    decode,
    exactness_problem,
    malformed_json,
    printable,
    same_json,
    storage_problem,
    truncate_depth,
    utc_text,
    value_at,
)
from workbench.language.event import mask_email

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (Decimal("1E+2"), "100"),
        (Decimal(7), "7"),
        (Decimal("1.50"), "Decimal('1.50')"),
        (Decimal("-0.0"), "Decimal('0.0')"),
        (
            {"bb": 1, "c": 2, "aa": Decimal("2E+1"), "é": 3, "d": [Decimal("1E+1")]},
            "{'c': 2, 'd': [10], 'aa': 20, 'bb': 1, 'é': 3}",
        ),
        ({"aaa": {"b": 1, "a": {"z": Decimal("1E+1")}}, "b": None}, "{'b': None, 'aaa': {'a': {'z': 10}, 'b': 1}}"),
        ({"ab": 1, "c": 2}, "{'c': 2, 'ab': 1}"),
        ("text", "'text'"),
    ],
)
def test_a_value_as_jsonb_gives_it_back(value: Any, stored: str) -> None:
    assert repr(as_stored(value)) == stored


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [1, "b", None, True, Decimal("1.5"), 2.5, NOW, object()]}, None),
        (float("nan"), "x: nan is not a number that JSON has; leave it out, or write None"),
        ([1, Decimal("Infinity")], "x[1]: Infinity is not a number that JSON has; leave it out, or write None"),
        ({"a": ({"b": float("-inf")},)}, "x.a[0].b: -inf is not a number that JSON has; leave it out, or write None"),
        ({"a": NOW.replace(tzinfo=None)}, "x.a: a time needs its zone: datetime(…, tzinfo=UTC)"),
    ],
)
def test_a_value_that_json_cannot_keep_is_named(value: object, problem: str | None) -> None:
    assert exactness_problem(value, "x") == problem


def test_the_whole_value_has_no_path_of_its_own() -> None:
    assert exactness_problem({5: [float("inf")]}, "") == (
        "5[0]: inf is not a number that JSON has; leave it out, or write None"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("a\x1b[2J", "a\\u001b[2J"),
        ("a\n\tb", "a\n\tb"),
        ("a\u202eb\u2028\u2029", "a\\u202eb\\u2028\\u2029"),
        ("\U000e0001", "\\udb40\\udc01"),
        ("\ud800", "\\ud800"),
    ],
)
def test_characters_that_a_terminal_obeys_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_which_control_characters_are_kept() -> None:
    assert printable("a\n\tb", kept="") == "a\\u000a\\u0009b"
    assert printable("a\n\tb", kept="\t") == "a\\u000a\tb"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("a.b", 1),
        ("a", {"b": 2, "c": None}),
        ("a.c", None),
        ("a.x", MISSING),
        ("a.c.d", MISSING),
        ("t.length", MISSING),
    ],
)
def test_a_path_is_a_key_or_leads_into_objects(path: str, value: Any) -> None:
    assert value_at(path, {"a.b": 1, "a": {"b": 2, "c": None}, "t": "text"}) == value


def test_a_moment_is_written_in_utc() -> None:
    assert utc_text(NOW) == "2026-11-20T10:00:00Z"
    assert utc_text(datetime(2026, 11, 20, 10, 0, 0, 5, timezone(timedelta(hours=2)))) == "2026-11-20T08:00:00.000005Z"


def test_the_reasons_of_malformed_json() -> None:
    assert malformed_json(ValueError("JSON is malformed: expected ':'")) == "malformed JSON: expected ':'"
    with pytest.raises(UnicodeDecodeError) as error:
        b"ab\xff".decode()
    assert malformed_json(error.value) == "malformed JSON: not UTF-8 at byte 3"


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"[1,]", "JSON is malformed: trailing comma in array (byte 3)"),
        (b"[" * 5_000, "nested too deeply"),
        (b"1e99999999999999999999", "contains a number outside ±1e308 or of more than 400 digits"),
    ],
)
def test_an_error_says_what_is_malformed(raw: bytes, reason: str) -> None:
    with pytest.raises(MalformedJsonError) as error:
        decode(raw)
    assert str(error.value) == reason


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_integer(sign: int) -> None:
    assert storage_problem(sign * (10**309 - 1)) is None
    assert storage_problem(sign * 10**309) == "contains a number outside ±1e308 or of more than 400 digits"


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ({"a": 1, "b": [1, {"d": 1, "c": 2}]}, {"b": [1, {"c": 2, "d": 1}], "a": 1}, True),
        (Decimal("1.0"), Decimal("1.00"), False),
        ([1, 2], [2, 1], False),
    ],
)
def test_two_values_are_the_same_to_the_last_digit(left: Any, right: Any, same: bool) -> None:
    assert same_json(left, right) is same


@pytest.mark.parametrize(
    ("text", "cut"),
    [
        (b"[" * 100 + b"1" + b"]" * 100, None),
        (b"[1," * 100 + b"2" + b"]" * 100, None),
        (b"[" * 101 + b"1" + b"]" * 101, b"[" * 100 + b"null" + b"]" * 100),
        (b"[" * 99 + b"[[1],[[2]],3]" + b"]" * 99, b"[" * 99 + b"[null,null,3]" + b"]" * 99),
        (b'[{"a":' * 60 + b"1" + b"}]" * 60, b'[{"a":' * 50 + b"null" + b"}]" * 50),
        (b"[" * 100, None),
        (b"[" * 150, b"[" * 100 + b"null"),
        (b"[" * 120 + b"]" * 10, b"[" * 100 + b"null"),
    ],
)
def test_what_is_deeper_than_100_levels_is_cut(text: bytes, cut: bytes | None) -> None:
    assert truncate_depth(text) == (text if cut is None else cut)


def test_brackets_in_a_text_have_no_depth() -> None:
    text = b'{"a":"[[[' + b"[" * 100 + b'","b":{"c":[1]}}'
    assert truncate_depth(text) == text


@pytest.mark.parametrize(
    ("email", "masked"), [("ann@b.co", "a•••@b.co"), ('"a@x"@b.co', '"•••@b.co'), ("@b.co", "•••@b.co")]
)
def test_an_address_is_masked_but_for_its_first_character_and_its_domain(email: str, masked: str) -> None:
    assert mask_email(email) == masked
