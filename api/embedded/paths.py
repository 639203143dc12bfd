"""The files of one embedded Postgres, the system user that owns them, and the errors about either.

`home/postgres` (mode 0700) contains the lock, the passwords (0600) and the log. The data and the socket are beside
them. If we run as root they are under /var/lib/event-workbench/<id>, because the system user of the server cannot read
private folders; the id is stored in the home, so a home that is moved keeps its data.

The message of each error is one sentence for the user: what is wrong and what to do.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import TypedDict

import msgspec

from api.clock import token
from api.private_files import read_or_create

ROOT_STATE = Path("/var/lib/event-workbench")
PORT = 5432
_MAX_SOCKET_PATH_BYTES = 103  # macOS allows 104 with the closing NUL, Linux 108
_SYSTEM_USER = "event-workbench"


class EmbeddedError(Exception):
    """The embedded Postgres cannot be used."""


class PopenUser(TypedDict, total=False):
    """Arguments of subprocess.Popen that run a child as another user."""

    user: int
    group: int
    extra_groups: list[int]


class SystemUser(msgspec.Struct, frozen=True):
    """A user of this machine; `switched` if it is not the user of this process."""

    name: str
    uid: int
    gid: int
    switched: bool

    def popen(self) -> PopenUser:
        # Without extra_groups=[] the child would keep root's groups.
        return PopenUser(user=self.uid, group=self.gid, extra_groups=[]) if self.switched else PopenUser()

    def own(self, path: Path) -> None:
        if self.switched:
            os.chown(path, self.uid, self.gid)


def own_account() -> SystemUser:
    return SystemUser(str(os.geteuid()), os.geteuid(), os.getegid(), switched=False)


def server_account() -> SystemUser:
    """Return the user that the server runs as. For root this is a system user, which is created on first use."""
    if os.geteuid() != 0:
        return own_account()
    entry = _find_user(_SYSTEM_USER)
    commands = (
        ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER],
        ["adduser", "-S", "-D", "-H", _SYSTEM_USER],  # busybox
    )
    for command in commands:
        if entry is None and (program := shutil.which(command[0])):
            subprocess.run([program, *command[1:]], capture_output=True, check=False)
            entry = _find_user(_SYSTEM_USER)
    entry = entry or _find_user("nobody")  # the user could not be created
    if entry is None:
        raise EmbeddedError(
            f"Postgres cannot run as root, and the system user {_SYSTEM_USER} could not be created; "
            "run as an ordinary user"
        )
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid, switched=True)


def _find_user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


class PostgresPaths(msgspec.Struct, frozen=True):
    """The paths of one embedded Postgres. `home` has our files, `state` those of the server."""

    home: Path
    state: Path

    @property
    def data(self) -> Path:
        return self.state / "data"

    @property
    def lock(self) -> Path:
        return self.home / "lock"

    @property
    def log(self) -> Path:
        return self.home / "postgres.log"

    def run(self) -> Path:
        """Return the folder of the Unix socket: in `state` or, if its path is too long, in the temporary folder."""
        folder = self.state / "run"
        if len(os.fsencode(folder / f".s.PGSQL.{PORT}.lock")) <= _MAX_SOCKET_PATH_BYTES:
            return folder
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"event-workbench-{os.geteuid()}-{digest}"

    def password(self, role: str) -> str | None:
        """Return the stored password of a role, or None."""
        try:
            return self._password_file(role).read_text().strip() or None
        except FileNotFoundError:
            return None

    def make_password(self, role: str) -> str:
        """Return the stored password of a role; create it if necessary."""
        return read_or_create(self._password_file(role), token(24).hex())

    def _password_file(self, role: str) -> Path:
        return self.home / f"{role}.password"


def find_paths(home: Path) -> PostgresPaths | None:
    """Return the paths of a home that was used before, or None. Changes nothing."""
    folder = home.absolute() / "postgres"
    if os.geteuid() != 0:
        return PostgresPaths(folder, folder) if (folder / "data").is_dir() else None
    try:
        return PostgresPaths(folder, ROOT_STATE / _read_cluster_id(folder))
    except FileNotFoundError:
        return None


def prepare_paths(home: Path, account: SystemUser) -> PostgresPaths:
    """Create the folders of `home` and return its paths; existing folders keep their mode. Raise EmbeddedError."""
    folder = home.absolute() / "postgres"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(f"the data folder {home} cannot be created: {error.strerror}") from error
    status = folder.stat()
    if status.st_uid != os.geteuid():
        raise EmbeddedError(f"{folder} belongs to another user; use a data folder of your own (WORKBENCH_DATA_DIR)")
    if stat.S_IMODE(status.st_mode) & 0o077:
        raise EmbeddedError(f"{folder} can be read by others and contains passwords; run: chmod 700 {folder}")
    if not account.switched:
        return PostgresPaths(folder, folder)
    make_root_state()
    try:
        cluster_id = _read_cluster_id(folder)
    except FileNotFoundError:
        cluster_id = read_or_create(folder / "cluster", token(8).hex())
    state = ROOT_STATE / cluster_id
    state.mkdir(mode=0o700, exist_ok=True)
    account.own(state)
    return PostgresPaths(folder, state)


def make_root_state() -> None:
    """Create /var/lib/event-workbench so that the system user can read it; only root calls this."""
    ROOT_STATE.mkdir(mode=0o755, parents=True, exist_ok=True)
    if ROOT_STATE.stat().st_uid != 0:
        raise EmbeddedError(f"{ROOT_STATE} does not belong to root; remove it")
    ROOT_STATE.chmod(0o755)  # with a strict umask, mkdir locks the system user out


def make_run(run: Path, account: SystemUser) -> None:
    """Create the socket folder with mode 0700; raise EmbeddedError if another user created it."""
    run.mkdir(mode=0o700, exist_ok=True)
    account.own(run)
    # The folder may be in /tmp, where any user can create it first, also as a link to another place.
    if run.is_symlink() or run.stat().st_uid != account.uid:
        raise EmbeddedError(f"the socket folder {run} belongs to another user; remove it")
    run.chmod(0o700)


def _read_cluster_id(folder: Path) -> str:
    cluster_id = (folder / "cluster").read_text().strip()
    if not cluster_id.isalnum():  # it becomes a part of a path
        raise EmbeddedError(f"{folder / 'cluster'} is damaged; it must contain the name of a folder in {ROOT_STATE}")
    return cluster_id
