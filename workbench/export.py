"""Tables of the organization as parquet files on this machine: events by month, whatever their number.

Rows come in pages by id, each a query of its own, so no limit of the gateway (time of a statement, of an answer) is met however many
there are, and no more than a page is held. A file appears when it is whole. A month whose file holds as many events as there are is
left as it is: events never change and are only added, so an export that broke off goes on where it was, and a later one brings
what came since.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import surroundings
from workbench.connection import Connection
from workbench.display.progress import Progress
from workbench.errors import DraftError, UnavailableError, UnknownOutcomeError, UnreachableError
from workbench.query import Question, sql
from workbench.stream import write_parquet

if TYPE_CHECKING:
    import polars as pl

TABLES = ("events", "contacts", "messages", "entries")
_PAGE = 20_000  # rows: a third of a second, and some megabytes
_TRIES = 5
_PAUSE = 2.0  # seconds
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_MASK = "•"

_BOUNDS = """
SELECT now() - interval '10 seconds' AS until,    -- what is being stored now is left to the next export
       (SELECT created_at FROM app_events ORDER BY id LIMIT 1) AS first"""
_COUNT = "SELECT count(*) AS n FROM app_events WHERE created_at >= :since AND created_at < :until"
_EVENTS = """
SELECT e.*, c.email, c.wallet_address, c.external_id,
       CASE WHEN row_number() OVER (PARTITION BY e.contact_id ORDER BY e.id) > 1 THEN NULL    -- once a page is enough
            WHEN c.external_id IS NULL THEN c.metadata ELSE c.metadata - 'externalId' END AS attributes
FROM (SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key FROM app_events
      WHERE created_at >= :since AND created_at < :until AND id > :after ::uuid ORDER BY id LIMIT :most) e
LEFT JOIN contacts c ON c.id = e.contact_id
ORDER BY e.id"""
_OTHERS = {
    "contacts": "SELECT id, email, wallet_address, external_id, metadata, tags, created_at, updated_at FROM contacts",
    "messages": "SELECT * FROM messages",
    "entries": "SELECT * FROM automation_entries",
}


class Exported(msgspec.Struct, frozen=True):
    """What an export brought: rows by table, files written and files that were there; `masked`: emails were left out."""

    path: Path
    rows: dict[str, int]
    written: int
    kept: int
    masked: bool

    def __repr__(self) -> str:
        rows = ", ".join(f"{count:,} {table}" for table, count in self.rows.items())
        files = f"{self.written} files written" + (f", {self.kept} were there already" if self.kept else "")
        masked = "\nEmails are left out: your key may not see them (it lacks pii:read)." if self.masked else ""
        return f"{self.path}: {rows}; {files}{masked}"


def export(connection: Connection, path: str | Path, tables: Sequence[str]) -> Exported:
    """Write tables below `path`; raise DraftError for one there is not, SqlError and OSError."""
    if isinstance(tables, str) or not tables or not set(tables) <= set(TABLES):
        given = tables if isinstance(tables, str) else ", ".join(map(repr, tables))
        raise DraftError(f"tables={given}: name some of {', '.join(map(repr, TABLES))}, in a list")
    exporting = _Export(connection, Path(path))
    for table in tables:
        if table == "events":
            exporting.events()
        else:
            exporting.table(table, _OTHERS[table])
    return exporting.exported()


class _Export:
    """An export under way."""

    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection, self._path = connection, path
        self._rows: dict[str, int] = {}
        self._written = self._kept = 0
        self._masked = False
        self._progress = Progress()

    def exported(self) -> Exported:
        """Return what it brought."""
        return Exported(self._path, self._rows, self._written, self._kept, self._masked)

    def events(self) -> None:
        """Write a file for every month that has events."""
        until, first = self._ask(_BOUNDS, {}).row(0)
        self._rows["events"] = 0
        since = datetime(1, 1, 1, tzinfo=UTC)  # before the first month lies what has no month of its own
        for month, end in _months(first, until) if first is not None else ():
            self._month(month, since, min(end, until))
            since = end

    def table(self, table: str, query: str) -> None:
        """Write all of a table into one file."""
        query += " WHERE id > :after ::uuid ORDER BY id LIMIT :most"
        self._rows[table] = 0
        self._write(table, self._path / table / "part-0.parquet", query, {})

    def _month(self, month: datetime, since: datetime, until: datetime) -> None:
        span = {"since": since, "until": until}
        count = self._ask(_COUNT, span)["n"][0]
        file = self._path / "events" / f"month={month:%Y-%m}" / "part-0.parquet"
        if count and count == _height(file):
            self._kept += 1
            self._rows["events"] += count
        elif count:
            self._write("events", file, _EVENTS, span)

    def _write(self, table: str, file: Path, query: str, values: dict[str, Any]) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(self._pages(table, file, query, values), file)
        self._written += 1

    def _pages(self, table: str, file: Path, query: str, values: dict[str, Any]) -> Iterator["pl.DataFrame"]:
        after, full = _FIRST_ID, True
        while full:
            page = self._ask(query, values | {"after": after, "most": _PAGE})
            full = page.height == _PAGE
            after = page["id"][-1] if full else after
            self._rows[table] += page.height
            self._progress.show(str(file.relative_to(self._path)), f"{self._rows[table]:,} {table}", "busy")
            yield self._unmasked(page)

    def _unmasked(self, page: "pl.DataFrame") -> "pl.DataFrame":
        """Return a page without emails of which only a part may be seen: they are nobody's address."""
        import polars as pl

        if "email" not in page.columns or not page["email"].str.contains(_MASK, literal=True).any():
            return page
        self._masked = True
        return page.with_columns(pl.lit(None, pl.String).alias("email"))

    def _ask(self, query: str, values: dict[str, Any]) -> "pl.DataFrame":
        """Return the rows of a query; one that finds the server away or busy is asked again."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return sql(self._connection, Question(query, values))
            except (UnavailableError, UnknownOutcomeError, UnreachableError):
                if not tries_left:
                    raise
                surroundings.sleep(_PAUSE)
        raise AssertionError("the loop above returns or raises")


def _months(first: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the beginnings of the months from one moment to another, each with that of the next."""
    month = first.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while month < until:
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        yield month, following
        month = following


def _height(file: Path) -> int | None:
    """Return the number of rows of a parquet file, if it is there and whole."""
    import polars as pl

    if not file.exists():
        return None
    try:
        return int(pl.scan_parquet(file).select(pl.len()).collect().item())
    except pl.exceptions.PolarsError:
        return None
