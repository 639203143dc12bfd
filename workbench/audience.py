"""Audiences: segments that are the contacts of a frame, frozen, with what is known of the query it came from."""

from collections.abc import Sequence
from typing import Any

from workbench.connection import Connection
from workbench.display.words import both
from workbench.errors import DraftError
from workbench.known_segments import find, written
from workbench.segments import Segment
from workbench.values import unboxed

_PART = 200_000  # contacts in each part of a frame


def audience(connection: Connection, contacts: object, name: str) -> Segment:
    """Freeze the contacts of a frame under a name, in the place of the audience of that name, if there is one."""
    ids = _ids(contacts)
    body = {"name": name, "contactIds": ids[:_PART], "provenance": _origin(contacts), "more": len(ids) > _PART}
    there = find(connection, name)
    if there is not None and there.kind == "query":
        raise DraftError(f"{name!r} is defined by a query: choose another name for the audience")
    known = written(connection, "POST", "/segments", body | ({"revision": there.revision} if there is not None else {}))
    for start in range(_PART, len(ids), _PART):
        part = {"contactIds": ids[start : start + _PART], "more": start + _PART < len(ids)}
        known = written(connection, "POST", f"/segments/{name}/contacts", part | {"revision": known.revision})
    return Segment(connection, known)


def _ids(contacts: object) -> list[str]:
    """Return the ids in a frame's column contact_id, in a column, or in a list; nulls are left out."""
    if hasattr(contacts, "collect"):
        contacts = contacts.collect()
    columns = getattr(contacts, "columns", None)
    if columns is not None:
        if "contact_id" not in columns:
            raise DraftError(
                f"the frame has no column contact_id, but {both([str(each) for each in columns]) or 'none at all'}; "
                'if another one holds the contacts: frame.rename({"id": "contact_id"})'
            )
        contacts = contacts["contact_id"]  # type: ignore[index]
    values = unboxed(contacts)
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise DraftError('an audience is a frame with a column contact_id: wb.audience(frame, name="invited")')
    return [str(each) for each in values if each is not None]


def _origin(contacts: object) -> dict[str, Any]:
    """Return what a frame says about the query it came from; one made from such a frame says nothing."""
    known = {
        "sql": getattr(contacts, "statement", None),
        "params": dict(getattr(contacts, "params", None) or {}) or None,
        "queryHash": getattr(contacts, "query_hash", None),
        "watermark": getattr(contacts, "watermark", None),
    }
    return {name: value for name, value in known.items() if value is not None} if known["sql"] else {}
