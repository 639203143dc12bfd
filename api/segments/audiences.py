"""Audiences: the contacts of a frame, frozen, with what the frame came from.

A large frame comes in parts, each of them a transaction. They are put aside, under the revision that the first one made; the last one makes
them the members, all at once, and until then the members are those of before. So whoever stays has not been away, and two frames never
mix. Contacts that were merged count as who they are now; ids of nobody, or of somebody who was erased, are left out and counted.
"""

from typing import Any

import msgspec

from api.authoring.again import retried
from api.authoring.automations import Author, record
from api.authoring.refusal import Refusal, conflict, unknown
from api.clock import uuid7
from api.keyring import OrgKeys
from api.language.codec import decode, encode
from api.segments.definition import Frame, Part, sealed
from api.segments.finding import Desk, Found, given
from api.segments.segments import Filled, fill, mended, write
from api.store import members
from api.store import segments as store
from api.store.database import Transaction
from api.store.segments import NewSegment, SegmentRow


@retried
async def freeze(desk: Desk, author: Author, frame: Frame) -> Filled | Refusal:
    """Store a new audience, or replace the one at the revision that the frame names."""
    async with given(desk, author.org_id, frame.contact_ids) as (tx, there):
        provenance = _counted(_origin(frame, desk.keyring.of(author.org_id)), there)
        row = await _opened(tx, author, frame, provenance)
        if isinstance(row, Refusal):
            return row
        await members.forget_parts(tx, row.org_id, row.id)
        if frame.more:
            return await _put_aside(tx, row, there)
        change = await fill(tx, row, there, author.now)
    return await mended(desk, row, there, change, author.now)


@retried
async def extend(desk: Desk, author: Author, name: str, part: Part) -> Filled | Refusal:
    """Add the next part of a frame to an audience of which more is to come; without `more` it is the last."""
    async with given(desk, author.org_id, part.contact_ids) as (tx, there):
        row = _awaiting(await store.lock_segment(tx, author.org_id, name), part)
        if isinstance(row, Refusal):
            return row
        grown = msgspec.structs.replace(row, provenance=encode(_counted(decode(row.provenance), there)))
        await store.write_segment(tx, grown, author.key_id, author.now)
        put_aside = await _put_aside(tx, row, there)
        if part.more:
            return put_aside
        whole = msgspec.structs.replace(there, size=await members.want_parts(tx, row.org_id, row.id))
        change = await fill(tx, row, whole, author.now)
    return await mended(desk, row, whole, change, author.now)


async def _put_aside(tx: Transaction, row: SegmentRow, there: Found) -> Filled:
    await members.keep_part(tx, row.org_id, row.id)
    return Filled(await store.find_segment(tx, row.org_id, row.name) or row, there)


def _awaiting(row: SegmentRow | None, part: Part) -> SegmentRow | Refusal:
    if row is None:
        return unknown("segment")
    if row.kind != "audience" or row.refreshed_at is not None:
        return conflict("it takes no more contacts: it is no audience of which more is to come")
    if row.revision != part.revision:
        return conflict(
            f"another frame is on its way, at revision {row.revision}; this one began at {part.revision}", "revision"
        )
    return row


async def _opened(tx: Transaction, author: Author, frame: Frame, provenance: dict[str, Any]) -> SegmentRow | Refusal:
    """Return the audience to fill, which nobody else changes; what it held before stays in it for now."""
    text = encode(provenance)
    row = await store.lock_segment(tx, author.org_id, frame.name)
    if row is None:
        new = NewSegment(
            *(author.org_id, uuid7(author.now_us), frame.name, "audience", None, None, None, text.decode()),
            *(author.key_id, author.now),
        )
        made = await store.insert_segment(tx, new)
        if made is None:
            return conflict(f"there is a segment {frame.name!r} already", "name")
        await record(tx, author, "segment.freeze", made.id, {"name": made.name, "rows": provenance["rows"]})
        return made
    if against := _against(row, frame):
        return against
    changed = msgspec.structs.replace(row, provenance=text, revision=row.revision + 1, refreshed_at=None, due_at=None)
    await write(tx, author, changed, "segment.refreeze", {"rows": provenance["rows"]})
    return changed


def _against(row: SegmentRow, frame: Frame) -> Refusal | None:
    if row.kind != "audience":
        return conflict(f"the segment {row.name!r} is defined by a query", "name")
    if frame.revision is None:
        return conflict(f"there is an audience {row.name!r} already; name its revision to replace it", "name")
    if frame.revision != row.revision:
        return conflict(f"the audience is at revision {row.revision} now, not {frame.revision}", "revision")
    return None


def _origin(frame: Frame, keys: OrgKeys) -> dict[str, Any]:
    params = frame.provenance.get("params")
    return frame.provenance | ({"params": sealed(params, keys)} if params is not None else {})


def _counted(provenance: dict[str, Any], there: Found) -> dict[str, Any]:
    """Return where a frame came from, with the rows and unknown ids of one more part."""
    rows, unknown_ids = provenance.get("rows", 0) + there.rows, provenance.get("unknown", 0) + there.unknown
    return provenance | {"rows": rows, "unknown": unknown_ids}
