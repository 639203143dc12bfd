"""Contract events: their declarations, the values of their parameters, and the hash that identifies them.

`Transfer(address indexed from, address indexed to, uint256 value)` is a complete declaration. For
`Transfer(address,address,uint256)` the names come from the token standards if one has this event, otherwise they are
`arg0`, `arg1` …; the indexed parameters are then the first ones, as many as a log has topics for.

Values are checked and normalized as `api/chain` decodes them; a test compares the two. Keccak-256 makes the topics of
events and the mixed case of addresses (EIP-55).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

import msgspec

from workbench.language.codec import Json

MAX_SIGNATURE = 2_000  # characters
MAX_DEPTH = 8  # levels of arrays and tuples; readers and decoders recurse, and anyone can declare an ABI
MAX_TOPICS = 3  # indexed parameters; the EVM gives a log four topics, and the first one is the event's hash
MAX_LENGTH = 65_536  # elements of an array of fixed length
SAFE_BITS = 48  # wider integers are strings, whatever the value: a filter then compares values of one type

ADDRESS = re.compile(r"0x[0-9a-fA-F]{40}", re.ASCII)
_TOKEN = re.compile(r"\s*([A-Za-z_$][\w$]*|\d+|[()\[\],;])", re.ASCII)
_INTEGER_TYPE = re.compile(r"(u?int)((?:[1-9]\d*)?)", re.ASCII)
_BYTES_TYPE = re.compile(r"bytes([1-9]\d*)", re.ASCII)
_DIMENSIONS = re.compile(r"(?:\[\d*\])*", re.ASCII)
_NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
_DIGITS = re.compile(r"0|-?[1-9][0-9]*")
_HEX = re.compile(r"0x(?:[0-9a-f]{2})*")
_HASH = re.compile(r"0x[0-9a-f]{64}")
_KEYWORDS = frozenset({"indexed", "memory", "calldata", "storage", "payable"})
# `int()` takes quadratic time and raises ValueError past 4,300 digits, so lengths are checked before it is called.
_MAX_TYPE_NAME = 8  # characters; `uint256` has 7
_MAX_DIGITS = 100  # of an integer; 2**256 has 78


class AbiWord(msgspec.Struct, frozen=True):
    """A value of one word: `uint256`, `int8`, `address`, `bool`, `bytes32`.

    `size` is the number of bits for integers and of bytes for the others.
    """

    kind: str
    size: int


class AbiBytes(msgspec.Struct, frozen=True):
    """A value of any length: `bytes` or `string`."""

    kind: str


class AbiArray(msgspec.Struct, frozen=True):
    """Values of one type. `length` None: the log states the length."""

    of: "AbiType"
    length: int | None


class AbiTuple(msgspec.Struct, frozen=True):
    """A Solidity struct."""

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
        return f"{self.name}({','.join(canonical_type(parameter.type) for parameter in self.parameters)})"

    @property
    def full(self) -> str:
        """The complete declaration, with names and `indexed`."""
        declarations = (
            f"{canonical_type(parameter.type, named=True)}{' indexed' if parameter.indexed else ''} {parameter.name}"
            for parameter in self.parameters
        )
        return f"{self.name}({', '.join(declarations)})"

    def parameter(self, name: str) -> AbiParameter | None:
        return next((parameter for parameter in self.parameters if parameter.name == name), None)


class _SignatureError(ValueError):
    """A declaration that cannot be read. The message continues a sentence about it."""


def read_signature(text: str) -> AbiEvent | str:
    """Return the event in a signature, or what is wrong with it: `has two parameters called 'a'`. Never raises."""
    if len(text) > MAX_SIGNATURE:
        return f"has {len(text):,} characters, at most {MAX_SIGNATURE:,} are allowed"
    try:
        return _complete_event(_SignatureReader(text).read_event())
    except _SignatureError as error:
        return str(error)


def read_abi(value: Any) -> list[AbiEvent] | str:
    """Return the events in a decoded ABI, or what is wrong with it. Never raises.

    An ABI is an array of entries, one entry, or an artifact with `abi`. Anonymous events are left out.
    """
    if isinstance(value, Mapping):
        value = value.get("abi", [value])
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        return "is not an ABI: it must be an array of objects, each with a type and a name"
    entries = [entry for entry in value if entry.get("type") == "event"]
    events: list[AbiEvent] = []
    try:
        for entry in entries:
            # The logs of an anonymous event have no topic that identifies it.
            if entry.get("anonymous") is True:
                continue
            name = entry.get("name")
            if not isinstance(name, str) or not _NAME.fullmatch(name):
                raise _SignatureError(f"has an event with an invalid name: {_shown(name)}")
            inputs = _read_inputs(entry.get("inputs", []), f"an error in event {name}: inputs", 1)
            events.append(_complete_event(AbiEvent(name, inputs)))
    except _SignatureError as error:
        return str(error)
    if not events and entries:
        return f"has only anonymous events, like {entries[0].get('name')}: their logs cannot be identified"
    return events or "declares no event"


def canonical_type(kind: AbiType, *, named: bool = False) -> str:
    """Return a type as it is written in a canonical signature; `named`: with the names of the parts of tuples."""
    match kind:
        case AbiWord(kind=("address" | "bool") as name):
            return name
        case AbiWord(kind=name, size=size):
            return f"{name}{size}"
        case AbiBytes(kind=name):
            return name
        case AbiArray(of=of, length=length):
            return f"{canonical_type(of, named=named)}[{'' if length is None else length}]"
        case AbiTuple(parts=parts):
            types = (canonical_type(part.type, named=named) + (f" {part.name}" if named else "") for part in parts)
            return f"({(', ' if named else ',').join(types)})"


def argument_problem(parameter: AbiParameter, value: Json) -> str | None:
    """Return why no log can have this value in a parameter, or None."""
    if isinstance(parameter.type, AbiWord) or parameter.indexed is False:
        return value_problem(parameter.type, value)
    # A log contains only the hash of an indexed string, array or struct.
    if isinstance(value, str) and _HASH.fullmatch(value):
        return None
    if parameter.indexed:
        name = canonical_type(parameter.type)
        return f"must be 0x and 64 hexadecimal digits: a log contains only the hash of an indexed {name}"
    return value_problem(parameter.type, value)


def value_problem(kind: AbiType, value: Json) -> str | None:
    """Return why a value is not one of a type, or None."""
    name = canonical_type(kind)
    match kind:
        case AbiWord(kind="uint" | "int"):
            return _integer_problem(kind, value)
        case AbiWord(kind="bool"):
            return None if isinstance(value, bool) else "must be of type bool: true or false"
        case AbiBytes(kind="string"):
            return None if isinstance(value, str) else "must be of type string"
        case AbiWord() | AbiBytes():
            digits = (
                f"{2 * kind.size} hexadecimal digits" if isinstance(kind, AbiWord) else "pairs of hexadecimal digits"
            )
            if isinstance(value, str) and value != value.lower():
                return f"must be in lower case: write {value.lower()}"
            is_hex = isinstance(value, str) and _HEX.fullmatch(value) is not None
            if not is_hex or (isinstance(kind, AbiWord) and len(str(value)) != 2 + 2 * kind.size):
                return f"must be of type {name}: 0x and {digits}"
            return None
        case AbiArray(of=of, length=length):
            if not isinstance(value, Sequence) or isinstance(value, str):
                return f"must be of type {name}: an array"
            if length is not None and len(value) != length:
                return f"must be of type {name}: an array of {length} values"
            return _first_problem((f"[{index}]", of, element) for index, element in enumerate(value))
        case AbiTuple(parts=parts):
            names = [part.name for part in parts]
            if not isinstance(value, Mapping) or set(value) != set(names):
                return f"must be of type {name}: an object with {', '.join(names)}"
            return _first_problem((f".{part.name}", part.type, value[part.name]) for part in parts)


def normalize_argument(kind: AbiType, value: Json) -> Json:
    """Return a hand-written value in the form that a decoded log has; an invalid value is returned unchanged."""
    match kind:
        case AbiWord(kind="uint" | "int", size=bits):
            if type(value) is int and bits > SAFE_BITS:
                return str(value)
            if isinstance(value, str) and bits <= SAFE_BITS and _is_integer(value):
                return int(value)
            return value
        case AbiWord(kind="address" | "bytes") | AbiBytes(kind="bytes"):
            return value.lower() if isinstance(value, str) else value
        case AbiArray(of=of) if isinstance(value, list):
            return [normalize_argument(of, element) for element in value]
        case AbiTuple(parts=parts) if isinstance(value, Mapping):
            kinds = {part.name: part.type for part in parts}
            return {
                name: normalize_argument(kinds[name], element) if name in kinds else element
                for name, element in value.items()
            }
        case _:
            return value


def integer_bounds(kind: AbiWord) -> tuple[int, int]:
    """Return the least and the greatest number of an integer type."""
    if kind.kind == "uint":
        return 0, 2**kind.size - 1
    return -(2 ** (kind.size - 1)), 2 ** (kind.size - 1) - 1


def event_topic(canonical: str) -> str:
    """Return the topic of the logs of an event, such as `Transfer(address,address,uint256)`: 0x and 64 digits."""
    return "0x" + _keccak()(canonical.encode()).hex()


def checksum_address(address: str) -> str:
    """Return an address in EIP-55's mixed case."""
    digits = address[2:].lower()
    digest = _keccak()(digits.encode()).hex()
    cased = (digit.upper() if mark >= "8" else digit for digit, mark in zip(digits, digest, strict=False))
    return "0x" + "".join(cased)


def address_problem(text: object) -> str | None:
    """Return why a value is not an address of a contract or wallet, or None. Mixed case must match EIP-55."""
    if not isinstance(text, str) or not ADDRESS.fullmatch(text):
        return "must be an address: 0x and 40 hexadecimal digits"
    digits = text[2:]
    if digits not in (digits.lower(), digits.upper()) and checksum_address(text) != text:
        return "has a wrong checksum: a digit or its case is wrong. Write it in lower case to skip the check"
    return None


@cache
def _keccak() -> Callable[[bytes], bytes]:
    try:
        from eth_hash.auto import keccak  # takes 0.07 s to load, and most automations do not use a chain
    except ImportError as error:
        needed = 'contracts and mixed-case addresses need eth-hash: pip install "event-workbench[notebook]"'
        raise ImportError(needed) from error

    return keccak


class _SignatureReader:
    """A recursive descent parser of one signature."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        end = 0
        while match := _TOKEN.match(text, end):
            self._tokens.append(match[1])
            end = match.end()
        if rest := text[end:].strip():
            raise _SignatureError(f"has {rest[:10]!r}, which is not valid in a signature")
        self._depth = 0

    def read_event(self) -> AbiEvent:
        if self._peek() == "event":
            self._take()
        name = self._take_name("the name of the event")
        parameters = self._read_parameters()
        if self._peek() == "anonymous":
            raise _SignatureError("declares an anonymous event: its logs cannot be identified")
        if self._peek() == ";":
            self._take()
        if (rest := self._peek()) is not None:
            raise _SignatureError(f"has {rest!r} after its end")
        return AbiEvent(name, parameters)

    def _read_parameters(self) -> tuple[AbiParameter, ...]:
        self._expect("(")
        parameters: list[AbiParameter] = []
        while self._peek() != ")":
            if parameters:
                self._expect(",")
            kind, indexed, name = self._read_type(), None, ""
            while (word := self._peek()) is not None and _NAME.fullmatch(word):
                self._take()
                if word == "indexed":
                    indexed = True
                elif word not in _KEYWORDS and not name:
                    name = word
                elif word not in _KEYWORDS:
                    raise _SignatureError(f"has {word!r} after the name {name!r}: a comma is missing")
            parameters.append(AbiParameter(name or f"arg{len(parameters)}", kind, indexed))
        self._take()
        return tuple(parameters)

    def _read_type(self) -> AbiType:
        too_deep = _SignatureError(f"nests types more than {MAX_DEPTH} levels deep")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise too_deep
        if self._peek() == "tuple":  # ethers writes `tuple(uint8 x)`
            self._take()
        kind: AbiType
        if self._peek() == "(":
            kind = AbiTuple(self._read_parameters())
        else:
            kind = _elementary_type(self._take_name("a type like address"))
        dimensions = 0
        while self._peek() == "[":
            dimensions += 1
            if self._depth + dimensions > MAX_DEPTH:
                raise too_deep
            self._take()
            length = None if self._peek() == "]" else _array_length(self._take())
            self._expect("]")
            kind = AbiArray(kind, length)
        self._depth -= 1
        return kind

    def _take_name(self, expected: str) -> str:
        token = self._take()
        if not _NAME.fullmatch(token):
            raise _SignatureError(f"has {token!r} where {expected} should be")
        return token

    def _expect(self, expected: str) -> None:
        if (token := self._take()) != expected:
            raise _SignatureError(f"has {token!r} where {expected!r} should be")

    def _peek(self) -> str | None:
        return self._tokens[0] if self._tokens else None

    def _take(self) -> str:
        if not self._tokens:
            raise _SignatureError("is not complete: write it like Transfer(address,address,uint256)")
        return self._tokens.pop(0)


def _read_inputs(inputs: Any, where: str, depth: int) -> tuple[AbiParameter, ...]:
    """Return the parameters in `inputs` or `components` of an ABI; `where` names the array in errors."""
    if not isinstance(inputs, list):
        raise _SignatureError(f"has {where} is {_shown(inputs)}: it must be an array")
    if inputs and depth > MAX_DEPTH:
        raise _SignatureError(f"has {where.partition('[')[0]} nest types more than {MAX_DEPTH} levels deep")
    parameters: list[AbiParameter] = []
    for index, entry in enumerate(inputs):
        at = f"{where}[{index}]"
        if not isinstance(entry, Mapping) or not isinstance(entry.get("type"), str):
            raise _SignatureError(f"has {at} has no type")
        name, indexed = entry.get("name") or f"arg{index}", entry.get("indexed", False)
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _KEYWORDS:
            raise _SignatureError(f"has {at}.name is {_shown(name)}, which is not a valid name")
        if not isinstance(indexed, bool):
            raise _SignatureError(f"has {at}.indexed is {_shown(indexed)}: it must be true or false")
        stem, bracket, dimensions = entry["type"].partition("[")
        if not _DIMENSIONS.fullmatch(bracket + dimensions):
            raise _SignatureError(f"has {at}.type is {_shown(entry['type'])}, which is not an ABI type")
        if depth + dimensions.count("]") > MAX_DEPTH:
            raise _SignatureError(f"has {at}.type nests types more than {MAX_DEPTH} levels deep")
        kind: AbiType
        if stem == "tuple":
            kind = AbiTuple(_read_inputs(entry.get("components"), f"{at}.components", depth + 1))
        else:
            kind = _elementary_type(stem)
        for length in (bracket + dimensions)[1:-1].split("][") if bracket else ():
            kind = AbiArray(kind, _array_length(length) if length else None)
        parameters.append(AbiParameter(name, kind, indexed))
    return tuple(parameters)


def _elementary_type(name: str) -> AbiType:
    if name in ("address", "bool"):
        return AbiWord(name, 20 if name == "address" else 1)
    if name in ("bytes", "string"):
        return AbiBytes(name)
    if len(name) <= _MAX_TYPE_NAME:
        if integer := _INTEGER_TYPE.fullmatch(name):
            bits = int(integer[2] or 256)
            if 8 <= bits <= 256 and bits % 8 == 0:
                return AbiWord(integer[1], bits)
        if (fixed := _BYTES_TYPE.fullmatch(name)) and 1 <= int(fixed[1]) <= 32:
            return AbiWord("bytes", int(fixed[1]))
    raise _SignatureError(
        f"has the type {name[:40]!r}, which is not an ABI type: "
        "write address for a contract or interface, uint8 for an enum, a tuple for a struct"
    )


def _array_length(token: str) -> int:
    if not token.isdecimal() or len(token) > 9 or not 0 < int(token) <= MAX_LENGTH:
        raise _SignatureError(f"has an array of length {token[:20]}: a fixed length is 1 to {MAX_LENGTH:,}")
    return int(token)


def _complete_event(event: AbiEvent) -> AbiEvent:
    """Return the event with names and `indexed` from its standard where the declaration omits them."""
    _refuse_duplicate_names(event.parameters, "")
    indexed = sum(parameter.indexed is True for parameter in event.parameters)
    if indexed > MAX_TOPICS:
        raise _SignatureError(f"has {indexed} indexed parameters: an event has at most {MAX_TOPICS}")
    if any(parameter.indexed is not None for parameter in event.parameters):
        parameters = (msgspec.structs.replace(item, indexed=item.indexed is True) for item in event.parameters)
        return AbiEvent(event.name, tuple(parameters))
    is_bare = all(parameter.name == f"arg{position}" for position, parameter in enumerate(event.parameters))
    return _STANDARD_EVENTS.get(event.canonical, event) if is_bare else event


def _refuse_duplicate_names(parameters: Iterable[AbiParameter], where: str) -> None:
    names: set[str] = set()
    for parameter in parameters:
        if parameter.name in names:  # values are stored by name, so one of the two would be lost
            raise _SignatureError(f"has two parameters called {parameter.name!r}{where}")
        names.add(parameter.name)
        kind = parameter.type
        while isinstance(kind, AbiArray):
            kind = kind.of
        if isinstance(kind, AbiTuple):
            _refuse_duplicate_names(kind.parts, f" in {parameter.name}")


def _shown(value: Any) -> str:
    return "missing" if value is None else repr(value)[:40]


def _is_integer(text: str) -> bool:
    return len(text) <= _MAX_DIGITS and _DIGITS.fullmatch(text) is not None


def _integer_problem(kind: AbiWord, value: Json) -> str | None:
    prefix = f"must be of type {canonical_type(kind)}"
    if kind.size > SAFE_BITS:
        if type(value) is int:
            return f"{prefix}, as a string of its digits: write {str(value)!r}"
        if not isinstance(value, str) or not _is_integer(value):
            return f"{prefix}, as a string of its digits, like '1000000'"
    elif type(value) is not int:
        is_text = isinstance(value, str) and _is_integer(value)
        return f"{prefix}, as a number: write {value}" if is_text else f"{prefix}: a whole number"
    least, greatest = integer_bounds(kind)
    return None if least <= int(str(value)) <= greatest else f"{prefix}: {least} to {greatest}"


def _first_problem(values: Iterator[tuple[str, AbiType, Json]]) -> str | None:
    """Return the first problem of the elements of a value, with its path in front."""
    return next((f"{path} {reason}" for path, kind, value in values if (reason := value_problem(kind, value))), None)


# Signatures of tokens are often written without names (ERC-20, 721, 1155, 4626, 173, WETH).
_STANDARD_EVENTS: Mapping[str, AbiEvent] = {
    event.canonical: event
    for event in (
        _SignatureReader(signature).read_event()
        for signature in (
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
    )
}
