"""Merging contacts: the statements of `sql/queries/merging.sql`. Callers hold the locks that each of them names."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from api.language.codec import decode, encode
from api.language.identity import Key, Kind
from api.language.merging import Person
from api.store.database import Transaction
from api.store.statements import load
from api.store.wake import wake_engine

_SQL = load("merging")

Part: TypeAlias = Literal["events", "messages", "entries", "onchain"]


class Stored(msgspec.Struct, frozen=True):
    """A contact as it is stored: who, whether it was merged into another, and whether it was erased."""

    person: Person
    merged_into: str | None
    erased: bool


class Absorbed(msgspec.Struct, frozen=True):
    """What the survivor has of an absorbed contact: attributes, tags, and since when it was in which segment."""

    attributes: dict[str, Any]
    tags: tuple[str, ...]
    segments: dict[str, datetime]


class MergeRow(msgspec.Struct, frozen=True):
    """A merge: what was gained, which identifiers moved, and what there was of the absorbed contact."""

    id: str
    keep_id: str
    absorbed_id: str
    gained: Person
    identities: tuple[Key, ...]
    absorbed: Absorbed
    created_at: datetime
    undone_at: datetime | None


class Move(msgspec.Struct, frozen=True):
    """Whose rows go to whom; with `origins`, only those that first came to one of these."""

    from_id: str
    to_id: str
    origins: list[str] | None = None


async def survivor(tx: Transaction, org_id: int, contact_id: str) -> str:
    """Return the contact that this one is now: itself, unless it was merged into another."""
    row = await (await tx.execute(_SQL["survivor"], {"org_id": org_id, "id": contact_id})).fetchone()
    return contact_id if row is None or row[0] is None else str(row[0])


async def people(tx: Transaction, org_id: int, ids: Collection[str]) -> dict[str, Stored]:
    """Return contacts by id."""
    cursor = await tx.execute(_SQL["people"], {"org_id": org_id, "ids": list(ids)})
    return {row[0]: _stored(*row[1:]) async for row in cursor}


async def identities_of(tx: Transaction, org_id: int, ids: Collection[str]) -> dict[Key, str]:
    """Return every identifier that finds one of these contacts, with the one it finds."""
    return _owners(await (await tx.execute(_SQL["identities_of"], {"org_id": org_id, "ids": list(ids)})).fetchall())


async def owners_of(tx: Transaction, org_id: int, keys: Sequence[Key]) -> dict[Key, str]:
    """Return who owns identifiers now; those that nobody owns are missing."""
    return _owners(await (await tx.execute(_SQL["owners_of"], {"org_id": org_id, **_columns(keys)})).fetchall())


async def give_identities(tx: Transaction, org_id: int, keys: Sequence[Key], move: Move) -> None:
    """Let identifiers find another contact from now on."""
    values = {"org_id": org_id, **_columns(keys), "from_id": move.from_id, "to_id": move.to_id}
    await tx.execute(_SQL["give_identities"], values)


async def write_person(tx: Transaction, org_id: int, contact_id: str, person: Person, at: datetime) -> None:
    """Write what a contact is, but its segments."""
    values = msgspec.structs.asdict(person) | {"attributes": encode(person.attributes).decode()}
    values |= {"tags": list(person.tags), "opted_out": list(person.opted_out)}
    await tx.execute(_SQL["write_person"], {"org_id": org_id, "id": contact_id, "at": at, **values})


async def point_at(tx: Transaction, org_id: int, absorbed_id: str, keep_id: str) -> None:
    """Note that a contact, with all that were merged into it, is another one now."""
    await tx.execute(_SQL["point_at"], {"org_id": org_id, "absorbed_id": absorbed_id, "keep_id": keep_id})


async def point_back(tx: Transaction, org_id: int, absorbed_id: str, members: Collection[str]) -> None:
    """Note that a contact is one of its own again, with its `members`."""
    await tx.execute(_SQL["point_back"], {"org_id": org_id, "absorbed_id": absorbed_id, "ids": list(members)})


async def family(tx: Transaction, org_id: int, contact_id: str) -> list[str]:
    """Return a contact and all that were merged into it."""
    return [row[0] async for row in await tx.execute(_SQL["family"], {"org_id": org_id, "id": contact_id})]


async def memberships(tx: Transaction, org_id: int, contact_id: str) -> dict[str, datetime]:
    """Return the segments a contact is in, and since when."""
    cursor = await tx.execute(_SQL["memberships"], {"org_id": org_id, "id": contact_id})
    return {row[0]: row[1] async for row in cursor}


async def join_segments(tx: Transaction, org_id: int, contact_id: str, segments: Mapping[str, datetime]) -> None:
    """Put a contact into segments, since the moments given."""
    values = {"org_id": org_id, "id": contact_id, "segments": list(segments), "moments": list(segments.values())}
    await tx.execute(_SQL["join_segments"], values)


async def leave_segments(tx: Transaction, org_id: int, contact_id: str, segments: Iterable[str]) -> None:
    """Take a contact out of segments."""
    await tx.execute(_SQL["leave_segments"], {"org_id": org_id, "id": contact_id, "segments": list(segments)})


async def is_worked_on(tx: Transaction, org_id: int, move: Move) -> bool:
    """Return whether a worker holds an entry that is to move; none of them is taken until commit."""
    values = {"org_id": org_id, "id": move.from_id, "origins": move.origins}
    rows = await (await tx.execute(_SQL["live_entries"], values)).fetchall()
    return any(running for _, running in rows)


async def move_live_entries(tx: Transaction, org_id: int, move: Move) -> None:
    """Move those entries to another contact, in one go."""
    await tx.execute(_SQL["move_live_entries"], {"org_id": org_id, **msgspec.structs.asdict(move)})


async def resolve_conflicts(tx: Transaction, org_id: int, merge_id: str, keep_id: str, absorbed_id: str) -> None:
    """Note that the conflicts between two contacts are settled."""
    values = {"org_id": org_id, "merge_id": merge_id, "keep_id": keep_id, "absorbed_id": absorbed_id}
    await tx.execute(_SQL["resolve_conflicts"], values)


async def reopen_conflicts(tx: Transaction, org_id: int, merge_id: str) -> None:
    """Note that they are not."""
    await tx.execute(_SQL["reopen_conflicts"], {"org_id": org_id, "merge_id": merge_id})


async def add_merge(tx: Transaction, org_id: int, row: MergeRow, due_at: datetime) -> None:
    """Keep what a merge changed."""
    values = {
        "org_id": org_id,
        "id": row.id,
        "keep_id": row.keep_id,
        "absorbed_id": row.absorbed_id,
        "gained": encode(row.gained).decode(),
        "identities": encode(row.identities).decode(),
        "absorbed": encode(row.absorbed).decode(),
        "at": row.created_at,
        "due_at": due_at,
    }
    await tx.execute(_SQL["add_merge"], values)


async def find_merge(tx: Transaction, org_id: int, merge_id: str, *, hold: bool = False) -> MergeRow | None:
    """Return a merge; `hold`: nobody takes it back, or moves rows for it, until commit."""
    name = "hold_merge" if hold else "find_merge"
    row = await (await tx.execute(_SQL[name], {"org_id": org_id, "id": merge_id})).fetchone()
    return None if row is None else _merge(*row)


async def merge_of(tx: Transaction, org_id: int, absorbed_id: str) -> str | None:
    """Return the id of the merge by which a contact was absorbed."""
    row = await (await tx.execute(_SQL["merge_of"], {"org_id": org_id, "absorbed_id": absorbed_id})).fetchone()
    return None if row is None else str(row[0])


async def end_merge(tx: Transaction, org_id: int, merge_id: str, at: datetime, due_at: datetime) -> None:
    """Note that a merge was taken back."""
    await tx.execute(_SQL["end_merge"], {"org_id": org_id, "id": merge_id, "at": at, "due_at": due_at})


async def note_absorbed(tx: Transaction, org_id: int, merge_id: str, absorbed: Absorbed) -> None:
    """Note what of the absorbed contact its survivor has."""
    values = {"org_id": org_id, "id": merge_id, "absorbed": encode(absorbed).decode()}
    await tx.execute(_SQL["note_absorbed"], values)


async def due_merges(tx: Transaction, now: datetime, most: int) -> list[tuple[int, str]]:
    """Return (organization, merge) of those whose rows are to be looked for."""
    return [(row[0], row[1]) async for row in await tx.execute(_SQL["due_merges"], {"now": now, "most": most})]


async def settle_merge(tx: Transaction, org_id: int, merge_id: str, due_at: datetime | None) -> None:
    """Note when to look for rows again; None: never."""
    await tx.execute(_SQL["settle_merge"], {"org_id": org_id, "id": merge_id, "due_at": due_at})


async def wake_waiting_entries(tx: Transaction, org_id: int, contact_id: str, at: datetime) -> None:
    """Let the entries of a contact look that wait for events, and tell the engines; its lock is held."""
    woken = await tx.execute(_SQL["wake_waiting_entries"], {"org_id": org_id, "id": contact_id, "at": at})
    if woken.rowcount:
        await wake_engine(tx)


async def move_rows(tx: Transaction, org_id: int, part: Part, move: Move, most: int) -> int:
    """Move the next rows of a contact to another; return how many."""
    values = {"org_id": org_id, **msgspec.structs.asdict(move), "most": most}
    return (await tx.execute(_SQL[f"move_{part}"], values)).rowcount


def _stored(*columns: Any) -> Stored:
    wallet, raw, email, domain, external_id, attributes, tags, opted_out, segments, merged_into, erased_at = columns
    person = Person(
        wallet, raw, email, domain, external_id, decode(attributes), tuple(tags), tuple(opted_out), tuple(segments)
    )
    return Stored(person, merged_into, erased_at is not None)


def _merge(*columns: Any) -> MergeRow:
    merge_id, keep_id, absorbed_id, gained, identities, absorbed, created_at, undone_at = columns
    person = msgspec.convert(decode(gained), Person)
    keys = tuple((Kind(int(kind)), digest) for kind, digest in decode(identities))
    there = msgspec.convert(decode(absorbed), Absorbed)
    return MergeRow(merge_id, keep_id, absorbed_id, person, keys, there, created_at, undone_at)


def _owners(rows: Sequence[tuple[Any, ...]]) -> dict[Key, str]:
    return {(Kind(kind), digest): contact_id for kind, digest, contact_id in rows}


def _columns(keys: Sequence[Key]) -> dict[str, Any]:
    return {"kinds": [int(kind) for kind, _ in keys], "digests": [digest for _, digest in keys]}
