"""Samples and filters accept the values that a log can have, for declarations of any shape."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.language.test_abi import NO_TYPE
from workbench.language.abi import (
    AbiEvent,
    AbiType,
    AbiWord,
    argument_problem,
    integer_bounds,
    normalize_argument,
    read_abi,
    read_signature,
    value_problem,
)
from workbench.language.onchain import ZERO_ADDRESS, LogSource, read_log_sample, read_log_source
from workbench.language.problem import Problem

ANN = "0x" + "ab" * 20
SIGNATURE = (
    "F(address indexed to, uint8 small, int16 signed, uint256 wide, bool yes, bytes4 sort, string indexed hashed,"
    " string said, bytes raw, uint8[2] two, (uint8 x, address y)[] pairs)"
)
FINE: dict[str, Any] = {
    "to": ANN,
    "small": 255,
    "signed": -32_768,
    "wide": "5",
    "yes": True,
    "sort": "0x01020304",
    "hashed": "0x" + "0f" * 32,
    "said": "hi",
    "raw": "0x",
    "two": [1, 2],
    "pairs": [{"x": 1, "y": ANN}],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def source() -> LogSource:
    problems: list[Problem] = []
    spec = {"chainId": 1, "contract": ANN, "signature": SIGNATURE, "walletArg": "to"}
    log_source = read_log_source(spec, "", problems)
    assert log_source is not None, problems
    return log_source


def test_values_of_a_log_are_accepted() -> None:
    assert not isinstance(read_log_sample({"args": FINE}, source()), tuple)
    typed = FINE | {"small": "255", "wide": 5, "to": ANN.upper().replace("X", "x"), "sort": "0x0102ABCD"}
    assert not isinstance(read_log_sample({"args": typed}, source()), tuple)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("small", 256, "small: must be of type uint8: 0 to 255"),
        ("small", -1, "small: must be of type uint8: 0 to 255"),
        ("small", True, "small: must be of type uint8: a whole number"),
        ("small", "²", "small: must be of type uint8: a whole number"),
        ("small", 1.5, "small: must be of type uint8: a whole number"),
        ("signed", 32_768, "signed: must be of type int16: -32768 to 32767"),
        ("wide", "-1", f"wide: must be of type uint256: 0 to {2**256 - 1}"),
        ("wide", "1e18", "wide: must be of type uint256, as a string of its digits, like '1000000'"),
        ("wide", "007", "wide: must be of type uint256, as a string of its digits, like '1000000'"),
        ("wide", "9" * 101, "wide: must be of type uint256, as a string of its digits, like '1000000'"),
        ("wide", str(2**256), f"wide: must be of type uint256: 0 to {2**256 - 1}"),
        ("yes", 1, "yes: must be of type bool: true or false"),
        ("sort", "0x01", "sort: must be of type bytes4: 0x and 8 hexadecimal digits"),
        (
            "hashed",
            "hi",
            "hashed: must be 0x and 64 hexadecimal digits: a log contains only the hash of an indexed string",
        ),
        ("said", None, "said: must be of type string"),
        ("raw", "0x1", "raw: must be of type bytes: 0x and pairs of hexadecimal digits"),
        ("two", [1], "two: must be of type uint8[2]: an array of 2 values"),
        ("two", [1, 256], "two: [1] must be of type uint8: 0 to 255"),
        ("pairs", [{"x": 1}], "pairs: [0] must be of type (uint8,address): an object with x, y"),
        ("pairs", [{"x": 1, "y": "0x1"}], "pairs: [0] .y must be of type address: 0x and 40 hexadecimal digits"),
        ("to", ZERO_ADDRESS, "to: is the zero address, which belongs to no contact: mints and burns start nothing"),
        ("to", 5, "to: must be an address: 0x and 40 hexadecimal digits"),
    ],
)
def test_a_value_that_no_log_has_is_refused_with_its_parameter(name: str, value: Any, reason: str) -> None:
    problems = read_log_sample({"args": FINE | {name: value}}, source())
    assert isinstance(problems, tuple)
    assert [str(problem) for problem in problems] == [f"event.args.{reason}"]


@given(JSON, st.sampled_from(sorted(FINE)))
def test_any_sample_is_read_and_accepted_values_are_normalized(value: Any, name: str) -> None:
    read_log_sample({"args": FINE | {name: value}}, source())
    parameter = source().abi_event.parameter(name)
    assert parameter is not None
    fit = normalize_argument(parameter.type, value)
    if argument_problem(parameter, fit) is None:
        assert normalize_argument(parameter.type, fit) == fit


@given(st.sampled_from(["uint", "int"]), st.integers(1, 32), st.integers(-(2**256), 2**257))
def test_integers_are_checked_against_the_bounds_of_their_type(kind: str, size: int, number: int) -> None:
    word = AbiWord(kind, 8 * size)
    least, greatest = integer_bounds(word)
    assert (value_problem(word, normalize_argument(word, number)) is None) == (least <= number <= greatest)


ENTRY = st.fixed_dictionaries(
    {"type": st.just("event"), "name": st.sampled_from(["F", "", None, "a b", 5])},
    optional={"inputs": st.deferred(lambda: INPUTS), "anonymous": JSON},
)
INPUT = st.deferred(
    lambda: st.fixed_dictionaries(
        {},
        optional={
            "name": st.sampled_from(["a", "b", "", "memory", "a b", "é", None, 5]),
            "type": st.sampled_from(
                [
                    *(
                        "uint8",
                        "address",
                        "string",
                        "tuple",
                        "tuple[2]",
                        "uint8[²]",
                        "uint8[",
                        "uint8[0]",
                        "uint8[1][]",
                    ),
                    *("tuple[]x", 5, "uint08", "uint" + "9" * 5_000, "uint8[" + "9" * 5_000 + "]"),
                ]
            ),
            "indexed": JSON,
            "components": INPUTS,
        },
    )
)
INPUTS: Any = st.none() | st.lists(INPUT | JSON, max_size=3)


@given(st.lists(ENTRY, max_size=3) | JSON)
def test_any_abi_is_read_and_its_events_can_be_written(value: Any) -> None:
    events = read_abi(value)
    for event in () if isinstance(events, str) else events:
        again = read_signature(event.full)
        assert isinstance(again, AbiEvent), (event.full, again)
        assert (again.canonical, [parameter.name for parameter in again.parameters]) == (
            event.canonical,
            [parameter.name for parameter in event.parameters],
        )


@given(st.text(alphabet="F(), []uint8address indexed²9_$;tuple", max_size=60))
def test_any_text_is_read_as_a_signature_without_raising(text: str) -> None:
    event = read_signature(text)
    assert isinstance(event, str) or read_signature(event.full) != ""


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"name": "a", "type": "uint8"}
    for _ in range(depth):
        inner = {"name": "a", "type": "tuple", "components": [inner]}
    return inner


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (
            [{"name": "a", "type": "uint8[²]"}],
            "has an error in event F: inputs[0].type is 'uint8[²]', which is not an ABI type",
        ),
        (
            [{"name": "a", "type": "uint8[3"}],
            "has an error in event F: inputs[0].type is 'uint8[3', which is not an ABI type",
        ),
        ([{"name": "a", "type": "uint8[0]"}], "has an array of length 0: a fixed length is 1 to 65,536"),
        (
            [{"name": "a", "type": "tuple", "components": None}],
            "has an error in event F: inputs[0].components is missing: it must be an array",
        ),
        (
            [{"name": "a", "type": "tuple[]", "components": {}}],
            "has an error in event F: inputs[0].components is {}: it must be an array",
        ),
        (
            [{"name": "a", "type": "tuple", "components": [5]}],
            "has an error in event F: inputs[0].components[0] has no type",
        ),
        ([nested(5_00)], "has an error in event F: inputs nest types more than 8 levels deep"),
        (
            [{"name": "a", "type": "uint8" + "[]" * 9}],
            "has an error in event F: inputs[0].type nests types more than 8 levels deep",
        ),
        ([{"name": "a", "type": "bool"}] * 2, "has two parameters called 'a'"),
        (
            [{"name": "t", "type": "tuple[]", "components": [{"name": "a", "type": "bool"}] * 2}],
            "has two parameters called 'a' in t",
        ),
        (
            [{"name": "a b", "type": "bool"}],
            "has an error in event F: inputs[0].name is 'a b', which is not a valid name",
        ),
        (
            [{"name": "memory", "type": "bool"}],
            "has an error in event F: inputs[0].name is 'memory', which is not a valid name",
        ),
        (
            [{"name": "a", "type": "bool", "indexed": "no"}],
            "has an error in event F: inputs[0].indexed is 'no': it must be true or false",
        ),
        ([{"name": "a", "type": "uint08"}], f"has the type 'uint08', {NO_TYPE}"),
    ],
)
def test_an_invalid_abi_returns_the_reason_with_its_path(inputs: list[Any], reason: str) -> None:
    assert read_abi([{"type": "event", "name": "F", "inputs": inputs}]) == reason


def test_anonymous_events_are_left_out() -> None:
    events = [{"type": "event", "name": "LogNote", "inputs": [], "anonymous": True}, {"type": "event", "name": "F"}]
    parsed = read_abi(events)
    assert [event.name for event in parsed if isinstance(event, AbiEvent)] == ["F"]
    assert read_abi(events[:1]) == "has only anonymous events, like LogNote: their logs cannot be identified"


def test_a_value_in_the_wrong_form_is_refused_with_the_right_form() -> None:
    kind: AbiType = AbiWord("uint", 8)
    assert value_problem(kind, "5") == "must be of type uint8, as a number: write 5"
    assert value_problem(AbiWord("uint", 256), 5) == "must be of type uint256, as a string of its digits: write '5'"
