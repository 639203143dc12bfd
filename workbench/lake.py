"""A copy of all events on this machine, for questions that a server should not be asked: `wb.lake()`.

The service keeps an organization's events in files (docs/parts.md). A sync downloads those that are missing, deletes
those that are no longer valid, and reads the events that are not in files yet; everything is of one snapshot. Each file
is written again in a form that any tool reads: names instead of numbers, moments, ids, and two columns for each of the
most frequent keys of payloads. Events of contacts that were erased or merged since a file was made are removed from its
copy, and come with the events that are not in files.

    events/<file>.parquet   one for each file of the service      downloads/   what is being downloaded
    events/tail.parquet     the events that are not in files      contacts/    the ids of contacts, by their numbers
    spill-*/                what a query of DuckDB has no memory for, until it ends

A file appears when it is complete, so a sync that was interrupted continues. Only its owner can read the copy.
"""

import hashlib
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import polars as pl

from workbench import environment
from workbench.account import caller
from workbench.connection import Connection
from workbench.display.html import ProgressLine, printable_text
from workbench.errors import (
    InvalidArgumentError,
    MissingDependencyError,
    NotFoundError,
    SqlError,
    StoppedError,
    UnknownOutcomeError,
    usage_example,
)
from workbench.language.codec import decode
from workbench.language.responses import LakeFile, LakeManifest
from workbench.sql import CutShortError, batches, write_parquet

_TAIL = "tail"
_CHUNK_ROWS = 200_000  # in memory at a time
_MAX_KEYS, _SAMPLED_ROWS = 32, 2_000  # of payloads; as the service chooses them for its files
_ATTEMPTS = 5  # the service merges files now and then, and a listed one may be gone
_LOCK_TIMEOUT_S = 3_600.0
_SPILL, _SPILL_S = "spill-", 86_400.0  # a query takes less than a day
_NUMBER = pl.Decimal(38, 18)
_MILLIONTH = pl.lit(Decimal("0.000001"))
_MOMENTS = ("occurred_at", "created_at")
_COLUMNS = ("id", "contact_id", "contact", "event", *_MOMENTS, "payload")


class Lake:
    """All events at `watermark`, in Parquet files in `folder`.

    The next sync replaces files, also for frames that were not collected before it.
    """

    def __init__(self, folder: Path, watermark: str, rows: int) -> None:
        self.folder, self.watermark, self.rows = folder, watermark, rows

    @property
    def events(self) -> pl.LazyFrame:
        """A row per event. Columns: id, contact_id, contact (a number), event, occurred_at, created_at, payload (JSON).

        For each of the most frequent keys K of payloads also `number_K` (decimal, null for other values) and `text_K`
        (as `payload ->> 'K'`, null for objects and arrays).
        """
        return pl.scan_parquet(self._files())

    @usage_example('wb.lake().sql("select event, count(*) from events group by event")')
    def sql(self, query: str, **values: Any) -> pl.DataFrame:
        """Return the rows of a DuckDB query over the table `events`; `$name` is the value of `name`.

        Moments are in UTC, without a zone. Raises SqlError, and MissingDependencyError without DuckDB.
        """
        try:
            import duckdb
        except ModuleNotFoundError:
            raise MissingDependencyError("SQL over a lake needs DuckDB: pip install 'event-workbench[lake]'") from None
        try:
            with (
                TemporaryDirectory(dir=self.folder, prefix=_SPILL) as spill,
                closing(
                    duckdb.connect(config={"temp_directory": spill, "autoinstall_known_extensions": False})
                ) as database,
            ):
                files = database.read_parquet([str(file) for file in self._files()])
                # For moments with a zone DuckDB needs an extension, which it would download.
                moments = ", ".join(f"make_timestamp(epoch_us({name})) AS {name}" for name in _MOMENTS)
                files.project(f"* REPLACE ({moments})").create_view("events")
                rows = database.sql(query, params=values or None)
                if rows is None:
                    raise InvalidArgumentError("the query returns no rows: write SELECT …")
                return pl.DataFrame(rows)
        except duckdb.Error as error:
            raise SqlError(str(error)) from None

    def _files(self) -> list[Path]:
        return sorted((self.folder / "events").glob("*.parquet"))

    @printable_text
    def __repr__(self) -> str:
        return f"{self.rows:,} events at {self.watermark.partition('~')[0]}, in {self.folder}"


def sync(connection: Connection, path: str | Path | None) -> Lake:
    """Bring the copy in a folder up to date and return it; default: one for each server and organization.

    Raises ConflictError if the service has no copy to give, StoppedError if its files change too often, and OSError.
    """
    if path is None:
        name = hashlib.sha256(f"{connection.url} {caller(connection).organization}".encode()).hexdigest()[:16]
        path = Path.home() / environment.STATE_FOLDER / f"lake-{name}"
    return _Sync(connection, Path(path)).run()


class _Sync:
    """One run, in a folder that no other run uses."""

    def __init__(self, connection: Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._events, self._downloads, self._contacts = (folder / name for name in ("events", "downloads", "contacts"))
        self._progress = ProgressLine()

    def run(self) -> Lake:
        """Wait until no other process syncs this folder, and bring it up to date."""
        for folder in (self._folder, self._events, self._downloads, self._contacts):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # SQLite, because its lock waits with a timeout.
        lock = sqlite3.connect(self._folder / "lock", timeout=_LOCK_TIMEOUT_S, isolation_level=None)
        with closing(lock):
            lock.execute("BEGIN EXCLUSIVE")
            return self._run()

    def _run(self) -> Lake:
        for _ in range(_ATTEMPTS):
            manifest = self._read_tail()
            self._delete_others(manifest)
            try:
                missing = [file for file in manifest.files if not self._copy(file.id).exists()]
                for number, file in enumerate(missing, 1):
                    self._progress.show("Lake: reading", f"file {number} of {len(missing)}", "busy")
                    self._download(file)
            except NotFoundError:
                continue  # it was merged with others, or an erasure replaced it
            return self._write(manifest)
        raise StoppedError(f"The files of the service changed during {_ATTEMPTS} attempts to copy them: try again.")

    def _write(self, manifest: LakeManifest) -> Lake:
        """Write the copies of what was downloaded, and bring the others up to date."""
        downloads = [self._download_of(file.id) for file in manifest.files if not self._copy(file.id).exists()]
        tail = self._download_of(_TAIL)
        contacts = self._read_contacts([*downloads, tail])
        copies = [self._copy(file.id) for file in manifest.files]
        of_files = sorted({key for file in [*downloads, *copies] if file.exists() for key in _keys_of(file)})
        keys = of_files if manifest.files else _common_keys(tail)
        names = {number: name for name, number in manifest.event_numbers.items()}
        outdated = pl.col("contact").is_in(pl.Series(manifest.touched, dtype=pl.Int64).implode())
        for file in manifest.files:
            copy, download = self._copy(file.id), self._download_of(file.id)
            if copy.exists():
                self._update(copy, keys, outdated)
                continue

            def convert(rows: pl.DataFrame) -> pl.DataFrame:
                event = pl.col("event").replace_strict(names, return_dtype=pl.String)
                moments = pl.col(_MOMENTS).cast(pl.Datetime("us", "UTC"))
                return _to_copy(rows.filter(~outdated).with_columns(event, moments), contacts, keys)

            self._rewrite(download, copy, convert)
            download.unlink()
        self._rewrite(tail, self._copy(_TAIL), lambda rows: _to_copy(rows, contacts, keys))
        tail.unlink()
        rows = pl.scan_parquet([*copies, self._copy(_TAIL)]).select(pl.len()).collect().item()
        self._progress.show("Lake", f"{rows:,} events", "good")
        return Lake(self._folder, manifest.watermark, rows)

    # What the service sends

    def _read_tail(self) -> LakeManifest:
        """Read the manifest, and write the events that are not in files into the folder of downloads."""
        with _translate_cut_short(), self._connection.stream_bytes("/lake/events") as (response, pieces):
            self._connection.check(response)
            first: list[bytes] = []
            for piece in pieces:
                first.append(piece)
                if b"\n" in piece:
                    break
            line, _, rest = b"".join(first).partition(b"\n")
            manifest = msgspec.convert(decode(line), LakeManifest)

            def stream() -> Iterator[bytes]:
                yield rest
                yield from pieces

            write_parquet((pl.read_ipc_stream(batch) for batch in batches(stream())), self._download_of(_TAIL))
        return manifest

    def _download(self, file: LakeFile) -> None:
        """Download a file, from where an earlier attempt ended. Raises NotFoundError if it is not valid any more."""
        unfinished, target = self._downloads / f"{file.id}.part", self._download_of(file.id)
        if target.exists():
            return
        size = unfinished.stat().st_size if unfinished.exists() else 0
        if size < file.size:
            headers = {"Range": f"bytes={size}-"} if size else {}
            with self._connection.stream_bytes(f"/lake/files/{file.id}", headers=headers) as (response, pieces):
                self._connection.check(response)
                with unfinished.open("ab" if response.status == 206 else "wb") as output:
                    for piece in pieces:
                        output.write(piece)
        with unfinished.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != file.sha256:
            unfinished.unlink()
            raise UnknownOutcomeError(f"the file {file.id} did not arrive as it was sent: try again")
        unfinished.rename(target)

    def _read_contacts(self, files: Sequence[Path]) -> pl.DataFrame:
        """Return the ids of contacts by their numbers, of at least those in these files."""
        target = self._contacts / "contacts.parquet"
        known = pl.read_parquet(target) if target.exists() else None
        if known is not None and known.height:
            last = known.row(-1)
            added = self._contacts_above(last[0] - 1)
            # A contact keeps its number, unless this is another database behind the same URL.
            known = pl.concat([known.head(-1), added]) if added.height and added.row(0) == last else None
        used = pl.concat([pl.scan_parquet(file).select("contact") for file in files]).unique().collect()
        # A contact may become visible after one with a greater number.
        if known is None or used.join(known, on="contact", how="anti").height:
            known = self._contacts_above(0)
        write_parquet(iter([known]), target)
        return known

    def _contacts_above(self, number: int) -> pl.DataFrame:
        with (
            _translate_cut_short(),
            self._connection.stream_bytes("/lake/contacts", params={"above": number}) as (response, pieces),
        ):
            self._connection.check(response)
            frames = [pl.read_ipc_stream(batch) for batch in batches(pieces)]
        return pl.concat(frames).select("contact", contact_id=_uuid("id")).sort("contact")

    # The copy

    def _copy(self, file: str) -> Path:
        return self._events / f"{file}.parquet"

    def _download_of(self, file: str) -> Path:
        return self._downloads / f"{file}.parquet"

    def _delete_others(self, manifest: LakeManifest) -> None:
        """Delete what the service does not list, first of all: an erasure must reach the copy also on a full disk."""
        listed = {file.id for file in manifest.files} | {_TAIL}
        for folder in (self._events, self._downloads):
            for path in folder.iterdir():
                if path.is_file() and path.stem not in listed:
                    path.unlink()
        for spill in self._folder.glob(f"{_SPILL}*"):
            if environment.now().timestamp() - spill.stat().st_mtime > _SPILL_S:  # its process was killed
                shutil.rmtree(spill, ignore_errors=True)

    def _update(self, copy: Path, keys: Sequence[str], outdated: pl.Expr) -> None:
        """Remove outdated events from a copy, and add columns of keys that became frequent."""
        has_outdated = pl.scan_parquet(copy).filter(outdated).head(1).collect().height
        if has_outdated or set(_keys_of(copy)) != set(keys):
            self._rewrite(copy, copy, lambda rows: _with_keys(rows.filter(~outdated), keys))

    def _rewrite(self, source: Path, target: Path, convert: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
        """Write the rows of a file into a new one, which replaces `target` when it is complete."""
        scanned = pl.scan_parquet(source)
        rows = scanned.select(pl.len()).collect().item()

        def frames() -> Iterator[pl.DataFrame]:
            for start in range(0, max(rows, 1), _CHUNK_ROWS):
                self._progress.show("Lake: writing", f"{start:,} of {rows:,} events", "busy")
                yield convert(scanned.slice(start, _CHUNK_ROWS).collect())

        write_parquet(frames(), target)


@contextmanager
def _translate_cut_short() -> Iterator[None]:
    try:
        yield
    except CutShortError:
        raise UnknownOutcomeError("the connection was lost before the response arrived") from None


# --- Rows


def _to_copy(rows: pl.DataFrame, contacts: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return events as the copy has them. `rows`: with names and moments, and the columns of payloads of a file."""
    rows = rows.join(contacts, on="contact", how="left", maintain_order="left").with_columns(id=_uuid("id"))
    return _with_keys(rows, keys)


def _with_keys(rows: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return events with the two columns of each key of payloads."""
    missing = [key for key in keys if f"json:{key}" not in rows.columns and f"text_{key}" not in rows.columns]
    rows = rows.with_columns(_raw_values(rows["payload"], missing))
    typed = [column for key in keys for column in _key_columns(rows.columns, key)]
    return rows.select(*_COLUMNS, *typed)


def _key_columns(columns: Sequence[str], key: str) -> list[pl.Expr]:
    """Return the columns of a key: its number in millionths, and its JSON text. `columns`: those of the file."""
    names = [f"number_{key}", f"text_{key}"]
    if names[1] in columns:
        return [pl.col(name) for name in names]
    json = pl.col(f"json:{key}")
    quoted = json.str.starts_with('"')
    number = json.cast(_NUMBER, strict=False)
    shortest = pl.lit(None, pl.String)
    if f"number:{key}" in columns:
        exact = (pl.col(f"number:{key}").cast(_NUMBER) * _MILLIONTH).cast(_NUMBER)
        number = pl.coalesce(exact, number)
        shortest = exact.cast(pl.String).str.strip_chars_end("0").str.strip_chars_end(".")
    escaped = quoted & json.str.contains("\\", literal=True)
    unescaped = pl.when(escaped).then(json).str.json_decode(pl.String)  # of the others it decodes nothing
    unquoted = pl.when(escaped).then(unescaped).otherwise(json.str.slice(1, json.str.len_chars() - 2))
    text = (
        pl.when(json.is_null())
        .then(shortest)
        .when(quoted)
        .then(unquoted)
        .when(~json.str.contains(r"^(null|\{|\[)"))
        .then(json)
    )
    return [number.alias(names[0]), text.alias(names[1])]


def _raw_values(payloads: pl.Series, keys: Sequence[str]) -> list[pl.Series]:
    """Return the JSON texts of the values of keys that have no columns yet, as `json:K`."""
    if not keys:
        return []
    decoder, absent = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.Raw()
    rows = [decoder.decode(payload) for payload in payloads]
    return [
        pl.Series(f"json:{key}", [bytes(row.get(key, absent)).decode() or None for row in rows], pl.String)
        for key in keys
    ]


def _keys_of(file: Path) -> list[str]:
    """Return the keys of payloads that have columns in a file of the service, or in a copy."""
    names = pl.read_parquet_schema(file)
    return [name.removeprefix(kind) for name in names for kind in ("json:", "text_") if name.startswith(kind)]


def _common_keys(tail: Path) -> list[str]:
    """Return the most frequent keys of payloads, while the service has no files and so has not chosen any."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    payloads = pl.scan_parquet(tail).select("payload").head(_SAMPLED_ROWS).collect()["payload"]
    counts = Counter(key for payload in payloads for key in decoder.decode(payload))
    return sorted(key for key, count in counts.most_common(_MAX_KEYS) if count >= len(payloads) / 100)


def _uuid(column: str) -> pl.Expr:
    digits = pl.col(column).bin.encode("hex")
    groups = [digits.str.slice(start, length) for start, length in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    return pl.concat_str(groups, separator="-")
