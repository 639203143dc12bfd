"""Candidates for membership: the contact ids of a query or of a request, copied into a temporary table and resolved
there.

A segment's query runs like every analyst's: through the gateway, as the organization's own login role, one SELECT. Its
rows are copied from that connection into the application's as they arrive, so neither a million ids nor the rows
around them are held in memory. Both connections are in use for as long as the query runs; slots per organization keep
some free for others.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import msgspec

from api.crypto import Keyring
from api.query.gateway import AnalystQuery, Gateway, InvalidQueryError
from api.query.limits import QuerySlots
from api.query.results import QueryResult
from api.segments.definition import SegmentQuery
from api.store import segments as store
from api.store.analyst import ChooseContacts, ContactChoice, QueryTimeoutError, ResultColumn, ResultTooLargeError
from api.store.database import Database, Transaction
from workbench.language.problem import Problem
from workbench.language.responses import CandidateCounts

MAX_ROWS = 10_000_000  # 440 MB of temporary rows; Postgres's temp_file_limit does not count temporary tables

_UUID = 2950
_IDS_PER_BLOCK = 10_000


class SegmentServices(msgspec.Struct, frozen=True):
    """The connections and limits for work on segments.

    `database` has its own connections, because this work is slow, and more connections than `slots` has slots. A query
    is stopped after `query_timeout_s`, and refused if it returns more than `max_rows`.
    """

    database: Database
    gateway: Gateway
    keyring: Keyring
    query_timeout_s: float
    slots: QuerySlots
    max_rows: int = MAX_ROWS


@asynccontextmanager
async def query_candidates(
    services: SegmentServices, org_id: int, query: SegmentQuery, choose: ChooseContacts | None = None
) -> AsyncIterator[tuple[Transaction, CandidateCounts, ContactChoice | None]]:
    """Yield an open transaction that holds the contacts of a query as candidates; a clean exit commits it.

    `choose` decides whether the query reads only some contacts; its choice is yielded, too. Raises InvalidQueryError,
    QueryError, ReaderError or DatabaseUnavailableError.
    """
    analyst_query = AnalystQuery(org_id, query.sql, query.params, clear_emails=False)
    rows = nulls = 0

    async def blocks(result: QueryResult, column: int) -> AsyncGenerator[bytes, None]:
        nonlocal rows, nulls
        async for batch in result.batches():
            ids = [cell for cell in batch.columns()[column].to_pylist() if cell is not None]
            rows += batch.rows
            nulls += batch.rows - len(ids)
            if rows > services.max_rows:
                raise ResultTooLargeError(
                    f"the query returns more than {services.max_rows:,} rows; "
                    "SELECT DISTINCT contact_id returns each contact once"
                )
            yield b"".join([b"%b\n" % contact_id for contact_id in ids])

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(services.slots.acquire(org_id))
        try:
            # The application's transaction begins with the first rows, so that it is not held while the query starts.
            async with (
                asyncio.timeout(services.query_timeout_s),
                services.gateway.run(analyst_query, choose=choose) as result,
            ):
                column = _find_contact_column(result.columns)
                tx = await stack.enter_async_context(services.database.transaction())
                async with aclosing(blocks(result, column)) as id_blocks:
                    await store.copy_candidates(tx, id_blocks)
        except TimeoutError:
            raise QueryTimeoutError(f"the query took longer than {services.query_timeout_s:g} s") from None
        resolved = await store.resolve_members(tx, org_id)
        yield tx, CandidateCounts(resolved.size, rows, nulls, resolved.unknown), result.choice


@asynccontextmanager
async def load_candidates(
    services: SegmentServices, org_id: int, contact_ids: Sequence[str]
) -> AsyncIterator[tuple[Transaction, CandidateCounts]]:
    """Yield a transaction with the contacts of `contact_ids`, and their counts.

    Raises TooManyQueriesError or DatabaseUnavailableError.
    """

    async def blocks() -> AsyncIterator[bytes]:
        for start in range(0, len(contact_ids), _IDS_PER_BLOCK):
            yield "".join([f"{contact_id}\n" for contact_id in contact_ids[start : start + _IDS_PER_BLOCK]]).encode()

    async with services.slots.acquire(org_id), services.database.transaction() as tx:
        await store.copy_candidates(tx, blocks())
        resolved = await store.resolve_members(tx, org_id)
        yield tx, CandidateCounts(resolved.size, len(contact_ids), 0, resolved.unknown)


def _find_contact_column(columns: tuple[ResultColumn, ...]) -> int:
    """Return the position of the column contact_id; raise InvalidQueryError unless there is exactly one, a uuid."""
    positions = [position for position, column in enumerate(columns) if column.name == "contact_id"]
    if not positions:
        names = ", ".join(column.name for column in columns) or "none"
        raise InvalidQueryError(Problem("sql", f"must return a column contact_id; its columns are {names}"))
    if len(positions) > 1:
        raise InvalidQueryError(Problem("sql", f"must return one column contact_id, not {len(positions)}"))
    column = columns[positions[0]]
    if column.oid != _UUID:
        raise InvalidQueryError(Problem("sql", f"must return contact_id as uuid, not as {column.type}"))
    return positions[0]
