"""Declarations of contract events: what a signature says, as Solidity and Vyper write it. Reading never raises.

`Transfer(address indexed from, address indexed to, uint256 value)` says everything; of `Transfer(address,address,uint256)` the
names come from the standards, for events that everybody knows, and are `arg0`, `arg1` … for others. Which parameters are
indexed is then the first ones, as many as a log has topics for.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

MAX_SIGNATURE = 2_000  # characters
MAX_DEPTH = 8  # of arrays and tuples in each other
MAX_TOPICS = 3  # indexed parameters of an event

_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*|\d+|[()\[\],;])", re.ASCII)
_NUMBER = re.compile(r"(u?int)(\d*)", re.ASCII)
_BYTES = re.compile(r"bytes(\d+)", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_WORDS = frozenset({"indexed", "memory", "calldata", "storage", "payable"})
_STANDARD = (
    "Transfer(address from,address to,uint256 value)",
    "Approval(address owner,address spender,uint256 value)",
    "ApprovalForAll(address owner,address operator,bool approved)",
    "TransferSingle(address operator,address from,address to,uint256 id,uint256 value)",
    "TransferBatch(address operator,address from,address to,uint256[] ids,uint256[] values)",
    "Deposit(address dst,uint256 wad)",
    "Withdrawal(address src,uint256 wad)",
    "Deposit(address sender,address owner,uint256 assets,uint256 shares)",
    "Withdraw(address sender,address receiver,address owner,uint256 assets,uint256 shares)",
    "OwnershipTransferred(address previousOwner,address newOwner)",
)


class Word(msgspec.Struct, frozen=True):
    """A value of one word: `uint256`, `int8`, `address`, `bool`, `bytes32`. `size`: bits of a number, bytes of `bytes32`."""

    kind: str
    size: int


class Text(msgspec.Struct, frozen=True):
    """A value of any length: `bytes` or `string`."""

    kind: str


class Array(msgspec.Struct, frozen=True):
    """Values of one type; `length` None: as many as the log says."""

    of: "Type"
    length: int | None


class Tuple(msgspec.Struct, frozen=True):
    """Values side by side, a struct of Solidity."""

    parts: "tuple[Parameter, ...]"


Type: TypeAlias = Word | Text | Array | Tuple


class Parameter(msgspec.Struct, frozen=True):
    """One value of an event. `indexed` None: the signature does not say."""

    name: str
    type: Type
    indexed: bool | None = None


class Declared(msgspec.Struct, frozen=True):
    """An event of a contract."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def canonical(self) -> str:
        """The signature that is hashed: `Transfer(address,address,uint256)`."""
        return f"{self.name}({','.join(written(each.type) for each in self.parameters)})"

    @property
    def full(self) -> str:
        """The signature with all it says: names, and which parameters are indexed."""
        return f"{self.name}({', '.join(map(_declared, self.parameters))})"

    def parameter(self, name: str) -> Parameter | None:
        """Return the parameter of a name."""
        return next((each for each in self.parameters if each.name == name), None)


class _SignatureError(ValueError):
    """What stands in the way of reading a signature."""


def read_signature(text: str) -> Declared | str:
    """Return the event in a signature, or what is wrong with it."""
    if len(text) > MAX_SIGNATURE:
        return f"has {len(text):,} characters, at most {MAX_SIGNATURE:,} are allowed"
    try:
        return _with_names(_Reader(text).event())
    except _SignatureError as error:
        return str(error)


def read_abi(value: Any) -> list[Declared] | str:
    """Return the events in a decoded ABI (an array of its entries, one entry, or an artifact with `abi`), or what is wrong."""
    if isinstance(value, Mapping):
        value = value.get("abi", [value])
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return "is not an ABI: it is an array of objects, each with a type and a name"
    try:
        events = [_with_names(_from_entry(each)) for each in value if each.get("type") == "event"]
    except _SignatureError as error:
        return str(error)
    return events or "declares no event"


def written(kind: Type) -> str:
    """Return a type as it stands in a canonical signature."""
    match kind:
        case Word(kind=("address" | "bool") as name):
            return name
        case Word(kind=name, size=size):
            return f"{name}{size}"
        case Text(kind=name):
            return name
        case Array(of=of, length=length):
            return f"{written(of)}[{'' if length is None else length}]"
        case Tuple(parts=parts):
            return f"({','.join(written(each.type) for each in parts)})"


def _declared(each: Parameter) -> str:
    return f"{_spoken(each.type)}{' indexed' if each.indexed else ''} {each.name}"


def _spoken(kind: Type) -> str:
    match kind:
        case Tuple(parts=parts):
            return f"({', '.join(f'{_spoken(each.type)} {each.name}' for each in parts)})"
        case Array(of=of, length=length):
            return f"{_spoken(of)}[{'' if length is None else length}]"
        case _:
            return written(kind)


class _Reader:
    """A signature, read from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._depth = 0

    def event(self) -> Declared:
        if self._peek() == "event":
            self._take()
        name = self._name("the name of the event")
        parameters = self._parameters()
        if self._peek() == "anonymous":
            raise _SignatureError("is of an anonymous event: its logs do not say what they are")
        if self._peek() == ";":
            self._take()
        if (rest := self._peek()) is not None:
            raise _SignatureError(f"ends with {rest!r}, which does not belong to it")
        return Declared(name, parameters)

    def _parameters(self) -> tuple[Parameter, ...]:
        self._expect("(")
        found: list[Parameter] = []
        while self._peek() != ")":
            if found:
                self._expect(",")
            found.append(self._parameter(len(found)))
        self._take()
        return tuple(found)

    def _parameter(self, position: int) -> Parameter:
        kind, indexed, name = self._type(), None, ""
        while (word := self._peek()) is not None and _NAME.fullmatch(word):
            self._take()
            if word == "indexed":
                indexed = True
            elif word not in _WORDS and not name:
                name = word
            elif word not in _WORDS:
                raise _SignatureError(f"has {word!r} after the name {name!r}: a comma is missing")
        return Parameter(name or f"arg{position}", kind, indexed)

    def _type(self) -> Type:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _SignatureError(f"has types in each other, more than {MAX_DEPTH} deep")
        if self._peek() == "tuple":
            self._take()
        kind: Type = (
            Tuple(self._parameters()) if self._peek() == "(" else _elementary(self._name("a type like address"))
        )
        dimensions = 0
        while self._peek() == "[":
            dimensions += 1
            if self._depth + dimensions > MAX_DEPTH:
                raise _SignatureError(f"has types in each other, more than {MAX_DEPTH} deep")
            self._take()
            length = None if self._peek() == "]" else self._length()
            self._expect("]")
            kind = Array(kind, length)
        self._depth -= 1
        return kind

    def _length(self) -> int:
        token = self._take()
        if not token.isdigit() or not 0 < int(token) <= 65_536:
            raise _SignatureError(f"has an array of the length {token}: it is 1 to 65,536, or not said")
        return int(token)

    def _name(self, what: str) -> str:
        token = self._take()
        if not _NAME.fullmatch(token):
            raise _SignatureError(f"has {token!r} where {what} should be")
        return token

    def _expect(self, wanted: str) -> None:
        if (token := self._take()) != wanted:
            raise _SignatureError(f"has {token!r} where {wanted!r} should be")

    def _peek(self) -> str | None:
        return self._tokens[0] if self._tokens else None

    def _take(self) -> str:
        if not self._tokens:
            raise _SignatureError("is not complete: write it like Transfer(address,address,uint256)")
        return self._tokens.pop(0)


def _tokens(text: str) -> Iterator[str]:
    end = 0
    while found := _TOKEN.match(text, end):
        yield found[1]
        end = found.end()
    if rest := text[end:].strip():
        raise _SignatureError(f"has {rest[:10]!r}, which no signature has")


def _elementary(name: str) -> Type:
    if name in ("address", "bool"):
        return Word(name, 20 if name == "address" else 1)
    if name in ("bytes", "string"):
        return Text(name)
    if (number := _NUMBER.fullmatch(name)) and _is_width(bits := int(number[2] or 256)):
        return Word(number[1], bits)
    if (size := _BYTES.fullmatch(name)) and 1 <= int(size[1]) <= 32:
        return Word("bytes", int(size[1]))
    raise _SignatureError(
        f"has the type {name!r}, which no ABI has: contracts and interfaces are address, enums are uint8, structs are tuples"
    )


def _is_width(bits: int) -> bool:
    return 8 <= bits <= 256 and bits % 8 == 0


def _from_entry(entry: Mapping[str, Any]) -> Declared:
    name, inputs = entry.get("name"), entry.get("inputs", [])
    if not isinstance(name, str) or not _NAME.fullmatch(name) or not isinstance(inputs, list):
        raise _SignatureError("has an event without a name, or without inputs")
    if entry.get("anonymous"):
        raise _SignatureError(f"has the anonymous event {name}: its logs do not say what they are")
    return Declared(name, tuple(_from_input(each, position, 1) for position, each in enumerate(inputs)))


def _from_input(value: Any, position: int, depth: int) -> Parameter:
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str) or depth > MAX_DEPTH:
        raise _SignatureError("has an input without a type")
    stem, bracket, dimensions = value["type"].partition("[")
    if stem == "tuple":
        parts = value.get("components", [])
        kind: Type = Tuple(tuple(_from_input(each, number, depth + 1) for number, each in enumerate(parts)))
    else:
        kind = _elementary(stem)
    if bracket:
        if depth + dimensions.count("]") > MAX_DEPTH:
            raise _SignatureError(f"has types in each other, more than {MAX_DEPTH} deep")
        for length in (bracket + dimensions).removeprefix("[").removesuffix("]").split("]["):
            if length and not length.isdigit():
                raise _SignatureError(f"has the type {value['type']!r}, which no ABI has")
            kind = Array(kind, int(length) if length else None)
    name = value.get("name")
    return Parameter(name if isinstance(name, str) and name else f"arg{position}", kind, bool(value.get("indexed")))


def _with_names(event: Declared) -> Declared:
    """Return the event with what its standard says where the signature is silent; raise when it cannot be."""
    names = [each.name for each in event.parameters]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise _SignatureError(f"has two parameters called {twice!r}")
    said = [each for each in event.parameters if each.indexed]
    if len(said) > MAX_TOPICS:
        raise _SignatureError(f"has {len(said)} indexed parameters: an event has at most {MAX_TOPICS}")
    if said or any(each.indexed is False for each in event.parameters):
        return Declared(event.name, tuple(_told(each) for each in event.parameters))
    known = _KNOWN.get(event.canonical) if names == [f"arg{number}" for number in range(len(names))] else None
    return known or event


def _told(each: Parameter) -> Parameter:
    return msgspec.structs.replace(each, indexed=bool(each.indexed))


_KNOWN: Mapping[str, Declared] = {
    event.canonical: event for event in (_Reader(signature).event() for signature in _STANDARD)
}
