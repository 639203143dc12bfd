"""What the decisions on a batch may depend on, read from Postgres: only what `needs` says they can look at.

What other entries and events of a contact change (`Watched`) is read twice: before the decision, without a lock, and under the
contact's lock when the decision is recorded. Where the two differ, the decision was made on what is no longer so.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache, lru_cache
from typing import TypeAlias, TypeVar

import msgspec

from api.engine.graphs import Graphs
from api.keyring import OrgKeys
from api.language.abi import Declared, read_signature
from api.language.advance import LOOP_LIMIT, LOOP_WINDOW, Needs, needs
from api.language.codec import Json, decode
from api.language.contact import Contact
from api.language.event import Identifiers
from api.language.facts import Arrival, Facts, Past
from api.language.onchain import PLACE, payload_of
from api.language.retry import RetryPolicy
from api.language.run import Run, State
from api.store import facts as store
from api.store.calls import COMMIT, run
from api.store.database import Transaction
from api.store.engine import Claim
from api.store.facts import ArrivalRow, AutomationNow, ContactRow, Entered, EventRow, LogRow

T = TypeVar("T")
OpenEmail: TypeAlias = Callable[[str], str]
Contacts: TypeAlias = dict[str, ContactRow]


class Asked(msgspec.Struct, frozen=True):
    """A claimed entry, and what the decisions on it can look at."""

    claim: Claim
    needs: Needs

    @property
    def looks_back(self) -> bool:
        """Whether they depend on what other entries of the contact did."""
        return self.needs.entries or self.needs.messages is not None

    @property
    def is_watched(self) -> bool:
        """Whether they depend on what others change at the same time. That an awaited event has not come is such a fact, too."""
        return self.looks_back or bool(self.needs.arrivals)


class Watched(msgspec.Struct, frozen=True):
    """What happens to contacts outside of an entry, by entry id; who has nothing of it is missing."""

    entered: dict[str, Entered]
    messages_at: dict[str, tuple[datetime, ...]]
    arrivals: dict[str, tuple[ArrivalRow, ...]]

    def of(self, entry_ids: Iterable[str]) -> "Watched":
        """Return the part that is about some entries."""
        ids = set(entry_ids)
        return Watched(_part(self.entered, ids), _part(self.messages_at, ids), _part(self.arrivals, ids))


NOTHING = Watched({}, {}, {})


class Seen(msgspec.Struct, frozen=True):
    """What was read for a batch, asked for at one moment; decisions on it are made `at` another, maybe a little later."""

    asked_at: datetime
    at: datetime
    asked: dict[str, Asked]
    facts: dict[str, Facts]
    watched: Watched


def _part(values: dict[str, T], ids: set[str]) -> dict[str, T]:
    return {entry_id: value for entry_id, value in values.items() if entry_id in ids}


def run_of(claim: Claim) -> Run:
    """Return a claimed entry as the interpreter sees it."""
    return Run(
        claim.entry_id,
        claim.automation_id,
        State.RUNNING,
        claim.node_id,
        claim.step,
        claim.attempt,
        since=claim.since,
    )


def asked_of(org_id: int, claim: Claim, graphs: Graphs) -> Asked:
    """Return what has to be read for a claimed entry."""
    return Asked(claim, needs(graphs.of(org_id, claim), run_of(claim)))


async def look(
    tx: Transaction, org_id: int, org_keys: OrgKeys, asked: list[Asked], retries: RetryPolicy, now: datetime
) -> Seen:
    """Read what decisions on these entries can look at. No event that is seen came after `Seen.at`."""
    claims = [each.claim for each in asked]
    open_email = cache(org_keys.open_email)  # an event mostly carries the address that its contact has
    events, contacts, automations, _ = await run(
        tx,
        store.load_events(org_id, claims),
        store.load_contacts(org_id, list({claim.contact_id for claim in claims})),
        store.automations_now(org_id, list({claim.automation_id for claim in claims})),
        COMMIT,
    )
    contacts |= await _unsubscribed(tx, org_id, asked, contacts)
    logs = await _logs(tx, org_id, [claim for claim in claims if claim.event_id not in events])
    watched = await watch(tx, org_id, asked, now)
    recent = await _count_recent(tx, org_id, asked)
    facts = {}
    for each in asked:
        claim = each.claim
        event = events.get(claim.event_id) or logs.get(claim.entry_id)
        known = _facts(open_email, event, contacts.get(claim.contact_id))
        facts[claim.entry_id] = msgspec.structs.replace(
            known,
            cancelled=known.cancelled or claim.called_off or _stopped(claim, automations[claim.automation_id]),
            paused=automations[claim.automation_id].paused,
            retries=retries,
            past=_past(claim, watched, recent),
            arrivals=tuple(_arrival(open_email, row) for row in watched.arrivals.get(claim.entry_id, ())),
        )
    at = max([now, *(rows[-1].at for rows in watched.arrivals.values())])
    return Seen(now, at, {each.claim.entry_id: each for each in asked}, facts, watched)


async def _logs(tx: Transaction, org_id: int, claims: list[Claim]) -> dict[str, LogRow]:
    """Return the logs of entries that no custom event started, by entry id."""
    if not claims:
        return {}
    (found,) = await run(tx, store.load_logs(org_id, claims))
    return found


def _stopped(claim: Claim, automation: AutomationNow) -> str | None:
    """Return why an entry rests: its automation does, or has rested since its event matched."""
    return automation.stopped or ("automation_inactive" if claim.stint < automation.stint else None)


async def _unsubscribed(tx: Transaction, org_id: int, asked: list[Asked], contacts: Contacts) -> Contacts:
    """Return those of the contacts that unsubscribed an address, opted out of emails, where an entry may send one."""
    mailed = {each.claim.contact_id for each in asked if each.needs.unsubscribed}
    if not mailed:
        return {}
    (found,) = await run(tx, store.unsubscribed(org_id, list(mailed)))
    return {
        each: msgspec.structs.replace(contacts[each], opted_out=[*contacts[each].opted_out, "email"])
        for each in found & contacts.keys()
    }


async def watch(tx: Transaction, org_id: int, asked: list[Asked], now: datetime) -> Watched:
    """Read what other entries and events of the contacts did."""
    entered = [each.claim for each in asked if each.needs.entries]
    messages = [(each.claim, now - each.needs.messages) for each in asked if each.needs.messages is not None]
    arrivals = [(each.claim, each.needs.arrivals, each.needs.since) for each in asked if each.needs.arrivals]
    if not (entered or messages or arrivals):
        return NOTHING
    return Watched(
        *await run(
            tx,
            store.read_entered(org_id, entered),
            store.read_messages_at(org_id, messages),
            store.read_arrivals(org_id, arrivals),
        )
    )


async def _count_recent(tx: Transaction, org_id: int, asked: list[Asked]) -> dict[str, int]:
    claims = [each.claim for each in asked if each.needs.recent]
    if not claims:
        return {}
    (counts,) = await run(tx, store.count_recent(org_id, claims, LOOP_WINDOW, LOOP_LIMIT))
    return counts


def _past(claim: Claim, watched: Watched, recent: dict[str, int]) -> Past:
    entered = watched.entered.get(claim.entry_id)
    return Past(
        None if entered is None else entered.at,
        entered is not None and entered.running,
        recent.get(claim.entry_id, 0),
        watched.messages_at.get(claim.entry_id, ()),
    )


def _arrival(open_email: OpenEmail, row: ArrivalRow) -> Arrival:
    who = Identifiers(row.wallet, _opened(open_email, row.email), row.external_id)
    return Arrival(row.at, row.name, who, decode(row.payload), row.id)


def _facts(open_email: OpenEmail, event: EventRow | LogRow | None, contact: ContactRow | None) -> Facts:
    if event is None or contact is None:
        return Facts("", Identifiers(), {}, Contact(""), "contact_erased")
    return Facts(
        event.name,
        _sent(open_email, event),
        _payload(event),
        Contact(
            contact.id,
            Identifiers(contact.wallet, _opened(open_email, contact.email), contact.external_id),
            decode(contact.attributes),
            tuple(contact.tags),
            tuple(contact.segments),
            tuple(contact.opted_out),
        ),
    )


def _sent(open_email: OpenEmail, event: EventRow | LogRow) -> Identifiers:
    if isinstance(event, LogRow):
        return Identifiers(event.wallet)
    return Identifiers(event.wallet, _opened(open_email, event.email), event.external_id)


def _payload(event: EventRow | LogRow) -> dict[str, Json]:
    if isinstance(event, LogRow):
        return payload_of(dict(zip(PLACE, event.place, strict=True)), decode(event.args), _declared(event.signature))
    payload: dict[str, Json] = decode(event.payload)
    return payload


@lru_cache(maxsize=1_024)
def _declared(signature: str | None) -> Declared | None:
    found = None if signature is None else read_signature(signature)
    return found if isinstance(found, Declared) else None


def _opened(open_email: OpenEmail, sealed: str | None) -> str | None:
    return None if sealed is None else open_email(sealed)
