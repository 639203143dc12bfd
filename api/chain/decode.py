"""Values of a log, as JSON: by the declaration of its event, without a library (web3 takes 150 times as long).

Numbers of up to 48 bits are numbers, larger types are texts of all their digits, whatever the value, so that a filter on a
parameter always compares with the same kind. Addresses and bytes are `0x…` in lower case. An indexed text, array or
tuple is in the log as its hash only, and that is its value. What a log holds is a contract's choice: no log breaks the reader.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from api.language.abi import Array, Declared, Parameter, Text, Tuple, Type, Word, written
from api.language.arguments import SAFE_BITS, bounds

MOST_DATA = 65_536  # bytes of a log that are looked into
MOST_VALUES = 4_096  # of one log: a few words can claim to be any number of values

_WORD = 32

Read: TypeAlias = Callable[["_Data", int, int], Any]
"""Reads a value whose head is at an offset, of a sequence that begins at another."""


class UndecodableError(ValueError):
    """The log does not hold what its event declares."""


class _Data:
    """The data of a log, how many more values it may be taken for, and how many bytes of texts these may have."""

    __slots__ = ("bytes_left", "left", "raw")

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self.left = MOST_VALUES
        self.bytes_left = MOST_DATA

    def word(self, at: int) -> bytes:
        word = self.raw[at : at + _WORD]
        if len(word) < _WORD:
            raise UndecodableError("is shorter than its event")
        return word

    def number(self, at: int) -> int:
        return int.from_bytes(self.word(at), "big")

    def count(self, values: int) -> None:
        self.left -= values
        if self.left < 0:
            raise UndecodableError(f"holds more than {MOST_VALUES} values")

    def take(self, size: int) -> None:
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise UndecodableError(f"holds texts of more than {MOST_DATA:,} bytes together")


class Decoder:
    """Reads the logs of one event."""

    def __init__(self, declared: Declared) -> None:
        self._parameters = declared.parameters
        self._of_words = [_of_word(each.type) for each in self._parameters]
        said = all(each.indexed is not None for each in self._parameters)
        self._declared = tuple(bool(each.indexed) for each in self._parameters) if said else None
        self._readers: dict[tuple[bool, ...], Read] = {}

    def args(self, topics: Sequence[str], data: str) -> dict[str, Any]:
        """Return the values by name; `topics` and `data` in hex as nodes send them. Raise UndecodableError."""
        if len(data) > 2 + 2 * MOST_DATA:
            raise UndecodableError(f"has more than {MOST_DATA:,} bytes of data")
        indexed = self._indexed(len(topics) - 1)
        try:
            words = iter([bytes.fromhex(topic[2:]) for topic in topics[1:]])
            raw = bytes.fromhex(data[2:])
        except ValueError:
            raise UndecodableError("is not hexadecimal") from None
        values = iter(self._reader(indexed)(_Data(raw), 0, 0))
        args = {}
        for each, of_word, is_topic in zip(self._parameters, self._of_words, indexed, strict=True):
            args[each.name] = of_word(next(words)) if is_topic else next(values)
        return args

    def _indexed(self, topics: int) -> tuple[bool, ...]:
        """Return which parameters are topics: as declared, else the first ones, as many as there are topics."""
        if self._declared is not None and sum(self._declared) == topics:
            return self._declared
        if topics > len(self._parameters):
            raise UndecodableError("has more topics than its event has parameters")
        return tuple(position < topics for position in range(len(self._parameters)))

    def _reader(self, indexed: tuple[bool, ...]) -> Read:
        reader = self._readers.get(indexed)
        if reader is None:
            in_data = [each.type for each, is_topic in zip(self._parameters, indexed, strict=True) if not is_topic]
            reader = self._readers[indexed] = _sequence(in_data)
        return reader


def _sequence(kinds: Sequence[Type]) -> Read:
    """Return what reads values that stand side by side."""
    reads: list[tuple[int, Read]] = []
    size = 0
    for kind in kinds:
        reads.append((size, _behind_offset(_of(kind)) if _is_dynamic(kind) else _of(kind)))
        size += _size(kind)

    def read(data: _Data, at: int, _: int) -> list[Any]:
        data.count(len(reads))
        return [each(data, at + offset, at) for offset, each in reads]

    return read


def _behind_offset(read: Read) -> Read:
    def behind(data: _Data, at: int, base: int) -> Any:
        start = base + data.number(at)
        if start > len(data.raw):
            raise UndecodableError("points past its end")
        return read(data, start, start)

    return behind


def _of(kind: Type) -> Read:
    """Return what reads a value where it stands."""
    match kind:
        case Word():
            of_word = _of_word(kind)
            return lambda data, at, _: of_word(data.word(at))
        case Text(kind=name):
            return _string if name == "string" else _bytes
        case Array(of=of, length=length):
            return _many(of) if length is None else _sequence_of(of, length)
        case Tuple(parts=parts):
            return _together(parts)


def _many(of: Type) -> Read:
    each = _alike(of)

    def read(data: _Data, at: int, _: int) -> Any:
        return each(data, at + _WORD, data.number(at))

    return read


def _sequence_of(of: Type, length: int) -> Read:
    each = _alike(of)
    return lambda data, at, _: each(data, at, length)


def _alike(of: Type) -> Callable[[_Data, int, int], list[Any]]:
    """Return what reads so many values of one type that stand side by side."""
    size, one = _size(of), _behind_offset(_of(of)) if _is_dynamic(of) else _of(of)

    def read(data: _Data, at: int, length: int) -> list[Any]:
        data.count(length)
        return [one(data, at + number * size, at) for number in range(length)]

    return read


def _together(parts: Sequence[Parameter]) -> Read:
    names, read = [each.name for each in parts], _sequence([each.type for each in parts])
    return lambda data, at, base: dict(zip(names, read(data, at, base), strict=True))


def _bytes(data: _Data, at: int, _: int) -> str:
    return "0x" + _content(data, at).hex()


def _string(data: _Data, at: int, _: int) -> str:
    return _content(data, at).decode(errors="replace").replace("\0", "\ufffd")  # jsonb has no NUL


def _content(data: _Data, at: int) -> bytes:
    length, start = data.number(at), at + _WORD
    if length > len(data.raw) - start:
        raise UndecodableError("is shorter than its event")
    data.take(length)
    return data.raw[start : start + length]


def _of_word(kind: Type) -> Callable[[bytes], Any]:
    """Return what makes a value of a word; of a topic that is a hash, the hash."""
    match kind:
        case Word(kind="address"):
            return lambda word: "0x" + word[12:].hex()
        case Word(kind="bool"):
            return any
        case Word(kind="bytes", size=size):
            return lambda word: "0x" + word[:size].hex()
        case Word(kind="uint" | "int" as name, size=bits):
            return _of_number(kind, signed=name == "int", is_text=bits > SAFE_BITS)
        case _:
            return lambda word: "0x" + word.hex()


def _of_number(kind: Word, *, signed: bool, is_text: bool) -> Callable[[bytes], Any]:
    least, greatest = bounds(kind)

    def read(word: bytes) -> int | str:
        number = int.from_bytes(word, "big", signed=signed)
        if not least <= number <= greatest:
            raise UndecodableError(f"holds a number that is no {written(kind)}")
        return str(number) if is_text else number

    return read


def _is_dynamic(kind: Type) -> bool:
    match kind:
        case Word():
            return False
        case Text() | Array(length=None):
            return True
        case Array(of=of):
            return _is_dynamic(of)
        case Tuple(parts=parts):
            return any(_is_dynamic(each.type) for each in parts)


def _size(kind: Type) -> int:
    """Return how many bytes a value takes in the sequence it stands in."""
    if _is_dynamic(kind):
        return _WORD
    match kind:
        case Array(of=of, length=length):
            return _size(of) * (length or 0)
        case Tuple(parts=parts):
            return sum(_size(each.type) for each in parts)
        case _:
            return _WORD
