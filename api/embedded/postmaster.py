"""The processes of a data folder: running (not zombies), named `postgres`, and with that folder as working directory.

A pid alone proves nothing. A killed postmaster stays as a zombie where pid 1 does not reap, and after a restart of a
container another process may have its number.
"""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import psutil


class PidFile(msgspec.Struct, frozen=True):
    """The contents of `postmaster.pid`: the pid and the socket folder. The process may have ended."""

    pid: int
    run: Path | None


def read_pid_file(data: Path) -> PidFile | None:
    """Return the contents of the pid file, or None if it does not exist or is not complete."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        # A Postgres in single-user mode writes its pid as a negative number.
        return PidFile(abs(int(lines[0])), Path(lines[4]) if len(lines) > 4 and lines[4] else None)
    except (FileNotFoundError, ValueError, IndexError):
        return None


def works_in(pid: int, data: Path) -> bool:
    """Return whether `pid` is a running postgres with the working folder `data`."""
    try:
        process = psutil.Process(pid)
        return (
            process.name() == "postgres"
            and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
            and _working_folder(process) == os.path.realpath(data)
        )
    except (psutil.Error, FileNotFoundError, ProcessLookupError, PermissionError):  # ended, or of another user
        return False


def list_processes(data: Path) -> list[int]:
    """Return the pids of all running processes of a data folder: the postmaster and its back-ends."""
    return [pid for pid in psutil.pids() if works_in(pid, data)]


def _working_folder(process: psutil.Process) -> str:
    try:
        return str(process.cwd())
    except psutil.AccessDenied:
        if os.geteuid() != 0:
            raise
    # In containers root has no CAP_SYS_PTRACE and cannot read the link; the user of the process can.
    link = Path("/proc", str(process.pid), "cwd")
    owner = link.parent.stat()
    command = [shutil.which("readlink") or "readlink", str(link)]
    result = subprocess.run(
        command, user=owner.st_uid, group=owner.st_gid, extra_groups=[], capture_output=True, text=True, check=False
    )
    return result.stdout.removesuffix("\n")
