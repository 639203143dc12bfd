"""What the service knows of segments, and the calls that ask for it and change it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from api.language.spelling import meant
from workbench.connection import Connection
from workbench.errors import DraftError, NotThereError, WorkbenchError
from workbench.query import sql_error

_PATIENCE = 65.0  # seconds: the service answers within a minute, or refuses


class _Change(msgspec.Struct, frozen=True):
    entered: int
    departed: int


class _Found(msgspec.Struct, frozen=True):
    rows: int
    nulls: int
    unknown: int


class Known(msgspec.Struct, frozen=True, rename="camel"):
    """A segment as the service tells it; `found` and `change`: what the call that it answers found and changed."""

    name: str
    kind: Literal["query", "audience"]
    size: int
    sql: str | None
    params: Any
    every_seconds: int | None
    provenance: dict[str, Any]
    refreshed_at: str | None
    last_error: str | None
    failing_since: str | None
    revision: int
    daily: list[int | None] = []
    found: _Found | None = None
    change: _Change | None = None


def find(connection: Connection, name: str) -> Known | None:
    """Return a segment by its name, None when there is none; raise DraftError for what is no name."""
    if not isinstance(name, str):
        raise DraftError(f'{name!r} is not the name of a segment: "whales"')
    try:
        return msgspec.convert(connection.get(f"/segments/{_in_path(name)}"), Known)
    except NotThereError:
        return None


def listed(connection: Connection) -> tuple[Known, ...]:
    """Return all segments by name."""
    return tuple(msgspec.convert(connection.get("/segments")["segments"], list[Known]))


def known_names(connection: Connection) -> tuple[str, ...] | None:
    """Return the names of all segments, None when they cannot be had."""
    try:
        return tuple(each.name for each in listed(connection))
    except WorkbenchError:
        return None


def require(connection: Connection, name: object) -> None:
    """Raise NotThereError, with the nearest name, unless there is a segment of that name."""
    names = known_names(connection)
    if not isinstance(name, str):
        raise DraftError(f'segment={name!r} is not the name of a segment: segment="whales"')
    if names is not None and name not in names:
        raise not_defined(name, names)


def written(connection: Connection, method: str, path: str, body: Mapping[str, Any], query: str = "") -> Known:
    """Change a segment, and return what it is then; `query` is the one that an error is about."""
    return msgspec.convert(answered(connection, method, path, body, query), Known)


def answered(connection: Connection, method: str, path: str, body: Mapping[str, Any], query: str) -> Any:
    """Return what the service answers; raise SqlError where it is about the query."""
    answer = connection.exchange(method, path, body=body, seconds=_PATIENCE)
    if answer.status == 400 and isinstance(answer.body, dict) and answer.body.get("field") == "sql":
        raise sql_error(query, answer)
    return connection.check(answer).body


def not_defined(name: str, names: Sequence[str]) -> NotThereError:
    """Return the error for a name that no segment has, with the nearest that one has."""
    return NotThereError(
        f"nobody has defined the segment {name!r}{meant(name, names, '. wb.segments shows those there are')}"
    )


def _in_path(name: str) -> str:
    """Return a name as it stands in an address; what no segment can be called stands for one that is not there."""
    return name if name and all(each.isalnum() or each in "_-" for each in name) and name.isascii() else "-"
