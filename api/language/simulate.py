"""Run an automation on one event without doing anything: the engine's interpreter under a virtual clock."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from api.language.advance import Contact, Facts, InappMessage, TagAdded, identifiers_of, walk
from api.language.codec import Json, decode, normalise
from api.language.event import Event, Identifiers, normal_email
from api.language.filter import Verdict, explain
from api.language.graph import Graph
from api.language.problem import Problem, Problems
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.run import Run, State, Step
from api.language.trigger import Trigger, flat_context

SIMULATED = "00000000-0000-8000-8000-000000000000"


class Automation(msgspec.Struct, frozen=True):
    """What is simulated: a trigger, and a graph (None: nothing is published)."""

    trigger: Trigger
    graph: Graph | None


class Trace(msgspec.Struct, frozen=True, rename="camel"):
    """What would happen: `steps` in order, in the words of an entry's own history.

    `matched` False: the trigger does not fire, `verdicts` say why. `state` and `outcome` are those the entry would end with.
    """

    matched: bool
    verdicts: tuple[Verdict, ...]
    steps: tuple[Step, ...] = ()
    messages: tuple[InappMessage, ...] = ()
    tags: tuple[str, ...] = ()
    state: State | None = None
    outcome: str | None = None
    error: str | None = None
    name_matched: bool = True


def simulate(
    automation: Automation,
    event: Event,
    contact: Contact,
    now: datetime,
    *,
    retries: RetryPolicy = DEFAULT_POLICY,
    entry_id: str = SIMULATED,
) -> Trace:
    """Return the trace of `event` from `contact` at `now`. Waits and retries pass at once, on a virtual clock."""
    payload: dict[str, Any] = decode(event.payload)
    contact = meeting(contact, event)
    who = identifiers_of(event.identifiers, contact.identifiers)
    context = flat_context(event.name, contact.id, who, payload)
    verdicts = explain(automation.trigger.filters, context)
    named = automation.trigger.names_event(event.name)
    if not named or not all(verdict.passed for verdict in verdicts):
        return Trace(False, verdicts, name_matched=named)
    facts = Facts(event.name, event.identifiers, payload, contact, retries=retries)
    return _to_the_end(automation.graph, Run(entry_id, SIMULATED), facts, now, verdicts)


def meeting(contact: Contact, event: Event) -> Contact:
    """Return the contact as the event leaves it: attributes merged, missing identifiers filled in."""
    sent, own = event.identifiers, contact.identifiers
    who = identifiers_of(own, sent)
    if sent.email is not None and sent.wallet is not None and sent.wallet == own.wallet:
        who = msgspec.structs.replace(who, email=sent.email)  # an email follows the wallet it came with
    return msgspec.structs.replace(contact, identifiers=who, attributes={**contact.attributes, **event.attributes})


def _to_the_end(graph: Graph | None, run: Run, facts: Facts, now: datetime, verdicts: tuple[Verdict, ...]) -> Trace:
    steps: list[Step] = []
    messages: list[InappMessage] = []
    tags: list[str] = []
    while run.state in _GOING:
        now = max(now, run.due_at or now)
        for decision in walk(graph, run.claimed(), facts, now):
            run = decision.run
            if decision.step is not None:
                steps.append(decision.step)
            for effect in decision.effects:
                match effect:
                    case InappMessage():
                        messages.append(effect)
                    case TagAdded(tag=tag):
                        tags.append(tag)
    return Trace(True, verdicts, tuple(steps), tuple(messages), tuple(tags), run.state, run.outcome, run.error)


_GOING = frozenset({State.PENDING, State.WAITING, State.RETRYING})


def contact_of(value: Mapping[str, Any] | None) -> Contact:
    """Return the contact a caller described (see `read_contact`); raise ValueError naming what is wrong."""
    contact = read_contact(value)
    if isinstance(contact, Contact):
        return contact
    raise ValueError("; ".join(map(str, contact)))


def read_contact(value: Any, field: str = "contact") -> Contact | Problems:
    """Return a described contact: `id, email, walletAddress, externalId, attributes, tags, segments`, all optional.

    Values are taken as the service would store them: the wallet in lower case, the email in its normal form.
    """
    if value is None:
        return Contact(SIMULATED)
    if not isinstance(value, Mapping):
        return (Problem(field, "must be an object"),)
    problems: list[Problem] = []
    texts = {name: _text(value.get(name), f"{field}.{name}", problems) for name in _TEXTS}
    email = texts["email"] and normal_email(texts["email"])
    if texts["email"] and email is None:
        problems.append(Problem(f"{field}.email", "not a valid email address"))
    wallet = texts["walletAddress"]
    contact = Contact(
        texts["id"] or SIMULATED,
        Identifiers(wallet and wallet.lower(), email, texts["externalId"], wallet),
        _attributes(value.get("attributes"), f"{field}.attributes", problems),
        _words(value.get("tags"), f"{field}.tags", problems),
        _words(value.get("segments"), f"{field}.segments", problems),
    )
    return tuple(problems) if problems else contact


_TEXTS = ("id", "email", "walletAddress", "externalId")


def _text(value: Any, field: str, problems: list[Problem]) -> str | None:
    if value is not None and not isinstance(value, str):
        problems.append(Problem(field, "must be a string"))
        return None
    return value or None


def _attributes(value: Any, field: str, problems: list[Problem]) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(field, "must be an object"))
        return {}
    try:
        attributes: dict[str, Json] = normalise(value)
    except (TypeError, ValueError):
        problems.append(Problem(field, "must hold strings, numbers and booleans"))
        return {}
    return attributes


def _words(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return tuple(value)
    problems.append(Problem(field, "must be an array of strings"))
    return ()
