"""What became of events, from their callers' point of view: counted when they are answered."""

from collections.abc import Sequence

from api.ingest.outcome import DryRun, Duplicate, Outcome, RateLimited, Stored, Unavailable
from api.meters import Spans, Tally

_WORDS: dict[type[Outcome], str] = {
    Stored: "stored",
    Duplicate: "duplicate",
    DryRun: "dry_run",
    RateLimited: "rate_limited",
    Unavailable: "unavailable",
}
_FIELDS = frozenset(
    {"event", "contact", "contact.email", "contact.walletAddress", "contact.externalId", "attributes", "payload"}
    | {"occurredAt", "idempotencyKey", "test", "events"}
)


class IngestMeters:
    """The counts of one process. Refused events are counted by `refused_at`, where their notice is taken."""

    def __init__(self) -> None:
        self.events = Tally("outcome")
        self.waits = Spans()

    def count(self, outcomes: Sequence[Outcome]) -> None:
        """Count what callers are told."""
        for outcome in outcomes:
            if (word := _WORDS.get(type(outcome))) is not None:
                self.events.add(word)


def refused_at(field: str) -> str:
    """Return the field of the contract that a problem's path belongs to; `body` for the body itself."""
    if field in _FIELDS:
        return field
    first = field.partition(".")[0]
    return first if first in _FIELDS else "body"
