"""`/api/v1/automations` and `/api/v1/simulate`: authoring, publishing, trying.

Reading needs one of automations:write, automations:publish, events:read; changes and trials automations:write; publish
and rollback automations:publish; activate either of the two. Workbench keys only.
"""

import asyncio

from sanic import Blueprint, HTTPResponse, Request

from api.access.verify import Principal
from api.authoring import automations, entries, goals, trial
from api.authoring.draft import read_draft, read_edit
from api.authoring.refusal import Refusal, unknown
from api.authoring.trial import Surroundings
from api.authoring.views import (
    AutomationView,
    PublishedView,
    automation_view,
    change_view,
    impact_view,
    published_view,
    version_view,
)
from api.routes.answers import answer
from api.routes.authors import (
    PUBLISH,
    READ,
    SWITCH_ON,
    WRITE,
    accepted,
    author,
    body_fields,
    cause_in,
    flag_argument,
    id_argument,
    known_form,
    page,
    refuse_problems,
    require_notebook,
    settled,
    text_argument,
)
from api.routes.catalog import whole_number
from api.routes.entrance import expect_json, parts
from api.store import authoring as store
from api.store.authoring import AutomationRow

blueprint = Blueprint("automations", url_prefix="/api/v1")

_THING = "automation"
_MOST = 100
_MOST_ENTRIES = 500


@blueprint.post("/automations")
async def create(request: Request) -> HTTPResponse:
    """Store a new automation: 201."""
    who = await author(request, WRITE)
    expect_json(request)
    draft = accepted(await asyncio.to_thread(read_draft, request.body))
    return answer(await _view(await automations.create(parts(request).database, who, draft)), 201)


@blueprint.get("/automations")
async def list_newest(request: Request) -> HTTPResponse:
    """Answer automations, newest first: of a whole `name`, those put away (`archived=true`), or after a page (`before`, its last id)."""
    who = await require_notebook(request, READ)
    name, archived = text_argument(request, "name"), flag_argument(request, "archived")
    most, before = whole_number(request, "limit", 50, _MOST), id_argument(request, "before")
    async with parts(request).database.transaction() as tx:
        rows = await store.list_automations(tx, who.org_id, name, archived, most, before)
    return answer({"automations": [await _view(row) for row in rows]})


@blueprint.get("/automations/<automation_id:str>")
async def read(request: Request, automation_id: str) -> HTTPResponse:
    """Answer one automation."""
    who = await require_notebook(request, READ)
    async with parts(request).database.transaction() as tx:
        row = await store.find_automation(tx, who.org_id, known_form(automation_id, _THING))
    return answer(await _view(row or unknown(_THING)))


@blueprint.put("/automations/<automation_id:str>")
async def update(request: Request, automation_id: str) -> HTTPResponse:
    """Change the draft; 409 unless `revision` is the current one."""
    who, known = await author(request, WRITE), known_form(automation_id, _THING)
    expect_json(request)
    edit = accepted(await asyncio.to_thread(read_edit, request.body))
    return answer(await _view(await automations.update(parts(request).database, who, known, edit)))


@blueprint.post("/automations/<automation_id:str>/publish")
async def publish(request: Request, automation_id: str) -> HTTPResponse:
    """Publish the draft and answer whom that concerns; 400 names every node that stands against it."""
    who, known = await author(request, PUBLISH), known_form(automation_id, _THING)
    fields = body_fields(request)
    revision = fields.number("revision")
    refuse_problems(fields)
    return answer(await _published(request, await automations.publish(parts(request).database, who, known, revision)))


@blueprint.post("/automations/<automation_id:str>/rollback")
async def rollback(request: Request, automation_id: str) -> HTTPResponse:
    """Publish what an old version said as a new version, and answer whom that concerns."""
    who, known = await author(request, PUBLISH), known_form(automation_id, _THING)
    fields = body_fields(request)
    fields.require("version")
    version = fields.number("version")
    refuse_problems(fields)
    assert version is not None
    return answer(await _published(request, await automations.rollback(parts(request).database, who, known, version)))


@blueprint.post("/automations/<automation_id:str>/activate")
async def activate(request: Request, automation_id: str) -> HTTPResponse:
    """Let it take entries."""
    who, known = await author(request, SWITCH_ON), known_form(automation_id, _THING)
    return answer(await _view(await automations.activate(parts(request).database, who, known)))


@blueprint.post("/automations/<automation_id:str>/deactivate")
async def deactivate(request: Request, automation_id: str) -> HTTPResponse:
    """Take no more entries and cancel those that wait."""
    who, known = await author(request, WRITE), known_form(automation_id, _THING)
    return answer(await _view(await automations.deactivate(parts(request).database, who, known)))


@blueprint.post("/automations/<automation_id:str>/pause")
async def pause(request: Request, automation_id: str) -> HTTPResponse:
    """Let it stand still until it is resumed; 409 unless it is active."""
    who, known = await author(request, SWITCH_ON), known_form(automation_id, _THING)
    return answer(await _view(await automations.pause(parts(request).database, who, known)))


@blueprint.post("/automations/<automation_id:str>/resume")
async def resume(request: Request, automation_id: str) -> HTTPResponse:
    """Let it go on; what came due meanwhile runs now, or is cancelled (`overdue`: run or cancel)."""
    who, known = await author(request, SWITCH_ON), known_form(automation_id, _THING)
    fields = body_fields(request)
    overdue = fields.value("overdue") or "run"
    if overdue not in ("run", "cancel"):
        fields.refuse("overdue", "must be run or cancel")
    refuse_problems(fields)
    cancels = overdue == "cancel"
    return answer(await _view(await automations.resume(parts(request).database, who, known, cancel_overdue=cancels)))


@blueprint.post("/automations/<automation_id:str>/archive")
async def archive(request: Request, automation_id: str) -> HTTPResponse:
    """Put it away for good."""
    who, known = await author(request, WRITE), known_form(automation_id, _THING)
    return answer(await _view(await automations.archive(parts(request).database, who, known)))


@blueprint.get("/automations/<automation_id:str>/versions")
async def versions(request: Request, automation_id: str) -> HTTPResponse:
    """Answer the published versions, newest first."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    most = whole_number(request, "limit", 50, _MOST)
    async with parts(request).database.transaction() as tx:
        row = await store.find_automation(tx, who.org_id, known)
        rows = await store.list_versions(tx, who.org_id, known, most)
    settled(row or unknown(_THING))
    return answer({"versions": [version_view(each) for each in rows]})


@blueprint.get("/automations/<automation_id:str>/changes")
async def changes(request: Request, automation_id: str) -> HTTPResponse:
    """Answer who did what to it, the newest first."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    most = whole_number(request, "limit", 50, _MOST)
    async with parts(request).database.transaction() as tx:
        settled(await store.find_automation(tx, who.org_id, known) or unknown(_THING))
        rows = await store.list_changes(tx, who.org_id, known, most)
    return answer({"changes": [change_view(each) for each in rows]})


@blueprint.get("/automations/<automation_id:str>/stats")
async def stats(request: Request, automation_id: str) -> HTTPResponse:
    """Answer the counts of entries by state and of steps by node and outcome."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    return answer(settled(await entries.stats_of(parts(request).database, who.org_id, known)))


@blueprint.get("/automations/<automation_id:str>/goal")
async def goal(request: Request, automation_id: str) -> HTTPResponse:
    """Answer how many contacts reached the goal, of those that entered in the last `days`; and what a holdout says of it."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    own, days = parts(request), whole_number(request, "days", 30, goals.MOST_DAYS)
    asked = goals.Asked(known, days, own.clock.now(), retries=trial.policy_of(own.settings.retry_delays))
    return answer(settled(await goals.goal_of(own.database, who.org_id, own.keyring.of(who.org_id), asked)))


@blueprint.get("/automations/<automation_id:str>/impact")
async def impact(request: Request, automation_id: str) -> HTTPResponse:
    """Answer whom publishing the draft and switching it on would meet now: every entry that has not ended, by version and node."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    async with parts(request).database.transaction() as tx:
        row = settled(await store.find_automation(tx, who.org_id, known) or unknown(_THING))
        earlier = await store.count_earlier(tx, who.org_id, known, (row.published_version or 0) + 1)
    return answer({"impact": impact_view(earlier, active=True)})


@blueprint.get("/automations/<automation_id:str>/entries")
async def list_entries(request: Request, automation_id: str) -> HTTPResponse:
    """Answer entries, newest first; `after` is the last id of the page before."""
    who, known = await require_notebook(request, READ), known_form(automation_id, _THING)
    wanted = page(request, 50, _MOST_ENTRIES)
    return answer({"entries": settled(await entries.entries_of(parts(request).database, who.org_id, known, wanted))})


@blueprint.post("/automations/<automation_id:str>/replay")
async def replay(request: Request, automation_id: str) -> HTTPResponse:
    """Replay every dead entry, or those of one cause."""
    who, known = await author(request, WRITE), known_form(automation_id, _THING)
    fields = body_fields(request)
    cause = cause_in(fields)
    refuse_problems(fields)
    return answer({"replayed": settled(await entries.replay_all(parts(request).database, who, known, cause))})


@blueprint.post("/automations/<automation_id:str>/simulate")
async def simulate_stored(request: Request, automation_id: str) -> HTTPResponse:
    """Answer what the automation would do with an event."""
    who, known = await require_notebook(request, WRITE), known_form(automation_id, _THING)
    expect_json(request)
    given = accepted(trial.read_trial(request.body, parts(request).clock.now()))
    tried = await trial.try_stored(parts(request).database, _around(request, who), known, given)
    return answer(trial.trial_view(settled(tried), parts(request).settings.email_from))


@blueprint.post("/simulate")
async def simulate_given(request: Request) -> HTTPResponse:
    """Answer what an automation that is stored nowhere would do with an event."""
    who = await require_notebook(request, WRITE)
    expect_json(request)
    whole = accepted(await asyncio.to_thread(trial.read_whole_trial, request.body, parts(request).clock.now()))
    tried = await trial.try_given(parts(request).database, _around(request, who), whole.automation, whole.trial)
    return answer(trial.trial_view(settled(tried), parts(request).settings.email_from))


async def _view(row: AutomationRow | Refusal) -> AutomationView:
    return await asyncio.to_thread(automation_view, settled(row))


async def _published(request: Request, row: AutomationRow | Refusal) -> PublishedView:
    """Return a publication with its impact; counted after the commit, so that no lock waits for a long count."""
    published = settled(row)
    async with parts(request).database.transaction() as tx:
        earlier = await store.count_earlier(tx, published.org_id, published.id, published.published_version)
    return await asyncio.to_thread(published_view, published, earlier)


def _around(request: Request, who: Principal) -> Surroundings:
    own = parts(request)
    retries = trial.policy_of(own.settings.retry_delays)
    return Surroundings(who.org_id, own.keyring.of(who.org_id), retries, "pii:read" in who.scopes)
