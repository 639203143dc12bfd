"""What can be filled in by choosing: events and their values, tags, attributes, segments, as the server knows them.

Looked up when a canvas asks, kept for a minute. Without a server, or without the right to ask, there is just nothing to choose from.

Events and contacts to try an automation with: the newest real ones, or ones made up from what was seen.

Logs of contracts on a canvas: the newest ones to try, or one of zeros, and what can be chosen from their parameters.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from workbench import environment
from workbench.catalog import Catalog, EventShape
from workbench.chain import chained
from workbench.connection import Connection
from workbench.display.html import moment
from workbench.display.words import short, value
from workbench.draft import JsonObject
from workbench.errors import InvalidArgumentError, WorkbenchError
from workbench.language.abi import (
    SAFE_BITS,
    AbiArray,
    AbiBytes,
    AbiEvent,
    AbiParameter,
    AbiTuple,
    AbiType,
    AbiWord,
    canonical_type,
    read_signature,
)
from workbench.language.check import (
    CatalogFacts,
    ChainFacts,
    Diagnostic,
    check_against,
    events_of,
    segments_of,
    uses_chain,
)
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactState
from workbench.language.graph import Graph
from workbench.language.onchain import LOCATION_FIELDS, LogSource
from workbench.language.onchain import ONCHAIN_EVENT as ONCHAIN_EVENT
from workbench.language.simulate import read_contact
from workbench.language.trigger import BUILT_INS, Trigger
from workbench.segments import segment_names

_FRESH = 60.0  # seconds
_MOST_LOOKED_AT = 8  # events of one automation; each costs a look at its newest payloads
_LATEST = "SELECT metadata::text, tags FROM contacts ORDER BY updated_at DESC LIMIT 300"
_LOGS = """
SELECT o.args::text, o.block_time::text, o.args ->> :wallet_arg, c.id::text
FROM onchain_events o LEFT JOIN contacts c ON c.id = o.contact_id AND c.wallet_address = o.args ->> :wallet_arg
WHERE o.chain_id = :chain_id AND o.contract = :contract AND o.signature = :signature AND NOT o.removed AND o.args ? :wallet_arg
ORDER BY o.id DESC LIMIT 12
"""
_T = TypeVar("_T")


class ContactProperties(msgspec.Struct, frozen=True):
    """What the contacts changed last have in common: names of attributes with some of their values, and tags."""

    attributes: dict[str, list[str]] = {}
    tags: tuple[str, ...] = ()


class Suggestions:
    """What the server knows. Every answer is at most a minute old."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection if connection is not None and connection.has_key else None
        self._catalog = Catalog(self._connection) if self._connection is not None else None
        self._kept: dict[str, tuple[float, Any]] = {}

    def choices(self, events: Iterable[str]) -> JsonObject:
        """Return what can be chosen in an automation that knows these events, as a browser takes it."""
        people = self._people()
        paths = {name: _paths(shape) for name in events if (shape := self._shape(name)) is not None}
        return {
            "events": [{"name": each, "count": count} for each, count in self._events()],
            "paths": paths,
            "builtIns": [*BUILT_INS],
            "attributes": [{"name": name, "samples": some} for name, some in people.attributes.items()],
            "tags": [*people.tags],
            "segments": [*(self._segments() or ())],
        }

    def objections(self, trigger: Trigger, graph: Graph) -> list[Diagnostic]:
        """Return warnings about events and values that nobody has sent, and segments that nobody has defined."""
        names = [name for name, _ in self._events()]
        on_chain = self._chained() if uses_chain(trigger, graph) else None
        if not names and on_chain is None:
            return []
        looked_at = [each for each in events_of(trigger, graph) if each in names][:_MOST_LOOKED_AT]
        shapes = {name: shape for name in looked_at if (shape := self._shape(name)) is not None}
        paths = {name: frozenset(each.path for each in shape.paths) for name, shape in shapes.items()}
        segments = self._segments() if segments_of(graph) else None
        return [*check_against(CatalogFacts(tuple(names), paths, segments, on_chain), trigger, graph)]

    def _events(self) -> list[tuple[str, int]]:
        return self._once("events", lambda: [(each.event, each.count) for each in self._catalog or ()], [])

    def _shape(self, name: str) -> EventShape | None:
        catalog = self._catalog
        if catalog is None or name not in dict(self._events()):
            return None
        return self._once(f"event {name}", lambda: catalog[name], None)

    def _people(self) -> ContactProperties:
        return self._once("people", lambda: _people(self.rows(_LATEST)), ContactProperties())

    def _segments(self) -> tuple[str, ...] | None:
        connection = self._connection
        if connection is None:
            return None
        return self._once("segments", lambda: segment_names(connection), None)

    def _chained(self) -> ChainFacts | None:
        connection = self._connection
        return None if connection is None else self._once("chains", lambda: chained(connection), None)

    def logs(self, source: LogSource) -> list[list[Any]]:
        """Return the newest logs that an automation starts from: parameters as JSON, when, the wallet, and its contact if known."""
        which = {
            "chain_id": source.chain_id,
            "contract": source.contract,
            "signature": source.abi_event.canonical,
            "wallet_arg": source.wallet_arg,
        }
        return self._once(f"logs {which}", lambda: self.rows(_LOGS, **which), [])

    def rows(self, query: str, **params: Any) -> list[list[Any]]:
        """Return the rows of a query; none without a server."""
        if self._connection is None:
            return []
        rows: list[list[Any]] = self._connection.post("/sql", {"sql": query, "params": params})["rows"]
        return rows

    def _once(self, what: str, ask: Callable[[], _T], otherwise: _T) -> _T:
        at, known = self._kept.get(what, (-_FRESH, otherwise))
        kept: _T = known
        if environment.monotonic_s() - at < _FRESH:
            return kept
        try:
            kept = ask()
        except WorkbenchError:
            kept = otherwise
        self._kept[what] = environment.monotonic_s(), kept
        return kept


def _paths(shape: EventShape) -> list[JsonObject]:
    return [
        {"path": each.path, "types": [*each.types], "samples": [value(some) for some in each.samples[:3]]}
        for each in shape.paths
    ]


def _people(rows: list[list[Any]]) -> ContactProperties:
    attributes: dict[str, list[str]] = {}
    tags: dict[str, None] = {}
    for metadata, own in rows:
        tags |= dict.fromkeys(own or ())
        for name, each in decode((metadata or "{}").encode()).items():
            some = attributes.setdefault(name, [])
            if len(some) < 3 and value(each) not in some:
                some.append(value(each))
    return ContactProperties(dict(sorted(attributes.items())), tuple(sorted(tags)))


_EVENTS = """
SELECT e.event, e.payload::text, e.created_at::text, e.contact_id::text, c.email, c.wallet_address, c.external_id
FROM app_events e JOIN contacts c ON c.id = e.contact_id
WHERE :any OR e.event = ANY (:names::text[])
ORDER BY e.created_at DESC LIMIT 12
"""
_SAMPLE_CONTACT = {"externalId": "simulated"}
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_IDENTIFIERS = ("walletAddress", "email", "externalId")


class SampleEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event to try: its name, its payload as JSON, and whose it is (an id, and how to call them)."""

    label: str
    event: str
    payload: str = "{}"
    contact_id: str = ""
    contact: str = ""


def samples(known: Suggestions, names: Iterable[str]) -> list[SampleEvent]:
    """Return the newest events of these names (of any, when there are none), first those of contacts we can write to in most ways.

    Where none came yet, an empty one of each name.
    """
    wanted = [*names]
    rows = known.rows(_EVENTS, any=not wanted, names=wanted)
    found = [
        SampleEvent(f"{event}, {moment(at)}", event, payload or "{}", contact_id, short(wallet or external_id or email))
        for event, payload, at, contact_id, email, wallet, external_id in sorted(rows, key=_silent)
    ]
    return found or [SampleEvent("an empty event", name) for name in wanted or ["event"]]


def _silent(row: Sequence[Any]) -> int:
    """Return in how many ways the contact of a row cannot be written to."""
    *_, email, wallet, _ = row
    return (email is None) + (wallet is None)


class SampleContact(msgspec.Struct, frozen=True, rename="camel"):
    """A contact to try: as the service describes it, and what an event of theirs would carry.

    `hidden`: this key sees nothing by which the server would know them.
    """

    id: str
    label: str
    described: JsonObject
    identifiers: JsonObject
    hidden: bool = False

    def contact(self) -> ContactState:
        """Return the contact as the language reads it."""
        read = read_contact(self.described)
        if isinstance(read, ContactState):
            return read
        raise InvalidArgumentError("; ".join(map(str, read)))


NOBODY = SampleContact("", "new contact", _SAMPLE_CONTACT, _SAMPLE_CONTACT)


def person(connection: Connection | None, wanted: str) -> SampleContact:
    """Return the contact of that id, address, wallet or external id; nobody in particular when nothing is wanted."""
    wanted = wanted.strip()
    if not wanted:
        return NOBODY
    if connection is None:
        raise InvalidArgumentError("Contacts can only be chosen when connected to a server")
    if _UUID.fullmatch(wanted):
        return _person(connection.get(f"/contacts/{wanted}"))
    return _person(connection.post("/contacts/find", {"contact": {_kind_of(wanted): wanted}}))


def _kind_of(wanted: str) -> str:
    if "@" in wanted:
        return "email"
    return "walletAddress" if wanted.lower().startswith("0x") else "externalId"


def _person(answer: JsonObject) -> SampleContact:
    names = (*_IDENTIFIERS, "id", "attributes", "tags", "segments", "optedOut")
    described = {name: answer[name] for name in names if answer.get(name)}
    masked = "*" in described.get("email", "")  # to a key without pii:read
    known = {name: described[name] for name in _IDENTIFIERS if name in described and not (masked and name == "email")}
    if masked:
        described["email"] = "address-hidden@example.com"
    label = short(next(iter(known.values()), answer["id"]))
    return SampleContact(answer["id"], label, described, known or _SAMPLE_CONTACT, hidden=not known)


def event_of(name: str, payload: str, who: SampleContact, source: LogSource | None = None) -> JsonObject:
    """Return an event as a caller would post it, a log (of `source`) as the service describes it.

    Raises InvalidArgumentError when the payload is no JSON object.
    """
    if source is None:
        return {"event": name, "contact": who.identifiers, "payload": payload_of(payload)}
    whose = {source.wallet_arg: who.identifiers["walletAddress"]} if "walletAddress" in who.identifiers else {}
    return {"type": ONCHAIN_EVENT, "args": payload_of(payload) | whose}


def payload_of(text: str) -> dict[str, Any]:
    """Return a payload that somebody wrote."""
    try:
        payload = decode(text.encode()) if text.strip() else {}
    except ValueError as error:
        position = re.search(r"byte (\d+)", str(error))
        if position is None:
            raise InvalidArgumentError(f"The payload is not valid JSON: {error}") from None
        character = len(text.encode()[: int(position[1])].decode(errors="ignore")) + 1
        raise InvalidArgumentError(f"The payload is not valid JSON (character {character})") from None
    if not isinstance(payload, dict):
        raise InvalidArgumentError('The payload must be an object, like {"amountUsd": 100}')
    return payload


_SHOWN = 3
_MOST_ZEROS = 256
_SAMPLE_WALLET = "0x" + "ab" * 20


def log_samples(known: Suggestions, source: LogSource) -> list[SampleEvent]:
    """Return the newest logs that an automation starts from; where none was seen, one that is made up."""
    found = [
        SampleEvent(
            f"{source.abi_event.name}, {moment(at)}", source.abi_event.name, args, contact_id or "", short(wallet)
        )
        for args, at, wallet, contact_id in known.logs(source)
    ]
    return found or [SampleEvent("a log of zeros", source.abi_event.name, encode(_zeros(source)).decode())]


def parameters(known: Suggestions, trigger: JsonObject, source: LogSource | None) -> list[JsonObject]:
    """Return what filters of a trigger can look at: parameters with their types, and values that were seen.

    `source` None: the trigger is not filled in yet.
    """
    declared = read_signature(str(trigger.get("signature", "")))
    if not isinstance(declared, AbiEvent):
        return []
    seen = [decode(row[0].encode()) for row in known.logs(source)] if source is not None else []
    own = [
        _path(each.name, canonical_type(each.type), [args.get(each.name) for args in seen])
        for each in declared.parameters
    ]
    return [*own, *(_path(name, "where it happened", ()) for name in LOCATION_FIELDS)]


def _path(name: str, kind: str, values: Iterable[Any]) -> JsonObject:
    samples = dict.fromkeys(value(each) for each in values if each is not None)
    return {"path": name, "types": [kind], "samples": [*samples][:_SHOWN]}


def _zeros(source: LogSource) -> JsonObject:
    return {each.name: _zero_of(each) for each in source.abi_event.parameters} | {source.wallet_arg: _SAMPLE_WALLET}


def _zero_of(parameter: AbiParameter) -> Any:
    is_hash = parameter.indexed and not isinstance(parameter.type, AbiWord)
    return f"0x{'00' * 32}" if is_hash else _zero(parameter.type)


def _zero(kind: AbiType) -> Any:
    match kind:
        case AbiWord(kind="bool"):
            return False
        case AbiWord(kind="uint" | "int", size=bits):
            return "0" if bits > SAFE_BITS else 0
        case AbiWord(size=size):
            return f"0x{'00' * size}"
        case AbiBytes(kind=of):
            return "0x" if of == "bytes" else ""
        case AbiTuple(parts=parts):
            return {each.name: _zero(each.type) for each in parts}
        case AbiArray(of=of, length=length):
            return [_zero(of)] * (length or 0) if _size(kind) <= _MOST_ZEROS else []


def _size(kind: AbiType) -> int:
    """Return how many values there are in one, at least."""
    match kind:
        case AbiArray(of=of, length=length):
            return _size(of) * (length or 0)
        case AbiTuple(parts=parts):
            return sum(_size(each.type) for each in parts)
        case _:
            return 1
