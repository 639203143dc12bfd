"""The behaviour of each kind of node: one handler per action.

A handler takes the context of a step and returns a `Decision`; it performs nothing itself. docs/extending.md has the
recipe for a new kind.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, TypeAlias, TypeVar, get_args

import msgspec

from workbench.language.actions import (
    MAX_WAIT,
    TRIGGER_KINDS,
    Action,
    AddTag,
    Branch,
    Collect,
    Condition,
    Delay,
    Exit,
    InvalidAction,
    LocalizedMessage,
    MessageAction,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendVia,
    SendWebhook,
    Split,
    TriggerNode,
    UpdateContact,
    WaitForEvent,
    WaitUntil,
    is_webhook_url,
)
from workbench.language.channel import Channel, ConnectionMessage, EmailMessage, InappMessage, Message, WebhookMessage
from workbench.language.codec import as_stored, encode, json_equal, utc_text, value_at
from workbench.language.contact import ContactState, exceeds_attribute_limits, merge_identifiers
from workbench.language.decision import (
    Decision,
    Failure,
    StepContext,
    end_entry,
    fail,
    fail_permanently,
    follow_edge,
    record_step,
    wait,
)
from workbench.language.event import Identifiers, attribute_problems, mask_email
from workbench.language.facts import EVENTS, event_reference
from workbench.language.filter import Where, explain, matches
from workbench.language.graph import QuietHours
from workbench.language.local_time import TIMEZONE_ATTRIBUTE, date_moment, day_start, next_moment
from workbench.language.locales import DEFAULT_TEXTS
from workbench.language.problem import DeclarationError
from workbench.language.run import JOINED, ContactUpdated, EntryJoined, State, TagAdded, TagRemoved, message_id
from workbench.language.template import MissingValueError, RenderBudget, TemplateError, evaluate_texts, render
from workbench.language.topics import link_values
from workbench.language.trigger import identifier_fields

A = TypeVar("A", bound=msgspec.Struct)
M = TypeVar("M", bound=MessageAction)

Handler: TypeAlias = Callable[[StepContext, A], Decision]
HANDLERS: dict[type, Handler[Any]] = {}


def run_node(ctx: StepContext) -> Decision:
    """Return the decision of the node's handler. A template that cannot be rendered fails the step permanently."""
    action = ctx.node.action
    try:
        return HANDLERS[type(action)](ctx, action)
    except TemplateError as error:
        return fail_permanently(ctx, "template_error", str(error))


def _handles(kind: type[A]) -> Callable[[Handler[A]], Handler[A]]:
    def register(handle: Handler[A]) -> Handler[A]:
        HANDLERS[kind] = handle
        return handle

    return register


Compose: TypeAlias = Callable[[StepContext, M, str], Message | Failure]
"""Returns the message of a node to an address (empty if the node itself says where the message goes)."""


def _sends(kind: type[M], channel: Channel) -> Callable[[Compose[M]], Compose[M]]:
    """Register how a node that sends by a channel composes its message."""

    def register(compose: Compose[M]) -> Compose[M]:
        HANDLERS[kind] = lambda ctx, action: _send(ctx, action, channel, compose)
        return compose

    return register


def unreachable_cause(action: MessageAction, channel: Channel, sent: Identifiers, contact: ContactState) -> str | None:
    """Return why a message cannot go to a contact, as the cause of its step; None if it can.

    Quiet hours, the frequency cap and missing values of texts are not causes here.
    """
    if channel.name in contact.opted_out:
        return "opted_out"
    if action.topic in contact.declined:
        return "declined_topic"
    if (recipient := channel.recipient) is None:
        return None
    address = recipient.find(sent, contact)
    if not address:
        return recipient.cause
    return None if recipient.is_deliverable(address) else "undeliverable"


def _send(ctx: StepContext, action: M, channel: Channel, compose: Compose[M]) -> Decision:
    facts = ctx.facts
    cause = unreachable_cause(action, channel, facts.sent, facts.contact)
    if cause in ("opted_out", "declined_topic"):
        topic = {"topic": action.topic} if cause == "declined_topic" else {}
        return follow_edge(ctx, record_step(ctx, "skipped", detail={"cause": cause, **topic}))
    if channel.to_contact and (withheld := _withhold(ctx)) is not None:
        return withheld
    address = ""
    if (recipient := channel.recipient) is not None:
        if cause == "undeliverable":
            return _skip(ctx, cause, recipient.limitation, cause)
        if cause is not None:
            reason = f"neither the event nor the contact has {recipient.noun}"
            if action.on_missing == "skip":
                return _skip(ctx, cause, reason)
            return fail(ctx, Failure(cause, reason))
        address = recipient.find(facts.sent, facts.contact) or ""
    locale = {}
    if isinstance(action, LocalizedMessage) and action.locales:
        settings = ctx.graph.settings
        wanted = settings.preview_locale or ctx.facts.contact.attributes.get(settings.locale_attribute)
        action, chosen = action.in_locale(wanted, settings.default_locale)
        locale = {"locale": chosen or DEFAULT_TEXTS}
    try:
        message = compose(ctx, action, address)
    except MissingValueError as error:
        if action.on_missing == "skip":
            return _skip(ctx, "missing_value", str(error))
        raise
    if isinstance(message, Failure):
        return fail(ctx, message)
    return follow_edge(ctx, record_step(ctx, "sent", detail={"messageId": message.id, **locale}), message)


def _skip(ctx: StepContext, cause: str, reason: str, outcome: str = "skipped") -> Decision:
    """Continue without a message that cannot be made, or cannot arrive."""
    return follow_edge(ctx, record_step(ctx, outcome, detail={"cause": cause, "error": reason}))


@_handles(TriggerNode)
def _trigger(ctx: StepContext, _: TriggerNode) -> Decision:
    return follow_edge(ctx, record_step(ctx, "entered"))


@_sends(SendInapp, SendInapp.channel)
def _compose_inapp(ctx: StepContext, action: SendInapp, wallet: str) -> Message:
    title, body = render(action.title, ctx.facts.context), render(action.body, ctx.facts.context)
    return InappMessage(message_id(ctx.run.entry_id, ctx.node.id), ctx.node.id, wallet, title, body, action.data)


# A line break would end the Subject header; mail programs decode an encoded word (=?utf-8?q?…?=).
_UNSAFE_SUBJECT = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]|=\?[^?\s]*\?[bq]\?", re.IGNORECASE)


@_sends(SendEmail, SendEmail.channel)
def _compose_email(ctx: StepContext, action: SendEmail, email: str) -> Message | Failure:
    context = {**link_values(action.confirms), **ctx.facts.context}
    subject, body = render(action.subject, context), render(action.body, context, html=action.html)
    if _UNSAFE_SUBJECT.search(subject):
        reason = "the subject contains a line break, a control character or an encoded word"
        return Failure("invalid_header", reason, permanent=True)
    id_ = message_id(ctx.run.entry_id, ctx.node.id)
    return EmailMessage(id_, ctx.node.id, email, subject, body, action.html, action.track_clicks)


@_sends(SendWebhook, SendWebhook.channel)
def _compose_webhook(ctx: StepContext, action: SendWebhook, _: str) -> Message | Failure:
    context = ctx.facts.context
    url = render(action.url, context)
    match action.body:
        case None:
            # The event as `type`, `timestamp` and `data` (Standard Webhooks).
            facts, run = ctx.facts, ctx.run
            ids = {"contactId": facts.contact.id, "automationId": run.automation_id, "entryId": run.entry_id}
            identifiers = identifier_fields(merge_identifiers(facts.sent, facts.contact.identifiers))
            data = {**ids, **identifiers, "payload": facts.payload}
            at = None if facts.at is None else utc_text(facts.at)
            body = encode({"type": facts.event, "timestamp": at, "data": data}).decode()
        case str() as text:
            body = render(text, context)
        case _:
            # As stored: a published graph has its keys in the order of jsonb, a draft as they were written.
            body = encode(as_stored(evaluate_texts(action.body, context, RenderBudget()))).decode()
    # Publishing checked the template with an example; a value can still make the URL too long or add white space.
    if not is_webhook_url(url):
        reason = "the URL is not valid after its values were filled in; write {{ value | urlencode }}"
        return Failure("invalid_url", reason, permanent=True)
    return WebhookMessage(message_id(ctx.run.entry_id, ctx.node.id), ctx.node.id, url, body)


@_sends(SendVia, SendVia.channel)
def _compose_for_connection(ctx: StepContext, action: SendVia, _: str) -> Message:
    # The connection is not read here: its template and its secrets may change until the message leaves
    # (docs/decisions/0069). Its values do not.
    # As stored, like the body of a webhook.
    body = encode(as_stored(evaluate_texts(action.body, ctx.facts.context, RenderBudget()))).decode()
    return ConnectionMessage(message_id(ctx.run.entry_id, ctx.node.id), ctx.node.id, action.connection, body)


@_handles(AddTag)
def _add_tag(ctx: StepContext, action: AddTag) -> Decision:
    return follow_edge(ctx, record_step(ctx, "tagged", detail={"tag": action.tag}), TagAdded(action.tag))


@_handles(RemoveTag)
def _remove_tag(ctx: StepContext, action: RemoveTag) -> Decision:
    return follow_edge(ctx, record_step(ctx, "untagged", detail={"tag": action.tag}), TagRemoved(action.tag))


@_handles(UpdateContact)
def _update_contact(ctx: StepContext, action: UpdateContact) -> Decision:
    budget, context = RenderBudget(), ctx.facts.context
    attributes = {name: evaluate_texts(value, context, budget) for name, value in action.attributes.items()}
    problem = next(attribute_problems(attributes), None)
    if problem is not None:
        return fail_permanently(ctx, "invalid_attribute", str(problem))
    if exceeds_attribute_limits({**ctx.facts.contact.attributes, **attributes}):
        return fail_permanently(ctx, "invalid_attribute", "the contact has reached the limit on attributes")
    step = record_step(ctx, "updated", detail={"attributes": list(attributes)})
    return follow_edge(ctx, step, ContactUpdated(attributes))


@_handles(Condition)
def _condition(ctx: StepContext, action: Condition) -> Decision:
    verdicts = explain(action.filters, ctx.facts.context, ctx.now)
    handle = "true" if all(verdict.passed for verdict in verdicts) else "false"

    def recorded(path: str, value: Any) -> Any:
        # Steps are stored in clear, email addresses are not. Of collected events they have only the number.
        if path == EVENTS and ctx.graph.collects and isinstance(value, list):
            return len(value)
        return _mask_emails(path, value)

    detail = []
    for filter_, verdict in zip(action.filters, verdicts, strict=True):
        if isinstance(filter_, Where):
            actual = {path: recorded(path, value) for path, value in verdict.actual.items()}
        else:
            actual = recorded(verdict.path, verdict.actual)
        detail.append({**msgspec.structs.asdict(verdict), "actual": actual})
    return follow_edge(ctx, record_step(ctx, "branched", handle, {"verdicts": detail}))


@_handles(Delay)
def _delay(ctx: StepContext, action: Delay) -> Decision:
    # Counted from when the node was reached, so a pause or a late engine does not prolong it.
    until = (ctx.run.since or ctx.now) + action.wait
    if ctx.now < until:
        return wait(ctx, until, "delay")
    return follow_edge(ctx, record_step(ctx, "waited"))


@_handles(WaitForEvent)
def _wait_for_event(ctx: StepContext, action: WaitForEvent) -> Decision:
    since = ctx.run.since
    if since is None:
        return wait(ctx, ctx.now + action.timeout, "event")
    until = since + action.timeout
    # The time of reception decides, however late the engine evaluates the event (docs/decisions/0018).
    for event in ctx.facts.later_events:
        in_time = event.event == action.event and event.follows(since, ctx.run.since_id) and event.at <= until
        if in_time and matches(action.filters, ctx.facts.context_of(event), event.at):
            step = record_step(ctx, "matched", "matched", event_reference(event))
            run = msgspec.structs.replace(ctx.run, since=None, since_id=event.id if event.at == ctx.now else None)
            return follow_edge(msgspec.structs.replace(ctx, run=run), step)
    if ctx.now < until:
        return wait(ctx, until, "event")
    return follow_edge(ctx, record_step(ctx, "timed_out", "timeout", {"event": action.event}))


@_handles(WaitUntil)
def _wait_until(ctx: StepContext, action: WaitUntil) -> Decision:
    # The moment is computed again whenever the run is decided, so it follows a date or a time zone that has changed.
    facts, now, since = ctx.facts, ctx.now, ctx.run.since or ctx.now
    earliest = since if ctx.run.resumed else now  # what came due in a pause has not been missed
    zone = ctx.graph.settings.zone_of(facts.contact.attributes.get(action.zone))
    if action.date is None:
        assert action.clock is not None, "a node has a time of day or a date"
        until = next_moment(action.clock, action.weekdays, zone, earliest)
        if now < until:
            return wait(ctx, until, "time")
        return follow_edge(ctx, record_step(ctx, "waited"))
    moment = date_moment(value_at(action.date, facts.context), action.shift, action.clock, action.weekdays, zone)
    if moment is None:
        cause = "no_date"
    elif moment < earliest:
        cause = "date_passed"
    elif moment > since + MAX_WAIT:
        cause = "date_too_far"
    elif now < moment:
        return wait(ctx, moment, "date")
    else:
        return follow_edge(ctx, record_step(ctx, "waited", "reached"))
    return follow_edge(ctx, record_step(ctx, "missed", "missed", {"cause": cause}))


@_handles(Collect)
def _collect(ctx: StepContext, action: Collect) -> Decision:
    if (joined := join_entry(ctx)) is not None:
        return joined
    now, since = ctx.now, ctx.run.since or ctx.now
    if action.clock is None:
        assert action.wait is not None, "a node has a time or a time of day"
        until = since + action.wait
    else:
        zone = ctx.graph.settings.zone_of(ctx.facts.contact.attributes.get(TIMEZONE_ATTRIBUTE))
        until = next_moment(action.clock, (), zone, since if ctx.run.resumed else now)
    events = 1 + len(ctx.facts.joined or ())
    if now < until and events < action.max:
        return wait(ctx, until, "collect")
    return follow_edge(ctx, record_step(ctx, "collected", detail={"events": events}))


def join_entry(ctx: StepContext) -> Decision | None:
    """Return the decision to join another entry that collects the same events, or None if there is no such entry.

    An entry that collects already joins only an older entry, so that merged contacts get one digest.
    """
    facts, run = ctx.facts, ctx.run
    for other in facts.history.collecting:
        node = ctx.graph.by_id.get(other.node_id)
        if node is None or not isinstance(node.action, Collect) or other.event != facts.event or ctx.now >= other.until:
            continue
        key = node.action.key
        if key is not None and not json_equal(value_at(key, facts.payload), value_at(key, other.payload)):
            continue
        if run.since is None or facts.at is None or (other.at, other.event_id) < (facts.at, run.event_id):
            events = 2 + other.joined + len(facts.joined or ())
            step = record_step(ctx, "joined", detail={"entryId": other.entry_id})
            ended = end_entry(ctx, State.CANCELLED, JOINED, step, steps=0 if run.node_id is None else 1)
            return msgspec.structs.replace(ended, effects=(EntryJoined(other.entry_id, events >= node.action.max),))
    return None


@_handles(Split)
def _split(ctx: StepContext, action: Split) -> Decision:
    number = bucket(ctx.run.automation_id, ctx.node.id, ctx.facts.contact.id)
    return follow_edge(ctx, record_step(ctx, "branched", branch_for(action.branches, number), {"share": number}))


@_handles(Exit)
def _exit(ctx: StepContext, _: Exit) -> Decision:
    return end_entry(ctx, State.EXITED, "exit", record_step(ctx, "exited"))


@_handles(InvalidAction)
def _invalid(ctx: StepContext, action: InvalidAction) -> Decision:
    # It takes the place of a missing trigger (docs/contract.md 4.7.8), also in the step: its kind may be any text.
    if ctx.node is ctx.graph.stand_in:
        return follow_edge(ctx, msgspec.structs.replace(record_step(ctx, "entered"), kind=TRIGGER_KINDS[0]))
    return fail_permanently(ctx, "node_invalid", str(action.problems[0]))


if missing := set(get_args(Action)) - HANDLERS.keys():
    raise DeclarationError(f"actions without a handler: {missing}")


def _withhold(ctx: StepContext) -> Decision | None:
    """Delay a message until the quiet hours end, or skip it if the contact has reached the frequency cap."""
    hours, cap = ctx.graph.settings.quiet_hours, ctx.graph.settings.frequency_cap
    if hours is None and cap is None:
        return None
    now = ctx.facts.real_time(ctx.now)  # a late engine must not send at night, or more than the cap allows
    if hours is not None:
        zone = ctx.graph.settings.zone_of(ctx.facts.contact.attributes.get(hours.attribute))
        until = quiet_until(hours, zone, now)
        if until is not None:
            return wait(ctx, until, "quiet_hours")
    if cap is not None:
        if cap.zone_attribute is None:
            since = now - cap.period + timedelta.resolution
        else:
            zone = ctx.graph.settings.zone_of(ctx.facts.contact.attributes.get(cap.zone_attribute))
            since = day_start(zone, now)
        count = sum(at >= since for at in ctx.facts.history.messages_at)
        if count >= cap.messages:
            return follow_edge(ctx, record_step(ctx, "skipped", detail={"cause": "frequency_cap", "messages": count}))
    return None


def _mask_emails(path: str, actual: Any) -> Any:
    if path == "contact" and isinstance(actual, dict) and "email" in actual:
        return {**actual, "email": mask_email(actual["email"])}
    return mask_email(actual) if path in ("email", "contact.email") and isinstance(actual, str) else actual


HOLDOUT_NODE_ID = ""  # no node has an empty id, so a holdout is independent of every split


def bucket(automation_id: str, node_id: str, contact_id: str) -> int:
    """Return the bucket of a contact at a node, from 0 to 99: always the same, in whole numbers.

    The hash is SHA-256 of `automation id/node id/contact id` in UTF-8. Its first 32 bits, times 100, shifted right by
    32, are the bucket. The branches of a split take their percentages of the buckets in the order in which they are
    written; a holdout takes the lowest ones, with an empty node id. In SQL:
    `('x' || left(encode(sha256(convert_to(a || '/' || n || '/' || c, 'UTF8')), 'hex'), 8))
    ::bit(32)::bigint * 100 >> 32`
    """
    digest = hashlib.sha256(f"{automation_id}/{node_id}/{contact_id}".encode()).digest()
    return int.from_bytes(digest[:4], "big") * 100 >> 32


def branch_for(branches: Iterable[Branch], number: int) -> str:
    """Return the handle of the branch for a bucket; the percentages must sum to 100."""
    upper = 0
    for branch in branches:
        upper += branch.percent
        if number < upper:
            return branch.handle
    raise ValueError(f"the branches end at {upper} percent")


def quiet_until(hours: QuietHours, zone: tzinfo, now: datetime) -> datetime | None:
    """Return when the quiet hours around `now` end, in UTC, or None outside quiet hours. `zone`: the contact's."""
    local = now.astimezone(zone)
    clock, over_midnight = local.time(), hours.start >= hours.end
    after_start, before_end = clock >= hours.start, clock < hours.end
    if not (after_start or before_end if over_midnight else after_start and before_end):
        return None
    day = local.date() + timedelta(days=1) if over_midnight and after_start else local.date()
    end = datetime.combine(day, hours.end, local.tzinfo)
    if end.astimezone(UTC) <= now:  # the hour that occurs twice when clocks are set back: take its second occurrence
        end = end.replace(fold=1)
    return end.astimezone(UTC)
