"""The entry of each route in the OpenAPI document: required key, input and output types.

Routes are named `<blueprint>.<handler>`; a test compares the names with the routes that are registered.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from api.auth.key_format import Kind
from api.auth.keys import KeyView, NewKeyView
from api.automations.goals import GoalView
from api.automations.test_send import TestMessageView
from api.automations.trial import TrialView
from api.automations.views import (
    AutomationView,
    ChangeView,
    DeadLetterView,
    EntryHistoryView,
    EntryView,
    ImpactView,
    PublishedView,
    StatsView,
    VersionView,
)
from api.catalog.tail import RecentEvent
from api.contacts.contacts import ContactView
from api.contacts.erase import ErasedView
from api.contacts.explain import ExplainedView
from api.contacts.merge import MergeView, UndoneView
from api.contacts.timeline import ContactWithCounts, TimelineView
from api.openapi import schemas
from api.segments.views import (
    SegmentDetailView,
    SegmentListItem,
    SegmentPreviewView,
    SegmentResultView,
    SegmentView,
)

Media = Literal["text/html", "text/javascript", "text/event-stream"]


class Access(msgspec.Struct, frozen=True):
    """The kinds of keys that may call a route, with one of the scopes. No kinds: public."""

    kinds: tuple[Kind, ...] = ()
    scopes: tuple[str, ...] = ()


PUBLIC = Access()


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route. `answer` is the type of the JSON answer, `media` its other form; `other_answers` are by status."""

    access: Access = PUBLIC
    query: type | None = None
    body: type | None = None
    body_required: bool = True
    answer: Any = None
    media: Media | None = None
    status: int = 200
    other_answers: Mapping[int, Any] = {}


class FieldError(msgspec.Struct, frozen=True):
    """One of several problems with a request."""

    error: str
    field: str


class Error(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A refused request. `error` says what is wrong, `field` where; `errors` lists all problems if there are several.

    `requestId` finds the request in the server's log.
    """

    error: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    code: Literal["RATE_LIMITED", "INGEST_UNAVAILABLE"] | msgspec.UnsetType = msgspec.UNSET
    errors: tuple[FieldError, ...] | msgspec.UnsetType = msgspec.UNSET


@cache
def wrapped(name: str, kind: Any) -> type:
    """Return the type of an answer with one field: `{"entries": [...]}` is an `EntriesResponse`."""
    return msgspec.defstruct(f"{name[0].upper()}{name[1:]}Response", [(name, kind)], frozen=True)


_INGEST = Access(("live", "test"), ("ingest",))
_READ_EVENTS = Access(("live", "test", "workbench"), ("events:read",))
_READ = Access(("workbench",), ("automations:write", "automations:publish", "events:read"))
_WRITE = Access(("workbench",), ("automations:write",))
_PUBLISH = Access(("workbench",), ("automations:publish",))
_SWITCH = Access(("workbench",), ("automations:write", "automations:publish"))
_FIND_CONTACT = Access(("live", "workbench"), ("ingest", "contacts:read"))
_CHANGE_CONTACT = Access(("live", "workbench"), ("ingest", "automations:write"))
_READ_CONTACT = Access(("workbench",), ("contacts:read",))
_MERGE = Access(("workbench",), ("contacts:read", "automations:write"))
_ERASE = Access(("workbench",), ("contacts:erase",))
_SQL = Access(("workbench",), ("sql:read",))
_READ_SEGMENTS = Access(("workbench",), ("contacts:read", "sql:read", "automations:write"))
_CHANGE_WEBHOOKS = Access(("live", "workbench"), ("ingest", "keys:admin"))
_READ_WEBHOOKS = Access(("live", "workbench"), ("ingest", "keys:admin", "automations:publish"))
_ADMIN = Access(("workbench",), ("keys:admin",))
_AUDIT = Access(
    ("workbench",),
    ("keys:admin", "automations:write", "automations:publish", "events:read", "contacts:read", "sql:read"),
)
_BROWSER = Access(("publishable",))

OPERATIONS = {
    "events.ingest_one": Operation(access=_INGEST, body=schemas.EventBody, answer=schemas.EventResponse, status=202),
    "events.ingest_batch": Operation(
        access=_INGEST, body=schemas.BatchBody, answer=wrapped("results", list[schemas.EventResponse]), status=202
    ),
    "events.recent": Operation(
        access=_READ_EVENTS,
        query=schemas.RecentQuery,
        answer=wrapped("events", list[RecentEvent]),
        media="text/event-stream",
    ),
    "catalog.list_events": Operation(access=_READ_EVENTS, query=schemas.CatalogQuery, answer=schemas.CatalogResponse),
    "catalog.describe": Operation(access=_READ_EVENTS, query=schemas.DaysQuery, answer=schemas.EventDescription),
    "automations.create": Operation(access=_WRITE, body=schemas.AutomationBody, answer=AutomationView, status=201),
    "automations.list_all": Operation(
        access=_READ, query=schemas.AutomationsQuery, answer=wrapped("automations", list[AutomationView])
    ),
    "automations.read": Operation(access=_READ, answer=AutomationView),
    "automations.update": Operation(access=_WRITE, body=schemas.EditBody, answer=AutomationView),
    "automations.publish": Operation(
        access=_PUBLISH, body=schemas.PublishBody, body_required=False, answer=PublishedView
    ),
    "automations.rollback": Operation(access=_PUBLISH, body=schemas.RollbackBody, answer=PublishedView),
    "automations.activate": Operation(access=_SWITCH, answer=AutomationView),
    "automations.deactivate": Operation(access=_WRITE, answer=AutomationView),
    "automations.pause": Operation(access=_SWITCH, answer=AutomationView),
    "automations.resume": Operation(
        access=_SWITCH, body=schemas.ResumeBody, body_required=False, answer=AutomationView
    ),
    "automations.archive": Operation(access=_WRITE, answer=AutomationView),
    "automations.list_versions": Operation(
        access=_READ, query=schemas.LimitQuery, answer=wrapped("versions", list[VersionView])
    ),
    "automations.list_changes": Operation(
        access=_READ, query=schemas.LimitQuery, answer=wrapped("changes", list[ChangeView])
    ),
    "automations.stats": Operation(access=_READ, answer=StatsView),
    "automations.goal": Operation(access=_READ, query=schemas.GoalQuery, answer=GoalView),
    "automations.impact": Operation(access=_READ, answer=wrapped("impact", ImpactView)),
    "automations.list_entries": Operation(
        access=_READ, query=schemas.EntriesQuery, answer=wrapped("entries", list[EntryView])
    ),
    "automations.replay": Operation(
        access=_WRITE, body=schemas.CauseBody, body_required=False, answer=wrapped("replayed", int)
    ),
    "automations.simulate": Operation(access=_WRITE, body=schemas.TrialBody, answer=TrialView),
    "automations.simulate_unsaved": Operation(access=_WRITE, body=schemas.UnsavedTrialBody, answer=TrialView),
    "automations.send_test_messages": Operation(
        access=_WRITE, body=schemas.TestBody, answer=wrapped("messages", list[TestMessageView])
    ),
    "entries.find": Operation(access=_READ, query=schemas.FindEntriesQuery, answer=wrapped("entries", list[EntryView])),
    "entries.read": Operation(access=_READ, answer=EntryHistoryView),
    "entries.dead_letters": Operation(
        access=_READ, query=schemas.DeadLettersQuery, answer=wrapped("deadLetters", list[DeadLetterView])
    ),
    "entries.replay_many": Operation(
        access=_WRITE, body=schemas.ReplayBody, body_required=False, answer=wrapped("replayed", int)
    ),
    "entries.replay": Operation(access=_WRITE, answer=EntryHistoryView),
    "contacts.find": Operation(access=_FIND_CONTACT, body=schemas.FindContactBody, answer=ContactView),
    "contacts.find_with_counts": Operation(access=_FIND_CONTACT, query=schemas.ContactQuery, answer=ContactWithCounts),
    "contacts.read": Operation(access=_FIND_CONTACT, answer=ContactView),
    "contacts.list_timeline": Operation(access=_READ_CONTACT, query=schemas.TimelineQuery, answer=TimelineView),
    "contacts.opt_out": Operation(access=_CHANGE_CONTACT, body=schemas.OptOutsBody, answer=ContactView),
    "contacts.tag": Operation(access=_CHANGE_CONTACT, body=schemas.TagsBody, answer=ContactView),
    "contacts.explain": Operation(access=_READ_CONTACT, body=schemas.ExplainBody, answer=ExplainedView),
    "contacts.merge": Operation(access=_MERGE, body=schemas.MergeBody, answer=MergeView),
    "contacts.undo_merge": Operation(access=_WRITE, answer=UndoneView),
    "contacts.export_all": Operation(access=_READ_CONTACT, answer=schemas.ContactExport),
    "contacts.erase": Operation(access=_ERASE, answer=ErasedView),
    "segments.create": Operation(
        access=_WRITE,
        body=schemas.SegmentBody,
        answer=SegmentResultView,
        status=201,
        other_answers={200: SegmentResultView},
    ),
    "segments.list_all": Operation(access=_READ_SEGMENTS, answer=wrapped("segments", list[SegmentListItem])),
    "segments.preview": Operation(access=_SQL, body=schemas.SegmentPreviewBody, answer=SegmentPreviewView),
    "segments.read": Operation(access=_READ_SEGMENTS, answer=SegmentDetailView),
    "segments.update": Operation(access=_WRITE, body=schemas.SegmentEditBody, answer=SegmentResultView),
    "segments.delete": Operation(access=_WRITE, answer=SegmentView),
    "segments.refresh": Operation(access=_WRITE, answer=SegmentResultView),
    "segments.extend": Operation(access=_WRITE, body=schemas.SegmentContactsBody, answer=SegmentResultView),
    "sql.run_query": Operation(access=_SQL, body=schemas.SqlBody, answer=schemas.SqlResponse),
    "chain.list_chains": Operation(access=_READ_EVENTS, answer=schemas.ChainsResponse),
    "chain.list_logs": Operation(access=_READ_EVENTS, query=schemas.LogsQuery, answer=schemas.LogsResponse),
    "account.list_changes": Operation(access=_AUDIT, query=schemas.ChangesQuery, answer=schemas.AuditResponse),
    "account.usage": Operation(access=_READ_EVENTS, query=schemas.UsageQuery, answer=schemas.UsageResponse),
    "keys.list_all": Operation(access=_ADMIN, answer=wrapped("keys", list[KeyView])),
    "keys.create": Operation(access=_ADMIN, body=schemas.KeyBody, answer=NewKeyView, status=201),
    "keys.roll": Operation(access=_ADMIN, body=schemas.RollBody, body_required=False, answer=NewKeyView, status=201),
    "keys.revoke": Operation(access=_ADMIN, answer=KeyView),
    "webhooks.read_secret": Operation(access=_READ_WEBHOOKS, answer=schemas.WebhookSecret),
    "webhooks.roll_secret": Operation(access=_CHANGE_WEBHOOKS, answer=schemas.RolledWebhookSecret),
    "webhooks.open_endpoint": Operation(
        access=_CHANGE_WEBHOOKS, body=schemas.EndpointBody, answer=wrapped("opened", bool)
    ),
    "unsubscribe.confirm": Operation(query=schemas.TokenQuery, media="text/html"),
    "unsubscribe.unsubscribe": Operation(query=schemas.TokenQuery, media="text/html"),
    "inapp.challenge": Operation(access=_BROWSER, body=schemas.ChallengeBody, answer=schemas.ChallengeResponse),
    "inapp.session": Operation(body=schemas.SessionBody, answer=schemas.SessionResponse),
    "inapp.socket": Operation(status=101),
    "inapp.client": Operation(media="text/javascript"),
    "inapp.demo": Operation(media="text/html"),
    "health.healthz": Operation(answer=schemas.Health),
    "health.readyz": Operation(answer=schemas.Readiness, other_answers={503: schemas.Readiness}),
    "health.version": Operation(answer=schemas.VersionResponse),
    "openapi.serve_document": Operation(answer=dict),
    "openapi.serve_page": Operation(media="text/html"),
}

# Sanic wraps the handler of a WebSocket, so its docstring cannot be read.
SUMMARIES = {"inapp.socket": "Open the WebSocket; the first frame must be the token."}
