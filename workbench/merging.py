"""Two contacts that are one person: what making one of them would do, doing it, and taking it back."""

from collections.abc import Mapping, Sequence
from typing import Any, Self

import msgspec

from workbench.connection import Connection
from workbench.display import words
from workbench.display.table import Column, plain, table
from workbench.errors import DraftError

_COLUMNS = (Column("of the absorbed contact"), Column("value"), Column("what becomes of it"))
_NAMES = {"walletAddress": "wallet", "email": "email", "externalId": "external id"}
_GOES, _HIDDEN, _LOST = (
    "moves",
    "finds the contact from now on, which shows its own",
    "not seen any more: the contact has another",
)
_GOES_BACK = "Events that came in between stay where they came to."


class _Moves(msgspec.Struct, frozen=True, rename="camel"):
    identifiers: dict[str, str]
    attributes: dict[str, Any]
    tags: tuple[str, ...]
    opted_out: tuple[str, ...]
    segments: tuple[str, ...]


class _Rows(msgspec.Struct, frozen=True):
    events: int
    entries: int
    messages: int


class _Told(msgspec.Struct, frozen=True):
    id: str | None
    keep: str
    absorbed: str
    moves: _Moves
    hidden: dict[str, str]
    lost: dict[str, Any]
    rows: _Rows
    pending: bool


class Merge:
    """What merging would do, until `.apply()` does it; then `.undo()` takes it back. Shows itself."""

    def __init__(self, connection: Connection, told: _Told) -> None:
        self._connection, self._told = connection, told
        self._note = "Nothing is written yet: .apply() does it."

    @property
    def id(self) -> str | None:
        """The merge's id once it was applied, as in the audit log."""
        return self._told.id

    @property
    def moves(self) -> dict[str, Any]:
        """What moves: identifiers, attributes, tags, opted_out, segments."""
        return msgspec.structs.asdict(self._told.moves)

    @property
    def lost(self) -> Mapping[str, Any]:
        """Attributes of the absorbed contact that are not seen any more."""
        return self._told.lost

    def apply(self) -> Self:
        """Make one contact of the two. Your key needs automations:write."""
        if self._told.id is not None:
            raise DraftError("it is merged already: .undo() takes it back")
        pair = {"keep": self._told.keep, "absorb": self._told.absorbed}
        self._told = msgspec.convert(self._connection.post("/contacts/merge", pair), _Told)
        self._note = f"Merged.{self._pending(self._told.pending)} .undo() takes it back."
        return self

    def undo(self) -> Self:
        """Make two contacts of it again; raises StaleError naming what contradicts that since."""
        if self._told.id is None:
            raise DraftError("it is not merged: .apply() does that")
        answer = self._connection.post(f"/contacts/merges/{self._told.id}/undo")
        self._told = msgspec.structs.replace(self._told, id=None)
        stays = f" {words.both(answer['stays'])} got another value since, which stays." if answer["stays"] else ""
        self._note = f"Taken back.{stays}{self._pending(answer['pending'])} {_GOES_BACK}"
        return self

    def _pending(self, pending: bool) -> str:
        return " Its events follow in the background." if pending else ""

    def headline(self) -> str:
        """Say who becomes whom."""
        return f"Contact {self._told.absorbed} {'is' if self._told.id else 'becomes'} contact {self._told.keep}"

    def _rows(self) -> Sequence[tuple[str, str, str]]:
        told, moves = self._told, self._told.moves
        sets = (("tag", moves.tags), ("opted out of", moves.opted_out), ("segment", moves.segments))
        counts = (("event", ""), ("entry", "entries"), ("message", ""))
        numbers = msgspec.structs.astuple(told.rows)
        rows = ", ".join(words.counted(each, *noun) for each, noun in zip(numbers, counts, strict=True))
        return [
            *((_NAMES[name], value, _GOES) for name, value in moves.identifiers.items()),
            *((_NAMES[name], value, _HIDDEN) for name, value in told.hidden.items()),
            *((f"attribute {name}", words.value(value), _GOES) for name, value in moves.attributes.items()),
            *((f"attribute {name}", words.value(value), _LOST) for name, value in told.lost.items()),
            *((name, value, _GOES) for name, values in sets for value in values),
            ("history", rows, _GOES),
        ]

    def __repr__(self) -> str:
        return f"{self.headline()}\n{plain(_COLUMNS, self._rows())}\n{self._note}"

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows(), title=self.headline(), note=self._note)


def merge(connection: Connection, keep: str, absorb: str) -> Merge:
    """Ask what merging two contacts would do."""
    pair = {"keep": keep, "absorb": absorb, "preview": True}
    return Merge(connection, msgspec.convert(connection.post("/contacts/merge", pair), _Told))
