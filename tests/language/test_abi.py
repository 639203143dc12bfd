"""Signatures and ABIs of contract events, and addresses, are parsed and checked."""

import json
import sys

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
    checksum_address,
    event_topic,
    read_abi,
    read_signature,
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
