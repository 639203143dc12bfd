"""Tables of the organization as parquet files on this machine: events by month, whatever their number.

Rows come in pages by id, each a query of its own, so no limit of the gateway (time of a statement, of an answer) is met however many
there are, and no more than a page is held. A file appears when it is whole, and carries a fingerprint of what it holds. A month whose
file has the present fingerprint is left as it is; so an export that broke off goes on where it was, and a later one writes anew what
events were added to, whose contacts were erased or merged or have other identifiers, and what another key may see more or less of.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import surroundings
from workbench.connection import Connection
from workbench.display.progress import Progress
from workbench.errors import DraftError, UnavailableError, UnknownOutcomeError, UnreachableError
from workbench.query import named
from workbench.stream import write_parquet

if TYPE_CHECKING:
    import polars as pl

TABLES = ("events", "contacts", "messages", "entries")
_PAGE = 20_000  # rows: a third of a second, and some megabytes
_TRIES = 5
_PAUSE = 2.0  # seconds
_FIRST_ID = "00000000-0000-0000-0000-000000000000"
_MASK = "•"
_FINGERPRINT = "workbench.export"  # in the metadata of a file


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
            exporting.table(table)
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
        until, first = self._ask("export_bounds", {}).row(0)
        self._rows["events"] = 0
        since = datetime(1, 1, 1, tzinfo=UTC)  # before the first month lies what has no month of its own
        for month, end in _months(first, until) if first is not None else ():
            self._month(month, since, min(end, until))
            since = end

    def table(self, table: str) -> None:
        """Write all of a table into one file."""
        self._rows[table] = 0
        self._write(table, self._path / table / "part-0.parquet", {})

    def _month(self, month: datetime, since: datetime, until: datetime) -> None:
        weeks = [self._ask("export_span", {"since": start, "until": end}).row(0) for start, end in _weeks(since, until)]
        events, cleaned, contacts = (sum(int(week[column]) for week in weeks) for column in range(3))
        masked = any(_MASK in (address or "") for *_, address in weeks)
        fingerprint = f"{events} {cleaned} {contacts} {'masked' if masked else 'clear'}"
        file = self._path / "events" / f"month={month:%Y-%m}" / "part-0.parquet"
        if events and fingerprint == _fingerprint(file):
            self._kept += 1
            self._masked |= masked
            self._rows["events"] += events
        elif events:
            self._write("events", file, {"since": since, "until": until}, {_FINGERPRINT: fingerprint})

    def _write(self, table: str, file: Path, values: dict[str, Any], metadata: dict[str, str] | None = None) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_parquet(self._pages(table, file, values), file, metadata)
        self._written += 1

    def _pages(self, table: str, file: Path, values: dict[str, Any]) -> Iterator["pl.DataFrame"]:
        after, full = _FIRST_ID, True
        while full:
            page = self._ask(f"export_{table}", values | {"after": after, "most": _PAGE})
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

    def _ask(self, name: str, values: dict[str, Any]) -> "pl.DataFrame":
        """Return the rows of a named query; one that finds the server away or busy is asked again."""
        for tries_left in reversed(range(_TRIES)):
            try:
                return named(self._connection, name, values)
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


def _weeks(since: datetime, until: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Cut a month, and whatever lies before it, into spans that are short enough for one statement."""
    start = since
    for days in (28, 21, 14, 7, 0):
        end = until - timedelta(days=days)
        if end > start:
            yield start, end
            start = end


def _fingerprint(file: Path) -> str | None:
    """Return what a parquet file says about its contents, if it is there and whole."""
    import polars as pl

    if not file.exists():
        return None
    try:
        return pl.read_parquet_metadata(file).get(_FINGERPRINT)
    except pl.exceptions.PolarsError:
        return None
