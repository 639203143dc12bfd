"""The result of a backtest: counts, frames, and a page for notebooks.

The rows are in parquet files on disk. Frames are read from them on request, so a result costs little memory however
long the period.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from workbench.backtest.buckets import Folder
from workbench.backtest.simulate_bucket import CONTACT_TOTALS, DIFFERENCES, ENTRIES, BucketSummary
from workbench.backtest.source import BacktestScope, filter_paths, filters_on_addresses
from workbench.backtest.tables import Tables, Totals, every_day
from workbench.display import charts
from workbench.display.graph import STAYING, Mark, RunPath, picture
from workbench.display.html import TableColumn, html, moment, plain, printable_text, table_columns
from workbench.display.kinds import handle_words, trigger_title
from workbench.display.words import entry_outcome, join_and, quantity
from workbench.errors import InvalidArgumentError
from workbench.language.actions import AddTag, RemoveTag, Split, UpdateContact
from workbench.language.channel import CHANNELS, Message, channel_of
from workbench.language.check import context_paths
from workbench.language.graph import Edge, Graph
from workbench.language.simulate import SimulatedAutomation
from workbench.language.starts import StartSource

if TYPE_CHECKING:
    import altair as alt


_ALWAYS_SHOWN = ("entries", "contacts that enter", "contacts with a message")
_BRANCH_COLUMNS = table_columns("Step", "Branch", "Entries", "Share", numbers=("Entries", "Share"))
_SPREAD_COLUMNS = table_columns("Messages", "Contacts", numbers=("Messages", "Contacts"))
_RANGES = (0, 1, 2, 3, 4, 6, 11, 21, 51, 101, 501, 1_001, sys.maxsize)
_MANY_MESSAGES = 10  # to one contact in a period
_ASSUMPTIONS = (
    "Contacts have the values that they had at each moment, without the changes that this automation made. No entries "
    "exist at the start of the period. Every email and webhook is assumed to be delivered."
)
_LIVE_ASSUMPTIONS = (
    "Contacts have the values that they had at each moment, and deliveries fail as recorded. Entries from before the "
    "period are not played."
)


class BacktestLabel(msgspec.Struct, frozen=True):
    """The names of the automation and of the other version. `saved`: it has an id, on which splits depend."""

    name: str
    against: str = ""
    saved: bool = False
    problems: int = 0


class Backtest:
    """What an automation would have done in a period. Nothing was sent or written.

    `totals` has the counts. `frame()` has a row per step, `entries()` one per entry, `contacts()` one per contact,
    `days()` one per day. In a comparison (`against=…`), `before` has the counts of the other version, and `gains()`
    and `losses()` are the contacts that get messages from only one of the two.
    """

    def __init__(
        self,
        label: BacktestLabel,
        scope: BacktestScope,
        folder: Folder,
        automations: Sequence[SimulatedAutomation],
        summary: BucketSummary,
        *,
        is_live: bool = False,
    ) -> None:
        self._label, self._scope, self._summary, self._is_live = label, scope, summary, is_live
        self._folder = folder  # deleted when nothing refers to it any more
        self._automation, self._graph = automations[0], automations[0].graph or Graph()
        self._tables, *others = [Tables(folder.path / str(number)) for number in range(len(automations))]
        self._other = others[0] if others else None

    @property
    def totals(self) -> Totals:
        """The counts of this version."""
        return self._tables.totals

    @property
    def before(self) -> Totals | None:
        """The counts of the version that this one is compared with; None without a comparison."""
        return self._other.totals if self._other is not None else None

    @property
    def reach(self) -> float:
        """The share (0 to 1) of contacts, in the sample or segment if chosen, that would have received a message."""
        contacts = self._scope.contacts
        return self.totals.reached / contacts if contacts else 0.0

    @property
    def messages(self) -> tuple[Message, ...]:
        """The first message of each step that sends, with its values filled in."""
        return self._summary.messages[0] if self._summary.messages else ()

    @property
    def untaken(self) -> tuple[Edge, ...]:
        """The edges of the graph that no entry followed."""
        followed = self._tables.followed()
        return tuple(edge for edge in self._graph.edges if (edge.source, edge.handle) not in followed)

    @property
    def remarks(self) -> tuple[str, ...]:
        """Warnings about the result, and its assumptions; likely mistakes come first."""
        return (*self._mistakes(), *self._limits(), _LIVE_ASSUMPTIONS if self._is_live else _ASSUMPTIONS)

    @property
    def agreement(self) -> str:
        """A sentence: how many of the engine's entries took the same steps; raises InvalidArgumentError for a draft."""
        self._require_live()
        compared, differing, extra = self._summary.compared, self._summary.differing, self._summary.extra
        text = f"Agrees with {compared - differing:,} of {quantity(compared, 'real entry', 'real entries')}"
        return f"{text}; {quantity(extra, 'entry is', 'entries are')} only in the backtest." if extra else f"{text}."

    def differences(self) -> pl.DataFrame:
        """Return the entries that differ: entry, contact, event_at, node, at, real, simulated, reason.

        A row has the first step at which an entry differs (`node` None: the entry as a whole): what the engine recorded
        as `real`, and what the backtest has as `simulated`; empty if there is nothing. Raises InvalidArgumentError for
        a draft.
        """
        self._require_live()
        return self._tables.scan(DIFFERENCES).sort("event_at", "entry").collect()

    def frame(self) -> pl.DataFrame:
        """Return a row per step: entry, contact, node, kind, at, outcome, handle, effect, reason, arrives.

        `entry`: the id of the event or start that began it. `effect`: inapp, email, webhook, connection, tag added, tag
        removed or contact updated; `reason`: why it was skipped, failed or waits; `arrives`: whether this is the
        first step of the entry at this node.
        """
        return self.scan().collect()

    def scan(self) -> pl.LazyFrame:
        """Return the same rows as a LazyFrame, for results larger than memory."""
        return self._tables.steps()

    def entries(self) -> pl.DataFrame:
        """Return a row per entry: entry, contact, event, at, state, outcome, node (where it ended or waits), error."""
        return self._tables.scan(ENTRIES).collect()

    def contacts(self) -> pl.DataFrame:
        """Return a row per contact that entered: contact, entries, messages (in the app and by email)."""
        return self._tables.scan(CONTACT_TOTALS).collect()

    def days(self) -> pl.DataFrame:
        """Return a row per day (UTC): day, entries, messages; in a comparison also entries_before, messages_before."""
        window = self._scope.window
        first, last = window.since.date(), window.until.date()
        days = every_day(self._tables.days, first, last)
        if self._other is None:
            return days
        return days.join(every_day(self._other.days, first, last), on="day", suffix="_before")

    def branches(self) -> pl.DataFrame:
        """Return the branches that entries took: node, way (the handle), entries, share of those that left the node."""
        followed = self._tables.followed()
        rows = []
        for node in self._graph.nodes:
            handles = [handle for handle in node.handles if handle is not None]
            counts = [followed.get((node.id, handle), 0) for handle in handles]
            total = sum(counts) or 1
            rows += [(node.id, handle, count, count / total) for handle, count in zip(handles, counts, strict=True)]
        schema = {"node": pl.String, "way": pl.String, "entries": pl.Int64, "share": pl.Float64}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def messages_per_contact(self) -> pl.DataFrame:
        """Return the number of contacts by number of messages: messages, contacts."""
        return self._tables.messages_per_contact

    def gains(self) -> pl.DataFrame:
        """Return the contacts that get messages only from this version: contact, messages."""
        return self._only(self._tables, self._compared())

    def losses(self) -> pl.DataFrame:
        """Return the contacts that get messages only from the version compared with: contact, messages."""
        return self._only(self._compared(), self._tables)

    def chart(self) -> "alt.Chart | alt.LayerChart | alt.VConcatChart":
        """Return entries and messages per day as an Altair chart, which can be modified."""
        return charts.chart("backtest", self.days())

    def headline(self) -> str:
        """Return the result in one sentence."""
        totals = self.totals
        if self._is_live:
            return self.agreement.removesuffix(".")
        if not totals.entries:
            return "Would never have started"
        sent = []
        if totals.messages:
            sent.append(f"{quantity(totals.messages, 'message')} to {quantity(totals.reached, 'contact')}")
        to_systems = [channel for channel in CHANNELS.values() if not channel.to_contact]
        counts = [(totals.sent.get(channel.name, 0), channel) for channel in to_systems]
        sent += [quantity(count, channel.noun, channel.plural) for count, channel in counts if count]
        return f"Would have started {quantity(totals.entries, 'time')} and sent {join_and(sent) or 'nothing'}"

    @printable_text
    def __repr__(self) -> str:
        warnings = [f"! {remark}" for remark in self.remarks]
        return "\n".join([f"{self.headline()}. {self._about()}", plain(*self._totals_table()), *warnings])

    def _repr_html_(self) -> str:
        *warnings, assumptions = self.remarks
        days, spread = self.days(), self.messages_per_contact()
        visits, outcomes, followed = self._tables.visits(), self._tables.outcomes(), self._tables.followed()
        branches = [*self.branches().iter_rows()]
        path = RunPath(
            {node: _mark(outcomes[node]) for node in visits},
            frozenset(followed),
            notes={node: f"{count:,}" for node, count in visits.items()},
            shares={(node, handle): f"{share:.0%}" for node, handle, _, share in branches},
        )
        branch_rows = [
            (node, handle_words(handle), f"{entries:,}", f"{share:.1%}") for node, handle, entries, share in branches
        ]
        spread_rows = []
        for first, end in pairwise(_RANGES):
            contacts = sum(contacts for messages, contacts in spread.rows() if first <= messages < end)
            if contacts:
                if end == sys.maxsize:
                    label = f"{first:,} or more"
                else:
                    label = f"{first:,}" if first == end - 1 else f"{first:,} to {end - 1:,}"
                spread_rows.append((label, f"{contacts:,}"))
        day_columns = [TableColumn(name.replace("_", " "), number=name != "day") for name in days.columns]
        return html(
            "backtest.html.j2",
            headline=self.headline(),
            about=self._about(),
            picture=picture(self._automation.trigger, self._graph, path),
            figures=self._totals_table(),
            messages=[message for message in self.messages if channel_of(message).to_contact],
            warnings=warnings,
            assumptions=assumptions,
            chart=charts.chart_html("backtest", days) if spread.height else "",
            branches=(_BRANCH_COLUMNS, branch_rows),
            spread=(_SPREAD_COLUMNS, spread_rows),
            days=(day_columns, days.rows()),
        )

    def _about(self) -> str:
        """Return what was tested, on which events, and the difference from the version compared with."""
        scope = self._scope
        since, until = (moment(bound)[:16] for bound in (scope.window.since, scope.window.until))
        sample = scope.sample
        contacts = ""
        if sample.segment is not None:
            share = f", for {sample.share:.2%} of them" if sample.is_partial else ""
            contacts = f", for contacts that are in the segment {sample.segment} now{share}"
        elif sample.is_partial:
            contacts = f", for {sample.share:.2%} of the contacts"
        started_by = trigger_title(self._automation.trigger)
        every = "" if isinstance(self._automation.trigger.source, StartSource) else "every "
        text = f"{self._label.name}: on {every}{started_by}, from {since} to {until} UTC{contacts}."
        if self._other is None:
            return text
        gains, losses = quantity(self.gains().height, "contact"), quantity(self.losses().height, "contact")
        return f"{text} {gains} would get messages only from this version, {losses} only from {self._label.against}."

    def _totals_table(self) -> tuple[list[TableColumn], list[list[str]]]:
        sides = [_metrics(self.totals, self._scope)]
        columns = [TableColumn("Metric"), TableColumn("Value", number=True)]
        if self.before is not None:
            sides.append(_metrics(self.before, self._scope))
            columns[1:] = [TableColumn("This version", number=True), TableColumn(self._label.against, number=True)]
        metrics = [name for name in sides[0] if name in _ALWAYS_SHOWN or any(side[name] != "0" for side in sides)]
        return columns, [[name, *(side[name] for side in sides)] for name in metrics]

    def _mistakes(self) -> Iterator[str]:
        totals, trigger, events = self.totals, self._automation.trigger, self._summary.events
        if isinstance(trigger.source, StartSource):  # only these can start it, events only continue it
            events = self._summary.starts
        if self._label.problems:
            yield f"It cannot be published yet: {quantity(self._label.problems, 'problem')}, listed by .check()."
        if not totals.entries and not totals.turned_away:
            if events:
                noun = "event" if not isinstance(trigger.source, StartSource) else "start"
                yield f"{quantity(events, noun)} could have started it, but none passed its filters."
            elif isinstance(trigger.source, StartSource):
                yield f"Nothing in this period could have started it: {trigger_title(trigger)}."
            else:
                yield f"No event in this period could have started it: {trigger_title(trigger)}."
            return
        if totals.failed:
            failures = self._tables.failures()
            causes = [
                entry_outcome(outcome) + (f" ({count:,})" if len(failures) > 1 else "") for outcome, count in failures
            ]
            yield f"{quantity(totals.failed, 'entry', 'entries')} failed permanently: {join_and(causes)}."
        if self.untaken:
            edges = []
            for edge in self.untaken:
                branch = f" ({handle_words(edge.handle)})" if edge.handle is not None else ""
                edges.append(f"{edge.source} → {edge.target}{branch}")
            yield f"Never taken: {join_and(edges)}."
        if totals.most > _MANY_MESSAGES and self._graph.settings.frequency_cap is None:
            yield f"One contact gets {totals.most:,} messages. .reentry(…) or .frequency_cap(…) limits that."
        if totals.waiting:
            entries = quantity(totals.waiting, "entry", "entries")
            yield f"{entries} had not ended by the end of the period; later steps are not counted."

    def _limits(self) -> Iterator[str]:
        """Yield sentences on where the result may differ from a real run."""
        nodes, summary, trigger = self._graph.nodes, self._summary, self._automation.trigger
        writing, written, read = [], set[str](), set[str]()
        for node in nodes:
            read |= {path for path in filter_paths(node) | context_paths(node) if path.split(".")[0] == "contact"}
            match node.action:
                case AddTag() | RemoveTag():
                    paths = {"contact.tags"}
                case UpdateContact(attributes=attributes):
                    paths = {f"contact.{name}" for name in attributes}
                case _:
                    continue
            writing.append(node.id)
            written |= paths
        if writing and not self._is_live:
            verb = "changes" if len(writing) == 1 else "change"
            uses = sorted(written if "contact" in read else written & read)
            then = f", and later steps use {join_and(uses)}" if uses else ""
            yield (
                f"{join_and(writing)} {verb} {join_and(sorted(written))}{then}. "
                "The backtest sees these changes, not those that published versions made."
            )
        if summary.masked and filters_on_addresses(self._automation):
            masked = "your API key sees them masked (no pii:read)"
            yield f"It uses email addresses, and {masked}: these decisions may be wrong."
        yield from self._scope.remarks
        if trigger.creates_contacts:
            yield "Unknown wallets are left out; in a real run, the logs create contacts for them."
        if trigger.confirmations:
            yield "A log counts from the time it was seen; in a real run, its entry starts after the confirmations."
        if not self._label.saved and any(isinstance(node.action, Split) for node in nodes):
            yield "It is not saved yet: saving assigns contacts to the branches of a split again."
        if summary.erased:
            yield f"Contacts that were erased since are left out: {summary.erased:,}."

    def _require_live(self) -> None:
        if not self._is_live:
            raise InvalidArgumentError(
                'A draft has no entries to agree with. Pass version="live" to .backtest() to play what was live.'
            )

    def _compared(self) -> Tables:
        if self._other is None:
            raise InvalidArgumentError(
                'This backtest has no comparison. Pass against="published" (or a version) to .backtest().'
            )
        return self._other

    @staticmethod
    def _only(ours: Tables, theirs: Tables) -> pl.DataFrame:
        reached, others = (
            tables.scan(CONTACT_TOTALS).filter(pl.col("messages") > 0).select("contact", "messages")
            for tables in (ours, theirs)
        )
        return (
            reached.join(others, on="contact", how="anti")
            .sort("messages", "contact", descending=[True, False])
            .collect()
        )


def _metrics(totals: Totals, scope: BacktestScope) -> dict[str, str]:
    """Return the rows of the table of totals; "0" where nothing was counted."""
    segment = scope.sample.segment
    if scope.sample.is_partial:
        of = f"% of {scope.contacts:,} contacts{f' of {segment}' if segment is not None else ''} in the sample"
    elif segment is not None:
        of = f"% of {scope.contacts:,} members of {segment}"
    else:
        of = f"% of all {scope.contacts:,} contacts"
    counts: dict[str, int | str] = {
        "entries": totals.entries,
        "of these, held out": totals.held_out,
        "contacts that enter": totals.contacts,
        "contacts with a message": totals.reached,
        of: f"{totals.reached / scope.contacts:.1%}" if totals.reached else 0,
        **{channel.plural: totals.sent.get(channel.name, 0) for channel in CHANNELS.values()},
        "messages per contact, on average": f"{totals.messages / totals.reached:.1f}" if totals.messages else 0,
        "messages per contact, at most": totals.most,
        "messages skipped": totals.skipped,
        "failed permanently": totals.failed,
        "blocked by re-entry rule": totals.turned_away,
        "still in progress": totals.waiting,
    }
    return {name: count if isinstance(count, str) else f"{count:,}" for name, count in counts.items()}


def _mark(outcomes: frozenset[str]) -> Mark:
    """Return the mark of a node: done if any entry left it."""
    if outcomes - STAYING:
        return "done"
    if outcomes & {"failed", "refused"}:
        return "failed"
    return "goal" if "goal" in outcomes else "waiting" if "waiting" in outcomes else "skipped"
