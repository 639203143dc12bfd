"""The format of parts: Parquet files of events, sorted by contact and moment.

A file has the events of one bucket of contacts and of one partition of `events`. Its rows are sorted by (contact,
occurred_at, id), so a report over all contacts reads them once, without a sort and without a hash table. Several files
of a bucket and month may overlap: a reader merges them.

| column | type | |
|---|---|---|
| `contact` | int64 | `contacts.number` |
| `event` | int32 | `event_numbers.number` |
| `occurred_at`, `created_at` | int64 | microseconds since the epoch |
| `stored_in` | int64 | the number of the transaction |
| `id` | 16 bytes | |
| `payload` | string | the text of the jsonb |
| `number:K` | int64 | the value of the payload's key K in millionths, if this holds it exactly |
| `json:K` | string | its JSON text; null if there is no such key, or if it is the shortest form of `number:K` |

A key has its two columns if it was among those that the organization's events have most often; the names are in the
metadata of the file. The text of an object or an array is only its bracket: its value is read from the payload.
"""

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, TypeVarTuple
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from api.clock import token
from api.private_files import read, read_or_create
from api.store.parts import PartFile, cut_texts

ROW_GROUP_ROWS = 65_536
CHUNK_ROWS = 131_072  # held in memory at a time while files are merged
READ_ROWS = 16_384  # of a file at a time
MAX_KEYS = 32
MILLIONTHS = 6
TEMPORARY = ".tmp"
_KEYS = b"keys"
_COLUMNS = (
    pa.field("contact", pa.int64(), nullable=False),
    pa.field("event", pa.int32(), nullable=False),
    pa.field("occurred_at", pa.int64(), nullable=False),
    pa.field("created_at", pa.int64(), nullable=False),
    pa.field("stored_in", pa.int64(), nullable=False),
    pa.field("id", pa.binary(16), nullable=False),
    pa.field("payload", pa.string(), nullable=False),
)
_WORD_BYTES = 8  # names are compared 8 bytes at a time
_threads = ThreadPoolExecutor(4, "parts")  # of their own, because a mounted folder may keep them for long
_NUMBER = r"^-?\d{1,12}(\.\d{1,6})?$"  # jsonb writes numbers without exponents


Found = TypeVar("Found")
Arguments = TypeVarTuple("Arguments")


class DamagedFileError(Exception):
    """A file cannot be read, although it has its size."""


async def look(read: Callable[[*Arguments], Found], *arguments: *Arguments) -> Found:
    """Return what a function finds in the folder. The event loop does its other work meanwhile."""
    return await asyncio.get_running_loop().run_in_executor(_threads, read, *arguments)


def folder(data_dir: Path, org_id: int) -> Path:
    return data_dir / "parts" / str(org_id)


def make_folder_id(data_dir: Path) -> str:
    """Return the id of the folder with all parts, which is made once: the database knows which folder has its files."""
    return read_or_create(data_dir / "parts" / "id", str(UUID(bytes=token(16))))


def find_folder_id(data_dir: Path) -> str | None:
    """Return the id of the folder with all parts, or None before the first build in it."""
    stored = read(data_dir / "parts" / "id")
    return stored.strip() if stored is not None else None


def path(data_dir: Path, org_id: int, file: str) -> Path:
    """Return the path of a file; `file` is its UUID."""
    return folder(data_dir, org_id) / f"{UUID(file).hex}.parquet"


def list_files(data_dir: Path, org_id: int) -> list[Path]:
    """Return all files of an organization in the folder, whether they are valid or not."""
    own = folder(data_dir, org_id)
    return [file for file in own.iterdir() if file.is_file()] if own.is_dir() else []


def has_any(data_dir: Path) -> bool:
    """Return whether any organization has a file in the folder."""
    return any((data_dir / "parts").glob("*/*.parquet"))


def schema(keys: Sequence[str]) -> pa.Schema:
    """Return the schema of files with columns for these keys of payloads."""
    typed = [
        field for key in keys for field in (pa.field(f"number:{key}", pa.int64()), pa.field(f"json:{key}", pa.string()))
    ]
    return pa.schema([*_COLUMNS, *typed], {_KEYS: json.dumps(list(keys)).encode()})


def keys_of(file: pa.Schema | pq.FileMetaData) -> tuple[str, ...]:
    """Return the keys of payloads that have columns of their own in a file, given by its schema or its footer."""
    return tuple(json.loads((file.metadata or {}).get(_KEYS, b"[]")))


# --- Columns of payloads


def common_keys(payloads: pa.StringArray, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return up to `MAX_KEYS` keys: the known ones, then others that at least one in a hundred payloads has."""
    decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
    counts = Counter(itertools.chain.from_iterable(map(decoder.decode, payloads.to_pylist())))
    least = max(len(payloads) // 100, 1)
    added = [key for key, count in counts.most_common() if count >= least and key not in known]
    return (*known, *added)[:MAX_KEYS]


def typed_columns(payloads: pa.StringArray, keys: Sequence[str]) -> list[pa.Array]:
    """Return the columns `number:K` and `json:K` of each key, in the order of `schema`.

    The texts are those of jsonb, with a blank after each colon and comma. Without backslashes and inner objects, their
    quotes alone say where names and values are, so the values of a whole column are cut out at once. Decoding payloads
    one by one takes three times as long, and is left for the others.
    """
    if not keys or not len(payloads):
        return [array for key in keys for array in (pa.nulls(0, pa.int64()), pa.nulls(0, pa.string()))]
    is_plain = _is_plain(payloads)
    is_other = pa.array(~is_plain)
    decoded = None if is_plain.all() else _decoded_values(payloads.filter(is_other), keys)
    columns: list[pa.Array] = []
    for position, values in enumerate(_plain_values(payloads, is_plain, keys)):
        texts = values if decoded is None else pc.replace_with_mask(values, is_other, decoded[position])
        columns += _typed(texts)
    return columns


def _is_plain(payloads: pa.StringArray) -> np.ndarray:
    """Return which payloads have no backslash and no inner object."""
    _, content = _offsets_and_bytes(payloads)
    is_plain = np.ones(len(payloads), bool)
    for character, expected in ("\\", 0), ("{", 1):
        found = np.count_nonzero(content == ord(character))
        if found != expected * len(payloads):
            is_plain &= pc.count_substring(payloads, character).to_numpy() == expected
    return is_plain


def _plain_values(payloads: pa.StringArray, is_plain: np.ndarray, keys: Sequence[str]) -> Iterator[pa.StringArray]:
    """Yield a column for each key: the JSON text of its value in each payload, "" without the key, "[" for an array."""
    has_members = is_plain & (pc.binary_length(payloads).to_numpy() > len("{}"))
    rows = np.flatnonzero(has_members)
    _, content = _offsets_and_bytes(payloads if len(rows) == len(payloads) else payloads.filter(pa.array(has_members)))
    # As if another payload followed, and with room for the last word.
    content = np.append(content, np.frombuffer(b'{"' + bytes(_WORD_BYTES), np.uint8))
    quotes = np.flatnonzero(content == ord('"'))
    closing = np.arange(1, len(quotes) - 1, 2)
    closing = closing[content[quotes[closing] + 1] == ord(":")]  # of names
    names, ends = quotes[closing - 1] + 1, quotes[closing]
    row = rows[np.cumsum(content[names - 2] == ord("{")) - 1]
    starts = ends + len('": ')
    firsts = content[starts]
    # A comma and a blank, or two braces, are between a value without quotes and the next one.
    stops = np.where(firsts == ord('"'), quotes[np.minimum(closing + 2, len(quotes) - 1)] + 1, quotes[closing + 1] - 2)
    stops = np.where(firsts == ord("["), starts + 1, stops)
    words = np.ndarray(len(content) - _WORD_BYTES, np.uint64, content, strides=(1,))  # that begin at each byte
    beginnings, lengths = words[names], ends - names
    all_bytes = pa.py_buffer(content)
    even = pa.array(np.arange(0, 2 * len(payloads), 2, dtype=np.int32))
    for key in keys:
        name = key.encode()
        found = np.flatnonzero((lengths == len(name)) & (beginnings & _mask(len(name)) == _word(name)))
        for place in range(_WORD_BYTES, len(name), _WORD_BYTES):
            found = found[words[names[found] + place] & _mask(len(name) - place) == _word(name[place:])]
        # Values and what is between them are elements of one array; a row without the key has an empty value.
        bounds = np.zeros(2 * len(payloads) + 1, np.int32)
        bounds[2 * row[found]], bounds[2 * row[found] + 1], bounds[-1] = starts[found], stops[found], len(content)
        both = pa.StringArray.from_buffers(2 * len(payloads), pa.py_buffer(np.maximum.accumulate(bounds)), all_bytes)
        yield both.take(even)


def _word(text: bytes) -> np.uint64:
    return np.uint64(int.from_bytes(text[:_WORD_BYTES].ljust(_WORD_BYTES, b"\0"), sys.byteorder))


def _mask(length: int) -> np.uint64:
    return _word(b"\xff" * length)


def _offsets_and_bytes(texts: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of texts and their bytes, which begin at the first bound."""
    offsets = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset :][: len(texts) + 1]
    content = np.frombuffer(texts.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
    return offsets - offsets[0], content


def _decoded_values(payloads: pa.StringArray, keys: Sequence[str]) -> list[pa.StringArray]:
    """Return a column for each key: the JSON text of its value in each payload, "" without the key."""
    decoder, absent = msgspec.json.Decoder(dict[str, msgspec.Raw]), msgspec.Raw()
    rows = [decoder.decode(payload) for payload in payloads.to_pylist()]
    columns = ([row.get(key, absent) for row in rows] for key in keys)
    return [cut_texts(b"".join(values), np.fromiter(map(len, values), np.int32)) for values in columns]


def _typed(texts: pa.StringArray) -> list[pa.Array]:
    """Return the two columns of a key; its values are JSON texts, empty where it is absent."""
    offsets, content = _offsets_and_bytes(texts)
    content = np.append(content, np.uint8(0))
    is_null = offsets[1:] == offsets[:-1]
    firsts = np.where(is_null, 0, content[offsets[:-1]])
    is_container = (firsts == ord("{")) | (firsts == ord("["))
    numbers = pa.nulls(len(texts), pa.int64())
    positions = np.flatnonzero(((firsts >= ord("0")) & (firsts <= ord("9"))) | (firsts == ord("-")))
    if len(positions):
        found = texts.take(pa.array(positions))
        fits = pc.match_substring_regex(found, _NUMBER).to_numpy(zero_copy_only=False)
        found, positions = found.filter(pa.array(fits)), positions[fits]
        unscaled = np.zeros(len(texts), np.int64)
        # Decimals are pairs of 64-bit words; these fit into the lower one.
        unscaled[positions] = np.frombuffer(found.cast(pa.decimal128(38, MILLIONTHS)).buffers()[1], np.int64)[::2]
        is_other = np.ones(len(texts), bool)
        is_other[positions] = False
        numbers = pa.array(unscaled, mask=is_other)
        # 12.50 keeps its text: the shortest form of the number is 12.5.
        is_shortest = ~pc.match_substring_regex(found, r"\.\d*0$").to_numpy(zero_copy_only=False)
        is_null[positions[is_shortest]] = True
    if is_container.any():
        texts = pc.if_else(pa.array(is_container), pc.utf8_slice_codeunits(texts, 0, 1), texts)
    return [numbers, pc.if_else(pa.array(is_null), pa.scalar(None, pa.string()), texts)]


# --- Tables


def sort(table: pa.Table) -> pa.Table:
    """Sort events by contact, moment and id."""
    contact = table["contact"].to_numpy()
    occurred_at = table["occurred_at"].to_numpy()
    order = np.lexsort((occurred_at, contact))
    contact, occurred_at = contact[order], occurred_at[order]
    equal = (contact[1:] == contact[:-1]) & (occurred_at[1:] == occurred_at[:-1])
    if equal.any():  # rare: only then the ids decide
        ids = _ids(table["id"])[order]
        order = order[np.lexsort((ids[:, 1], ids[:, 0], occurred_at, contact))]
    return table.take(pa.array(order))


def _ids(column: pa.ChunkedArray) -> np.ndarray:
    """Return each id as two numbers. Pairs sort as the bytes of the ids do."""
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    raw = np.frombuffer(array.buffers()[1], ">u8")[2 * array.offset :][: 2 * len(array)]
    return raw.reshape(-1, 2)


def split(table: pa.Table, buckets: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the events of each bucket."""
    if buckets == 1:
        yield 0, table
        return
    bucket_of = table["contact"].to_numpy() % buckets
    for bucket in np.unique(bucket_of):
        yield int(bucket), table.filter(pa.array(bucket_of == bucket))


# --- Files


class FileWriter:
    """Writes a file under a temporary name; `finish` flushes it to the disk and gives it its name."""

    def __init__(self, target: Path, keys: Sequence[str], file: str, bucket: int, month: str) -> None:
        """Begin to write `target`, which will be the file `file` of a bucket and month."""
        self._target = target
        self._file, self._bucket, self._month = file, bucket, month
        self._temporary = target.with_suffix(TEMPORARY)
        self._rows = 0
        self._bounds: list[tuple[int, int]] = []
        self._writer = pq.ParquetWriter(
            self._temporary,
            schema(keys),
            compression="zstd",  # at level 6, payloads need a fifth less, and a file takes twice as long to write
            use_dictionary=["event", *(f"json:{key}" for key in keys)],
            column_encoding=dict.fromkeys(
                ("contact", "occurred_at", "created_at", "stored_in", *(f"number:{key}" for key in keys)),
                "DELTA_BINARY_PACKED",
            ),
            store_schema=True,
        )

    def write(self, table: pa.Table) -> None:
        """Append sorted events, which come after all events before."""
        bounds = pc.min_max(table["occurred_at"])
        self._bounds.append((bounds["min"].as_py(), bounds["max"].as_py()))
        self._rows += table.num_rows
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def finish(self) -> PartFile:
        """Flush the file, give it its name, and return what is listed of it."""
        self._writer.close()
        with self._temporary.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").digest()
            os.fsync(content.fileno())
            size = os.fstat(content.fileno()).st_size
        self._temporary.rename(self._target)
        firsts, lasts = zip(*self._bounds, strict=True)
        return PartFile(self._file, self._bucket, self._month, self._rows, size, min(firsts), max(lasts), sha256)

    def abandon(self) -> None:
        """Remove what was written so far, also if it is finished."""
        with contextlib.suppress(OSError):
            self._writer.close()
        self._temporary.unlink(missing_ok=True)
        self._target.unlink(missing_ok=True)


def flush_folder(target: Path) -> None:
    """Flush the names of new files to the disk."""
    descriptor = os.open(target, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Raise DamagedFileError for errors of the format; those of the system have a number."""
    try:
        yield
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DamagedFileError(f"{source} is damaged: {error}") from error


def has_contacts(source: Path, numbers: np.ndarray) -> bool:
    """Return whether a file has events of any of these contacts. Raises DamagedFileError.

    `numbers`: the numbers of the contacts, ascending.
    """
    with _reading(source), pq.ParquetFile(source) as file:
        for group in range(file.num_row_groups):
            bounds = file.metadata.row_group(group).column(0).statistics
            first, last = np.searchsorted(numbers, bounds.min), np.searchsorted(numbers, bounds.max, "right")
            if first == last:
                continue
            contacts = file.read_row_group(group, columns=["contact"])["contact"].to_numpy()
            if len(np.intersect1d(numbers[first:last], contacts)):
                return True
    return False


def merge(sources: Sequence[Path], keys: Sequence[str], without: np.ndarray | None = None) -> Iterator[pa.Table]:
    """Yield the events of sorted files in their common order, in tables of about `CHUNK_ROWS` rows.

    `without`: numbers of contacts whose events are left out. All events of a contact are in one table, so a contact
    with very many events needs that much memory. Raises DamagedFileError.
    """
    runs = [_Run(source, keys, without) for source in sources]
    while remaining := [run for run in runs if run.fill(CHUNK_ROWS // len(runs) + 1)]:
        # Everything up to here is in memory: no run has events before the end of what it has read.
        open_ends = [run.last_contact for run in remaining if not run.is_exhausted]
        bound = min(open_ends) if open_ends else None
        tables = [run.take(bound) for run in remaining]
        if any(table.num_rows for table in tables):
            yield sort(pa.concat_tables(tables))
        elif bound is not None:  # one contact fills what was read of this file
            for run in remaining:
                if not run.is_exhausted and run.last_contact == bound:
                    run.read_more()


class _Run:
    """A sorted file that is read from its beginning to its end."""

    def __init__(self, source: Path, keys: Sequence[str], without: np.ndarray | None) -> None:
        self._source = source
        with _reading(source):
            self._file = pq.ParquetFile(source, pre_buffer=False)
        self._keys = keys
        own_keys = keys_of(self._file.schema_arrow)
        self._is_typed = own_keys == tuple(keys)
        names = schema(keys).names if self._is_typed else [field.name for field in _COLUMNS]
        self._batches = self._file.iter_batches(READ_ROWS, columns=names, use_threads=False)
        self._without = without
        self._rows = schema(keys).empty_table()
        self.is_exhausted = False

    @property
    def last_contact(self) -> int:
        contact: int = self._rows["contact"][-1].as_py()
        return contact

    def fill(self, rows: int) -> bool:
        """Read until this many rows are in memory; return whether there is any row."""
        while self._rows.num_rows < rows and not self.is_exhausted:
            self.read_more()
        return bool(self._rows.num_rows)

    def read_more(self) -> None:
        """Read the next rows that are not left out."""
        while (batch := self._next_batch()) is not None:
            table = pa.Table.from_batches([batch])
            if self._without is not None:
                kept = ~np.isin(table["contact"].to_numpy(), self._without)
                table = table if kept.all() else table.filter(pa.array(kept))
            if not table.num_rows:
                continue
            if not self._is_typed:
                table = with_typed_columns(table, self._keys)
            self._rows = pa.concat_tables([self._rows, table.cast(self._rows.schema)])
            return
        self.is_exhausted = True
        self._file.close()

    def _next_batch(self) -> pa.RecordBatch | None:
        with _reading(self._source):
            return next(self._batches, None)

    def take(self, bound: int | None) -> pa.Table:
        """Remove the rows of contacts before `bound` (None: all) from memory and return them."""
        contacts = self._rows["contact"].to_numpy()
        count = len(contacts) if bound is None else int(np.searchsorted(contacts, bound))
        taken, self._rows = self._rows.slice(0, count), self._rows.slice(count).combine_chunks()
        return taken


def with_typed_columns(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return events without columns of payloads, with those of these keys."""
    payloads = table["payload"].combine_chunks()
    # In pieces, because arrays of the quotes of all payloads would be mapped anew by each pass over them.
    starts = range(0, max(len(payloads), 1), READ_ROWS)
    pieces = [typed_columns(payloads.slice(start, READ_ROWS), keys) for start in starts]
    return pa.table([*table.columns, *map(pa.chunked_array, zip(*pieces, strict=True))], schema(keys))
