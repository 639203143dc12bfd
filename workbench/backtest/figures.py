"""The figures of a backtest as they are shown: a table of totals, shares of branches, the graph with its counts."""

from collections.abc import Mapping

import polars as pl

from api.language.graph import Graph
from api.language.trigger import Trigger
from workbench.backtest.source import Ground, Whom
from workbench.backtest.tables import Tables, Totals
from workbench.display.graph import STAYING, Mark, Taken
from workbench.display.page import moment
from workbench.display.table import Column
from workbench.display.words import HANDLE_WORDS, starting


def about(name: str, ground: Ground, trigger: Trigger) -> str:
    """Say what was tried on which events."""
    since, until = (moment(each)[:16] for each in (ground.window.since, ground.window.until))
    return f"{name}: on every {starting(trigger)}, from {since} to {until} UTC{_whose(ground.whom)}."


def _whose(whom: Whom) -> str:
    if whom.segment is None:
        return f", for {whom.sample:.2%} of the contacts" if whom.sampled else ""
    share = f" for {whom.sample:.2%} of them" if whom.sampled else ""
    return f", of those who are in the segment {whom.segment} now{',' if share else ''}{share}"


def figures(
    totals: Totals, before: Totals | None, against: str, ground: Ground
) -> tuple[list[Column], list[list[str]]]:
    """Return columns and rows; beside the totals stand those of what it is compared with."""
    sides = [totals] if before is None else [totals, before]
    columns = [Column("what"), Column("would have been", number=True)]
    if before is not None:
        columns[1:] = [Column("this one", number=True), Column(against, number=True)]
    told = [_told(each, ground) for each in sides]
    rows = [
        [what, *(each[what] for each in told)]
        for what in told[0]
        if what in _SHOWN or any(each[what] != "0" for each in told)
    ]
    return columns, rows


_SHOWN = ("entries", "contacts in it", "contacts who get a message")


def _told(totals: Totals, ground: Ground) -> dict[str, str]:
    mean = totals.messages / totals.reached if totals.reached else 0.0
    counts = {
        "entries": totals.entries,
        "contacts in it": totals.contacts,
        "contacts who get a message": totals.reached,
        f"of {_counted(ground)}": f"{totals.reached / ground.contacts:.1%}" if totals.reached else 0,
        "messages in the app": totals.inapp,
        "emails": totals.emails,
        "webhooks": totals.webhooks,
        "messages per contact, on average": f"{mean:.1f}" if mean else 0,
        "messages per contact, at most": totals.most,
        "messages held back": totals.skipped,
        "failed for good": totals.failed,
        "not let in again": totals.turned_away,
        "still under way": totals.waiting,
    }
    return {what: each if isinstance(each, str) else f"{each:,}" for what, each in counts.items()}


def _counted(ground: Ground) -> str:
    """Return how many contacts there are, of those whose events count."""
    of_segment = f" of {ground.whom.segment}" if ground.whom.segment is not None else ""
    if ground.whom.sampled:
        return f"{ground.contacts:,} contacts{of_segment} in the sample"
    return f"{ground.contacts:,} members{of_segment}" if of_segment else f"all {ground.contacts:,} contacts"


def branches(graph: Graph, followed: Mapping[tuple[str, str | None], int]) -> pl.DataFrame:
    """Return how entries went on from nodes that branch: node, way, entries, share."""
    rows = []
    for node in graph.nodes:
        ways = [way for way in node.handles if way is not None]
        counts = [followed.get((node.id, way), 0) for way in ways]
        rows += [(node.id, way, count, count / (sum(counts) or 1)) for way, count in zip(ways, counts, strict=True)]
    schema = {"node": pl.String, "way": pl.String, "entries": pl.Int64, "share": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def way_words(way: str) -> str:
    """Name a way out of a node that branches."""
    return HANDLE_WORDS.get(way, way)


def taken(tables: Tables, graph: Graph) -> Taken:
    """Return what the picture of the graph shows: how many entries came to each node, and their shares where they part."""
    visits, followed, outcomes = tables.visits(), tables.followed(), tables.outcomes()
    marks = {node: _mark(outcomes[node]) for node in visits}
    shares = {(node, way): f"{share:.0%}" for node, way, _, share in branches(graph, followed).iter_rows()}
    return Taken(
        marks, frozenset(followed), notes={node: f"{count:,}" for node, count in visits.items()}, shares=shares
    )


def _mark(outcomes: frozenset[str]) -> Mark:
    """Return the mark of a node: done when anybody went on from it."""
    if outcomes - STAYING:
        return "done"
    if outcomes & {"failed", "refused"}:
        return "failed"
    return "goal" if "goal" in outcomes else "waiting" if "waiting" in outcomes else "skipped"
