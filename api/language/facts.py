"""What a decision may depend on besides graph, run and time: plain values.

The engine reads them from Postgres, a simulation is given them. `needs` (in `advance`) says which of them a run can look at,
so that nobody reads the others.
"""

from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from api.language.codec import Json
from api.language.contact import Contact, contact_context, identifiers_of
from api.language.effect import (
    ContactUpdated,
    Effect,
    EmailMessage,
    InappMessage,
    TagAdded,
    TagRemoved,
    WebhookMessage,
)
from api.language.event import Identifiers
from api.language.retry import DEFAULT_POLICY, RetryPolicy
from api.language.trigger import flat_context


class Past(msgspec.Struct, frozen=True):
    """What happened to the contact before.

    `entered_at`: when its latest earlier entry of this automation was created. An entry counts once it has taken a step, and while
    it has not been decided yet; one that was refused, or met no published version, never took one.
    `running`: whether one of those entries has not ended.
    `recent`: how many entries of this automation it had in the minute (`LOOP_WINDOW`) before this one, whatever became of them.
    `messages_at`: when in-app messages and emails went to it from any automation, at least those within the period of the
    frequency cap. Messages that failed or were skipped are not among them.
    """

    entered_at: datetime | None = None
    running: bool = False
    recent: int = 0
    messages_at: tuple[datetime, ...] = ()


class Arrival(msgspec.Struct, frozen=True):
    """An event of the same contact that came after the one that started the entry. `at`: when the service received it."""

    at: datetime
    event: str
    sent: Identifiers
    payload: dict[str, Json]
    id: str | None = None


class Facts(msgspec.Struct, frozen=True, dict=True):
    """Everything a decision may depend on, besides graph, run and time.

    `event`, `sent`, `payload`: the event that started the entry. `contact`: as it is now, with what later events left on it.
    `cancelled`: the reason why the automation no longer runs, if it does not. `paused`: it stands still for the time being.
    `arrivals`: the events that came for the contact since, those that the run waits for or that are its goal, in the order of `at`,
    none after `now`.
    """

    event: str
    sent: Identifiers
    payload: dict[str, Json]
    contact: Contact
    cancelled: str | None = None
    paused: bool = False
    retries: RetryPolicy = DEFAULT_POLICY
    past: Past = Past()
    arrivals: tuple[Arrival, ...] = ()

    @cached_property
    def context(self) -> dict[str, Any]:
        """What conditions and texts see."""
        return full_context(self)

    def context_of(self, arrival: Arrival) -> dict[str, Any]:
        """Return what the filters of a wait or a goal see: the same, of the event that came."""
        return full_context(
            msgspec.structs.replace(self, event=arrival.event, sent=arrival.sent, payload=arrival.payload)
        )


def full_context(facts: Facts) -> dict[str, Any]:
    """Return what conditions and texts see: the flat context, plus `payload` and `contact` (always the real ones)."""
    contact = facts.contact
    who = identifiers_of(facts.sent, contact.identifiers)
    context = flat_context(facts.event, contact.id, who, facts.payload)
    context["payload"] = facts.payload
    context["contact"] = contact_context(contact)
    return context


def wallet_of(facts: Facts) -> str | None:
    """Return the wallet a message goes to: the event's own, otherwise the contact's (contract §4.7.5)."""
    return facts.sent.wallet or facts.contact.identifiers.wallet


def email_of(facts: Facts) -> str | None:
    """Return the address an email goes to, by the same rule."""
    return facts.sent.email or facts.contact.identifiers.email


def named(arrival: Arrival) -> dict[str, str]:
    """Return how a step names the event that it met; a simulated one has no id."""
    return {"event": arrival.event} if arrival.id is None else {"event": arrival.event, "eventId": arrival.id}


def after(facts: Facts, effects: tuple[Effect, ...], now: datetime) -> Facts:
    """Return the facts as the effects leave them: the same object when nothing that is seen has changed."""
    for effect in effects:
        match effect:
            case TagAdded(tag=tag) if tag not in facts.contact.tags:
                facts = _with_contact(facts, tags=(*facts.contact.tags, tag))
            case TagRemoved(tag=tag) if tag in facts.contact.tags:
                facts = _with_contact(facts, tags=tuple(each for each in facts.contact.tags if each != tag))
            case ContactUpdated(attributes=attributes):
                facts = _with_contact(facts, attributes={**facts.contact.attributes, **attributes})
            case InappMessage() | EmailMessage():
                past = msgspec.structs.replace(facts.past, messages_at=(*facts.past.messages_at, now))
                facts = msgspec.structs.replace(facts, past=past)
            case TagAdded() | TagRemoved() | WebhookMessage():
                continue
    return facts


def _with_contact(facts: Facts, **changes: Any) -> Facts:
    contact = msgspec.structs.replace(facts.contact, **changes)
    return msgspec.structs.replace(facts, contact=contact)
