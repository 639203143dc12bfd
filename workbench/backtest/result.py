"""What a backtest found. It is shown as a page; the rows behind it are polars frames, read from disk when they are asked for."""

from typing import TYPE_CHECKING

import msgspec
import polars as pl

from api.language.effect import Message
from api.language.graph import Edge, Graph
from api.language.simulate import Automation
from workbench.backtest.figures import about, branches, figures, taken
from workbench.backtest.folder import Folder
from workbench.backtest.order import Lived
from workbench.backtest.page import Page
from workbench.backtest.remarks import ALWAYS, Knowing, remarks
from workbench.backtest.source import Ground
from workbench.backtest.tables import Tables, Totals, every_day
from workbench.display import drawn
from workbench.display.graph import picture
from workbench.display.table import Column, plain
from workbench.display.words import both, counted
from workbench.errors import DraftError

if TYPE_CHECKING:
    import altair as alt


class Happened(msgspec.Struct, frozen=True):
    """What a run left: files in `folder`, which is removed with the last who holds it, and what holds beside them."""

    folder: Folder
    ground: Ground
    automations: tuple[Automation, ...]
    lived: Lived


class Called(msgspec.Struct, frozen=True):
    """How to speak of it: the automation's name, what it is compared with, whether it is saved, and its problems."""

    name: str
    against: str = ""
    saved: bool = False
    problems: int = 0


class Backtest:
    """What an automation would have done in a period, had it run. Nothing was sent, and nothing was written.

    `totals` counts it. `frame()` has a row per step, `entries()` one per entry, `contacts()` one per contact, `days()` one per day.
    Compared with a version (`against=…`): `before` counts what that would have done, `gains()` and `losses()` are the contacts
    that get messages from only one of both.
    """

    def __init__(self, called: Called, happened: Happened) -> None:
        self._called = called
        self._happened = happened
        self._tables, *rivals = [
            Tables(happened.folder.path / str(number)) for number in range(len(happened.automations))
        ]
        self._rival = rivals[0] if rivals else None

    @property
    def totals(self) -> Totals:
        """What would have happened, counted."""
        return self._tables.totals

    @property
    def before(self) -> Totals | None:
        """What the version that it is compared with would have done; None without one."""
        return self._rival.totals if self._rival is not None else None

    @property
    def reach(self) -> float:
        """The share of the contacts (0 to 1; of all, of the sample, of the segment) that would have got a message."""
        contacts = self._happened.ground.contacts
        return self.totals.reached / contacts if contacts else 0.0

    @property
    def messages(self) -> tuple[Message, ...]:
        """One message of each step that sends: the first, with its values filled in."""
        return self._happened.lived.messages[0] if self._happened.lived.messages else ()

    @property
    def untaken(self) -> tuple[Edge, ...]:
        """The edges of the graph that no entry went along."""
        return self._tables.untaken(self._graph)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What to know before believing it: what could not be known, and what looks wrong."""
        return (*remarks(self._knowing(), self._tables), ALWAYS)

    def frame(self) -> pl.DataFrame:
        """Return a row per step: entry (the id of the event that started it), contact, node, kind, at, outcome, handle, effect, reason, arrives.

        `effect`: what it did (inapp, email, webhook, tag added, tag removed, contact updated); `reason`: why it was skipped, failed, or waits;
        `arrives`: whether it is the entry's first step at this node.
        """
        return self.scan().collect()

    def scan(self) -> pl.LazyFrame:
        """Return the same rows unread, for questions about more of them than fit into memory."""
        return self._tables.steps()

    def entries(self) -> pl.DataFrame:
        """Return a row per entry: entry, contact, event (its name), at, state, outcome, node (where it ended, or waits), error."""
        return self._tables.entries().collect()

    def contacts(self) -> pl.DataFrame:
        """Return a row per contact that was let in: contact, entries, messages (in the app and by email)."""
        return self._tables.people().collect()

    def days(self) -> pl.DataFrame:
        """Return a row per day (UTC): day, entries, messages; compared with a version also its entries_before, messages_before."""
        window = self._happened.ground.window
        first, last = window.since.date(), window.until.date()
        days = every_day(self._tables.days, first, last)
        if self._rival is None:
            return days
        return days.join(every_day(self._rival.days, first, last), on="day", suffix="_before")

    def branches(self) -> pl.DataFrame:
        """Return how conditions, waits and splits went: node, way, entries, share (0 to 1, of those that went on from there)."""
        return branches(self._graph, self._tables.followed())

    def messages_per_contact(self) -> pl.DataFrame:
        """Return how many contacts got how many messages: messages, contacts."""
        return self._tables.messages_per_contact

    def gains(self) -> pl.DataFrame:
        """Return who gets messages now and got none from the version compared with: contact, messages."""
        return self._only(self._tables, self._compared())

    def losses(self) -> pl.DataFrame:
        """Return who got messages from the version compared with and gets none now: contact, messages."""
        return self._only(self._compared(), self._tables)

    def chart(self) -> "alt.Chart | alt.LayerChart":
        """Return entries and messages per day as an Altair chart, to be changed at will."""
        return drawn.chart("backtest", self.days())

    def headline(self) -> str:
        """Say in one sentence what would have happened."""
        totals = self.totals
        if not totals.entries:
            return "Would not have started once"
        sent = [
            counted(totals.messages, "message") + f" to {counted(totals.reached, 'contact')}"
            if totals.messages
            else "",
            counted(totals.webhooks, "webhook") if totals.webhooks else "",
        ]
        started = f"Would have started {counted(totals.entries, 'time')}"
        sending = both([each for each in sent if each])
        return f"{started} and sent {sending}" if sending else f"{started} and sent nothing"

    def __repr__(self) -> str:
        lines = [
            f"{self.headline()}. {self._about()}",
            plain(*self._figures()),
            *(f"! {each}" for each in self.remarks),
        ]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return Page(
            headline=self.headline(),
            about=self._about(),
            figures=self._figures(),
            picture=picture(self._automation.trigger, self._graph, taken(self._tables, self._graph)),
            messages=self.messages,
            remarks=self.remarks,
            branches=self.branches(),
            spread=self.messages_per_contact(),
            days=self.days(),
        ).html()

    def _about(self) -> str:
        said = about(self._called.name, self._happened.ground, self._automation.trigger)
        if self._rival is None:
            return said
        gains, losses = self.gains().height, self.losses().height
        against = self._called.against
        return (
            f"{said} {counted(gains, 'contact')} would get messages only from this one, "
            f"{counted(losses, 'contact')} only from {against}."
        )

    def _figures(self) -> tuple[list[Column], list[list[str]]]:
        return figures(self.totals, self.before, self._called.against, self._happened.ground)

    def _compared(self) -> Tables:
        if self._rival is None:
            raise DraftError('this backtest is compared with nothing: .backtest(against="published") is')
        return self._rival

    @staticmethod
    def _only(ours: Tables, theirs: Tables) -> pl.DataFrame:
        """Return the contacts that get messages only from ours."""
        reached, others = (
            each.people().filter(pl.col("messages") > 0).select("contact", "messages") for each in (ours, theirs)
        )
        return (
            reached.join(others, on="contact", how="anti")
            .sort("messages", "contact", descending=[True, False])
            .collect()
        )

    def _knowing(self) -> Knowing:
        return Knowing(self._automation, self._graph, self._happened.lived, self._called.saved, self._called.problems)

    @property
    def _automation(self) -> Automation:
        return self._happened.automations[0]

    @property
    def _graph(self) -> Graph:
        return self._automation.graph or Graph()
