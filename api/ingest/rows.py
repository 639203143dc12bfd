"""Files of history as rows of JSON in the shape of the contract's Event, each with the number of its line.

ndjson has one event per line. Parquet has the columns event, occurred_at, payload and attributes (JSON texts), email,
wallet_address, external_id, idempotency_key; all but event may be missing, and a timestamp without a zone is UTC.
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from api.language.codec import encode, mend_surrogates
from api.language.problem import Problem, Problems

MAX_LINE = 1_048_576  # bytes; the largest valid event is far below
_BATCH = 5_000
_BOM = b"\xef\xbb\xbf"
_COLUMNS = (
    "event",
    "occurred_at",
    "payload",
    "attributes",
    "email",
    "wallet_address",
    "external_id",
    "idempotency_key",
)

Row = tuple[int, bytes | Problems]
"""The number of a line, from 1, and its event as JSON text, or why there is none."""


class UnreadableFileError(Exception):
    """The file as a whole is nothing we can read; the text says why."""


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file, chosen by its name; raise UnreadableFileError."""
    match path.suffix.lower():
        case ".ndjson" | ".jsonl":
            return _ndjson(path)
        case ".parquet":
            return _parquet(path)
        case suffix:
            raise UnreadableFileError(f"{path.name}: {suffix or 'no ending'} is not one of .ndjson, .jsonl, .parquet")


def _ndjson(path: Path) -> Iterator[Row]:
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            if line is None:
                yield number, (Problem("", f"is longer than {MAX_LINE} bytes"),)
            elif text := line.strip(b" \t\r\n"):
                yield number, _checked(text.removeprefix(_BOM) if number == 1 else text)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None for one that is too long to keep."""
    while line := file.readline(MAX_LINE):
        if len(line) < MAX_LINE or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE)
        yield None


def _checked(text: bytes) -> bytes | Problems:
    if not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            return (Problem("", f"is not UTF-8: {error.reason} at byte {error.start + 1}"),)
    return mend_surrogates(text) if b"\\u" in text else text


def _parquet(path: Path) -> Iterator[Row]:
    try:
        with pq.ParquetFile(path) as file:
            columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
            if "event" not in columns:
                raise UnreadableFileError(f"{path.name}: has no column named event")
            batches = map(_readable_times, file.iter_batches(_BATCH, columns=columns))
            for number, record in enumerate(chain.from_iterable(batch.to_pylist() for batch in batches), 1):
                yield number, _raw(record)
    except (pa.ArrowException, OSError) as error:
        raise UnreadableFileError(f"{path.name}: {error}") from error


def _readable_times(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with `occurred_at` in microseconds, UTC: what Python's moments can hold."""
    index = batch.schema.get_field_index("occurred_at")
    if index < 0 or not pa.types.is_temporal(batch.schema.field(index).type):
        return batch
    times = batch.column(index).cast(pa.timestamp("us", "UTC"), safe=False)
    return batch.set_column(index, "occurred_at", times)


def _raw(record: dict[str, Any]) -> bytes | Problems:
    contact = {"email": "email", "walletAddress": "wallet_address", "externalId": "external_id"}
    event = {
        "event": record["event"],
        "contact": {field: record.get(column) for field, column in contact.items()},
        "occurredAt": record.get("occurred_at"),
        "idempotencyKey": record.get("idempotency_key"),
    }
    for field in ("payload", "attributes"):
        value = record.get(field)
        try:
            event[field] = _json_text(value) if isinstance(value, str | bytes) else value
        except (ValueError, RecursionError) as error:
            return (Problem(field, f"malformed JSON: {error}"),)
    return _checked(encode(event))


def _json_text(text: str | bytes) -> msgspec.Raw:
    """Return the text to stand inside another; raise ValueError unless it is exactly one JSON value."""
    return msgspec.json.decode(text, type=msgspec.Raw)
