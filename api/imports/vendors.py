"""Files with one JSON value per line, and the records of other systems as events.

Segment (https://segment.com/docs/connections/spec/common/):

| Segment | event |
|---|---|
| `track` | its `event` |
| `identify`, `page`, `screen`, `group`, `alias` | the type itself |
| `userId`, else `anonymousId` | `contact.externalId` |
| `traits.email`, `context.traits.email` | `contact.email`, if it is a valid address |
| `traits` of `identify` that are texts, numbers, booleans | `attributes` |
| `properties`; other traits; `name`, `category`, `groupId`, `previousId`, `anonymousId` | `payload` |
| `timestamp`, else `originalTimestamp` | `occurredAt` |
| `messageId` | `idempotencyKey` |

PostHog (https://posthog.com/docs/cdp/batch-exports):

| PostHog | event |
|---|---|
| `event` | `event`; `$pageview` becomes `pageview` |
| `distinct_id` | `contact.externalId` |
| `email` of `$set`, `person_properties` | `contact.email`, if it is a valid address |
| `$set_once`, `$set` that are texts, numbers, booleans | `attributes` |
| `properties` | `payload` |
| `timestamp` | `occurredAt` |
| `uuid` | `idempotencyKey` |

All other fields are dropped. An address is removed from the traits: identifiers are sealed, and attributes are not.
"""

from collections.abc import Callable, Iterator
from itertools import islice

from api.imports.row import MAX_LINE_BYTES, EventNames, LineFile, Record, Row, contract_time
from workbench.language.codec import Json, MalformedJsonError, decode, encode, malformed_json, replace_lone_surrogates
from workbench.language.event import normalize_email
from workbench.language.problem import Problem

_BOM = b"\xef\xbb\xbf"
_TOO_LONG = (Problem("", f"is longer than {MAX_LINE_BYTES} bytes"),)

_SEGMENT_PAYLOAD_FIELDS = ("name", "category", "groupId", "previousId")
_POSTHOG_SETS = ("$set_once", "$set")  # in this order: $set wins


def line_rows(file: LineFile, after: int, mapping: Callable[[Record], Record] | None) -> Iterator[Row]:
    """Yield the rows of a file of lines after the first `after`. Without a mapping, each line is already an event."""
    for number, line in enumerate(islice(file.lines(), after, None), after + 1):
        if line is None:
            yield number, b"", _TOO_LONG
        elif text := line.strip(b" \t\r\n"):
            if number == 1:
                text = text.removeprefix(_BOM)
            yield (number, text, ()) if mapping is None else _read_record(number, text, mapping)


def _read_record(line: int, text: bytes, mapping: Callable[[Record], Record]) -> Row:
    try:
        record = decode(replace_lone_surrogates(text))
    except MalformedJsonError as error:
        return line, text, (Problem("", malformed_json(error)),)
    if not isinstance(record, dict):
        return line, text, (Problem("", "must be a JSON object"),)
    return line, encode(mapping(record)), ()


def is_segment(names: set[str]) -> bool:
    """Return whether a record with these fields comes from Segment."""
    return {"type", "messageId"} <= names and bool(names & {"userId", "anonymousId"})


def is_posthog(names: set[str]) -> bool:
    """Return whether a record with these fields comes from PostHog."""
    return {"event", "distinct_id", "properties"} <= names


def from_segment(record: Record, names: EventNames) -> Record:
    """Return the event of a record. The parser of events reports fields that are missing."""
    kind = record.get("type")
    all_traits = _object(record.get("traits"))
    traits = _without_email(all_traits)
    user, anonymous = _identifier(record.get("userId")), _identifier(record.get("anonymousId"))
    payload = _object(record.get("properties")) | {
        name: record[name] for name in _SEGMENT_PAYLOAD_FIELDS if record.get(name) is not None
    }
    if user is not None and anonymous is not None:
        payload.setdefault("anonymousId", anonymous)
    attributes = {name: value for name, value in traits.items() if kind == "identify" and _is_scalar(value)}
    if rest := {name: value for name, value in traits.items() if name not in attributes}:
        payload.setdefault("traits", rest)
    context_traits = _object(_object(record.get("context")).get("traits"))
    return {
        "event": names.normalize(record.get("event") if kind == "track" else kind),
        "contact": {
            "externalId": user if user is not None else anonymous,
            "email": _email(all_traits.get("email")) or _email(context_traits.get("email")),
        },
        "attributes": attributes,
        "payload": payload,
        "occurredAt": contract_time(record.get("timestamp") or record.get("originalTimestamp")),
        "idempotencyKey": record.get("messageId"),
    }


def from_posthog(record: Record, names: EventNames) -> Record:
    """Return the event of a record. The parser of events reports fields that are missing."""
    properties = _object(record.get("properties"))
    sets = [_object(value) for name in _POSTHOG_SETS for value in (properties.get(name), record.get(name[1:]))]
    by_precedence = [*reversed(sets), _object(record.get("person_properties"))]
    traits = {name: value for values in sets for name, value in _without_email(values).items()}
    emails = [_email(values.get("email")) for values in by_precedence]
    return {
        "event": names.normalize(record.get("event")),
        "contact": {
            "externalId": _identifier(record.get("distinct_id")),
            "email": next((email for email in emails if email is not None), None),
        },
        "attributes": {name: value for name, value in traits.items() if _is_scalar(value)},
        "payload": properties
        | {name: _without_email(_object(properties[name])) for name in _POSTHOG_SETS if name in properties},
        "occurredAt": contract_time(record.get("timestamp")),
        "idempotencyKey": record.get("uuid"),
    }


def _object(value: object) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _is_scalar(value: object) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _identifier(value: object) -> object:
    # Other systems also use numbers as identifiers; the contract takes only texts.
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if value != "" else None


def _email(value: object) -> str | None:
    # An address that is not valid stays a trait; as `contact.email` the event would be rejected.
    return value if isinstance(value, str) and normalize_email(value) is not None else None


def _without_email(traits: Record) -> Record:
    if _email(traits.get("email")) is None:
        return traits
    return {name: value for name, value in traits.items() if name != "email"}
