"""`/api/v1/automations` and `/api/v1/simulate`: writing, publishing, running and testing automations.

Workbench keys only. Reading needs one of automations:write, automations:publish, events:read; changes, simulations and
test sends automations:write; publish, rollback and the undo of a move automations:publish; activate, pause and resume
either of the two. Drafts, simulations and a publication with receipts also go with automations:propose.

Reading a draft and viewing an automation compile templates (64 KB of expressions take 1.7 s), so both run in a thread.
"""

import asyncio
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from sanic import Blueprint, Request

from api.automations import automations, entries, goals, moves, receipts, stop, trial
from api.automations.automations import NewMove, Refusal, unknown
from api.automations.body import AutomationEdit, GraphText, NewAutomation, TriggerText
from api.automations.moves import MoveServices
from api.automations.test_send import TestBody, TestSendServices, UnsavedTestBody, send_test
from api.automations.trial import TrialBody, TrialContext, TrialView, UnsavedTrialBody
from api.automations.views import StatsView, automation_view, impact_view
from api.clock import uuid7
from api.routes.entries import CauseBody
from api.routes.request import (
    DRAFT,
    PROPOSE,
    PUBLISH,
    READ,
    SWITCH,
    WRITE,
    Operation,
    author_of,
    email_display,
    principal_of,
    require_scope,
    services,
    unwrap,
    valid,
)
from api.segments.reach import check_reach
from api.store import automations as store
from api.store.automations import STATES, AutomationRow, EntriesQuery, StateFlags, VersionRow
from api.store.contacts import list_activation_changes
from workbench.language.body import Body, LastId, Number
from workbench.language.channel import RetryPolicy
from workbench.language.live import ActivationChange
from workbench.language.moves import MoveMode
from workbench.language.responses import (
    ApprovalState,
    ApprovalView,
    AutomationState,
    AutomationView,
    ChangeView,
    EntryView,
    GoalView,
    ImpactView,
    MoveView,
    ReceiptKind,
    ReceiptView,
    StoppedView,
    TestMessageView,
)

blueprint = Blueprint("automations", url_prefix="/api/v1")

_RESOURCE = "automation"


class LimitQuery(Body, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=100)] = 50


class AutomationsQuery(LimitQuery, frozen=True):
    name: str | None = None
    state: AutomationState | None = None
    archived: bool = False
    before: LastId | None = None

    @property
    def flags(self) -> StateFlags:
        """Whether the automations are published, active and paused; None: either."""
        return STATES[self.state] if self.state else (None, None, None)


class GoalQuery(Body, frozen=True):
    days: Annotated[int, Meta(ge=1, le=goals.MAX_DAYS)] = 30


class PublishBody(Body, frozen=True):
    """`revision`: publish only if the draft is still at this revision.

    `move`: whether entries that wait on earlier versions continue on the new one. `safe`: at steps that are the same in
    both versions, or the same but for their texts. An object: from steps of earlier versions to steps of the new one.
    """

    revision: Number | None = None
    move: MoveMode = "none"


class MoveBody(Body, frozen=True, rename="camel"):
    """The move of a publication, as there. `triggerSpec`, `graph`: in place of those of the draft."""

    move: MoveMode
    trigger_spec: TriggerText | None = None
    graph: GraphText | None = None


class ReceiptBody(Body, frozen=True):
    """What to find out: `check`, `backtest` or `impact`."""

    kind: ReceiptKind


class DecidedApproval(msgspec.Struct, frozen=True):
    """An approval after a decision."""

    id: str
    state: ApprovalState


class RollbackBody(Body, frozen=True):
    """The version to publish again."""

    version: Number


class ResumeBody(Body, frozen=True):
    """`overdue`: run or cancel the entries that came due during the pause."""

    overdue: Literal["run", "cancel"] = "run"


@blueprint.post("/automations")
@Operation(DRAFT, status=201)
async def create(request: Request, body: NewAutomation) -> AutomationView:
    """Create an automation. Without automations:write it is inactive until its first publication."""
    if body.active:
        require_scope(request, "automations:write", "`active`")
    if "automations:write" not in principal_of(request).scopes:
        body = msgspec.structs.replace(body, active=False)
    return await _view(await automations.create(services(request).database, author_of(request), body))


@blueprint.get("/automations")
@Operation(READ, field="automations")
async def list_all(request: Request, query: AutomationsQuery) -> list[AutomationView]:
    """List automations, newest first, optionally of one `name` or `state`; `archived=true` lists the archived ones."""
    selection = query.name, query.archived, *query.flags, query.limit, query.before
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        rows = await store.list_automations(tx, org_id, *selection)
    return [await _view(row) for row in rows]


@blueprint.get("/automations/<automation_id:str>")
@Operation(READ)
async def read(request: Request, automation_id: str) -> AutomationView:
    """Return one automation."""
    async with services(request).database.transaction() as tx:
        row = await store.find_automation(tx, principal_of(request).org_id, automation_id)
    return await _view(row or unknown(_RESOURCE))


@blueprint.put("/automations/<automation_id:str>")
@Operation(DRAFT)
async def update(request: Request, automation_id: str, body: AutomationEdit) -> AutomationView:
    """Change the draft; 409 unless `revision` is the current one. `active` needs automations:write."""
    if body.active is not None:
        require_scope(request, "automations:write", "`active`")
    proposes = "automations:write" not in principal_of(request).scopes
    author, database = author_of(request), services(request).database
    return await _view(await automations.update(database, author, automation_id, body, proposes=proposes))


@blueprint.post("/automations/<automation_id:str>/publish")
@Operation(PROPOSE)
async def publish(request: Request, automation_id: str, body: PublishBody) -> AutomationView:
    """Publish the draft and return its impact on entries that are under way; 400 lists the errors in the draft.

    With `move`, entries that wait on earlier versions are moved, also if the draft is the live version already. If that
    takes longer than 20 seconds, `moves` is the state then, and the move continues. A key without automations:publish
    needs valid receipts, and the approval of another person if the organization asks for it: 409 says what is missing.
    """
    database, author = services(request).database, author_of(request)
    if body.move != "none":
        require_scope(request, "automations:publish", "`move`")
    permit = None if "automations:publish" in principal_of(request).scopes else receipts.permit
    move = None if body.move == "none" else NewMove(uuid7(author.now_us), body.move, moves.MAX_BUSY_TIME)
    row = unwrap(await automations.publish(database, author, automation_id, body.revision, move, permit))
    if move is None:
        return await _published(request, row)
    moved = await moves.complete(_move_services(request), author.org_id, row.id, move.id)
    return msgspec.structs.replace(await _published(request, row), moves=moved)


@blueprint.post("/automations/<automation_id:str>/receipts")
@Operation(DRAFT)
async def issue_receipt(request: Request, automation_id: str, body: ReceiptBody) -> ReceiptView | Refusal:
    """Check, backtest or count the draft as it would be published, and issue a receipt for the key that asks."""
    context = _trial_context(request)
    return await receipts.issue(services(request).database, context, author_of(request), automation_id, body.kind)


@blueprint.get("/approvals")
@Operation(READ, field="approvals")
async def list_approvals(request: Request, query: LimitQuery) -> list[ApprovalView]:
    """List the publications that wait for an approval, then those that were decided, newest first."""
    return await receipts.list_approvals(services(request).database, author_of(request), query.limit)


@blueprint.post("/approvals/<approval_id:str>/approve")
@Operation(PUBLISH)
async def approve(request: Request, approval_id: str) -> DecidedApproval:
    """Approve a publication; 409 for a key that wrote or proposed the draft, or if the draft was changed since."""
    return await _decide(request, approval_id, "approved")


@blueprint.post("/approvals/<approval_id:str>/reject")
@Operation(PUBLISH)
async def reject(request: Request, approval_id: str) -> DecidedApproval:
    """Reject a publication, also an approved one until it is published."""
    return await _decide(request, approval_id, "rejected")


async def _decide(request: Request, approval_id: str, state: ApprovalState) -> DecidedApproval:
    row = unwrap(await receipts.decide(services(request).database, author_of(request), approval_id, state))
    return DecidedApproval(row.id, row.state)


@blueprint.post("/automations/<automation_id:str>/moves/preview")
@Operation(READ)
async def preview_move(request: Request, automation_id: str, body: MoveBody) -> MoveView | Refusal:
    """Simulate every entry that a publication of the draft would move now. Nothing is written."""
    specs = body.trigger_spec, body.graph
    return await moves.preview(_move_services(request), author_of(request), automation_id, body.move, *specs)


@blueprint.get("/automations/<automation_id:str>/moves")
@Operation(READ, field="moves")
async def list_moves(request: Request, automation_id: str, query: LimitQuery) -> list[MoveView] | Refusal:
    """List the moves of entries to other versions, newest first."""
    org_id = principal_of(request).org_id
    return await moves.list_moves(services(request).database, org_id, automation_id, query.limit)


@blueprint.get("/automations/<automation_id:str>/moves/<move_id:str>")
@Operation(READ)
async def read_move(request: Request, automation_id: str, move_id: str) -> MoveView | Refusal:
    """Return one move."""
    return await moves.read_move(services(request).database, principal_of(request).org_id, automation_id, move_id)


@blueprint.post("/automations/<automation_id:str>/moves/<move_id:str>/undo")
@Operation(PUBLISH)
async def undo_move(request: Request, automation_id: str, move_id: str) -> MoveView | Refusal:
    """Move the entries that are still where the move put them back to their versions and steps.

    The published version stays the same. A move that is not complete moves no more entries.
    """
    return await moves.undo(_move_services(request), author_of(request), automation_id, move_id)


@blueprint.post("/automations/<automation_id:str>/rollback")
@Operation(PUBLISH)
async def rollback(request: Request, automation_id: str, body: RollbackBody) -> AutomationView:
    """Publish an old version as a new version, and return its impact on entries that are under way."""
    database, author = services(request).database, author_of(request)
    return await _published(request, await automations.rollback(database, author, automation_id, body.version))


@blueprint.post("/automations/<automation_id:str>/activate")
@Operation(SWITCH)
async def activate(request: Request, automation_id: str) -> AutomationView:
    """Activate the automation: from now on events start entries."""
    return await _view(await automations.activate(services(request).database, author_of(request), automation_id))


@blueprint.post("/automations/<automation_id:str>/deactivate")
@Operation(WRITE)
async def deactivate(request: Request, automation_id: str) -> AutomationView:
    """Deactivate the automation: no new entries, and entries that are waiting are cancelled."""
    return await _view(await automations.deactivate(services(request).database, author_of(request), automation_id))


@blueprint.post("/automations/<automation_id:str>/pause")
@Operation(SWITCH)
async def pause(request: Request, automation_id: str) -> AutomationView:
    """Pause the automation until it is resumed; 409 unless it is active. No step takes effect after the response."""
    database = services(request).database
    row = unwrap(await automations.pause(database, author_of(request), automation_id))
    async with database.transaction() as tx:
        stopped = StoppedView(row.paused_at, *await store.count_stopped(tx, row.org_id, row.paused_at, row.id))
    return msgspec.structs.replace(await _view(row), stopped=stopped)


@blueprint.post("/automations/<automation_id:str>/resume")
@Operation(SWITCH)
async def resume(request: Request, automation_id: str, body: ResumeBody) -> AutomationView:
    """Resume a paused automation; `overdue`: run or cancel the entries that came due during the pause."""
    database, author, cancels = services(request).database, author_of(request), body.overdue == "cancel"
    return await _view(await automations.resume(database, author, automation_id, cancel_overdue=cancels))


@blueprint.get("/stop")
@Operation(READ)
async def read_stop(request: Request) -> StoppedView:
    """Return what is stopped, or, if `stoppedAt` is null, what a stop would stop now."""
    return await stop.count_stopped(services(request).database, principal_of(request).org_id)


@blueprint.post("/stop")
@Operation(SWITCH)
async def stop_all(request: Request) -> StoppedView:
    """Stop everything: pause all automations, and those that are switched on until everything is resumed.

    No step of any entry takes effect after the response. `leaving` counts the messages that were being sent.
    """
    author = author_of(request)
    await stop.stop_all(services(request).database, author)
    return await stop.count_stopped(services(request).database, author.org_id)


@blueprint.post("/resume")
@Operation(SWITCH)
async def resume_all(request: Request, body: ResumeBody) -> StoppedView:
    """Resume what the stop paused; automations that were paused or off before stay so.

    `entries`: those that had come due, and run now. `unsent`: their messages that wait for another attempt.
    """
    cancels = body.overdue == "cancel"
    return await stop.resume_all(services(request).database, author_of(request), cancel_overdue=cancels)


@blueprint.post("/automations/<automation_id:str>/archive")
@Operation(WRITE)
async def archive(request: Request, automation_id: str) -> AutomationView:
    """Archive the automation: it stays readable and cannot be activated again."""
    return await _view(await automations.archive(services(request).database, author_of(request), automation_id))


@blueprint.get("/automations/<automation_id:str>/versions")
@Operation(READ, field="versions")
async def list_versions(request: Request, automation_id: str, query: LimitQuery) -> list[VersionRow]:
    """List the published versions, newest first."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        unwrap(await store.find_automation(tx, org_id, automation_id) or unknown(_RESOURCE))
        return await store.list_versions(tx, org_id, automation_id, query.limit)


@blueprint.get("/automations/<automation_id:str>/changes")
@Operation(READ, field="changes")
async def list_changes(request: Request, automation_id: str, query: LimitQuery) -> list[ChangeView]:
    """List the changes of the automation with the key that made each, newest first."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        unwrap(await store.find_automation(tx, org_id, automation_id) or unknown(_RESOURCE))
        return await store.list_changes(tx, org_id, automation_id, query.limit)


@blueprint.get("/automations/<automation_id:str>/activations")
@Operation(READ, field="activations")
async def list_activations(request: Request, automation_id: str) -> list[ActivationChange]:
    """List when the automation was switched on and off, paused and resumed, in order."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        unwrap(await store.find_automation(tx, org_id, automation_id) or unknown(_RESOURCE))
        return await list_activation_changes(tx, org_id, automation_id)


@blueprint.get("/automations/<automation_id:str>/stats")
@Operation(READ)
async def stats(request: Request, automation_id: str) -> StatsView | Refusal:
    """Count entries by state, and steps by node and outcome."""
    return await entries.count_stats(services(request).database, principal_of(request).org_id, automation_id)


@blueprint.get("/automations/<automation_id:str>/goal")
@Operation(READ)
async def goal(request: Request, automation_id: str, query: GoalQuery) -> GoalView | Refusal:
    """Measure the goal: how many of the contacts that entered in the last `days` reached it, and the lift."""
    org_id, context = principal_of(request).org_id, services(request)
    retries = RetryPolicy(context.settings.retry_delays)
    keys, now = context.keyring.of(org_id), context.clock.now()
    return await goals.measure_goal(context.database, org_id, keys, automation_id, query.days, now, retries)


@blueprint.get("/automations/<automation_id:str>/impact")
@Operation(READ, field="impact")
async def impact(request: Request, automation_id: str) -> ImpactView:
    """Return the impact of publishing the draft now: entries that have not ended, by version and node."""
    org_id = principal_of(request).org_id
    async with services(request).database.transaction() as tx:
        row = unwrap(await store.find_automation(tx, org_id, automation_id) or unknown(_RESOURCE))
        next_version = (row.published_version or 0) + 1
        earlier = await store.count_entries_of_other_versions(tx, org_id, automation_id, next_version)
    return impact_view(earlier, active=True)


@blueprint.get("/automations/<automation_id:str>/entries")
@Operation(READ, field="entries")
async def list_entries(request: Request, automation_id: str, query: EntriesQuery) -> list[EntryView] | Refusal:
    """List the entries of an automation, newest first, optionally in one state."""
    org_id = principal_of(request).org_id
    return await entries.list_entries(services(request).database, org_id, automation_id, query)


@blueprint.post("/automations/<automation_id:str>/replay")
@Operation(WRITE, field="replayed")
async def replay(request: Request, automation_id: str, body: CauseBody) -> int | Refusal:
    """Replay every dead entry, or those of one cause."""
    return await entries.replay_all(services(request).database, author_of(request), automation_id, body.cause)


@blueprint.post("/automations/<automation_id:str>/simulate")
@Operation(DRAFT)
async def simulate(request: Request, automation_id: str, body: TrialBody) -> TrialView:
    """Simulate the automation for an event. Nothing is stored or sent."""
    context = services(request)
    event_trial = valid(trial.trial_of(body, context.clock.now()))
    trace = await trial.simulate_trial(context.database, _trial_context(request), automation_id, event_trial)
    return trial.trial_view(unwrap(trace), context.settings.email_from)


@blueprint.post("/simulate")
@Operation(DRAFT)
async def simulate_unsaved(request: Request, body: UnsavedTrialBody) -> TrialView:
    """Simulate an automation that comes with the request and is not stored."""
    context = services(request)
    event_trial = valid(trial.trial_of(body, context.clock.now()))
    trace = await trial.simulate_trial(context.database, _trial_context(request), body, event_trial)
    return trial.trial_view(unwrap(trace), context.settings.email_from)


@blueprint.post("/automations/<automation_id:str>/test")
@Operation(WRITE, field="messages")
async def send_test_messages(request: Request, automation_id: str, body: TestBody) -> list[TestMessageView] | Refusal:
    """Send the messages of a simulation to test receivers and return the result of each within 20 seconds.

    429 after ten tests in a minute. Receivers are contacts of the organization, hosts that its published automations
    send to, and those that the operator allows.
    """
    return await _send_test(request, automation_id, body)


@blueprint.post("/test")
@Operation(WRITE, field="messages")
async def send_unsaved_test_messages(request: Request, body: UnsavedTestBody) -> list[TestMessageView] | Refusal:
    """Send the messages of an automation that comes with the request and is not stored, as for a stored one."""
    return await _send_test(request, body, body)


async def _send_test(
    request: Request, source: str | UnsavedTestBody, body: TestBody | UnsavedTestBody
) -> list[TestMessageView] | Refusal:
    context = services(request)
    event_trial = valid(trial.trial_of(body, context.clock.now()))
    receivers = frozenset(context.settings.test_receivers)
    send_services = TestSendServices(context.database, context.keyring, context.clock, context.transports, receivers)
    test = source, event_trial, body.to, body.node_id
    return await send_test(send_services, author_of(request), _trial_context(request), *test)


async def _view(row: AutomationRow | Refusal) -> AutomationView:
    return await asyncio.to_thread(automation_view, unwrap(row))


async def _published(request: Request, result: AutomationRow | Refusal) -> AutomationView:
    row = unwrap(result)
    # Counted after the commit of the publication, so that no lock is held during a long count.
    async with services(request).database.transaction() as tx:
        earlier = await store.count_entries_of_other_versions(tx, row.org_id, row.id, row.published_version)
    view = await _view(row)
    on_wallets = await automations.check_recent_wallets(services(request).database, author_of(request), row)
    on_contacts = await check_reach(services(request).database, row.org_id, row)
    warnings, impact = (*view.warnings, *on_wallets, *on_contacts), impact_view(earlier, active=row.active)
    return msgspec.structs.replace(view, warnings=warnings, impact=impact)


def _move_services(request: Request) -> MoveServices:
    context = services(request)
    retries = RetryPolicy(context.settings.retry_delays)
    return MoveServices(context.database, context.keyring, context.clock, retries)


def _trial_context(request: Request) -> TrialContext:
    retries = RetryPolicy(services(request).settings.retry_delays)
    principal, show = principal_of(request), email_display(request)
    if "automations:write" in principal.scopes:
        return TrialContext(principal.org_id, show, retries)
    reads_contacts = not {"contacts:read", "sql:read"}.isdisjoint(principal.scopes)
    return TrialContext(principal.org_id, show, retries, decides_by_masks=True, reads_contacts=reads_contacts)
