"""What became of one automation's entries, in parquet files on disk, and what is counted from them."""

from datetime import date
from functools import cached_property
from pathlib import Path

import msgspec
import polars as pl

from workbench.backtest.simulate_bucket import ENTRIES, PEOPLE, SCHEMAS, STEPS, TURNED_AWAY
from workbench.display.graph import STAYING
from workbench.language.graph import Edge, Graph
from workbench.language.run import TERMINAL

_SENT = pl.col("outcome") == "sent"
_CHANNEL = pl.col("kind").str.strip_prefix("send_")
_EFFECTS = {"tagged": "tag added", "untagged": "tag removed", "updated": "contact updated"}


class Totals(msgspec.Struct, frozen=True):
    """What would have happened, counted.

    `entries`: events that started it and were let in; `turned_away`: those of contacts that were not. `contacts`: who was let in;
    `reached`: who got at least one message, in the app or by email; `most`: how many one of them got. `skipped`: messages held back
    by an opt-out or a cap. `failed`: entries that end for good; `waiting`: entries that had not ended when the time was over.
    """

    entries: int = 0
    turned_away: int = 0
    contacts: int = 0
    reached: int = 0
    inapp: int = 0
    emails: int = 0
    webhooks: int = 0
    most: int = 0
    skipped: int = 0
    failed: int = 0
    waiting: int = 0

    @property
    def messages(self) -> int:
        """Messages to people: in the app and by email."""
        return self.inapp + self.emails


class Tables:
    """The tables of one automation, each in files by bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> pl.LazyFrame:
        """Return a row per step: entry, contact, node, kind, at, outcome, handle, effect, reason, arrives."""
        effect = pl.when(_SENT).then(_CHANNEL).otherwise(pl.col("outcome").replace_strict(_EFFECTS, default=None))
        return self._scan(STEPS).with_columns(effect=effect).select(*_COLUMNS)

    def entries(self) -> pl.LazyFrame:
        """Return a row per entry: entry, contact, event, at, state, outcome, node, error."""
        return self._scan(ENTRIES)

    def people(self) -> pl.LazyFrame:
        """Return a row per contact that was let in: contact, entries, messages."""
        return self._scan(PEOPLE)

    @cached_property
    def totals(self) -> Totals:
        """All of it, counted."""
        sent = dict(self._counted(self._scan(STEPS).filter(_SENT), _CHANNEL.alias("channel")).iter_rows())
        skipped = self._scan(STEPS).filter(pl.col("outcome") == "skipped").select(pl.len()).collect().item()
        endings = self.endings
        away = int(endings.filter(pl.col("outcome").is_in(TURNED_AWAY))["entries"].sum())
        going = endings.filter(~pl.col("state").is_in([state.value for state in TERMINAL]))
        spread = self.messages_per_contact
        reached = spread.filter(pl.col("messages") > 0)
        return Totals(
            entries=int(endings["entries"].sum()) - away,
            turned_away=away,
            contacts=int(spread["contacts"].sum()),
            reached=int(reached["contacts"].sum()),
            inapp=sent.get("inapp", 0),
            emails=sent.get("email", 0),
            webhooks=sent.get("webhook", 0),
            most=max(reached["messages"].to_list(), default=0),
            skipped=skipped,
            failed=int(endings.filter(pl.col("state") == "dead")["entries"].sum()),
            waiting=int(going["entries"].sum()),
        )

    @cached_property
    def endings(self) -> pl.DataFrame:
        """How many entries ended how: state, outcome, node, entries."""
        return self._counted(self._scan(ENTRIES), "state", "outcome", "node").rename({"len": "entries"})

    @cached_property
    def ways(self) -> pl.DataFrame:
        """How many steps went how: node, outcome, handle, reason, len, arrivals (entries that came to the node with them)."""
        keys = ("node", "outcome", "handle", "reason")
        counts = (
            self._scan(STEPS)
            .group_by(keys)
            .agg(pl.len().cast(pl.Int64), arrivals=pl.col("arrives").sum().cast(pl.Int64))
        )
        return counts.collect(engine="streaming").sort(keys)

    @cached_property
    def messages_per_contact(self) -> pl.DataFrame:
        """How many contacts got how many messages: messages, contacts."""
        return self._counted(self._scan(PEOPLE), "messages").rename({"len": "contacts"}).sort("messages")

    @cached_property
    def days(self) -> pl.DataFrame:
        """Entries and messages by day of UTC: day, entries, messages."""
        day = pl.col("at").dt.date().alias("day")
        let_in = pl.col("outcome").is_in(TURNED_AWAY).fill_null(value=False).not_()
        entries = self._counted(self._scan(ENTRIES).filter(let_in), day).rename({"len": "entries"})
        to_people = _CHANNEL.is_in(["inapp", "email"])
        messages = self._counted(self._scan(STEPS).filter(_SENT & to_people), day).rename({"len": "messages"})
        return entries.join(messages, on="day", how="full", coalesce=True).fill_null(0).sort("day")

    def failures(self) -> list[tuple[str, int]]:
        """Return why entries fail permanently, and how many, the most frequent first."""
        dead = self.endings.filter(pl.col("state") == "dead").group_by("outcome").agg(pl.col("entries").sum())
        return dead.sort("entries", "outcome", descending=[True, False]).rows()

    def visits(self) -> dict[str, int]:
        """Return how many entries came to each node."""
        counts = self.ways.group_by("node").agg(pl.col("arrivals").sum())
        return dict(counts.iter_rows())

    def outcomes(self) -> dict[str, frozenset[str]]:
        """Return the outcomes of the steps at each node."""
        found = self.ways.group_by("node").agg(pl.col("outcome").unique())
        return {node: frozenset(outcomes) for node, outcomes in found.iter_rows()}

    def followed(self) -> dict[tuple[str, str | None], int]:
        """Return how many entries left a node by a handle."""
        left = self.ways.filter(~pl.col("outcome").is_in(STAYING))
        return {
            (node, handle): count
            for node, handle, count in left.group_by("node", "handle").agg(pl.col("len").sum()).iter_rows()
        }

    def untaken(self, graph: Graph) -> tuple[Edge, ...]:
        """Return the edges that no entry went along."""
        followed = self.followed()
        return tuple(each for each in graph.edges if (each.source, each.handle) not in followed)

    def _scan(self, name: str) -> pl.LazyFrame:
        folder = self._folder / name
        return pl.scan_parquet(folder) if folder.exists() else pl.LazyFrame(schema=SCHEMAS[name])

    @staticmethod
    def _counted(rows: pl.LazyFrame, *keys: str | pl.Expr) -> pl.DataFrame:
        return rows.group_by(*keys).agg(pl.len().cast(pl.Int64)).collect(engine="streaming")


_COLUMNS = ("entry", "contact", "node", "kind", "at", "outcome", "handle", "effect", "reason", "arrives")


def every_day(frame: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
    """Return counts by day with the days on which nothing happened."""
    days = pl.DataFrame({"day": pl.date_range(first, last, eager=True)})
    return days.join(frame, on="day", how="left").fill_null(0).sort("day")
