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

Of the rest (`elements`, `person_id`, `team_id` …) nothing is kept. An address is the contact's and stands nowhere else.
"""

from api.ingest.files.moments import moment
from api.ingest.files.names import Names
from api.ingest.files.row import Record
from api.ingest.files.segment import address, fields, is_trait, text, without_address

_SETS = ("$set_once", "$set")  # in this order: the later ones win


def is_posthog(names: set[str]) -> bool:
    """Whether a record with such fields is PostHog's."""
    return {"event", "distinct_id", "properties"} <= names


def from_posthog(record: Record, names: Names) -> Record:
    """Return the event of a record; what is missing is for the judge of events to say."""
    properties = fields(record.get("properties"))
    sets = [fields(each) for name in _SETS for each in (properties.get(name), record.get(name[1:]))]
    told = [*reversed(sets), fields(record.get("person_properties"))]
    traits = {name: value for each in sets for name, value in without_address(each).items()}
    return {
        "event": names.normal(record.get("event")),
        "contact": {
            "externalId": text(record.get("distinct_id")),
            "email": next((email for each in told if (email := address(each.get("email"))) is not None), None),
        },
        "attributes": {name: value for name, value in traits.items() if is_trait(value)},
        "payload": properties
        | {name: without_address(fields(properties[name])) for name in _SETS if name in properties},
        "occurredAt": moment(record.get("timestamp")),
        "idempotencyKey": record.get("uuid"),
    }
