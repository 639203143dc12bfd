"""Who changed what, as a frame: automations, segments, contacts, keys of webhooks; as much of it as the key may see."""

from typing import TYPE_CHECKING, Any

import msgspec

from api.language.codec import encode
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.display.table import Column
from workbench.display.words import counted, short

if TYPE_CHECKING:
    import polars as pl

_PAGE = 500
_COLUMNS = tuple(map(Column, ("at (UTC)", "what", "about", "live version", "by", "key")))


class _Change(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    at: str
    action: str
    by: str
    key_id: str | None
    key: str | None
    subject_id: str | None
    subject: str | None
    from_version: int | None
    to_version: int | None
    detail: dict[str, Any]


def audit(
    connection: Connection, limit: int, action: str | None = None, subject_id: str | None = None
) -> "pl.DataFrame":
    """Return a frame with one row per change, newest first: of one action, or of one thing, when they are given."""
    import polars as pl

    from workbench.display.frame import Look, shown

    found = _read(connection, limit, {"action": action, "subjectId": subject_id})
    texts = ("id", "at", "action", "by", "key", "subject", "subject_id", "key_id")
    schema: dict[str, Any] = dict.fromkeys(texts, pl.String)
    frame = pl.DataFrame({name: [getattr(each, name) for each in found] for name in texts}, schema=schema)
    frame = frame.with_columns(
        pl.col("at").str.to_datetime(time_zone="UTC", time_unit="us"),
        *(
            pl.Series(name, [getattr(each, name) for each in found], pl.Int64)
            for name in ("from_version", "to_version")
        ),
        pl.Series("detail", [encode(each.detail).decode() for each in found], pl.String),
    )
    title = f"Changes: {counted(len(found), 'row')}, the newest first"
    return shown(frame, Look(_COLUMNS, [_row(each) for each in found], title, "Nothing was changed yet."))


def _read(connection: Connection, limit: int, wanted: dict[str, str | None]) -> list[_Change]:
    """Return changes page by page."""
    found: list[_Change] = []
    while len(found) < limit:
        most, before = min(limit - len(found), _PAGE), found[-1].id if found else None
        answer = connection.get("/audit", limit=most, before=before, **wanted)
        page = msgspec.convert(answer["changes"], list[_Change])
        found += page
        if len(page) < most:
            break
    return found


def _row(change: _Change) -> tuple[str, ...]:
    about = change.subject or short(change.subject_id)
    by = change.by if change.by != change.key_id else short(change.by)
    return moment(change.at), _what(change.action), about, _versions(change), by, change.key or ""


def _what(action: str) -> str:
    """Say an action: `contact: opt out`."""
    thing, _, deed = action.partition(".")
    return f"{thing}: {deed.replace('_', ' ')}" if deed else thing


def _versions(change: _Change) -> str:
    if change.to_version is None:
        return ""
    return f"{change.from_version or 'none'} → {change.to_version}"
