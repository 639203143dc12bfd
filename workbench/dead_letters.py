"""What failed for good: dead entries by cause, and another try for them. An effect keeps its id, so nothing is sent twice unnoticed."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.connection import Connection
from workbench.display.page import html, moment
from workbench.display.table import Column, plain, table
from workbench.display.words import counted, either
from workbench.errors import NotThereError, spoken

if TYPE_CHECKING:
    import polars as pl


class DeadLetter(msgspec.Struct, frozen=True, rename="camel"):
    """Dead entries with automation, cause and step in common. `attempts` is the most that one of them had.

    `active`: they can be replayed.
    """

    automation_id: str
    automation: str
    active: bool
    cause: str | None
    node_id: str | None
    entries: int
    attempts: int
    last_error: str | None
    first_at: str
    last_at: str

    def error(self) -> str:
        """Say what the last of them said."""
        return (self.last_error or "").removeprefix(f"{self.cause}: ")


class Replayed(msgspec.Struct, frozen=True):
    """How many entries are tried again, and how many were left because their automation is off."""

    entries: int
    left: int = 0

    def sentence(self) -> str:
        """Say it in words."""
        if not self.entries:
            return "Nothing was replayed."
        are = "is" if self.entries == 1 else "are"
        return f"{_entries(self.entries)} {are} tried again, from the step that failed."

    def note(self) -> str:
        """Say what was left."""
        return f"{_entries(self.left)} of automations that are off stayed as they are: .activate() first." * bool(
            self.left
        )

    def __repr__(self) -> str:
        return " ".join(filter(None, (self.sentence(), self.note())))

    def _repr_html_(self) -> str:
        look = ("replayed", "good") if self.entries else ("nothing", "warn")
        return html("line.html.j2", text=self.sentence(), state=look[0], look=look[1], note=self.note(), block="")


class DeadLetters(Sequence[DeadLetter]):
    """Dead entries by cause, what failed last first. `replay()` tries all of them again, `replay("no_wallet")` those of one cause."""

    def __init__(self, connection: Connection, letters: Iterable[DeadLetter], automation_id: str | None = None) -> None:
        self._connection = connection
        self._letters = tuple(letters)
        self._automation_id = automation_id

    @property
    def causes(self) -> tuple[str, ...]:
        """The causes there are."""
        return tuple(dict.fromkeys(each.cause for each in self._letters if each.cause))

    @spoken('.replay() or .replay("no_wallet"); one entry: wb.entry("0198c0de-…").replay()')
    def replay(self, cause: str | None = None) -> Replayed:
        """Try dead entries again from the step that failed: all of them, or those of one cause.

        What was sent before is not sent again; what may have arrived goes out under the same id.
        """
        if cause is not None and cause not in self.causes:
            known = f"there is {either(self.causes)}" if self.causes else "nothing has failed for good"
            raise NotThereError(f"no entry failed for good with the cause {cause!r}: {known}")
        wish = {"cause": cause, "automationId": self._automation_id}
        answer = self._connection.post("/entries/replay", {name: value for name, value in wish.items() if value})
        left = sum(each.entries for each in self._letters if not each.active and cause in (None, each.cause))
        return Replayed(answer["replayed"], left)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame with one row per automation, cause and step."""
        import polars as pl

        frame = pl.DataFrame([msgspec.structs.asdict(each) for each in self._letters], schema=_schema())
        return frame.with_columns(pl.col("first_at", "last_at").str.to_datetime(time_zone="UTC", time_unit="us"))

    def __getitem__(self, index: Any) -> Any:
        return self._letters[index]

    def __len__(self) -> int:
        return len(self._letters)

    def table(self) -> tuple[Sequence[Column], list[tuple[Any, ...]]]:
        """Return columns and rows; the automation has a column only where there can be several."""
        whole = self._automation_id is None
        columns = (_CAUSE, *((_AUTOMATION,) if whole else ()), *_COLUMNS)
        return columns, [
            (
                each.cause or "",
                *((_named(each),) if whole else ()),
                *(each.node_id or "", each.entries, each.attempts, each.error(), moment(each.last_at)),
            )
            for each in self._letters
        ]

    def __repr__(self) -> str:
        return plain(*self.table(), _NONE)

    def _repr_html_(self) -> str:
        total = sum(each.entries for each in self._letters)
        title = f"Failed for good: {_entries(total)}"
        return table(*self.table(), title=title if self else "", note=_NOTE if self else "", empty=_NONE)


_CAUSE, _AUTOMATION = Column("cause"), Column("automation")
_COLUMNS = (
    Column("step"),
    Column("entries", number=True),
    Column("attempts", number=True),
    Column("last error"),
    Column("last (UTC)"),
)
_NONE = "Nothing has failed for good."
_NOTE = 'Again: .replay() for all, .replay("cause") for some. One by one: wb.sql("SELECT * FROM dead_letters")'


def dead_letters(connection: Connection, automation_id: str | None = None) -> DeadLetters:
    """Return what failed for good: everywhere, or in one automation."""
    found = connection.get("/dead-letters", automationId=automation_id)["deadLetters"]
    return DeadLetters(connection, msgspec.convert(found, list[DeadLetter]), automation_id)


def _named(letter: DeadLetter) -> str:
    return letter.automation if letter.active else f"{letter.automation} (off)"


def _entries(number: int) -> str:
    return counted(number, "entry", "entries")


def _schema() -> "dict[str, type[pl.DataType]]":
    import polars as pl

    types = {"active": pl.Boolean, "entries": pl.Int64, "attempts": pl.Int64}
    return {name: types.get(name, pl.String) for name in DeadLetter.__struct_fields__}
