"""Whom a publication finds on their way: entries of earlier versions that have not ended, and what becomes of them."""

from collections.abc import Sequence

import msgspec

from workbench.display import words
from workbench.display.table import Column, plain, table


class Earlier(msgspec.Struct, frozen=True, rename="camel"):
    """How many entries of a version stand at a step in a state. No version: nothing was published when they came."""

    version: int | None
    node_id: str | None
    state: str
    entries: int
    then: str

    def fate(self) -> str:
        """Say what becomes of them."""
        return _FATES.get(self.then) or f"finish on version {self.version}"


class Impact(msgspec.Struct, frozen=True):
    """The entries of earlier versions that had not ended when a version was published."""

    entries: int = 0
    earlier: tuple[Earlier, ...] = ()

    def headline(self) -> str:
        """Say how many they are."""
        if not self.entries:
            return "No entry is on its way through an earlier version."
        are = "is" if self.entries == 1 else "are"
        return f"{words.counted(self.entries, 'entry', 'entries')} of earlier versions {are} still on the way"

    def table(self) -> tuple[Sequence[Column], Sequence[Sequence[str]]]:
        """Return columns and rows, the newest version first."""
        rows = [
            (str(each.version or "none"), each.node_id or "not begun", each.state, str(each.entries), each.fate())
            for each in self.earlier
        ]
        return _COLUMNS, rows

    def __repr__(self) -> str:
        return f"{self.headline()}\n{plain(*self.table())}" if self.entries else self.headline()

    def _repr_html_(self) -> str:
        return table(*self.table(), title=self.headline() if self.entries else "", empty=self.headline())


_FATES = {
    "no_published_version": "end at once: nothing was published when they came",
    "automation_inactive": "are cancelled: the automation is off",
}
_COLUMNS = (
    Column("version"),
    Column("step"),
    Column("state"),
    Column("entries", number=True),
    Column("what becomes of them"),
)
