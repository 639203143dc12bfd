"""Every route by its name (the blueprint's and the handler's), with what cannot be read off it."""

from api.access.administration import KeyView, NewKeyView
from api.authoring.goals import GoalView
from api.authoring.trial import TrialView
from api.authoring.views import (
    AutomationView,
    ChangeView,
    DeadView,
    EntryView,
    HistoryView,
    ImpactView,
    PublishedView,
    StatsView,
    VersionView,
)
from api.contacts.erasure import ErasedView
from api.contacts.explain import ExplainedView
from api.contacts.merging import MergeView, UndoneView
from api.contacts.timeline import KnownView, TimelineView
from api.contacts.views import ContactView
from api.ingest.recent import RecentEvent
from api.openapi import bodies, shapes
from api.openapi.operation import Access, Operation, holding
from api.segments.views import FilledView, ListedView, PreviewView, SegmentView, ShownView
from api.test_send import TriedView

_SEND = Access(("live", "test"), ("ingest",))
_LOOK = Access(("live", "test", "workbench"), ("events:read",))
_READ = Access(("workbench",), ("automations:write", "automations:publish", "events:read"))
_WRITE = Access(("workbench",), ("automations:write",))
_PUBLISH = Access(("workbench",), ("automations:publish",))
_SWITCH = Access(("workbench",), ("automations:write", "automations:publish"))
_SEE_PERSON = Access(("live", "workbench"), ("ingest", "contacts:read"))
_CHANGE_PERSON = Access(("live", "workbench"), ("ingest", "automations:write"))
_READ_PERSON = Access(("workbench",), ("contacts:read",))
_ERASE = Access(("workbench",), ("contacts:erase",))
_SQL = Access(("workbench",), ("sql:read",))
_SEGMENTS = Access(("workbench",), ("contacts:read", "sql:read", "automations:write"))
_SIGN = Access(("live", "workbench"), ("ingest", "keys:admin"))
_SEE_SECRET = Access(("live", "workbench"), ("ingest", "keys:admin", "automations:publish"))
_ADMIN = Access(("workbench",), ("keys:admin",))
_CHANGES = Access(
    ("workbench",),
    ("keys:admin", "automations:write", "automations:publish", "events:read", "contacts:read", "sql:read"),
)
_PAGE = Access(("publishable",))

_REPLAYED = holding("replayed", int)

OPERATIONS = {
    "events.ingest_one": Operation(access=_SEND, body=bodies.EventBody, answer=shapes.Result, status=202),
    "events.ingest_batch": Operation(
        access=_SEND, body=bodies.BatchBody, answer=holding("results", list[shapes.Result]), status=202
    ),
    "catalog.list_events": Operation(access=_LOOK, query=bodies.CatalogQuery, answer=shapes.Catalog),
    "catalog.describe": Operation(access=_LOOK, query=bodies.DaysQuery, answer=shapes.Inside),
    "recent.recent": Operation(
        access=_LOOK, query=bodies.RecentQuery, answer=holding("events", list[RecentEvent]), media="text/event-stream"
    ),
    "automations.create": Operation(access=_WRITE, body=bodies.AutomationBody, answer=AutomationView, status=201),
    "automations.list_newest": Operation(
        access=_READ, query=bodies.AutomationsQuery, answer=holding("automations", list[AutomationView])
    ),
    "automations.read": Operation(access=_READ, answer=AutomationView),
    "automations.update": Operation(access=_WRITE, body=bodies.EditBody, answer=AutomationView),
    "automations.publish": Operation(
        access=_PUBLISH, body=bodies.PublishBody, body_required=False, answer=PublishedView
    ),
    "automations.rollback": Operation(access=_PUBLISH, body=bodies.RollbackBody, answer=PublishedView),
    "automations.activate": Operation(access=_SWITCH, answer=AutomationView),
    "automations.deactivate": Operation(access=_WRITE, answer=AutomationView),
    "automations.pause": Operation(access=_SWITCH, answer=AutomationView),
    "automations.resume": Operation(access=_SWITCH, body=bodies.ResumeBody, body_required=False, answer=AutomationView),
    "automations.goal": Operation(access=_READ, query=bodies.GoalQuery, answer=GoalView),
    "test_sends.test": Operation(access=_WRITE, body=bodies.TestBody, answer=holding("messages", list[TriedView])),
    "audit.changes": Operation(access=_CHANGES, query=bodies.ChangesQuery, answer=shapes.Audit),
    "automations.archive": Operation(access=_WRITE, answer=AutomationView),
    "automations.versions": Operation(
        access=_READ, query=bodies.LimitQuery, answer=holding("versions", list[VersionView])
    ),
    "automations.changes": Operation(
        access=_READ, query=bodies.LimitQuery, answer=holding("changes", list[ChangeView])
    ),
    "automations.stats": Operation(access=_READ, answer=StatsView),
    "automations.impact": Operation(access=_READ, answer=holding("impact", ImpactView)),
    "automations.list_entries": Operation(
        access=_READ, query=bodies.EntriesQuery, answer=holding("entries", list[EntryView])
    ),
    "automations.replay": Operation(access=_WRITE, body=bodies.CauseBody, body_required=False, answer=_REPLAYED),
    "automations.simulate_stored": Operation(access=_WRITE, body=bodies.TrialBody, answer=TrialView),
    "automations.simulate_given": Operation(access=_WRITE, body=bodies.WholeTrialBody, answer=TrialView),
    "entries.find": Operation(access=_READ, query=bodies.FindEntriesQuery, answer=holding("entries", list[EntryView])),
    "entries.read": Operation(access=_READ, answer=HistoryView),
    "entries.dead_letters": Operation(
        access=_READ, query=bodies.DeadQuery, answer=holding("deadLetters", list[DeadView])
    ),
    "entries.replay_many": Operation(access=_WRITE, body=bodies.ReplayBody, body_required=False, answer=_REPLAYED),
    "entries.replay": Operation(access=_WRITE, answer=HistoryView),
    "contacts.find": Operation(access=_SEE_PERSON, body=bodies.FindContactBody, answer=ContactView),
    "contacts.show": Operation(access=_SEE_PERSON, answer=ContactView),
    "contacts.opt_out": Operation(access=_CHANGE_PERSON, body=bodies.OptOutsBody, answer=ContactView),
    "contacts.tag": Operation(access=_CHANGE_PERSON, body=bodies.TagsBody, answer=ContactView),
    "contacts.erase": Operation(access=_ERASE, answer=ErasedView),
    "contacts.export_all": Operation(access=_READ_PERSON, answer=shapes.ContactExport),
    "chain.chains": Operation(access=_LOOK, answer=shapes.Chains),
    "chain.recent": Operation(access=_LOOK, query=bodies.LogsQuery, answer=shapes.Logs),
    "timeline.show": Operation(access=_SEE_PERSON, query=bodies.ContactQuery, answer=KnownView),
    "timeline.happenings": Operation(access=_READ_PERSON, query=bodies.TimelineQuery, answer=TimelineView),
    "explain.explain_events": Operation(access=_READ_PERSON, body=bodies.ExplainBody, answer=ExplainedView),
    "merges.merge_two": Operation(
        access=Access(("workbench",), ("contacts:read", "automations:write")), body=bodies.MergeBody, answer=MergeView
    ),
    "merges.take_back": Operation(access=_WRITE, answer=UndoneView),
    "usage.usage": Operation(access=_LOOK, query=bodies.UsageQuery, answer=shapes.Usage),
    "sql.ask": Operation(access=_SQL, body=bodies.SqlBody, answer=shapes.Table),
    "segments.create": Operation(
        access=_WRITE, body=bodies.SegmentBody, answer=FilledView, status=201, instead={200: FilledView}
    ),
    "segments.list_all": Operation(access=_SEGMENTS, answer=holding("segments", list[ListedView])),
    "segments.preview": Operation(access=_SQL, body=bodies.SegmentTrialBody, answer=PreviewView),
    "segments.read": Operation(access=_SEGMENTS, answer=ShownView),
    "segments.update": Operation(access=_WRITE, body=bodies.SegmentEditBody, answer=FilledView),
    "segments.delete": Operation(access=_WRITE, answer=SegmentView),
    "segments.refresh": Operation(access=_WRITE, answer=FilledView),
    "segments.extend": Operation(access=_WRITE, body=bodies.SegmentPartBody, answer=FilledView),
    "webhooks.see": Operation(access=_SEE_SECRET, answer=shapes.Secret),
    "webhooks.roll": Operation(access=_SIGN, answer=shapes.RolledSecret),
    "webhooks.open_endpoint": Operation(access=_SIGN, body=bodies.EndpointBody, answer=holding("opened", bool)),
    "keys.list_all": Operation(access=_ADMIN, answer=holding("keys", list[KeyView])),
    "keys.create": Operation(access=_ADMIN, body=bodies.KeyBody, answer=NewKeyView, status=201),
    "keys.roll": Operation(access=_ADMIN, body=bodies.RollBody, body_required=False, answer=NewKeyView, status=201),
    "keys.revoke": Operation(access=_ADMIN, answer=KeyView),
    "unsubscribe.ask": Operation(query=bodies.TokenQuery, media="text/html"),
    "unsubscribe.unsubscribe": Operation(query=bodies.TokenQuery, media="text/html"),
    "inapp.challenge": Operation(access=_PAGE, body=bodies.ChallengeBody, answer=shapes.Challenge),
    "inapp.session": Operation(body=bodies.SessionBody, answer=shapes.Token),
    "inapp.socket": Operation(status=101),
    "inapp_sdk.client": Operation(media="text/javascript"),
    "inapp_sdk.demo": Operation(media="text/html"),
    "version.version": Operation(answer=shapes.Version),
    "health.healthz": Operation(answer=shapes.Alive),
    "health.readyz": Operation(answer=shapes.Ready, instead={503: shapes.Ready}),
    "openapi.document": Operation(answer=dict),
    "openapi.page": Operation(media="text/html"),
}
"""By the name of the route."""

SENTENCES = {"inapp.socket": "Open the WebSocket; its first frame has to be the token."}
"""What a route does, where its handler cannot say it."""
