"""Why a ready-made question may have found nothing: names of events, and of what is in them, that the catalog does not know."""

from collections.abc import Iterable, Iterator

from api.language.catalog import never_came, never_sent
from workbench.connection import Connection
from workbench.errors import NotThereError, WorkbenchError


def doubts(
    connection: Connection, events: Iterable[str], path: str | None = None, *, number: bool = False
) -> list[str]:
    """Return a sentence for each of the events that has not come lately, and for a path that is not in the first of them.

    `number`: numbers were looked for there. None when the catalog cannot be asked: a hint is not worth an error.
    """
    names = list(dict.fromkeys(events))
    try:
        return [
            *_unknown_events(connection, names),
            *(_unknown_path(connection, names[0], path, number) if path else ()),
        ]
    except WorkbenchError:
        return []


def _unknown_events(connection: Connection, names: Iterable[str]) -> Iterator[str]:
    missing = [name for name in names if not _paths(connection, name)]
    if missing:
        known = [each["event"] for each in connection.get("/events/catalog", limit=200)["events"]]
        yield from (never_came(name, known) for name in missing if name not in known)


def _unknown_path(connection: Connection, event: str, path: str, number: bool) -> Iterator[str]:
    found = _paths(connection, event)
    if found and path not in found:
        yield never_sent(path, (event,), found)
    elif found and number and "number" not in found[path]:
        seen = " or ".join(_TYPES[kind] for kind in sorted(found[path])) or "null"
        yield f"{path!r} in {event} was never a number, but {seen}"


_TYPES = {"string": "text", "boolean": "a yes/no value", "array": "a list", "object": "an object"}


def _paths(connection: Connection, event: str) -> dict[str, dict[str, int]]:
    """Return the types seen at each path of an event; nothing of one that was never seen, or has an empty payload."""
    try:
        return {each["path"]: each["types"] for each in connection.get(f"/events/catalog/{event}")["paths"]}
    except NotThereError:
        return {}
