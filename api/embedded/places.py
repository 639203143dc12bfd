"""What can go wrong with the embedded Postgres, each said in one sentence for the user.

EmbeddedError
├── BinariesMissingError    no usable Postgres programs on this machine
├── HomeUnusableError       the home folder, or what belongs to it, cannot be used
├── WrongVersionError       the data was made by another major version
└── StartFailedError        initdb or the server itself gave up

Who the server runs as: we ourselves, or, because Postgres refuses root, a system user made for it.

Which files make up one embedded Postgres, and the rules of who may see them.

`home/postgres` (0700, ours) holds the lock, the passwords (0600) and the log. The data and the socket are beside them,
or, as root, under /var/lib/event-workbench/<id>, where the id is kept in the home: a moved home keeps its data.

Which processes really are our server: the pid exists, is no zombie, is a `postgres`, and works in our data folder.

A pid alone proves nothing: a killed postmaster stays as a zombie where pid 1 does not reap, and after a container
restart its number belongs to somebody else. Linux is read from /proc; elsewhere `ps` and `lsof` are asked.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TypedDict

import msgspec

from api.clock import token


class EmbeddedError(Exception):
    """The embedded Postgres cannot be used; the text says why and what to do."""


class BinariesMissingError(EmbeddedError):
    """No usable Postgres programs were found."""


class HomeUnusableError(EmbeddedError):
    """The home folder, or something that belongs to it, cannot be used."""


class WrongVersionError(EmbeddedError):
    """The data folder belongs to another major version of Postgres."""


class StartFailedError(EmbeddedError):
    """The server, or initdb, gave up."""


ROOT_STATE = Path("/var/lib/event-workbench")
_NAME = "event-workbench"


class PopenUser(TypedDict, total=False):
    """The arguments of subprocess.Popen that drop root's rights."""

    user: int
    group: int
    extra_groups: list[int]


class SystemUser(msgspec.Struct, frozen=True):
    """A user of this machine; `switched` when it is not the one we run as."""

    name: str
    uid: int
    gid: int
    switched: bool

    def popen(self) -> PopenUser:
        """Return what makes a child run as this account."""
        return PopenUser(user=self.uid, group=self.gid, extra_groups=[]) if self.switched else PopenUser()

    def own(self, path: Path) -> None:
        """Give `path` to this account."""
        if self.switched:
            os.chown(path, self.uid, self.gid)


def own_account() -> SystemUser:
    """Return the account we run as."""
    return SystemUser(str(os.geteuid()), os.geteuid(), os.getegid(), switched=False)


def server_account() -> SystemUser:
    """Return the account the server must run as; as root, make the system user once."""
    if os.geteuid() != 0:
        return own_account()
    entry = _entry(_NAME) or _created() or _entry("nobody")
    if entry is None:
        raise HomeUnusableError(
            f"Postgres cannot run as root, and no system user {_NAME} could be made; run as an ordinary user instead"
        )
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid, switched=True)


def make_root_state() -> None:
    """Create /var/lib/event-workbench, readable by the system user; only root calls this."""
    ROOT_STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    if ROOT_STATE.stat().st_uid != 0:
        raise HomeUnusableError(f"{ROOT_STATE} does not belong to root; remove it")
    ROOT_STATE.chmod(0o755)  # a strict umask would have locked the system user out


def _entry(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def _created() -> pwd.struct_passwd | None:
    commands = (
        ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", _NAME],
        ["adduser", "-S", "-D", "-H", _NAME],  # busybox
    )
    for command in commands:
        if program := shutil.which(command[0]):
            subprocess.run([program, *command[1:]], capture_output=True, check=False)
            if entry := _entry(_NAME):
                return entry
    return None


PORT = 5432
_SOCKET_LIMIT = 103  # bytes; macOS allows 104 with the closing NUL, Linux 108


class PostgresPaths(msgspec.Struct, frozen=True):
    """The paths of one embedded Postgres."""

    home: Path
    state: Path

    @property
    def data(self) -> Path:
        """The data folder of the cluster."""
        return self.state / "data"

    @property
    def lock(self) -> Path:
        """The file whose flock makes a process the owner."""
        return self.home / "lock"

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.home / "postgres.log"

    def run(self) -> Path:
        """Return the folder of the unix socket: ours, or a short one when the path is too long for a socket."""
        folder = self.state / "run"
        if len(os.fsencode(folder / f".s.PGSQL.{PORT}.lock")) <= _SOCKET_LIMIT:
            return folder
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"event-workbench-{os.geteuid()}-{digest}"

    def password(self, role: str) -> str | None:
        """Return the kept password of a role."""
        try:
            return self._password_file(role).read_text().strip() or None
        except FileNotFoundError:
            return None

    def make_password(self, role: str) -> str:
        """Return the kept password of a role, made first if need be."""
        known = self.password(role)
        return known if known is not None else _keep(self._password_file(role), token(24).hex())

    def _password_file(self, role: str) -> Path:
        return self.home / f"{role}.password"


def existing(home: Path) -> PostgresPaths | None:
    """Return the places of a home that was used before, or None; touches nothing."""
    folder = home.absolute() / "postgres"
    if os.geteuid() != 0:
        return PostgresPaths(folder, folder) if (folder / "data").is_dir() else None
    try:
        return PostgresPaths(folder, ROOT_STATE / _kept_id(folder))
    except FileNotFoundError:
        return None


def prepare(home: Path, account: SystemUser) -> PostgresPaths:
    """Return the places of `home`, with the folders that must exist; never changes a folder it did not make."""
    folder = home.absolute() / "postgres"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HomeUnusableError(f"the data folder {home} cannot be made: {error.strerror}") from error
    _must_be_private(folder)
    if not account.switched:
        return PostgresPaths(folder, folder)
    make_root_state()
    try:
        name = _kept_id(folder)
    except FileNotFoundError:
        name = _keep(folder / "cluster", token(8).hex())
    state = ROOT_STATE / name
    state.mkdir(mode=0o700, exist_ok=True)
    account.own(state)
    return PostgresPaths(folder, state)


def make_run(run: Path, account: SystemUser) -> None:
    """Make the socket folder, 0700; one that somebody else put there is refused."""
    run.mkdir(mode=0o700, exist_ok=True)
    account.own(run)
    if run.is_symlink() or run.stat().st_uid != account.uid:
        raise HomeUnusableError(f"the socket folder {run} belongs to somebody else; remove it")
    run.chmod(0o700)


def _must_be_private(folder: Path) -> None:
    seen = folder.stat()
    if seen.st_uid != os.geteuid():
        raise HomeUnusableError(
            f"{folder} belongs to another user; use the data folder of your own (WORKBENCH_DATA_DIR)"
        )
    if stat.S_IMODE(seen.st_mode) & 0o077:
        raise HomeUnusableError(f"{folder} can be read by others; chmod 700 it, passwords live there")


def _kept_id(folder: Path) -> str:
    name = (folder / "cluster").read_text().strip()
    if not name.isalnum():
        raise HomeUnusableError(f"{folder / 'cluster'} is damaged; it should hold the name of a folder in {ROOT_STATE}")
    return name


def _keep(path: Path, text: str) -> str:
    """Write a small private file all at once; when another process was first, return what it wrote."""
    half = path.with_name(f"{path.name}.{token(4).hex()}")
    with os.fdopen(os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(half, path)
    except FileExistsError:
        return path.read_text().strip()
    finally:
        half.unlink()
    return text


_PROC = Path("/proc")


class PostmasterRecord(msgspec.Struct, frozen=True):
    """What `postmaster.pid` claims."""

    pid: int
    run: Path | None


def recorded(data: Path) -> PostmasterRecord | None:
    """Return what postmaster.pid says, believed or not."""
    try:
        lines = (data / "postmaster.pid").read_text().splitlines()
        return PostmasterRecord(abs(int(lines[0])), Path(lines[4]) if len(lines) > 4 and lines[4] else None)
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
