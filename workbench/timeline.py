"""What happened to a contact: read page by page, the newest first, and shown as sentences."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from api.language.codec import encode
from workbench.connection import Connection
from workbench.display.page import moment
from workbench.display.table import Column
from workbench.display.words import counted

if TYPE_CHECKING:
    import polars as pl

SHOWN = 20
_PAGE = 500
_COLUMNS = (Column("at (UTC)"), Column("what"), Column("what happened"))


class Happening(msgspec.Struct, frozen=True):
    """One thing that happened: kind event, entry, message or conflict."""

    kind: str
    id: str
    at: datetime
    sentence: str
    detail: dict[str, Any]


def newest(connection: Connection, contact_id: str, most: int, kind: str | None = None) -> list[Happening]:
    """Return what happened to a contact last, at most so much of it."""
    found: list[Happening] = []
    before: str | None = None
    while len(found) < most:
        page = connection.get(
            f"/contacts/{contact_id}/timeline", before=before, limit=min(_PAGE, most - len(found)), kind=kind
        )
        found += msgspec.convert(page["timeline"], list[Happening])
        before = page["next"]
        if before is None:
            break
    return found


def table_of(happenings: Sequence[Happening]) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
    """Return columns and rows to show."""
    return _COLUMNS, [(moment(each.at), each.kind, each.sentence) for each in happenings]


def timeline(happenings: Sequence[Happening]) -> "pl.DataFrame":
    """Return a frame of everything: at, kind, sentence, id, detail (JSON)."""
    rows = [(each.at, each.kind, each.sentence, each.id, _json(each.detail)) for each in happenings]
    return _frame(happenings, ("at", "kind", "sentence", "id", "detail"), rows, "Timeline")


def events(happenings: Sequence[Happening]) -> "pl.DataFrame":
    """Return a frame of events: at, event, occurred_at, payload (JSON), idempotency_key, id."""
    rows = []
    for each in happenings:
        known = each.detail
        occurred_at = datetime.fromisoformat(known["occurredAt"])
        rows.append((each.at, known["event"], occurred_at, _json(known["payload"]), known["idempotencyKey"], each.id))
    return _frame(happenings, ("at", "event", "occurred_at", "payload", "idempotency_key", "id"), rows, "Events")


def _frame(
    happenings: Sequence[Happening], names: Sequence[str], rows: Sequence[Sequence[Any]], what: str
) -> "pl.DataFrame":
    import polars as pl

    from workbench.display.frame import Look, shown

    schema = {name: pl.Datetime("us", "UTC") if name.endswith("at") else pl.String() for name in names}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    title = f"{what}: {counted(len(rows), 'row')}"
    return shown(frame, Look(*table_of(happenings), title, empty="Nothing yet."))


def _json(value: Any) -> str:
    return encode(value).decode()
