"""One read of events into polars in a separate process, which takes a `ReadArguments` (JSON) and prints a `Read`.

`frame` reads with `wb.sql`. `stream` reads the same frame by frame and keeps none. `adbc` reads directly with the Arrow
driver; columns for which Arrow has no type are cast to text, so that the frame is the same.
"""

import sys
import time
from collections.abc import Callable
from typing import Literal

import msgspec
import polars as pl

from bench.processes import peak_memory
from workbench import Workbench

_OURS = "SELECT id, contact_id, event, occurred_at, created_at, payload, idempotency_key FROM app_events LIMIT :rows"
_DIRECT = """
    SELECT id::text, contact_id::text, event, occurred_at, created_at, payload::text AS payload, idempotency_key
    FROM workbench.events WHERE org_id = 1 LIMIT {rows}"""


class ReadArguments(msgspec.Struct, frozen=True):
    """What to read, and whether with `url` and `key` or with `dsn`."""

    how: Literal["frame", "stream", "adbc"]
    rows: int
    url: str
    key: str
    dsn: str


class ReadResult(msgspec.Struct, frozen=True):
    """Seconds from the query to the frame, CPU seconds, the size of the frame and the peak memory, in bytes."""

    rows: int
    seconds: float
    cpu: float
    frame_bytes: int
    peak_bytes: int
    schema: str


def _frame(arguments: ReadArguments) -> Callable[[], pl.DataFrame]:
    wb = Workbench(arguments.url, arguments.key)
    wb.sql("SELECT 1 AS one")
    return lambda: wb.sql(_OURS, rows=arguments.rows)


def _stream(arguments: ReadArguments) -> Callable[[], pl.DataFrame]:
    wb = Workbench(arguments.url, arguments.key)
    wb.sql("SELECT 1 AS one")

    def rows() -> pl.DataFrame:
        heights = [frame.height for frame in wb.sql(_OURS, stream=True, rows=arguments.rows)]
        return pl.DataFrame({"height": heights})

    return rows


def _adbc(arguments: ReadArguments) -> Callable[[], pl.DataFrame]:
    from adbc_driver_postgresql import dbapi

    connection = dbapi.connect(arguments.dsn)
    cursor = connection.cursor()
    cursor.execute("SET timezone = 'UTC'")

    def rows() -> pl.DataFrame:
        cursor.execute(_DIRECT.format(rows=arguments.rows))
        return pl.DataFrame(pl.from_arrow(cursor.fetch_arrow_table()))

    return rows


_WAYS = {"frame": _frame, "stream": _stream, "adbc": _adbc}


def _carry_out(arguments: ReadArguments) -> ReadResult:
    read = _WAYS[arguments.how](arguments)
    cpu, begun = time.process_time(), time.perf_counter()
    frame = read()
    seconds = time.perf_counter() - begun
    rows = sum(frame["height"].to_list()) if arguments.how == "stream" else frame.height
    return ReadResult(
        rows,
        seconds,
        time.process_time() - cpu,
        int(float(frame.estimated_size())),
        peak_memory("self"),
        str(frame.schema),
    )


if __name__ == "__main__":
    print(msgspec.json.encode(_carry_out(msgspec.json.decode(sys.argv[1], type=ReadArguments))).decode())
