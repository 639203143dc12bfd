"""The evidence of a run and the indexes that the invariants use."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, reduce
from typing import NamedTuple

import msgspec

from tests.torture.automations import Automation
from tests.torture.journeys import JourneyEvidence
from tests.torture.log import ActivationChange, Attempt, Log, PublishedVersion, SentEvent
from tests.torture.nemesis import Fault
from tests.torture.oracle import Conflict
from tests.torture.rows import DryRow, EntryRow, EventRow, ServiceCounts, StepRow, StoredRows, SwitchRow, VersionRow
from tests.torture.secret_search import SearchedPlace
from tests.torture.sinks import Delivery

NEVER = 2**62
Findings = Iterator[str | None]
"""For everything that an invariant looks at: what is wrong with it, or None."""

RECOVERY_US = 6_000_000  # a restarted process needs two seconds to load, and more on a machine where all are restarting
_POSTGRES = frozenset({"postmaster", "postgres", "backend"})
_STARTED_US = 60_000_000  # by then an API process answers, also on a machine that is much too slow
_LONG_US = 30_000_000  # by then every process has seen a switch, also an unanswered one


class Switch(NamedTuple):
    """An activation or deactivation: when it was committed, and when every process saw it at the latest."""

    committed: int
    visible: int
    active: bool


class Version(NamedTuple):
    """A published version: when it was committed, and when every process saw it at the latest."""

    number: int
    committed: int
    visible: int


class Lease(msgspec.Struct, frozen=True):
    """The lease of one claim: its commit, its last expiry and its end, in microseconds."""

    token: int
    claimed: int
    until: int
    ended: int


Span = tuple[int, int]
"""From a moment to another (microseconds)."""


class Evidence(msgspec.Struct, dict=True):
    """Everything known about a run: requests and answers, stored rows, the service's own counts, and deliveries.

    `left`: locks and transactions still open at the end. `complaints`: errors that no process may log, killed or not.
    `searched`: places searched for secrets. `journeys`: what is known of the marketer's organization; it is in no other
    field. `engines`: the number of engines. `slack`: microseconds that anything may take in addition to the faults.
    """

    log: Log
    stored: StoredRows
    counts: ServiceCounts
    automations: list[Automation]
    arrivals: list[Delivery]
    faults: list[Fault]
    left: list[str]
    complaints: list[str]
    engines: int
    slack: int
    searched: list[SearchedPlace] = []
    journeys: JourneyEvidence | None = None

    @cached_property
    def attempts(self) -> Mapping[tuple[str, int], list[Attempt]]:
        """The attempts of each sent event in the order of their answers."""
        attempts = defaultdict(list)
        for attempt in self.log.attempts:
            attempts[attempt.org, attempt.number].append(attempt)
        return attempts

    @cached_property
    def by_key(self) -> Mapping[tuple[str, str], list[EventRow]]:
        """The stored events of each idempotency key."""
        events = defaultdict(list)
        for event in self.stored.events:
            events[event.org, event.key].append(event)
        return events

    @cached_property
    def dry_by_key(self) -> Mapping[tuple[str, str], list[DryRow]]:
        rows = defaultdict(list)
        for row in self.stored.dry_runs:
            rows[row.org, row.key].append(row)
        return rows

    @cached_property
    def conflicts(self) -> Mapping[str, set[Conflict]]:
        """The identity conflicts of each event."""
        conflicts: dict[str, set[Conflict]] = defaultdict(set)
        for conflict in self.stored.conflicts:
            conflicts[conflict.event_id].add((conflict.kind, conflict.outcome))
        return conflicts

    @cached_property
    def switches(self) -> Mapping[str, list[Switch]]:
        """The switches of each automation in order."""
        switches = defaultdict(list)
        for row in self.stored.switches:
            answered = [answer.ended for answer in self.log.switched if _proves_switch(answer, row)]
            switches[row.automation_id].append(
                Switch(row.committed, min(answered, default=row.committed + _LONG_US), row.active)
            )
        return switches

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
        entries = defaultdict(list)
        for entry in self.stored.entries:
            entries[entry.automation_id].append(entry)
        return entries

    @cached_property
    def by_contact(self) -> Mapping[tuple[str, str], list[EventRow]]:
        """The events of each contact, by name, in the order of their commits."""
        events = defaultdict(list)
        for event in self.stored.events:
            events[event.contact_id, event.event].append(event)
        return events

    @cached_property
    def steps(self) -> Mapping[str, list[StepRow]]:
        """The steps of each entry in order."""
        steps = defaultdict(list)
        for step in self.stored.steps:
            steps[step.entry_id].append(step)
        return steps

    @cached_property
    def leases(self) -> Mapping[str, list[Lease]]:
        """The leases of each entry, in the order of their tokens."""
        open_ones: dict[tuple[str, int], Lease] = {}
        for row in self.stored.leases:
            place = row.entry_id, row.token
            if row.until is None:  # a rescue has its own token and ends the previous lease
                place = place if place in open_ones else (row.entry_id, row.token - 1)
                if place in open_ones and open_ones[place].ended == NEVER:
                    open_ones[place] = msgspec.structs.replace(open_ones[place], ended=row.committed)
            else:
                lease = open_ones.get(place, Lease(row.token, row.committed, row.until, NEVER))
                open_ones[place] = msgspec.structs.replace(lease, until=max(lease.until, row.until))
        leases = defaultdict(list)
        for (entry_id, _), lease in open_ones.items():
            leases[entry_id].append(lease)
        return leases

    @cached_property
    def by_token(self) -> Mapping[tuple[str, int], Lease]:
        """The leases by entry and token."""
        return {(entry_id, lease.token): lease for entry_id, leases in self.leases.items() for lease in leases}

    @cached_property
    def turns(self) -> Mapping[str, list[Span]]:
        """The spans in which an entry of each contact was held: no other one of the contact could be claimed.

        An entry is held from its claim until that is recorded, or until its lease is lost.
        """
        turns = defaultdict(list)
        for entry in self.stored.entries:
            turns[entry.contact_id] += [
                (lease.claimed, min(lease.ended, lease.until)) for lease in self.leases.get(entry.id, [])
            ]
        return {contact_id: union(spans) for contact_id, spans in turns.items()}

    @cached_property
    def outages(self) -> list[Span]:
        """The spans in which no engine could work: Postgres was down, or all engines were."""
        postgres = [_outage(fault) for fault in self.faults if fault.role in _POSTGRES]
        engines = [[_outage(fault) for fault in self.faults if _hits(fault, engine)] for engine in range(self.engines)]
        return union(postgres + reduce(overlap, map(union, engines)))

    @cached_property
    def copies(self) -> Mapping[str, list[Delivery]]:
        """The copies of each message in the order of their arrival."""
        copies = defaultdict(list)
        for arrival in sorted(self.arrivals, key=lambda each: each.at):
            copies[arrival.id].append(arrival)
        return copies

    @cached_property
    def versions(self) -> Mapping[str, list[Version]]:
        """The versions of each automation in order."""
        versions = defaultdict(list)
        for row in self.stored.versions:
            answered = [answer.ended for answer in self.log.published if _proves_version(answer, row)]
            visible = min(answered, default=row.committed + _LONG_US)
            versions[row.automation_id].append(Version(row.version, row.committed, visible))
        return versions

    @cached_property
    def erased(self) -> Mapping[str, int]:
        """The commit of each contact's erasure, in microseconds."""
        return {erasure.contact_id: erasure.committed for erasure in reversed(self.stored.erasures)}

    @cached_property
    def revoked(self) -> Mapping[str, int]:
        """The commit of each key's revocation, in microseconds."""
        return {key.key_id: key.committed for key in self.stored.revoked}

    @cached_property
    def api_outages(self) -> Mapping[int | None, list[Span]]:
        """The spans in which each API process was down, frozen or starting: until its first answer, at most a minute.

        The workers are those of the first one.
        """
        answered: dict[int | None, list[Span]] = defaultdict(list)
        for reply in self.log.replies:
            if reply.status:
                answered[reply.api].append((reply.began, reply.ended))
        outages = defaultdict(list)
        for fault in self.faults:
            if fault.role in ("api", "worker"):
                latest = fault.ended + _STARTED_US
                first = min((ended for began, ended in answered[fault.victim] if began > fault.ended), default=latest)
                outages[fault.victim].append((fault.began, max(_outage(fault)[1], min(first, latest))))
        return defaultdict(list, {api: union(spans) for api, spans in outages.items()})

    def frozen_us(self, span: Span) -> int:
        """Return how long an API process or Postgres was frozen within a span, in microseconds."""
        frozen = union(
            (fault.began, fault.ended) for fault in self.faults if fault.kind == "freeze" and fault.role != "engine"
        )
        return sum(ended - began for began, ended in overlap([span], frozen))

    def postgres_was_hit(self, span: Span) -> bool:
        """Return whether a fault hit Postgres within a span: a commit may have become visible later than its timestamp
        says.
        """
        postgres = ((fault.began, fault.ended) for fault in self.faults if fault.role in _POSTGRES)
        return any(began < span[1] and ended > span[0] for began, ended in postgres)

    def sent_as(self, row: EventRow | DryRow) -> SentEvent | None:
        """Return the sent event with the number in the row's payload."""
        return self.log.sent.get((row.org, row.payload.get("n", -1)))


def _proves_switch(answered: ActivationChange, row: SwitchRow) -> bool:
    """Return whether an answer proves that a switch is committed: it answers this request or a later one."""
    own = answered.active is row.active and answered.began <= row.committed <= answered.ended
    return answered.automation_id == row.automation_id and (own or answered.began > row.committed)


def _proves_version(answered: PublishedVersion, row: VersionRow) -> bool:
    """Return whether an answer proves that a version is committed.

    One author publishes the versions of an automation in sequence.
    """
    return answered.automation_id == row.automation_id and answered.ended >= row.committed


def _outage(fault: Fault) -> Span:
    """Return the span that a fault explains: until its victim works again, plus the same time to catch up."""
    return fault.began, fault.ended + RECOVERY_US + (fault.ended - fault.began)


def _hits(fault: Fault, engine: int) -> bool:
    return (fault.role, fault.victim) == ("engine", engine)


def union(spans: Iterable[Span]) -> list[Span]:
    """Merge overlapping spans; the result is sorted."""
    merged: list[Span] = []
    for began, ended in sorted(spans):
        if merged and began <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], ended)
        else:
            merged.append((began, ended))
    return merged


def overlap(left: list[Span], right: list[Span]) -> list[Span]:
    """Return the intersection of two lists of spans."""
    both = [(max(one[0], other[0]), min(one[1], other[1])) for one in left for other in right]
    return [(began, ended) for began, ended in both if began < ended]
