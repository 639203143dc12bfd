"""Responses that the server writes and the notebook package reads, each described once.

The docstrings are part of the OpenAPI document.
"""

from collections.abc import Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, Union, get_args

import msgspec
from msgspec import UNSET, UnsetType

from workbench.language.channel import CHANNELS, ChannelName
from workbench.language.check import Diagnostic
from workbench.language.lift import Lift, LiftGroup
from workbench.language.payload_schema import PropertyPath, SchemaChange
from workbench.language.run import State, Step
from workbench.language.topics import OptIn

AutomationState: TypeAlias = Literal["draft", "live", "paused", "off"]
SegmentKind: TypeAlias = Literal["query", "audience"]
EventOutcome: TypeAlias = Literal["accepted", "deduplicated", "dry_run", "rejected"]
KeyStatus: TypeAlias = Literal["active", "ending", "ended", "revoked"]
TestOutcome: TypeAlias = Literal["sent", "failed", "unknown", "skipped"]
EarlierOutcome: TypeAlias = Literal["finishes", "no_published_version", "automation_inactive"]
"""An entry's fate after a publication: it finishes on its own version, or ends with this outcome."""
TimelineKind: TypeAlias = Literal["event", "entry", "message", "conflict", "merge", "log"]
ReceiptKind: TypeAlias = Literal["check", "backtest", "impact"]
ApprovalState: TypeAlias = Literal["waiting", "approved", "rejected"]
PageRunState: TypeAlias = Literal["planned", "sending", "done", "failed"]
BroadcastState: TypeAlias = Literal["planned", "running", "done", "stopped"]
MoveState: TypeAlias = Literal["planned", "running", "done", "stopped", "undoing", "undone"]
UnknownWalletOutcome: TypeAlias = Literal["created", "unknown", "limit", "zero_address", "erased"]
"""The outcome for a wallet without a contact.

It became a contact (`created`), or the automation takes only existing contacts (`unknown`), it reached its limit of new
contacts for this hour (`limit`), the wallet is the zero address, or its contact was erased.
"""


def _values(kind: object) -> msgspec.Meta:
    """Document the values of a text field. A notebook accepts others as well, because a later server may send them."""
    return msgspec.Meta(extra_json_schema={"enum": [*get_args(kind)]})


class KeyLimits(msgspec.Struct, frozen=True, rename="camel"):
    """The limits that apply to requests with a key.

    `events_per_second`, and up to `burst` at once, for all keys of the organization together; 0: no limit.
    `queries`: SQL queries of the organization that one process runs at a time.
    """

    events_per_second: float
    burst: int
    events_per_batch: int
    queries: int


class CurrentKeyView(msgspec.Struct, frozen=True):
    """The key of a request. `test`: its events are dry runs; `strict`: see `/keys`."""

    id: str
    kind: str
    name: str
    scopes: tuple[str, ...]
    test: bool
    strict: bool


class CallerView(msgspec.Struct, frozen=True):
    """The organization and the key of a request, with its limits. `version`: of the server."""

    organization: str
    key: CurrentKeyView
    limits: KeyLimits
    version: str


class KeyView(msgspec.Struct, frozen=True, rename="camel"):
    """A key without its secret: `key` is its prefix and its last four characters.

    `status` `ending`: the key was rolled and works until `expiresAt`. `strict`: events with unknown fields are refused.
    """

    id: str
    kind: str
    key: str
    name: str
    scopes: tuple[str, ...]
    status: Annotated[str, _values(KeyStatus)]
    created_at: datetime
    last_used_at: datetime | None
    expires_at: datetime | None
    revoked_at: datetime | None
    strict: bool = False


class DayView(msgspec.Struct, frozen=True, rename="camel"):
    """The contacts that first entered on one UTC day."""

    day: date
    treated: LiftGroup
    held_out: LiftGroup


class GoalView(msgspec.Struct, frozen=True, rename="camel"):
    """How many of the contacts that first entered in the last `days`, with `since_version` or later, reached the goal.

    `goal` None: the live version has no goal, or nothing is published. `holdout`: in percent; without one there is no
    `lift`. `within_seconds`: the time after its first entry in which a contact can reach the goal. `later_entries`:
    entries of contacts that had entered before; they are not counted. `mixed`: merged contacts with entries on both
    sides; each counts on the side of its first entry. `unknown`: contacts with more events of this name than are read;
    they count as not reaching the goal. `cut_at`: set if there are too many entries or events; only entries since
    then are counted.
    """

    goal: str | None
    days: int
    holdout: int = 0
    since_version: int | None = None
    within_seconds: int = 0
    treated: LiftGroup = LiftGroup()
    held_out: LiftGroup = LiftGroup()
    lift: Lift | None = None
    by_day: tuple[DayView, ...] = ()
    later_entries: int = 0
    mixed: int = 0
    unknown: int = 0
    cut_at: datetime | None = None


class AutomationView(msgspec.Struct, frozen=True, rename="camel"):
    """An automation with its draft; `warnings` are the errors and warnings of the draft, errors first.

    `state`: `draft` until a version is published, then `off` unless it is active, `paused`, or else `live`.
    `impact`, only after a publication: the entries that it leaves on earlier versions. `moves`, only after one that
    moves entries: which ones. `stopped`, only after a pause: what it stopped.
    """

    id: str
    name: str
    state: Annotated[str, _values(AutomationState)]
    active: bool
    published_version: int | None
    revision: int
    trigger_spec: Any
    graph: Any
    warnings: tuple[Diagnostic, ...]
    created_at: datetime
    updated_at: datetime
    archived_at: datetime | None
    paused_at: datetime | None
    impact: "ImpactView | UnsetType | None" = UNSET
    stopped: "StoppedView | UnsetType | None" = UNSET
    moves: "MoveView | UnsetType | None" = UNSET


MAX_STOPPED_ENTRIES = 100_000  # that are counted


class StoppedView(msgspec.Struct, frozen=True, rename="camel"):
    """The numbers of what a stop or a pause stopped, or would stop.

    `stoppedAt`: since when everything is stopped; null: it is not. `automations`: those that start entries. `entries`:
    their entries that have not ended, at most 100,000: then there may be more. `unsent`: messages of these entries that
    wait for another attempt. `leaving`: messages that are being sent, which may still arrive.
    """

    stopped_at: datetime | None
    automations: int
    entries: int
    unsent: int
    leaving: int


class EarlierView(msgspec.Struct, frozen=True, rename="camel"):
    """The number of entries of an earlier version at a node in a state, and what happens to them.

    `version` None: they entered before the first publication. `node_id` None: they have not begun.
    """

    version: int | None
    node_id: str | None
    state: str
    entries: int
    then: Annotated[str, _values(EarlierOutcome)]


class ImpactView(msgspec.Struct, frozen=True):
    """The entries of earlier versions that have not ended when a version is published."""

    entries: int
    earlier: tuple[EarlierView, ...]


class RefusedEntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry that a move left where it was, or, once the move is undone, where the move had put it."""

    entry_id: str
    reason: str


class MovedEntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry that was moved from `fromNodeId` to `nodeId`, and what was predicted if nothing happened to its contact.

    `until`: the end of the step, with this outcome. `nextNodeId`: the next step; null: the entry ends, as `ends`.
    """

    entry_id: str
    from_version: int
    from_node_id: str
    node_id: str
    until: datetime | None
    outcome: str
    next_node_id: str | None
    ends: str | None


class MoveView(msgspec.Struct, frozen=True, rename="camel"):
    """A move of entries of earlier versions to `toVersion`.

    `move`: as it was requested. `state`: `planned` and `running` until every entry was looked at, then `done`;
    `stopped` by a later publication or by switching the automation off; `undoing`, then `undone`.
    `entries`: those of earlier versions that had not ended when the move began. `moved`, `movedBack`: how many of them.
    `refused`: the first 100 that were not moved, or not moved back. `reasons`: the number of all of them by reason.
    `sample`: the first 20 that were moved.
    """

    id: str | None
    to_version: int
    move: Any
    state: Annotated[str, _values(MoveState)]
    entries: int
    moved: int
    moved_back: int
    refused: tuple[RefusedEntryView, ...]
    reasons: dict[str, int]
    sample: tuple[MovedEntryView, ...]
    created_at: datetime
    ended_at: datetime | None


class EventResponse(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """The result of one event. `deduplicated`: the key was stored before. `matchedAutomations`: only for a dry run.

    `warnings`: what was left out of an accepted event: fields that look misspelt (`properties: unknown field, did you
    mean payload?`), and attributes for which the contact has no room.
    """

    accepted: bool
    deduplicated: bool
    idempotency_key: str = ""
    error: str | None = None
    dry_run: bool = False
    matched_automations: int | None = None
    warnings: tuple[str, ...] = ()


class BatchResponse(msgspec.Struct, frozen=True, omit_defaults=True):
    """One result per event, in order. `warnings`: fields next to `events` that look like fields of an event."""

    results: list[EventResponse]
    warnings: tuple[str, ...] = ()


class EventCountView(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event name and how often it was received; only with `detail`: `firstSeen` (ever), `lastSeen`, `perDay`."""

    event: str
    count: int
    first_seen: datetime | None = None
    last_seen: datetime | None = None
    per_day: Sequence[int] = ()


class CatalogResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Event names, most frequent first. `days`, only with `detail`: the UTC days that `perDay` counts."""

    events: Sequence[EventCountView]
    window_days: int
    days: Sequence[str] | UnsetType = UNSET


class StoredPayload(msgspec.Struct, frozen=True, rename="camel"):
    """One of the newest events of a name."""

    id: str
    created_at: datetime
    occurred_at: datetime
    payload: Any


class SchemaDrift(msgspec.Struct, frozen=True):
    """Changes since a time, and how many payloads from before and after it were compared."""

    since: datetime
    before: int
    recent: int
    changes: tuple[SchemaChange, ...]


class EventDescription(msgspec.Struct, frozen=True, rename="camel"):
    """One event. `days`: the UTC days that `perDay` counts. `sampled`: how many of the newest payloads were read.

    `paths`: the properties of these payloads. `samples`: the newest of them. `drift`: recent changes of structure.
    `undeliverable`: how many of the sampled events have a wallet that can never sign in for in-app messages.
    `sampledSince`: when the oldest of them was received.
    """

    event: str
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    window_days: int
    days: tuple[str, ...]
    per_day: tuple[int, ...]
    sampled: int
    paths: tuple[PropertyPath, ...]
    samples: tuple[StoredPayload, ...]
    drift: SchemaDrift
    undeliverable: int
    sampled_since: datetime | None


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
    """A message of an entry: the fields that a simulation shows, and its status.

    Texts and address are null if it was skipped before they were stored, and after the contact was erased.
    """

    id: str
    node_id: str
    status: str
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None


MESSAGE_VIEWS = {
    name: msgspec.defstruct(
        f"{name.capitalize()}View",
        [
            (field.name, field.type | None if field.type is str else field.type)
            for field in msgspec.structs.fields(channel.message)
            if field.name in channel.columns
        ],
        bases=(MessageView,),
        frozen=True,
        rename="camel",
        kw_only=True,
        tag_field="channel",
        tag=name,
        namespace={"__doc__": MessageView.__doc__},
    )
    for name, channel in CHANNELS.items()
}
if TYPE_CHECKING:
    AnyMessageView: TypeAlias = Any
else:
    AnyMessageView = Union[tuple(MESSAGE_VIEWS.values())]  # noqa: UP007  of a computed tuple


class TransitionView(msgspec.Struct, frozen=True):
    """A transition of an entry between states."""

    from_state: str = msgspec.field(name="from")
    to_state: str = msgspec.field(name="to")
    at: datetime
    reason: str | None


class EntryMoveView(msgspec.Struct, frozen=True, rename="camel"):
    """A move of an entry to another version, with what was predicted; or, with a `reason`, why the entry stayed."""

    id: str
    from_version: int
    to_version: int
    from_node_id: str | None
    node_id: str | None
    at: datetime | None
    moved_back_at: datetime | None
    until: datetime | None
    outcome: str | None
    next_node_id: str | None
    ends: str | None
    reason: str | None


class EntryHistoryView(EntryView, frozen=True, rename="camel"):
    """An entry with its event, its steps (as in a simulation), messages, transitions and moves to other versions."""

    idempotency_key: str | None
    occurred_at: datetime | None
    payload: msgspec.Raw | None
    steps: tuple[Step, ...] = ()
    messages: tuple[AnyMessageView, ...] = ()
    transitions: tuple[TransitionView, ...] = ()
    moves: tuple[EntryMoveView, ...] = ()


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


class SnippetSummary(msgspec.Struct, frozen=True, rename="camel"):
    """The newest version of a snippet in a list; `body` only in a list of `names`."""

    name: str
    version: int
    created_at: datetime
    created_by: str
    body: str | UnsetType = UNSET


class SnippetVersionView(msgspec.Struct, frozen=True, rename="camel"):
    """A version of a snippet; `createdBy` is the id of a key."""

    name: str
    version: int
    body: str
    created_at: datetime
    created_by: str


class AutomationUse(msgspec.Struct, frozen=True, rename="camel"):
    """An automation that uses something: in its `draft`, and in its live `version` (null: not in it)."""

    automation_id: str
    name: str
    draft: bool
    version: int | None


class SnippetUse(AutomationUse, frozen=True, rename="camel"):
    """An automation that includes a snippet, itself or by another snippet. `pinned`: its version of the snippet."""

    pinned: int | None


class SnippetView(SnippetVersionView, frozen=True, rename="camel"):
    """The newest version of a snippet, and the automations that include it."""

    used_by: tuple[SnippetUse, ...]


class ConnectionField(msgspec.Struct, frozen=True, rename="camel"):
    """A field that the templates of a connection use. `required`: they have no default for it."""

    name: str
    required: bool


class SavedRuleView(msgspec.Struct, frozen=True, rename="camel"):
    """A rule of a connection for the answers of its provider."""

    status: list[int | str] | None
    where: str | None


class SavedConnectionView(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A connection. `secrets`: the names of its secrets; `updatedBy`: the id of a key."""

    name: str
    url: str
    method: str
    headers: dict[str, str]
    body: dict[str, Any]
    success: SavedRuleView | None
    permanent: SavedRuleView | None
    rate: float | None
    secrets: tuple[str, ...]
    fields: tuple[ConnectionField, ...]
    created_at: datetime
    updated_at: datetime
    updated_by: str


class ConnectionDetail(SavedConnectionView, frozen=True, rename="camel", kw_only=True):
    """A connection, and the automations that send by it."""

    used_by: tuple[AutomationUse, ...]


class ChangeView(msgspec.Struct, frozen=True, rename="camel"):
    """A change of an automation; `by` is the name of the key that made it, or its id."""

    at: datetime
    action: str
    by: str
    key_id: str | None
    detail: dict[str, Any]


class AuditView(ChangeView, frozen=True, rename="camel"):
    """One change: when, what, and the key that made it; `key` is its prefix and its last four characters.

    `subject`: the name of what the change is about, if it has one. `from_version`, `to_version`: the live version
    before and after a publication or rollback.
    """

    id: str
    key: str | None
    subject_id: str | None
    subject: str | None
    from_version: int | None
    to_version: int | None


class ChainView(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of a chain; `problem`: what prevents its follower from reading, or None."""

    chain_id: int
    block_number: int | None
    head: int | None
    read_at: datetime | None
    problem: str | None


class LogCountView(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a contract, with the number of its logs among the newest ones."""

    chain_id: int
    contract: str
    event: str
    signature: str
    count: int

    @property
    def name(self) -> str:
        """The name of the event in waits and goals: `0x…:Transfer`."""
        return f"{self.contract}:{self.event}"


class UnknownWalletView(msgspec.Struct, frozen=True, rename="camel"):
    """The number of logs of unknown wallets for one automation, with one outcome."""

    automation_id: str
    automation: str
    what: Annotated[str, _values(UnknownWalletOutcome)]
    count: int


class ChainsResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The progress of each chain, the number of logs of each event, highest first, and of logs of unknown wallets."""

    chains: tuple[ChainView, ...]
    events: tuple[LogCountView, ...]
    unknown_wallets: tuple[UnknownWalletView, ...]


class CandidateCounts(msgspec.Struct, frozen=True):
    """Counts of candidates.

    `size`: distinct contacts. `rows`: rows returned. `nulls`: rows without a contact_id. `unknown`: ids of no contact,
    or of an erased contact.
    """

    size: int
    rows: int
    nulls: int
    unknown: int


class MembersChange(msgspec.Struct, frozen=True):
    """The numbers of contacts that entered and left a segment."""

    entered: int
    departed: int


class SegmentPreview(CandidateCounts, frozen=True, rename="camel"):
    """Counts of a query, some of its contacts, its duration, and how it would change the segment named in the body.

    `full_refresh_reason`: the part of the query because of which each refresh reads all contacts; None if a refresh
    reads only those that changed.
    """

    sample: tuple[str, ...]
    seconds: float
    change: MembersChange | None
    full_refresh_reason: str | None = None


class SegmentSize(MembersChange, frozen=True):
    """The size of a segment after a change at `at`, and the numbers of contacts that entered and left with it."""

    at: datetime
    size: int


class RefreshScope(msgspec.Struct, frozen=True):
    """What a refresh looked at: the `contacts` that had changed, or all of them (None), and the `reason`."""

    contacts: int | None
    reason: str | None


class SegmentView(msgspec.Struct, frozen=True, rename="camel"):
    """A segment.

    `size` is the number of members at `refreshed_at`; with `last_error`, the members are still those of that time.
    `next_at` is the time of the next refresh. `daily`, only in a list: its size on each of the last 30 days, oldest
    first; None before it existed. `history`, only of one segment: its size after each of its latest changes, newest
    first. `found` and `change`, only after a change: the counts of the query or of the ids, and how the members
    changed; None if they were not compared, or not all of them. `refresh`, only after a refresh: what it looked at.
    `full_refresh_reason`: as in a preview; None for an audience.
    """

    id: str
    name: str
    kind: Annotated[str, _values(SegmentKind)]
    size: int
    sql: str | None
    params: Any
    every_seconds: int | None
    provenance: dict[str, Any]
    refreshed_at: datetime | None
    last_error: str | None
    failing_since: datetime | None
    next_at: datetime | None
    revision: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    archived_at: datetime | None
    full_refresh_reason: str | None = None
    daily: Sequence[int | None] | UnsetType = UNSET
    history: Sequence[SegmentSize] | UnsetType = UNSET
    counts: CandidateCounts | UnsetType | None = msgspec.field(default=UNSET, name="found")
    change: MembersChange | UnsetType | None = UNSET
    refresh: RefreshScope | UnsetType | None = UNSET


class MissingView(msgspec.Struct, frozen=True, rename="camel"):
    """For a locale and a need: how many contacts lack the value, and how many were examined.

    `need`: its place in the request. `locale` None: the contacts without one.
    """

    need: int
    locale: str | None
    missing: int
    sampled: int


class ReachView(msgspec.Struct, frozen=True, rename="camel"):
    """The values that contacts of a segment lack. `contacts` were examined; `isSample`: the newest of more."""

    contacts: int
    is_sample: bool
    counts: tuple[MissingView, ...]


class UnreachableView(msgspec.Struct, frozen=True, rename="camel"):
    """How many contacts a message cannot go to, by the cause that its step would have."""

    node_id: str
    channel: Annotated[str, _values(ChannelName)]
    cause: str
    contacts: int


class BroadcastPreview(msgspec.Struct, frozen=True):
    """How many contacts a broadcast would start, some of them, and the moment up to which they entered.

    `unreachable`: contacts that messages cannot go to, of the newest `sampled` ones. `warnings`: messages that have no
    texts in the locales of these contacts, or need values that they lack.
    """

    contacts: int
    sample: tuple[str, ...]
    watermark: datetime
    warnings: tuple[Diagnostic, ...] = ()
    unreachable: tuple[UnreachableView, ...] = ()
    sampled: int = 0


class BroadcastView(msgspec.Struct, frozen=True, rename="camel"):
    """A broadcast. `segment` None: all contacts of the organization. `scheduled`: it is a run of a schedule.

    `contacts` were counted at the `watermark`. `entered` and `departed` came and left between it and the start of the
    broadcast, so `contacts + entered - departed` are started. `entries` were made so far. `reason`: why it was stopped.
    """

    id: str
    automation_id: str
    segment: str | None
    at: datetime
    state: Annotated[str, _values(BroadcastState)]
    reason: str | None
    contacts: int
    watermark: datetime
    entered: int | None
    departed: int | None
    entries: int
    scheduled: bool
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None


class MessageResults(msgspec.Struct, frozen=True, rename="camel"):
    """The outcomes of the messages of one step.

    `sent` includes `delivered` and `complained`, and `failed` includes `bounced`. `waiting`: not sent yet. `unknown`:
    may have arrived. `skipped`: by cause. `clicked`: messages with a click on a tracked link.
    """

    node_id: str
    channel: Annotated[str, _values(ChannelName)]
    sent: int = 0
    delivered: int = 0
    complained: int = 0
    failed: int = 0
    bounced: int = 0
    unknown: int = 0
    waiting: int = 0
    clicked: int = 0
    skipped: dict[str, int] = {}


class BroadcastGoal(msgspec.Struct, frozen=True, rename="camel"):
    """How many contacts reached the goal of the live version within `within_seconds` after they started.

    `unknown`: contacts with more events of this name than are read; they count as not reaching the goal. `lift`: only
    with a holdout.
    """

    goal: str
    within_seconds: int
    treated: LiftGroup
    held_out: LiftGroup
    lift: Lift | None
    unknown: int


class BroadcastResults(msgspec.Struct, frozen=True, rename="camel"):
    """The results of a broadcast: its entries by state, its messages by step, and its goal.

    `counted`: how many entries these figures are of. `is_partial`: the broadcast has more, and these are the first of
    them.
    """

    counted: int
    is_partial: bool
    entries: dict[str, int]
    messages: tuple[MessageResults, ...]
    goal: BroadcastGoal | None


class TestMessageView(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one message. `unknown`: it may have arrived. `reason`: why it was not sent, or its outcome unknown.

    `detail`: more about the reason; for a message that was sent, the response of the receiver.
    """

    node_id: str
    channel: Annotated[str, _values(ChannelName)]
    outcome: Annotated[str, _values(TestOutcome)]
    reason: str | None = None
    detail: str = ""
    id: str | None = None
    title: str | None = None


class ContactView(msgspec.Struct, frozen=True, rename="camel"):
    """A contact. `walletRaw` is the wallet in the case in which it was first sent, `optedOut` lists channels.

    `suppressed`: why its address gets no emails (bounced, complained, unsubscribed, opted_out); null if it gets emails,
    and always null in lists. `declined`: the topics whose messages it does not get.
    """

    # The store reads `email` sealed; it is replaced before a caller sees it.

    id: str
    wallet_address: str | None
    wallet_raw: str | None
    email: str | None
    external_id: str | None
    attributes: dict[str, Any]
    tags: tuple[str, ...]
    segments: tuple[str, ...]
    opted_out: tuple[str, ...]
    created_at: datetime
    updated_at: datetime
    suppressed: str | None = None
    declined: tuple[str, ...] = ()


class PropertiesView(msgspec.Struct, frozen=True):
    """The attributes (`paths`) and tags of a sample of contacts: the newest, and those of the newest events."""

    sampled: int
    paths: tuple[PropertyPath, ...]
    tags: tuple[str, ...]


class TopicView(msgspec.Struct, frozen=True, rename="camel"):
    """A topic. `label`: its name on the page of preferences, and `labels` in other languages, by locale.

    `optIn`: contacts get its messages until they decline (`none`), or after they confirm a link (`double`).
    """

    name: str
    label: str
    labels: dict[str, str]
    opt_in: Annotated[str, _values(OptIn)]
    created_at: datetime
    updated_at: datetime


class TopicWithUses(TopicView, frozen=True, rename="camel", kw_only=True):
    """A topic, and the automations that name it."""

    used_by: tuple[AutomationUse, ...]


class PreferencesView(msgspec.Struct, frozen=True):
    """The preferences of a contact: whether it gets messages, by topic and by channel."""

    topics: dict[str, bool]
    channels: dict[str, bool]


class ContactCounts(msgspec.Struct, frozen=True):
    """The numbers of a contact's events, entries, messages and identity conflicts."""

    events: int
    entries: int
    messages: int
    conflicts: int


class MovesView(msgspec.Struct, frozen=True, rename="camel"):
    """The values that the kept contact gains."""

    identifiers: dict[str, str]
    attributes: dict[str, Any]
    tags: tuple[str, ...]
    opted_out: tuple[str, ...]
    segments: tuple[str, ...]


class MergeView(msgspec.Struct, frozen=True, rename="camel"):
    """The effects of a merge. `id` is None in a preview.

    `hidden`: identifiers of the absorbed contact that the kept one does not show, as it has others of their kinds. An
    event with one of them is stored with the kept contact.
    `lost`: attributes of the absorbed contact for which the kept one has other values. `rows`: numbers of rows to move.
    `pending`: some rows have not been moved yet.
    """

    id: str | None
    keep: str
    absorbed: str
    moves: MovesView
    hidden: dict[str, str]
    lost: dict[str, Any]
    rows: ContactCounts
    pending: bool = False


class RecentEvent(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An event and its outcome. `payload` is as sent; `body`, of a rejected event, has types in place of values."""

    id: str
    at: datetime
    outcome: Annotated[str, _values(EventOutcome)]
    event: str | None
    contact_id: str | None = None
    idempotency_key: str | None = None
    payload: Any = None
    field: str | None = None
    error: str | None = None
    body: Any = None
    matched_automations: int | None = None
    entries: int | None = None


class MisspeltFieldView(msgspec.Struct, frozen=True, rename="camel"):
    """A field of accepted events that looks misspelt, and how often a key sent it in the last seven days.

    `warning` is the text in the answers of the events; `key` the beginning and end of the key.
    """

    field: str
    warning: str
    count: int
    last_at: datetime
    key: str
    key_name: str
    key_id: str


class ContactChangeView(msgspec.Struct, frozen=True, rename="camel"):
    """A change of a contact.

    `field`: email, walletAddress, externalId, attributes.NAME, tags, optedOut, segments.NAME or mergedInto. `old`,
    `new`: null if it had, or has, no value. `causeId`: the event (also of an import), the entry of the step, the merge
    or the key of the person. `contactId`: another one, if it has been merged into the contact.
    """

    changed_at: datetime
    field: str
    old: Any
    new: Any
    cause: str
    cause_id: str | None
    contact_id: str


class TimelineItemView(msgspec.Struct, frozen=True):
    """One item: its time, a sentence for people, and the row's fields."""

    kind: Annotated[str, _values(TimelineKind)]
    id: str
    at: datetime
    sentence: str
    detail: dict[str, Any]


class PageSectionView(msgspec.Struct, frozen=True):
    """A part of a scheduled page. `params`: addresses are masked without pii:read."""

    title: str
    sql: str
    params: Any


class PageRunView(msgspec.Struct, frozen=True, rename="camel"):
    """A run of a scheduled page. `at`: when it was planned for; `madeAt`: when its queries ran.

    `state`: planned, sending, done or failed. `sent`, `waiting`, `failed`, `unknown`: numbers of emails; unknown ones
    may have arrived. `error`: what went wrong in the run or in a section of the page; `emailError`: with an email.
    `kept`: whether the page can be read.
    """

    id: str
    at: datetime
    state: Annotated[str, _values(PageRunState)]
    made_at: datetime | None
    error: str | None
    kept: bool
    sent: int
    waiting: int
    failed: int
    unknown: int
    email_error: str | None


class PageScheduleView(msgspec.Struct, frozen=True, rename="camel"):
    """A page that is made and mailed at the times of `cron` in `timezone`, next at `nextAt`.

    `recipients`: masked without pii:read. `createdBy`: the id of the key; once it is revoked, no page is made.
    `lastRun`: null before the first one.
    """

    id: str
    title: str
    sections: tuple[PageSectionView, ...]
    recipients: tuple[str, ...]
    cron: str
    timezone: str
    next_at: datetime | None
    created_at: datetime
    created_by: str
    last_run: PageRunView | None


class KeptPageView(msgspec.Struct, frozen=True):
    """The page of a run, as it was mailed."""

    html: str


class ReceiptView(msgspec.Struct, frozen=True, rename="camel"):
    """The stored result of a check of a draft. `result`: numbers and warnings, without values of contacts.

    `contentHash`: of the trigger and graph as they would be published. A receipt holds until `expiresAt`, for the key
    that got it, and as long as the draft has this content.
    """

    kind: Annotated[str, _values(ReceiptKind)]
    content_hash: str
    result: dict[str, Any]
    issued_at: datetime
    expires_at: datetime


class ApprovalView(msgspec.Struct, frozen=True, rename="camel"):
    """A publication that a key proposes.

    `requestedBy`: the name of the key, or its id. `receipts`: what the key was shown. `reasons`: why this draft needs
    an approval, also if the organization does not ask for any.
    """

    id: str
    automation_id: str
    automation: str
    requested_by: str
    requested_at: datetime
    state: Annotated[str, _values(ApprovalState)]
    decided_at: datetime | None
    content_hash: str
    receipts: tuple[ReceiptView, ...]
    reasons: tuple[str, ...] = ()


# --- Lakes


class LakeFile(msgspec.Struct, frozen=True):
    """A file of events. `sha256`: of its content, in hex digits."""

    id: str
    rows: int
    size: int
    sha256: str


class LakeManifest(msgspec.Struct, frozen=True, rename="camel"):
    """The files of events that are valid at a watermark.

    `eventNumbers`: the number that stands for each event name in the files. `touched`: numbers of contacts with
    outdated events in the files; the unfiled rows have their events.
    """

    watermark: str
    files: tuple[LakeFile, ...]
    event_numbers: dict[str, int]
    touched: tuple[int, ...]
