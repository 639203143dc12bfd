"""Segments: groups of contacts that are defined by a query and refreshed, or fixed lists of contacts (audiences).

A definition takes effect together with its members: the query runs first, and one transaction writes the definition,
the members and the audit row. So no segment is stored with a query that never worked, and no reader sees a new
definition with old members.

A large audience arrives in parts, one transaction each. They are stored under the revision that the first part made.
The last part makes all of them the members at once; until then the previous members stay. A contact that stays a
member therefore has no gap in its membership, and two uploads never mix. Merged contacts count as the contact they
were merged into; ids of no contact, or of an erased one, are left out and counted.
"""

import asyncio
import re
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from api.automations.automations import Author, Refusal, conflict, invalid, record, retry_conflicts, unknown
from api.automations.body import read_specs
from api.clock import monotonic_ns, uuid7
from api.crypto import EmailDisplay
from api.ingest.starts import find_starter
from api.segments.candidates import SegmentServices, load_candidates, query_candidates
from api.segments.changed import choose_contacts, full_refresh_reason
from api.segments.definition import (
    DEFAULT_INTERVAL_S,
    AudiencePart,
    SegmentBody,
    SegmentEdit,
    SegmentPreviewBody,
    SegmentQuery,
    open_params,
    query_of,
    seal_params,
)
from api.store import segments as store
from api.store.analyst import ContactChoice
from api.store.broadcasts import find_planned_automations
from api.store.database import Database, Transaction, transaction_offset
from api.store.locks import hold_members
from api.store.query import run
from api.store.segments import RefreshResult, SegmentKey, SegmentRow
from workbench.language.check import segments_of
from workbench.language.codec import decode, encode
from workbench.language.graph import Graph
from workbench.language.problem import Problem
from workbench.language.responses import CandidateCounts, MembersChange, RefreshScope, SegmentPreview, SegmentView
from workbench.language.simulate import SimulatedAutomation
from workbench.language.starts import SEGMENT_CHANGES, StartSource

AUDIENCE_INTERVAL = timedelta(hours=1)  # audiences are recounted: erasures and merges change them

_SAMPLE_SIZE = 20
_RIGHT_AFTER = timedelta(microseconds=1)
_REPAIR_OVERLAP = timedelta(minutes=5)  # longer than any erasure or merge takes from its timestamp to its commit


class _OutdatedError(Exception):
    """While the query ran, the segment was refreshed, or a contact that was not read was merged with one that was."""


class SegmentResult(msgspec.Struct, frozen=True):
    """A segment after a change.

    `counts` is None unless all candidates were counted; `change` is None if no members changed. `scope`: the contacts
    that a refresh read.
    """

    row: SegmentRow
    counts: CandidateCounts | None = None
    change: MembersChange | None = None
    scope: RefreshScope | None = None


def segment_view(row: SegmentRow, show: EmailDisplay, **extra: Any) -> SegmentView:
    """Return a segment as callers see it. `extra`: the fields that not every response has."""
    columns = set(SegmentView.__struct_fields__) & set(SegmentRow.__struct_fields__)
    provenance = decode(row.provenance)
    if "params" in provenance:
        provenance["params"] = open_params(provenance["params"], show)
    params = None if row.params is None else open_params(decode(row.params), show)
    fields = {name: getattr(row, name) for name in columns} | extra
    fields |= {"params": params, "provenance": provenance, "next_at": row.due_at}
    return SegmentView(**fields, full_refresh_reason=None if row.sql is None else full_refresh_reason(query_of(row)))


@retry_conflicts
async def create(services: SegmentServices, author: Author, draft: SegmentBody) -> SegmentResult | Refusal:
    if await _find(services, author.org_id, draft.name) is not None:
        return _name_taken(draft.name)
    params = seal_params(draft.query.params, services.keyring.of(author.org_id))
    choose = partial(choose_contacts, author.org_id, draft.query, services.keyring, None)
    async with query_candidates(services, author.org_id, draft.query, choose) as (tx, counts, choice):
        row = await store.insert_segment(
            tx,
            author.org_id,
            uuid7(author.now_us),
            draft.name,
            author.key_id,
            author.now,
            kind="query",
            sql=draft.query.sql,
            params=None if params is None else encode(params),
            every_seconds=draft.every_seconds or DEFAULT_INTERVAL_S,
        )
        if row is None:  # another request was faster while the query ran
            return _name_taken(draft.name)
        await record(tx, author, "segment.create", row.id, {"name": row.name, "size": counts.size})
        change = await replace_members(services, tx, row, counts, author.now, choice)
    return SegmentResult(await repair(services.database, row, author.now), counts, change)


@retry_conflicts
async def update(services: SegmentServices, author: Author, name: str, edit: SegmentEdit) -> SegmentResult | Refusal:
    row = _editable(await _find(services, author.org_id, name), edit)
    if isinstance(row, Refusal):
        return row
    edited = _edited(services, row, edit)
    if (edited.sql, edited.params) == (row.sql, row.params):  # only the interval changes: no query has to run
        async with services.database.transaction() as tx:
            row = _editable(await store.lock_segment(tx, author.org_id, name), edit)
            if isinstance(row, Refusal):
                return row
            edited = _edited(services, row, edit)
            if edited.every_seconds == row.every_seconds:
                return SegmentResult(row)
            await _write(tx, author, edited, "segment.update", {"changed": ["everySeconds"]})
            return SegmentResult(await store.find_segment(tx, author.org_id, name) or edited)
    choose = partial(choose_contacts, author.org_id, query_of(edited), services.keyring, None)
    async with query_candidates(services, author.org_id, query_of(edited), choose) as (tx, counts, choice):
        # Locked only now: the query may take half a minute.
        locked = _editable(await store.lock_segment(tx, author.org_id, name), edit)
        if isinstance(locked, Refusal):
            return locked
        await _write(tx, author, edited, "segment.update", {"changed": ["sql"], "size": counts.size})
        change = await replace_members(services, tx, edited, counts, author.now, choice)
    return SegmentResult(await repair(services.database, row, author.now), counts, change)


async def refresh(services: SegmentServices, row: SegmentRow, now: datetime) -> SegmentResult | Refusal:
    """Run the query again and change the members; an audience is only repaired and recounted.

    Where the query allows it, only the contacts that changed since the last refresh are read.
    """
    if row.kind == "audience":
        await repair(services.database, row, row.refreshed_at or row.updated_at)
        return await _recount_audience(services.database, row, now)
    try:
        return await _refresh_query(services, row, now)
    except _OutdatedError:
        result = await _refresh_query(services, msgspec.structs.replace(row, watermark=None), now)
        if isinstance(result, Refusal) or result.scope is None:
            return result
        reason = "the segment was refreshed, or contacts were merged, while its query ran"
        return msgspec.structs.replace(result, scope=RefreshScope(None, reason))


async def _refresh_query(services: SegmentServices, row: SegmentRow, now: datetime) -> SegmentResult | Refusal:
    """Refresh a segment from the watermark of `row`; raise _OutdatedError if that is not exact."""
    query = query_of(row)
    choose = partial(choose_contacts, row.org_id, query, services.keyring, row.watermark)
    async with query_candidates(services, row.org_id, query, choose) as (tx, counts, choice):
        assert choice is not None
        locked = await store.lock_segment(tx, row.org_id, row.name)
        if locked is None or (locked.id, locked.revision) != (row.id, row.revision):
            # The candidates come from the query as it was before that change.
            return conflict("the segment was changed by another request; try again")
        if locked.refreshed_at is not None and locked.refreshed_at > now:
            return SegmentResult(locked)  # a refresh that began later was faster
        if choice.contact_ids is not None and locked.watermark != row.watermark:
            raise _OutdatedError
        change = await replace_members(services, tx, row, counts, now, choice)
        # Only now, because the statements above see each merge that was committed before them.
        if choice.contact_ids is not None and not choice.contact_ids.issuperset(
            await store.find_merged(tx, row.org_id, list(choice.contact_ids))
        ):
            raise _OutdatedError
    repaired = await repair(services.database, row, now)
    if choice.contact_ids is None:
        return SegmentResult(repaired, counts, change, RefreshScope(None, choice.reason))
    return SegmentResult(repaired, None, change, RefreshScope(len(choice.contact_ids), None))


@retry_conflicts
async def refresh_by_name(services: SegmentServices, author: Author, name: str) -> SegmentResult | Refusal:
    row = await _find(services, author.org_id, name)
    return unknown("segment") if row is None else await refresh(services, row, author.now)


async def preview(services: SegmentServices, org_id: int, request: SegmentPreviewBody) -> SegmentPreview:
    """Run a query and compare its contacts with the members of the segment named in the request. Writes nothing."""
    start_ns = monotonic_ns()
    async with query_candidates(services, org_id, request.query) as (tx, counts, _):
        sample = await store.sample_members(tx, _SAMPLE_SIZE)
        row = None if request.name is None else await store.find_segment(tx, org_id, request.name)
        change = None if row is None else await store.compare_members(tx, SegmentKey(org_id, row.name))
    seconds = round((monotonic_ns() - start_ns) / 1e9, 3)
    reason = await asyncio.to_thread(full_refresh_reason, request.query)
    return SegmentPreview(
        **msgspec.structs.asdict(counts),
        sample=tuple(sample),
        seconds=seconds,
        change=change,
        full_refresh_reason=reason,
    )


async def archive(services: SegmentServices, author: Author, name: str) -> SegmentRow | Refusal:
    """Archive a segment and remove its members; refused while automations or other segments use it."""

    @retry_conflicts
    async def archive_unused() -> SegmentRow | Refusal:
        async with services.database.transaction() as tx:
            row = await store.lock_segment(tx, author.org_id, name)
            if row is None:
                return unknown("segment")
            if users := await _find_users(tx, author.org_id, name):
                return Refusal("conflict", tuple(Problem("", f"{user} uses it") for user in users))
            await store.remove_all_members(tx, SegmentKey(row.org_id, name), author.now, author.key_id)
            await store.delete_audience_parts(tx, row.org_id, row.id)
            await store.archive_segment(tx, row, author.key_id, author.now)
            await record(tx, author, "segment.archive", row.id, {"name": name, "size": row.size})
        return msgspec.structs.replace(row, archived_at=author.now, revision=row.revision + 1, size=0)

    @retry_conflicts
    async def remove_remaining_members(row: SegmentRow) -> None:
        # `remove_all_members` skips the members that a merge or an erasure is changing; this function waits for them.
        async with services.database.transaction() as tx:
            await run(tx, hold_members(row.org_id))
            key = SegmentKey(row.org_id, row.name)
            await store.clear_members(tx, key, author.now, author.key_id, await transaction_offset(tx))

    async with services.slots.acquire(author.org_id):
        row = await archive_unused()
    if isinstance(row, SegmentRow):
        await remove_remaining_members(row)
    return row


@retry_conflicts
async def save_audience(services: SegmentServices, author: Author, draft: SegmentBody) -> SegmentResult | Refusal:
    async with load_candidates(services, author.org_id, draft.contact_ids or []) as (tx, counts):
        provenance = draft.provenance
        if (params := provenance.get("params")) is not None:
            provenance = provenance | {"params": seal_params(params, services.keyring.of(author.org_id))}
        row = await _create_or_lock_audience(tx, author, draft, _with_counts(provenance, counts))
        if isinstance(row, Refusal):
            return row
        await store.delete_audience_parts(tx, row.org_id, row.id)  # of an upload that was never finished
        if draft.more:
            return await _store_part(tx, row, counts)
        change = await replace_members(services, tx, row, counts, author.now)
    return SegmentResult(await repair(services.database, row, author.now), counts, change)


@retry_conflicts
async def add_part(services: SegmentServices, author: Author, name: str, part: AudiencePart) -> SegmentResult | Refusal:
    """Add the next part of an audience; without `more` it is the last one, and the parts become the members."""
    async with load_candidates(services, author.org_id, part.contact_ids) as (tx, counts):
        row = await store.lock_segment(tx, author.org_id, name)
        if row is None:
            return unknown("segment")
        if row.kind != "audience" or row.refreshed_at is not None:
            return conflict("the segment takes no further parts: it is not an audience with an unfinished upload")
        if row.revision != part.revision:
            return conflict(
                f"another upload has begun, at revision {row.revision}; this one began at {part.revision}", "revision"
            )
        provenance = _with_counts(decode(row.provenance), counts)
        grown = msgspec.structs.replace(row, provenance=encode(provenance))
        await store.write_segment(tx, grown, author.key_id, author.now)
        result = await _store_part(tx, row, counts)
        if part.more:
            return result
        all_parts = msgspec.structs.replace(counts, size=await store.use_audience_parts(tx, row.org_id, row.id))
        change = await replace_members(services, tx, row, all_parts, author.now)
    return SegmentResult(await repair(services.database, row, author.now), all_parts, change)


def interval(row: SegmentRow) -> timedelta:
    return AUDIENCE_INTERVAL if row.every_seconds is None else timedelta(seconds=row.every_seconds)


async def replace_members(
    services: SegmentServices,
    tx: Transaction,
    row: SegmentRow,
    counts: CandidateCounts,
    at: datetime,
    choice: ContactChoice | None = None,
) -> MembersChange:
    """Make the candidates the members of a locked segment, and create the entries that this change starts.

    `choice`: the contacts that the query has read; without it, or if it has read all, other members leave. Call
    `repair` after the commit. It applies merges and erasures, which start no entries.
    """
    key = SegmentKey(row.org_id, row.name)
    entering, leaving = [
        await find_starter(tx, services.keyring, row.org_id, StartSource(start_type, row.name), at)
        for start_type in SEGMENT_CHANGES
    ]
    if choice is None or choice.contact_ids is None:
        size, change = counts.size, await store.change_members(tx, key, at, partial(leaving.start, tx))
    else:
        change = await store.change_some_members(tx, key, at, choice.contact_ids, partial(leaving.start, tx))
        size = await store.count_members(tx, key)
    if entering.automations:
        async for contact_ids in store.read_entered(tx, key, at):
            await entering.start(tx, contact_ids)
    watermark = None if choice is None else choice.watermark
    refreshed = RefreshResult(size, change.entered, change.departed, at, at + interval(row), watermark)
    await store.record_refresh(tx, row.org_id, row.id, refreshed)
    return change


@retry_conflicts
async def repair(database: Database, row: SegmentRow, since: datetime) -> SegmentRow:
    """Apply the erasures and merges since `since` to the members, and return the segment.

    An erasure or merge that committed while the query ran did not see the new members, and the query did not see it.
    """
    async with database.transaction() as tx:
        await run(tx, hold_members(row.org_id))
        key = SegmentKey(row.org_id, row.name)
        times, offset = (since - _REPAIR_OVERLAP, since + _RIGHT_AFTER), await transaction_offset(tx)
        if difference := await store.repair_members(tx, key, *times, offset):
            await store.correct_size(tx, row, difference)
        return await store.find_segment(tx, row.org_id, row.name) or row


async def _find(services: SegmentServices, org_id: int, name: str) -> SegmentRow | None:
    async with services.database.transaction() as tx:
        return await store.find_segment(tx, org_id, name)


def _name_taken(name: str) -> Refusal:
    return conflict(f"a segment named {name!r} already exists", "name")


def _editable(row: SegmentRow | None, edit: SegmentEdit) -> SegmentRow | Refusal:
    if row is None:
        return unknown("segment")
    if row.kind == "audience":
        return invalid((Problem("", "an audience has no query to edit; replace its contacts instead"),))
    if row.revision != edit.revision:
        return conflict(f"the segment is at revision {row.revision} now, not {edit.revision}", "revision")
    return row


def _edited(services: SegmentServices, row: SegmentRow, edit: SegmentEdit) -> SegmentRow:
    """Return a segment at its next revision, with the changes of an edit."""
    every_seconds = edit.every_seconds or row.every_seconds
    assert every_seconds is not None
    due_at = (row.refreshed_at or row.updated_at) + timedelta(seconds=every_seconds)
    edited = msgspec.structs.replace(row, every_seconds=every_seconds, revision=row.revision + 1, due_at=due_at)
    if edit.query is None:
        return edited
    params = seal_params(edit.query.params, services.keyring.of(row.org_id))
    if SegmentQuery(edit.query.sql, params) == query_of(row):
        return edited
    return msgspec.structs.replace(edited, sql=edit.query.sql, params=None if params is None else encode(params))


async def _write(tx: Transaction, author: Author, row: SegmentRow, action: str, detail: dict[str, object]) -> None:
    await store.write_segment(tx, row, author.key_id, author.now)
    await record(tx, author, action, row.id, {"name": row.name, **detail, "revision": row.revision})


@retry_conflicts
async def _recount_audience(database: Database, row: SegmentRow, now: datetime) -> SegmentResult | Refusal:
    async with database.transaction() as tx:
        locked = await store.lock_segment(tx, row.org_id, row.name)
        if locked is None or locked.refreshed_at is None:
            return conflict("the audience is incomplete: further parts must be sent first")
        size = await store.count_members(tx, SegmentKey(row.org_id, row.name))
        change = MembersChange(0, max(0, locked.size - size))
        refreshed = RefreshResult(size, 0, change.departed, now, now + AUDIENCE_INTERVAL)
        await store.record_refresh(tx, row.org_id, locked.id, refreshed)
        return SegmentResult(await store.find_segment(tx, row.org_id, row.name) or locked, None, change)


async def _find_users(tx: Transaction, org_id: int, name: str) -> list[str]:
    published = await store.find_published_specs(tx, org_id)

    def automations_using_it() -> list[str]:
        users = []
        for automation, spec, graph in published:
            parsed = read_specs(spec, graph)
            if isinstance(parsed, SimulatedAutomation) and name in segments_of(parsed.trigger, parsed.graph or Graph()):
                users.append(automation)
        return users

    users = [f"the automation {automation!r}" for automation in await asyncio.to_thread(automations_using_it)]
    users += [f"a broadcast of {automation!r}" for automation in await find_planned_automations(tx, org_id, name)]
    for row in await store.list_segments(tx, org_id):
        # A segment uses this one if its query reads `segment_members` and has the name as a literal or a parameter.
        if row.name == name or row.sql is None or not re.search(r"\bsegment_members\b", row.sql, re.IGNORECASE):
            continue
        if f"'{name}'" in row.sql or f'"{name}"'.encode() in (row.params or b""):
            users.append(f"the segment {row.name!r}")
    return users


async def _create_or_lock_audience(
    tx: Transaction, author: Author, draft: SegmentBody, provenance: dict[str, Any]
) -> SegmentRow | Refusal:
    """Return the locked audience at its new revision, with its current members; create it if it does not exist."""
    text = encode(provenance)
    row = await store.lock_segment(tx, author.org_id, draft.name)
    if row is None:
        created = await store.insert_segment(
            tx,
            author.org_id,
            uuid7(author.now_us),
            draft.name,
            author.key_id,
            author.now,
            kind="audience",
            provenance=text,
        )
        if created is None:
            return _name_taken(draft.name)
        await record(tx, author, "segment.freeze", created.id, {"name": created.name, "rows": provenance["rows"]})
        return created
    if row.kind != "audience":
        return conflict(f"the segment {row.name!r} is defined by a query", "name")
    if draft.revision is None:
        return conflict(f"an audience named {row.name!r} already exists; pass its revision to replace it", "name")
    if draft.revision != row.revision:
        return conflict(f"the audience is at revision {row.revision} now, not {draft.revision}", "revision")
    changed = msgspec.structs.replace(row, provenance=text, revision=row.revision + 1, refreshed_at=None, due_at=None)
    await _write(tx, author, changed, "segment.refreeze", {"rows": provenance["rows"]})
    return changed


async def _store_part(tx: Transaction, row: SegmentRow, counts: CandidateCounts) -> SegmentResult:
    await store.add_audience_part(tx, row.org_id, row.id)
    return SegmentResult(await store.find_segment(tx, row.org_id, row.name) or row, counts)


def _with_counts(provenance: dict[str, Any], counts: CandidateCounts) -> dict[str, Any]:
    rows, unknown_ids = provenance.get("rows", 0) + counts.rows, provenance.get("unknown", 0) + counts.unknown
    return provenance | {"rows": rows, "unknown": unknown_ids}
