"""Read what a report over parts needs beside events, by the numbers of contacts."""

from collections.abc import Sequence

from api.store.database import Transaction
from api.store.query import query


@query
async def list_members(tx: Transaction, org_id: int, segment: str) -> list[int | None]: ...


@query
async def list_member_segments(tx: Transaction, org_id: int) -> list[str]: ...


@query
async def list_attribute_texts(
    tx: Transaction, org_id: int, key: str, path: Sequence[str]
) -> list[tuple[int | None, str | None]]: ...
