"""Match events with the triggers of automations.

Triggers are cached per process and organization under the organization's epoch. The epoch changes with every change of
an automation and is read in the transaction that stores the events, so a cached trigger is never stale.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from operator import attrgetter
from typing import Any

import msgspec

from api.crypto import Keyring
from api.ingest.identity import ContactIdentifiers
from api.ingest.parse import IdentifiedEvent, ParsedEvent
from api.store.database import Transaction
from api.store.events import Owner, find_awaited_events, list_active_automations
from workbench.language.codec import decode
from workbench.language.contact import merge_identifiers
from workbench.language.event import Identifiers, attribute_key
from workbench.language.trigger import Trigger, fires, flat_context, needs_email, read_trigger


class ActiveTrigger(msgspec.Struct, frozen=True):
    """The trigger of an active automation, and the version that its entries run (None: nothing is published)."""

    automation_id: str
    version: int | None
    activation: int
    trigger: Trigger


class OrgTriggers(msgspec.Struct, frozen=True):
    """The triggers of an organization at an epoch, those of older automations first.

    `by_name`: those that name an event, with the wildcards. `awaited`: what an entry can wait for, as
    `find_awaited_events` returns it.
    """

    epoch: int
    by_name: dict[str, tuple[ActiveTrigger, ...]] = {}
    wildcards: tuple[ActiveTrigger, ...] = ()
    awaited: frozenset[str] = frozenset()


class Triggers:
    """The triggers of the organizations that sent events to this process."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._cache: dict[int, OrgTriggers] = {}

    async def matcher(self, tx: Transaction, epochs: Mapping[int, int]) -> "Matcher":
        """Return a matcher for organizations at the epochs that `tx` has read."""
        # The matcher keeps its own triggers: another writer may replace those in the cache with newer ones.
        orgs: dict[int, OrgTriggers] = {}
        for org_id, epoch in epochs.items():
            cached = self._cache.get(org_id)
            if cached is None or cached.epoch != epoch:
                cached = self._cache[org_id] = await _load_triggers(tx, org_id, epoch)
            orgs[org_id] = cached
        return Matcher(self._keyring, orgs)


class Matcher:
    def __init__(self, keyring: Keyring, orgs: Mapping[int, OrgTriggers]) -> None:
        self._keyring = keyring
        self._orgs = orgs

    def matches(
        self, event: ParsedEvent, contact_id: str, contact: ContactIdentifiers | Owner, at: datetime
    ) -> Sequence[ActiveTrigger]:
        """Return the triggers that fire for an event of a contact."""
        org = self._orgs[event.org_id]
        candidates = org.by_name.get(event.body.name, org.wildcards)
        if not any(active.trigger.filters for active in candidates):
            return candidates
        payload, triggers = decode(event.body.payload), [active.trigger for active in candidates]
        context = trigger_context(self._keyring, event, contact_id, contact, payload, triggers)
        return [active for active in candidates if fires(active.trigger, event.body.name, context, at)]

    def awaited_names(self, event: ParsedEvent, owner: Owner | None) -> list[str]:
        """Return what entries can be waiting for: the name of the event, and keys of attributes that it may change."""
        awaited = self._orgs[event.org_id].awaited
        names = [event.body.name] if event.body.name in awaited else []
        return names + awaited_attributes(event, owner, awaited)


def awaited_attributes(event: ParsedEvent, owner: Owner | None, awaited: Collection[str]) -> list[str]:
    """Return the keys of the attributes among `awaited` that an event may change; `owner`: its recognised contact."""
    if not awaited or (owner is not None and owner.has_attributes):
        return []
    return [key for name in event.body.attributes if (key := attribute_key(name)) in awaited]


def trigger_context(
    keyring: Keyring,
    event: IdentifiedEvent,
    contact_id: str,
    contact: ContactIdentifiers | Owner,
    payload: Mapping[str, Any],
    triggers: Sequence[Trigger],
) -> dict[str, Any]:
    """Return the context of an event for the filters of triggers; opens the stored email only if a filter reads it."""
    sealed = contact.email if event.body.identifiers.email is None else None
    email = keyring.of(event.org_id).open_email(sealed) if sealed and any(map(needs_email, triggers)) else None
    identifiers = merge_identifiers(event.body.identifiers, Identifiers(contact.wallet, email, contact.external_id))
    return flat_context(event.body.name, contact_id, identifiers, payload)


async def _load_triggers(tx: Transaction, org_id: int, epoch: int) -> OrgTriggers:
    if not epoch:  # the organization never had an automation
        return OrgTriggers(epoch)
    by_name: dict[str, list[ActiveTrigger]] = {}
    wildcards: list[ActiveTrigger] = []
    rows = await list_active_automations(tx, org_id)
    # In a thread: compiling a long `where` takes 50 ms.
    read = await asyncio.to_thread(lambda: [read_trigger(decode(row.trigger_spec)) for row in rows])
    for row, trigger in zip(rows, read, strict=True):
        if not isinstance(trigger, Trigger) or trigger.source is not None:
            continue
        active = ActiveTrigger(row.id, row.published_version, row.activation, trigger)
        if not trigger.names:
            wildcards.append(active)
        for name in trigger.names:
            by_name.setdefault(name, []).append(active)
    triggers = {
        name: tuple(sorted(actives + wildcards, key=attrgetter("automation_id"))) for name, actives in by_name.items()
    }
    return OrgTriggers(epoch, triggers, tuple(wildcards), await find_awaited_events(tx, org_id))
