"""The contacts that a query finds, gathered where their segment can be made the same as them.

The query runs as every analyst's: through the gateway, as the organization's own login role, one SELECT. What it returns is copied
from that connection into the application's as it comes, so neither a million ids nor the rows around them are held here. Both connections
are taken for as long as the query runs: an organization has few places for that, so that others find some.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import msgspec

from api.keyring import Keyring
from api.language.problem import Problem
from api.query.run import Answer, Column, Gateway, Question, TooLargeError, TooLongError, Turns, UnfitError
from api.store import members
from api.store.database import Database, Transaction

MOST_ROWS = 10_000_000  # of a query: 440 MB of temporary rows, which Postgres itself does not limit

_UUID = 2950
_BLOCK = 10_000


class Desk(msgspec.Struct, frozen=True):
    """What work on segments needs. `database` has its own connections, since it takes long, more than `turns` has places.

    A query ends after `patience_seconds`, and is refused beyond `most_rows`.
    """

    database: Database
    gateway: Gateway
    keyring: Keyring
    patience_seconds: float
    turns: Turns
    most_rows: int = MOST_ROWS


class Found(msgspec.Struct, frozen=True):
    """How many contacts are wanted, in how many rows they came, how many rows had none, and how many ids are nobody's."""

    size: int
    rows: int
    nulls: int
    unknown: int


@asynccontextmanager
async def found(desk: Desk, question: Question) -> AsyncIterator[tuple[Transaction, Found]]:
    """Give an open transaction in which those whom the query finds are wanted; it is committed at a clean exit.

    Raises UnfitError, ReadError, ReaderError or UnavailableError.
    """
    counts = _Counts(desk.most_rows)
    async with AsyncExitStack() as held:
        await held.enter_async_context(desk.turns.of(question.org_id))
        try:
            async with asyncio.timeout(desk.patience_seconds), desk.gateway.ask(question) as answer:
                column = _contact_column(answer.columns)
                tx = await held.enter_async_context(desk.database.transaction())
                async with aclosing(_blocks(answer, column, counts)) as blocks:
                    await members.gather(tx, blocks)
        except TimeoutError:
            raise TooLongError(f"the query took longer than {desk.patience_seconds:g} s") from None
        known = await members.keep_known(tx, question.org_id)
        yield tx, Found(known.size, counts.rows, counts.nulls, known.unknown)


@asynccontextmanager
async def given(desk: Desk, org_id: int, contact_ids: Sequence[str]) -> AsyncIterator[tuple[Transaction, Found]]:
    """Give the same for ids that somebody sent; raise BusyError or UnavailableError."""
    async with desk.turns.of(org_id), desk.database.transaction() as tx:
        await members.gather(tx, _lines(contact_ids))
        known = await members.keep_known(tx, org_id)
        yield tx, Found(known.size, len(contact_ids), 0, known.unknown)


class _Counts(msgspec.Struct):
    most: int
    rows: int = 0
    nulls: int = 0

    def add(self, rows: int, nulls: int) -> None:
        """Count more rows; raise TooLargeError when they are too many."""
        self.rows += rows
        self.nulls += nulls
        if self.rows > self.most:
            raise TooLargeError(
                f"the query returns more than {self.most:,} rows; SELECT DISTINCT contact_id returns each contact once"
            )


async def _blocks(answer: Answer, column: int, counts: _Counts) -> AsyncGenerator[bytes, None]:
    async for batch in answer.batches():
        ids = [cell for cell in batch.columns()[column].to_pylist() if cell is not None]
        counts.add(batch.rows, batch.rows - len(ids))
        yield b"".join([b"%b\n" % each for each in ids])


async def _lines(contact_ids: Sequence[str]) -> AsyncIterator[bytes]:
    for start in range(0, len(contact_ids), _BLOCK):
        yield "".join([f"{each}\n" for each in contact_ids[start : start + _BLOCK]]).encode()


def _contact_column(columns: tuple[Column, ...]) -> int:
    """Return which column holds the contacts; raise UnfitError unless exactly one does."""
    at = [index for index, column in enumerate(columns) if column.name == "contact_id"]
    if not at:
        names = ", ".join(column.name for column in columns) or "none"
        raise UnfitError(Problem("sql", f"must return a column contact_id; its columns are {names}"))
    if len(at) > 1:
        raise UnfitError(Problem("sql", f"must return one column contact_id, not {len(at)}"))
    if columns[at[0]].oid != _UUID:
        raise UnfitError(Problem("sql", f"must return contact_id as uuid, not as {columns[at[0]].type}"))
    return at[0]
