"""Contract events: their declarations, the values of their parameters, and the hash that identifies them. Reading never
raises.

`Transfer(address indexed from, address indexed to, uint256 value)` is a complete declaration. For
`Transfer(address,address,uint256)` the names come from the token standards if one has this event, otherwise they are
`arg0`, `arg1` …; the indexed parameters are then the first ones, as many as a log has topics for.

Values are checked and normalised as `api/chain` decodes them; a test compares the two. Keccak-256 makes the topics of
events and the mixed case of addresses (EIP-55).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import msgspec

from workbench.language.codec import Json

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


class AbiWord(msgspec.Struct, frozen=True):
    """A value of one word: `uint256`, `int8`, `address`, `bool`, `bytes32`. `size`: bits of a number, bytes of
    `bytes32`.
    """

    kind: str
    size: int


class AbiBytes(msgspec.Struct, frozen=True):
    """A value of any length: `bytes` or `string`."""

    kind: str


class AbiArray(msgspec.Struct, frozen=True):
    """Values of one type; `length` None: as many as the log says."""

    of: "AbiType"
    length: int | None


class AbiTuple(msgspec.Struct, frozen=True):
    """Values side by side, a struct of Solidity."""

    parts: "tuple[AbiParameter, ...]"


AbiType: TypeAlias = AbiWord | AbiBytes | AbiArray | AbiTuple


class AbiParameter(msgspec.Struct, frozen=True):
    """One value of an event. `indexed` None: the signature does not say."""

    name: str
    type: AbiType
    indexed: bool | None = None


class AbiEvent(msgspec.Struct, frozen=True):
    """An event of a contract."""

    name: str
    parameters: tuple[AbiParameter, ...]

    @property
    def canonical(self) -> str:
        """The signature that is hashed: `Transfer(address,address,uint256)`."""
        return f"{self.name}({','.join(canonical_type(each.type) for each in self.parameters)})"

    @property
    def full(self) -> str:
        """The signature with all it says: names, and which parameters are indexed."""
        return f"{self.name}({', '.join(map(_declared, self.parameters))})"

    def parameter(self, name: str) -> AbiParameter | None:
        """Return the parameter of a name."""
        return next((each for each in self.parameters if each.name == name), None)


class _SignatureError(ValueError):
    """A signature that cannot be read, and why."""


def read_signature(text: str) -> AbiEvent | str:
    """Return the event in a signature, or what is wrong with it."""
    if len(text) > MAX_SIGNATURE:
        return f"has {len(text):,} characters, at most {MAX_SIGNATURE:,} are allowed"
    try:
        return _with_names(_Reader(text).event())
    except _SignatureError as error:
        return str(error)


def read_abi(value: Any) -> list[AbiEvent] | str:
    """Return the events in a decoded ABI (an array of its entries, one entry, or an artifact with `abi`), or what is
    wrong.

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


def canonical_type(kind: AbiType) -> str:
    """Return a type as it stands in a canonical signature."""
    match kind:
        case AbiWord(kind=("address" | "bool") as name):
            return name
        case AbiWord(kind=name, size=size):
            return f"{name}{size}"
        case AbiBytes(kind=name):
            return name
        case AbiArray(of=of, length=length):
            return f"{canonical_type(of)}[{'' if length is None else length}]"
        case AbiTuple(parts=parts):
            return f"({','.join(canonical_type(each.type) for each in parts)})"


def _declared(each: AbiParameter) -> str:
    return f"{_spoken(each.type)}{' indexed' if each.indexed else ''} {each.name}"


def _spoken(kind: AbiType) -> str:
    match kind:
        case AbiTuple(parts=parts):
            return f"({', '.join(f'{_spoken(each.type)} {each.name}' for each in parts)})"
        case AbiArray(of=of, length=length):
            return f"{_spoken(of)}[{'' if length is None else length}]"
        case _:
            return canonical_type(kind)


class _Reader:
    """A signature, read from left to right."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._depth = 0

    def event(self) -> AbiEvent:
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
        return AbiEvent(name, parameters)

    def _parameters(self) -> tuple[AbiParameter, ...]:
        self._expect("(")
        found: list[AbiParameter] = []
        while self._peek() != ")":
            if found:
                self._expect(",")
            found.append(self._parameter(len(found)))
        self._take()
        return tuple(found)

    def _parameter(self, position: int) -> AbiParameter:
        kind, indexed, name = self._type(), None, ""
        while (word := self._peek()) is not None and _NAME.fullmatch(word):
            self._take()
            if word == "indexed":
                indexed = True
            elif word not in _WORDS and not name:
                name = word
            elif word not in _WORDS:
                raise _SignatureError(f"has {word!r} after the name {name!r}: a comma is missing")
        return AbiParameter(name or f"arg{position}", kind, indexed)

    def _type(self) -> AbiType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _SignatureError(f"has types in each other, more than {MAX_DEPTH} deep")
        if self._peek() == "tuple":
            self._take()
        kind: AbiType = (
            AbiTuple(self._parameters()) if self._peek() == "(" else _elementary(self._name("a type like address"))
        )
        dimensions = 0
        while self._peek() == "[":
            dimensions += 1
            if self._depth + dimensions > MAX_DEPTH:
                raise _SignatureError(f"has types in each other, more than {MAX_DEPTH} deep")
            self._take()
            length = None if self._peek() == "]" else self._length()
            self._expect("]")
            kind = AbiArray(kind, length)
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


def _elementary(name: str) -> AbiType:
    if name in ("address", "bool"):
        return AbiWord(name, 20 if name == "address" else 1)
    if name in ("bytes", "string"):
        return AbiBytes(name)
    if (number := _NUMBER.fullmatch(name[:9])) and len(name) < 9 and _is_width(bits := int(number[2] or 256)):
        return AbiWord(number[1], bits)
    if (size := _BYTES.fullmatch(name[:9])) and len(name) < 9 and 1 <= int(size[1]) <= 32:
        return AbiWord("bytes", int(size[1]))
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


def _from_entry(entry: Mapping[str, Any]) -> AbiEvent:
    name, inputs = entry.get("name"), entry.get("inputs", [])
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise _SignatureError(f"has an event whose name is {_shown(name)}")
    if not isinstance(inputs, list):
        raise _SignatureError(f"has the event {name}, whose inputs are no array")
    return AbiEvent(name, _from_inputs(inputs, f"the event {name}, whose inputs", 1))


def _from_inputs(inputs: Any, where: str, depth: int) -> tuple[AbiParameter, ...]:
    """Return the parameters in an array of them; `where` names it in errors."""
    if not isinstance(inputs, list):
        raise _SignatureError(f"has {where} is {_shown(inputs)}: a tuple names its parts in an array")
    return tuple(_from_input(each, position, f"{where}[{position}]", depth) for position, each in enumerate(inputs))


def _from_input(value: Any, position: int, where: str, depth: int) -> AbiParameter:
    if depth > MAX_DEPTH:
        raise _SignatureError(f"has {where.partition('[')[0]} have types in each other, more than {MAX_DEPTH} deep")
    if not isinstance(value, Mapping) or not isinstance(value.get("type"), str):
        raise _SignatureError(f"has {where} has no type")
    name, indexed = value.get("name") or f"arg{position}", value.get("indexed", False)
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _WORDS:
        raise _SignatureError(f"has {where}.name is {_shown(name)}, which no parameter can be called")
    if not isinstance(indexed, bool):
        raise _SignatureError(f"has {where}.indexed is {_shown(indexed)}: it is true or false")
    return AbiParameter(name, _from_type(value, where, depth), indexed)


def _from_type(value: Mapping[str, Any], where: str, depth: int) -> AbiType:
    stem, bracket, dimensions = value["type"].partition("[")
    if not _DIMENSIONS.fullmatch(bracket + dimensions):
        raise _SignatureError(f"has {where}.type is {_shown(value['type'])}, which no ABI has")
    if depth + dimensions.count("]") > MAX_DEPTH:
        raise _SignatureError(f"has {where}.type has types in each other, more than {MAX_DEPTH} deep")
    kind = _tuple(value, where, depth) if stem == "tuple" else _elementary(stem)
    for length in (bracket + dimensions)[1:-1].split("][") if bracket else ():
        kind = AbiArray(kind, _length(length) if length else None)
    return kind


def _tuple(value: Mapping[str, Any], where: str, depth: int) -> AbiType:
    return AbiTuple(_from_inputs(value.get("components"), f"{where}.components", depth + 1))


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:40]


def _with_names(event: AbiEvent) -> AbiEvent:
    """Return the event with what its standard says where the signature is silent; raise when it cannot be."""
    names = [each.name for each in event.parameters]
    _tell_apart(event.parameters, "")
    said = [each for each in event.parameters if each.indexed]
    if len(said) > MAX_TOPICS:
        raise _SignatureError(f"has {len(said)} indexed parameters: an event has at most {MAX_TOPICS}")
    if said or any(each.indexed is False for each in event.parameters):
        return AbiEvent(event.name, tuple(_told(each) for each in event.parameters))
    known = _KNOWN.get(event.canonical) if names == [f"arg{number}" for number in range(len(names))] else None
    return known or event


def _tell_apart(parameters: Iterable[AbiParameter], where: str) -> None:
    """Raise where two of one level have the same name: their values would be one."""
    seen: set[str] = set()
    for each in parameters:
        if each.name in seen:
            raise _SignatureError(f"has two parameters called {each.name!r}{where}")
        seen.add(each.name)
        kind = each.type
        while isinstance(kind, AbiArray):
            kind = kind.of
        if isinstance(kind, AbiTuple):
            _tell_apart(kind.parts, f" in {each.name}")


def _told(each: AbiParameter) -> AbiParameter:
    return msgspec.structs.replace(each, indexed=bool(each.indexed))


_KNOWN: Mapping[str, AbiEvent] = {
    event.canonical: event for event in (_Reader(signature).event() for signature in _STANDARD)
}


SAFE_BITS = 48  # numbers of more are texts of all their digits, whatever the value

_DIGITS = re.compile(r"0|-?[1-9][0-9]*")
_HEX = re.compile(r"0x(?:[0-9a-f]{2})*")
_HASH = re.compile(r"0x[0-9a-f]{64}")
_LONGEST = 100  # digits of a number that are looked at


def argument_problem(parameter: AbiParameter, value: Json) -> str | None:
    """Return why no log can have this value in a parameter, or None."""
    if isinstance(parameter.type, AbiWord) or parameter.indexed is False:
        return value_problem(parameter.type, value)
    if isinstance(value, str) and _HASH.fullmatch(value):
        return None
    if parameter.indexed:
        return f"is an indexed {canonical_type(parameter.type)}, of which a log has only the hash: 0x and 64 digits"
    return value_problem(parameter.type, value)


def value_problem(kind: AbiType, value: Json) -> str | None:
    """Return why a value is not one of a type, or None."""
    match kind:
        case AbiWord():
            return _unfit_word(kind, value)
        case AbiBytes(kind="string"):
            return None if isinstance(value, str) else "is string, whose values are texts"
        case AbiBytes():
            return _unfit_bytes("bytes", None, value)
        case AbiArray():
            return _unfit_array(kind, value)
        case AbiTuple():
            return _unfit_tuple(kind, value)


def normalise_argument(kind: AbiType, value: Json) -> Json:
    """Return a hand-written value in the form that a decoded log has; an invalid value is returned unchanged."""
    match kind:
        case AbiWord(kind="uint" | "int", size=bits):
            return _number_as_decoded(bits, value)
        case AbiWord(kind="address" | "bytes") | AbiBytes(kind="bytes"):
            return value.lower() if isinstance(value, str) else value
        case AbiArray(of=of) if isinstance(value, list):
            return [normalise_argument(of, each) for each in value]
        case AbiTuple(parts=parts) if isinstance(value, Mapping):
            kinds = {each.name: each.type for each in parts}
            return {
                name: normalise_argument(kinds[name], each) if name in kinds else each for name, each in value.items()
            }
        case _:
            return value


def integer_bounds(kind: AbiWord) -> tuple[int, int]:
    """Return the least and the greatest number of a type."""
    if kind.kind == "uint":
        return 0, 2**kind.size - 1
    return -(2 ** (kind.size - 1)), 2 ** (kind.size - 1) - 1


def _number_as_decoded(bits: int, value: Json) -> Json:
    if type(value) is int and bits > SAFE_BITS:
        return str(value)
    if isinstance(value, str) and bits <= SAFE_BITS and len(value) <= _LONGEST and _DIGITS.fullmatch(value):
        return int(value)
    return value


def _unfit_word(kind: AbiWord, value: Json) -> str | None:
    if kind.kind in ("uint", "int"):
        return _unfit_number(kind, value)
    if kind.kind == "bool":
        return None if isinstance(value, bool) else "is bool, whose values are true and false"
    return _unfit_bytes(canonical_type(kind), kind.size, value)


def _unfit_number(kind: AbiWord, value: Json) -> str | None:
    name, is_wide = canonical_type(kind), kind.size > SAFE_BITS
    if is_wide and type(value) is int:
        return f"is {name}, whose values are texts of all their digits: write {str(value)!r}"
    if not is_wide and isinstance(value, str) and _DIGITS.fullmatch(value):
        return f"is {name}, whose values are numbers: write {value[:_LONGEST]}"
    if is_wide and not (isinstance(value, str) and len(value) <= _LONGEST and _DIGITS.fullmatch(value)):
        return f"is {name}, whose values are texts of their digits, like '1000000'"
    if not is_wide and type(value) is not int:
        return f"is {name}, whose values are whole numbers"
    least, greatest = integer_bounds(kind)
    if least <= int(str(value)) <= greatest:
        return None
    return f"is {name}, whose values are {least} to {greatest}"


def _unfit_bytes(name: str, size: int | None, value: Json) -> str | None:
    digits = "pairs of digits" if size is None else f"{2 * size} digits"
    if not isinstance(value, str):
        return f"is {name}, whose values are texts: 0x and {digits}"
    if value != value.lower():
        return f"is compared in lower case: write {value.lower()}"
    if not _HEX.fullmatch(value) or (size is not None and len(value) != 2 + 2 * size):
        return f"is {name}, whose values are 0x and {digits}"
    return None


def _unfit_array(kind: AbiArray, value: Json) -> str | None:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return f"is {canonical_type(kind)}, whose values are arrays"
    if kind.length is not None and len(value) != kind.length:
        return f"is {canonical_type(kind)}, which has {kind.length} values"
    return _first((f"[{number}]", value_problem(kind.of, each)) for number, each in enumerate(value))


def _unfit_tuple(kind: AbiTuple, value: Json) -> str | None:
    names = [each.name for each in kind.parts]
    if not isinstance(value, Mapping) or set(value) != set(names):
        return f"is {canonical_type(kind)}, whose values are objects with {', '.join(names)}"
    return _first((f".{each.name}", value_problem(each.type, value[each.name])) for each in kind.parts)


def _first(said: Any) -> str | None:
    return next((f"{where} {reason}" for where, reason in said if reason is not None), None)


ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)


def event_topic(canonical: str) -> str:
    """Return the topic that the logs of an event carry, such as that of `Transfer(address,address,uint256)`."""
    return "0x" + _keccak()(canonical.encode()).hex()


def checksum_address(address: str) -> str:
    """Return an address in EIP-55's mixed case."""
    digits = address[2:].lower()
    marks = _keccak()(digits.encode()).hex()
    return "0x" + "".join(digit.upper() if mark >= "8" else digit for digit, mark in zip(digits, marks, strict=False))


def address_problem(text: object) -> str | None:
    """Return why a value is not an address of a contract or wallet, or None. Mixed case must match EIP-55."""
    if not isinstance(text, str) or not ADDRESS.fullmatch(text):
        return "must be an address: 0x and 40 hexadecimal digits"
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and checksum_address(text) != text:
        return "has a checksum that does not fit: a digit is wrong, or its case; all in lower case there is no checksum"
    return None


@cache
def _keccak() -> Callable[[bytes], bytes]:
    from eth_hash.auto import keccak  # takes 0.07 s to load, and most automations start from no chain

    return keccak
