"""An analyst's query from its text to the first rows: check, bind, wait for a place, run.

Few run at a time per organization, and in all, so that one organization's heavy questions neither starve another's nor
ingest; the others wait briefly and are then refused.
"""

import hashlib
import logging
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, contextmanager

import msgspec

from api.keyring import Keyring
from api.language.codec import encode
from api.language.problem import Problem
from api.language.sql import tokens
from api.query import functions, watermark
from api.query.emails import Emails
from api.query.parameters import Bound, bind
from api.query.places import Places, Turns
from api.store.database import Database, UnavailableError, is_distributed
from api.store.readers import Reader, ReaderBusyError, ReaderError, Readers, gateway_views
from api.store.reading import (
    BusyError,
    Limits,
    OvertakenError,
    Reading,
    StatementError,
    TooLargeError,
    TooLongError,
    reading,
)
from api.store.replica import Source
from api.store.rows import Batch, Cells, Column
from api.store.snapshots import Snapshot, as_kept

__all__ = [
    "Answer",
    "Batch",
    "BusyError",
    "Cells",
    "Column",
    "Gateway",
    "Limits",
    "Places",
    "Question",
    "ReaderError",
    "StatementError",
    "TooLargeError",
    "TooLongError",
    "Turns",
    "UnfitError",
]

MOST_CHARACTERS = 100_000
_TRIES = 3

_NO_SUCH_TABLE = "42P01"
_ON_CITUS = "is not available on Citus, whose nodes do not agree on what had happened by then"
_ELSEWHERE = "was given by a database that went on without this one (a copy, or the original after it was copied)"
_COVERED = "asOf covers app_events alone: the other tables do not keep what was in them"

_log = logging.getLogger("workbench.query")


class Question(msgspec.Struct, frozen=True):
    """What an organization's analyst asks; `clear_emails` when the key may see addresses; `as_of` is an answer's watermark."""

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


class _Asked(msgspec.Struct, frozen=True):
    """A question that was found fit: bound, with the past it is about, and the types that are read in binary form."""

    question: Question
    bound: Bound
    as_of: Snapshot | None
    binary: Collection[int]


class UnfitError(Exception):
    """The question is refused before Postgres sees it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        super().__init__(str(problem))


class Answer:
    """The columns, and all rows in batches; the first one is here already.

    `watermark` says what they were taken from, None where the database cannot tell.
    """

    def __init__(
        self,
        watermark: str | None,
        columns: tuple[Column, ...],
        first: Batch,
        rest: AsyncIterator[Batch],
        emails: Emails,
    ) -> None:
        self.watermark = watermark
        self.columns = columns
        self._first = first
        self._rest = rest
        self._emails = emails

    async def batches(self) -> AsyncIterator[Batch]:
        """Give every batch once, addresses still sealed; raise ReadError or UnavailableError."""
        yield self._first
        async for batch in self._rest:
            yield batch

    def shown(self, batch: Batch) -> list[Cells]:
        """Return the columns of a batch with addresses as this reader may see them."""
        return self._emails.show(self.columns, batch.columns())


class Gateway:
    """The way of analysts' queries to the database, for one process."""

    def __init__(
        self,
        database: Database,
        keyring: Keyring,
        limits: Limits | None = None,
        places: Places | None = None,
        standby: Database | None = None,
    ) -> None:
        self._database = database
        self._source = Source(database, standby)
        self._keyring = keyring
        self._readers = Readers(database, keyring)
        self._limits = limits or Limits()
        self._turns = Turns(places)
        self._warned = False

    @asynccontextmanager
    async def ask(self, question: Question, binary: Collection[int] = ()) -> AsyncIterator[Answer]:
        """Give the answer while the query runs; raise UnfitError, ReadError, ReaderError or UnavailableError.

        `binary`: the types (oids) that are read in Postgres's binary form, if all columns are of them.
        """
        asked = _Asked(question, self._bind(question), await self._past(question), binary)
        async with self._turns.of(question.org_id):
            reader = await self._reader(question)
            try:
                async with AsyncExitStack() as running:
                    yield await self._begun(running, asked, reader)
            except UnavailableError:
                self._readers.forget(question.org_id)
                raise

    async def _begun(self, running: AsyncExitStack, asked: _Asked, reader: Reader) -> Answer:
        """Begin the query, again where a standby was overtaken by changes before there were rows."""
        source, tries = await self._source.current(), _TRIES
        while True:
            tries -= 1
            try:
                async with AsyncExitStack() as trying:
                    answer = await self._begin(trying, asked, reading(source, reader, self._limits, asked.as_of))
                    await running.enter_async_context(trying.pop_all())
                    return answer
            except OvertakenError:
                if not tries:
                    raise

    async def _begin(
        self, running: AsyncExitStack, asked: _Asked, opened: AbstractAsyncContextManager[Reading]
    ) -> Answer:
        question, bound = asked.question, asked.bound
        query = await running.enter_async_context(opened)
        rest = await running.enter_async_context(aclosing(query.batches()))
        with _in_callers_words(bound, question):
            seen = await query.begin(bound.statement, bound.parameters, asked.binary)
            first = await anext(rest)
        keys = self._keyring.of(question.org_id)
        mark = question.as_of if seen is None else watermark.written(seen, keys)
        return Answer(mark, query.columns, first, rest, Emails(keys, question.clear_emails))

    def _bind(self, question: Question) -> Bound:
        if not question.sql.strip():
            raise UnfitError(Problem("sql", "must not be empty"))
        if len(question.sql) > MOST_CHARACTERS:
            raise UnfitError(Problem("sql", f"must have at most {MOST_CHARACTERS} characters"))
        if "\0" in question.sql:
            raise UnfitError(Problem("sql", "contains U+0000"))
        bound = bind(question.sql, question.params, self._keyring.of(question.org_id).seal_email)
        if isinstance(bound, Problem):
            raise UnfitError(bound)
        return bound

    async def _past(self, question: Question) -> Snapshot | None:
        """Return the snapshot that is asked for, as far as this database has it; None for the present."""
        if question.as_of is None:
            return None
        try:
            given = watermark.read(question.as_of, self._keyring.of(question.org_id))
        except ValueError:
            raise UnfitError(Problem("asOf", "is not the watermark of an answer to this organization")) from None
        async with self._database.transaction() as tx:
            if _names_one(question.sql, await gateway_views(tx)):
                raise UnfitError(Problem("sql", "with asOf, tables are named without a schema"))
            kept = None if (distributed := await is_distributed(tx)) else await as_kept(tx, given)
        if kept is None:
            raise UnfitError(Problem("asOf", _ON_CITUS if distributed else _ELSEWHERE))
        return kept

    async def _reader(self, question: Question) -> Reader:
        try:
            reader = await self._readers.of(question.org_id)
        except ReaderBusyError as error:
            raise BusyError(str(error)) from error
        if not reader.confined:
            self._warn()
            if problem := functions.refuse(question.sql):
                raise UnfitError(problem)
        return reader

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning(
                "sql_not_hardened: sql/hardening.sql did not run as a superuser; SQL is limited to listed functions"
            )


def _names_one(text: str, views: Collection[str]) -> bool:
    """Return whether a statement names a view with its schema; `analyst` may also be the alias of a table."""
    words = [token.text.lower() for token in tokens(text)]
    return any("".join(three) in views for three in zip(words, words[1:], words[2:], strict=False))


@contextmanager
def _in_callers_words(bound: Bound, question: Question) -> Iterator[None]:
    """Make a refusal speak of the text and the parameters as they were given."""
    try:
        yield
    except StatementError as error:
        position = None if error.position is None else bound.original_position(error.position)
        hint = None if error.hint is None else bound.original_words(error.hint)
        if question.as_of is not None and error.sqlstate == _NO_SUCH_TABLE:
            hint = _COVERED
        raise StatementError(bound.original_words(error.reason), error.sqlstate, position, hint) from None
