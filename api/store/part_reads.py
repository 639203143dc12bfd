"""Reads of data that reports over parts need in addition to events, by the numbers of contacts."""

from collections.abc import Sequence
from uuid import UUID

import numpy as np
import pyarrow as pa

from api.store.database import Transaction, load
from api.store.parts import fixed_width
from api.store.query import query

_SQL = load("part_reads")


@query
async def list_members(tx: Transaction, org_id: int, segment: str) -> list[int | None]: ...


@query
async def list_member_segments(tx: Transaction, org_id: int) -> list[str]: ...


@query
async def list_attribute_texts(
    tx: Transaction, org_id: int, key: str, path: Sequence[str]
) -> list[tuple[int | None, str | None]]: ...


async def read_contact_ids(
    tx: Transaction, org_id: int, above: int, limit: int, after: str
) -> tuple[pa.RecordBatch, str] | None:
    """Return a page of contacts by id, and the last id; None after the last page.

    The page has up to `limit` contacts with an id greater than `after` and a number greater than `above`. Its columns
    are `contact` (the number, int64) and `id` (16 bytes).
    """
    values = {"org_id": org_id, "above": above, "limit": limit, "after": after}
    await tx.begin()
    cursor = await tx.cursor(binary=True).execute(_SQL["read_contact_ids"].encode(), values)
    result = cursor.pgresult
    assert result is not None
    count, numbers, ids = (result.get_value(0, column) for column in range(3))
    if not int.from_bytes(count or b"", "big"):
        return None
    raw = fixed_width(ids, "V16").tobytes()
    id_column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(raw) // 16, [None, pa.py_buffer(raw)])
    contacts = pa.array(fixed_width(numbers, ">i8").astype(np.int64))
    return pa.record_batch([contacts, id_column], ["contact", "id"]), str(UUID(bytes=raw[-16:]))
