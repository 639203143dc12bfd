"""What is known of a contact, and what it wants. Every change is one transaction under the contact's lock, with its audit row."""

from collections.abc import Mapping, Sequence

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, unknown
from api.contacts.views import ContactView, Shown, contact_view
from api.keyring import OrgKeys
from api.language.codec import encode
from api.language.event import Identifiers
from api.store import care as store
from api.store.calls import run
from api.store.contacts import stored_contact
from api.store.database import Database, Transaction
from api.store.engine import TagChange, change_tags
from api.store.locks import lock_contacts
from api.store.merging import survivor


async def show(database: Database, org_id: int, contact_id: str, shown: Shown) -> ContactView | Refusal:
    """Return a contact, or the one it was merged into; one that was erased is nobody any more."""
    async with database.transaction() as tx:
        return await _shown(tx, org_id, await survivor(tx, org_id, contact_id), shown)


async def find(database: Database, org_id: int, keys: OrgKeys, who: Identifiers, shown: Shown) -> ContactView | Refusal:
    """Return the contact that an event with these identifiers would belong to."""
    async with database.transaction() as tx:
        known = await stored_contact(tx, org_id, keys, who)
        return unknown("contact") if known is None else await _shown(tx, org_id, known.id, shown)


@retried
async def opt_out(
    database: Database, author: Author, contact_id: str, outs: Mapping[str, bool], shown: Shown
) -> ContactView | Refusal:
    """Let a contact opt out of channels (True), or in again (False); those that are not named stay as they are.

    Emails are suppressed by address, too, so that the choice outlives the contact; opting in again lifts that.
    """
    async with database.transaction() as tx:
        await lock_contacts(tx, [contact_id])
        known = await store.find_contact(tx, author.org_id, contact_id)
        if known is None:
            return unknown("contact")
        chosen = {**dict.fromkeys(known.opted_out, True), **outs}
        out = [channel for channel, is_out in chosen.items() if is_out]
        await store.set_opted_out(tx, author.org_id, contact_id, out, author.now)
        await record(tx, author, "contact.opt_out", contact_id, dict(outs))
        return await _shown(tx, author.org_id, contact_id, shown)


@retried
async def tag(
    database: Database, author: Author, contact_id: str, added: Sequence[str], removed: Sequence[str], shown: Shown
) -> ContactView | Refusal:
    """Take tags from a contact, then give it others; the audit row counts them."""
    async with database.transaction() as tx:
        await lock_contacts(tx, [contact_id])
        if await store.find_contact(tx, author.org_id, contact_id) is None:
            return unknown("contact")
        change = TagChange(contact_id, encode(removed).decode(), encode(added).decode())
        await run(tx, change_tags(author.org_id, [change], author.now))
        detail = {"added": len(added), "removed": len(removed)}
        await record(tx, author, "contact.tag", contact_id, detail)
        return await _shown(tx, author.org_id, contact_id, shown)


async def _shown(tx: Transaction, org_id: int, contact_id: str, shown: Shown) -> ContactView | Refusal:
    row = await store.find_contact(tx, org_id, contact_id)
    return unknown("contact") if row is None else contact_view(row, shown)
