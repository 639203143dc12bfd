"""All that the checker looks at, and the indexes by which it does."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, reduce
from typing import NamedTuple

import msgspec

from tests.torture.automations import Automation
from tests.torture.log import Attempt, Log, Published, Sent, Switched
from tests.torture.nemesis import Fault
from tests.torture.oracle import Conflict
from tests.torture.rows import DryRow, EntryRow, EventRow, StepRow, Stored, SwitchRow, Told, VersionRow
from tests.torture.searching import Searched
from tests.torture.sinks import Arrival

NEVER = 2**62
Findings = Iterator[str | None]
"""For everything that an invariant looks at: what is wrong with it, or None."""

RECOVERY_US = 6_000_000  # until what was started again works: a process takes two seconds to load, more where all are being killed
_POSTGRES = frozenset({"postmaster", "postgres", "backend"})
_LONG_US = 30_000_000  # by then everybody has seen a switch, answered or not


class Switch(NamedTuple):
    """An automation was switched: when that was committed, and when everybody saw it at the latest."""

    committed: int
    seen: int
    active: bool


class Version(NamedTuple):
    """A version was published: when that was committed, and when everybody saw it at the latest."""

    number: int
    committed: int
    seen: int


class Lease(msgspec.Struct, frozen=True):
    """The time of one claim: from its commit until it ended, and until when it was given at the longest (microseconds)."""

    token: int
    claimed: int
    until: int
    ended: int


Span = tuple[int, int]
"""From a moment to another (microseconds)."""


class Evidence(msgspec.Struct, dict=True):
    """All that is known of a run: what was sent and answered, what is stored, what the service tells of it, what left it.

    `left`: locks and transactions that stay open. `complaints`: what no process may do, killed or not. `searched`: for secrets.
    `engines`: how many there are. `slack`: microseconds that anything may take beside what faults cost.
    """

    log: Log
    stored: Stored
    told: Told
    automations: list[Automation]
    arrivals: list[Arrival]
    faults: list[Fault]
    left: list[str]
    complaints: list[str]
    engines: int
    slack: int
    searched: list[Searched] = []

    @cached_property
    def attempts(self) -> Mapping[tuple[str, int], list[Attempt]]:
        """The attempts at each sent event, in the order of their answers."""
        found = defaultdict(list)
        for attempt in self.log.attempts:
            found[attempt.org, attempt.number].append(attempt)
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
        for conflict in self.stored.conflicts:
            found[conflict.event_id].add((conflict.kind, conflict.outcome))
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

    @cached_property
    def event(self) -> Mapping[str, EventRow]:
        """The stored events by id."""
        return {event.id: event for event in self.stored.events}

    @cached_property
    def entry(self) -> Mapping[str, EntryRow]:
        """The entries by id."""
        return {entry.id: entry for entry in self.stored.entries}

    @cached_property
    def list_entries(self) -> Mapping[str, list[EntryRow]]:
        """The entries of each automation."""
        found = defaultdict(list)
        for entry in self.stored.entries:
            found[entry.automation_id].append(entry)
        return found

    @cached_property
    def by_contact(self) -> Mapping[tuple[str, str], list[EventRow]]:
        """The events of each contact, by name, in the order of their commits."""
        found = defaultdict(list)
        for event in self.stored.events:
            found[event.contact_id, event.event].append(event)
        return found

    @cached_property
    def steps(self) -> Mapping[str, list[StepRow]]:
        """The steps of each entry, in their order."""
        found = defaultdict(list)
        for step in self.stored.steps:
            found[step.entry_id].append(step)
        return found

    @cached_property
    def leases(self) -> Mapping[str, list[Lease]]:
        """The leases of each entry, in the order of their tokens."""
        open_ones: dict[tuple[str, int], Lease] = {}
        for row in self.stored.leases:
            place = row.entry_id, row.token
            if row.until is None:  # a rescue ends the lease before it under a token of its own
                place = place if place in open_ones else (row.entry_id, row.token - 1)
                if place in open_ones and open_ones[place].ended == NEVER:
                    open_ones[place] = msgspec.structs.replace(open_ones[place], ended=row.committed)
            else:
                known = open_ones.get(place, Lease(row.token, row.committed, row.until, NEVER))
                open_ones[place] = msgspec.structs.replace(known, until=max(known.until, row.until))
        found = defaultdict(list)
        for (entry_id, _), lease in open_ones.items():
            found[entry_id].append(lease)
        return found

    @cached_property
    def by_token(self) -> Mapping[tuple[str, int], Lease]:
        """The leases by entry and token."""
        return {(entry_id, lease.token): lease for entry_id, leases in self.leases.items() for lease in leases}

    @cached_property
    def outages(self) -> list[Span]:
        """The times in which nobody could do an engine's work: Postgres was out, or every engine was."""
        postgres = [_outage(fault) for fault in self.faults if fault.role in _POSTGRES]
        engines = [[_outage(fault) for fault in self.faults if _hits(fault, engine)] for engine in range(self.engines)]
        return union(postgres + reduce(overlap, map(union, engines)))

    @cached_property
    def copies(self) -> Mapping[str, list[Arrival]]:
        """The copies of each message that arrived, in the order in which they began to."""
        found = defaultdict(list)
        for arrival in sorted(self.arrivals, key=lambda each: each.at):
            found[arrival.id].append(arrival)
        return found

    @cached_property
    def versions(self) -> Mapping[str, list[Version]]:
        """The versions of each automation, in their order."""
        found = defaultdict(list)
        for row in self.stored.versions:
            answered = [each.ended for each in self.log.published if _tells(each, row)]
            seen = min(answered, default=row.committed + _LONG_US)
            found[row.automation_id].append(Version(row.version, row.committed, seen))
        return found

    @cached_property
    def erased(self) -> Mapping[str, int]:
        """When each erased contact was."""
        return {erasure.contact_id: erasure.committed for erasure in reversed(self.stored.erasures)}

    @cached_property
    def revoked(self) -> Mapping[str, int]:
        """When each revoked key was."""
        return {each.key_id: each.committed for each in self.stored.revoked}

    def stood_still(self, span: Span) -> int:
        """Return for how much of a time an API process, or Postgres, that somebody dealt with may have been frozen (microseconds)."""
        frozen = union(
            (fault.began, fault.ended) for fault in self.faults if fault.kind == "freeze" and fault.role != "engine"
        )
        return sum(ended - began for began, ended in overlap([span], frozen))

    def struck(self, span: Span) -> bool:
        """Whether Postgres suffered anything in a time: what was committed may have been seen later than its moment says."""
        postgres = ((fault.began, fault.ended) for fault in self.faults if fault.role in _POSTGRES)
        return any(began < span[1] and ended > span[0] for began, ended in postgres)

    def sent_as(self, row: EventRow | DryRow) -> Sent | None:
        """Return the sent event of the number in a payload."""
        return self.log.sent.get((row.org, row.payload.get("n", -1)))


def _shows(answered: Switched, row: SwitchRow) -> bool:
    """Whether an answer proves that a switch is committed: it is the answer to it, or to a later request."""
    own = answered.active is row.active and answered.began <= row.committed <= answered.ended
    return answered.automation_id == row.automation_id and (own or answered.began > row.committed)


def _tells(answered: Published, row: VersionRow) -> bool:
    """Whether an answer proves that a version is committed; one author publishes an automation, one after the other."""
    return answered.automation_id == row.automation_id and answered.ended >= row.committed


def _outage(fault: Fault) -> Span:
    """Return the time for which a fault is an excuse: until what it hit works again, and as long again to catch up."""
    return fault.began, fault.ended + RECOVERY_US + (fault.ended - fault.began)


def _hits(fault: Fault, engine: int) -> bool:
    return (fault.role, fault.victim) == ("engine", engine)


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same times as spans that do not meet, in their order."""
    merged: list[Span] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        else:
            merged.append((began, ended))
    return merged


def overlap(left: list[Span], right: list[Span]) -> list[Span]:
    """Return the times that are in both."""
    both = [(max(one[0], other[0]), min(one[1], other[1])) for one in left for other in right]
    return [(began, ended) for began, ended in both if began < ended]
