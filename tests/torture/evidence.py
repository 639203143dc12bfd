"""All that the checker looks at, and the indexes by which it does."""

from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

import msgspec

from tests.torture.automations import Automation
from tests.torture.log import Attempt, Log, Sent, Switched
from tests.torture.oracle import Conflict
from tests.torture.stored import DryRow, EventRow, Stored, SwitchRow, Told

_LONG_US = 30_000_000  # by then everybody has seen a switch, answered or not


class Switch(NamedTuple):
    """An automation was switched: when that was committed, and when everybody saw it at the latest."""

    committed: int
    seen: int
    active: bool


class Evidence(msgspec.Struct, dict=True):
    """All that is known of a run: what was sent and answered, what is stored, what the service tells of it.

    `left`: locks and transactions that stay open. `complaints`: what no process may do, killed or not.
    """

    log: Log
    stored: Stored
    told: Told
    automations: list[Automation]
    left: list[str]
    complaints: list[str]

    @cached_property
    def attempts(self) -> Mapping[tuple[str, int], list[Attempt]]:
        """The attempts at each sent event, in the order of their answers."""
        found = defaultdict(list)
        for each in self.log.attempts:
            found[each.org, each.number].append(each)
        return found

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], list[EventRow]]:
        """The stored events of each idempotency key."""
        found = defaultdict(list)
        for event in self.stored.events:
            found[event.org, event.key].append(event)
        return found

    @cached_property
    def dry_by_key(self) -> Mapping[tuple[str, str], list[DryRow]]:
        found = defaultdict(list)
        for row in self.stored.dry_runs:
            found[row.org, row.key].append(row)
        return found

    @cached_property
    def conflicts(self) -> Mapping[str, set[Conflict]]:
        """The identity conflicts of each event."""
        found: dict[str, set[Conflict]] = defaultdict(set)
        for each in self.stored.conflicts:
            found[each.event_id].add((each.kind, each.outcome))
        return found

    @cached_property
    def switches(self) -> Mapping[str, list[Switch]]:
        """The switches of each automation, in their order."""
        found = defaultdict(list)
        for row in self.stored.switches:
            seen = [each.ended for each in self.log.switched if _shows(each, row)]
            found[row.automation_id].append(
                Switch(row.committed, min(seen, default=row.committed + _LONG_US), row.active)
            )
        return found

    def sent_as(self, row: EventRow | DryRow) -> Sent | None:
        """Return the sent event of the number in a payload."""
        return self.log.sent.get((row.org, row.payload.get("n", -1)))


def _shows(answered: Switched, row: SwitchRow) -> bool:
    """Whether an answer proves that a switch is committed: it is the answer to it, or to a later request."""
    own = answered.active is row.active and answered.began <= row.committed <= answered.ended
    return answered.automation_id == row.automation_id and (own or answered.began > row.committed)
