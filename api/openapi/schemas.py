"""The shapes of requests, and of answers that have no view of their own. Only the OpenAPI document uses them.

Routes read bodies field by field, so that one answer can name every problem; these structs describe the same fields.
A field that is null counts as absent.
"""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.auth.key_format import Kind
from api.automations.audit import AuditView
from api.automations.goals import MAX_DAYS
from api.routes.chain import LogView
from api.store.chain import ChainRow, LogCountRow, UnknownWalletRow
from api.store.contacts import TimelineKind
from workbench.language.codec import Json
from workbench.language.event import MAX_PAYLOAD_BYTES
from workbench.language.run import State

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Limit = Annotated[int, Meta(ge=1, le=500)]
Positive = Annotated[int, Meta(ge=1)]
Flag = Literal["true", "false"]
Absent = msgspec.UnsetType
ABSENT = msgspec.UNSET


# Events and the catalog


class ContactBody(msgspec.Struct, rename="camel"):
    """The identifiers of a contact; at least one of them."""

    email: Identifier | None = None
    wallet_address: Identifier | None = None
    external_id: Identifier | None = None


class EventBody(msgspec.Struct, rename="camel"):
    """An event of a contact."""

    event: Annotated[
        str,
        Meta(pattern="^[A-Za-z0-9_.:-]{1,64}$", description="Stored in lower case.", examples=["deposit"]),
    ]
    contact: Annotated[ContactBody, Meta(examples=[{"externalId": "user_1"}])]
    attributes: Annotated[dict[str, Json] | None, Meta(description="Merged into the contact's attributes.")] = None
    payload: Annotated[
        dict[str, Json] | None, Meta(description=f"At most {MAX_PAYLOAD_BYTES:,} bytes as compact JSON.")
    ] = None
    idempotency_key: Annotated[
        str | None,
        Meta(description="A repeated key is not stored again. Without a key, one is derived from the event."),
    ] = None
    occurred_at: Annotated[datetime | None, Meta(description="From 7 days ago to 5 minutes ahead.")] = None
    test: Annotated[bool | None, Meta(description="A dry run: evaluated, not stored.")] = None


class BatchBody(msgspec.Struct):
    """Up to 100 events."""

    events: Annotated[list[EventBody], Meta(max_length=100)]


class EventResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The result of one event. `deduplicated`: the key was stored before. `matchedAutomations`: of a dry run."""

    accepted: bool
    deduplicated: bool
    idempotency_key: str | Absent = ABSENT
    error: str | Absent = ABSENT
    dry_run: bool | Absent = ABSENT
    matched_automations: int | Absent = ABSENT


class RecentQuery(msgspec.Struct):
    """`follow` makes the answer a stream of Server-Sent Events."""

    outcome: Literal["accepted", "deduplicated", "rejected", "dry_run"] | Absent = ABSENT
    limit: Limit = 50
    after: Annotated[str, Meta(description="The cursor of an earlier answer, or the id of an event.")] = ""
    follow: Flag = "false"
    seconds: Annotated[int, Meta(ge=1, le=86_400)] = 86_400


class CatalogQuery(msgspec.Struct):
    """The window in days, and which event names of it to list."""

    days: Annotated[int, Meta(ge=1, le=30)] = 30
    limit: Annotated[int, Meta(ge=1, le=200)] = 200
    prefix: str = ""
    detail: Flag = "false"


class DaysQuery(msgspec.Struct):
    """The window in days."""

    days: Annotated[int, Meta(ge=1, le=30)] = 30


class EventCount(msgspec.Struct, frozen=True, rename="camel"):
    """An event name and how often it was received; `firstSeen`, `lastSeen` and `perDay` only with `detail`."""

    event: str
    count: int
    first_seen: datetime | Absent | None = ABSENT
    last_seen: datetime | Absent | None = ABSENT
    per_day: list[int] | Absent = ABSENT


class CatalogResponse(msgspec.Struct, frozen=True, rename="camel"):
    """Event names, most frequent first."""

    events: list[EventCount]
    window_days: int
    days: list[str] | Absent = ABSENT


class EventDescription(msgspec.Struct, frozen=True, rename="camel"):
    """One event. `paths`: the properties of its newest payloads; `drift`: recent changes of their structure."""

    event: str
    count: int
    first_seen: datetime | None
    last_seen: datetime | None
    window_days: int
    days: list[str]
    per_day: list[int]
    sampled: int
    paths: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    drift: dict[str, Any]


# Automations and entries


class AutomationsQuery(msgspec.Struct):
    """`before`: the last id of the previous page."""

    name: str = ""
    archived: Flag = "false"
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    before: Id | Absent = ABSENT


class LimitQuery(msgspec.Struct):
    """The maximum number of rows."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class TriggerBody(msgspec.Struct, rename="camel"):
    """The events that start an automation: docs/automation-language.md, and docs/on-chain.md for `onchain_event`."""

    type: Literal["app_event", "onchain_event"]
    event: str | None = None
    filters: list[dict[str, Any]] | None = None
    contract: str | None = None
    chain_id: Positive | None = None
    wallet_arg: str | None = None
    confirmations: Annotated[int, Meta(ge=0)] | None = None
    create_contacts: bool | None = None


class AutomationBody(msgspec.Struct, rename="camel"):
    """A new automation; docs/automation-language.md describes `graph`."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    trigger_spec: TriggerBody
    graph: dict[str, Any] | None = None
    active: bool | None = None


class EditBody(msgspec.Struct, rename="camel"):
    """Changes to the automation as it was at `revision`."""

    revision: Positive
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    trigger_spec: TriggerBody | None = None
    graph: dict[str, Any] | None = None
    active: bool | None = None


class PublishBody(msgspec.Struct):
    """`revision`: publish only if the draft is still at this revision."""

    revision: Positive | None = None


class RollbackBody(msgspec.Struct):
    """The version to publish again."""

    version: Positive


class ResumeBody(msgspec.Struct):
    """`overdue`: run or cancel the entries that came due during the pause."""

    overdue: Literal["run", "cancel"] | None = None


class GoalQuery(msgspec.Struct):
    """The window in days."""

    days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] = 30


class CauseBody(msgspec.Struct):
    """`cause`: only entries that failed with this cause."""

    cause: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ReplayBody(CauseBody, rename="camel"):
    """The dead entries to replay; without fields all of them."""

    automation_id: Id | None = None


class TrialBody(msgspec.Struct):
    """An event to simulate, and later events. Without `contact`, the stored contact of the event is used."""

    event: EventBody
    contact: dict[str, Any] | None = None
    now: datetime | None = None
    until: datetime | None = None
    events: list[dict[str, Any]] | None = None
    version: int | Literal["draft", "published"] | None = None


class UnsavedTrialBody(TrialBody, rename="camel", kw_only=True):
    """A simulation of an unsaved automation. `automationId`: splits and re-entry rules are those of this one."""

    trigger_spec: TriggerBody
    graph: dict[str, Any]
    automation_id: Id | Absent = ABSENT


class TestReceiverBody(msgspec.Struct, rename="camel"):
    """The receivers of test messages; at least one of them."""

    email: Identifier | None = None
    wallet_address: Identifier | None = None
    url: str | None = None


class TestBody(TrialBody, rename="camel", kw_only=True):
    """A simulation; its messages, or those of one node, are sent to the receivers."""

    to: TestReceiverBody
    node_id: str | None = None


class EntriesQuery(msgspec.Struct):
    """`after`: the last id of the previous page."""

    limit: Limit = 50
    state: State | Absent = ABSENT
    after: Id | Absent = ABSENT


class FindEntriesQuery(EntriesQuery, rename="camel"):
    """The event; its entries are listed."""

    event: str = ""
    event_id: Id | Absent = ABSENT
    idempotency_key: str = ""


class DeadLettersQuery(msgspec.Struct, rename="camel"):
    """`automationId`: only of this automation."""

    automation_id: Id | Absent = ABSENT


# Contacts


class FindContactBody(msgspec.Struct):
    """The identifiers of the contact."""

    contact: ContactBody


class ContactQuery(msgspec.Struct, rename="camel"):
    """Exactly one of these."""

    id: Id | Absent = ABSENT
    email: Identifier | Absent = ABSENT
    wallet_address: Identifier | Absent = ABSENT
    external_id: Identifier | Absent = ABSENT


class OptOutsBody(msgspec.Struct):
    """true: no more messages through this channel."""

    inapp: bool | None = None
    email: bool | None = None
    webhook: bool | None = None


class TagsBody(msgspec.Struct):
    """Tags to add and to remove."""

    add: Annotated[list[str], Meta(max_length=100)] | None = None
    remove: Annotated[list[str], Meta(max_length=100)] | None = None


class TimelineQuery(msgspec.Struct):
    """The kind of history, and the page."""

    kind: TimelineKind | Absent = ABSENT
    before: Annotated[str, Meta(description="A moment, or `next` of the previous page.")] | Absent = ABSENT
    limit: Limit = 100


class ExplainBody(msgspec.Struct, rename="camel"):
    """The automation, and one event: a stored one by `eventId`, or an `event` that has not happened."""

    automation_id: Id
    event_id: Id | None = None
    event: dict[str, Any] | None = None
    limit: int | None = None


class MergeBody(msgspec.Struct):
    """The contact to keep, and the one to merge into it."""

    keep: Id
    absorb: Id
    preview: bool | None = None


class ContactExport(msgspec.Struct, frozen=True):
    """Everything stored about a contact."""

    contact: dict[str, Any]
    events: list[dict[str, Any]]
    entries: list[dict[str, Any]]
    messages: list[dict[str, Any]]


# Segments and SQL


class SegmentBody(msgspec.Struct, rename="camel"):
    """A segment defined by `sql`, or an audience of `contactIds`."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
    sql: str | None = None
    params: Json = None
    every_seconds: Annotated[int, Meta(ge=60, le=604_800)] | None = None
    contact_ids: list[str] | None = None
    provenance: dict[str, Any] | None = None
    revision: int | None = None
    more: bool | None = None


class SegmentEditBody(msgspec.Struct, rename="camel"):
    """Changes to the segment as it was at `revision`."""

    revision: Positive
    sql: str | None = None
    params: Json = None
    every_seconds: Annotated[int, Meta(ge=60, le=604_800)] | None = None


class SegmentPreviewBody(msgspec.Struct):
    """A query to preview; `name`: the segment to compare with."""

    sql: str
    params: Json = None
    name: str | None = None


class SegmentContactsBody(msgspec.Struct, rename="camel"):
    """The next contacts of an audience; `more`: others follow."""

    contact_ids: list[str]
    more: bool | None = None


class SqlBody(msgspec.Struct, rename="camel"):
    """One SELECT. `params`: a list for `$1` or an object for `:name`. `asOf`: the watermark of an earlier answer."""

    sql: Annotated[str, Meta(examples=["SELECT event, count(*) FROM app_events GROUP BY 1"])]
    params: Json = None
    as_of: str | None = None


class SqlColumn(msgspec.Struct, frozen=True):
    """A column and its Postgres type."""

    name: str
    type: str


class SqlResponse(msgspec.Struct, frozen=True):
    """The rows of a query. `Accept: text/csv` or `application/vnd.apache.arrow.stream` selects another form."""

    columns: list[SqlColumn]
    rows: list[list[Json]]


# Chains


class LogsQuery(msgspec.Struct):
    """`before`: the last id of the previous page."""

    contract: str | Absent = ABSENT
    event: str | Absent = ABSENT
    before: Id | Absent = ABSENT
    limit: Limit = 20


class ChainsResponse(msgspec.Struct, frozen=True, rename="camel"):
    """How far each chain was read; its events, most frequent first; and logs of wallets that belong to no contact."""

    chains: list[ChainRow]
    events: list[LogCountRow]
    unknown_wallets: list[UnknownWalletRow]


class LogsResponse(msgspec.Struct, frozen=True):
    """Logs, newest first."""

    events: list[LogView]


# Account: keys, webhooks, audit, usage


class ChangesQuery(msgspec.Struct, rename="camel"):
    """`before`: the last id of the previous page."""

    limit: Limit = 50
    subject_id: Id | Absent = ABSENT
    action: str | Absent = ABSENT
    before: Id | Absent = ABSENT


class AuditResponse(msgspec.Struct, frozen=True):
    """Changes, newest first."""

    changes: list[AuditView]


class UsageQuery(msgspec.Struct):
    """A month in UTC, like 2026-11."""

    month: Annotated[str, Meta(pattern="^2[0-9]{3}-(0[1-9]|1[0-2])$")] | Absent = ABSENT


class UsageResponse(msgspec.Struct, frozen=True):
    """Messages sent in a month, by channel."""

    month: str
    messages: dict[str, int]
    total: int


class KeyBody(msgspec.Struct):
    """A new key. Without `scopes` it has the default scopes of its kind."""

    kind: Kind
    scopes: list[str] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


class RollBody(msgspec.Struct, rename="camel"):
    """How long the old key still works; by default a day."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=2_592_000)] | None = None


class WebhookSecret(msgspec.Struct, frozen=True):
    """The secret that webhooks are signed with (Standard Webhooks 1.0)."""

    secret: str


class RolledWebhookSecret(WebhookSecret, frozen=True, rename="camel"):
    """The new secret. Until `previousUntil` webhooks are signed with the previous one, too."""

    previous_until: datetime


class EndpointBody(msgspec.Struct):
    """The URL of the endpoint."""

    url: str


# In-app messages and unsubscribing


class ChallengeBody(msgspec.Struct, rename="camel"):
    """The wallet that will sign."""

    wallet_address: Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]
    chain_id: Positive = 1


class ChallengeResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The text to sign (EIP-4361)."""

    message: str
    nonce: str
    expires_at: datetime


class SessionBody(msgspec.Struct):
    """The signed text and its signature."""

    message: str
    signature: str


class SessionResponse(msgspec.Struct, frozen=True, rename="camel"):
    """The token that opens the socket."""

    token: str
    wallet_address: str
    expires_at: datetime


class TokenQuery(msgspec.Struct):
    """The token in the link of an email."""

    token: str


# The server


class NotebookVersions(msgspec.Struct, frozen=True):
    """Versions of the notebook package, like `0.1`."""

    oldest: str
    newest: str


class VersionResponse(msgspec.Struct, frozen=True):
    """The version of the server, and of the notebook packages that it serves."""

    version: str
    notebooks: NotebookVersions


class Health(msgspec.Struct, frozen=True):
    """The process is alive."""

    status: Literal["ok"]


class Readiness(msgspec.Struct, frozen=True, rename="camel"):
    """Whether events can be accepted. `engine`, `engineLagSeconds` and `chains` are the states of these processes."""

    status: Literal["ready", "unavailable"]
    database: str
    writer: str
    engine: str
    engine_lag_seconds: float | Absent | None = ABSENT
    chains: dict[str, str] | Absent = ABSENT
