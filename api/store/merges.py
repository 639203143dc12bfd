"""Merge contacts, and undo merges. The caller holds the locks named in `api/contacts/merge.py`."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from api.store.database import Transaction, load
from api.store.events import wake_engine
from workbench.language.codec import decode, encode
from workbench.language.contact import ContactRecord, IdentifierKey, IdentifierKind

_SQL = load("merges")

MergePart: TypeAlias = Literal["events", "messages", "entries", "onchain"]


# --- Contacts and their identifiers


class StoredContact(msgspec.Struct, frozen=True):
    """A contact as stored, with the id of the contact it was merged into and whether it was erased."""

    record: ContactRecord
    merged_into: str | None
    erased: bool


class RowMove(msgspec.Struct, frozen=True):
    """Rows that move from one contact to another. `origins`: only rows that first belonged to one of these contacts."""

    from_id: str
    to_id: str
    origins: list[str] | None = None


async def find_survivor(tx: Transaction, org_id: int, contact_id: str) -> str:
    """Return the contact that this one was merged into, or its own id."""
    row = await (await tx.execute(_SQL["find_survivor"], {"org_id": org_id, "id": contact_id})).fetchone()
    return contact_id if row is None or row[0] is None else str(row[0])


async def find_contacts(tx: Transaction, org_id: int, ids: Collection[str]) -> dict[str, StoredContact]:
    cursor = await tx.execute(_SQL["find_contacts"], {"org_id": org_id, "ids": list(ids)})
    return {row[0]: _stored(*row[1:]) async for row in cursor}


async def find_identities(tx: Transaction, org_id: int, ids: Collection[str]) -> dict[IdentifierKey, str]:
    """Return all identifiers of these contacts, each with its owner."""
    return _owners(await (await tx.execute(_SQL["find_identities"], {"org_id": org_id, "ids": list(ids)})).fetchall())


async def find_identifier_owners(
    tx: Transaction, org_id: int, keys: Sequence[IdentifierKey]
) -> dict[IdentifierKey, str]:
    """Return the owners of identifiers; identifiers without an owner are left out."""
    return _owners(
        await (await tx.execute(_SQL["find_identifier_owners"], {"org_id": org_id, **_columns(keys)})).fetchall()
    )


async def move_identities(tx: Transaction, org_id: int, keys: Sequence[IdentifierKey], move: RowMove) -> None:
    values = {"org_id": org_id, **_columns(keys), "from_id": move.from_id, "to_id": move.to_id}
    await tx.execute(_SQL["move_identities"], values)


async def write_contact(tx: Transaction, org_id: int, contact_id: str, record: ContactRecord, at: datetime) -> None:
    """Write all of a contact except its segments."""
    values = msgspec.structs.asdict(record) | {"attributes": encode(record.attributes).decode()}
    values |= {"tags": list(record.tags), "opted_out": list(record.opted_out)}
    await tx.execute(_SQL["write_contact"], {"org_id": org_id, "id": contact_id, "at": at, **values})


async def mark_merged(tx: Transaction, org_id: int, absorbed_id: str, keep_id: str) -> None:
    """Mark a contact, with all that were merged into it, as merged into another."""
    await tx.execute(_SQL["mark_merged"], {"org_id": org_id, "absorbed_id": absorbed_id, "keep_id": keep_id})


async def unmark_merged(tx: Transaction, org_id: int, absorbed_id: str, members: Collection[str]) -> None:
    """Mark a contact as separate again, together with its `members`."""
    await tx.execute(_SQL["unmark_merged"], {"org_id": org_id, "absorbed_id": absorbed_id, "ids": list(members)})


async def list_merged_ids(tx: Transaction, org_id: int, contact_id: str) -> list[str]:
    """Return a contact and all that were merged into it, directly or indirectly."""
    return [row[0] async for row in await tx.execute(_SQL["list_merged_ids"], {"org_id": org_id, "id": contact_id})]


async def find_memberships(tx: Transaction, org_id: int, contact_id: str) -> dict[str, datetime]:
    """Return the segments of a contact, with the times at which it entered."""
    cursor = await tx.execute(_SQL["find_memberships"], {"org_id": org_id, "id": contact_id})
    return {row[0]: row[1] async for row in cursor}


async def join_segments(tx: Transaction, org_id: int, contact_id: str, segments: Mapping[str, datetime]) -> None:
    """Add a contact to segments, with the given entry times."""
    values = {"org_id": org_id, "id": contact_id, "segments": list(segments), "moments": list(segments.values())}
    await tx.execute(_SQL["join_segments"], values)


async def leave_segments(tx: Transaction, org_id: int, contact_id: str, segments: Iterable[str]) -> None:
    await tx.execute(_SQL["leave_segments"], {"org_id": org_id, "id": contact_id, "segments": list(segments)})


def _stored(*columns: Any) -> StoredContact:
    wallet, raw, email, domain, external_id, attributes, tags, opted_out, segments, merged_into, erased_at = columns
    record = ContactRecord(
        wallet, raw, email, domain, external_id, decode(attributes), tuple(tags), tuple(opted_out), tuple(segments)
    )
    return StoredContact(record, merged_into, erased_at is not None)


def _owners(rows: Sequence[tuple[Any, ...]]) -> dict[IdentifierKey, str]:
    return {(IdentifierKind(kind), digest): contact_id for kind, digest, contact_id in rows}


def _columns(keys: Sequence[IdentifierKey]) -> dict[str, Any]:
    return {"kinds": [int(kind) for kind, _ in keys], "digests": [digest for _, digest in keys]}


# --- Merge records


class Absorbed(msgspec.Struct, frozen=True):
    """What the survivor took over from an absorbed contact: attributes, tags, and segments with their entry times."""

    attributes: dict[str, Any]
    tags: tuple[str, ...]
    segments: dict[str, datetime]


class MergeRow(msgspec.Struct, frozen=True):
    """A merge: what the survivor gained, the identifiers that moved, and what the absorbed contact had."""

    id: str
    keep_id: str
    absorbed_id: str
    gained: ContactRecord
    identities: tuple[IdentifierKey, ...]
    absorbed: Absorbed
    created_at: datetime
    undone_at: datetime | None


async def add_merge(tx: Transaction, org_id: int, row: MergeRow, due_at: datetime) -> None:
    """Record what a merge changed. `due_at`: when to look for rows that arrived in between."""
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
    """Return a merge. `hold`: lock it until commit, so that no other transaction undoes it or moves rows for it."""
    name = "hold_merge" if hold else "find_merge"
    return await tx.fetch_one(_merge, _SQL[name], {"org_id": org_id, "id": merge_id})


async def find_merge_of(tx: Transaction, org_id: int, absorbed_id: str) -> str | None:
    row = await (await tx.execute(_SQL["find_merge_of"], {"org_id": org_id, "absorbed_id": absorbed_id})).fetchone()
    return None if row is None else str(row[0])


async def mark_merge_undone(tx: Transaction, org_id: int, merge_id: str, at: datetime, due_at: datetime) -> None:
    """Record that a merge was undone. `due_at`: when to move its rows back."""
    await tx.execute(_SQL["mark_merge_undone"], {"org_id": org_id, "id": merge_id, "at": at, "due_at": due_at})


async def update_absorbed(tx: Transaction, org_id: int, merge_id: str, absorbed: Absorbed) -> None:
    """Record what the survivor took over from the absorbed contact."""
    values = {"org_id": org_id, "id": merge_id, "absorbed": encode(absorbed).decode()}
    await tx.execute(_SQL["update_absorbed"], values)


async def resolve_conflicts(tx: Transaction, org_id: int, merge_id: str, keep_id: str, absorbed_id: str) -> None:
    """Mark the conflicts between two contacts as resolved by a merge."""
    values = {"org_id": org_id, "merge_id": merge_id, "keep_id": keep_id, "absorbed_id": absorbed_id}
    await tx.execute(_SQL["resolve_conflicts"], values)


async def reopen_conflicts(tx: Transaction, org_id: int, merge_id: str) -> None:
    """Mark the conflicts that a merge resolved as open again."""
    await tx.execute(_SQL["reopen_conflicts"], {"org_id": org_id, "merge_id": merge_id})


def _merge(*columns: Any) -> MergeRow:
    merge_id, keep_id, absorbed_id, gained, identities, absorbed, created_at, undone_at = columns
    record = msgspec.convert(decode(gained), ContactRecord)
    keys = tuple((IdentifierKind(int(kind)), digest) for kind, digest in decode(identities))
    taken_over = msgspec.convert(decode(absorbed), Absorbed)
    return MergeRow(merge_id, keep_id, absorbed_id, record, keys, taken_over, created_at, undone_at)


# --- Moving rows


async def find_due_merges(tx: Transaction, now: datetime, limit: int) -> list[tuple[int, str]]:
    """Return (organization, merge) pairs of merges with rows to look for now."""
    return [(row[0], row[1]) async for row in await tx.execute(_SQL["find_due_merges"], {"now": now, "limit": limit})]


async def schedule_merge(tx: Transaction, org_id: int, merge_id: str, due_at: datetime | None) -> None:
    """Record when to look for rows again; None: never."""
    await tx.execute(_SQL["schedule_merge"], {"org_id": org_id, "id": merge_id, "due_at": due_at})


async def has_claimed_entries(tx: Transaction, org_id: int, move: RowMove) -> bool:
    """Lock the entries that are to move until commit; return whether a worker holds one of them."""
    values = {"org_id": org_id, "id": move.from_id, "origins": move.origins}
    rows = await (await tx.execute(_SQL["live_entries"], values)).fetchall()
    return any(running for _, running in rows)


async def move_live_entries(tx: Transaction, org_id: int, move: RowMove) -> None:
    """Move these entries to another contact in one statement."""
    await tx.execute(_SQL["move_live_entries"], {"org_id": org_id, **msgspec.structs.asdict(move)})


async def move_rows(tx: Transaction, org_id: int, part: MergePart, move: RowMove, limit: int) -> int:
    """Move the next rows of a contact to another; return how many."""
    values = {"org_id": org_id, **msgspec.structs.asdict(move), "limit": limit}
    return (await tx.execute(_SQL[f"move_{part}"], values)).rowcount


async def wake_entries_of_contact(tx: Transaction, org_id: int, contact_id: str, at: datetime) -> None:
    """Make the entries of a contact due that wait for events, and notify the engines; the contact's lock is held."""
    woken = await tx.execute(_SQL["wake_entries_of_contact"], {"org_id": org_id, "id": contact_id, "at": at})
    if woken.rowcount:
        await wake_engine(tx)
