"""The version of this code, and which notebook packages a server of this version supports.

Versions are compared by their first two numbers: the third changes no route and no field.
"""

import re

VERSION = "0.1.0"
OLDEST_SERVED = "0.1"
"""The oldest notebook package that this server supports; raise it when a route or a field is removed."""

VERSION_HEADER = "Workbench-Version"
"""The header with a notebook's version. Requests without it are not checked: the contract is for every client."""


def supported_range() -> tuple[str, str]:
    """Return the oldest and the newest supported notebook package: ("0.1", "0.3")."""
    return OLDEST_SERVED, ".".join(map(str, _release(VERSION)))


def incompatibility(notebook: str) -> str | None:
    """Return why this server does not support a notebook of that version, and what to do; None if it does."""
    oldest, newest = supported_range()
    cure = f"pip install 'event-workbench=={newest}.*' and restart the kernel"
    if (release := _release(notebook)) == ():
        return f"not a version: the server serves notebooks of event-workbench {oldest} to {newest}"
    if release < _release(oldest):
        return f"this notebook has event-workbench {notebook}, too old for the server ({VERSION}): {cure}"
    if release > _release(newest):
        return (
            f"this notebook has event-workbench {notebook}, newer than the server ({VERSION}): "
            f"upgrade the server first, or {cure}"
        )
    return None


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, or () if it is not one."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?![0-9])", version, re.ASCII)
    return () if found is None else (int(found[1]), int(found[2]))
