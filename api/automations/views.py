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
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from api.automations.body import diagnostics
from api.store import automations
from api.store.automations import (
    AutomationRow,
    ChangeRow,
    DeadRow,
    EntryEventRow,
    EntryRow,
    MessageRow,
    StepRow,
    TransitionRow,
    VersionEntriesRow,
    VersionRow,
)
from api.store.database import Transaction
from workbench.language.actions import Action
from workbench.language.check import Diagnostic
from workbench.language.codec import decode
from workbench.language.event import mask_email
from workbench.language.graph import Graph, read_graph
from workbench.language.redact import MessageTexts, redact_texts
from workbench.language.run import TERMINAL, State, Step

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


async def without_addresses(
    tx: Transaction, org_id: int, rows: Sequence[Row], entry_of: Callable[[Row], str]
) -> list[Row]:
    """Return message rows without addresses in their texts: a text that uses an address is shown as its template.

    A row has `node_id, channel, subject, body` and may have `recipient`.
    """
    graphs = await automations.graphs_of_entries(tx, org_id, {entry_of(row) for row in rows})

    def redact() -> list[Row]:
        actions: dict[str, Mapping[str, Action]] = {}
        for graph_row in graphs:
            graph = read_graph(decode(graph_row.graph))
            by_node = {node.id: node.action for node in graph.nodes} if isinstance(graph, Graph) else {}
            actions |= dict.fromkeys(graph_row.entry_ids, by_node)
        redacted = []
        for row in rows:
            message: Any = row  # one of several row types
            url = getattr(row, "recipient", None) if message.channel == "webhook" else None
            action = actions.get(entry_of(row), {}).get(message.node_id)
            texts = redact_texts(action, MessageTexts(message.subject, message.body, url))
            recipient = {} if url is None else {"recipient": texts.url}
            redacted.append(msgspec.structs.replace(row, subject=texts.subject, body=texts.body, **recipient))
        return redacted

    return await asyncio.to_thread(redact)  # compiles templates


class AutomationView(msgspec.Struct, frozen=True, rename="camel"):
    """An automation with its draft; `warnings` are the errors and warnings of the draft, errors first."""

    id: str
    name: str
    active: bool
    published_version: int | None
    revision: int
    trigger_spec: msgspec.Raw
    graph: msgspec.Raw
    warnings: tuple[Diagnostic, ...]
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    paused_at: datetime | None


Then: TypeAlias = Literal["finishes", "no_published_version", "automation_inactive"]
"""An entry's fate after a publication: it finishes on its own version, or ends with this outcome."""


class EarlierView(msgspec.Struct, frozen=True, rename="camel"):
    """The number of entries of an earlier version at a node in a state, and what happens to them.

    No version: they entered before the first publication. No node: they have not begun.
    """

    version: int | None
    node_id: str | None
    state: str
    entries: int
    then: Then


class ImpactView(msgspec.Struct, frozen=True):
    """The entries of earlier versions that have not ended when a version is published."""

    entries: int
    earlier: tuple[EarlierView, ...]


class PublishedView(AutomationView, frozen=True, rename="camel"):
    """An automation that has just been published."""

    impact: ImpactView


class VersionView(msgspec.Struct, frozen=True, rename="camel"):
    """A published version."""

    version: int
    published_at: datetime
    published_by: str | None
    trigger_spec: msgspec.Raw
    graph: msgspec.Raw


class ChangeView(msgspec.Struct, frozen=True, rename="camel"):
    """A change of an automation; `by` is the name of the key that made it, or its id."""

    at: datetime
    action: str
    by: str
    key_id: str | None
    detail: msgspec.Raw


class EntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry; `event` is the name of the event that started it."""

    id: str
    automation_id: str
    automation_version: int | None
    contact_id: str
    event_id: str
    event: str | None
    state: State
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    due_at: datetime
    created_at: datetime
    updated_at: datetime


class MessageView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A message of an entry, with the field names of a simulation; each channel has fields of its own."""

    id: str
    node_id: str
    status: str
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None


class InappView(MessageView, frozen=True, rename="camel", kw_only=True, tag_field="channel", tag="inapp"):
    """An in-app message."""

    wallet_address: str | None
    title: str | None
    body: str | None
    data: msgspec.Raw | None


class EmailView(MessageView, frozen=True, rename="camel", kw_only=True, tag_field="channel", tag="email"):
    """An email; the address is masked without pii:read."""

    email: str
    subject: str | None
    body: str | None
    html: bool


class WebhookView(MessageView, frozen=True, rename="camel", kw_only=True, tag_field="channel", tag="webhook"):
    """A webhook."""

    url: str
    body: str | None


Shown = Callable[[str], str]
"""Returns a sealed email address as the caller may see it: in clear, or masked."""


class TransitionView(msgspec.Struct, frozen=True):
    """A transition of an entry between states."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    at: datetime
    reason: str | None


class EntryHistoryView(EntryView, frozen=True, rename="camel", kw_only=True):
    """An entry with its steps (as in a simulation), messages and transitions."""

    idempotency_key: str | None
    occurred_at: datetime | None
    payload: msgspec.Raw | None
    steps: tuple[Step, ...]
    messages: tuple[InappView | EmailView | WebhookView, ...]
    transitions: tuple[TransitionView, ...]


class DeadLetterView(msgspec.Struct, frozen=True, rename="camel"):
    """Dead entries of one automation, cause and node; `attempts` is the maximum among them.

    `active`: the automation is active, so they can be replayed.
    """

    automation_id: str
    automation: str
    active: bool
    cause: str | None
    node_id: str | None
    entries: int
    attempts: int
    last_error: str | None
    first_at: datetime
    last_at: datetime


class StatsView(msgspec.Struct, frozen=True, rename="camel"):
    """Entries by state, and steps by node and outcome (every attempt is a step).

    `live`: entries that have not ended, by node. At most the newest 100,000 entries are counted: `entries_counted`.
    """

    entries: dict[str, int]
    nodes: dict[str, dict[str, int]]
    live: dict[str, int]
    entries_counted: int


def automation_view(row: AutomationRow) -> AutomationView:
    """Return the view of an automation. Compiles templates: run it in a thread."""
    return AutomationView(
        row.id,
        row.name,
        row.active,
        row.published_version,
        row.revision,
        msgspec.Raw(row.trigger_spec),
        msgspec.Raw(row.graph),
        diagnostics(row.trigger_spec, row.graph),
        row.created_at,
        row.updated_at,
        row.archived_at,
        row.paused_at,
    )


def published_view(row: AutomationRow, earlier: Sequence[VersionEntriesRow]) -> PublishedView:
    """Return the view of an automation with the impact of its publication. Compiles templates: run it in a thread."""
    impact = impact_view(earlier, active=row.active)
    return PublishedView(**msgspec.structs.asdict(automation_view(row)), impact=impact)


def impact_view(earlier: Sequence[VersionEntriesRow], *, active: bool) -> ImpactView:
    """Return the impact of a publication; `active`: whether the automation is active after it."""
    rows = []
    for row in earlier:
        then: Then = "no_published_version" if row.version is None else "finishes"
        rows.append(EarlierView(**msgspec.structs.asdict(row), then=then if active else "automation_inactive"))
    return ImpactView(sum(row.entries for row in rows), tuple(rows))


def version_view(row: VersionRow) -> VersionView:
    return VersionView(
        row.version, row.published_at, row.published_by, msgspec.Raw(row.trigger_spec), msgspec.Raw(row.graph)
    )


def change_view(row: ChangeRow) -> ChangeView:
    return ChangeView(row.at, row.action, row.key_name or row.key_id or "", row.key_id, msgspec.Raw(row.detail))


def entry_view(row: EntryRow) -> EntryView:
    return EntryView(**msgspec.structs.asdict(row))


def dead_view(row: DeadRow) -> DeadLetterView:
    return DeadLetterView(*msgspec.structs.astuple(row))


def history_view(
    entry: EntryRow,
    event: EntryEventRow,
    steps: list[StepRow],
    messages: list[MessageRow],
    transitions: list[TransitionRow],
    shown: Shown,
) -> EntryHistoryView:
    return EntryHistoryView(
        **msgspec.structs.asdict(entry),
        idempotency_key=event.idempotency_key,
        occurred_at=event.occurred_at,
        payload=_raw(event.payload),
        steps=tuple(map(step_view, steps)),
        messages=tuple(_message_view(row, shown) for row in messages),
        transitions=tuple(TransitionView(*msgspec.structs.astuple(row)) for row in transitions),
    )


def step_view(row: StepRow) -> Step:
    values: dict[str, Any] = msgspec.structs.asdict(row)
    return Step(**values | {"detail": decode(row.detail)})


def stats_view(counts: list[tuple[State, str | None, int]], outcomes: list[tuple[str, str, int]]) -> StatsView:
    """Return the statistics of an automation; states without entries count zero."""
    nodes: dict[str, dict[str, int]] = {}
    for node, outcome, count in outcomes:
        nodes.setdefault(node, {})[outcome] = count
    states, live = Counter[State](), Counter[str]()
    for state, node_id, count in counts:
        states[state] += count
        if node_id is not None and state not in TERMINAL:
            live[node_id] += count
    return StatsView({state.value: states[state] for state in State}, nodes, dict(live), states.total())


def _message_view(row: MessageRow, shown: Shown) -> InappView | EmailView | WebhookView:
    names = ("id", "node_id", "status", "created_at", "sent_at", "delivered_at")
    common: dict[str, Any] = {name: getattr(row, name) for name in names}
    match row.channel:
        case "email":
            address = shown(row.recipient or "")
            return EmailView(**common, email=address, subject=row.subject, body=row.body, html=row.html)
        case "webhook":
            return WebhookView(**common, url=row.recipient or "", body=row.body)
        case "inapp":
            wallet, extra = row.wallet_address, _raw(row.extra)
            return InappView(**common, wallet_address=wallet, title=row.subject, body=row.body, data=extra)


def _raw(text: bytes | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)
