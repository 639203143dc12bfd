"""Advisory locks of identifiers and contacts, and the one order in which all locks are taken.

The order: idempotency keys, then identifiers, then contacts, then their turns, then entries; sorted within each kind. A
claim does not wait for a turn, and waits for nothing while it holds one. The lock of segment members comes after
contacts; a transaction that takes it exclusively (`hold_members`) takes no other lock.
The lock of steps comes before contacts and automations.
"""

from collections.abc import Iterable

from api.crypto import INDEX
from api.store.database import Transaction
from api.store.query import Call, call, query
from workbench.language.contact import IdentifierKey

# One process at a time for an organization.
REFRESHING, COUNTING, TESTING, STARTING, BUILDING = 7_300_455, 7_300_456, 7_300_457, 7_300_459, 7_300_460


def hold_identifiers(keys: Iterable[tuple[int, IdentifierKey]]) -> Call[None]:
    """Lock (organization, identifier) pairs until the transaction ends."""
    return _hold(
        {
            (int(key[1][at : at + 16], 16) ^ org_id ^ key[0]) >> 1
            for org_id, key in keys
            # During a rotation an identifier has two indexes. Processes of both generations share one of them.
            for at in range(0, len(key[1]), INDEX)
        }
    )


def hold_contacts(contact_ids: Iterable[str]) -> Call[None]:
    """Lock contacts until the transaction ends. Every write to a contact happens under its lock."""
    return _hold({-1 - _random_bits(contact_id) for contact_id in contact_ids})


def hold_turns(contact_ids: Iterable[str]) -> Call[None]:
    """Keep claims from looking at the entries of these contacts until the transaction ends (`lock_due_entries`)."""
    return _hold({-1 - (1 << 62) - _random_bits(contact_id) for contact_id in contact_ids})


def _random_bits(contact_id: str) -> int:
    return int(contact_id[19:].replace("-", ""), 16) & 0x3FFFFFFFFFFFFFFF  # the last 62 of a UUIDv7


def _hold(locks: set[int]) -> Call[None]:
    # Sorted, so two transactions never wait for each other. Identifiers are positive, contacts and turns are negative
    # and of different size, so they never collide.
    return lock_keys(sorted(locks))


@call
def lock_keys(keys: list[int]) -> None: ...


@call
def share_members(org_id: int) -> None:
    """Take the shared lock under which the segments of single contacts change."""


@call
def hold_members(org_id: int) -> None:
    """Wait until no transaction shares the lock of `share_members`, and exclude others until this transaction ends."""


@call
def share_steps(org_id: int) -> None:
    """Take the shared lock under which steps are recorded and automations change."""


@call
def hold_steps(org_id: int) -> None:
    """Wait until no transaction shares the lock of `share_steps`, and exclude others until this transaction ends."""


@query
async def take_turn(tx: Transaction, work: int, org_id: int) -> None:
    """Wait for an organization's turn at a kind of work, and hold it until the transaction ends."""


@query
async def try_turn(tx: Transaction, work: int, org_id: int) -> bool:
    """Take an organization's turn at a kind of work until the transaction ends; False if another transaction has it."""
