"""Signatures and ABIs of contract events, and addresses, are parsed and checked."""

import json
import sys
from typing import Any

import pytest

from workbench.language.abi import (
    AbiArray,
    AbiBytes,
    AbiEvent,
    AbiParameter,
    AbiTuple,
    AbiWord,
    _keccak,
    address_problem,
    argument_problem,
    checksum_address,
    event_topic,
    normalize_argument,
    read_abi,
    read_signature,
    value_problem,
)

ADDRESS = AbiWord("address", 20)


def declared(text: str) -> AbiEvent:
    event = read_signature(text)
    assert isinstance(event, AbiEvent), event
    return event


def test_a_signature_declares_names_and_indexed_parameters() -> None:
    event = declared("event Transfer(address indexed from, address indexed to, uint value);")
    assert event == AbiEvent(
        "Transfer",
        (
            AbiParameter("from", ADDRESS, True),
            AbiParameter("to", ADDRESS, True),
            AbiParameter("value", AbiWord("uint", 256), False),
        ),
    )
    assert event_topic(event.canonical) == "0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef"


def test_a_bare_signature_gets_standard_or_numbered_names() -> None:
    assert [parameter.name for parameter in declared("Transfer(address,address,uint256)").parameters] == [
        "from",
        "to",
        "value",
    ]
    assert [parameter.name for parameter in declared("Moved(address,bool)").parameters] == ["arg0", "arg1"]
    assert {parameter.indexed for parameter in declared("Moved(address,bool)").parameters} == {None}


def test_nested_tuples_and_arrays_are_read() -> None:
    event = declared("Filled((address maker, uint8[2][] parts) order, string[] notes)")
    parts = AbiArray(AbiArray(AbiWord("uint", 8), 2), None)
    order = AbiTuple((AbiParameter("maker", ADDRESS), AbiParameter("parts", parts)))
    assert [parameter.type for parameter in event.parameters] == [order, AbiArray(AbiBytes("string"), None)]
    assert event.canonical == "Filled((address,uint8[2][]),string[])"
    assert declared(event.full) == event


NO_TYPE = "which is not an ABI type: write address for a contract or interface, uint8 for an enum, a tuple for a struct"
INCOMPLETE = "is not complete: write it like Transfer(address,address,uint256)"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", INCOMPLETE),
        ("Transfer", INCOMPLETE),
        ("Transfer(address", INCOMPLETE),
        ("Transfer(address,)", "has ')' where a type like address should be"),
        ("Transfer(IERC20 token)", f"has the type 'IERC20', {NO_TYPE}"),
        ("Transfer(uint7 x)", f"has the type 'uint7', {NO_TYPE}"),
        ("Transfer(bytes33 x)", f"has the type 'bytes33', {NO_TYPE}"),
        ("Transfer(address a b)", "has 'b' after the name 'a': a comma is missing"),
        ("Transfer(address a, bool a)", "has two parameters called 'a'"),
        ("Transfer(address) anonymous", "declares an anonymous event: its logs cannot be identified"),
        ("Transfer(address) x", "has 'x' after its end"),
        (
            "F(uint indexed a, uint indexed b, uint indexed c, uint indexed d)",
            "has 4 indexed parameters: an event has at most 3",
        ),
        ("F(uint[0] a)", "has an array of length 0: a fixed length is 1 to 65,536"),
        ("F(" + "(" * 50, "nests types more than 8 levels deep"),
        ("F(é)", "has 'é)', which is not valid in a signature"),
        ("F(" + "uint a," * 1_000, "has 7,002 characters, at most 2,000 are allowed"),
    ],
)
def test_an_invalid_signature_returns_the_reason(text: str, reason: str) -> None:
    assert read_signature(text) == reason


def test_an_abi_returns_its_events() -> None:
    inputs = [
        {"name": "from", "type": "address", "indexed": True},
        {"name": "", "type": "tuple[2]", "components": [{"name": "x", "type": "uint256"}], "indexed": False},
    ]
    abi = [{"type": "function", "name": "f"}, {"type": "event", "name": "Sent", "inputs": inputs}]
    for value in (abi, {"abi": abi}, abi[1]):
        events = read_abi(json.loads(json.dumps(value)))
        assert not isinstance(events, str)
        assert [event.full for event in events] == ["Sent(address indexed from, (uint256 x)[2] arg1)"]


NO_ABI = "is not an ABI: it must be an array of objects, each with a type and a name"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, NO_ABI),
        (5, NO_ABI),
        ([1], NO_ABI),
        ({"abi": 5}, NO_ABI),
        ([], "declares no event"),
        ([{"type": "function"}], "declares no event"),
        ([{"type": "event"}], "has an event with an invalid name: missing"),
        ([{"type": "event", "name": "A b"}], "has an event with an invalid name: 'A b'"),
        (
            [{"type": "event", "name": "A", "anonymous": True}],
            "has only anonymous events, like A: their logs cannot be identified",
        ),
    ],
)
def test_an_invalid_abi_is_refused(value: object, reason: str) -> None:
    assert read_abi(value) == reason


def test_a_mixed_case_address_must_match_its_checksum() -> None:
    mixed = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    assert checksum_address(mixed.lower()) == mixed
    for fine in (mixed, mixed.lower(), "0x" + mixed[2:].upper()):
        assert address_problem(fine) is None
    wrong = "has a wrong checksum: a digit or its case is wrong. Write it in lower case to skip the check"
    assert address_problem(mixed.replace("aAe", "aae")) == wrong
    for other in (None, 5, "", "0x12", mixed[2:], mixed + "0", "ada.eth"):
        assert address_problem(other) == "must be an address: 0x and 40 hexadecimal digits"


def test_the_package_with_the_missing_hash_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eth_hash.auto", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'need eth-hash: pip install "event-workbench\[notebook\]"'):
        _keccak.__wrapped__()


def word(kind: str, size: int) -> AbiWord:
    return AbiWord(kind, size)


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("A(bool a,address b,bytes1 c,bytes32 d)", [word("bool", 1), ADDRESS, word("bytes", 1), word("bytes", 32)]),
        ("A(uint8 a,int256 b,int c)", [word("uint", 8), word("int", 256), word("int", 256)]),
        ("A(bool[1] a,bool[65536] b)", [AbiArray(word("bool", 1), 1), AbiArray(word("bool", 1), 65_536)]),
        ("A(tuple(uint8 x)[] a)", [AbiArray(AbiTuple((AbiParameter("x", word("uint", 8)),)), None)]),
    ],
)
def test_each_type_is_read(text: str, kinds: list[object]) -> None:
    assert [parameter.type for parameter in declared(text).parameters] == kinds


def test_the_full_declaration_names_the_parts_of_tuples() -> None:
    event = declared("A((bool ok,(address to,uint8[] parts) inner)[2] order,bytes data)")
    assert event.full == "A((bool ok, (address to, uint8[] parts) inner)[2] order, bytes data)"
    assert event.canonical == "A((bool,(address,uint8[]))[2],bytes)"


def test_the_largest_signatures() -> None:
    assert declared(f"A(bool {'x' * 1_991});").parameters[0].name == "x" * 1_991  # 2,000 characters
    assert read_signature(f"A(bool {'x' * 1_992});") == "has 2,001 characters, at most 2,000 are allowed"
    deep = "nests types more than 8 levels deep"
    for fits, exceeds in (
        ("A(bool" + "[]" * 7 + ")", "A(bool" + "[]" * 8 + ")"),
        ("A(bool,bool" + "[]" * 7 + ")", "A(bool,bool" + "[]" * 8 + ")"),
        ("A(" + "(" * 7 + "bool" + ")" * 7 + ")", "A(" + "(" * 8 + "bool" + ")" * 8 + ")"),
        ("A(" + "((" * 3 + "bool[]" + "),bool)" * 3 + ")", "A(" + "((" * 4 + "bool" + "),bool)" * 4 + ")"),
    ):
        declared(fits)
        assert read_signature(exceeds) == deep
    assert len(declared("A(bool indexed a,bool indexed b,bool indexed c)").parameters) == 3
    four = "A(bool indexed a,bool indexed b,bool indexed c,bool indexed d)"
    assert read_signature(four) == "has 4 indexed parameters: an event has at most 3"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("5(bool)", "has '5' where the name of the event should be"),
        ("A bool", "has 'bool' where '(' should be"),
        ("A(bool (", "has '(' where ',' should be"),
        ("A(bool) %234567890123", "has '%234567890', which is not valid in a signature"),
        ("A(bool[0])", "has an array of length 0: a fixed length is 1 to 65,536"),
        ("A(bool[65537])", "has an array of length 65537: a fixed length is 1 to 65,536"),
        ("A(bool[x])", "has an array of length x: a fixed length is 1 to 65,536"),
        (
            "A(bool[123456789012345678901])",
            "has an array of length 12345678901234567890: a fixed length is 1 to 65,536",
        ),
        ("A(uint264 a)", f"has the type 'uint264', {NO_TYPE}"),
        ("A(uint0008 a)", f"has the type 'uint0008', {NO_TYPE}"),
        ("A(bytes0 a)", f"has the type 'bytes0', {NO_TYPE}"),
        (f"A({'x' * 41} a)", f"has the type '{'x' * 40}', {NO_TYPE}"),
    ],
)
def test_the_reason_why_a_signature_is_not_read(text: str, reason: str) -> None:
    assert read_signature(text) == reason


def test_only_a_signature_without_names_gets_those_of_a_standard() -> None:
    names = [parameter.name for parameter in declared("Transfer(address arg0,address to,uint256 value)").parameters]
    assert names == ["arg0", "to", "value"]


def test_the_types_of_an_abi() -> None:
    def nested(depth: int) -> list[object]:
        inner: list[object] = [{"type": "bool", "name": "x"}]
        for _ in range(depth):
            inner = [{"type": "tuple", "name": "t", "components": inner}]
        return inner

    inputs = [
        {"type": "bool", "name": "a"},
        {"type": "uint8[2][]", "name": "b", "indexed": True},
        {"type": "tuple[3]", "name": "", "components": [{"type": "bytes", "name": "x"}]},
    ]
    assert read_abi({"type": "event", "name": "A", "inputs": inputs}) == [
        AbiEvent(
            "A",
            (
                AbiParameter("a", word("bool", 1), False),
                AbiParameter("b", AbiArray(AbiArray(word("uint", 8), 2), None), True),
                AbiParameter("arg2", AbiArray(AbiTuple((AbiParameter("x", AbiBytes("bytes"), False),)), 3), False),
            ),
        )
    ]
    assert isinstance(read_abi({"type": "event", "name": "A", "inputs": nested(7)}), list)
    assert read_abi({"type": "event", "name": "A", "inputs": nested(8)}) == (
        "has an error in event A: inputs nest types more than 8 levels deep"
    )
    deepest = [{"type": "bool" + "[]" * 7, "name": "x"}]
    assert isinstance(read_abi({"type": "event", "name": "A", "inputs": deepest}), list)
    assert read_abi({"type": "event", "name": "A", "inputs": [{"type": "bool" + "[]" * 8}]}) == (
        "has an error in event A: inputs[0].type nests types more than 8 levels deep"
    )
    assert read_abi({"type": "event", "name": "A", "inputs": [{"type": "bool", "name": "9" * 50}]}) == (
        f"has an error in event A: inputs[0].name is '{'9' * 39}, which is not a valid name"
    )


@pytest.mark.parametrize(
    ("kind", "value", "normalized"),
    [
        (word("uint", 48), "5", 5),
        (word("uint", 48), 5, 5),
        (word("uint", 56), 5, "5"),
        (word("uint", 56), "5", "5"),
        (word("uint", 8), "x", "x"),
        (word("uint", 8), "1" * 100, int("1" * 100)),
        (word("uint", 8), "1" * 101, "1" * 101),
        (word("bytes", 2), "0xAB", "0xab"),
        (AbiBytes("bytes"), "0xAB", "0xab"),
        (AbiBytes("string"), "AB", "AB"),
        (word("bool", 1), True, True),
        (AbiArray(ADDRESS, None), ["0xAB", 5], ["0xab", 5]),
        (AbiArray(ADDRESS, None), "0xAB", "0xAB"),
        (AbiTuple((AbiParameter("a", ADDRESS),)), {"a": "0xAB", "b": "0xAB"}, {"a": "0xab", "b": "0xAB"}),
        (AbiTuple((AbiParameter("a", ADDRESS),)), "0xAB", "0xAB"),
    ],
)
def test_a_hand_written_value_gets_the_form_of_a_log(kind: AbiWord, value: Any, normalized: Any) -> None:
    assert normalize_argument(kind, value) == normalized


@pytest.mark.parametrize(
    ("indexed", "value", "problem"),
    [
        (None, "0x" + "ab" * 32, None),
        (None, "text", None),
        (None, 5, "must be of type string"),
        (False, 5, "must be of type string"),
        (True, "0x" + "ab" * 32, None),
        (
            True,
            "0x" + "ab" * 31,
            "must be 0x and 64 hexadecimal digits: a log contains only the hash of an indexed string",
        ),
        (True, "t", "must be 0x and 64 hexadecimal digits: a log contains only the hash of an indexed string"),
    ],
)
def test_an_indexed_text_is_a_hash(indexed: bool | None, value: Any, problem: str | None) -> None:
    assert argument_problem(AbiParameter("a", AbiBytes("string"), indexed), value) == problem
    assert argument_problem(AbiParameter("a", word("uint", 8), indexed), 5) is None


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (AbiArray(word("bool", 1), None), "x", "must be of type bool[]: an array"),
        (AbiArray(word("bool", 1), None), 5, "must be of type bool[]: an array"),
        (AbiArray(word("bool", 1), 2), [True], "must be of type bool[2]: an array of 2 values"),
        (AbiArray(word("bool", 1), 2), [True, 5], "[1] must be of type bool: true or false"),
        (word("uint", 48), 2**48 - 1, None),
        (word("uint", 48), 2**48, f"must be of type uint48: 0 to {2**48 - 1}"),
        (word("uint", 48), "5", "must be of type uint48, as a number: write 5"),
        (word("int", 56), 5, "must be of type int56, as a string of its digits: write '5'"),
        (word("int", 8), 128, "must be of type int8: -128 to 127"),
        (word("int", 8), -128, None),
    ],
)
def test_a_value_of_another_type_is_named(kind: AbiWord, value: Any, problem: str | None) -> None:
    assert value_problem(kind, value) == problem


def test_a_wrong_first_digit_of_an_address_is_found() -> None:
    right = checksum_address("0x" + "ab" * 20)
    assert address_problem(right) is None
    assert address_problem("0xa" + right[3:].lower()) is None
    assert (address_problem("0x" + right[2].swapcase() + right[3:]) or "").startswith("has a wrong checksum")
    assert (address_problem("0xA" + "a" * 39) or "").startswith("has a wrong checksum")
