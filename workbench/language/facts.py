"""The facts that a decision depends on, in addition to graph, run and time: plain values.

The engine reads them from Postgres; a simulation gets them from its caller. `required_facts` (in `advance`) returns
which of them the next decisions on a run can read, so that the engine does not query the others.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from workbench.language.channel import DEFAULT_POLICY, RetryPolicy
from workbench.language.codec import Json, as_stored, utc_text
from workbench.language.contact import ContactState, contact_context, merge_identifiers
from workbench.language.event import Identifiers
from workbench.language.run import ContactUpdated, Effect, TagAdded, TagRemoved, counts_towards_cap
from workbench.language.trigger import flat_context

EVENTS: Final = "events"  # the name of the list of collected events in texts and conditions


class CollectingEntry(msgspec.Struct, frozen=True, gc=False):
    """An open entry of the contact that waits at `node_id` until a moment, and lets events join it.

    `event`, `payload`, `at`, `event_id`: the event that started it. `joined`: the number of events that joined it.
    """

    entry_id: str
    node_id: str
    event: str
    payload: dict[str, Json]
    at: datetime
    event_id: str
    until: datetime
    joined: int


class ContactHistory(msgspec.Struct, frozen=True, gc=False):
    """Earlier entries of the contact, and messages to it.

    `entered_at`: when its latest earlier entry of this automation was created. An entry counts once it has taken a
    step, and while it is undecided; an entry that was refused, or had no published version to run, does not count.
    `running`: whether one of those entries is still open.
    `recent`: the number of its entries of this automation in the minute (`LOOP_WINDOW`) before this one.
    `messages_at`: the times, in order, of messages to it (`Channel.to_contact`) from any automation, at least those
    within the period of the frequency cap; failed and skipped messages are not included.
    `collecting`: its other entries of this automation that collect events, the oldest first.
    """

    entered_at: datetime | None = None
    running: bool = False
    recent: int = 0
    messages_at: tuple[datetime, ...] = ()
    collecting: tuple[CollectingEntry, ...] = ()


class LaterEvent(msgspec.Struct, frozen=True, gc=False):
    """An event of the same contact after the one that started the entry. `at`: when the service received it.

    `is_stored`: False for an event of a simulation; its id is only its place among those of its moment.
    """

    at: datetime
    event: str
    sent: Identifiers
    payload: dict[str, Json]
    id: str | None = None
    is_stored: bool = True

    def follows(self, at: datetime, id_: str | None) -> bool:
        """Return whether this event came after a moment, or at that moment after the event `id_`."""
        return self.at > at or (self.at == at and id_ is not None and (self.id or "") > id_)


class Facts(msgspec.Struct, frozen=True, dict=True):
    """The facts for the decisions on one run.

    `event`, `sent` (its identifiers), `payload`: the event that started the entry; `at`: when the service received it.
    `contact`: its current state. `cancelled`: the reason why the automation no longer runs, or None. `paused`: the
    automation is paused. `later_events`: the contact's events since then that the run waits for or that are its goal,
    ordered by `at`, up to the time of the decision. `joined`: the events that joined the entry, in order; None if its
    graph collects none. `real_now`: the real time, at which messages leave and from which retries are counted; None if
    it is the time of the decision. `stored_at`: the times of the first attempts of messages that are tried again, by
    id: these messages count towards a frequency cap from then on.
    """

    event: str
    sent: Identifiers
    payload: dict[str, Json]
    contact: ContactState
    cancelled: str | None = None
    paused: bool = False
    retries: RetryPolicy = DEFAULT_POLICY
    history: ContactHistory = ContactHistory()
    later_events: tuple[LaterEvent, ...] = ()
    joined: tuple[LaterEvent, ...] | None = None
    at: datetime | None = None
    real_now: datetime | None = None
    stored_at: Mapping[str, datetime] = {}

    def real_time(self, now: datetime) -> datetime:
        """Return the real time of a decision that is made at `now` on the timeline."""
        return now if self.real_now is None else max(now, self.real_now)

    @property
    def context(self) -> dict[str, Any]:
        """The context of conditions and texts, computed once."""
        # functools.cached_property takes a lock before Python 3.12, which costs 1 µs of the 40 µs of a simulation.
        context: dict[str, Any] | None = self.__dict__.get("_context")
        if context is None:
            context = self.__dict__["_context"] = full_context(self)
        return context

    def context_of(self, event: LaterEvent) -> dict[str, Any]:
        """Return the context for the filters of a wait or a goal: that of the later event, with the collected ones."""
        later = msgspec.structs.replace(self, event=event.event, sent=event.sent, payload=event.payload, joined=None)
        return full_context(later) if self.joined is None else full_context(later) | {EVENTS: self.context[EVENTS]}


def full_context(facts: Facts) -> dict[str, Any]:
    """Return the context of conditions and texts: the flat context, plus `payload` and `contact`."""
    contact = facts.contact
    identifiers = merge_identifiers(facts.sent, contact.identifiers)
    context = flat_context(facts.event, contact.id, identifiers, facts.payload)
    # Set last, so that no key of the payload can replace them (docs/contract.md 4.7).
    context["payload"] = facts.payload
    context["contact"] = contact_context(contact)
    if facts.joined is not None:
        started = _list_item(facts.event, facts.at, facts.payload)
        context[EVENTS] = [started, *(_list_item(event.event, event.at, event.payload) for event in facts.joined)]
    return context


def _list_item(name: str, at: datetime | None, payload: dict[str, Json]) -> dict[str, Json]:
    """Return an event of the list `events`: the keys of its payload, plus `event`, `receivedAt` and `payload`."""
    received = None if at is None else utc_text(at)
    return {"event": name, "receivedAt": received, **payload, "payload": payload}


def event_reference(event: LaterEvent) -> dict[str, str]:
    """Return the detail of a step that matched an event; a simulated event has no id."""
    return {"event": event.event} | ({"eventId": event.id} if event.id is not None and event.is_stored else {})


def apply_effects(facts: Facts, effects: tuple[Effect, ...], now: datetime) -> Facts:
    """Return the facts after the effects: the same object if nothing that a decision can read has changed."""
    for effect in effects:
        match effect:
            case TagAdded(tag=tag) if tag not in facts.contact.tags:
                facts = _replace_contact(facts, tags=(*facts.contact.tags, tag))
            case TagRemoved(tag=removed) if removed in facts.contact.tags:
                facts = _replace_contact(facts, tags=tuple(tag for tag in facts.contact.tags if tag != removed))
            case ContactUpdated(attributes=attributes):
                # As stored, so that a text prints the same before and after a wait.
                merged = as_stored({**facts.contact.attributes, **attributes})
                facts = _replace_contact(facts, attributes=merged)
            case _ if counts_towards_cap(effect):
                sent_at = facts.stored_at.get(effect.id) or facts.real_time(now)
                messages_at = (*facts.history.messages_at, sent_at)
                history = msgspec.structs.replace(facts.history, messages_at=messages_at)
                facts = msgspec.structs.replace(facts, history=history)
            case _:
                continue
    return facts


def _replace_contact(facts: Facts, **changes: Any) -> Facts:
    return msgspec.structs.replace(facts, contact=msgspec.structs.replace(facts.contact, **changes))
