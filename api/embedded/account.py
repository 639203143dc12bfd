"""Who the server runs as: we ourselves, or, because Postgres refuses root, a system user made for it."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

import msgspec

from api.embedded.errors import HomeUnusableError

ROOT_STATE = Path("/var/lib/event-workbench")
_NAME = "event-workbench"


class PopenUser(TypedDict, total=False):
    """The arguments of subprocess.Popen that drop root's rights."""

    user: int
    group: int
    extra_groups: list[int]


class Account(msgspec.Struct, frozen=True):
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


def own_account() -> Account:
    """Return the account we run as."""
    return Account(str(os.geteuid()), os.geteuid(), os.getegid(), switched=False)


def server_account() -> Account:
    """Return the account the server must run as; as root, make the system user once."""
    if os.geteuid() != 0:
        return own_account()
    entry = _entry(_NAME) or _created() or _entry("nobody")
    if entry is None:
        raise HomeUnusableError(
            f"Postgres cannot run as root, and no system user {_NAME} could be made; run as an ordinary user instead"
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, switched=True)


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
