"""The version of this code, and the notebook packages that a server of this version supports.

Only the first two numbers of versions are compared: the third changes no route and no field.
"""

import re

VERSION = "0.1.0"
OLDEST_SERVED = "0.1"  # raise it when a route or a field is removed
VERSION_HEADER = "Workbench-Version"  # requests without it are not checked: any HTTP client may use the contract


def supported_range() -> tuple[str, str]:
    """Return the oldest and the newest supported notebook package: ("0.1", "0.3")."""
    return OLDEST_SERVED, ".".join(map(str, _release(VERSION)))


def incompatibility(notebook: str) -> str | None:
    """Return why this server does not support a notebook of this version, and what to do; None if it does."""
    oldest, newest = supported_range()
    fix = f"pip install 'event-workbench=={newest}.*' and restart the kernel"
    if (release := _release(notebook)) == ():
        return f"not a version: this server supports event-workbench {oldest} to {newest}"
    if release < _release(oldest):
        return f"this notebook has event-workbench {notebook}, too old for the server ({VERSION}): {fix}"
    if release > _release(newest):
        return (
            f"this notebook has event-workbench {notebook}, newer than the server ({VERSION}): "
            f"upgrade the server first, or {fix}"
        )
    return None


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, or () if the text is not a version."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?![0-9])", version, re.ASCII)
    return () if match is None else (int(match[1]), int(match[2]))
