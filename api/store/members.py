"""Who is in a segment: the statements of `sql/queries/members.sql`.

A transaction first takes in what was found, block by block, then makes the members the same. What is held here is a block.
"""

from collections.abc import AsyncIterator
from datetime import datetime

import msgspec

from api.store.database import Transaction
from api.store.statements import load

_SQL = load("members")
_BLOCK = 10_000  # ids held here at a time


class Place(msgspec.Struct, frozen=True):
    """Whose members: of an organization's segment."""

    org_id: int
    segment: str


class Known(msgspec.Struct, frozen=True):
    """How many of those that were found are wanted now, and how many were nobody's, or were erased."""

    size: int
    unknown: int


class Change(msgspec.Struct, frozen=True):
    """How many came, and how many went."""

    entered: int
    departed: int


async def gather(tx: Transaction, blocks: AsyncIterator[bytes]) -> None:
    """Take in ids, one a line."""
    await tx.execute(_SQL["open_found"])
    async with tx.cursor() as cursor, cursor.copy(_SQL["copy_found"]) as copy:
        async for block in blocks:
            await copy.write(block)


async def keep_known(tx: Transaction, org_id: int) -> Known:
    """Want those of the gathered who are contacts of the organization; of merged ones, who they are now."""
    await tx.execute(_SQL["analyze_found"])
    await tx.execute(_SQL["open_wanted"])
    row = await (await tx.execute(_SQL["keep_known"], {"org_id": org_id})).fetchone()
    await tx.execute(_SQL["analyze_wanted"])
    assert row is not None
    unknown, size = row
    return Known(size, unknown)


async def sample_wanted(tx: Transaction, most: int) -> list[str]:
    """Return the first ids of those who are wanted."""
    return [row[0] async for row in await tx.execute(_SQL["sample_wanted"], {"most": most})]


async def compare_members(tx: Transaction, place: Place) -> Change:
    """Return who would come and go."""
    await tx.execute(_SQL["join_by_hash"])
    row = await (await tx.execute(_SQL["compare_members"], msgspec.structs.asdict(place))).fetchone()
    assert row is not None
    return Change(*row)


async def change_members(tx: Transaction, place: Place, at: datetime) -> Change:
    """Make the members those who are wanted."""
    entered = await enter_members(tx, place, at)
    return Change(entered, await _drop_members(tx, place))


async def enter_members(tx: Transaction, place: Place, at: datetime) -> int:
    """Add those who are wanted and no members yet; return how many."""
    await tx.execute(_SQL["join_by_hash"])
    return (await tx.execute(_SQL["enter_members"], {**msgspec.structs.asdict(place), "at": at})).rowcount


async def count_members(tx: Transaction, place: Place) -> int:
    """Return how many there are."""
    row = await (await tx.execute(_SQL["count_members"], msgspec.structs.asdict(place))).fetchone()
    assert row is not None
    return int(row[0])


async def drop_all(tx: Transaction, place: Place) -> None:
    """Take everybody out but those that somebody else is changing at this moment."""
    await tx.execute(_SQL["open_wanted"])
    await tx.execute(_SQL["join_by_hash"])
    await _drop_members(tx, place)


async def _drop_members(tx: Transaction, place: Place) -> int:
    """Take those out who are not wanted, block by block, and return how many."""
    values, dropped = msgspec.structs.asdict(place), 0
    async with tx.cursor("leaving") as leaving:
        await leaving.execute(_SQL["leaving"], values)
        while rows := await leaving.fetchmany(_BLOCK):
            ids = [contact_id for (contact_id,) in rows]
            dropped += (await tx.execute(_SQL["drop_members"], {**values, "ids": ids})).rowcount
    return dropped


async def mend_members(tx: Transaction, place: Place, since: datetime) -> int:
    """Put right what erasures and merges did since; return by how many the segment grew. `hold_members` is held."""
    values = {**msgspec.structs.asdict(place), "since": since}
    row = await (await tx.execute(_SQL["mend_members"], values)).fetchone()
    assert row is not None
    return int(row[0])


async def clear_members(tx: Transaction, place: Place) -> None:
    """Take out who is left in a segment that was put away. `hold_members` is held."""
    await tx.execute(_SQL["clear_members"], msgspec.structs.asdict(place))


async def keep_part(tx: Transaction, org_id: int, segment_id: str) -> None:
    """Put those who are wanted aside until an audience is whole."""
    await tx.execute(_SQL["keep_part"], {"org_id": org_id, "segment_id": segment_id})


async def want_parts(tx: Transaction, org_id: int, segment_id: str) -> int:
    """Want all who were put aside, and keep nobody there; return how many they are."""
    values = {"org_id": org_id, "segment_id": segment_id}
    await tx.execute(_SQL["empty_wanted"])
    size = (await tx.execute(_SQL["want_parts"], values)).rowcount
    await tx.execute(_SQL["analyze_wanted"])
    await tx.execute(_SQL["forget_parts"], values)
    return size


async def forget_parts(tx: Transaction, org_id: int, segment_id: str) -> None:
    """Keep nobody aside any more."""
    await tx.execute(_SQL["forget_parts"], {"org_id": org_id, "segment_id": segment_id})
