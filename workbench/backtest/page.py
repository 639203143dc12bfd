"""A backtest as a page in a notebook."""

import sys
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import polars as pl
from markupsafe import Markup

from api.language.effect import Message, WebhookMessage
from workbench.backtest.figures import way_words
from workbench.display import drawn
from workbench.display.page import html
from workbench.display.table import Column


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
            messages=[each for each in self.messages if not isinstance(each, WebhookMessage)],
            remarks=remarks,
            always=always,
            chart=drawn.picture("backtest", self.days) if self.spread.height else "",
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
    """Return how many contacts got how many messages, in ranges that widen."""
    found = []
    for first, last in pairwise(_RANGES):
        contacts = sum(contacts for messages, contacts in rows if first <= messages < last)
        if contacts:
            found.append((_range(first, last - 1), f"{contacts:,}"))
    return found


def _range(first: int, last: int) -> str:
    if last >= _RANGES[-2]:
        return f"{first:,} or more"
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


_RANGES = (0, 1, 2, 3, 4, 6, 11, 21, 51, 101, 501, 1_001, sys.maxsize)
