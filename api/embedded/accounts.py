"""The user that the server runs as: our own or, because Postgres refuses to run as root, a system user."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import TypedDict

import msgspec

from api.embedded.errors import HomeUnusableError

_NAME = "event-workbench"


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
        """Return the arguments with which a child runs as this user."""
        # Without extra_groups=[] the child would keep root's groups.
        return PopenUser(user=self.uid, group=self.gid, extra_groups=[]) if self.switched else PopenUser()

    def own(self, path: Path) -> None:
        """Make this user the owner of `path`."""
        if self.switched:
            os.chown(path, self.uid, self.gid)


def own_account() -> SystemUser:
    """Return the user of this process."""
    return SystemUser(str(os.geteuid()), os.geteuid(), os.getegid(), switched=False)


def server_account() -> SystemUser:
    """Return the user that the server runs as. For root this is a system user, which is created on first use."""
    if os.geteuid() != 0:
        return own_account()
    entry = _find_user(_NAME)
    commands = (
        ["useradd", "--system", "--user-group", "--no-create-home", "--shell", "/usr/sbin/nologin", _NAME],
        ["adduser", "-S", "-D", "-H", _NAME],  # busybox
    )
    for command in commands:
        if entry is None and (program := shutil.which(command[0])):
            subprocess.run([program, *command[1:]], capture_output=True, check=False)
            entry = _find_user(_NAME)
    entry = entry or _find_user("nobody")  # the user could not be created
    if entry is None:
        raise HomeUnusableError(
            f"Postgres cannot run as root, and the system user {_NAME} could not be created; run as an ordinary user"
        )
    return SystemUser(entry.pw_name, entry.pw_uid, entry.pw_gid, switched=True)


def _find_user(name: str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None
