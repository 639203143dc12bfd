"""Events of files and unfiled rows as the arrays that kernels count: filtered, in one order, with values of payloads.

A bucket is read from several runs, each sorted: the row groups of its files, and its unfiled rows. Events of a
contact at the same microsecond are ordered by id, as in Postgres; the ids are read only where such events are in
different files.
"""

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from api.parts import files
from api.parts.kernels import MILLION, Array, Bucket, Kernel, Numbers, Texts, UncountableError, begins
from api.store.analyst import Snapshot
from api.store.parts import EventPage

_LARGEST, _MOST_DECIMALS = Decimal("1e24"), 100  # numbers beyond are ignored, as in `macros.number` of sql/reports
_NO_END = np.iinfo(np.int64).max
_MILLIONTHS = 6
_MAX_MILLIONTHS = 10**18
_NO_NUMBER = np.iinfo(np.int64).min
_raw_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class ReportedEvents(NamedTuple):
    """Which events a report reads, and which of their values.

    `kernel`: selects the events. A report by segment has a kernel for each; all of them select the same.
    `by`, `value`: paths into the payload. `without`: contacts whose events are all unfiled, ascending. `logs`: the
    numbers of the logs that it counts.
    """

    kernel: Kernel
    since: int
    until: int | None
    by: str | None
    value: str | None
    as_of: Snapshot | None
    without: Array
    logs: Array


class SortedEvents(NamedTuple):
    """Sorted events of consecutive row groups of a file, or unfiled ones. `texts`: numbers of the texts at `by`.

    `rows`: their places in the row groups. `ids`: of unfiled events; those of files are read when they are needed.
    """

    contact: Array
    at: Array
    event: Array
    texts: Array | None
    numbers: Numbers | None
    rows: Array
    ids: Array | None = None
    file: Path | None = None
    row_groups: range = range(0)


def _kept(
    wanted: ReportedEvents, logs: bool, event: Array, at: Array, stored_in: Array | None, without: Array | None
) -> Array:
    """Return the places of events, or logs, that a report reads. `without`: whether one is left out for its contact."""
    kept, kernel = np.isin(event, wanted.logs) if logs else np.ones(len(event), bool), wanted.kernel
    if kernel.events is not None:
        kept &= np.logical_or.reduce([event == number for number in set(kernel.events)])
    if not kernel.history:
        recent = at >= wanted.since
        kept &= recent if kernel.start is None else recent | (event == kernel.start)
    if wanted.until is not None:
        kept &= at < wanted.until
    if wanted.as_of is not None and stored_in is not None:
        kept &= stored_in < wanted.as_of.end
        if wanted.as_of.open:
            kept &= ~np.isin(stored_in, np.array(wanted.as_of.open))
    if without is not None:
        kept &= ~without
    return np.flatnonzero(kept)


# --- From files


class FileRuns:
    """The events of a file that a report reads, from its beginning to its end. Each row group is decoded once."""

    def __init__(self, path: Path, logs: bool, wanted: ReportedEvents, texts: Texts) -> None:
        """Open a file of events, or of logs. Raises OSError, as does `until`."""
        self._path, self._logs, self._wanted, self._texts = path, logs, wanted, texts
        footer = pq.read_metadata(path)
        typed = files.keys_of(footer)
        columns = ["contact", "event", "occurred_at"] + (["stored_in"] if wanted.as_of is not None else [])
        columns = [*dict.fromkeys(columns + _columns_of(wanted.by, typed) + _columns_of(wanted.value, typed))]
        texts_columns = [name for name in columns if name.startswith("json:")]
        self._file = pq.ParquetFile(path, metadata=footer, pre_buffer=False, read_dictionary=texts_columns)
        self._columns = {name: footer.schema.names.index(name) for name in columns}
        self._groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        self._read = 0  # row groups
        self._rest: SortedEvents | None = None

    def lasts(self) -> list[tuple[int, int]]:
        """Return the last contact of each row group, with the number of its rows."""
        return [(group.column(0).statistics.max, group.num_rows) for group in self._groups]

    def until(self, contact: int) -> list[SortedEvents]:
        """Return the events that are not returned yet, of contacts with numbers below this one."""
        runs = [] if self._rest is None else [self._rest]
        begin = self._read
        while self._read < len(self._groups) and self._groups[self._read].column(0).statistics.min < contact:
            self._read += 1
        if self._read > begin:
            runs.append(self._run(range(begin, self._read)))
        if not runs:
            return []
        last = runs[-1]  # only this one may have later contacts
        end = int(np.searchsorted(last.contact, contact))
        runs[-1], self._rest = _cut(last, 0, end), _cut(last, end, len(last.contact))
        return runs

    def _run(self, numbers: range) -> SortedEvents:
        wanted, texts = self._wanted, self._texts
        chunks = {
            name: [self._groups[number].column(column) for number in numbers] for name, column in self._columns.items()
        }
        # A key has two columns. If all its values are texts, the one for numbers is empty; if none is, the other one.
        present = [
            name
            for name, of_column in chunks.items()
            if any(chunk.statistics is None or chunk.statistics.null_count < chunk.num_values for chunk in of_column)
        ]
        # Together, because otherwise a fifth of the time would go into calls.
        table = self._file.read_row_groups(numbers, columns=present, use_threads=False)
        group = _RowGroups(self._file, numbers, table.combine_chunks().to_batches()[0], [*self._columns])
        contact, event, at = (_array(group.batch, name) for name in ("contact", "event", "occurred_at"))
        stored_in = _array(group.batch, "stored_in") if wanted.as_of is not None else None
        without = np.isin(contact, wanted.without) if len(wanted.without) else None
        rows = _kept(wanted, self._logs, event, at, stored_in, without)
        if len(rows) < len(contact):
            contact, event, at = contact[rows], event[rows], at[rows]
        values = None if wanted.by is None else _texts_of(group, wanted.by, event, rows, wanted, texts)
        totals = None if wanted.value is None else _numbers_of(group, wanted.value, event, rows, wanted)
        return SortedEvents(contact, at, event, values, totals, rows, None, self._path, numbers)

    def close(self) -> None:
        self._file.close()


def divide(lasts: Sequence[tuple[int, int]], piece_rows: int) -> list[int]:
    """Divide the contacts of a bucket into pieces with about `piece_rows` events in the files.

    `lasts`: as of `FileRuns`. Returns the numbers at which pieces end: up to one, without it.
    """
    ends, end, rows = [], 0, 0
    for last, more in sorted(lasts):
        rows += more
        if rows >= piece_rows and last >= end:
            ends.append(last + 1)
            end, rows = last + 1, 0
    return [*ends, _NO_END]


class _RowGroups(NamedTuple):
    """Row groups of a file. `batch` has those of their columns in which there is a value."""

    file: pq.ParquetFile
    numbers: range
    batch: pa.RecordBatch
    columns: Sequence[str]

    def column(self, name: str, rows: pa.Array) -> pa.Array | None:
        return self.batch.column(name).take(rows) if name in self.batch.schema.names else None

    def has(self, path: str) -> bool:
        """Return whether the values at a path have columns of their own."""
        return f"number:{path}" in self.columns

    def payloads(self, rows: Array) -> list[str]:
        """Return the payloads of these rows. Their column takes longer to read than all the others together."""
        return [
            payload for values in _values(self.file, self.numbers, "payload", rows) for payload in values.to_pylist()
        ]


def _values(file: pq.ParquetFile, groups: range, column: str, rows: Array) -> Iterator[pa.Array]:
    """Yield the values at ascending places of row groups, of which one is in memory at a time."""
    begin = 0
    for number in groups:
        end = begin + file.metadata.row_group(number).num_rows
        first, last = np.searchsorted(rows, (begin, end))
        if first < last:
            values = file.read_row_group(number, columns=[column], use_threads=False)[column]
            yield values.combine_chunks().take(pa.array(rows[first:last] - begin))
        begin = end


def of_contacts(run: SortedEvents, first: int, end: int) -> SortedEvents:
    """Return the events of the contacts with numbers from `first` up to `end`, without it."""
    return _cut(run, *np.searchsorted(run.contact, (first, end)).tolist())


def _cut(run: SortedEvents, begin: int, end: int) -> SortedEvents:
    """Return the events at the places from `begin` up to `end`."""
    places = slice(begin, end)
    return run._replace(
        contact=run.contact[places],
        at=run.at[places],
        event=run.event[places],
        texts=None if run.texts is None else run.texts[places],
        numbers=None if run.numbers is None else run.numbers.at(np.arange(begin, end)),
        rows=run.rows[places],
        ids=None if run.ids is None else run.ids[places],
    )


def _array(batch: pa.RecordBatch, name: str) -> Array:
    array: Array = batch.column(name).to_numpy()
    return array


def _columns_of(path: str | None, typed: Sequence[str]) -> list[str]:
    if path is None:
        return []
    return [f"number:{path}", f"json:{path}"] if path in typed and "." not in path else []


# --- Values


def _texts_of(group: _RowGroups, path: str, event: Array, rows: Array, wanted: ReportedEvents, texts: Texts) -> Array:
    """Return the numbers of the texts at a path of the payloads, as `->>` gives them."""
    result = np.full(len(rows), -1, np.int64)
    places = np.flatnonzero(event == wanted.kernel.by_event)
    places_in_file = rows[places]
    chosen = pa.array(places_in_file)
    if group.has(path):
        entries, index = _entries(group.column(f"json:{path}", chosen), len(places))
        codes = [-1 if entry in ("{", "[") else texts.number(_text(entry.encode())) for entry in entries]
        found = np.array([*codes, -1], np.int64)[index]
        numbers = group.column(f"number:{path}", chosen)
        if numbers is not None and numbers.null_count < len(numbers):
            different, which = np.unique(numbers.fill_null(_NO_NUMBER).to_numpy(), return_inverse=True)
            codes = [-1 if value == _NO_NUMBER else texts.number(_shortest(int(value))) for value in different]
            found = np.where(index < 0, np.array(codes, np.int64)[which], found)
        if containers := [number for number, entry in enumerate(entries) if entry in ("{", "[")]:
            nested = np.flatnonzero(np.isin(index, containers))
            payloads = group.payloads(places_in_file[nested])
            found[nested] = [texts.number(text_at(payload, path)) for payload in payloads]
    else:
        payloads = group.payloads(places_in_file)
        found = np.array([texts.number(text_at(payload, path)) for payload in payloads], np.int64)
    result[places] = found
    return result


def _entries(column: pa.DictionaryArray | None, length: int) -> tuple[list[str], Array]:
    """Return the different texts of a column, and for each of its places the number of its text, or -1."""
    if column is None:
        return [], np.full(length, -1)
    index = column.indices.fill_null(-1).to_numpy()
    is_used = np.zeros(len(column.dictionary) + 1, bool)
    is_used[index] = True  # by events of other names there may be many more
    is_used = is_used[:-1]
    entries: list[str] = column.dictionary.filter(pa.array(is_used)).to_pylist()
    return entries, np.append(np.cumsum(is_used) - 1, -1)[index]


def _numbers_of(group: _RowGroups, path: str, event: Array, rows: Array, wanted: ReportedEvents) -> Numbers:
    places = np.flatnonzero(event == wanted.kernel.value_event)
    if not group.has(path):
        payloads = group.payloads(rows[places])
        return numbers_of([number_at(payload, path) for payload in payloads], places, len(rows))
    chosen = pa.array(rows[places])
    found = group.column(f"number:{path}", chosen)
    column = np.full(len(places), _NO_NUMBER) if found is None else found.fill_null(_NO_NUMBER).to_numpy()
    millionths, is_exact = np.zeros(len(rows), np.int64), np.zeros(len(rows), bool)
    is_exact[places] = column != _NO_NUMBER
    millionths[places] = np.where(column != _NO_NUMBER, column, 0)
    decimals, others = np.zeros(len(rows), np.int8), {}
    entries, index = _entries(group.column(f"json:{path}", chosen), len(places))
    of_entries = [_number(entry.encode()) for entry in entries]
    for place in np.flatnonzero(index >= 0).tolist():
        number = of_entries[index[place]]
        if number is None:
            continue
        row = int(places[place])
        if is_exact[row]:
            decimals[row] = -int(number.as_tuple().exponent)
        else:
            others[row] = number
    return Numbers(millionths, is_exact, decimals, others)


def numbers_of(values: Sequence[Decimal | None], places: Array, length: int) -> Numbers:
    """Return numbers at some of `length` places."""
    millionths, is_exact = np.zeros(length, np.int64), np.zeros(length, bool)
    decimals, others = np.zeros(length, np.int8), {}
    for place, number in zip(places.tolist(), values, strict=True):
        if number is None:
            continue
        digits = -int(number.as_tuple().exponent)
        if digits <= _MILLIONTHS and abs(number) * MILLION < _MAX_MILLIONTHS:
            millionths[place], is_exact[place], decimals[place] = int(number * MILLION), True, digits
        else:
            others[place] = number
    return Numbers(millionths, is_exact, decimals, others)


def _shortest(millionths: int) -> str:
    """Return a number of millionths as JSON, with no more decimals than it needs."""
    sign, digits = ("-" if millionths < 0 else ""), f"{abs(millionths):07d}"
    return f"{sign}{digits[:-6]}.{digits[-6:]}".rstrip("0").rstrip(".")


def _text(value: bytes) -> str | None:
    """Return a JSON value as Postgres's `->>` does: a text without quotes, null as no text."""
    if value[:1] == b'"':
        return msgspec.json.decode(value, type=str)
    return None if value == b"null" else value.decode()


def _number(value: bytes) -> Decimal | None:
    """Return a JSON number that reports count."""
    if value[:1] not in b"-0123456789" or not value:
        return None
    number = Decimal(value.decode())
    decimals = -int(number.as_tuple().exponent)
    return number if abs(number) < _LARGEST and decimals < _MOST_DECIMALS else None


def text_at(payload: str, path: str) -> str | None:
    """Return the text at a path: of the key with dots in its name, or of the way through objects and arrays."""
    root = _raw_object.decode(payload)
    if "." in path:
        whole = root.get(path)
        text = None if whole is None else _text(bytes(whole))
        if text is not None:
            return text
    value = _way(root, path.split("."))
    return None if value is None else _text(value)


def number_at(payload: str, path: str) -> Decimal | None:
    """Return the number at a path; a key with dots in its name comes first, whatever it has."""
    root = _raw_object.decode(payload)
    whole = root.get(path) if "." in path else None
    value = bytes(whole) if whole is not None else _way(root, path.split("."))
    return None if value is None else _number(value)


_CANONICAL_INDEX = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_ODD_INDEX = re.compile(r"\s*[+-]?[0-9]")


def check_path(path: str | None) -> None:
    """Raise UncountableError for a path that Postgres may read as an index of an array in a form of its own."""
    for name in (path or "").split(".")[1:]:
        if _ODD_INDEX.match(name) and not _CANONICAL_INDEX.fullmatch(name):
            raise UncountableError(f"the path {path!r} has an index of another form")


def _way(root: dict[str, msgspec.Raw], path: Sequence[str]) -> bytes | None:
    value: Any = root.get(path[0])
    for name in path[1:]:
        if value is None:
            return None
        raw = bytes(value)
        if raw[:1] == b"{":
            value = _raw_object.decode(raw).get(name)
        elif raw[:1] == b"[" and _CANONICAL_INDEX.fullmatch(name):
            items = msgspec.json.decode(raw, type=list[msgspec.Raw])
            index = int(name)
            value = items[index] if -len(items) <= index < len(items) else None
        else:
            return None
    return None if value is None else bytes(value)


# --- Unfiled rows


def run_of_page(page: EventPage, names: Texts, wanted: ReportedEvents, texts: Texts, *, touched: bool) -> SortedEvents:
    """Return the unfiled events that a report reads, sorted. `names` gets the numbers of new names."""
    known = page.events.dictionary_encode()
    codes = np.array([names.number(name) for name in known.dictionary.to_pylist()], np.int64)
    event = codes[known.indices.to_numpy()] if len(codes) else np.zeros(0, np.int64)
    without = None if touched or not len(wanted.without) else np.isin(page.contacts, wanted.without)
    rows = _kept(wanted, page.logs, event, page.occurred_at, page.stored_in, without)
    ids = _ids(page.ids)
    order = np.lexsort((ids["low"][rows], ids["high"][rows], page.occurred_at[rows], page.contacts[rows]))
    rows = rows[order]
    payloads = page.payloads
    values = numbers = None
    if wanted.by is not None:
        values = np.full(len(rows), -1, np.int64)
        places = np.flatnonzero(event[rows] == wanted.kernel.by_event)
        values[places] = [texts.number(text_at(payloads[row].as_py(), wanted.by)) for row in rows[places].tolist()]
    if wanted.value is not None:
        places = np.flatnonzero(event[rows] == wanted.kernel.value_event)
        found = [number_at(payloads[row].as_py(), wanted.value) for row in rows[places].tolist()]
        numbers = numbers_of(found, places, len(rows))
    return SortedEvents(page.contacts[rows], page.occurred_at[rows], event[rows], values, numbers, rows, ids[rows])


def _ids(column: pa.FixedSizeBinaryArray | pa.ChunkedArray) -> Array:
    """Return each id as a pair of numbers. Pairs sort as Postgres sorts uuids."""
    column = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
    raw = column.buffers()[1]
    offset = column.offset * 16
    return np.frombuffer(raw, [("high", ">u8"), ("low", ">u8")])[offset // 16 : offset // 16 + len(column)].astype(
        [("high", np.uint64), ("low", np.uint64)]
    )


# --- Merging


def split_run(run: SortedEvents, buckets: int) -> list[SortedEvents]:
    """Return the events of each bucket."""
    bucket = run.contact % buckets
    return [take(run, np.flatnonzero(bucket == number)) for number in range(buckets)]


def take(run: SortedEvents, rows: Array) -> SortedEvents:
    return SortedEvents(
        run.contact[rows],
        run.at[rows],
        run.event[rows],
        None if run.texts is None else run.texts[rows],
        None if run.numbers is None else run.numbers.at(rows),
        run.rows[rows],
        None if run.ids is None else run.ids[rows],
    )


def merged(runs: Sequence[SortedEvents], wanted: ReportedEvents) -> Bucket:
    """Return the events of sorted runs as one bucket, sorted by contact and moment.

    The events of a contact are taken from one run after the other, without comparing single events. They are sorted by
    moment only if the runs of this contact overlap in time.
    """
    runs = [run for run in runs if len(run.contact)]
    if not runs:
        nothing = np.zeros(0, np.int64)
        return Bucket(nothing, nothing, nothing, nothing)
    firsts = [begins(run.contact) for run in runs]
    owner = np.concatenate([run.contact[first] for run, first in zip(runs, firsts, strict=True)])
    size = np.concatenate([np.diff(first, append=len(run.contact)) for run, first in zip(runs, firsts, strict=True)])
    order = np.argsort(owner, kind="stable")  # merges the runs, which are sorted
    sizes, owners = size[order], owner[order]
    starts = np.cumsum(sizes) - sizes
    events, first = int(size.sum()), begins(owners)
    contacts, first = owners[first], starts[first]
    rank = np.repeat(np.arange(len(contacts)), np.diff(first, append=events))

    start = np.empty_like(starts)
    start[order] = starts
    place = np.repeat(start - (np.cumsum(size) - size), size)  # of each event, in the order of runs
    place += np.arange(events)
    at = _scattered([run.at for run in runs], place, np.int64)
    is_late = at[1:] < at[:-1]
    is_late[first[1:] - 1] = False
    if is_late.any():
        is_mixed = np.zeros(len(contacts), bool)
        is_mixed[rank[1:][is_late]] = True
        mixed = np.flatnonzero(is_mixed[rank])
        _reorder(mixed, mixed[np.lexsort((at[mixed], rank[mixed]))], place, at)
    if wanted.kernel.is_ordered:
        is_tied = at[1:] == at[:-1]
        is_tied[first[1:] - 1] = False
        if is_tied.any():
            of_files = {file: number for number, file in enumerate({run.file for run in runs} - {None})}
            source = _scattered(
                [np.full(len(run.at), of_files.get(run.file, -1 - number)) for number, run in enumerate(runs)],
                place,
                np.int64,
            )
            is_mixed = np.zeros(len(contacts), bool)
            is_mixed[rank[1:][is_tied & (source[1:] != source[:-1])]] = True
            tied = np.flatnonzero(np.append(is_tied, False) | np.append(False, is_tied))
            tied = tied[is_mixed[rank[tied]]]
            if len(tied):
                high, low = _ids_of(runs, place, tied)
                _reorder(tied, tied[np.lexsort((low, high, at[tied], rank[tied]))], place, at)
    texts = [run.texts for run in runs if run.texts is not None]
    return Bucket(
        contacts,
        rank,
        at,
        _scattered([run.event for run in runs], place, np.int32),
        _scattered(texts, place, np.int64) if texts else None,
        _scattered_numbers([run.numbers for run in runs if run.numbers is not None], place),
    )


def _scattered(arrays: Sequence[Array], place: Array, kind: npt.DTypeLike) -> Array:
    """Return the values of arrays, one after the other, at their places."""
    result, begin = np.empty(len(place), kind), 0
    for array in arrays:
        result[place[begin : begin + len(array)]] = array
        begin += len(array)
    return result


def _scattered_numbers(blocks: Sequence[Numbers], place: Array) -> Numbers | None:
    if not blocks:
        return None
    others: dict[int, Decimal] = {}
    begin = 0
    for block in blocks:
        others |= {int(place[begin + row]): number for row, number in block.others.items()}
        begin += len(block.is_exact)
    return Numbers(
        _scattered([block.millionths for block in blocks], place, np.int64),
        _scattered([block.is_exact for block in blocks], place, bool),
        _scattered([block.decimals for block in blocks], place, np.int8),
        others,
    )


def _reorder(targets: Array, sources: Array, place: Array, at: Array) -> None:
    """Move events from some places to others, in `place` and in `at`."""
    moved = np.arange(len(at))
    moved[sources] = targets
    place[:] = moved[place]
    at[targets] = at[sources]


def _ids_of(runs: Sequence[SortedEvents], place: Array, chosen: Array) -> tuple[Array, Array]:
    """Return the ids of events, given by ascending places, as two arrays. Raises OSError."""
    is_chosen = np.zeros(len(place), bool)
    is_chosen[chosen] = True
    high, low = np.empty(len(chosen), np.uint64), np.empty(len(chosen), np.uint64)
    begin = 0
    for run in runs:
        places = place[begin : begin + len(run.contact)]
        begin += len(run.contact)
        own = np.flatnonzero(is_chosen[places])
        if not len(own):
            continue
        if run.ids is not None:
            ids = run.ids[own]
        else:
            assert run.file is not None
            with pq.ParquetFile(run.file) as file:
                ids = np.concatenate([_ids(values) for values in _values(file, run.row_groups, "id", run.rows[own])])
        targets = np.searchsorted(chosen, places[own])
        high[targets], low[targets] = ids["high"], ids["low"]
    return high, low
