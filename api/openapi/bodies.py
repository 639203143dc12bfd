"""What callers send: bodies and queries, as the contract and `design.md` have them. Fields that are null count as absent."""

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from api.access.format import Kind
from api.authoring.goals import MOST_DAYS
from api.language.codec import Json
from api.language.payload import MAX_PAYLOAD_BYTES
from api.language.run import State
from api.store.timeline import Happening

Identifier = Annotated[str, Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(extra_json_schema={"format": "uuid"})]
Limit = Annotated[int, Meta(ge=1, le=500)]
Flag = Literal["true", "false"]
Absent = msgspec.UnsetType
ABSENT = msgspec.UNSET


class ContactBody(msgspec.Struct, rename="camel"):
    """Who it was: at least one of the three."""

    email: Identifier | None = None
    wallet_address: Identifier | None = None
    external_id: Identifier | None = None


class EventBody(msgspec.Struct, rename="camel"):
    """An event."""

    event: Annotated[
        str,
        Meta(pattern="^[A-Za-z0-9_.:-]{1,64}$", description="Upper case becomes lower case.", examples=["deposit"]),
    ]
    contact: Annotated[ContactBody, Meta(examples=[{"externalId": "user_1"}])]
    attributes: Annotated[dict[str, Json] | None, Meta(description="Merged into the contact's own.")] = None
    payload: Annotated[
        dict[str, Json] | None, Meta(description=f"At most {MAX_PAYLOAD_BYTES:,} bytes as compact JSON.")
    ] = None
    idempotency_key: Annotated[
        str | None, Meta(description="The same key again changes nothing. Without one, one is derived.")
    ] = None
    occurred_at: Annotated[datetime | None, Meta(description="From 7 days ago to 5 minutes ahead.")] = None
    test: Annotated[bool | None, Meta(description="A dry run: judged, and not stored.")] = None


class BatchBody(msgspec.Struct):
    """Up to 100 events."""

    events: Annotated[list[EventBody], Meta(max_length=100)]


class CatalogQuery(msgspec.Struct):
    """Which events, of how many days."""

    days: Annotated[int, Meta(ge=1, le=30)] = 30
    limit: Annotated[int, Meta(ge=1, le=200)] = 200
    prefix: str = ""
    detail: Flag = "false"


class DaysQuery(msgspec.Struct):
    """Of how many days."""

    days: Annotated[int, Meta(ge=1, le=30)] = 30


class RecentQuery(msgspec.Struct):
    """Which events; `follow` makes it a stream of Server-Sent Events."""

    outcome: Literal["accepted", "deduplicated", "rejected", "dry_run"] | Absent = ABSENT
    limit: Limit = 50
    after: Annotated[str, Meta(description="The cursor of an earlier answer, or the id of an event.")] = ""
    follow: Flag = "false"
    seconds: Annotated[int, Meta(ge=1, le=86_400)] = 86_400


class AutomationsQuery(msgspec.Struct):
    """Which automations; `before` is the last id of the page before."""

    name: str = ""
    archived: Flag = "false"
    limit: Annotated[int, Meta(ge=1, le=100)] = 50
    before: Id | Absent = ABSENT


class LimitQuery(msgspec.Struct):
    """How many."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class TriggerBody(msgspec.Struct, rename="camel"):
    """Which events start it; see docs/automation-language.md, and docs/on-chain.md for `contract` and what follows it."""

    type: Literal["app_event", "onchain_event"]
    event: str | None = None
    filters: list[dict[str, Any]] | None = None
    contract: str | None = None
    chain_id: Annotated[int, Meta(ge=1)] | None = None
    wallet_arg: str | None = None
    confirmations: Annotated[int, Meta(ge=0)] | None = None
    create_contacts: bool | None = None


class AutomationBody(msgspec.Struct, rename="camel"):
    """A new automation; see docs/automation-language.md for its graph."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    trigger_spec: TriggerBody
    graph: dict[str, Any] | None = None
    active: bool | None = None


class EditBody(msgspec.Struct, rename="camel"):
    """Changes to an automation as it was at `revision`."""

    revision: Annotated[int, Meta(ge=1)]
    name: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    trigger_spec: TriggerBody | None = None
    graph: dict[str, Any] | None = None
    active: bool | None = None


class PublishBody(msgspec.Struct):
    """`revision`: publish only if the draft is still that one."""

    revision: Annotated[int, Meta(ge=1)] | None = None


class RollbackBody(msgspec.Struct):
    """The version that is to run again."""

    version: Annotated[int, Meta(ge=1)]


class CauseBody(msgspec.Struct):
    """`cause`: only those that died of it."""

    cause: Annotated[str, Meta(min_length=1, max_length=200)] | None = None


class ReplayBody(CauseBody, rename="camel"):
    """Which dead entries."""

    automation_id: Id | None = None


class TrialBody(msgspec.Struct):
    """An event to try, and what comes after it. Without `contact` it is whoever the event is of."""

    event: EventBody
    contact: dict[str, Any] | None = None
    now: datetime | None = None
    until: datetime | None = None
    events: list[dict[str, Any]] | None = None
    version: int | Literal["draft", "published"] | None = None


class WholeTrialBody(TrialBody, rename="camel", kw_only=True):
    """The same, with the automation; its id, where it has one, says who goes where at a split and who was in before."""

    trigger_spec: TriggerBody
    graph: dict[str, Any]
    automation_id: Id | Absent = ABSENT


class ToBody(msgspec.Struct, rename="camel"):
    """Where a test goes: at least one of the three."""

    email: Identifier | None = None
    wallet_address: Identifier | None = None
    url: str | None = None


class TestBody(TrialBody, rename="camel", kw_only=True):
    """A trial whose messages are sent, those of one node or all."""

    to: ToBody
    node_id: str | None = None


class ResumeBody(msgspec.Struct):
    """What becomes of what came due meanwhile."""

    overdue: Literal["run", "cancel"] | None = None


class GoalQuery(msgspec.Struct):
    """Over how many days."""

    days: Annotated[int, Meta(ge=1, le=MOST_DAYS)] = 30


class ChangesQuery(msgspec.Struct, rename="camel"):
    """Which changes; `before` is the last id of the page before."""

    limit: Limit = 50
    subject_id: Id | Absent = ABSENT
    action: str | Absent = ABSENT
    before: Id | Absent = ABSENT


class LogsQuery(msgspec.Struct):
    """Which logs."""

    contract: str | Absent = ABSENT
    event: str | Absent = ABSENT
    before: Id | Absent = ABSENT
    limit: Limit = 20


class EntriesQuery(msgspec.Struct):
    """Which entries; `after` is the last id of the page before."""

    limit: Limit = 50
    state: State | Absent = ABSENT
    after: Id | Absent = ABSENT


class FindEntriesQuery(EntriesQuery, rename="camel"):
    """Which entries, of which events."""

    event: str = ""
    event_id: Id | Absent = ABSENT
    idempotency_key: str = ""


class DeadQuery(msgspec.Struct, rename="camel"):
    """Of which automation."""

    automation_id: Id | Absent = ABSENT


class FindContactBody(msgspec.Struct):
    """Who it is."""

    contact: ContactBody


class ContactQuery(msgspec.Struct, rename="camel"):
    """One of them."""

    id: Id | Absent = ABSENT
    email: Identifier | Absent = ABSENT
    wallet_address: Identifier | Absent = ABSENT
    external_id: Identifier | Absent = ABSENT


class OptOutsBody(msgspec.Struct):
    """true: no more messages through it."""

    inapp: bool | None = None
    email: bool | None = None
    webhook: bool | None = None


class TagsBody(msgspec.Struct):
    """Tags."""

    add: Annotated[list[str], Meta(max_length=100)] | None = None
    remove: Annotated[list[str], Meta(max_length=100)] | None = None


class TimelineQuery(msgspec.Struct):
    """What, and before when."""

    kind: Happening | Absent = ABSENT
    before: Annotated[str, Meta(description="A moment, or `next` of the page before.")] | Absent = ABSENT
    limit: Limit = 100


class ExplainBody(msgspec.Struct, rename="camel"):
    """Which automation, and about which event."""

    automation_id: Id
    event_id: Id | None = None
    event: dict[str, Any] | None = None
    limit: int | None = None


class MergeBody(msgspec.Struct):
    """The contact that stays, and the one it absorbs."""

    keep: Id
    absorb: Id
    preview: bool | None = None


class SqlBody(msgspec.Struct, rename="camel"):
    """One SELECT; values as a list for `$1` or an object for `:name`. `asOf`: the watermark of an earlier answer."""

    sql: Annotated[str, Meta(examples=["SELECT event, count(*) FROM app_events GROUP BY 1"])]
    params: Json = None
    as_of: str | None = None


class SegmentBody(msgspec.Struct, rename="camel"):
    """A segment by its `sql`, or an audience by its `contactIds`."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,63}$")]
    sql: str | None = None
    params: Json = None
    every_seconds: Annotated[int, Meta(ge=60, le=604_800)] | None = None
    contact_ids: list[str] | None = None
    provenance: dict[str, Any] | None = None
    revision: int | None = None
    more: bool | None = None


class SegmentEditBody(msgspec.Struct, rename="camel"):
    """Changes to a segment as it was at `revision`."""

    revision: Annotated[int, Meta(ge=1)]
    sql: str | None = None
    params: Json = None
    every_seconds: Annotated[int, Meta(ge=60, le=604_800)] | None = None


class SegmentTrialBody(msgspec.Struct):
    """A query to try; `name`: of the segment it would change."""

    sql: str
    params: Json = None
    name: str | None = None


class SegmentPartBody(msgspec.Struct, rename="camel"):
    """The next contacts of a frame."""

    contact_ids: list[str]
    more: bool | None = None


class UsageQuery(msgspec.Struct):
    """Which month of UTC, like 2026-11."""

    month: Annotated[str, Meta(pattern="^2[0-9]{3}-(0[1-9]|1[0-2])$")] | Absent = ABSENT


class KeyBody(msgspec.Struct):
    """A new key. Without `scopes` it has the usual ones of its kind."""

    kind: Kind
    scopes: list[str] | None = None
    name: Annotated[str, Meta(min_length=1, max_length=100)] | None = None


class RollBody(msgspec.Struct, rename="camel"):
    """How long the old key works on: a day unless said otherwise."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=2_592_000)] | None = None


class EndpointBody(msgspec.Struct):
    """The address."""

    url: str


class TokenQuery(msgspec.Struct):
    """The token of the address in an email."""

    token: str


class ChallengeBody(msgspec.Struct, rename="camel"):
    """The wallet that is to sign."""

    wallet_address: Annotated[str, Meta(pattern="^0x[0-9a-fA-F]{40}$")]
    chain_id: Annotated[int, Meta(ge=1)] = 1


class SessionBody(msgspec.Struct):
    """What the wallet signed."""

    message: str
    signature: str
