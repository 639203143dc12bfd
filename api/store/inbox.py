"""In-app messages in Postgres: the statements of `sql/queries/inbox.sql`."""

import hashlib
from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import datetime

import msgspec
from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from api.store.arrays import joined, quoted
from api.store.calls import Call, nothing, run, statements
from api.store.database import Transaction
from api.store.statements import load

_SQL = load("inbox")

Inbox = tuple[int, str]
"""Whose inbox: organization and wallet."""

KeyName = tuple[int, str]
"""A key by its organization and id."""


class Challenge(msgspec.Struct, frozen=True):
    """What a wallet was asked to sign."""

    wallet: str
    key_id: str
    origin: str
    chain_id: int
    expires_at: datetime


class Waiting(msgspec.Struct, frozen=True):
    """A message that a wallet has not acknowledged; `extra` is JSON text."""

    id: str
    title: str
    body: str
    extra: bytes | None
    created_at: datetime


class Acknowledged(msgspec.Struct, frozen=True):
    """A message that a wallet says it has."""

    inbox: Inbox
    id: str


def mark(wallet: str) -> str:
    """Return what stands for a wallet in a notification: the beginning of its MD5, as in `announce_messages`."""
    return hashlib.md5(wallet.encode(), usedforsecurity=False).hexdigest()[:16]


async def find_inbox_channel(connection: AsyncConnection[TupleRow]) -> str:
    """Return the name of the channel on which waiting messages are announced: a secret of the database."""
    row = await (await connection.execute(_SQL["find_inbox_channel"])).fetchone()
    assert row is not None
    return str(row[0])


async def list_origins(tx: Transaction, org_id: int) -> tuple[str, ...]:
    """Return the pages that may ask for an organization's messages."""
    row = await (await tx.execute(_SQL["list_origins"], {"org_id": org_id})).fetchone()
    return () if row is None else tuple(row[0])


async def add_origin(tx: Transaction, org_id: int, origin: str) -> bool:
    """Let a page ask; return whether it could not before."""
    return (await tx.execute(_SQL["add_origin"], {"org_id": org_id, "origin": origin})).rowcount == 1


async def remove_origin(tx: Transaction, org_id: int, origin: str) -> bool:
    """Let a page ask no longer; return whether it could before."""
    return (await tx.execute(_SQL["remove_origin"], {"org_id": org_id, "origin": origin})).rowcount == 1


async def add_challenge(tx: Transaction, org_id: int, nonce: str, challenge: Challenge) -> None:
    """Remember what a wallet was asked to sign."""
    await tx.execute(_SQL["add_challenge"], msgspec.structs.asdict(challenge) | {"org_id": org_id, "nonce": nonce})


async def forget_challenges(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete up to `most` challenges that nobody answered in time; return how many that were."""
    return (await tx.execute(_SQL["forget_challenges"], {"org_id": org_id, "now": now, "most": most})).rowcount


async def take_challenge(tx: Transaction, org_id: int, nonce: str) -> Challenge | None:
    """Use up a challenge and return it; None when there is none, or somebody was faster."""
    row = await (await tx.execute(_SQL["take_challenge"], {"org_id": org_id, "nonce": nonce})).fetchone()
    return None if row is None else Challenge(*row)


async def standing_keys(tx: Transaction, keys: Collection[KeyName], now: datetime) -> dict[KeyName, tuple[str, ...]]:
    """Return the origins of the organizations of those keys that are still valid."""
    values = {"org_ids": [org_id for org_id, _ in keys], "key_ids": [key_id for _, key_id in keys], "now": now}
    cursor = await tx.execute(_SQL["standing_keys"], values)
    return {(org_id, key_id): tuple(origins) async for org_id, key_id, origins in cursor}


async def read_inboxes(
    tx: Transaction, inboxes: Sequence[Inbox], under_way: Collection[str], most: int
) -> list[tuple[Inbox, Waiting]]:
    """Return up to `most` messages that wait in each of the inboxes, oldest first, without those that are under way."""
    wallets: defaultdict[int, list[str]] = defaultdict(list)
    for org_id, wallet in inboxes:
        wallets[org_id].append(wallet)
    found = await run(tx, *(_read_inboxes(org_id, theirs, under_way, most) for org_id, theirs in wallets.items()))
    return [each for some in found for each in some]


def _read_inboxes(
    org_id: int, wallets: list[str], under_way: Collection[str], most: int
) -> Call[list[tuple[Inbox, Waiting]]]:
    return Call(
        statements("inbox")["read_inboxes"],
        lambda rows: [((org_id, wallet), Waiting(*columns)) for wallet, *columns in rows],
        org_id=org_id,
        wallets=quoted(wallets),
        under_way=joined(list(under_way)),
        most=most,
    )


async def acknowledge(tx: Transaction, acknowledged: Collection[Acknowledged], now: datetime) -> None:
    """Note that wallets have received messages of theirs."""
    values = {
        "org_ids": [each.inbox[0] for each in acknowledged],
        "ids": [each.id for each in acknowledged],
        "wallets": [each.inbox[1] for each in acknowledged],
        "now": now,
    }
    await tx.execute(_SQL["acknowledge"], values)


def announce_messages(org_id: int, wallets: Collection[str]) -> Call[None]:
    """Tell every API process, when the transaction commits, that something waits for these wallets."""
    return Call(statements("inbox")["announce_messages"], nothing, org_id=org_id, wallets=quoted(list(wallets)))
