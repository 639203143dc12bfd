"""Which automations an event enters. Triggers are cached by the organization's epoch, read in the same transaction."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from api.ingest.arrival import Arrival
from api.ingest.directory import Known
from api.keyring import Keyring
from api.language.codec import decode
from api.language.contact import identifiers_of
from api.language.event import Identifiers
from api.language.trigger import Trigger, fires, flat_context, needs_email, read_trigger
from api.store.database import Transaction
from api.store.ingest import Owner
from api.store.triggers import active_automations, awaited_events


class Active(msgspec.Struct, frozen=True):
    """An active automation: what fires it, and the version that an entry will run (None: nothing is published)."""

    automation_id: str
    version: int | None
    stint: int
    trigger: Trigger


class _Cached(msgspec.Struct, frozen=True):
    epoch: int
    by_name: dict[str, tuple[Active, ...]]
    wildcards: tuple[Active, ...]
    awaited: frozenset[str] = frozenset()


class Triggers:
    """The active automations of the organizations this process has seen."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._orgs: dict[int, _Cached] = {}

    async def at(self, tx: Transaction, epochs: Mapping[int, int]) -> "Matcher":
        """Return the triggers as of the epochs that `tx` read by organization, whatever other writers do meanwhile."""
        found: dict[int, _Cached] = {}
        for org_id, epoch in epochs.items():
            cached = self._orgs.get(org_id)
            if cached is None or cached.epoch != epoch:
                cached = self._orgs[org_id] = await _read(tx, org_id, epoch)
            found[org_id] = cached
        return Matcher(self._keyring, found)


class Matcher:
    """The triggers that one batch is matched with."""

    def __init__(self, keyring: Keyring, orgs: Mapping[int, _Cached]) -> None:
        self._keyring = keyring
        self._orgs = orgs

    def matches(self, arrival: Arrival, known: Callable[[Arrival], Known | Owner]) -> Sequence[Active]:
        """Return the automations that the event enters; `known` tells the identifiers of its contact."""
        cached = self._orgs[arrival.org_id]
        candidates = cached.by_name.get(arrival.event.name, ()) + cached.wildcards
        if not any(active.trigger.filters for active in candidates):
            return candidates
        with_email = any(needs_email(active.trigger) for active in candidates)
        context = self._context(arrival, known(arrival), with_email)
        return [active for active in candidates if fires(active.trigger, arrival.event.name, context)]

    def awaits(self, arrival: Arrival) -> bool:
        """Return whether an entry can be waiting for an event of this name."""
        return arrival.event.name in self._orgs[arrival.org_id].awaited

    def _context(self, arrival: Arrival, known: Known | Owner, with_email: bool) -> dict[str, object]:
        sealed = known.email if with_email and arrival.event.identifiers.email is None else None
        email = self._keyring.of(arrival.org_id).open_email(sealed) if sealed else None
        who = identifiers_of(arrival.event.identifiers, Identifiers(known.wallet, email, known.external_id))
        return flat_context(arrival.event.name, arrival.contact_id, who, decode(arrival.event.payload))


async def _read(tx: Transaction, org_id: int, epoch: int) -> _Cached:
    if not epoch:
        return _Cached(epoch, {}, ())
    return _index(epoch, await _load(tx, org_id), await awaited_events(tx, org_id))


async def _load(tx: Transaction, org_id: int) -> list[Active]:
    found = []
    for row in await active_automations(tx, org_id):
        trigger = read_trigger(decode(row.trigger_spec))
        if isinstance(trigger, Trigger) and trigger.source is None:
            found.append(Active(row.id, row.published_version, row.stint, trigger))
    return found


def _index(epoch: int, automations: list[Active], awaited: frozenset[str]) -> _Cached:
    by_name: dict[str, tuple[Active, ...]] = {}
    for active in automations:
        for name in active.trigger.names:
            by_name[name] = (*by_name.get(name, ()), active)
    return _Cached(epoch, by_name, tuple(active for active in automations if not active.trigger.names), awaited)
