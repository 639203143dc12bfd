"""The last measurements as JSON in `build/bench`, one file per part: rows with their verdict, and raw slices."""

import os
import platform
import time
from pathlib import Path

import msgspec

from bench.effort import Measurement
from bench.figures import Slice
from bench.table import Row

FOLDER = Path("build/bench")


class Record(msgspec.Struct, frozen=True):
    """One run of one part."""

    part: str
    at: str  # UTC
    machine: str
    is_met: dict[str, bool]  # by name of the row, for rows with a promise
    rows: list[Row]
    slices: dict[str, list[Slice]]


def keep(part: str, measured: Measurement, folder: Path = FOLDER) -> None:
    """Write the record of a part; it replaces the previous one."""
    record = Record(
        part,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        machine(),
        {row.name.strip(): row.is_met for row in measured.rows if row.is_met is not None},
        measured.rows,
        measured.slices,
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.json").write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1))


def last(part: str, folder: Path = FOLDER) -> Record | None:
    """Return the last record of a part, if it was ever measured."""
    path = folder / f"{part}.json"
    return msgspec.json.decode(path.read_bytes(), type=Record) if path.exists() else None


def machine() -> str:
    """Return the properties of the machine on which the figures depend most."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}"
