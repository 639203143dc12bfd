"""Advisory locks of identifiers and contacts, and the one order of all locks.

Idempotency keys, then identifiers, then contacts, then entries; sorted within each kind. Members of segments come after contacts;
whoever holds them alone holds nothing else.
"""

from collections.abc import Iterable

from api.keyring import INDEX
from api.language.identity import Key
from api.store.arrays import plain
from api.store.calls import Call, nothing, run, statements
from api.store.database import Transaction

REFRESHING, COUNTING, TESTING = 7_300_455, 7_300_456, 7_300_457
"""Kinds of work at which processes take turns."""

_SQL = statements("locks")


async def lock_identifiers(tx: Transaction, keys: Iterable[tuple[int, Key]]) -> None:
    """Hold the locks of (organization, identifier)s until the transaction ends."""
    await run(tx, hold_identifiers(keys))


def hold_identifiers(keys: Iterable[tuple[int, Key]]) -> Call[None]:
    """Do the same, as a call."""
    return _hold(
        {
            (int(key[1][at : at + 16], 16) ^ org_id ^ key[0]) >> 1
            for org_id, key in keys
            for at in range(0, len(key[1]), INDEX)  # processes of two generations have one index in common
        }
    )


async def lock_contacts(tx: Transaction, contact_ids: Iterable[str]) -> None:
    """Hold the locks of contacts until the transaction ends; whoever writes a contact holds its lock."""
    await run(tx, hold_contacts(contact_ids))


def hold_contacts(contact_ids: Iterable[str]) -> Call[None]:
    """Do the same, as a call."""
    return _hold({-1 - (int(contact_id[19:].replace("-", ""), 16) & 0x3FFFFFFFFFFFFFFF) for contact_id in contact_ids})


def share_members(org_id: int) -> Call[None]:
    """Return a call: whoever changes which segments single contacts are in does so under this, beside others that do."""
    return Call(_SQL["share_members"], nothing, org_id=org_id)


def hold_members(org_id: int) -> Call[None]:
    """Return a call: wait until nobody does, and keep others from beginning until the transaction ends."""
    return Call(_SQL["hold_members"], nothing, org_id=org_id)


async def take_turn(tx: Transaction, work: int, org_id: int) -> None:
    """Wait for an organization's turn at a kind of work, and have it until the transaction ends."""
    await run(tx, Call(_SQL["take_turn"], nothing, work=work, org_id=org_id))


async def try_turn(tx: Transaction, work: int, org_id: int) -> bool:
    """Take an organization's turn at a kind of work until the transaction ends; False: somebody else has it."""
    (taken,) = await run(tx, Call(_SQL["try_turn"], lambda rows: rows[0][0] is True, work=work, org_id=org_id))
    return taken


def _hold(locks: set[int]) -> Call[None]:
    """Take locks sorted: identifiers are positive and contacts negative, so the two never stand for each other."""
    return Call(_SQL["lock_keys"], nothing, keys=plain(sorted(locks)))
