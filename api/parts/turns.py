"""Turns and progress of reports that are counted over parts: lock files in the folder `reports` of the data folder.

One report of an organization is counted at a time, and two of all. A process that counts holds the lock of its
organization's file, in which it notes the buckets that it has counted, and of one of the files that all share. So every
API process of the data folder can say how far a report is. The system releases the locks of a process that is killed.

The folder is not in that of the parts, because machines may share those, while the limit is one of this machine.
"""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from api.private_files import make_folder
from workbench.language.reports import ReportProgress

MAX_PROCESSES = 2  # of all API processes that share a data folder
TURN_WAIT_S = 5.0
_TURN_INTERVAL_S = 0.02
_PROGRESS_BYTES = 1_000
_NOTHING = ReportProgress()


class CountingBusyError(Exception):
    """Other reports are being counted."""


@asynccontextmanager
async def turn(data_dir: Path, org_id: int, wait_s: float = TURN_WAIT_S) -> AsyncIterator[None]:
    """Hold the locks of a process that counts for an organization.

    If this process is killed, the system ends that one as well. Raises CountingBusyError if others hold the locks for
    too long, and OSError.
    """
    folder = make_folder(data_dir / "reports")
    locks: list[int] = []
    try:
        try:
            async with asyncio.timeout(wait_s):
                locks.append(await _lock([progress_file(data_dir, org_id)]))
                os.ftruncate(locks[0], 0)
                locks.append(await _lock(folder / f"process-{number}" for number in range(MAX_PROCESSES)))
        except TimeoutError:
            raise CountingBusyError("other reports are being counted") from None
        yield
    finally:
        for descriptor in locks:
            os.close(descriptor)


async def _lock(paths: Iterable[Path]) -> int:
    """Return a descriptor that locks the first of some files to become free."""
    paths = list(paths)
    while True:
        for path in paths:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # NFS locks no file that is open for reading only
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
            else:
                return descriptor
        await asyncio.sleep(_TURN_INTERVAL_S)


def progress_file(data_dir: Path, org_id: int) -> Path:
    """Return the file that is locked while a report of the organization is counted."""
    return data_dir / "reports" / str(org_id)


def write_progress(data_dir: Path, org_id: int, progress: ReportProgress) -> None:
    """Note how far the report is that is being counted."""
    descriptor = os.open(progress_file(data_dir, org_id), os.O_WRONLY)
    try:
        os.pwrite(descriptor, msgspec.json.encode(progress) + b"\n", 0)
    finally:
        os.close(descriptor)


def read_progress(data_dir: Path, org_id: int) -> ReportProgress:
    """Return how far the report is that is being counted for an organization; without a name if there is none."""
    try:
        descriptor = os.open(progress_file(data_dir, org_id), os.O_RDONLY)
    except FileNotFoundError:
        return _NOTHING
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        line, _, _ = os.pread(descriptor, _PROGRESS_BYTES, 0).partition(b"\n")
        return msgspec.json.decode(line, type=ReportProgress) if line else _NOTHING
    finally:
        os.close(descriptor)
    return _NOTHING  # nothing is being counted
