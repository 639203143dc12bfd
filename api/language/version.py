"""The version of this code, and which notebooks a server of this version serves.

Versions are told apart by their first two numbers: the third changes no address and no field.
"""

import re

VERSION = "0.1.0"
OLDEST_SERVED = "0.1"
"""The oldest notebook package that a server of this version serves; raised when an address or a field is taken away."""

HEADER = "Workbench-Version"
"""In which a notebook says its version. Requests without it are nobody's business: the contract is for every client."""


def served() -> tuple[str, str]:
    """Return the oldest and the newest notebook package that a server of this version serves: ("0.1", "0.3")."""
    return OLDEST_SERVED, ".".join(map(str, _release(VERSION)))


def misfit(notebook: str) -> str | None:
    """Return why a server of this version does not serve a notebook of that version, and what to do; None when it does."""
    oldest, newest = served()
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
    """Return the first two numbers of a version, nothing for what is none."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})(?![0-9])", version, re.ASCII)
    return () if found is None else (int(found[1]), int(found[2]))
