"""Which processes really are our server: the pid exists, is no zombie, is a `postgres`, and works in our data folder.

A pid alone proves nothing: a killed postmaster stays as a zombie where pid 1 does not reap, and after a container
restart its number belongs to somebody else. Linux is read from /proc; elsewhere `ps` and `lsof` are asked.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class Recorded(msgspec.Struct, frozen=True):
    """What `postmaster.pid` claims."""

    pid: int
    run: Path | None


def recorded(data: Path) -> Recorded | None:
    """Return what postmaster.pid says, believed or not."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        return Recorded(abs(int(lines[0])), Path(lines[4]) if len(lines) > 4 and lines[4] else None)
    except (FileNotFoundError, ValueError, IndexError):
        return None


def works_in(pid: int, data: Path) -> bool:
    """Tell whether `pid` is a living postgres whose working folder is `data`."""
    if _PROC.joinpath("self").exists():
        return _linux_works_in(pid, data)
    return _ps_works_in(pid, data)


def workers(data: Path) -> list[int]:
    """Return every living postgres process of this data folder, postmaster and back-ends."""
    return [pid for pid in _pids() if works_in(pid, data)]


def _linux_works_in(pid: int, data: Path) -> bool:
    try:
        name, _, rest = (_PROC / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
        return name == "postgres" and rest.split()[0] not in "ZX" and _cwd(pid) == os.path.realpath(data)
    except OSError:  # gone, or somebody else's
        return False


def _cwd(pid: int) -> str:
    link = _PROC / str(pid) / "cwd"
    try:
        return str(link.readlink())
    except PermissionError:
        if os.geteuid() != 0:
            raise
    # root without CAP_SYS_PTRACE, as in containers: ask as the user the process runs as
    owner = link.parent.stat()
    command = [shutil.which("readlink") or "readlink", str(link)]
    done = subprocess.run(
        command, user=owner.st_uid, group=owner.st_gid, extra_groups=[], capture_output=True, text=True, check=False
    )
    return done.stdout.removesuffix("\n")


def _ps_works_in(pid: int, data: Path) -> bool:
    state = _output("ps", "-o", "stat=,comm=", "-p", str(pid)).split()
    if len(state) < 2 or state[0].startswith("Z") or not state[1].endswith("postgres"):
        return False
    return f"n{os.path.realpath(data)}" in _output("lsof", "-a", "-p", str(pid), "-d", "cwd", "-Fn").splitlines()


def _pids() -> Iterator[int]:
    if _PROC.joinpath("self").exists():
        return (int(path.name) for path in _PROC.iterdir() if path.name.isdigit())
    lines = (line.split(maxsplit=1) for line in _output("ps", "-axo", "pid=,comm=").splitlines())
    return (int(line[0]) for line in lines if len(line) == 2 and line[1].endswith("postgres"))


def _output(program: str, *arguments: str) -> str:
    path = shutil.which(program)
    if path is None:
        return ""
    return subprocess.run([path, *arguments], capture_output=True, text=True, check=False).stdout
