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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not complete"),
        ("Transfer", "not complete"),
        ("Transfer(address", "not complete"),
        ("Transfer(address,)", "where a type"),
        ("Transfer(IERC20 token)", "write address for a contract or interface"),
        ("Transfer(uint7 x)", "uint7"),
        ("Transfer(bytes33 x)", "bytes33"),
        ("Transfer(address a b)", "a comma is missing"),
        ("Transfer(address a, bool a)", "two parameters called 'a'"),
        ("Transfer(address) anonymous", "anonymous"),
        ("Transfer(address) x", "after its end"),
        ("F(uint indexed a, uint indexed b, uint indexed c, uint indexed d)", "at most 3"),
        ("F(uint[0] a)", "length 0"),
        ("F(" + "(" * 50, "deep"),
        ("F(é)", "not valid in a signature"),
        ("F(" + "uint a," * 1_000, "2,000"),
    ],
)
def test_an_invalid_signature_returns_the_reason(text: str, reason: str) -> None:
    result = read_signature(text)
    assert isinstance(result, str)
    assert reason in result


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


@pytest.mark.parametrize(
    "value", [None, 5, [], [1], {"abi": 5}, [{"type": "event"}], [{"type": "event", "name": "A", "inputs": [{}]}]]
)
def test_an_invalid_abi_is_refused(value: object) -> None:
    assert isinstance(read_abi(value), str)


def test_a_mixed_case_address_must_match_its_checksum() -> None:
    mixed = "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed"
    assert checksum_address(mixed.lower()) == mixed
    for fine in (mixed, mixed.lower(), "0x" + mixed[2:].upper()):
        assert address_problem(fine) is None
    assert "checksum" in str(address_problem(mixed.replace("aAe", "aae")))
    for other in (None, 5, "", "0x12", mixed[2:], mixed + "0", "ada.eth"):
        assert "must be an address" in str(address_problem(other))


def test_the_package_with_the_missing_hash_function_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "eth_hash.auto", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r'need eth-hash: pip install "event-workbench\[notebook\]"'):
        _keccak.__wrapped__()
