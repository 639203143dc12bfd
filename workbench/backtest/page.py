"""A backtest as a page in a notebook."""

from collections.abc import Sequence

import msgspec
import polars as pl
from markupsafe import Markup

from api.language.effect import Message
from workbench.backtest.figures import way_words
from workbench.display import drawn
from workbench.display.page import html
from workbench.display.table import Column

_MOST_ROWS = 12


class Page(msgspec.Struct, frozen=True):
    """What is shown. `branches`, `spread`, `days`: the frames of a backtest's `branches()`, `messages_per_contact()`, `days()`."""

    headline: str
    about: str
    figures: tuple[Sequence[Column], Sequence[Sequence[str]]]
    picture: Markup
    messages: Sequence[Message]
    remarks: Sequence[str]
    branches: pl.DataFrame
    spread: pl.DataFrame
    days: pl.DataFrame

    def html(self) -> str:
        """Return the page."""
        *remarks, always = self.remarks
        return html(
            "backtest.html.j2",
            headline=self.headline,
            about=self.about,
            picture=self.picture,
            figures=self.figures,
            messages=self.messages,
            remarks=remarks,
            always=always,
            chart=drawn.picture("backtest", self.days),
            branches=(_BRANCHES, [_branch(*row) for row in self.branches.iter_rows()]),
            spread=(_SPREAD, _spread(self.spread.rows())),
            days=(
                [Column(name.replace("_", " "), number=name != "day") for name in self.days.columns],
                self.days.rows(),
            ),
        )


_BRANCHES = (Column("step"), Column("way"), Column("entries", number=True), Column("share", number=True))
_SPREAD = (Column("messages", number=True), Column("contacts", number=True))


def _branch(node: str, way: str, entries: int, share: float) -> tuple[str, str, str, str]:
    return node, way_words(way), f"{entries:,}", f"{share:.1%}"


def _spread(rows: Sequence[tuple[int, int]]) -> list[tuple[str, str]]:
    """Return how many contacts got how many messages; the last row is of all those who got more."""
    shown = [(f"{messages:,}", f"{contacts:,}") for messages, contacts in rows[:_MOST_ROWS]]
    more = sum(contacts for _, contacts in rows[_MOST_ROWS:])
    return [*shown, (f"more than {shown[-1][0]}", f"{more:,}")] if more else shown
