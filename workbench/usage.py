"""What is metered: messages that were sent, by channel. Events that come in never are."""

from typing import TYPE_CHECKING, Any

from workbench.connection import Connection
from workbench.display.table import Column
from workbench.display.words import counted

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = (Column("channel"), Column("messages", number=True))


def usage(connection: Connection, month: str | None) -> "pl.DataFrame":
    """Return a frame with one row per channel for a month of UTC; None: this one."""
    import polars as pl

    from workbench.display.frame import Look, shown

    answer: dict[str, Any] = connection.get("/usage", month=month)
    rows = list(answer["messages"].items())
    schema = {"month": pl.String, "channel": pl.String, "messages": pl.Int64}
    frame = pl.DataFrame([(answer["month"], *row) for row in rows], schema=schema, orient="row")
    title = f"{answer['month']}: {counted(answer['total'], 'message')} sent"
    return shown(frame, Look(_COLUMNS, rows, title, empty="", note="Events that come in are never counted."))
