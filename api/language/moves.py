"""The table of moves: for each kind of node what it does, and which facts it needs beside event and contact.

Its ways out are the `handles` of its action; `channel` has the schedule by which it is tried again.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Flag, auto
from typing import Any, TypedDict, TypeVar, Unpack

import msgspec

from api.language.action import (
    KINDS,
    AddTag,
    Condition,
    Delay,
    Entered,
    Exit,
    Invalid,
    RemoveTag,
    SendEmail,
    SendInapp,
    SendWebhook,
    Split,
    UpdateContact,
    WaitForEvent,
    is_address,
)
from api.language.attributes import unfit_attributes
from api.language.codec import Json, encode
from api.language.contact import are_too_many, identifiers_of
from api.language.decision import Decision, Failure, Here, die, end, fail, go_on, told, wait
from api.language.effect import ContactUpdated, EmailMessage, InappMessage, TagAdded, TagRemoved, WebhookMessage
from api.language.email import mask_email
from api.language.facts import email_of, named, wallet_of
from api.language.filter import Verdict, explain, matches
from api.language.hours import quiet_until
from api.language.retry import Channel
from api.language.run import State, message_id
from api.language.split import branch_of, share
from api.language.template import Budget, TemplateError, evaluate, render
from api.language.trigger import known_identifiers

A = TypeVar("A", bound=msgspec.Struct)


class Need(Flag):
    """Facts that only some kinds look at."""

    NOTHING = 0
    MESSAGES = auto()  # Past.messages_at, where the settings cap messages
    ENTRIES = auto()  # Past.recent: the kind can lead back to its own trigger, by way of somebody's backend


class Move(msgspec.Struct, frozen=True):
    """What the interpreter knows of one kind. `awaits`: the event that it needs the arrivals of, while it waits."""

    does: Callable[[Here, Any], Decision]
    needs: Need = Need.NOTHING
    awaits: Callable[[Any], str] | None = None
    channel: Channel = "inapp"


class _More(TypedDict, total=False):
    needs: Need
    awaits: Callable[[Any], str]
    channel: Channel


def decide(here: Here) -> Decision:
    """Return what the node's row of the table decides. A text that cannot be filled in fails the step for good."""
    action = here.node.action
    try:
        return TABLE[type(action)].does(here, action)
    except TemplateError as error:
        return die(here, "template_error", str(error))


def _enter(here: Here, _: Entered) -> Decision:
    return go_on(here, told(here, "entered"))


def _send_inapp(here: Here, action: SendInapp) -> Decision:
    if (withheld := _withheld(here)) is not None:
        return withheld
    wallet = wallet_of(here.facts)
    if wallet is None:
        return fail(here, Failure("no_wallet", "neither the event nor the contact has a wallet"))
    context = here.facts.context
    title, body = render(action.title, context), render(action.body, context)
    message = InappMessage(_message_id(here), here.node.id, wallet, title, body, action.data)
    return go_on(here, told(here, "sent", detail={"messageId": message.id}), message)


def _send_email(here: Here, action: SendEmail) -> Decision:
    if (withheld := _withheld(here)) is not None:
        return withheld
    email = email_of(here.facts)
    if email is None:
        return fail(here, Failure("no_email", "neither the event nor the contact has an email address"))
    context = here.facts.context
    subject, body = render(action.subject, context), render(action.body, context, html=action.html)
    if _HEADER_BREAK.search(subject):
        return die(here, "invalid_header", "the subject has a line break, a control character or an encoded word in it")
    message = EmailMessage(_message_id(here), here.node.id, email, subject, body, action.html)
    return go_on(here, told(here, "sent", detail={"messageId": message.id}), message)


def _send_webhook(here: Here, action: SendWebhook) -> Decision:
    if (unwanted := _unwanted(here)) is not None:
        return unwanted
    url, body = render(action.url, here.facts.context), _webhook_body(here, action.body)
    if not is_address(url):
        return die(here, "invalid_url", "with its values in it this is no address: write {{ value | urlencode }}")
    message = WebhookMessage(_message_id(here), here.node.id, url, body)
    return go_on(here, told(here, "sent", detail={"messageId": message.id}), message)


def _add_tag(here: Here, action: AddTag) -> Decision:
    return go_on(here, told(here, "tagged", detail={"tag": action.tag}), TagAdded(action.tag))


def _remove_tag(here: Here, action: RemoveTag) -> Decision:
    return go_on(here, told(here, "untagged", detail={"tag": action.tag}), TagRemoved(action.tag))


def _update_contact(here: Here, action: UpdateContact) -> Decision:
    budget, context = Budget(), here.facts.context
    attributes = {name: _filled_in(value, context, budget) for name, value in action.attributes.items()}
    problem = next(unfit_attributes(attributes), None)
    if problem is not None:
        return die(here, "invalid_attribute", str(problem))
    if are_too_many({**here.facts.contact.attributes, **attributes}):
        return die(here, "invalid_attribute", "the contact has as many attributes as it can have")
    step = told(here, "updated", detail={"attributes": list(attributes)})
    return go_on(here, step, ContactUpdated(attributes))


def _condition(here: Here, action: Condition) -> Decision:
    verdicts = explain(action.filters, here.facts.context)
    handle = "true" if all(verdict.passed for verdict in verdicts) else "false"
    return go_on(here, told(here, "branched", handle, {"verdicts": _noted(verdicts)}))


def _delay(here: Here, action: Delay) -> Decision:
    until = (here.run.since or here.now) + action.wait
    if here.now < until:
        return wait(here, until, "delay")
    return go_on(here, told(here, "waited"))


def _wait_for_event(here: Here, action: WaitForEvent) -> Decision:
    since = here.run.since or here.now
    until = since + action.timeout
    for arrival in here.facts.arrivals:
        in_time = arrival.event == action.event and since < arrival.at <= until
        if in_time and matches(action.filters, here.facts.context_of(arrival)):
            return go_on(here, told(here, "matched", "matched", named(arrival)))
    if here.now < until:
        return wait(here, until, "event")
    return go_on(here, told(here, "timed_out", "timeout", {"event": action.event}))


def _split(here: Here, action: Split) -> Decision:
    number = share(here.run.automation_id, here.node.id, here.facts.contact.id)
    return go_on(here, told(here, "branched", branch_of(action.branches, number), {"share": number}))


def _exit(here: Here, _: Exit) -> Decision:
    return end(here, State.EXITED, "exit", told(here, "exited"))


def _invalid(here: Here, action: Invalid) -> Decision:
    """Pass a first node of a kind of its own, which stands in for a missing trigger (contract §4.7.8); else a dead end."""
    if here.node is here.graph.start and here.node.kind not in KINDS:
        return go_on(here, told(here, "entered"))
    return die(here, "node_invalid", str(action.problems[0]))


def _unwanted(here: Here) -> Decision | None:
    """Skip what the contact wants none of."""
    if here.channel not in here.facts.contact.opted_out:
        return None
    return go_on(here, told(here, "skipped", detail={"cause": "opted_out"}))


def _withheld(here: Here) -> Decision | None:
    """Hold a message to a person back: until the quiet hours end, or for good where the contact has had enough of them."""
    if (unwanted := _unwanted(here)) is not None:
        return unwanted
    hours, cap = here.graph.settings.quiet_hours, here.graph.settings.frequency_cap
    if hours is not None:
        until = quiet_until(hours, here.facts.contact.attributes.get(hours.attribute), here.now)
        if until is not None:
            return wait(here, until, "quiet_hours")
    if cap is not None:
        recent = [at for at in here.facts.past.messages_at if at > here.now - cap.period]
        if len(recent) >= cap.messages:
            return go_on(here, told(here, "skipped", detail={"cause": "frequency_cap", "messages": len(recent)}))
    return None


def _message_id(here: Here) -> str:
    return message_id(here.run.entry_id, here.node.id)


def _webhook_body(here: Here, body: Json) -> str:
    match body:
        case None:
            return encode(_as_it_came(here)).decode()
        case str():
            return render(body, here.facts.context)
        case _:
            return encode(_filled_in(body, here.facts.context, Budget())).decode()


def _as_it_came(here: Here) -> dict[str, Any]:
    """Return what a webhook without a body of its own says: `type` and `data`, as Standard Webhooks recommends."""
    facts, run = here.facts, here.run
    who = known_identifiers(identifiers_of(facts.sent, facts.contact.identifiers))
    ids = {"contactId": facts.contact.id, "automationId": run.automation_id, "entryId": run.entry_id}
    return {"type": facts.event, "data": {**ids, **who, "payload": facts.payload}}


def _filled_in(value: Json, context: Mapping[str, Any], budget: Budget) -> Json:
    """Return a value of JSON with the values in its texts, which share one budget; raise TemplateError."""
    match value:
        case str():
            return evaluate(value, context, budget)
        case list():
            return [_filled_in(each, context, budget) for each in value]
        case dict():
            return {name: _filled_in(each, context, budget) for name, each in value.items()}
        case _:
            return value


def _noted(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as they are kept with the step: what was compared, but no clear email address."""
    return [
        {
            "path": verdict.path,
            "operator": verdict.operator,
            "value": verdict.value,
            "passed": verdict.passed,
            "present": verdict.present,
            "actual": _masked(verdict.path, verdict.actual),
        }
        for verdict in verdicts
    ]


def _masked(path: str, actual: Any) -> Any:
    """Return a value that was compared; the address of a whole contact is masked like one of its own path."""
    if path == "contact" and isinstance(actual, dict) and "email" in actual:
        return {**actual, "email": mask_email(actual["email"])}
    return mask_email(actual) if path in _ADDRESSES and isinstance(actual, str) else actual


_ADDRESSES = ("email", "contact.email")
_HEADER_BREAK = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]|=\?[^?\s]*\?[bq]\?", re.IGNORECASE)


def _awaited(action: WaitForEvent) -> str:
    return action.event


def _row(kind: type[A], does: Callable[[Here, A], Decision], **more: Unpack[_More]) -> tuple[type, Move]:
    return kind, Move(does, **more)


TABLE: Mapping[type, Move] = dict(
    (
        _row(Entered, _enter),
        _row(SendInapp, _send_inapp, needs=Need.MESSAGES),
        _row(SendEmail, _send_email, needs=Need.MESSAGES, channel="email"),
        _row(SendWebhook, _send_webhook, needs=Need.ENTRIES, channel="webhook"),
        _row(AddTag, _add_tag),
        _row(RemoveTag, _remove_tag),
        _row(UpdateContact, _update_contact),
        _row(Condition, _condition),
        _row(Delay, _delay),
        _row(WaitForEvent, _wait_for_event, awaits=_awaited),
        _row(Split, _split),
        _row(Exit, _exit),
        _row(Invalid, _invalid),
    )
)
