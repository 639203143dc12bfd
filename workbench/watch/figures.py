"""How an automation is doing, read once: entries by state, who stands at which step, what happened there, failures, the goal."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from api.language.graph import Graph, read_graph
from workbench import publish
from workbench.connection import Connection
from workbench.dead_letters import DeadLetters, dead_letters
from workbench.display import words
from workbench.display.page import html, trend
from workbench.display.table import Column, plain
from workbench.publish import Record
from workbench.watch.rate import GoalRate

if TYPE_CHECKING:
    import polars as pl


class StepFigures(msgspec.Struct, frozen=True):
    """One step: what it does, how many of the newest entries stand there now, and how often each outcome was met there."""

    node_id: str
    does: str
    live: int
    outcomes: Mapping[str, int]

    def met(self) -> str:
        """Say the outcomes, the most frequent first."""
        ordered = sorted(self.outcomes.items(), key=lambda each: -each[1])
        return ", ".join(f"{words.outcome(word)}: {count:,}" for word, count in ordered)


class Stats:
    """How an automation is doing, as of when it was asked; shows itself. `.live()` of the automation keeps it fresh."""

    def __init__(
        self,
        record: Record,
        states: Mapping[str, int],
        steps: Sequence[StepFigures],
        goal: GoalRate,
        dead: DeadLetters,
    ) -> None:
        self._record = record
        self.states = dict(states)
        self.steps = tuple(steps)
        self.goal = goal
        self.dead = dead

    @property
    def name(self) -> str:
        """The name of the automation."""
        return self._record.name

    def pills(self) -> list[tuple[str, str]]:
        """Say where the automation stands, each with a colour."""
        return self._record.pills()

    def headline(self) -> str:
        """Say how many entries there are, and where they stand."""
        return f"{words.standing(self.states)}."

    def table(self) -> tuple[Sequence[Column], list[tuple[str, str, str, str]]]:
        """Return columns and rows, a row per step."""
        return _COLUMNS, [(each.node_id, each.does, f"{each.live:,}", each.met()) for each in self.steps]

    def frame(self) -> "pl.DataFrame":
        """Return a polars frame: step, outcome, count; who stands at a step now has the outcome `live`."""
        import polars as pl

        rows = [
            (each.node_id, outcome, count)
            for each in self.steps
            for outcome, count in ({"live": each.live} | dict(each.outcomes)).items()
        ]
        return pl.DataFrame(rows, schema={"step": pl.String, "outcome": pl.String, "count": pl.Int64}, orient="row")

    def __repr__(self) -> str:
        pills = ", ".join(text for text, _ in self.pills())
        dead = ["", "Failed for good:", repr(self.dead)] if self.dead else []
        return "\n".join(
            [f"{self.name} ({pills})", self.headline(), *self.goal.lines(), "", plain(*self.table()), *dead]
        )

    def _repr_html_(self) -> str:
        return html(
            "stats.html.j2",
            name=self.name,
            pills=self.pills(),
            headline=self.headline(),
            goal=self.goal,
            trend=trend(self.goal.percents()) if len(self.goal.percents()) > 1 else "",
            steps=self.table(),
            dead=self.dead.table() if self.dead else None,
        )


_COLUMNS = (Column("step"), Column("what it does"), Column("there now", number=True), Column("what happened there"))


def stats(connection: Connection, record: Record, days: int) -> Stats:
    """Return how an automation is doing now; the goal rate is that of the last `days`."""
    path = f"/automations/{record.id}"
    there = msgspec.convert(connection.get(path), Record)
    counted = connection.get(f"{path}/stats")
    goal = msgspec.convert(connection.get(f"{path}/goal", days=days), GoalRate)
    steps = _steps(_graph(connection, there), counted["live"], counted["nodes"])
    return Stats(there, counted["entries"], steps, goal, dead_letters(connection, record.id))


def _graph(connection: Connection, record: Record) -> Graph:
    """Return the live version's graph, or the draft's while nothing is published."""
    version = publish.live(connection, record)
    found = read_graph(record.graph if version is None else version.graph)
    return found if isinstance(found, Graph) else Graph()


def _steps(graph: Graph, live: Mapping[str, int], outcomes: Mapping[str, Mapping[str, int]]) -> list[StepFigures]:
    """Return the steps of a graph, then those that only earlier versions have."""
    does = {node.id: words.title(node) for node in graph.nodes}
    gone = sorted({*live, *outcomes} - does.keys())
    return [
        StepFigures(
            node_id, does.get(node_id, "of an earlier version"), live.get(node_id, 0), outcomes.get(node_id, {})
        )
        for node_id in (*does, *gone)
    ]
