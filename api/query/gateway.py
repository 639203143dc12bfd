"""The path of an analyst's query to the database: check, bind, resolve `asOf`, wait for a slot, run.

The result is returned after its first rows have been read, so every error of the statement itself comes before the
first byte of a response. The isolation of organizations from each other is in `api.store.sql_roles`.
"""

import hashlib
import logging
import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager
from typing import Annotated

import msgspec
from msgspec import Meta

from api.crypto import EmailDisplay, Keyring
from api.query.limits import ConcurrencyLimits, QuerySlots, check_functions
from api.query.parameters import BoundStatement, bind
from api.query.results import EmailReplacer, QueryResult, read_watermark, write_watermark
from api.store.analyst import (
    ChooseContacts,
    QueryError,
    QueryLimits,
    QuerySource,
    ReplicaConflictError,
    Snapshot,
    StatementError,
    TooManyQueriesError,
    open_cursor,
    resolve_snapshot,
)
from api.store.database import Database, DatabaseUnavailableError, is_distributed
from api.store.sql_roles import ReaderBusyError, ReaderError, ReaderRole, Readers, list_gateway_views
from workbench.language.codec import encode
from workbench.language.problem import Problem
from workbench.language.sql import tokenize

MAX_SQL_CHARACTERS = 100_000
Sql = Annotated[str, Meta(min_length=1, max_length=MAX_SQL_CHARACTERS, pattern=r"\S")]
"""The text of a query in the body of a request."""

_MAX_ATTEMPTS = 3
_UNDEFINED_TABLE = "42P01"
_INSUFFICIENT_PRIVILEGE = "42501"
_DATA_ERROR_CLASS = "22"  # SQLSTATEs; these messages contain values of the data, after ": " or in quotes
_QUOTED = re.compile('".*"')  # up to the last quote, as the value may contain quotes

_log = logging.getLogger("workbench.query")


class AnalystQuery(msgspec.Struct, frozen=True):
    """A query of an organization's analyst.

    `clear_emails`: the key has `pii:read`. `as_of`: the watermark of an earlier result.
    """

    org_id: int
    sql: str
    params: object
    clear_emails: bool
    as_of: str | None = None

    @property
    def hash(self) -> str:
        """32 hex digits, the same for the same statement with the same values."""
        params = dict(sorted(self.params.items())) if isinstance(self.params, dict) else self.params
        return hashlib.sha256(encode([self.sql, params])).hexdigest()[:32]


class InvalidQueryError(Exception):
    """The query is refused before Postgres sees it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


QUERY_FAILURES = (QueryError, InvalidQueryError, ReaderError)
"""Errors of a query or its result. TooManyQueriesError is one of them but temporary: catch it first to retry."""


def describe_failure(error: Exception) -> str:
    """Return the sentence for one of QUERY_FAILURES, or for a lost database, without values of contacts."""
    match error:
        case StatementError(reason=reason, sqlstate=state, position=position, hint=hint):
            text = _QUOTED.sub("…", reason.partition(": ")[0]) if state.startswith(_DATA_ERROR_CLASS) else reason
            where = "" if position is None else f" (character {position})"
            return f"{text}{where}{'' if hint is None else f'. Hint: {hint}'}"
        case DatabaseUnavailableError():
            return "the database connection was lost, or the statement timed out"
        case _:
            return str(error)


class Gateway:
    """Runs analysts' queries, for one process."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        limits: QueryLimits | None = None,
        concurrency: ConcurrencyLimits | None = None,
        standby: Database | None = None,
    ) -> None:
        self._database = database
        self._source = QuerySource(database, standby)
        self._keyring = keyring
        self._readers = Readers(database, keyring)
        self._limits = limits or QueryLimits()
        self._slots = QuerySlots(concurrency)
        self._warned = False

    @asynccontextmanager
    async def run(
        self,
        query: AnalystQuery,
        binary: Collection[int] = (),
        counted_at: Snapshot | None = None,
        choose: ChooseContacts | None = None,
    ) -> AsyncIterator[QueryResult]:
        """Yield the result while the query runs.

        `counted_at`: the snapshot in which the events of the result were counted, if the query does not read them.
        `binary`: types (oids) that the caller takes in Postgres's binary form; used if all columns are of these types.
        `choose` decides whether the query reads only some contacts.
        Raises InvalidQueryError, QueryError, ReaderError or DatabaseUnavailableError.
        """
        statement = bind(query.sql, query.params, self._keyring.of(query.org_id).seal_email)
        if isinstance(statement, Problem):
            raise InvalidQueryError(statement)
        snapshot = None if query.as_of is None else await self._resolve_as_of(query, query.as_of)
        async with self._slots.acquire(query.org_id):
            reader = await self._reader_of(query.org_id)
            if not reader.confined:
                if not self._warned:
                    self._warned = True
                    _log.warning(
                        "sql_not_hardened: sql/hardening.sql did not run as a superuser; "
                        "SQL is limited to listed functions"
                    )
                if problem := check_functions(query.sql):
                    raise InvalidQueryError(problem)
            try:
                async with AsyncExitStack() as stack:
                    try:
                        result = await self._start(stack, query, statement, snapshot, reader, binary, choose)
                    except StatementError as error:
                        if error.sqlstate != _INSUFFICIENT_PRIVILEGE:
                            raise
                        # A migration may have added a column to a view since the role was completed.
                        self._readers.forget(query.org_id)
                        reader = await self._reader_of(query.org_id)
                        result = await self._start(stack, query, statement, snapshot, reader, binary, choose)
                    if counted_at is not None and query.as_of is None:
                        result.watermark = write_watermark(counted_at, self._keyring.of(query.org_id))
                    yield result
            except DatabaseUnavailableError:
                # The role may have been dropped or its password changed: create or complete it at the next query.
                self._readers.forget(query.org_id)
                raise

    async def _reader_of(self, org_id: int) -> ReaderRole:
        """Return an organization's role. Raises TooManyQueriesError, ReaderError or DatabaseUnavailableError."""
        try:
            return await self._readers.of(org_id)
        except ReaderBusyError as error:
            raise TooManyQueriesError(str(error)) from error

    def slot(self, org_id: int) -> AbstractAsyncContextManager[None]:
        """Hold one of the organization's slots for queries; raise TooManyQueriesError if none is free in time."""
        return self._slots.acquire(org_id)

    async def snapshot_of(self, org_id: int, watermark: str) -> Snapshot:
        """Return the part of a watermark's snapshot that this database has; raise InvalidQueryError."""
        return await self._resolve_as_of(AnalystQuery(org_id, "", None, clear_emails=False), watermark)

    async def _resolve_as_of(self, query: AnalystQuery, watermark: str) -> Snapshot:
        """Return the part of a watermark's snapshot that this database has (`resolve_snapshot`)."""
        try:
            snapshot = read_watermark(watermark, self._keyring.of(query.org_id))
        except ValueError:
            raise InvalidQueryError(Problem("asOf", "is not the watermark of a result of this organization")) from None
        async with self._database.transaction() as tx:
            # A schema in the statement would bypass the search path, which selects the views of the past.
            views = await list_gateway_views(tx)
            words = [token.text.lower() for token in tokenize(query.sql)]
            # Whole view names only: `analyst` may also be the alias of a table.
            if any("".join(three) in views for three in zip(words, words[1:], words[2:], strict=False)):
                raise InvalidQueryError(Problem("sql", "with asOf, name tables without their schema"))
            if await is_distributed(tx):
                raise InvalidQueryError(
                    Problem("asOf", "is not available on Citus: its nodes have no common snapshot of the past")
                )
            available = await resolve_snapshot(tx, snapshot)
        if available is None:
            raise InvalidQueryError(
                Problem("asOf", "is from a database that diverged from this one (a copy, or the original of a copy)")
            )
        return available

    async def _start(
        self,
        stack: AsyncExitStack,
        query: AnalystQuery,
        statement: BoundStatement,
        as_of: Snapshot | None,
        reader: ReaderRole,
        binary: Collection[int],
        choose: ChooseContacts | None,
    ) -> QueryResult:
        source = await self._source.current()
        keys = self._keyring.of(query.org_id)
        attempt = 0
        while True:
            attempt += 1
            try:
                async with AsyncExitStack() as attempt_stack:
                    cursor = await attempt_stack.enter_async_context(open_cursor(source, reader, self._limits, as_of))
                    rest = await attempt_stack.enter_async_context(aclosing(cursor.batches()))
                    with _translate_errors(statement, query):
                        await cursor.begin(statement.statement, statement.parameters, binary, choose)
                        first = await anext(rest)
                    await stack.enter_async_context(attempt_stack.pop_all())
                watermark = query.as_of if cursor.snapshot is None else write_watermark(cursor.snapshot, keys)
                emails = EmailReplacer(EmailDisplay(keys, query.clear_emails))
                return QueryResult(watermark, cursor.columns, first, rest, emails, cursor.choice)
            except ReplicaConflictError:
                # A standby cancels queries that hold up the replay of the primary's changes. No row was returned yet.
                if attempt == _MAX_ATTEMPTS:
                    raise


@contextmanager
def _translate_errors(statement: BoundStatement, query: AnalystQuery) -> Iterator[None]:
    """Translate a StatementError from the bound statement to the caller's: positions, and names of parameters."""
    try:
        yield
    except StatementError as error:
        position = None if error.position is None else statement.original_position(error.position)
        hint = None if error.hint is None else statement.original_words(error.hint)
        if query.as_of is not None and error.sqlstate == _UNDEFINED_TABLE:
            hint = "asOf covers only app_events: the other tables keep no history"
        raise StatementError(statement.original_words(error.reason), error.sqlstate, position, hint) from None
