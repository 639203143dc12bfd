"""Declarations of contract events: what a signature says, as Solidity and Vyper write it. Reading never raises.

`Transfer(address indexed from, address indexed to, uint256 value)` says everything; of `Transfer(address,address,uint256)` the
names come from the standards, for events that everybody knows, and are `arg0`, `arg1` … for others. Which parameters are
indexed is then the first ones, as many as a log has topics for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec

MAX_SIGNATURE = 2_000  # characters
MAX_DEPTH = 8  # of arrays and tuples in each other
MAX_TOPICS = 3  # indexed parameters of an event
MAX_LENGTH = 65_536  # of an array that says its length

_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*|\d+|[()\[\],;])", re.ASCII)
_NUMBER = re.compile(r"(u?int)((?:[1-9]\d*)?)", re.ASCII)
_BYTES = re.compile(r"bytes([1-9]\d*)", re.ASCII)
_DIMENSIONS = re.compile(r"(?:\[\d*\])*", re.ASCII)
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
    """Return the events in a decoded ABI (an array of its entries, one entry, or an artifact with `abi`), or what is wrong.

    Anonymous events are left out: their logs do not say what they are.
    """
    if isinstance(value, Mapping):
        value = value.get("abi", [value])
    if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
        return "is not an ABI: it is an array of objects, each with a type and a name"
    entries = [each for each in value if each.get("type") == "event"]
    try:
        events = [_with_names(_from_entry(each)) for each in entries if each.get("anonymous") is not True]
    except _SignatureError as error:
        return str(error)
    if not events and entries:
        return f"has only anonymous events, like {entries[0].get('name')}: their logs do not say what they are"
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
        return _length(self._take())

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
    if (number := _NUMBER.fullmatch(name[:9])) and len(name) < 9 and _is_width(bits := int(number[2] or 256)):
        return Word(number[1], bits)
    if (size := _BYTES.fullmatch(name[:9])) and len(name) < 9 and 1 <= int(size[1]) <= 32:
        return Word("bytes", int(size[1]))
    raise _SignatureError(
        f"has the type {name[:40]!r}, which no ABI has: contracts and interfaces are address, enums are uint8, structs are tuples"
    )


def _length(token: str) -> int:
    """Return how many values an array has, whose number is written in ASCII digits."""
    if not token.isdecimal() or len(token) > 9 or not 0 < int(token) <= MAX_LENGTH:
        raise _SignatureError(f"has an array of the length {token[:20]}: it is 1 to {MAX_LENGTH:,}, or not said")
    return int(token)


def _is_width(bits: int) -> bool:
    return 8 <= bits <= 256 and bits % 8 == 0


def _from_entry(entry: Mapping[str, Any]) -> Declared:
    name, inputs = entry.get("name"), entry.get("inputs", [])
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _SignatureError(f"has an event whose name is {_shown(name)}")
    if not isinstance(inputs, list):
        raise _SignatureError(f"has the event {name}, whose inputs are no array")
    return Declared(name, _from_inputs(inputs, f"the event {name}, whose inputs", 1))


def _from_inputs(inputs: Any, where: str, depth: int) -> tuple[Parameter, ...]:
    """Return the parameters in an array of them; `where` names it in errors."""
    if not isinstance(inputs, list):
        raise _SignatureError(f"has {where} is {_shown(inputs)}: a tuple names its parts in an array")
    return tuple(_from_input(each, position, f"{where}[{position}]", depth) for position, each in enumerate(inputs))


def _from_input(value: Any, position: int, where: str, depth: int) -> Parameter:
    if depth > MAX_DEPTH:
        raise _SignatureError(f"has {where.partition('[')[0]} have types in each other, more than {MAX_DEPTH} deep")
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise _SignatureError(f"has {where} has no type")
    name, indexed = value.get("name") or f"arg{position}", value.get("indexed", False)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _WORDS:
        raise _SignatureError(f"has {where}.name is {_shown(name)}, which no parameter can be called")
    if not isinstance(indexed, bool):
        raise _SignatureError(f"has {where}.indexed is {_shown(indexed)}: it is true or false")
    return Parameter(name, _from_type(value, where, depth), indexed)


def _from_type(value: Mapping[str, Any], where: str, depth: int) -> Type:
    stem, bracket, dimensions = value["type"].partition("[")
    if not _DIMENSIONS.fullmatch(bracket + dimensions):
        raise _SignatureError(f"has {where}.type is {_shown(value['type'])}, which no ABI has")
    if depth + dimensions.count("]") > MAX_DEPTH:
        raise _SignatureError(f"has {where}.type has types in each other, more than {MAX_DEPTH} deep")
    kind = _tuple(value, where, depth) if stem == "tuple" else _elementary(stem)
    for length in (bracket + dimensions)[1:-1].split("][") if bracket else ():
        kind = Array(kind, _length(length) if length else None)
    return kind


def _tuple(value: Mapping[str, Any], where: str, depth: int) -> Type:
    return Tuple(_from_inputs(value.get("components"), f"{where}.components", depth + 1))


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:40]


def _with_names(event: Declared) -> Declared:
    """Return the event with what its standard says where the signature is silent; raise when it cannot be."""
    names = [each.name for each in event.parameters]
    _tell_apart(event.parameters, "")
    said = [each for each in event.parameters if each.indexed]
    if len(said) > MAX_TOPICS:
        raise _SignatureError(f"has {len(said)} indexed parameters: an event has at most {MAX_TOPICS}")
    if said or any(each.indexed is False for each in event.parameters):
        return Declared(event.name, tuple(_told(each) for each in event.parameters))
    known = _KNOWN.get(event.canonical) if names == [f"arg{number}" for number in range(len(names))] else None
    return known or event


def _tell_apart(parameters: Iterable[Parameter], where: str) -> None:
    """Raise where two of one level have the same name: their values would be one."""
    seen: set[str] = set()
    for each in parameters:
        if each.name in seen:
            raise _SignatureError(f"has two parameters called {each.name!r}{where}")
        seen.add(each.name)
        kind = each.type
        while isinstance(kind, Array):
            kind = kind.of
        if isinstance(kind, Tuple):
            _tell_apart(kind.parts, f" in {each.name}")


def _told(each: Parameter) -> Parameter:
    return msgspec.structs.replace(each, indexed=bool(each.indexed))


_KNOWN: Mapping[str, Declared] = {
    event.canonical: event for event in (_Reader(signature).event() for signature in _STANDARD)
}
