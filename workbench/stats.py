"""The statistics of an automation: entries by state, counts per step, failures, and the goal rate.

The goal rate counts contacts by the side they were on when they first entered: treated, or held out. With both sides
the difference is a lift with a 95 % interval. `Stats` is one reading; `Dashboard` is a widget that repeats it every few
seconds.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from workbench import environment, publish
from workbench.connection import Connection
from workbench.display import words
from workbench.display.html import TableColumn, html, moment, plain, printable_text, table_columns, trend
from workbench.display.kinds import step_title
from workbench.display.results import message_table
from workbench.display.words import duration, quantity
from workbench.entries import DeadLetters, dead_letters
from workbench.errors import InvalidArgumentError
from workbench.language.graph import Graph, read_graph
from workbench.language.lift import MIN_CONTACTS, MIN_REACHED, LiftGroup
from workbench.language.responses import GoalView, MessageResults
from workbench.publish import AutomationRecord

if TYPE_CHECKING:
    import polars as pl

    from workbench.display.widgets import LiveWindow


class GoalRate(GoalView, frozen=True, rename="camel"):
    """The share of the contacts that first entered in the last `days` and reached the goal in time."""

    def lines(self) -> list[str]:
        """Return sentences: the rate, the lift if there is a holdout, and what limits both."""
        if self.goal is None:
            return ['No goal: .goal("purchase") names the event that counts as success.']
        within = duration(timedelta(seconds=self.within_seconds))
        rate = f"Goal {self.goal}: reached by {words.goal_share(self.treated)} within {within} of first entering"
        lines = [f"{rate}, in the last {quantity(self.days, 'day')}."]
        if self.lift is not None:
            since = f", since version {self.since_version}" if (self.since_version or 1) > 1 else ""
            lines.append(f"Held out ({self.holdout} %{since}): reached by {words.goal_share(self.held_out)}.")
            lift = self.lift
            if lift.difference is None or lift.low is None or lift.high is None:
                needed = f"{MIN_CONTACTS} contacts per side, and {MIN_REACHED} that reach the goal"
                lines.append(f"Lift: not enough data. It takes {needed}.")
            else:
                difference, low, high = (f"{share * 100:+.1f}" for share in (lift.difference, lift.low, lift.high))
                verdict = words.WORDS["lifts"][lift.verdict]
                lines.append(f"Lift: {difference} points (95 % interval: {low} to {high}). {verdict}")
        if self.cut_at is not None:
            lines.append(f"There are too many to count them all: only entries since {moment(self.cut_at)} UTC count.")
        if self.later_entries:
            entries = quantity(self.later_entries, "entry", "entries")
            lines.append(f"{entries} of contacts that had entered before: not counted.")
        # Leaving them out would bias the lift: with a holdout of 10 % it takes nine of ten merged contacts from the
        # held-out side and one of ten from the treated side, and contacts that merge are those that sign in.
        if self.mixed:
            contacts = quantity(self.mixed, "contact")
            lines.append(f"{contacts} on both sides after a merge: counted on the side of the first entry.")
        if self.unknown:
            contacts = quantity(self.unknown, "contact")
            lines.append(f"{contacts} with too many events to look at: counted as not reaching it.")
        return lines

    def table(self) -> tuple[Sequence[TableColumn], list[tuple[str, ...]]]:
        """Return columns and one row per day, the newest first."""
        if self.lift is None:
            return (_DAY, *_TREATED), [(day.day.isoformat(), *_cells(day.treated)) for day in reversed(self.by_day)]
        return (_DAY, *_TREATED, *_HELD_OUT), [
            (day.day.isoformat(), *_cells(day.treated), *_cells(day.held_out)) for day in reversed(self.by_day)
        ]

    def percents(self) -> list[int]:
        """Return the rate of each day on which contacts entered, in whole percent."""
        return [round(day.treated.rate * 100) for day in self.by_day if day.treated.contacts]


_DAY = TableColumn("entered on")
_TREATED = table_columns("contacts", "reached", "rate", numbers=("contacts", "reached", "rate"))
_HELD_OUT = tuple(TableColumn(f"held out: {column.title}", number=True) for column in _TREATED)


def _cells(group: LiftGroup) -> tuple[str, str, str]:
    return f"{group.contacts:,}", f"{group.reached:,}", f"{group.rate:.1%}" if group.contacts else ""


class StepFigures(msgspec.Struct, frozen=True):
    """One step: what it does, how many of the newest entries are at it, and how often each outcome occurred."""

    node_id: str
    kind: str
    does: str
    live: int
    outcomes: Mapping[str, int]

    def outcome_text(self) -> str:
        by_count = sorted(self.outcomes.items(), key=lambda item: -item[1])
        return ", ".join(f"{words.outcome(word, self.kind)}: {count:,}" for word, count in by_count)


class Stats(msgspec.Struct, frozen=True):
    """The figures of an automation at one time. `.dashboard()` reads and displays them every few seconds."""

    record: AutomationRecord
    states: Mapping[str, int]
    steps: Sequence[StepFigures]
    messages: Sequence[MessageResults]
    goal: GoalRate
    dead: DeadLetters

    def headline(self) -> str:
        """Return how many entries there are in each state."""
        return f"{words.entry_counts(self.states)}."

    def table(self) -> tuple[Sequence[TableColumn], list[tuple[str, str, str, str]]]:
        """Return columns and one row per step."""
        return _COLUMNS, [(step.node_id, step.does, f"{step.live:,}", step.outcome_text()) for step in self.steps]

    def message_table(self) -> tuple[Sequence[TableColumn], list[tuple[str, ...]]]:
        """Return columns and one row per step that sends messages; no row without messages."""
        return message_table(self.messages)

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame: step, outcome, count. Entries that are at a step now have the outcome `live`."""
        from workbench.frames import frame_of

        rows = [
            (step.node_id, outcome, count)
            for step in self.steps
            for outcome, count in ({"live": step.live} | dict(step.outcomes)).items()
        ]
        return frame_of(rows, step=str, outcome=str, count=int)

    @printable_text
    def __repr__(self) -> str:
        pills = ", ".join(text for text, _ in self.record.pills())
        messages = ["", "Messages:", plain(*self.message_table())] if self.messages else []
        dead = ["", "Failed permanently:", repr(self.dead)] if self.dead else []
        head = [f"{self.record.name} ({pills})", self.headline(), *self.goal.lines()]
        return "\n".join([*head, "", plain(*self.table()), *messages, *dead])

    def _repr_html_(self) -> str:
        return html(
            "stats.html.j2",
            name=self.record.name,
            pills=self.record.pills(),
            headline=self.headline(),
            goal=self.goal,
            trend=trend(self.goal.percents()) if len(self.goal.percents()) > 1 else "",
            steps=self.table(),
            messages=self.message_table() if self.messages else None,
            dead=self.dead.table() if self.dead else None,
        )


_COLUMNS = table_columns("step", "action", "entries now", "outcomes", numbers=("entries now",))


def stats(connection: Connection, record: AutomationRecord, days: int) -> Stats:
    """Return the current figures of an automation. The goal rate covers the last `days`."""
    path = f"/automations/{record.id}"
    current = msgspec.convert(connection.get(path), AutomationRecord)
    counts = connection.get(f"{path}/stats")
    goal = msgspec.convert(connection.get(f"{path}/goal", days=days), GoalRate)
    # New entries run the live version; the draft may have other steps.
    version = publish.live_version(connection, current)
    graph = read_graph(current.graph if version is None else version.graph)
    nodes = graph.by_id if isinstance(graph, Graph) else {}
    titles = {node.id: step_title(node) for node in nodes.values()}
    live, outcomes = counts["live"], counts["nodes"]
    # Entries of earlier versions can be at steps that the live version does not have.
    titles |= dict.fromkeys(sorted({*live, *outcomes} - titles.keys()), "of an earlier version")
    steps = [
        StepFigures(key, nodes[key].kind if key in nodes else "", title, live.get(key, 0), outcomes.get(key, {}))
        for key, title in titles.items()
    ]
    messages = msgspec.convert(counts["messages"], tuple[MessageResults, ...])
    return Stats(current, counts["entries"], steps, messages, goal, dead_letters(connection, record.id))


class Dashboard:
    """The live view of one automation: a widget in a notebook, and the current figures as text elsewhere."""

    def __init__(self, read: Callable[[], Stats]) -> None:
        self._read = read

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer a request of the page: `look` reads the figures; `replay` first replays the entries of a `cause`."""
        stats = self._read()
        notice = ""
        match request:
            case {"ask": "replay", "cause": str() as cause}:
                notice = repr(stats.dead.replay(cause))
                stats = self._read()
            case {"ask": "look"}:
                pass
            case _:
                raise InvalidArgumentError("the page sent an unknown request: reload it")
        return {
            "title": stats.record.name,
            "pills": [list(pill) for pill in stats.record.pills()],
            "lines": [stats.headline(), *stats.goal.lines()],
            "steps": _page_table(*stats.table()),
            "messages": _page_table(*stats.message_table()),
            "dead": _page_table(*stats.dead.table()),
            "days": _page_table(*stats.goal.table()),
            "percents": stats.goal.percents(),
            "dates": [day.day.isoformat() for day in stats.goal.by_day if day.treated.contacts],
            "notice": notice,
        }

    def _ipython_display_(self) -> None:
        stats = self._read()
        if not environment.in_kernel():  # a terminal has no widgets
            sys.stdout.write(f"{stats!r}\n")
            return
        from workbench.display.widgets import show

        # The HTML is for viewers without a kernel, such as a notebook that is opened again.
        show(self._display_(), stats._repr_html_())

    def _display_(self) -> "LiveWindow":  # marimo
        from workbench.display.widgets import LiveWindow

        return LiveWindow(self.answer)

    @printable_text
    def __repr__(self) -> str:
        return repr(self._read())


def _page_table(columns: Sequence[TableColumn], rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return a table for the page. `numbers` are the indices of right-aligned columns."""
    return {
        "heads": [column.title for column in columns],
        "numbers": [index for index, column in enumerate(columns) if column.number],
        "rows": [[str(cell) for cell in row] for row in rows],
    }
