"""Receipts and approvals: publishing with a key that may only propose it, such as that of an agent.

A key with `automations:propose` and without `automations:publish` writes drafts. It may publish one after the server
has checked it, has backtested it on recent events, and has counted what the publication concerns. Each leaves a
receipt: a row that names the key and the hash of what would be published, which includes the number of the live
version. A receipt is found by this hash, so it cannot be presented for anything else, and an edit of the draft, of a
snippet, or another publication leaves no receipt for the new content. Where the organization asks for it, a person with
another key has to approve the same hash. All of it is compared in the transaction that publishes, under the lock of the
automation.

A backtest for a receipt simulates the draft for a sample of recent events, by the engine's own interpreter, and returns
numbers. It is not the backtest of a notebook, which plays a period in full (docs/backtest.md).
"""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import msgspec

from api.automations.automations import (
    Author,
    Permission,
    Refusal,
    check_recent_wallets,
    conflict,
    draft_to_publish,
    invalid,
    record,
    unknown,
)
from api.automations.body import diagnostics, publication_errors
from api.automations.trial import Trial, TrialContext, UnsavedTrialBody, simulate_trial
from api.automations.views import impact_view
from api.channels.webhook import WEBHOOKS
from api.clock import monotonic_ns, uuid7
from api.store import automations
from api.store import receipts as store
from api.store.automations import AutomationRow
from api.store.broadcasts import count_recipients, list_newest_recipients
from api.store.chain import recent_logs_of_contract
from api.store.contacts import contact_state, find_contact, identifiers_of
from api.store.database import Database, Transaction
from api.store.events import count_events, list_newest_events
from api.store.receipts import ApprovalRow, ListedApproval
from workbench.language.actions import SendWebhook, filters_in
from workbench.language.channel import channel_of
from workbench.language.codec import decode, encode
from workbench.language.event import Identifiers
from workbench.language.graph import Graph, read_graph
from workbench.language.redact import compares_address, prints_address
from workbench.language.responses import ApprovalState, ApprovalView, ReceiptKind, ReceiptView
from workbench.language.simulate import Trace
from workbench.language.starts import StartSource
from workbench.language.trigger import Trigger, read_trigger

VALID_FOR = timedelta(hours=1)
APPROVED_FOR = timedelta(days=7)
KINDS: tuple[ReceiptKind, ...] = ("check", "backtest", "impact")

SAMPLE_SIZE = 50  # events or contacts
_MAX_NAMES = 20
_SAMPLED_TIME = timedelta(days=29)  # events are counted for 30 days
_SAMPLE_TIMEOUT_S = 10.0


def content_hash(draft: AutomationRow, live_version: int | None) -> bytes:
    """Return the hash of a draft with its pins, as the version that follows the live one."""
    parts = (str(live_version or 0).encode(), bytes(draft.trigger_spec), bytes(draft.graph))
    return hashlib.sha256(b"".join(len(part).to_bytes(8) + part for part in parts)).digest()


async def issue(
    database: Database, context: TrialContext, author: Author, automation_id: str, kind: ReceiptKind
) -> ReceiptView | Refusal:
    """Find out one thing about the draft and return the receipt.

    Refused if the draft has errors, or is changed meanwhile.
    """
    read = await _read(database, author, automation_id)
    if isinstance(read, Refusal):
        return read
    draft, digest = read
    if problems := await asyncio.to_thread(publication_errors, draft.trigger_spec, draft.graph):
        return invalid(problems)
    match kind:
        case "check":
            result: dict[str, Any] | Refusal = await _check(database, author, draft)
        case "backtest":
            result = await _backtest(database, context, author, draft)
        case _:
            result = await _impact(database, author, draft)
    if isinstance(result, Refusal):
        return result
    again = await _read(database, author, automation_id)
    if isinstance(again, Refusal) or again[1] != digest:
        return conflict("the draft was changed meanwhile; ask again")
    async with database.transaction() as tx:
        await store.save_receipt(tx, author.org_id, draft.id, digest, author.key_id, kind, encode(result), author.now)
    return ReceiptView(kind, digest.hex(), result, author.now, author.now + VALID_FOR)


async def _read(database: Database, author: Author, automation_id: str) -> tuple[AutomationRow, bytes] | Refusal:
    """Return the draft with its pins, and its hash."""
    async with database.transaction() as tx:
        return await _read_in(tx, author, automation_id)


async def _read_in(tx: Transaction, author: Author, automation_id: str) -> tuple[AutomationRow, bytes] | Refusal:
    row = await automations.find_automation(tx, author.org_id, automation_id)
    draft = await draft_to_publish(tx, author, automation_id, None, None)
    if isinstance(draft, Refusal) or row is None:
        return draft if isinstance(draft, Refusal) else unknown("automation")
    return draft, content_hash(draft, row.published_version)


async def _check(database: Database, author: Author, draft: AutomationRow) -> dict[str, Any]:
    warnings = await asyncio.to_thread(diagnostics, draft.trigger_spec, draft.graph)
    warnings = (*warnings, *await check_recent_wallets(database, author, draft))
    return {"warnings": msgspec.to_builtins(warnings)}


async def _impact(database: Database, author: Author, draft: AutomationRow) -> dict[str, Any]:
    """Count the entries that are under way, and the contacts that the new version reaches by itself."""
    trigger, org_id = read_trigger(decode(draft.trigger_spec)), draft.org_id
    source = trigger.source if isinstance(trigger, Trigger) else None
    async with database.transaction() as tx:
        earlier = await automations.count_entries_of_other_versions(tx, org_id, draft.id, draft.published_version)
        active = draft.active or bool(await store.is_new_proposal(tx, org_id, draft.id, author.key_id))
        broadcasts, recipients = await store.count_planned_recipients(tx, org_id, draft.id)
        audience = None
        if isinstance(source, StartSource) and source.type != "broadcast":
            segment = source.segment or ""
            contacts = (await count_recipients(tx, org_id, segment, 0, author.now)).contacts
            audience = {"segment": source.segment, "contacts": contacts}
    impact: dict[str, Any] = msgspec.to_builtins(impact_view(earlier, active=active))
    planned = {"broadcasts": broadcasts, "contacts": recipients}
    return impact | {"active": active, "audience": audience, "planned": planned}


async def _backtest(
    database: Database, context: TrialContext, author: Author, draft: AutomationRow
) -> dict[str, Any] | Refusal:
    """Simulate the draft for recent events or logs, or for the newest contacts of a segment, and return numbers."""
    if not context.reads_contacts:
        return conflict("a backtest plays stored contacts: the key needs sql:read or contacts:read")
    trigger = read_trigger(decode(draft.trigger_spec))
    assert isinstance(trigger, Trigger), "publishing refuses other triggers"
    body = UnsavedTrialBody(
        event=b"{}", trigger_spec=bytes(draft.trigger_spec), graph=bytes(draft.graph), automation_id=draft.id
    )
    begun_ns, counts, messages, ends = monotonic_ns(), Counter[str](), Counter[str](), Counter[str]()
    for event, now in await _sample(database, context, author, trigger):
        if monotonic_ns() - begun_ns > _SAMPLE_TIMEOUT_S * 1e9:
            break
        trace = await simulate_trial(database, context, body, Trial(encode(event), None, now, is_stored_event=True))
        counts["sampled"] += 1
        if not isinstance(trace, Trace):
            counts["refused"] += 1
            continue
        counts["entered"] += trace.matched
        messages.update(channel_of(message).name for message in trace.messages)
        ends.update([trace.outcome or str(trace.state)] if trace.matched else [])
    return {
        **{name: counts[name] for name in ("sampled", "entered", "refused")},
        "messages": dict(messages),
        "ends": dict(ends),
    }


async def _sample(
    database: Database, context: TrialContext, author: Author, trigger: Trigger
) -> Sequence[tuple[dict[str, Any], Any]]:
    """Return events to simulate, with the time of each."""
    keys, since = context.show.keys, author.now - _SAMPLED_TIME
    if isinstance(source := trigger.source, StartSource):
        async with database.transaction() as tx:
            ids = await list_newest_recipients(tx, author.org_id, source.segment or "", SAMPLE_SIZE)
            recipients = [await find_contact(tx, author.org_id, contact_id) for contact_id in ids]
        contacts = [contact_state(row, keys.open_email).identifiers for row in recipients if row is not None]
        return [
            ({"type": source.type, "contact": _contact(identifiers)}, author.now)
            for identifiers in contacts
            if _contact(identifiers)
        ]
    if (log := trigger.log_source) is not None:
        async with database.transaction() as tx:
            rows = await recent_logs_of_contract(tx, author.org_id, log.contract, log.abi_event.name, None, SAMPLE_SIZE)
        return [
            (decode(encode(row)), row.created_at)
            for row in rows
            if (row.chain_id, row.signature) == (log.chain_id, log.abi_event.canonical)
            and not row.removed
            and (row.contact_id is not None or log.creates_contacts)
        ]
    async with database.transaction() as tx:
        names = sorted(trigger.names)[:_MAX_NAMES]
        if trigger.is_wildcard:
            names = [counted.event for counted in await count_events(tx, author.org_id, since, "", _MAX_NAMES)]
        per_name = max(SAMPLE_SIZE // max(len(names), 1), 1)
        events = [
            event for name in names for event in await list_newest_events(tx, author.org_id, name, since, per_name)
        ]
    return [
        (
            {
                "event": event.event,
                "contact": _contact(identifiers_of(event, keys.open_email)),
                "payload": event.payload,
            },
            event.created_at,
        )
        for event in events
    ]


def _contact(identifiers: Identifiers) -> dict[str, str]:
    values = {"walletAddress": identifiers.wallet, "email": identifiers.email, "externalId": identifiers.external_id}
    return {name: value for name, value in values.items() if value is not None}


# --- Publishing


async def permit(tx: Transaction, author: Author, row: AutomationRow, draft: AutomationRow) -> Refusal | Permission:
    """Allow a key that may only propose to publish this draft now, or say why not. The automation is locked."""
    digest = content_hash(draft, row.published_version)
    subject = author.org_id, row.id, digest, author.key_id
    valid = {receipt.kind for receipt in await store.list_receipts(tx, *subject, author.now - VALID_FOR)}
    if missing := [kind for kind in KINDS if kind not in valid]:
        path = f"POST /api/v1/automations/{row.id}/receipts"
        return conflict(f"this key publishes with receipts, and this draft lacks: {', '.join(missing)} ({path})")
    activates = bool(await store.is_new_proposal(tx, author.org_id, row.id, author.key_id))
    detail: dict[str, Any] = {"contentHash": digest.hex()} | ({"active": True} if activates else {})
    reasons = await _reasons_for_approval(tx, author.org_id, draft)
    if not reasons and not await store.asks_for_approvals(tx, author.org_id):
        return Permission(detail, activates)
    expired, approval_id = author.now - APPROVED_FOR, uuid7(author.now_us)
    if await store.ask_for_approval(tx, author.org_id, approval_id, *subject[1:], author.now, expired):
        proposed = {"contentHash": digest.hex(), "receipts": list(KINDS), "reasons": reasons}
        await record(tx, author, "automation.propose", row.id, proposed)
    approval = await store.find_approval(tx, *subject)
    assert approval is not None
    match approval.state:
        case "approved":
            return Permission(detail | {"approval": approval.id}, activates)
        case "rejected":
            return conflict("another person rejected this publication; change the draft")
        case "waiting":
            because = f", because {'; '.join(reasons)}" if reasons else ""
            return conflict(f"the publication waits for the approval of another person (wb.approvals){because}")


async def _reasons_for_approval(tx: Transaction, org_id: int, draft: AutomationRow) -> list[str]:
    """Return why a person has to approve this draft, also where the organization does not ask for approvals.

    What a draft sends or writes may carry addresses to the agent: by a webhook, by an attribute that SQL shows, by a
    link or an image in an email. So may what it decides: which step an entry took spells an address out.
    """
    trigger, graph = await asyncio.to_thread(
        lambda: (read_trigger(decode(draft.trigger_spec)), read_graph(decode(draft.graph)))
    )
    assert isinstance(trigger, Trigger), "publishing refuses other triggers"
    assert isinstance(graph, Graph), "publishing refuses other graphs"
    reasons = await asyncio.to_thread(_uses_of_address, trigger, graph)
    is_used = WEBHOOKS.address.is_used
    assert is_used is not None
    for node in graph.nodes:
        if isinstance(node.action, SendWebhook) and not await is_used(tx, org_id, node.action.url):
            reasons.append(f"step {node.id} sends to a host that no published automation sends to")
    return reasons


def _uses_of_address(trigger: Trigger, graph: Graph) -> list[str]:
    goal = graph.settings.goal
    conditions = [
        ("the trigger", trigger.filters),
        ("the goal", () if goal is None else goal.filters),
        *((f"step {node.id}", filters_in(node.action)) for node in graph.nodes),
    ]
    return [
        *(f"step {node.id} prints the email address" for node in graph.nodes if prints_address(node.action)),
        *(f"{part} compares the email address" for part, filters in conditions if compares_address(filters)),
    ]


async def decide(database: Database, author: Author, approval_id: str, state: ApprovalState) -> ApprovalRow | Refusal:
    """Approve or reject a publication, as it is proposed and as long as the draft has this content.

    An approval is withdrawn by a rejection until the draft is published.
    """
    async with database.transaction() as tx:
        approval = await store.lock_approval(tx, author.org_id, approval_id)
        if approval is None:
            return unknown("approval")
        if approval.state == "rejected" or approval.state == state:
            return conflict(f"this publication is {approval.state} already")
        read = await _read_in(tx, author, approval.automation_id)
        is_current = not isinstance(read, Refusal) and read[1] == approval.content_hash
        if not is_current and (state == "approved" or approval.state == "approved"):
            return conflict("the draft was published or changed since; what was proposed cannot be published any more")
        if state == "approved":
            writers = await store.list_draft_authors(tx, author.org_id, approval.automation_id)
            if author.key_id in writers | {approval.requested_by}:
                return conflict("this key wrote or proposed the draft: another person has to approve it")
        await store.decide_approval(tx, author.org_id, approval_id, state, author.key_id, author.now)
        detail = {
            "approval": approval_id,
            "contentHash": approval.content_hash.hex(),
            "proposedBy": approval.requested_by,
        }
        await record(tx, author, f"automation.{state}", approval.automation_id, detail)
    return msgspec.structs.replace(approval, state=state, decided_by=author.key_id, decided_at=author.now)


async def list_approvals(database: Database, author: Author, limit: int) -> list[ApprovalView]:
    """Return the newest approvals, those that wait first, with the receipts of each."""
    async with database.transaction() as tx:
        rows = await store.list_approvals(tx, author.org_id, limit)
        return [await _approval_view(tx, author, row) for row in rows]


async def _approval_view(tx: Transaction, author: Author, row: ListedApproval) -> ApprovalView:
    subject = author.org_id, row.automation_id, row.content_hash, row.key_id
    receipts = await store.list_receipts(tx, *subject, row.requested_at - VALID_FOR)
    views = tuple(
        ReceiptView(item.kind, row.content_hash.hex(), decode(item.result), item.issued_at, item.issued_at + VALID_FOR)
        for item in receipts
    )
    columns = row.id, row.automation_id, row.automation, row.requested_by, row.requested_at, row.state, row.decided_at
    return ApprovalView(*columns, row.content_hash.hex(), views, tuple(decode(row.reasons)))
