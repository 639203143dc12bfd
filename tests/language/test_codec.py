"""The codec keeps exact numbers, refuses invalid texts, and compares without coercion."""

from decimal import Decimal
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.language.codec import (
    MalformedJsonError,
    as_stored,
    compact,
    decode,
    encode,
    json_equal,
    normalize,
    replace_lone_surrogates,
    storage_problem,
)


@pytest.mark.parametrize(
    "number",
    [
        "1e308",
        "1E+2",
        "-0.0",
        "18446744073709551616",
        "1" * 100,
        "0.1000000000000000055511151231257827",
        "1.10",
        "-1e-308",
        "9007199254740993",
    ],
)
def test_a_number_is_read_and_written_back_exactly(number: str) -> None:
    value = decode(number.encode())
    assert Decimal(value) == Decimal(number)
    assert decode(encode(value)) == value
    assert storage_problem(value) is None


def test_minus_zero_is_zero() -> None:
    assert decode(b"-0") == 0 == decode(b"-0.0")


@pytest.mark.parametrize("number", [b"1e309", b"-1e309", b"1e-309", b"1e400", b"1e130000", b"0e130000", b"0e-20000"])
def test_a_number_past_1e308_is_refused_in_every_form(number: bytes) -> None:
    assert "number outside" in (storage_problem(decode(number)) or "")


@pytest.mark.parametrize(("digits", "fits"), [(308, True), (309, True), (310, False), (4_000, False)])
def test_a_long_integer_is_accepted_by_its_value(digits: int, fits: bool) -> None:
    assert (storage_problem(decode(b"9" * digits)) is None) is fits


def test_an_integer_that_python_does_not_convert_is_refused_like_other_numbers() -> None:
    for function in (decode, compact):
        with pytest.raises(MalformedJsonError, match=r"^contains a number outside ±1e308 or of more than 400 digits$"):
            function(b'{"a": [-' + b"9" * 5_000 + b"]}")


@pytest.mark.parametrize(("digits", "fits"), [(399, True), (400, True), (401, False), (9_000, False)])
def test_a_decimal_has_at_most_400_digits(digits: int, fits: bool) -> None:
    assert (storage_problem(decode(b"0." + b"1" * digits)) is None) is fits


@pytest.mark.parametrize(
    "raw", [b"", b"01", b"+1", b".5", b"1.", b"NaN", b"Infinity", b"-Infinity", b"1e99999999999999999999", b"9" * 5_000]
)
def test_an_invalid_json_number_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedJsonError):
        decode(raw)


@pytest.mark.parametrize(
    "raw", [b"[1] 2", b"[1,]", b'{"a":1,}', b"// x\n1", b"{'a':1}", b"\xef\xbb\xbf1", '"a"'.encode("utf-16"), b'"\x01"']
)
def test_json_is_read_strictly(raw: bytes) -> None:
    with pytest.raises(MalformedJsonError):
        decode(raw)


@pytest.mark.parametrize("raw", [b'"\xff"', b'"\xc0\xaf"', b'"\xed\xa0\x80"', b'{"\xff":1}'])
def test_text_must_be_utf_8(raw: bytes) -> None:
    with pytest.raises(MalformedJsonError):
        decode(raw)


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
@pytest.mark.parametrize("depth", [1_025, 5_000, 100_000])
def test_endless_nesting_is_malformed(opening: bytes, depth: int) -> None:
    with pytest.raises(MalformedJsonError):
        decode(opening * depth)


@pytest.mark.parametrize(("depth", "fits"), [(31, True), (32, True), (33, False), (500, False)])
def test_values_are_at_most_32_levels_deep(depth: int, fits: bool) -> None:
    assert (storage_problem(decode(b"[" * depth + b"]" * depth)) is None) is fits
    assert (storage_problem(decode(b'{"a":' * depth + b"1" + b"}" * depth)) is None) is fits


@pytest.mark.parametrize("value", ["\0", {"\0": 1}, [[{"a": "x\0"}]], "\ud800"])
def test_nul_and_lone_surrogates_are_refused_at_any_depth(value: object) -> None:
    assert storage_problem(value) == "contains U+0000 or an unpaired surrogate"  # type: ignore[arg-type]


def test_duplicate_keys_keep_the_last_value() -> None:
    assert decode(b'{"a":1,"a":{"b":1,"b":2}}') == {"a": {"b": 2}}


@pytest.mark.parametrize(
    ("raw", "mended"),
    [
        (rb'"\ud83d\ude00"', rb'"\ud83d\ude00"'),
        (rb'"\ud83d"', rb'"\u0000"'),
        (rb'"\ude00\ud83d"', rb'"\u0000\u0000"'),
        (rb'"\ud83d\ud83d\ude00"', rb'"\u0000\ud83d\ude00"'),
        (rb'"\\ud83d"', rb'"\\ud83d"'),
        (rb'"\\\ud83d"', rb'"\\\u0000"'),
        (rb'"\uD83Dx\uDE00"', rb'"\u0000x\u0000"'),
    ],
)
def test_only_unpaired_surrogate_escapes_are_replaced(raw: bytes, mended: bytes) -> None:
    assert replace_lone_surrogates(raw) == mended


def test_a_compact_text_keeps_decimals_as_they_were_written() -> None:
    assert compact(b' { "a" : 1.50e2 , "b" : "\\u00e9\\/" , "c" : [ 1E5 , 2.0 ] } ') == (
        '{"a":1.50e2,"b":"é/","c":[1E5,2.0]}'.encode()
    )


def test_python_values_are_normalized_as_the_service_would_receive_them() -> None:
    assert normalize({"a": 0.1, "b": (1, 2), "c": 1e22}) == {"a": Decimal("0.1"), "b": [1, 2], "c": Decimal("1e22")}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, Decimal("1.0")),
        (Decimal("1E+2"), 100),
        ([1, {"a": None}], [Decimal("1.0"), {"a": None}]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (None, None),
        (True, True),
    ],
)
def test_json_values_are_equal_by_value(left: object, right: object) -> None:
    assert json_equal(left, right)  # type: ignore[arg-type]
    assert json_equal(right, left)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (0, False),
        (1, "1"),
        (None, False),
        (None, 0),
        ("", None),
        ([1], [True]),
        ({"a": 1}, {"a": True}),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
        ([], {}),
        (Decimal("0.1"), Decimal("0.10000000000000001")),
    ],
)
def test_json_values_of_different_types_are_never_equal(left: object, right: object) -> None:
    assert not json_equal(left, right)  # type: ignore[arg-type]
    assert not json_equal(right, left)  # type: ignore[arg-type]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4)
NUMBERS = st.from_regex(r"-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,5})?([eE][-+]?[0-9]{1,2})?", fullmatch=True)
SCALARS = st.none() | st.booleans() | TEXTS | NUMBERS.map(lambda number: msgspec.Raw(number.encode()))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=6))


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(VALUES, min_size=20, max_size=20))  # longer lists are drawn in 2.5 times the time for each value
def test_values_are_returned_as_jsonb_returns_them(database_url: str, values: list[Any]) -> None:
    sent = [encode(value) for value in values]
    sent.append(
        b'{"b": 1, "b": {"plan": 1E+2, "usd": -0.0, "z": -0e5, "aa": 1.50e1, "a": 2}, "\xc3\xa9": 0, "zz": [1e30]}'
    )
    with psycopg.connect(database_url) as connection:
        rows = connection.execute(
            "SELECT t::jsonb::text FROM unnest(%s::text[]) WITH ORDINALITY AS v (t, n) ORDER BY n",
            ([raw.decode() for raw in sent],),
        ).fetchall()
    for raw, (stored,) in zip(sent, rows, strict=True):
        expected, value = decode(stored.encode()), as_stored(decode(raw))
        assert (encode(value), repr(value)) == (encode(expected), repr(expected))
