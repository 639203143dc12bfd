"""Limits on analysts' queries: how many run at a time, and which functions they may call.

Slots are limited per organization and in total, so that one organization's heavy queries starve neither another's nor
ingest. A query waits briefly for a slot and then fails with TooManyQueriesError.

`sql/functions.txt` lists the functions for servers that do not allow `sql/hardening.sql` (managed Postgres). Where the
script ran, the server enforces its own rules and the list is not used. Otherwise every name before a parenthesis must
be on the list (or be an SQL keyword), and the system catalogs must not be named. A name counts as Postgres resolves it:
quoted or not, with or without a schema.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from api.store.analyst import TooManyQueriesError
from api.store.database import sql_folder
from workbench.language.problem import Problem
from workbench.language.sql import tokenize


class ConcurrencyLimits(msgspec.Struct, frozen=True):
    """Queries of this process that run at the same time, and how long another one waits for a slot."""

    per_organization: int = 3
    total: int = 24  # eight organizations at their limit
    wait_seconds: float = 5.0


class QuerySlots:
    """Slots for queries, per organization and in total, for one process."""

    def __init__(self, limits: ConcurrencyLimits | None = None) -> None:
        self._limits = limits or ConcurrencyLimits()
        self._total = asyncio.Semaphore(self._limits.total)
        self._per_organization = defaultdict[int, asyncio.Semaphore](
            lambda: asyncio.Semaphore(self._limits.per_organization)
        )

    @asynccontextmanager
    async def acquire(self, org_id: int) -> AsyncIterator[None]:
        """Hold a slot of an organization until the block ends; raise TooManyQueriesError if none is free in time."""
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    # Take the organization's slot first: waiting for it must not occupy a slot that all share.
                    await stack.enter_async_context(self._per_organization[org_id])
                    await stack.enter_async_context(self._total)
            except TimeoutError:
                raise TooManyQueriesError("other queries are still running; try again") from None
            yield


def check_functions(statement: str) -> Problem | None:
    """Return why a statement may not run on a server without the hardening script, or None."""
    previous = before_previous = ""
    for token in tokenize(statement):
        text = token.text.lower() if token.kind == "word" else token.text
        is_name = token.kind in ("word", "quoted")
        if is_name and text not in _HARMLESS_NAMES and (text.startswith("pg_") or text == "information_schema"):
            return Problem("sql", f"{text} is not available on this server")
        if text == "(" and previous and previous not in _ALLOWED and before_previous not in _BEFORE_ALIAS:
            return Problem("sql", f"the function {previous} is not available on this server")
        previous, before_previous = (text if is_name else ""), previous
    return None


_LINES = (sql_folder() / "functions.txt").read_text("utf-8").splitlines()
_ALLOWED = frozenset(name for line in _LINES if not line.startswith("--") for name in line.split())
_BEFORE_ALIAS = frozenset({"as", "with", "recursive"})  # no function call follows: `as t(x)`, `with t(x) as`
_HARMLESS_NAMES = frozenset({"pg_typeof", "pg_column_size", "pg_size_pretty", "pg_catalog"})
