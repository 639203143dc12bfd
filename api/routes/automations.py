"""`/api/v1/automations` and `/api/v1/simulate`: writing, publishing, running and testing automations.

Workbench keys only. Reading needs one of automations:write, automations:publish, events:read; changes, simulations and
test sends automations:write; publish and rollback automations:publish; activate, pause and resume either of the two.

Reading a draft and viewing an automation compile templates (64 KB of expressions take 1.7 s), so both run in a thread.
"""

import asyncio

from sanic import Blueprint, HTTPResponse, Request

from api.auth.verify import Principal
from api.automations import automations, entries, goals, trial
from api.automations.automations import Refusal, unknown
from api.automations.body import read_draft, read_edit
from api.automations.test_send import AllowedReceivers, TestSendServices, read_test_request, send_test
from api.automations.trial import TrialContext
from api.automations.views import (
    AutomationView,
    PublishedView,
    automation_view,
    change_view,
    impact_view,
    published_view,
    version_view,
)
from api.routes.parameters import (
    body_fields,
    path_id,
    query_flag,
    query_id,
    query_number,
    query_page,
    query_text,
    refuse_problems,
    replay_cause,
    unwrap,
    valid,
)
from api.routes.request import (
    PUBLISH,
    READ,
    SWITCH,
    WRITE,
    author_of,
    expect_json,
    require_author,
    require_workbench_key,
    services,
)
from api.routes.responses import answer
from api.store import automations as store
from api.store.automations import AutomationRow

blueprint = Blueprint("automations", url_prefix="/api/v1")

_SUBJECT = "automation"
_MAX_LISTED = 100
_MAX_ENTRIES = 500


@blueprint.post("/automations")
async def create(request: Request) -> HTTPResponse:
    """Create an automation: 201."""
    author = await require_author(request, WRITE)
    expect_json(request)
    draft = valid(await asyncio.to_thread(read_draft, request.body))  # compiles templates
    return answer(await _view(await automations.create(services(request).database, author, draft)), 201)


@blueprint.get("/automations")
async def list_all(request: Request) -> HTTPResponse:
    """List automations, newest first; `before` is the last id of the previous page.

    `name` selects by name; `archived=true` lists archived ones.
    """
    principal = await require_workbench_key(request, READ)
    name, archived = query_text(request, "name"), query_flag(request, "archived")
    limit, before = query_number(request, "limit", 50, _MAX_LISTED), query_id(request, "before")
    async with services(request).database.transaction() as tx:
        rows = await store.list_automations(tx, principal.org_id, name, archived, limit, before)
    return answer({"automations": [await _view(row) for row in rows]})


@blueprint.get("/automations/<automation_id:str>")
async def read(request: Request, automation_id: str) -> HTTPResponse:
    """Return one automation."""
    principal = await require_workbench_key(request, READ)
    async with services(request).database.transaction() as tx:
        row = await store.find_automation(tx, principal.org_id, path_id(automation_id, _SUBJECT))
    return answer(await _view(row or unknown(_SUBJECT)))


@blueprint.put("/automations/<automation_id:str>")
async def update(request: Request, automation_id: str) -> HTTPResponse:
    """Change the draft; 409 unless `revision` is the current one."""
    author, valid_id = await require_author(request, WRITE), path_id(automation_id, _SUBJECT)
    expect_json(request)
    edit = valid(await asyncio.to_thread(read_edit, request.body))
    return answer(await _view(await automations.update(services(request).database, author, valid_id, edit)))


@blueprint.post("/automations/<automation_id:str>/publish")
async def publish(request: Request, automation_id: str) -> HTTPResponse:
    """Publish the draft and return its impact on entries that are under way; 400 lists the errors in the draft."""
    author, valid_id = await require_author(request, PUBLISH), path_id(automation_id, _SUBJECT)
    fields = body_fields(request)
    revision = fields.number("revision")
    refuse_problems(fields)
    row = await automations.publish(services(request).database, author, valid_id, revision)
    return answer(await _published(request, row))


@blueprint.post("/automations/<automation_id:str>/rollback")
async def rollback(request: Request, automation_id: str) -> HTTPResponse:
    """Publish an old version again, as a new version, and return its impact on entries that are under way."""
    author, valid_id = await require_author(request, PUBLISH), path_id(automation_id, _SUBJECT)
    fields = body_fields(request)
    fields.require("version")
    version = fields.number("version")
    refuse_problems(fields)
    assert version is not None
    row = await automations.rollback(services(request).database, author, valid_id, version)
    return answer(await _published(request, row))


@blueprint.post("/automations/<automation_id:str>/activate")
async def activate(request: Request, automation_id: str) -> HTTPResponse:
    """Activate the automation: from now on events start entries."""
    author, valid_id = await require_author(request, SWITCH), path_id(automation_id, _SUBJECT)
    return answer(await _view(await automations.activate(services(request).database, author, valid_id)))


@blueprint.post("/automations/<automation_id:str>/deactivate")
async def deactivate(request: Request, automation_id: str) -> HTTPResponse:
    """Deactivate the automation: no new entries, and entries that are waiting are cancelled."""
    author, valid_id = await require_author(request, WRITE), path_id(automation_id, _SUBJECT)
    return answer(await _view(await automations.deactivate(services(request).database, author, valid_id)))


@blueprint.post("/automations/<automation_id:str>/pause")
async def pause(request: Request, automation_id: str) -> HTTPResponse:
    """Pause the automation until it is resumed; 409 unless it is active."""
    author, valid_id = await require_author(request, SWITCH), path_id(automation_id, _SUBJECT)
    return answer(await _view(await automations.pause(services(request).database, author, valid_id)))


@blueprint.post("/automations/<automation_id:str>/resume")
async def resume(request: Request, automation_id: str) -> HTTPResponse:
    """Resume a paused automation; `overdue` (run or cancel) decides about entries that came due in the meantime."""
    author, valid_id = await require_author(request, SWITCH), path_id(automation_id, _SUBJECT)
    fields = body_fields(request)
    overdue = fields.value("overdue") or "run"
    if overdue not in ("run", "cancel"):
        fields.refuse("overdue", "must be run or cancel")
    refuse_problems(fields)
    cancel_overdue = overdue == "cancel"
    database = services(request).database
    return answer(await _view(await automations.resume(database, author, valid_id, cancel_overdue=cancel_overdue)))


@blueprint.post("/automations/<automation_id:str>/archive")
async def archive(request: Request, automation_id: str) -> HTTPResponse:
    """Archive the automation: it stays readable and cannot be activated again."""
    author, valid_id = await require_author(request, WRITE), path_id(automation_id, _SUBJECT)
    return answer(await _view(await automations.archive(services(request).database, author, valid_id)))


@blueprint.get("/automations/<automation_id:str>/versions")
async def list_versions(request: Request, automation_id: str) -> HTTPResponse:
    """List the published versions, newest first."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    limit = query_number(request, "limit", 50, _MAX_LISTED)
    async with services(request).database.transaction() as tx:
        row = await store.find_automation(tx, principal.org_id, valid_id)
        versions = await store.list_versions(tx, principal.org_id, valid_id, limit)
    unwrap(row or unknown(_SUBJECT))
    return answer({"versions": [version_view(version) for version in versions]})


@blueprint.get("/automations/<automation_id:str>/changes")
async def list_changes(request: Request, automation_id: str) -> HTTPResponse:
    """List the changes of the automation with the key that made each, newest first."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    limit = query_number(request, "limit", 50, _MAX_LISTED)
    async with services(request).database.transaction() as tx:
        unwrap(await store.find_automation(tx, principal.org_id, valid_id) or unknown(_SUBJECT))
        changes = await store.list_changes(tx, principal.org_id, valid_id, limit)
    return answer({"changes": [change_view(change) for change in changes]})


@blueprint.get("/automations/<automation_id:str>/stats")
async def stats(request: Request, automation_id: str) -> HTTPResponse:
    """Count entries by state, and steps by node and outcome."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    return answer(unwrap(await entries.count_stats(services(request).database, principal.org_id, valid_id)))


@blueprint.get("/automations/<automation_id:str>/goal")
async def goal(request: Request, automation_id: str) -> HTTPResponse:
    """Measure the goal: how many of the contacts that entered in the last `days` reached it, and the uplift."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    context, days = services(request), query_number(request, "days", 30, goals.MAX_DAYS)
    retries = trial.retry_policy(context.settings.retry_delays)
    goal_request = goals.GoalRequest(valid_id, days, context.clock.now(), retries=retries)
    keys = context.keyring.of(principal.org_id)
    return answer(unwrap(await goals.measure_goal(context.database, principal.org_id, keys, goal_request)))


@blueprint.get("/automations/<automation_id:str>/impact")
async def impact(request: Request, automation_id: str) -> HTTPResponse:
    """Return the impact of publishing the draft now: entries that have not ended, by version and node."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    async with services(request).database.transaction() as tx:
        row = unwrap(await store.find_automation(tx, principal.org_id, valid_id) or unknown(_SUBJECT))
        earlier = await store.count_entries_of_other_versions(
            tx, principal.org_id, valid_id, (row.published_version or 0) + 1
        )
    return answer({"impact": impact_view(earlier, active=True)})


@blueprint.get("/automations/<automation_id:str>/entries")
async def list_entries(request: Request, automation_id: str) -> HTTPResponse:
    """List entries, newest first; `after` is the last id of the previous page."""
    principal, valid_id = await require_workbench_key(request, READ), path_id(automation_id, _SUBJECT)
    page = query_page(request, 50, _MAX_ENTRIES)
    return answer(
        {"entries": unwrap(await entries.list_entries(services(request).database, principal.org_id, valid_id, page))}
    )


@blueprint.post("/automations/<automation_id:str>/replay")
async def replay(request: Request, automation_id: str) -> HTTPResponse:
    """Replay every dead entry, or those of one cause."""
    author, valid_id = await require_author(request, WRITE), path_id(automation_id, _SUBJECT)
    fields = body_fields(request)
    cause = replay_cause(fields)
    refuse_problems(fields)
    return answer({"replayed": unwrap(await entries.replay_all(services(request).database, author, valid_id, cause))})


@blueprint.post("/automations/<automation_id:str>/simulate")
async def simulate(request: Request, automation_id: str) -> HTTPResponse:
    """Simulate the automation for an event. Nothing is stored or sent."""
    principal, valid_id = await require_workbench_key(request, WRITE), path_id(automation_id, _SUBJECT)
    expect_json(request)
    event_trial = valid(trial.read_trial(request.body, services(request).clock.now()))
    context = _trial_context(request, principal)
    trace = await trial.simulate_stored(services(request).database, context, valid_id, event_trial)
    return answer(trial.trial_view(unwrap(trace), services(request).settings.email_from))


@blueprint.post("/simulate")
async def simulate_unsaved(request: Request) -> HTTPResponse:
    """Simulate an automation that comes with the request and is not stored."""
    principal = await require_workbench_key(request, WRITE)
    expect_json(request)
    unsaved = valid(await asyncio.to_thread(trial.read_unsaved_trial, request.body, services(request).clock.now()))
    trace = await trial.simulate_unsaved(services(request).database, _trial_context(request, principal), unsaved)
    return answer(trial.trial_view(unwrap(trace), services(request).settings.email_from))


@blueprint.post("/automations/<automation_id:str>/test")
async def send_test_messages(request: Request, automation_id: str) -> HTTPResponse:
    """Send the messages of a simulation to test receivers and return the result of each within 20 seconds.

    429 after ten tests in a minute. Receivers are contacts of the organization, hosts that its published automations
    send to, and those that the operator allows.
    """
    principal, valid_id = await require_workbench_key(request, WRITE), path_id(automation_id, _SUBJECT)
    expect_json(request)
    context = services(request)
    test_request = valid(await asyncio.to_thread(read_test_request, request.body, context.clock.now()))
    trial_context, author = _trial_context(request, principal), author_of(request, principal)
    receivers = AllowedReceivers(
        frozenset(context.settings.test_receivers), emails_stay_local=context.settings.smtp is None
    )
    send_services = TestSendServices(context.database, context.keyring, context.clock, context.transports, receivers)
    results = await send_test(send_services, author, trial_context, valid_id, test_request)
    return answer({"messages": unwrap(results)})


async def _view(row: AutomationRow | Refusal) -> AutomationView:
    return await asyncio.to_thread(automation_view, unwrap(row))


async def _published(request: Request, result: AutomationRow | Refusal) -> PublishedView:
    row = unwrap(result)
    # Counted after the commit of the publication, so that no lock is held during a long count.
    async with services(request).database.transaction() as tx:
        earlier = await store.count_entries_of_other_versions(tx, row.org_id, row.id, row.published_version)
    return await asyncio.to_thread(published_view, row, earlier)


def _trial_context(request: Request, principal: Principal) -> TrialContext:
    keys = services(request).keyring.of(principal.org_id)
    retries = trial.retry_policy(services(request).settings.retry_delays)
    return TrialContext(principal.org_id, keys, retries, "pii:read" in principal.scopes)
