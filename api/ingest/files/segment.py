"""Records of Segment as events: https://segment.com/docs/connections/spec/common/.

| Segment | event |
|---|---|
| `track` | its `event` |
| `identify`, `page`, `screen`, `group`, `alias` | the type itself |
| `userId`, else `anonymousId` | `contact.externalId` |
| `traits.email`, `context.traits.email` | `contact.email`, where it is an address |
| `traits` of `identify` that are texts, numbers, booleans | `attributes` |
| `properties`; other traits; `name`, `category`, `groupId`, `previousId`, `anonymousId` | `payload` |
| `timestamp`, else `originalTimestamp` | `occurredAt` |
| `messageId` | `idempotencyKey` |

Of the rest (`context`, `integrations`, `receivedAt` …) nothing is kept. An address is the contact's and stands nowhere else: there
it is sealed.
"""

from api.ingest.files.moments import moment
from api.ingest.files.names import Names
from api.ingest.files.row import Record
from api.language.codec import Json
from api.language.email import normal_email

_KEPT = ("name", "category", "groupId", "previousId")


def is_segment(names: set[str]) -> bool:
    """Whether a record with such fields is Segment's."""
    return {"type", "messageId"} <= names and bool(names & {"userId", "anonymousId"})


def from_segment(record: Record, names: Names) -> Record:
    """Return the event of a record; what is missing is for the judge of events to say."""
    kind = record.get("type")
    told = fields(record.get("traits"))
    traits = without_address(told)
    user, anonymous = text(record.get("userId")), text(record.get("anonymousId"))
    known = traits if kind == "identify" else {}
    payload = fields(record.get("properties")) | {name: record[name] for name in _KEPT if record.get(name) is not None}
    if user is not None and anonymous is not None:
        payload.setdefault("anonymousId", anonymous)
    if rest := {name: value for name, value in traits.items() if kind != "identify" or not is_trait(value)}:
        payload.setdefault("traits", rest)
    email = address(told.get("email")) or address(fields(fields(record.get("context")).get("traits")).get("email"))
    return {
        "event": names.normal(record.get("event") if kind == "track" else kind),
        "contact": {"externalId": user if user is not None else anonymous, "email": email},
        "attributes": {name: value for name, value in known.items() if is_trait(value)},
        "payload": payload,
        "occurredAt": moment(record.get("timestamp") or record.get("originalTimestamp")),
        "idempotencyKey": record.get("messageId"),
    }


def fields(value: object) -> dict[str, Json]:
    """Return an object, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def is_trait(value: object) -> bool:
    """Whether a value can be an attribute."""
    return value is not None and not isinstance(value, dict | list)


def text(value: object) -> object:
    """Return an identifier as text: other systems take numbers for one; None where there is none."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if value != "" else None


def address(value: object) -> str | None:
    """Return an address that is one: one that is not stays among the traits, and refuses no event."""
    return value if isinstance(value, str) and normal_email(value) is not None else None


def without_address(traits: Record) -> Record:
    """Return traits without the address that becomes the contact's own."""
    return (
        traits if address(traits.get("email")) is None else {name: traits[name] for name in traits if name != "email"}
    )
