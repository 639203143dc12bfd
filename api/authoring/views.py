"""What callers see of automations and entries: the JSON shapes, nothing else."""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal, TypeAlias

import msgspec

from api.authoring.draft import remarks_on
from api.language.check import Remark
from api.language.codec import decode
from api.language.run import TERMINAL, State, Step
from api.store.authoring import AutomationRow, ChangeRow, EarlierRow, VersionRow
from api.store.histories import DeadRow, EntryEventRow, EntryRow, MessageRow, StepRow, TransitionRow


class AutomationView(msgspec.Struct, frozen=True, rename="camel"):
    """An automation with its draft; `warnings` are all remarks on the draft, the errors among them first."""

    id: str
    name: str
    active: bool
    published_version: int | None
    revision: int
    trigger_spec: msgspec.Raw
    graph: msgspec.Raw
    warnings: tuple[Remark, ...]
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    paused_at: datetime | None


Then: TypeAlias = Literal["finishes", "no_published_version", "automation_inactive"]
"""What becomes of entries after a publication: they finish on their own version, or end with this outcome."""


class EarlierView(msgspec.Struct, frozen=True, rename="camel"):
    """How many entries of an earlier version stand at a node in a state, and what becomes of them.

    No version: nothing was published when they came. No node: they have not begun.
    """

    version: int | None
    node_id: str | None
    state: str
    entries: int
    then: Then


class ImpactView(msgspec.Struct, frozen=True):
    """Whom a publication finds on their way: entries of earlier versions that have not ended."""

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
    """What was done to an automation: `by` is the name of the key that did it, or what identifies it."""

    at: datetime
    action: str
    by: str
    key_id: str | None
    detail: msgspec.Raw


class EntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry in a list; `event` is the name of the event that started it."""

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
    """A message of an entry, in the words of a simulation's; each channel has its own."""

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
    """An email; the address is masked for who may not see it."""

    email: str
    subject: str | None
    body: str | None
    html: bool


class WebhookView(MessageView, frozen=True, rename="camel", kw_only=True, tag_field="channel", tag="webhook"):
    """A webhook."""

    url: str
    body: str | None


Shown = Callable[[str], str]
"""How a reader sees a sealed email address."""


class TransitionView(msgspec.Struct, frozen=True):
    """A move of an entry between states."""

    source: str = msgspec.field(name="from")
    target: str = msgspec.field(name="to")
    at: datetime
    reason: str | None


class HistoryView(EntryView, frozen=True, rename="camel", kw_only=True):
    """An entry with all that happened to it: `steps` in the words of a simulation."""

    idempotency_key: str | None
    occurred_at: datetime | None
    payload: msgspec.Raw | None
    steps: tuple[Step, ...]
    messages: tuple[InappView | EmailView | WebhookView, ...]
    transitions: tuple[TransitionView, ...]


class DeadView(msgspec.Struct, frozen=True, rename="camel"):
    """Dead entries of one automation, cause and node; `attempts` is the most that one of them had.

    `active`: they can be replayed.
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
    """How many entries are in each state, and how often each outcome was met at each node (attempts count apart).

    `live`: how many that have not ended stand at each node where there are some.
    Of all entries, or of the newest 100,000: `entries_counted` says how many they are.
    """

    entries: dict[str, int]
    nodes: dict[str, dict[str, int]]
    live: dict[str, int]
    entries_counted: int


def automation_view(row: AutomationRow) -> AutomationView:
    """Return the view of an automation. Compiles templates, so it runs in a thread."""
    return AutomationView(
        row.id,
        row.name,
        row.active,
        row.published_version,
        row.revision,
        msgspec.Raw(row.trigger_spec),
        msgspec.Raw(row.graph),
        remarks_on(row.trigger_spec, row.graph),
        row.created_at,
        row.updated_at,
        row.archived_at,
        row.paused_at,
    )


def published_view(row: AutomationRow, earlier: Sequence[EarlierRow]) -> PublishedView:
    """Return the view of an automation with what its publication meets. Compiles templates, so it runs in a thread."""
    impact = impact_view(earlier, active=row.active)
    return PublishedView(**msgspec.structs.asdict(automation_view(row)), impact=impact)


def impact_view(earlier: Sequence[EarlierRow], *, active: bool) -> ImpactView:
    """Return whom a publication meets, of an automation that is `active` after it."""
    rows = tuple(EarlierView(**msgspec.structs.asdict(each), then=_then(each, active)) for each in earlier)
    return ImpactView(sum(each.entries for each in rows), rows)


def version_view(row: VersionRow) -> VersionView:
    """Return the view of a version."""
    return VersionView(
        row.version, row.published_at, row.published_by, msgspec.Raw(row.trigger_spec), msgspec.Raw(row.graph)
    )


def change_view(row: ChangeRow) -> ChangeView:
    """Return the view of a change."""
    return ChangeView(row.at, row.action, row.key_name or row.key_id or "", row.key_id, msgspec.Raw(row.detail))


def entry_view(row: EntryRow) -> EntryView:
    """Return the view of an entry."""
    return EntryView(**msgspec.structs.asdict(row))


def dead_view(row: DeadRow) -> DeadView:
    """Return the view of dead entries that have a cause in common."""
    return DeadView(*msgspec.structs.astuple(row))


def history_view(
    entry: EntryRow,
    event: EntryEventRow,
    steps: list[StepRow],
    messages: list[MessageRow],
    transitions: list[TransitionRow],
    shown: Shown,
) -> HistoryView:
    """Return the view of an entry with everything that happened to it."""
    return HistoryView(
        **msgspec.structs.asdict(entry),
        idempotency_key=event.idempotency_key,
        occurred_at=event.occurred_at,
        payload=_raw(event.payload),
        steps=tuple(map(step_view, steps)),
        messages=tuple(_message_view(row, shown) for row in messages),
        transitions=tuple(TransitionView(*msgspec.structs.astuple(row)) for row in transitions),
    )


def step_view(row: StepRow) -> Step:
    """Return a stored step in the very words of a simulation."""
    values: dict[str, Any] = msgspec.structs.asdict(row)
    return Step(**values | {"detail": decode(row.detail)})


def stats_view(standings: list[tuple[State, str | None, int]], outcomes: list[tuple[str, str, int]]) -> StatsView:
    """Return the counts of an automation; every state is there, most with zero."""
    nodes: dict[str, dict[str, int]] = {}
    for node_id, outcome, count in outcomes:
        nodes.setdefault(node_id, {})[outcome] = count
    states, live = Counter[State](), Counter[str]()
    for state, place, count in standings:
        states[state] += count
        if place is not None and state not in TERMINAL:
            live[place] += count
    return StatsView({state.value: states[state] for state in State}, nodes, dict(live), states.total())


def _then(earlier: EarlierRow, active: bool) -> Then:
    if not active:
        return "automation_inactive"
    return "no_published_version" if earlier.version is None else "finishes"


def _message_view(row: MessageRow, shown: Shown) -> InappView | EmailView | WebhookView:
    names = ("id", "node_id", "status", "created_at", "sent_at", "delivered_at")
    common: dict[str, Any] = {name: getattr(row, name) for name in names}
    match row.channel:
        case "email":
            address = shown(row.recipient or "")
            return EmailView(**common, email=address, subject=row.subject, body=row.body, html=row.html)
        case "webhook":
            return WebhookView(**common, url=row.recipient or "", body=row.body)
        case _:
            wallet, extra = row.wallet_address, _raw(row.extra)
            return InappView(**common, wallet_address=wallet, title=row.subject, body=row.body, data=extra)


def _raw(text: bytes | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)
