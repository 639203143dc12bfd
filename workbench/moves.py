"""Moves of entries that wait on earlier versions of an automation to its live version."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.html import TableColumn, html, moment, plain, printable_text, table_columns
from workbench.display.words import entry_outcome, outcome, quantity, short
from workbench.errors import InvalidArgumentError, NotFoundError
from workbench.language.responses import MovedEntryView, MoveView

MoveArgument: TypeAlias = Literal["none", "safe"] | Mapping[str, str]
MoveTable: TypeAlias = tuple[str, Sequence[TableColumn], Sequence[Sequence[str]]]

_PAUSE_S = 1.0
_COLUMNS = table_columns("entry", "from", "to", "waits until (UTC)", "then")
_REASON_COLUMNS = table_columns("entries", "not moved because", numbers=("entries",))


class MoveResult(MoveView, frozen=True, rename="camel"):
    """The effect of a move on the entries of earlier versions, done or predicted.

    `entries`: those that had not ended. `moved`: how many of them continue on `to_version`; `moved_back`: how many the
    undo moved back. `reasons`: how many stayed where they were, by reason; `refused`: the first of them. `sample`: the
    first that were moved, with the predicted end of their wait and their next step.
    """

    def headline(self) -> str:
        """Return how many entries were moved."""
        entries = quantity(self.entries, "entry", "entries")
        match self.state:
            case "planned" if self.id is None:
                return f"{self.moved:,} of {entries} of earlier versions would be moved to version {self.to_version}"
            case "undoing" | "undone":
                moved = quantity(self.moved, "moved entry", "moved entries")
                return f"{self.moved_back:,} of {moved} moved back from version {self.to_version}"
            case "stopped":
                stopped = "; a later publication, or switching off, stopped the move"
                return f"{self.moved:,} of {entries} moved to version {self.to_version}{stopped}"
            case "done":
                return f"{self.moved:,} of {entries} of earlier versions moved to version {self.to_version}"
            case _:
                return f"{self.moved:,} of {entries} moved to version {self.to_version} so far"

    def tables(self) -> list[MoveTable]:
        """Return titles, columns and rows: entries with their predictions, and reasons."""
        tables: list[MoveTable] = []
        if self.sample:
            title = "" if len(self.sample) == self.moved else f"The first {len(self.sample)}"
            tables.append((title, _COLUMNS, [self._row(entry) for entry in self.sample]))
        if self.reasons:
            rows = [(f"{count:,}", reason) for reason, count in self.reasons.items()]
            tables.append(("", _REASON_COLUMNS, rows))
        return tables

    def _row(self, entry: MovedEntryView) -> tuple[str, ...]:
        start = f"{entry.from_node_id} (version {entry.from_version})"
        until = "the resume" if entry.until is None else moment(entry.until)
        following = entry.next_node_id or f"the end ({entry_outcome(entry.ends)})"
        then = following if entry.outcome == "waited" else f"{outcome(entry.outcome)}: {following}"
        return short(entry.entry_id), start, entry.node_id, until, then

    @printable_text
    def __repr__(self) -> str:
        tables = [line for title, columns, rows in self.tables() for line in (title, plain(columns, rows)) if line]
        return "\n".join([self.headline(), *tables])

    def _repr_html_(self) -> str:
        return html("moves.html.j2", headline=self.headline(), tables=self.tables())


def move_argument(move: Any) -> Any:
    """Return a move as the server reads it."""
    if move in ("none", "safe"):
        return move
    if isinstance(move, Mapping) and all(isinstance(text, str) for item in move.items() for text in item):
        return dict(move)
    raise InvalidArgumentError(
        f'move={move!r}: write move="safe", or the steps of the new version by those of earlier ones: '
        'move={"old_step": "new_step"}'
    )


def preview_move(
    connection: Connection, automation_id: str, move: MoveArgument, payload: Mapping[str, Any]
) -> MoveResult:
    """Return what publishing a draft with this move would do."""
    body = {"move": move_argument(move), "triggerSpec": payload["triggerSpec"], "graph": payload["graph"]}
    return msgspec.convert(connection.post(f"/automations/{automation_id}/moves/preview", body), MoveResult)


def move_back(connection: Connection, automation_id: str) -> MoveResult:
    """Undo the newest move of an automation; raise NotFoundError if the automation has no move."""
    newest = next(iter(connection.get(f"/automations/{automation_id}/moves", limit=1)["moves"]), None)
    if newest is None:
        raise NotFoundError("no entries of this automation were moved")
    path = f"/automations/{automation_id}/moves/{newest['id']}"
    return await_move(connection, automation_id, msgspec.convert(connection.post(f"{path}/undo", {}), MoveResult))


def await_move(connection: Connection, automation_id: str, move: MoveResult) -> MoveResult:
    """Return a move once it is complete. Large moves continue after the response that began them."""
    while move.state in ("planned", "running", "undoing"):
        environment.sleep(_PAUSE_S)
        body = connection.get(f"/automations/{automation_id}/moves/{move.id}")
        move = msgspec.convert(body, MoveResult)
    return move
