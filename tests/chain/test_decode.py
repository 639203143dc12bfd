"""Values of logs: examples from the specification of the ABI, and data that no contract should send."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.chain.decode import Decoder, UndecodableError
from workbench.language.abi import AbiEvent, read_signature, value_problem

TOPIC = "0x" + "11" * 32
ANN, BOB = "0x" + "ab" * 20, "0x" + "cd" * 20


def decoder(signature: str) -> Decoder:
    declared = read_signature(signature)
    assert isinstance(declared, AbiEvent), declared
    return Decoder(declared)


def data(*parts: int | str) -> str:
    """Return words in hex: numbers, or texts padded on the right."""
    words = [f"{part % 2**256:064x}" if isinstance(part, int) else part.encode().hex().ljust(64, "0") for part in parts]
    return "0x" + "".join(words)


def topics(*parts: int) -> list[str]:
    return [TOPIC, *(f"0x{part % 2**256:064x}" for part in parts)]


def test_one_signature_reads_tokens_and_nfts() -> None:
    transfer = decoder("Transfer(address,address,uint256)")
    ann, bob = int(ANN, 16), int(BOB, 16)
    expected = {"from": ANN, "to": BOB, "value": str(10**30)}
    assert transfer.args(topics(ann, bob), data(10**30)) == expected
    assert transfer.args(topics(ann, bob, 10**30), "0x") == expected
    assert transfer.args(topics(), data(ann, bob, 10**30)) == expected


def test_integer_types_up_to_48_bits_are_numbers_and_larger_ones_texts() -> None:
    read = decoder("F(uint48 a, int8 b, uint56 c, int256 d, bool e, bytes4 f)")
    values = data(2**48 - 1, -1, 1, -(2**255), 1, "abcd")
    assert read.args(topics(), values) == {
        "a": 2**48 - 1,
        "b": -1,
        "c": "1",
        "d": str(-(2**255)),
        "e": True,
        "f": "0x61626364",
    }


def test_indexed_parameters_may_be_anywhere_and_indexed_texts_are_hashes() -> None:
    read = decoder("F(string a, address indexed b, string indexed c)")
    args = read.args(topics(int(ANN, 16), 5), data(32, 2, "hi"))
    assert args == {"a": "hi", "b": ANN, "c": f"0x{5:064x}"}


def test_nested_texts_arrays_and_tuples_are_decoded() -> None:
    read = decoder("F(string s, uint8[] n, (uint256 x, bytes y)[] t, uint8[2] two)")
    args = read.args(topics(), data(160, 224, 320, 8, 9, 2, "hi", 2, 7, 8, 1, 32, 9, 64, 3, "abc"))
    assert args == {"s": "hi", "n": [7, 8], "t": [{"x": "9", "y": "0x616263"}], "two": [8, 9]}


def test_characters_that_jsonb_refuses_are_replaced() -> None:
    raw = data(32, 3) + b"a\0\xff".hex().ljust(64, "0")
    assert decoder("F(string s)").args(topics(), raw) == {"s": "a\ufffd\ufffd"}


@pytest.mark.parametrize(
    ("signature", "raw"),
    [
        ("F(uint256 a)", "0x"),
        ("F(uint256 a)", "0xzz"),
        ("F(string a)", data(2**255)),
        ("F(string a)", data(32, 2**255)),
        ("F(uint256[] a)", data(32, 2**255)),
        ("F(uint256[][][][][] a)", data(32, 4_000, *[0] * 10)),
        ("F(bytes a)", "0x" + "00" * 70_000),
        ("F(uint8[60000] a)", data(1)),
        ("F(uint8 a)", data(256)),
        ("F(int16 a)", data(32_768)),
    ],
)
def test_data_that_does_not_fit_the_event_is_an_error(signature: str, raw: str) -> None:
    with pytest.raises(UndecodableError):
        decoder(signature).args(topics(), raw)


def test_more_topics_than_parameters_is_an_error() -> None:
    with pytest.raises(UndecodableError):
        decoder("F(uint256 a)").args(topics(1, 2), "0x")


def test_nested_arrays_without_data_are_refused_early() -> None:
    with pytest.raises(UndecodableError, match="is shorter"):
        decoder("F(uint8[1000][1000][1000] a)").args(topics(), data(*[1] * 10))


def test_a_text_with_many_pointers_to_it_is_counted_every_time() -> None:
    offsets = [1_000 * 32] * 1_000
    with pytest.raises(UndecodableError, match="strings of more than 65,536 bytes"):
        decoder("F(bytes[] a)").args(topics(), data(32, 1_000, *offsets, 1_000, *["x" * 32] * 32))


def test_a_signature_that_is_nested_too_deeply_is_refused() -> None:
    assert not isinstance(read_signature(f"F(uint8{'[1]' * 300} a)"), AbiEvent)


WORDS = st.sampled_from(
    ["uint8", "uint48", "uint56", "uint256", "int8", "int128", "bool", "address", "bytes4", "bytes32"]
)
TYPES = st.recursive(
    WORDS | st.sampled_from(["string", "bytes"]),
    lambda inner: (
        st.builds(lambda of, length: f"{of}[{length}]", inner, st.sampled_from(["", 1, 2]))
        | st.lists(inner, min_size=1, max_size=2).map(
            lambda parts: f"({', '.join(f'{part} p{position}' for position, part in enumerate(parts))})"
        )
    ),
    max_leaves=4,
)
SMALL = st.sampled_from([0, 1, 2, 32, 64, 96, 255, 256, 2**48, 2**160 - 1, 2**255, 2**256 - 1])


@given(st.lists(TYPES, min_size=1, max_size=3), st.lists(SMALL, max_size=12))
def test_every_decoded_value_has_its_type(kinds: list[str], words: list[int]) -> None:
    declared = read_signature(f"F({', '.join(f'{kind} a{position}' for position, kind in enumerate(kinds))})")
    assert isinstance(declared, AbiEvent)
    with contextlib.suppress(UndecodableError):
        args = Decoder(declared).args(topics(), data(*words))
        assert [value_problem(parameter.type, args[parameter.name]) for parameter in declared.parameters] == [
            None
        ] * len(kinds)
