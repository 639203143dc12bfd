"""The JSON shapes of automations and entries, and the removal of email addresses that a caller may not see.

A simulation decides with the true address, so that it does what the engine would, and shows the contact with the
address masked. This keeps addresses out of sight; an author can still test them through conditions. Texts of stored
messages cannot be masked reliably (a template may split or change an address), so without pii:read a text is shown as
its template if the template uses an address.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from api.automations.body import diagnostics
from api.crypto import EmailDisplay
from api.store import automations
from api.store.automations import AutomationRow
from api.store.broadcasts import MessageCount
from api.store.database import Transaction
from api.store.messages import MessageRow
from workbench.language.actions import Action
from workbench.language.channel import CHANNELS
from workbench.language.codec import decode
from workbench.language.event import mask_email
from workbench.language.graph import Graph, read_graph
from workbench.language.redact import redact_texts
from workbench.language.responses import (
    MESSAGE_VIEWS,
    AnyMessageView,
    AutomationView,
    EarlierOutcome,
    EarlierView,
    ImpactView,
    MessageResults,
    MessageView,
)

_T = TypeVar("_T")


def without_email(value: _T, email: str) -> _T:
    """Return a value with the address masked in every text, in upper and lower case."""
    return _masked(value, re.compile(re.escape(email), re.IGNORECASE), mask_email(email))


def _masked(value: _T, address: re.Pattern[str], mask: str) -> _T:
    masked: object = value
    if isinstance(value, str):
        # Only if it is found: a str subclass such as State must keep its type.
        masked = address.sub(lambda _: mask, value) if address.search(value) else value
    elif isinstance(value, dict):
        masked = {_masked(key, address, mask): _masked(item, address, mask) for key, item in value.items()}
    elif isinstance(value, list):
        masked = [_masked(item, address, mask) for item in value]
    elif isinstance(value, tuple):
        masked = tuple(_masked(item, address, mask) for item in value)
    elif isinstance(value, msgspec.Struct):
        fields = {name: _masked(getattr(value, name), address, mask) for name in value.__struct_fields__}
        masked = msgspec.structs.replace(value, **fields)
    return masked  # type: ignore[return-value]  # every branch keeps the type


Row = TypeVar("Row", bound=msgspec.Struct)


async def visible_messages(
    tx: Transaction, org_id: int, rows: list[Row], show: EmailDisplay, entry_of: Callable[[Row], str]
) -> list[Row]:
    """Return message rows as the caller may see them: if addresses are masked, texts that use one become templates.

    A row has `node_id, channel, subject, body` and may have `recipient`, which is not changed.
    """
    if show.clear:
        return rows
    graphs = await automations.graphs_of_entries(tx, org_id, {entry_of(row) for row in rows})

    def redact() -> list[Row]:
        actions: dict[str, list[Mapping[str, Action]]] = {}
        for text, entry_ids in graphs:
            graph = read_graph(decode(text))
            by_node = {node.id: node.action for node in graph.nodes} if isinstance(graph, Graph) else {}
            for entry_id in entry_ids:
                actions.setdefault(entry_id, []).append(by_node)
        redacted = []
        for row in rows:
            message: Any = row  # one of several row types
            columns = msgspec.structs.asdict(row)
            texts: dict[str, str | None] = {}
            # An entry that was moved to another version may have sent the message before or after that.
            versions = [version for version in actions.get(entry_of(row), []) if message.node_id in version]
            for version in versions or [{}]:
                action = version.get(message.node_id)
                shown = redact_texts(CHANNELS[message.channel], action, columns)
                texts |= {
                    column: value for column, value in shown.items() if texts.get(column) in (None, columns[column])
                }
            redacted.append(msgspec.structs.replace(row, **texts))
        return redacted

    return await asyncio.to_thread(redact)  # compiles templates


_FIGURES = {
    "sent": ("sent",),
    "delivered": ("sent", "delivered"),
    "failed": ("failed",),
    "unknown": ("unknown",),
    "queued": ("waiting",),
    "sending": ("waiting",),
}
"""The figures that a message counts in, by its status."""


class StepCounts:
    """The counts of the messages of one step."""

    def __init__(self) -> None:
        self._figures, self._skipped = Counter[str](), Counter[str]()

    def add(self, count: MessageCount) -> None:
        if count.status == "skipped":
            self._skipped[count.cause or "skipped"] += count.messages
        for figure in (*_FIGURES.get(count.status, ()), *([count.feedback] if count.feedback else ())):
            self._figures[figure] += count.messages
        self._figures["clicked"] += count.clicked

    def results(self, node_id: str, channel: str) -> MessageResults:
        fields = {"nodeId": node_id, "channel": channel, "skipped": self._skipped, **self._figures}
        return msgspec.convert(fields, MessageResults)


class StatsView(msgspec.Struct, frozen=True, rename="camel"):
    """Entries by state, and steps by node and outcome (every attempt is a step).

    `live`: entries that have not ended, by node. `entriesCounted`: at most the newest 100,000 entries. `messages`:
    those of these entries, by step.
    """

    entries: dict[str, int]
    nodes: dict[str, dict[str, int]]
    live: dict[str, int]
    entries_counted: int
    messages: tuple[MessageResults, ...]


def automation_view(row: AutomationRow) -> AutomationView:
    """Return the view of an automation. Compiles templates: run it in a thread."""
    columns = set(AutomationView.__struct_fields__) & set(AutomationRow.__struct_fields__)
    values: dict[str, Any] = {name: getattr(row, name) for name in columns}
    return AutomationView(**values, state=row.state, warnings=diagnostics(row.trigger_spec, row.graph))


def impact_view(earlier: Sequence[tuple[int | None, str | None, str, int]], *, active: bool) -> ImpactView:
    """Return the impact of a publication; `active`: whether the automation is active after it."""
    rows = []
    for version, node_id, state, entries in earlier:
        then: EarlierOutcome = "no_published_version" if version is None else "finishes"
        rows.append(EarlierView(version, node_id, state, entries, then if active else "automation_inactive"))
    return ImpactView(sum(row.entries for row in rows), tuple(rows))


def message_view(row: MessageRow, show: EmailDisplay) -> AnyMessageView:
    channel = CHANNELS[row.channel]
    names = {name: name for name in MessageView.__struct_fields__} | dict(channel.columns)
    values: dict[str, Any] = {name: getattr(row, column) for name, column in names.items()}
    if channel.is_sealed and values[channel.address] is not None:
        values[channel.address] = show(values[channel.address])
    return MESSAGE_VIEWS[row.channel](**values)
