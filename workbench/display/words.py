"""Filters, verdicts, steps and outcomes in plain words. Whole automations are told in `sentences`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from api.language.action import (
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
)
from api.language.codec import encode
from api.language.effect import EmailMessage, InappMessage, Message, WebhookMessage
from api.language.filter import OPERATORS, Filter, Verdict
from api.language.graph import Node
from api.language.run import State, Step
from api.language.settings import Reentry, Settings
from api.language.trigger import Trigger

KIND_WORDS = {
    "app_event": "When",
    "onchain_event": "When on chain",
    "send_inapp": "In-app message",
    "send_email": "Email",
    "send_webhook": "Webhook",
    "add_tag": "Add tag",
    "remove_tag": "Remove tag",
    "update_contact": "Update contact",
    "condition": "If",
    "delay": "Wait",
    "wait_for_event": "Wait for event",
    "split": "Split",
    "exit": "Stop",
}
HANDLE_WORDS = {"true": "yes", "false": "no", "matched": "it came", "timeout": "not in time"}
STEP_WORDS = KIND_WORDS | {"app_event": "Event", "onchain_event": "Log", "condition": "Decision"}
OUTCOME_WORDS = {
    "entered": "event arrived",
    "sent": "message sent",
    "tagged": "tag added",
    "untagged": "tag removed",
    "updated": "contact updated",
    "waiting": "waiting",
    "waited": "waited",
    "matched": "the event came",
    "timed_out": "the event did not come in time",
    "skipped": "skipped",
    "refused": "not let in",
    "held_out": "held out",
    "goal": "goal reached",
    "branched": "decided",
    "exited": "stopped",
    "failed": "failed",
    "completed": "reached the end",
    "exit": "stopped at an exit",
    "no_published_version": "nothing published, so nothing was done",
    "reentry": "the contact was here before",
    "loop_guard": "the automation starts itself over and over",
    "holdout": "held out, to compare with the others",
    "overdue": "it came due while the automation was paused",
    "automation_inactive": "the automation was switched off",
    "automation_archived": "the automation was put away",
    "contact_erased": "the contact was erased",
    "chain_reorg": "the chain dropped its log",
    "no_wallet": "the contact has no wallet to send to",
    "no_email": "the contact has no email address to send to",
    "template_error": "a text could not be filled in",
    "invalid_header": "the subject of the email cannot be sent",
    "invalid_url": "the address of the webhook is none",
    "invalid_attribute": "the contact cannot hold such a value",
    "node_invalid": "a step is not set up correctly",
    "attempts_exhausted": "every try failed",
}
CAUSE_WORDS = {
    "delay": "",
    "event": "",
    "quiet_hours": "quiet hours,",
    "frequency_cap": "the contact had enough messages lately",
    "opted_out": "the contact wants no messages this way",
    "once": "it enters once",
    "once_per": "it was here too recently",
    "not_while_running": "it has not come to the end yet",
    "loop_guard": "too many entries in a minute",
}

_SEGMENTS = "contact.segments"
_MOST_COUNTED = 100_000
_ENDINGS: dict[tuple[State | str | None, str | None], str] = {
    (State.COMPLETED, "no_published_version"): "Nothing is published, so nothing was done.",
    (State.COMPLETED, "holdout"): "Held out, to be compared with the others: nothing was done.",
    (State.EXITED, "goal"): "Stopped: the goal is reached.",
}
_PLAIN_ENDINGS: dict[State | str | None, str] = {
    State.COMPLETED: "Completed.",
    State.EXITED: "Stopped at an exit.",
    State.WAITING: "Waiting.",
    State.RUNNING: "Running.",
    State.PAUSED: "It rests until the automation is resumed.",
}


def value(given: Any) -> str:
    """Write a value as a person would: texts in quotes, numbers plain."""
    match given:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if given else "false"
        case str():
            return f"“{given}”"
        case int() | float() | Decimal():
            return str(given)
        case list() | tuple():
            return either([value(each) for each in given])
        case _:
            return encode(given).decode()


def short(identifier: str | None) -> str:
    """Shorten an id or an address to its ends: `0198c0de…42af`."""
    text = identifier or ""
    return text if len(text) <= 24 else f"{text[:8]}…{text[-4:]}"


def condition(each: Filter | Verdict) -> str:  # noqa: PLR0911  a table: one line per operator
    """Write one filter: `amountUsd is 100`."""
    match each.operator:
        case "eq":
            return f"{each.path} is {value(each.value)}"
        case "neq":
            return f"{each.path} is not {value(each.value)}"
        case "in":
            return f"{each.path} is one of {either([value(each) for each in _listed(each.value)])}"
        case "contains" if each.path == _SEGMENTS:
            return f"contact is in the segment {value(each.value)}"
        case "contains":
            return f"{each.path} contains {value(each.value)}"
        case "exists":
            return f"{each.path} is present"
        case _:
            return f"{each.path} {each.operator} {value(each.value)} (unknown operator, ignored)"


def conditions(filters: Iterable[Filter | Verdict]) -> str:
    """Write all filters: `a is 1 and b is present`; empty for none."""
    return " and ".join(condition(each) for each in filters)


def found(verdict: Verdict) -> str:
    """Say what a filter met, and point out a near miss."""
    if verdict.operator not in OPERATORS:
        return "ignored: there is no such operator"
    if not verdict.present:
        return f"there is no {verdict.path}"
    if verdict.path == _SEGMENTS and isinstance(verdict.actual, list | tuple):
        return f"it is in {both([value(each) for each in verdict.actual]) or 'no segment'}"
    actual = value(short(verdict.actual) if isinstance(verdict.actual, str) else verdict.actual)
    return f"it is {actual}" if verdict.passed else f"it is {actual}{_near_miss(verdict)}"


def _near_miss(verdict: Verdict) -> str:
    actual = verdict.actual
    for wanted in _listed(verdict.value) if verdict.operator == "in" else (verdict.value,):
        if isinstance(actual, str) and isinstance(wanted, str) and actual.lower() == wanted.lower():
            return f": same letters as {value(wanted)}, but capitals count"
        if type(actual) is not type(wanted) and _plain(actual) == _plain(wanted):
            return f", {_kind(actual)}, and {value(wanted)} is {_kind(wanted)}: they are not the same"
    return ""


def _plain(given: Any) -> str:
    return str(given).lower()


def _kind(given: Any) -> str:
    match given:
        case bool():
            return "a yes/no value"
        case str():
            return "a text"
        case int() | float() | Decimal():
            return "a number"
        case _:
            return "something else"


def events(trigger: Trigger) -> str:
    """Write which events start an automation: `deposit or trade`."""
    if trigger.source is not None:
        return f"{trigger.source.declared.name} of {short(trigger.source.contract)} on chain {trigger.source.chain_id}"
    return either(sorted(trigger.names)) if trigger.names else "any event"


def starting(trigger: Trigger) -> str:
    """Write what starts an automation: `deposit where amountUsd is 100`."""
    asked = conditions(trigger.filters)
    return f"{events(trigger)} where {asked}" if asked else events(trigger)


def outcome(word: str | None) -> str:
    """Say an outcome in words."""
    return OUTCOME_WORDS.get(word or "", (word or "").replace("_", " "))


def ended(word: str | None) -> str:
    """Say the outcome of an entry; the `refused` of a step is another one, of who is not let in."""
    return "the receiver said no" if word == "refused" else outcome(word)


def ending(state: State | str | None, word: str | None, error: str | None) -> str:
    """Say where an entry stands, and why."""
    if (told := _ENDINGS.get((state, word))) is not None:
        return told
    match state:
        case State.CANCELLED:
            return f"Cancelled: {outcome(word)}."
        case State.DEAD:
            return f"Failed for good: {(error or outcome(word)).removeprefix(f'{word}: ')}."
        case State.RETRYING:
            return f"A step failed and will be tried again: {error or outcome(word)}."
        case _:
            return _PLAIN_ENDINGS.get(state, "Waiting for the engine.")


def deeds(messages: int, written: "Written", *, done: bool) -> str:
    """Say what is done: `send 1 message and add the tag “vip”` (`done`: `sent …`); empty when nothing is."""
    parts = [f"{'sent' if done else 'send'} {counted(messages, 'message')}"] if messages else []
    if written.tags:
        parts.append(f"{'added' if done else 'add'} {_tags(written.tags)}")
    if written.removed_tags:
        parts.append(f"{'removed' if done else 'remove'} {_tags(written.removed_tags)}")
    if written.attributes:
        parts.append(f"set {both(written.attributes)}")
    return both(parts)


class Written(msgspec.Struct, frozen=True):
    """What steps write to the contact: tags, and names of attributes."""

    tags: Sequence[str] = ()
    removed_tags: Sequence[str] = ()
    attributes: Sequence[str] = ()


def written(steps: Iterable[Step]) -> Written:
    """Return what steps have written to the contact."""
    found: dict[str, list[str]] = {"tagged": [], "untagged": [], "updated": []}
    for step in steps:
        if step.outcome in found:  # of an erased contact, steps tell nothing more
            found[step.outcome] += step.detail.get("attributes") or (
                [step.detail["tag"]] if "tag" in step.detail else []
            )
    return Written(found["tagged"], found["untagged"], tuple(dict.fromkeys(found["updated"])))


def _tags(tags: Sequence[str]) -> str:
    return f"the {'tag' if len(tags) == 1 else 'tags'} {both([value(tag) for tag in tags])}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Write a number of things: `1 message`, `2,000 messages`."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def standing(states: Mapping[str, int]) -> str:
    """Say how many entries there are, and in which states: `3 entries: 1 waiting, 2 completed`. The server counts the newest 100,000."""
    total = sum(states.values())
    if not total:
        return "No entries yet"
    parts = [f"{count:,} {state}" for state, count in states.items() if count]
    newest = "The newest " if total >= _MOST_COUNTED else ""
    return f"{newest}{counted(total, 'entry', 'entries')}: {', '.join(parts)}"


def title(node: Node) -> str:  # noqa: C901, PLR0911, PLR0912  a table: one line per kind
    """Name a node in a few words, with what matters about it."""
    match node.action:
        case SendInapp(title=text):
            return f"send the in-app message {value(text)}"
        case SendEmail(subject=text):
            return f"send the email {value(text)}"
        case SendWebhook(url=url):
            return f"post to {url}"
        case AddTag(tag=tag):
            return f"add the tag {value(tag)}"
        case RemoveTag(tag=tag):
            return f"remove the tag {value(tag)}"
        case UpdateContact(attributes=attributes):
            return f"set {assignments(attributes)}"
        case Condition(filters=filters):
            return f"if {conditions(filters) or 'always'}"
        case Delay(wait=wait):
            return f"wait {duration(wait)}"
        case WaitForEvent(event=event, filters=filters, timeout=timeout):
            return f"wait up to {duration(timeout)} for {event}{_where(filters)}"
        case Split(branches=branches):
            return f"split: {both([f'{each.percent} % {value(each.handle)}' for each in branches])}"
        case Exit():
            return "stop"
        case Entered():
            return "start"
        case Invalid(problems=problems):
            return f"{node.id}, which cannot run: {problems[0].reason}"


def assignments(attributes: Mapping[str, Any]) -> str:
    """Write what becomes of attributes: `tier = “gold” and visits = 3`."""
    return both([f"{name} = {value(each)}" for name, each in attributes.items()])


def rules(settings: Settings) -> list[str]:
    """Write what holds for an automation as a whole, one rule each."""
    goal, hours, cap = settings.goal, settings.quiet_hours, settings.frequency_cap
    return [
        *_reentry(settings.reentry),
        *([f"until {goal.event}{_where(goal.filters)}"] if goal else []),
        *([f"quiet from {hours.start:%H:%M} to {hours.end:%H:%M}"] if hours else []),
        *([f"at most {counted(cap.messages, 'message')} in {duration(cap.period)}"] if cap else []),
        *([f"hold out {settings.holdout} % of contacts"] if settings.holdout else []),
    ]


def _reentry(reentry: Reentry) -> list[str]:
    match reentry.policy:
        case "always":
            return []
        case "once":
            return ["once per contact"]
        case "once_per":
            return [f"once in {counted(reentry.days, 'day')} per contact"]
        case "not_while_running":
            return ["not while it runs for the contact"]


def _where(filters: Sequence[Filter]) -> str:
    return f", where {conditions(filters)}" if filters else ""


def duration(span: timedelta) -> str:
    """Write a span in its two largest units: `3 days`, `1 hour 30 minutes`."""
    left, parts = round(span.total_seconds()), []
    for size, noun in _UNITS:
        number, left = divmod(left, size)
        if number:
            parts.append(counted(number, noun))
    return " ".join(parts[:2]) or "no time"


def offset(span: timedelta) -> str:
    """Write how long after the beginning something happens: `+3 days`; empty for less than a second."""
    return f"+{duration(span)}" if span >= timedelta(seconds=1) else ""


_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


def message(sent: Message) -> tuple[str, str, str]:
    """Return a message's title, its text, and where it goes."""
    match sent:
        case InappMessage(title=title, body=body, wallet_address=wallet):
            return title, body, f"in-app message to wallet {short(wallet)}"
        case EmailMessage(subject=subject, body=body, email=address):
            return subject, body, f"email to {address}"
        case WebhookMessage(url=url, body=body):
            return f"POST {url}", body, "webhook"


def line(sent: Message) -> str:
    """Write a message in one line."""
    title, body, _ = message(sent)
    return f"“{title}” {body}"


def detail(step: Step) -> str:  # noqa: PLR0911  a table: one line per outcome
    """Say what else is known of a step: why it failed, what it waits for, what it wrote."""
    known = step.detail
    match step.outcome:
        case "failed":
            return str(known.get("error", ""))
        case "tagged" | "untagged":
            return str(known.get("tag", ""))
        case "updated":
            return both([str(name) for name in known.get("attributes", ())])
        case "waiting" if "until" in known:
            return f"{CAUSE_WORDS.get(known.get('cause', ''), '')} until {moment_words(known['until'])} UTC".strip()
        case "matched" | "timed_out" | "goal":
            return str(known.get("event", ""))
        case "skipped" | "refused":
            return CAUSE_WORDS.get(known.get("cause", ""), "")
        case _:
            return ""


def until(step: Step) -> str:
    """Say until when a step waits: ` until 2026-11-23 08:00 UTC`; empty when it does not say."""
    known = step.detail.get("until")
    return f" until {moment_words(known)} UTC" if known else ""


def moment_words(written: str) -> str:
    """Write a moment of JSON to the minute: `2026-11-23 08:00`."""
    return written[:16].replace("T", " ")


def _listed(options: Any) -> Sequence[Any]:
    return options if isinstance(options, list | tuple) else ()


def both(texts: Sequence[str]) -> str:
    """Write a list: `a, b and c`."""
    return f"{', '.join(texts[:-1])} and {texts[-1]}" if len(texts) > 1 else "".join(texts)


def either(texts: Sequence[str]) -> str:
    """Write alternatives: `a, b or c`."""
    if len(texts) < 2:
        return "".join(texts)
    return f"{', '.join(texts[:-1])} or {texts[-1]}"
