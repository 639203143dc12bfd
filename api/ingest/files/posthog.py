"""Records of PostHog's exports as events: https://posthog.com/docs/cdp/batch-exports.

| PostHog | event |
|---|---|
| `event` | `event`; `$pageview` becomes `pageview` |
| `distinct_id` | `contact.externalId` |
| `email` of `$set`, `person_properties` | `contact.email`, where it is an address |
| `$set_once`, `$set` that are texts, numbers, booleans | `attributes` |
| `properties` | `payload` |
| `timestamp` | `occurredAt` |
| `uuid` | `idempotencyKey` |

Of the rest (`elements`, `person_id`, `team_id` …) nothing is kept.
"""

from api.ingest.files.moments import moment
from api.ingest.files.names import Names
from api.ingest.files.row import Record
from api.ingest.files.segment import address, fields, is_trait, text


def is_posthog(names: set[str]) -> bool:
    """Whether a record with such fields is PostHog's."""
    return {"event", "distinct_id", "properties"} <= names


def from_posthog(record: Record, names: Names) -> Record:
    """Return the event of a record; what is missing is for the judge of events to say."""
    properties = fields(record.get("properties"))
    told = [fields(properties.get("$set_once")), fields(record.get("set_once"))]
    told += [fields(properties.get("$set")), fields(record.get("set"))]
    traits = {name: value for each in told for name, value in each.items()}
    email = address(traits.get("email")) or address(fields(record.get("person_properties")).get("email"))
    return {
        "event": names.normal(record.get("event")),
        "contact": {"externalId": text(record.get("distinct_id")), "email": email},
        "attributes": {name: value for name, value in traits.items() if is_trait(value)},
        "payload": properties,
        "occurredAt": moment(record.get("timestamp")),
        "idempotencyKey": record.get("uuid"),
    }
