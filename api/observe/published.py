"""The numbers of every process of this machine, as files of the data folder that are replaced once a second.

A file that is older than SILENT_SECONDS is one of a process that is gone or stands still; it is not counted any more, and
removed by the next process that starts.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

from api.observe.process import Process

EVERY_SECONDS = 1.0
SILENT_SECONDS = 15.0
_ENDING = ".prom"

_log = logging.getLogger("workbench.observe")


def folder_in(data_dir: Path) -> Path:
    """Return the folder of the files."""
    return data_dir / "metrics"


async def keep_published(process: Process, folder: Path) -> None:
    """Write the numbers of this process again and again, until cancelled; then there are none of it."""
    file = folder / f"{process.name}{_ENDING}"
    try:
        _prepare(folder)
        while True:
            _replace(file, process.text())
            await asyncio.sleep(EVERY_SECONDS)
    except OSError as error:
        _log.warning("metrics_not_published", extra={"reason": error.strerror})
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def read_published(folder: Path) -> Iterator[tuple[str, str]]:
    """Give name and text of every process that lives."""
    for file in sorted(folder.glob(f"*{_ENDING}")):
        with contextlib.suppress(OSError):
            if not _is_silent(file):
                yield file.stem, file.read_text("utf-8")


def _replace(file: Path, text: bytes) -> None:
    new = file.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_bytes(text)
    new.replace(file)


def _prepare(folder: Path) -> None:
    """Make the folder, and take out what processes left there that are gone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in folder.iterdir():
        with contextlib.suppress(OSError):
            if _is_silent(file):
                file.unlink()


def _is_silent(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > SILENT_SECONDS  # noqa: TID251  the file system's clock, not the database's
