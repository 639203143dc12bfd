"""Which files make up one embedded Postgres, and the rules of who may see them.

`home/postgres` (0700, ours) holds the lock, the passwords (0600) and the log. The data and the socket are beside them,
or, as root, under /var/lib/event-workbench/<id>, where the id is kept in the home: a moved home keeps its data.
"""

import hashlib
import os
import stat
import tempfile
from pathlib import Path

import msgspec

from api.clock import token
from api.embedded.account import ROOT_STATE, Account, make_root_state
from api.embedded.errors import HomeUnusableError

PORT = 5432
_SOCKET_LIMIT = 103  # bytes; macOS allows 104 with the closing NUL, Linux 108


class Places(msgspec.Struct, frozen=True):
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


def existing(home: Path) -> Places | None:
    """Return the places of a home that was used before, or None; touches nothing."""
    folder = home.absolute() / "postgres"
    if os.geteuid() != 0:
        return Places(folder, folder) if (folder / "data").is_dir() else None
    try:
        return Places(folder, ROOT_STATE / _kept_id(folder))
    except FileNotFoundError:
        return None


def prepare(home: Path, account: Account) -> Places:
    """Return the places of `home`, with the folders that must exist; never changes a folder it did not make."""
    folder = home.absolute() / "postgres"
    try:
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise HomeUnusableError(f"the data folder {home} cannot be made: {error.strerror}") from error
    _must_be_private(folder)
    if not account.switched:
        return Places(folder, folder)
    make_root_state()
    try:
        name = _kept_id(folder)
    except FileNotFoundError:
        name = _keep(folder / "cluster", token(8).hex())
    state = ROOT_STATE / name
    state.mkdir(mode=0o700, exist_ok=True)
    account.own(state)
    return Places(folder, state)


def make_run(run: Path, account: Account) -> None:
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
