"""Logs of chains that are about nobody known: the statements of `sql/queries/strangers.sql`."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

import msgspec

from api.store.arrays import joined, plain, uuids
from api.store.calls import Call, nothing, statements
from api.store.database import Transaction
from api.store.statements import load

KEPT = timedelta(days=7)

What: TypeAlias = Literal["created", "unknown", "limit", "zero_address", "erased"]
"""What became of a wallet that nobody knows: a contact, or nothing, because the automation takes in only contacts, made enough of them
in this hour, because the wallet is nobody's, or because its contact was erased."""

Counts: TypeAlias = Mapping[tuple[int, str, What], int]
"""How often, by organization and automation."""

_CALLS = statements("strangers")
_SQL = load("strangers")


class StrangerRow(msgspec.Struct, frozen=True, rename="camel"):
    """How often that came up with an automation."""

    automation_id: str
    automation: str
    what: What
    count: int


def hour_of(at: datetime) -> datetime:
    """Return when the hour of a moment began."""
    return at.replace(minute=0, second=0, microsecond=0)


def find_erased(wallets: Sequence[tuple[int, str]]) -> Call[dict[int, float]]:
    """Ask which (organization, digest)s are wallets of erased contacts: by position (from 0), until when, seconds since the epoch."""
    return Call(
        _CALLS["find_erased"],
        lambda rows: {row[0]: row[1] for row in rows},
        org_ids=plain(org_id for org_id, _ in wallets),
        digests=uuids([digest for _, digest in wallets]),
    )


def count_created(automations: Sequence[tuple[int, str]], at: datetime) -> Call[dict[str, int]]:
    """Ask how many contacts (organization, automation)s have made in the hour of a moment, by automation."""
    return Call(
        _CALLS["count_created"],
        lambda rows: {row[0]: row[1] for row in rows},
        org_ids=plain(org_id for org_id, _ in automations),
        automation_ids=joined([automation_id for _, automation_id in automations]),
        hour=hour_of(at),
    )


def add_strangers(counts: Counts, at: datetime) -> Call[None]:
    """Count what came up in the hour of a moment."""
    return Call(
        _CALLS["add_strangers"],
        nothing,
        hour=hour_of(at),
        org_ids=plain(org_id for org_id, _, _ in counts),
        automation_ids=joined([automation_id for _, automation_id, _ in counts]),
        whats=joined([what for _, _, what in counts]),
        counts=plain(counts.values()),
    )


async def list_strangers(tx: Transaction, org_id: int, since: datetime) -> list[StrangerRow]:
    """Return what came up with the automations of an organization since a moment, the most frequent first."""
    return [
        StrangerRow(*row) async for row in await tx.execute(_SQL["list_strangers"], {"org_id": org_id, "since": since})
    ]


async def forget_strangers(tx: Transaction, org_id: int, now: datetime, most: int) -> int:
    """Delete up to `most` counts of an organization that are older than seven days; return how many that were."""
    values = {"org_id": org_id, "before": now - KEPT, "most": most}
    return (await tx.execute(_SQL["forget_strangers"], values)).rowcount
