"""Exports of tables as parquet files on this machine (events by month), and a SQLAlchemy engine for a direct login.

Rows are read in pages by id, one query per page, so neither the statement timeout nor memory limits the number of rows
of an export. A file appears when it is complete, with a fingerprint of its content in its metadata. A month with the
current fingerprint is skipped. So an interrupted export resumes, and a later one rewrites only the months that changed:
events were added, contacts erased, merged or identified, or another key sees more or fewer addresses.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment
from workbench.connection import Connection, retry
from workbench.display.html import ProgressLine, printable_text
from workbench.errors import InvalidArgumentError, InvalidRequestError, MissingDependencyError
from workbench.sql import SqlQuery, sql, statement, write_parquet

if TYPE_CHECKING:
    import polars as pl
    from sqlalchemy import Engine


TABLES = ("events", "contacts", "messages", "entries")
_PAGE_ROWS = 20_000  # a page takes a third of a second and some megabytes
_FIRST_WEEKS, _EVENTS_PER_QUERY = 16, 400_000  # of fingerprints; that many events take about a second
_TOOK_TOO_LONG = 408
_MEMORY_LIMITS = {"contacts": 100_000, "bytes": 100_000_000}  # more contacts, or attributes, are read page by page
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
            run.write_table(table)
    return Exported(run.path, run.rows, run.written, run.kept, run.masked)


class _Month(msgspec.Struct):
    """A month, and what its fingerprint consists of. The first month begins in year 1, for events dated before it.

    With a count alone, a file would keep the payloads of erased contacts and the former owners of merged events.
    Attributes are left out: they change so often that nearly every month would be written again.
    """

    name: str
    since: datetime
    until: datetime
    events: int = 0
    cleaned: int = 0
    contacts: int = 0
    masked: bool = False

    @property
    def fingerprint(self) -> str:
        return f"{self.events} {self.cleaned} {self.contacts} {'masked' if self.masked else 'clear'}"


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
        months = _months(first, until) if first is not None else []
        # Fingerprints come first: a change while files are written must make the next export write them again.
        self._read_fingerprints(months)
        contacts: pl.DataFrame | None = None  # those that are kept in memory: all or none
        for month in months:
            file = self.path / "events" / f"month={month.name}" / "part-0.parquet"
            if month.events and month.fingerprint == _fingerprint(file):
                self.kept += 1
                self.masked |= month.masked
                self.rows["events"] += month.events
            elif month.events:
                if contacts is None:
                    contacts = self._identifiers(_MEMORY_LIMITS, of_page=False)
                pages = self._with_contacts(month, file, contacts)
                self._write(pages, file, {_FINGERPRINT: month.fingerprint})

    def write_table(self, table: str) -> None:
        file = self.path / table / "part-0.parquet"
        self._write(self._pages(table, file, {}), file)

    def _read_fingerprints(self, months: Sequence[_Month]) -> None:
        """Read what the fingerprints of months consist of: the sums of their weeks, of several weeks in one query."""
        weeks = [week for month in months for week in _weeks(month)]
        first, count = 0, _FIRST_WEEKS
        while spans := weeks[first : first + count]:
            bounds = [since for _, since in spans]
            until = weeks[first + count][1] if first + count < len(weeks) else months[-1].until
            try:
                rows = self._query("export_spans", {"bounds": bounds, "since": bounds[0], "until": until})
            except InvalidRequestError as error:
                if error.status != _TOOK_TOO_LONG or count == 1:
                    raise
                count = 1
                continue
            for number, events, cleaned, contacts, address in rows.iter_rows():
                month, _ = spans[number - 1]
                month.events += events
                month.cleaned += cleaned
                month.contacts += int(contacts)
                month.masked |= _MASK in (address or "")
            first += count
            count = max(1, min(count * _EVENTS_PER_QUERY // max(sum(rows["events"]), 1), 4 * count))

    def _with_contacts(self, month: _Month, file: Path, contacts: "pl.DataFrame") -> Iterator["pl.DataFrame"]:
        """Yield pages of events with identifiers; the first event of a contact in a page has its attributes."""
        import polars as pl

        window, after = {"since": month.since, "until": month.until}, _FIRST_ID
        for page in self._pages("events", file, window):
            identifiers = contacts
            # The server decrypts an address each time it is read, which takes longer than the rest of the row.
            if page.join(contacts, on="contact_id", how="anti").height:
                bounds = {"after": after, "last": page["id"][-1]}
                identifiers = self._identifiers(window | bounds, of_page=True)
            after = page["id"][-1] if page.height else after
            attributes = pl.when(pl.col("contact_id").is_first_distinct()).then("attributes")
            yield page.join(identifiers, on="contact_id", how="left", maintain_order="left").with_columns(attributes)

    def _identifiers(self, values: dict[str, Any], *, of_page: bool) -> "pl.DataFrame":
        return self._without_masked(self._query("export_identifiers", values, of_page=of_page))

    def _pages(self, table: str, file: Path, values: dict[str, Any]) -> Iterator["pl.DataFrame"]:
        after, full = _FIRST_ID, True
        while full:
            page = self._query(f"export_{table}", values | {"after": after, "limit": _PAGE_ROWS})
            full = page.height == _PAGE_ROWS  # a page that is not full is the last one
            after = page["id"][-1] if full else after
            self.rows[table] += page.height
            self._progress.show(str(file.relative_to(self.path)), f"{self.rows[table]:,} {table}", "busy")
            yield self._without_masked(page)

    def _without_masked(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        """Leave out masked addresses: elsewhere they would be imported as if they were real ones."""
        import polars as pl

        if "email" not in rows.columns or not rows["email"].str.contains(_MASK, literal=True).any():
            return rows
        self.masked = True
        return rows.with_columns(pl.lit(None, pl.String).alias("email"))

    def _write(self, pages: Iterator["pl.DataFrame"], file: Path, metadata: dict[str, str] | None = None) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(pages, file, metadata)
        self.written += 1

    def _query(self, name: str, values: dict[str, Any], **structure: Any) -> "pl.DataFrame":
        query = SqlQuery(statement(name, **structure), values)
        return retry(lambda: sql(self._connection, query), _RETRY_PAUSES_S)


def _months(first: datetime, until: datetime) -> list[_Month]:
    month = first.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    months: list[_Month] = []
    while month < until:
        following = month.replace(year=month.year + month.month // 12, month=month.month % 12 + 1)
        since = month if months else datetime(1, 1, 1, tzinfo=UTC)
        months.append(_Month(f"{month:%Y-%m}", since, min(following, until)))
        month = following
    return months


def _weeks(month: _Month) -> Iterator[tuple[_Month, datetime]]:
    """Yield the beginnings of the last four weeks of a month, and of the rest before them."""
    yield month, month.since
    for days in (28, 21, 14, 7):
        if (start := month.until - timedelta(days=days)) > month.since:
            yield month, start


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
