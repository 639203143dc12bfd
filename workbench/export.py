"""Exports of tables as parquet files on this machine (events by month), and a SQLAlchemy engine for a direct login.

Rows are read in pages by id, one query per page, so neither the statement timeout nor memory limits the size of an
export. A file appears when it is complete, with a fingerprint of its content in its metadata. A month with the current
fingerprint is skipped. So an interrupted export resumes, and a later one rewrites only the months that changed: events
were added, contacts erased, merged or identified, or another key sees more or fewer addresses.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment
from workbench.connection import Connection, retry
from workbench.display.html import ProgressLine, printable_text
from workbench.errors import InvalidArgumentError, MissingDependencyError
from workbench.sql import built_in, write_parquet

if TYPE_CHECKING:
    import polars as pl
    from sqlalchemy import Engine


TABLES = ("events", "contacts", "messages", "entries")
_PAGE_ROWS = 20_000  # a page takes a third of a second and some megabytes
_RETRY_PAUSES_S = (2.0,) * 4  # a server that restarts must not end a long export
_FIRST_ID = "00000000-0000-0000-0000-000000000000"  # less than every id
_MASK = "•"  # the service masks email addresses with it
_FINGERPRINT = "workbench.export"  # the key in a file's metadata


class Exported(msgspec.Struct, frozen=True):
    """The result of an export: rows by table, files written, files kept. `masked`: email addresses were left out."""

    path: Path
    rows: dict[str, int]
    written: int
    kept: int
    masked: bool

    @printable_text
    def __repr__(self) -> str:
        rows = ", ".join(f"{count:,} {table}" for table, count in self.rows.items())
        files = f"{self.written} files written" + (f", {self.kept} unchanged" if self.kept else "")
        masked = "\nEmail addresses are left out: your key may not see them (it lacks pii:read)." if self.masked else ""
        return f"{self.path}: {rows}; {files}{masked}"


def export(connection: Connection, path: str | Path, tables: Sequence[str]) -> Exported:
    """Write tables below `path`. Raises InvalidArgumentError for an unknown table, SqlError and OSError."""
    if isinstance(tables, str) or not tables or not set(tables) <= set(TABLES):
        named = tables if isinstance(tables, str) else ", ".join(map(repr, tables))
        raise InvalidArgumentError(f"tables={named} must be a list with some of {', '.join(map(repr, TABLES))}")
    run = _ExportRun(connection, Path(path))
    for table in tables:
        run.rows[table] = 0
        if table == "events":
            run.write_events()
        else:
            run.write_table(table, run.path / table / "part-0.parquet", {})
    return Exported(run.path, run.rows, run.written, run.kept, run.masked)


class _ExportRun:
    def __init__(self, connection: Connection, path: Path) -> None:
        self._connection = connection
        self._progress = ProgressLine()
        self.path = path
        self.rows: dict[str, int] = {}
        self.written = self.kept = 0
        self.masked = False

    def write_events(self) -> None:
        """Write a file for every month that has events, unless a file with the same fingerprint exists."""
        until, first = self._query("export_bounds", {}).row(0)  # ten seconds ago: later events may not be committed
        since = datetime(1, 1, 1, tzinfo=UTC)  # the first file also has events dated before the first month
        for month, month_end in _months(first, until) if first is not None else ():
            end = min(month_end, until)
            spans = [{"since": start, "until": stop} for start, stop in _weeks(since, end)]
            weeks = [self._query("export_span", span).row(0) for span in spans]
            events, cleaned, contacts = (sum(int(week[column]) for week in weeks) for column in range(3))
            masked = any(_MASK in (address or "") for *_, address in weeks)
            # With a count alone, a file would keep the payloads of erased contacts and the former owners of merged
            # events. Attributes are left out: they change so often that nearly every month would be written again.
            fingerprint = f"{events} {cleaned} {contacts} {'masked' if masked else 'clear'}"
            file = self.path / "events" / f"month={month:%Y-%m}" / "part-0.parquet"
            if events and fingerprint == _fingerprint(file):
                self.kept += 1
                self.masked |= masked
                self.rows["events"] += events
            elif events:
                self.write_table("events", file, {"since": since, "until": end}, {_FINGERPRINT: fingerprint})
            since = month_end

    def write_table(
        self, table: str, file: Path, values: dict[str, Any], metadata: dict[str, str] | None = None
    ) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(self._pages(table, file, values), file, metadata)
        self.written += 1

    def _pages(self, table: str, file: Path, values: dict[str, Any]) -> Iterator["pl.DataFrame"]:
        import polars as pl

        after, full = _FIRST_ID, True
        while full:
            page = self._query(f"export_{table}", values | {"after": after, "limit": _PAGE_ROWS})
            full = page.height == _PAGE_ROWS  # a page that is not full is the last one
            after = page["id"][-1] if full else after
            self.rows[table] += page.height
            self._progress.show(str(file.relative_to(self.path)), f"{self.rows[table]:,} {table}", "busy")
            if "email" in page.columns and page["email"].str.contains(_MASK, literal=True).any():
                self.masked = True
                # A masked address would be imported elsewhere as if it were a real one.
                page = page.with_columns(pl.lit(None, pl.String).alias("email"))
            yield page

    def _query(self, name: str, values: dict[str, Any]) -> "pl.DataFrame":
        return retry(lambda: built_in(self._connection, name, values), _RETRY_PAUSES_S)


def _months(first: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    month = first.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while month < until:
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        yield month, following
        month = following


def _weeks(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the start and the end of parts of a month that are short enough for the statement timeout."""
    start = since
    for days in (28, 21, 14, 7, 0):
        end = until - timedelta(days=days)
        if end > start:
            yield start, end
            start = end


def _fingerprint(file: Path) -> str | None:
    """Return the fingerprint in a parquet file; None if the file does not exist or is damaged."""
    import polars as pl

    if not file.exists():
        return None
    try:
        return pl.read_parquet_metadata(file).get(_FINGERPRINT)
    except pl.exceptions.PolarsError:
        return None


def engine() -> "Engine":
    """Return an engine for the login in WORKBENCH_DSN. It connects when it is first used.

    Raises InvalidArgumentError if the variable is missing or not a URL, and MissingDependencyError without SQLAlchemy.
    """
    dsn = environment.variable(_DSN_VARIABLE)
    if dsn is None:
        raise InvalidArgumentError(
            f"{_DSN_VARIABLE} is not set. An operator creates a login with `workbench reader create --org NAME`; "
            f"set {_DSN_VARIABLE} to the URL that this prints before starting JupyterLab"
        )
    try:
        from sqlalchemy import NullPool, create_engine, make_url
        from sqlalchemy.exc import ArgumentError

        try:
            url = make_url(dsn).set(drivername="postgresql+psycopg")
            # All readers of an organization share a few sessions, so none is kept open between two uses.
            return create_engine(url, poolclass=NullPool, use_native_hstore=False)
        except (ArgumentError, ValueError):
            raise InvalidArgumentError(
                f"{_DSN_VARIABLE} is not a database URL; it looks like postgresql://login:password@host:5432/workbench"
            ) from None
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "wb.engine() needs SQLAlchemy and psycopg: pip install 'event-workbench[engine]'"
        ) from None


_DSN_VARIABLE = "WORKBENCH_DSN"
