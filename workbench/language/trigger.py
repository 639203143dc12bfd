"""Triggers: the events, logs and other starts that start an automation (docs/contract.md 2.7 and 4.7)."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import msgspec

from workbench.language.codec import decode, encode, storage_problem
from workbench.language.event import LOG_NAME, Event, Identifiers, is_awaitable_name, read_event
from workbench.language.filter import MAX_WHERE, OPERATORS, Filter, Where, equated_values, matches, where_problem
from workbench.language.onchain import (
    LOG_SOURCE_SCHEMA,
    ZERO_ADDRESS,
    LogSource,
    log_payload,
    read_log_sample,
    read_log_source,
)
from workbench.language.onchain import ONCHAIN_EVENT as ONCHAIN_EVENT
from workbench.language.problem import Problem, Problems, problems_in
from workbench.language.starts import (
    START_SOURCE_SCHEMA,
    START_TYPES,
    StartSource,
    read_start_sample,
    read_start_source,
)

ALIASES = frozenset({"app_event", "custom_event", "app-event", "custom-event", "appevent"})
TRIGGER_TYPES = (*sorted(ALIASES), ONCHAIN_EVENT, *START_TYPES)
BUILT_INS = ("event", "contactId", "walletAddress", "email", "externalId")
MAX_OPTIONS = 20  # values of an `in` filter that a query pre-selects; each becomes up to two conditions of the query


_FILTER_SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "operator": {"type": "string", "minLength": 1, "description": f"One of {', '.join(OPERATORS)}."},
        "value": {"description": "Not for `exists`."},
    },
    "required": ["path", "operator"],
}
TRIGGER_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "type": {"enum": TRIGGER_TYPES, "examples": ["app_event"]},
    "event": {"type": ["string", "null"]},
    "eventNames": {"type": ["array", "null"], "items": {"type": "string", "minLength": 1}},
    "filters": {"type": ["array", "null"], "items": _FILTER_SCHEMA},
    "where": {"type": ["string", "null"], "maxLength": MAX_WHERE, "examples": ["amountUsd > 500"]},
    **LOG_SOURCE_SCHEMA,
    **START_SOURCE_SCHEMA,
}
TRIGGER_SCHEMA = {
    "type": "object",
    "description": "What starts an automation: docs/automation-language.md, docs/on-chain.md.",
    "properties": TRIGGER_FIELDS,
    "required": ["type"],
}
SAMPLE_SCHEMA = {  # what `read_sample` reads
    "anyOf": [
        {"$ref": "#/components/schemas/EventBody"},
        {
            "type": "object",
            "description": "A log of the contract event that the automation starts on; `args`: its parameters by name.",
            "properties": {"type": {"enum": [ONCHAIN_EVENT]}, "args": {"type": "object"}},
            "required": ["type", "args"],
        },
        {
            "type": "object",
            "description": "A start of the type that the automation has; `contact`: as in an event.",
            "properties": {"type": {"enum": [*START_TYPES]}, "contact": {"type": "object"}},
            "required": ["type"],
        },
    ]
}


def is_app_event(type_name: Any) -> bool:
    """Return whether a type is `app_event` or one of its aliases."""
    return isinstance(type_name, str) and type_name in ALIASES


def is_trigger(type_name: Any) -> bool:
    """Return whether a type is a trigger type."""
    return isinstance(type_name, str) and type_name in TRIGGER_TYPES


class Trigger(msgspec.Struct, frozen=True):
    """A trigger. Without names it is the wildcard: every custom event of the organization.

    `source`: the logs or the starts that a trigger of another type than `app_event` is for; it has no names.
    `empty_name`: it is the wildcard because its `event` is an empty text, which may be a form that was not filled in.
    """

    names: frozenset[str] = frozenset()
    filters: tuple[Filter, ...] = ()
    source: LogSource | StartSource | None = None
    empty_name: bool = False

    @property
    def type(self) -> str:
        return "app_event" if self.source is None else self.source.type

    @property
    def log_source(self) -> LogSource | None:
        return self.source if isinstance(self.source, LogSource) else None

    @property
    def is_wildcard(self) -> bool:
        return not self.names and self.source is None

    @property
    def confirmations(self) -> int:
        """The number of blocks that must follow the block of a log before it starts an entry."""
        return 0 if self.log_source is None else self.log_source.confirmations

    @property
    def creates_contacts(self) -> bool:
        """Whether a log about an unknown wallet creates a contact."""
        return self.log_source is not None and self.log_source.creates_contacts

    def continues(self, earlier: "Trigger") -> bool:
        """Return whether both triggers are for the same logs, so that a version takes over from an earlier one."""
        log, earlier_log = self.log_source, earlier.log_source
        return log is not None and earlier_log is not None and log.key == earlier_log.key

    @property
    def shown_values(self) -> dict[str, Any]:
        """The values of the fields of its form, as titles show them."""
        source = {} if self.source is None else self.source.shown_values
        return {"events": sorted(self.names), "filters": self.filters, **source}

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of the events, of the log as waits and goals name it, or of the start; empty for the wildcard."""
        return tuple(sorted(self.names)) if self.source is None else (self.source.name,)

    @property
    def awaitable_names(self) -> tuple[str, ...]:
        """The names among `shown_names` that an event can have."""
        return tuple(filter(is_awaitable_name, self.shown_names))

    def matches_event(self, name: str, source: str | None = None) -> bool:
        """Return whether the trigger is for custom events of this name (in lower case), or for those of a source."""
        if self.source is not None:
            # A stored start of a broadcast or a schedule belongs to one automation, and names only its type.
            return source in (self.source.key, self.source.type)
        return source is None and (not self.names or name in self.names)

    def concerns(self, payload: Mapping[str, Any], wallet: str | None) -> bool:
        """Return whether a stored event that matches is about the contact with this wallet.

        A custom event and a start are about their contact. A log is about the wallet in one parameter, which the
        trigger names; it is about no wallet if it was not decoded.
        """
        if self.log_source is None:
            return True
        return wallet not in (None, ZERO_ADDRESS) and payload["args"].get(self.log_source.wallet_arg) == wallet

    def payload_of(self, payload: dict[str, Any], source: str | None) -> dict[str, Any]:
        """Return the payload of a stored event as the filters of this trigger see it."""
        if source is None:
            return payload
        return log_payload(payload, None if self.log_source is None else self.log_source.abi_event)


def fires(trigger: Trigger, name: str, context: Mapping[str, Any], at: datetime) -> bool:
    """Return whether an event with this name and flat context, received at this moment, starts the automation."""
    return trigger.matches_event(name) and matches(trigger.filters, context, at)


def read_sample(described: bytes, trigger: Trigger, now_us: int) -> Event | Problems:
    """Return the event that a JSON text describes: as posted, or as a sample of a log or a start (`is_sample`)."""
    # Searching the bytes first avoids decoding an event, the common case, twice.
    if b'"type"' in described and is_sample(value := decode(described)):
        return read_typed_sample(value, trigger)
    event = read_event(described, now_us)
    return problems_in("event", event) if isinstance(event, tuple) else event


def is_sample(event: Any) -> bool:
    """Return whether a described event is a log, `{"type": "onchain_event", "args": {…}}`, or a start."""
    return isinstance(event, Mapping) and event.get("type") in (ONCHAIN_EVENT, *START_TYPES)


def read_typed_sample(value: Mapping[str, Any], trigger: Trigger) -> Event | Problems:
    """Return the event of a sample of a log or a start."""
    match trigger.source:
        case LogSource() as log if value["type"] == ONCHAIN_EVENT:
            return read_log_sample(value, log)
        case StartSource() as start if value["type"] == start.type:
            return read_start_sample(value, start)
        case _:
            kind = "on-chain events" if value["type"] == ONCHAIN_EVENT else value["type"]
            return (Problem("event.type", f"this automation does not start from {kind}"),)


def read_later_event(described: dict[str, Any], now_us: int) -> Event | Problems:
    """Return an event for which an entry may wait: as posted, or a log by the name that waits use (`0x…:Transfer`)."""
    name, payload = described.get("event"), described.get("payload", {})
    if isinstance(name, str) and LOG_NAME.fullmatch(name) and isinstance(payload, dict):
        return Event(name.lower(), Identifiers(), payload=encode(payload))
    return read_event(encode(described), now_us)


def check_sample(described: dict[str, Any], latest_us: int) -> Problems:
    """Return the problems that a described event has with any trigger, at any time up to `latest_us`."""
    event = () if is_sample(described) else read_event(encode(described), latest_us, history=True)
    return event if isinstance(event, tuple) else ()


def flat_context(name: str, contact_id: str, identifiers: Identifiers, payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the context of filters: the built-ins, then the keys of the payload, which override them.

    An identifier that neither event nor contact has is missing, not null.
    """
    return {"event": name, "contactId": contact_id, **identifier_fields(identifiers), **payload}


def identifier_fields(identifiers: Identifiers) -> dict[str, Any]:
    """Return the identifiers that are set, by the names that filters and texts use."""
    fields = {}
    if identifiers.wallet is not None:
        fields["walletAddress"] = identifiers.wallet
    if identifiers.email is not None:
        fields["email"] = identifiers.email
    if identifiers.external_id is not None:
        fields["externalId"] = identifiers.external_id
    return fields


def needs_email(trigger: Trigger) -> bool:
    """Return whether a filter reads the email, so that it has to be decrypted."""
    return any("email" in filter_.paths for filter_ in trigger.filters)


def read_trigger(spec: Any, field: str = "triggerSpec") -> Trigger | Problems:
    """Return the trigger in a decoded JSON value, or all its problems."""
    if not isinstance(spec, dict):
        return (Problem(field, "must be an object"),)
    if reason := storage_problem(spec):
        return (Problem(field, reason),)
    problems: list[Problem] = []
    source: LogSource | StartSource | None = None
    names: list[str] = []
    if spec.get("type") == ONCHAIN_EVENT:
        source = read_log_source(spec, field, problems)
    elif spec.get("type") in START_TYPES:
        source = read_start_source(spec["type"], spec, field, problems)
    elif is_app_event(spec.get("type")):
        name, listed = spec.get("event"), spec.get("eventNames")
        if isinstance(name, str):
            names.append(name)
        elif name is not None:
            problems.append(Problem(f"{field}.event", "must be a string"))
        if isinstance(listed, list) and all(isinstance(item, str) and item for item in listed):
            names.extend(listed)
        elif listed is not None:
            problems.append(Problem(f"{field}.eventNames", "must be an array of non-empty strings"))
    else:
        problems.append(
            Problem(f"{field}.type", f"must be one of app_event, {', '.join((ONCHAIN_EVENT, *START_TYPES))}")
        )
    filters = read_filters(spec, field, problems)
    if problems:
        return tuple(problems)
    lower_case = frozenset(name.lower() for name in names if name)
    return Trigger(lower_case, filters, source, empty_name=bool(names) and not lower_case)


def read_filters(owner: Mapping[str, Any], field: str, problems: list[Problem]) -> tuple[Filter, ...]:
    """Return the `filters` and the `where` of a decoded JSON object; add what is wrong with them to `problems`."""
    value, expression = owner.get("filters"), owner.get("where")
    filters: list[Filter] = []
    if value is not None and not isinstance(value, list):
        problems.append(Problem(f"{field}.filters", "must be an array of filters"))
        value = None
    for index, item in enumerate(value or ()):
        path = f"{field}.filters[{index}]"
        if not isinstance(item, dict):
            problems.append(Problem(path, "must be an object with path, operator and value"))
            continue
        blank = [name for name in ("path", "operator") if not isinstance(item.get(name), str) or not item[name]]
        if blank:
            problems.append(Problem(f"{path}.{blank[0]}", "must be a non-empty string"))
        elif "value" not in item and item["operator"] in OPERATORS and OPERATORS[item["operator"]].operand != "nothing":
            problems.append(Problem(f"{path}.value", f"is required for {item['operator']}"))
        else:
            filters.append(Filter(item["path"], item["operator"], item.get("value")))
    if expression is not None and (reason := where_problem(expression)) is not None:
        problems.append(Problem(f"{field}.where", reason))
    elif expression is not None:
        filters.append(Where(expression))
    return tuple(filters)


def containment_patterns(filter_: Filter, roots: Collection[str] = BUILT_INS) -> tuple[dict[str, Any], ...]:
    """Return JSON objects such that every payload that passes the filter contains one of them; () for most operators.

    Postgres pre-selects rows with them (`payload @> {"asset": "USDC"}`). They may let too many rows through, never too
    few; `matches` decides. `roots`: first parts of paths that can refer to something outside the payload.
    """
    options = equated_values(filter_)
    if options is None or len(options) > MAX_OPTIONS:
        return ()
    first, *rest = filter_.path.split(".")
    if first in roots:  # the value may come from outside the payload
        return ()
    patterns: list[dict[str, Any]] = []
    for option in options:
        patterns.append({filter_.path: option})
        if rest:  # a path is a literal key first, and descends into objects otherwise
            nested = option
            for key in reversed(rest):
                nested = {key: nested}
            patterns.append({first: nested})
    return tuple(patterns)
