"""The tables of one simulated automation, in parquet files on disk, and the figures computed from them."""

from datetime import date
from functools import cached_property
from pathlib import Path

import msgspec
import polars as pl

from workbench.backtest.simulate_bucket import CONTACT_TOTALS, ENTRIES, SCHEMAS, STEPS, TURNED_AWAY
from workbench.display.graph import STAYING
from workbench.language.channel import CAPPED_CHANNELS
from workbench.language.run import TERMINAL

_SENT = pl.col("outcome") == "sent"
_SKIPPED = pl.col("outcome").is_in(["skipped", "undeliverable"])
_CHANNEL = pl.col("kind").str.strip_prefix("send_")
_EFFECTS = {"tagged": "tag added", "untagged": "tag removed", "updated": "contact updated"}


class Totals(msgspec.Struct, frozen=True):
    """Counts of what would have happened.

    `entries`: events that started an entry. `turned_away`: events that did not, because of the re-entry rule or the
    loop guard. `held_out`: entries of contacts in the holdout. `contacts`: contacts with an entry. `sent`: messages by
    channel. `reached`: contacts with at least one message to them. `most`: the largest number of messages to one
    contact. `skipped`: messages that an opt-out or a cap suppressed, or that cannot be delivered. `failed`: entries
    that failed permanently. `waiting`: entries that had not ended at the end of the period.
    """

    entries: int = 0
    turned_away: int = 0
    held_out: int = 0
    contacts: int = 0
    reached: int = 0
    sent: dict[str, int] = {}
    most: int = 0
    skipped: int = 0
    failed: int = 0
    waiting: int = 0

    @property
    def messages(self) -> int:
        """Messages to contacts, without webhooks."""
        return sum(self.sent.get(name, 0) for name in CAPPED_CHANNELS)


class Tables:
    """The tables of one automation, each in a folder with a file per bucket."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> pl.LazyFrame:
        """Return a row per step: entry, contact, node, kind, at, outcome, handle, effect, reason, arrives."""
        effect = pl.when(_SENT).then(_CHANNEL).otherwise(pl.col("outcome").replace_strict(_EFFECTS, default=None))
        return self.scan(STEPS).with_columns(effect=effect).select(*_COLUMNS)

    @cached_property
    def totals(self) -> Totals:
        sent = dict(self._count(self.scan(STEPS).filter(_SENT), _CHANNEL.alias("channel")).iter_rows())
        skipped = self.scan(STEPS).filter(_SKIPPED).select(pl.len()).collect().item()
        endings = self.endings
        turned_away = int(endings.filter(pl.col("outcome").is_in(TURNED_AWAY))["entries"].sum())
        unfinished = endings.filter(~pl.col("state").is_in([state.value for state in TERMINAL]))
        per_contact = self.messages_per_contact
        reached = per_contact.filter(pl.col("messages") > 0)
        return Totals(
            entries=int(endings["entries"].sum()) - turned_away,
            turned_away=turned_away,
            held_out=int(endings.filter(pl.col("outcome") == "holdout")["entries"].sum()),
            contacts=int(per_contact["contacts"].sum()),
            reached=int(reached["contacts"].sum()),
            sent=sent,
            most=max(reached["messages"].to_list(), default=0),
            skipped=skipped,
            failed=int(endings.filter(pl.col("state") == "dead")["entries"].sum()),
            waiting=int(unfinished["entries"].sum()),
        )

    @cached_property
    def endings(self) -> pl.DataFrame:
        """Entries by state, outcome and node where they ended or wait; count in `entries`."""
        return self._count(self.scan(ENTRIES), "state", "outcome", "node").rename({"len": "entries"})

    @cached_property
    def step_counts(self) -> pl.DataFrame:
        """Steps by node, outcome, handle and reason: count in `len`, count of first steps at a node in `arrivals`."""
        keys = ("node", "outcome", "handle", "reason")
        counts = (
            self.scan(STEPS)
            .group_by(keys)
            .agg(pl.len().cast(pl.Int64), arrivals=pl.col("arrives").sum().cast(pl.Int64))
        )
        return counts.collect(engine="streaming").sort(keys)

    @cached_property
    def messages_per_contact(self) -> pl.DataFrame:
        """The number of contacts by number of messages: messages, contacts."""
        return self._count(self.scan(CONTACT_TOTALS), "messages").rename({"len": "contacts"}).sort("messages")

    @cached_property
    def days(self) -> pl.DataFrame:
        """Entries and messages by day (UTC): day, entries, messages. Days without either are missing."""
        day = pl.col("at").dt.date().alias("day")
        has_entry = pl.col("outcome").is_in(TURNED_AWAY).fill_null(value=False).not_()
        entries = self._count(self.scan(ENTRIES).filter(has_entry), day).rename({"len": "entries"})
        to_contact = _CHANNEL.is_in(CAPPED_CHANNELS)
        messages = self._count(self.scan(STEPS).filter(_SENT & to_contact), day).rename({"len": "messages"})
        return entries.join(messages, on="day", how="full", coalesce=True).fill_null(0).sort("day")

    def failures(self) -> list[tuple[str, int]]:
        """Return the reasons of permanent failures with their counts, the most frequent first."""
        dead = self.endings.filter(pl.col("state") == "dead").group_by("outcome").agg(pl.col("entries").sum())
        return dead.sort("entries", "outcome", descending=[True, False]).rows()

    def visits(self) -> dict[str, int]:
        counts = self.step_counts.group_by("node").agg(pl.col("arrivals").sum())
        return dict(counts.iter_rows())

    def outcomes(self) -> dict[str, frozenset[str]]:
        by_node = self.step_counts.group_by("node").agg(pl.col("outcome").unique())
        return {node: frozenset(outcomes) for node, outcomes in by_node.iter_rows()}

    def followed(self) -> dict[tuple[str, str | None], int]:
        """Return the number of entries that left each node by each handle."""
        left = self.step_counts.filter(~pl.col("outcome").is_in(STAYING))
        counts = left.group_by("node", "handle").agg(pl.col("len").sum())
        return {(node, handle): count for node, handle, count in counts.iter_rows()}

    def scan(self, name: str) -> pl.LazyFrame:
        """Return the rows of a table in `SCHEMAS`."""
        folder = self._folder / name
        # A backtest without events writes no buckets, so the folder does not exist.
        return pl.scan_parquet(folder) if folder.exists() else pl.LazyFrame(schema=SCHEMAS[name])

    @staticmethod
    def _count(rows: pl.LazyFrame, *keys: str | pl.Expr) -> pl.DataFrame:
        return rows.group_by(*keys).agg(pl.len().cast(pl.Int64)).collect(engine="streaming")


_COLUMNS = ("entry", "contact", "node", "kind", "at", "outcome", "handle", "effect", "reason", "arrives")


def every_day(frame: pl.DataFrame, first: date, last: date) -> pl.DataFrame:
    """Return counts by day with rows of zeros for missing days."""
    days = pl.DataFrame({"day": pl.date_range(first, last, eager=True)})
    return days.join(frame, on="day", how="left").fill_null(0).sort("day")
