"""The processes of a data folder: they run, are not zombies, are called `postgres`, and work in that folder.

A pid alone proves nothing. A killed postmaster stays as a zombie where pid 1 does not reap, and after a restart of a
container another process may have its number. Linux is read from /proc; other systems need `ps` and `lsof`.
"""

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

_PROC = Path("/proc")


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
    if _has_proc():
        try:
            # The name is in parentheses and may contain some itself; the state is the first field after them.
            name, _, rest = (_PROC / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
            return name == "postgres" and rest.split()[0] not in "ZX" and _working_folder(pid) == os.path.realpath(data)
        except OSError:  # the process has ended, or belongs to another user
            return False
    state = _output("ps", "-o", "stat=,comm=", "-p", str(pid)).split()
    if len(state) < 2 or state[0].startswith("Z") or not state[1].endswith("postgres"):
        return False
    return f"n{os.path.realpath(data)}" in _output("lsof", "-a", "-p", str(pid), "-d", "cwd", "-Fn").splitlines()


def list_processes(data: Path) -> list[int]:
    """Return the pids of all running processes of a data folder: the postmaster and its back-ends."""
    if _has_proc():
        pids = [int(path.name) for path in _PROC.iterdir() if path.name.isdigit()]
    else:
        lines = (line.split(maxsplit=1) for line in _output("ps", "-axo", "pid=,comm=").splitlines())
        pids = [int(line[0]) for line in lines if len(line) == 2 and line[1].endswith("postgres")]
    return [pid for pid in pids if works_in(pid, data)]


def _has_proc() -> bool:
    return _PROC.joinpath("self").exists()


def _working_folder(pid: int) -> str:
    link = _PROC / str(pid) / "cwd"
    try:
        return str(link.readlink())
    except PermissionError:
        if os.geteuid() != 0:
            raise
    # In containers root has no CAP_SYS_PTRACE and cannot read the link; the user of the process can.
    owner = link.parent.stat()
    command = [shutil.which("readlink") or "readlink", str(link)]
    result = subprocess.run(
        command, user=owner.st_uid, group=owner.st_gid, extra_groups=[], capture_output=True, text=True, check=False
    )
    return result.stdout.removesuffix("\n")


def _output(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False).stdout
