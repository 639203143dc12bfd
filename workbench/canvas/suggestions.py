"""Suggestions for the forms of a canvas: events, values, tags, attributes, segments, and sample events.

They are read from the server when a canvas asks, and kept for a minute. Without a server, or without permission to
read them, the lists are empty, and users type the names.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar

import msgspec

from workbench.catalog import EventShape
from workbench.connection import Connection, TtlCache
from workbench.display.html import moment
from workbench.display.kinds import trigger_subject
from workbench.display.words import short, value
from workbench.draft import Draft, JsonObject
from workbench.errors import InvalidArgumentError, UnavailableError, WorkbenchError
from workbench.language.abi import (
    SAFE_BITS,
    AbiArray,
    AbiBytes,
    AbiEvent,
    AbiTuple,
    AbiType,
    AbiWord,
    canonical_type,
    read_signature,
)
from workbench.language.body import is_id
from workbench.language.channel import is_evm_wallet
from workbench.language.check import (
    Diagnostic,
    check_against,
    compares_attributes,
    events_of,
    needs_of,
    segments_of,
    uses_chain,
)
from workbench.language.codec import decode, encode, normalize
from workbench.language.connections import connections_of
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers, mask_email
from workbench.language.graph import Graph
from workbench.language.onchain import LOCATION_FIELDS, ONCHAIN_EVENT, LogSource, log_sample
from workbench.language.responses import PropertiesView
from workbench.language.simulate import read_contact
from workbench.language.snippets import names_in
from workbench.language.starts import StartSource
from workbench.language.trigger import BUILT_INS, Trigger, containment_patterns, fires, flat_context
from workbench.publish import SavedAutomation
from workbench.segments import segment_names
from workbench.snippets import with_pins

_FRESH_S = 60.0
_MAX_SAMPLES = 3  # values shown for one path or attribute
_LOGS = """
SELECT o.args::text, o.block_time::text, o.args ->> :wallet_arg, c.id::text
FROM onchain_events o LEFT JOIN contacts c ON c.id = o.contact_id AND c.wallet_address = o.args ->> :wallet_arg
WHERE o.chain_id = :chain_id AND o.contract = :contract AND o.signature = :signature AND NOT o.removed
  AND o.args ? :wallet_arg
ORDER BY o.id DESC LIMIT 12
"""
_T = TypeVar("_T")


class Suggestions:
    """Suggestions from the server, at most a minute old."""

    def __init__(self, server: SavedAutomation) -> None:
        self._server = server
        self._catalog = server.catalog
        self._connection = server.connection if self._catalog is not None else None
        self._cache: dict[str, TtlCache[Any]] = {}

    def choices(self, events: Iterable[str]) -> JsonObject:
        """Return all suggestions for an automation that uses these events."""
        catalog, connection = self._catalog, self._connection
        library: JsonObject = {"snippets": (), "connections": (), "topics": ()}
        if connection is not None:
            for name in tuple(library):
                library = library | self._cached(name, partial(connection.get, f"/{name}"), {})
        properties = self._cached("properties", self._contact_properties, PropertiesView(0, (), ()))
        counts: dict[str, int] = self._cached(
            "events", lambda: {event.event: event.count for event in catalog or ()}, {}
        )
        shapes: list[EventShape | None] = []
        segments: tuple[str, ...] | None = None
        if catalog is not None and connection is not None:
            # Names that were never sent need no request, because a name is incomplete while it is typed.
            sent = [name for name in events if name in counts]
            shapes = [self._cached(f"event {name}", partial(catalog.__getitem__, name), None) for name in sent]
            segments = self._cached("segments", partial(segment_names, connection), None)
        return {
            "events": [{"name": name, "count": count} for name, count in counts.items()],
            "paths": {
                shape.event: [
                    {
                        "path": path.path,
                        "types": [*path.types],
                        "samples": [value(sample) for sample in path.samples[:_MAX_SAMPLES]],
                    }
                    for path in shape.paths
                ]
                for shape in shapes
                if shape is not None
            },
            "builtIns": [*BUILT_INS],
            "attributes": [
                {"name": attribute.path, "samples": [value(sample) for sample in attribute.samples[:_MAX_SAMPLES]]}
                for attribute in properties.paths
            ],
            "tags": [*properties.tags],
            "segments": [*(segments or ())],
            "snippets": [snippet["name"] for snippet in library["snippets"]],
            "connections": [
                {"name": item["name"], "fields": [*map(dict, item["fields"])]} for item in library["connections"]
            ],
            "topics": [{"name": topic["name"], "label": topic["label"]} for topic in library["topics"]],
        }

    def warnings(self, trigger: Trigger, graph: Graph) -> list[Diagnostic]:
        """Return warnings about events and values that were never sent, and segments that are not defined."""
        names = (
            events_of(trigger, graph),
            segments_of(trigger, graph),
            uses_chain(trigger, graph),
            needs_of(trigger, graph),
            connections_of(graph),
            compares_attributes(trigger, graph),
        )
        settings, topics = graph.settings, sorted(graph.named_topics)
        facts_key = f"facts {names} {trigger.source} {trigger.is_wildcard} {settings.locale_attribute} {topics}"
        facts = self._cached(facts_key, lambda: self._server.facts(trigger, graph), None)
        return [] if facts is None else [*check_against(facts, trigger, graph)]

    def snippet_problems(self, draft: Draft) -> list[Diagnostic]:
        """Return what is wrong with a draft because of the snippets that it includes: unknown ones, cycles."""
        if not names_in(normalize(draft.nodes)):
            return []
        # Not cached: a snippet may be saved at any time, in a cell or by someone else.
        try:
            included = with_pins(draft, self._connection)
        except WorkbenchError:
            return []
        own_remarks = draft.remarks()
        return [remark for remark in included.remarks() if remark not in own_remarks]

    def logs(self, source: LogSource) -> list[list[Any]]:
        """Return the newest logs of a trigger: parameters as JSON, block time, wallet, contact id or None."""
        params = {
            "chain_id": source.chain_id,
            "contract": source.contract,
            "signature": source.abi_event.canonical,
            "wallet_arg": source.wallet_arg,
        }
        return self._cached(f"logs {params}", lambda: self.rows(_LOGS, **params), [])

    def rows(self, query: str, **params: Any) -> list[list[Any]]:
        """Return the rows of a query; an empty list without a server."""
        if self._connection is None:
            return []
        rows: list[list[Any]] = self._connection.post("/sql", {"sql": query, "params": params})["rows"]
        return rows

    def newest_since(self, names: Sequence[str]) -> dict[str, datetime]:
        """Return moments that bound queries for the newest events of these names; none without a server."""
        catalog = self._catalog
        return {} if catalog is None else self._cached(f"since {names}", lambda: catalog.newest_since(names), {})

    def _contact_properties(self) -> PropertiesView:
        if self._connection is None:
            return PropertiesView(0, (), ())
        return msgspec.convert(self._connection.get("/contacts/properties"), PropertiesView)

    def _cached(self, name: str, read: Callable[[], _T], default: _T) -> _T:
        def read_or_default() -> _T:
            # An error is cached like an answer: a key without permission would otherwise ask again at every keystroke.
            # A server that is only busy is asked again.
            try:
                return read()
            except UnavailableError:
                raise
            except WorkbenchError:
                return default

        try:
            cached: _T = self._cache.setdefault(name, TtlCache(read_or_default, _FRESH_S))()
        except UnavailableError:
            return default
        return cached


# Of the newest events of each name, those whose payload passes the most filters. `since` bounds what is read, and the
# limit makes it one read of an index per name. Contacts are found by their keys: in the queries of analysts, a join
# alone would read all contacts.
NEWEST_EVENTS = """
WITH newest AS MATERIALIZED (
    SELECT e.* FROM unnest(:names::text[], :moments::timestamptz[]) AS k (name, since) CROSS JOIN LATERAL (
        SELECT event, payload, created_at, contact_id FROM app_events
        WHERE event = name AND created_at >= since ORDER BY created_at DESC LIMIT CAST(:newest AS bigint)
    ) e
    ORDER BY (SELECT count(*) FROM jsonb_array_elements(CAST(:patterns AS jsonb)) AS filter
              WHERE EXISTS (SELECT FROM jsonb_array_elements(filter) AS pattern WHERE e.payload @> pattern)) DESC,
             e.created_at DESC
    LIMIT 12
)
SELECT e.event, e.payload::text, e.created_at::text, e.contact_id::text, c.email, c.wallet_address, c.external_id
FROM newest e JOIN contacts c ON c.id = e.contact_id AND c.id = ANY (ARRAY(SELECT contact_id FROM newest))
ORDER BY e.created_at DESC
"""
_NEWEST = 1_000
_SAMPLE_IDENTIFIERS = {"externalId": "simulated"}
_IDENTIFIERS = ("walletAddress", "email", "externalId")


class SampleEvent(msgspec.Struct, frozen=True, rename="camel"):
    """An event to test with: its name, its payload as JSON, and the id and the label of its contact."""

    label: str
    event: str
    payload: str = "{}"
    contact_id: str = ""
    contact: str = ""


def sample_events(suggestions: Suggestions, trigger: Trigger) -> list[SampleEvent]:
    """Return the newest events that start an automation, or an empty event of each name that it starts on.

    Events that pass its filters come first, then events of contacts with an email address and a wallet that can sign
    in, because every message can be previewed with them.
    """
    if trigger.log_source is not None:
        return _sample_logs(suggestions, trigger, trigger.log_source)
    if isinstance(trigger.source, StartSource):
        return [SampleEvent(trigger_subject(trigger), trigger.type, encode(trigger.source.payload).decode())]

    def starts(row: list[Any]) -> bool:
        event, payload, at, contact_id, email, wallet, external_id = row
        identifiers = Identifiers(wallet, email, external_id)
        context = flat_context(event, contact_id, identifiers, read_payload(payload or ""))
        return fires(trigger, event, context, datetime.fromisoformat(at))

    names = sorted(trigger.names)
    event_names = names or [event["name"] for event in suggestions.choices(())["events"]]
    patterns = encode([options for filter_ in trigger.filters if (options := containment_patterns(filter_))]).decode()
    since = suggestions.newest_since(event_names)
    newest = max(_NEWEST // max(len(since), 1), 12)
    moments = [at.isoformat() for at in since.values()]
    rows = suggestions.rows(NEWEST_EVENTS, names=[*since], moments=moments, newest=newest, patterns=patterns)
    # The sorts are stable: events of equally complete contacts stay newest first.
    rows.sort(key=lambda row: (row[4] is None) + (row[5] is None or not is_evm_wallet(row[5])))
    rows.sort(key=starts, reverse=True)
    samples = [
        SampleEvent(f"{event}, {moment(at)}", event, payload or "{}", contact_id, short(wallet or external_id or email))
        for event, payload, at, contact_id, email, wallet, external_id in rows
    ]
    return samples or [SampleEvent("an empty event", name) for name in names or ["event"]]


class SampleContact(msgspec.Struct, frozen=True, rename="camel"):
    """A contact to test with: as the service describes it, and the identifiers that its events carry.

    `hidden`: the key may not read any of its identifiers. `suppressed`: why its address gets no emails, or empty.
    """

    id: str
    label: str
    described: JsonObject
    identifiers: JsonObject
    hidden: bool = False
    suppressed: str = ""

    def contact(self) -> ContactState:
        """Return the contact as the language reads it."""
        contact = read_contact(self.described)
        if isinstance(contact, ContactState):
            return contact
        raise InvalidArgumentError("; ".join(map(str, contact)))


NEW_CONTACT = SampleContact("", "new contact", _SAMPLE_IDENTIFIERS, _SAMPLE_IDENTIFIERS)


def find_contact(connection: Connection | None, query: str) -> SampleContact:
    """Return the contact with this id, email address, wallet or external id; a new contact for an empty query."""
    query = query.strip()
    if not query:
        return NEW_CONTACT
    if connection is None:
        raise InvalidArgumentError("Contacts can only be chosen when connected to a server")
    if is_id(query):
        answer = connection.get(f"/contacts/{query}")
    else:
        kind = "email" if "@" in query else "walletAddress" if query.lower().startswith("0x") else "externalId"
        answer = connection.post("/contacts/find", {"contact": {kind: query}})
    fields = (*_IDENTIFIERS, "id", "attributes", "tags", "segments", "optedOut", "declined")
    described = {name: answer[name] for name in fields if answer.get(name)}
    email = described.get("email", "")
    masked = email != "" and email == mask_email(email)  # a key without pii:read gets a•••@example.com
    readable = {
        name: described[name] for name in _IDENTIFIERS if name in described and not (masked and name == "email")
    }
    if masked:
        # A valid address, because the preview of an email step would otherwise fail where a real run would not.
        described["email"] = "address-hidden@example.com"
    label = short(next(iter(readable.values()), answer["id"]))
    suppressed = answer.get("suppressed") or ""
    identifiers = readable or _SAMPLE_IDENTIFIERS
    return SampleContact(answer["id"], label, described, identifiers, hidden=not readable, suppressed=suppressed)


def event_of(name: str, payload: str, contact: SampleContact, trigger: Trigger) -> JsonObject:
    """Return an event as a backend would send it, or a log or a start as the service describes it.

    Raises InvalidArgumentError when the payload is not a JSON object.
    """
    if trigger.source is None:
        return {"event": name, "contact": contact.identifiers, "payload": read_payload(payload)}
    if trigger.log_source is None:
        return {"type": trigger.type, "contact": contact.identifiers}
    wallet = contact.identifiers.get("walletAddress")
    return log_sample(read_payload(payload) | ({trigger.log_source.wallet_arg: wallet} if wallet else {}))


def read_payload(text: str) -> dict[str, Any]:
    """Return a payload from JSON text; raise InvalidArgumentError with the position of a syntax error."""
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


_MAX_ZEROS = 256  # a signature may declare arrays of any length, such as uint8[60000][60000]
_SAMPLE_WALLET = "0x" + "ab" * 20


def _sample_logs(suggestions: Suggestions, trigger: Trigger, source: LogSource) -> list[SampleEvent]:
    """Return the newest logs of a contract, those that pass the trigger's filters first, or one log of zeros."""
    name, filtered = source.abi_event.name, msgspec.structs.replace(trigger, source=None)

    def passes(row: list[Any]) -> bool:
        args, at, wallet, contact_id = row
        context = flat_context(name, contact_id or "", Identifiers(wallet), read_payload(args))
        return fires(filtered, name, context, datetime.fromisoformat(at))

    samples = [
        SampleEvent(f"{name}, {moment(at)}", name, args, contact_id or "", short(wallet))
        for args, at, wallet, contact_id in sorted(suggestions.logs(source), key=passes, reverse=True)
    ]
    if samples:
        return samples
    # An indexed parameter that is longer than 32 bytes is logged as its hash.
    zeros = {
        parameter.name: f"0x{'00' * 32}"
        if parameter.indexed and not isinstance(parameter.type, AbiWord)
        else _zero(parameter.type)
        for parameter in source.abi_event.parameters
    }
    return [SampleEvent("a log of zeros", name, encode(zeros | {source.wallet_arg: _SAMPLE_WALLET}).decode())]


def declared_paths(suggestions: Suggestions, spec: JsonObject, trigger: Trigger) -> dict[str, list[JsonObject]]:
    """Return the paths for filters that a trigger spec declares, by signature, or by the type of a start.

    These are the parameters of a log with types and samples, and its location. `trigger` has no source while the spec
    is incomplete.
    """
    if isinstance(trigger.source, StartSource):
        payload = trigger.source.payload
        return {trigger.type: [{"path": key, "types": ["string"], "samples": [value(payload[key])]} for key in payload]}
    if spec.get("type") != ONCHAIN_EVENT:
        return {}
    signature, source = spec.get("signature", ""), trigger.log_source
    declared = read_signature(str(signature))
    if not isinstance(declared, AbiEvent):
        return {signature: []}
    logs = [decode(row[0].encode()) for row in suggestions.logs(source)] if source is not None else []
    paths = []
    for parameter in declared.parameters:
        values = [log[parameter.name] for log in logs if log.get(parameter.name) is not None]
        samples = [*dict.fromkeys(map(value, values))][:_MAX_SAMPLES]
        paths.append({"path": parameter.name, "types": [canonical_type(parameter.type)], "samples": samples})
    location = [{"path": name, "types": ["where it happened"], "samples": []} for name in LOCATION_FIELDS]
    return {signature: [*paths, *location]}


def _zero(abi_type: AbiType) -> Any:
    match abi_type:
        case AbiWord(kind="bool"):
            return False
        case AbiWord(kind="uint" | "int", size=bits):
            return "0" if bits > SAFE_BITS else 0
        case AbiWord(size=size):
            return f"0x{'00' * size}"
        case AbiBytes(kind=kind):
            return "0x" if kind == "bytes" else ""
        case AbiTuple(parts=parts):
            return {part.name: _zero(part.type) for part in parts}
        case AbiArray(of=item, length=length):
            return [_zero(item)] * (length or 0) if _size(abi_type) <= _MAX_ZEROS else []


def _size(abi_type: AbiType) -> int:
    """Return the minimum number of elementary values in a value of this type."""
    match abi_type:
        case AbiArray(of=item, length=length):
            return _size(item) * (length or 0)
        case AbiTuple(parts=parts):
            return sum(_size(part.type) for part in parts)
        case _:
            return 1
