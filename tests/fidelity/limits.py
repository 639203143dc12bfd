"""What an interpreter cannot know, by its documentation. The comparison leaves out nothing else.

Each limit has its reason. To lift one, delete it here and where it is used. `worlds` draws around more:

- While engines run only at the end, caps, quiet hours and retries follow the real time, and decisions see the contact
  of then (docs/automation-language.md, Moments). Such worlds have one contact, which nothing changes but its entries.
- In a backtest of a draft, imported events start entries: no world has imports and a trigger for every event.
- A trial names the kind of a start only: one automation has a schedule, and one starts by a broadcast.
- A broadcast needs an automation that is live: no automation with starts is paused.
- No delivery is put off because the endpoint is busy, and no event is a log of a chain or a click.
"""

import re
from datetime import datetime
from typing import Any

from tests.engine.killing import Delay
from tests.fidelity.stage import PlayedEvent, PlayedWorld, StartedEntry
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.explain import was_active_at
from workbench.language.run import JOINED


def engine_was_behind(_: PlayedWorld, event: PlayedEvent) -> bool:
    """A trial and an explanation read what is stored, also if an engine that lags has yet to do what came before."""
    return event.contact_id in event.behind


def was_late(played: PlayedWorld, entry: StartedEntry) -> bool:
    """After an engine was killed, another one decides with the contact of then, and some things follow the real time.

    These are caps, quiet hours and retries (docs/automation-language.md, Moments). The entry is compared if it has no
    caps and quiet hours, and if nothing changed the contact or the automation in between.
    """
    changes = [
        *played.disturbed.get(entry.contact_id, ()),
        *played.changed.get(entry.contact_id, ()),
        *(change.at for change in played.activations[entry.automation_id]),
    ]
    follows_time = any(graph["settings"].keys() & {"frequencyCap", "quietHours"} for graph in _graphs(played, entry))
    return any(
        follows_time or (delay.until >= entry.created_at and any(delay.since < at <= delay.until for at in changes))
        for delay in _delays(played, entry)
    )


def failed_late(played: PlayedWorld, entry: StartedEntry) -> bool:
    """Retries follow the real time, too, so they are later after an engine was killed."""
    return any(step.outcome == "failed" for step in entry.steps) and any(
        delay.until >= entry.created_at for delay in _delays(played, entry)
    )


def _delays(played: PlayedWorld, entry: StartedEntry) -> list[Delay]:
    """Return the delays of the contact until the end of the entry."""
    contact_of = {other.id: other.contact_id for other in played.entries}
    return [
        delay
        for delay in played.delays
        if entry.contact_id in (delay.contact_id, contact_of.get(delay.entry_id)) and delay.since <= entry.last_at
    ]


def follows_changes(played: PlayedWorld, event: PlayedEvent) -> bool:
    """A trial does not know the events before its own in the same batch, which changed the contact."""
    return any(
        (other.contact_id, other.at) == (event.contact_id, event.at)
        and other.position < event.position
        and other.described.get("attributes")
        for other in played.events
    )


def others_come_first(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial and an explanation do not know what other entries of the contact do at the moment of the event, before.

    Those are the entries that it wakes, and those that it starts of older automations.
    """
    order = {automation_id: number for number, automation_id in enumerate(played.automation_ids)}
    has_admission_rule = not _words(played, entry).isdisjoint({"reentry", "send_webhook"})  # webhooks: the loop guard
    return any(
        (other.created_at, other.event_id, order[other.automation_id])
        < (entry.created_at, entry.event_id, order[entry.automation_id])
        and any(step.at == entry.created_at for step in other.steps)
        and (
            (other.automation_id == entry.automation_id and has_admission_rule)
            or _affects(played, other, entry, entry.created_at)
        )
        for other in played.entries
        if other.contact_id == entry.contact_id
    )


def others_interfere(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial follows one entry: it does not know what others of the contact do while the entry is open."""
    return any(
        other.id != entry.id
        and other.contact_id == entry.contact_id
        and other.created_at <= entry.last_at
        and other.last_at >= entry.created_at
        and _affects(played, other, entry, entry.last_at)
        for other in played.entries
    )


# What an automation has in its graph, or settings, if it depends on tags, attributes and the time zone of the contact
_READERS = {"contact", "add_tag", "remove_tag", "attribute", "timezoneAttribute", "localeAttribute", "locales"}
_READERS |= {"quietHours", "per", "time", "until"}
_CONTACT = re.compile(r"\bcontact\b")


def _affects(played: PlayedWorld, other: StartedEntry, entry: StartedEntry, until: datetime) -> bool:
    """Return whether another entry does something from the moment of an entry `until` another one that it depends on.

    That are changes of the contact, messages that count towards its cap, an address that a delivery closes, and events
    that it collects.
    """
    words = _words(played, entry)
    if other.automation_id == entry.automation_id and "collect" in words:
        return not (other.state == "cancelled" and len(other.steps) < 2)  # one that joins is an event of the trial
    for step in other.steps:
        if entry.created_at <= step.at <= until and (
            (step.kind in ("add_tag", "remove_tag", "update_contact") and not words.isdisjoint(_READERS))
            or (step.kind in ("send_inapp", "send_email", "send_via") and "frequencyCap" in words)
            or (step.kind == "send_email" and step.cause == "gone" and "send_email" in words)
        ):
            return True
    return False


def _graphs(played: PlayedWorld, entry: StartedEntry) -> list[dict[str, Any]]:
    """Return the graphs of all versions of the entry's automation."""
    number = played.automation_ids.index(entry.automation_id)
    later = [version.automation.graph for version in played.versions.get(number, ())]
    return [played.graphs[number], *later]


def _words(played: PlayedWorld, entry: StartedEntry) -> set[str]:
    """Return the types of nodes and the names of fields in all versions, and `contact` if a text reads the contact."""
    words = set[str]()

    def collect(value: Any) -> None:
        match value:
            case dict():
                for name, field in value.items():
                    words.add(name)
                    if name == "type":
                        words.add(field)
                    else:
                        collect(field)
            case list():
                for item in value:
                    collect(item)
            case str() if _CONTACT.search(value):
                words.add("contact")

    collect(_graphs(played, entry))
    return words


def delivery_failed(_: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial assumes that every delivery succeeds: it knows the steps before the first one that failed."""
    return steps_before_failure(entry) < len(entry.steps)


def steps_before_failure(entry: StartedEntry) -> int:
    """Return the number of steps before the first failed delivery."""
    causes = {*DELIVERY_ERRORS, None}  # the erasure of the contact deletes causes
    failed = (number for number, step in enumerate(entry.steps) if step.outcome == "failed" and step.cause in causes)
    return next(failed, len(entry.steps))


def is_disturbed(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial knows the later events of its contact, but no other changes: by persons, merges, and other contacts."""
    return any(entry.created_at < at <= entry.last_at for at in played.disturbed.get(entry.contact_id, ()))


def is_paused(played: PlayedWorld, automation_id: str, event: PlayedEvent) -> bool:
    """A trial takes its automation as live: it says what an event would do if the automation were not paused."""
    return not was_active_at(played.activations[automation_id], event.at, now=True)


def was_paused(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial does not know that its automation is paused later, while the entry is open."""
    return any(
        change.at > entry.created_at and (change.at <= entry.last_at or entry.outcome == "overdue")
        for change in played.activations[entry.automation_id]
    )


def is_erased(played: PlayedWorld, entry: StartedEntry) -> bool:
    """The erasure of a contact ends its entries and empties its messages; backtests leave it out."""
    return entry.contact_id in played.erased


def lost_values(played: PlayedWorld, entry: StartedEntry) -> bool:
    """An erasure deletes what other contacts had from the erased one while they were merged with it."""
    return entry.contact_id in played.merged_with_erased


def closing_is_unknown(played: PlayedWorld, entry: StartedEntry) -> bool:
    """The history has neither which addresses were opened again, nor whose one was that moved after it was closed.

    An event may also have the address of another contact, which is closed.
    """
    is_moved = (played.closed or played.reopened) and entry.contact_id in played.moved
    return entry.contact_id in played.reopened or is_moved or entry.event_id in played.conflicts


def counted_before(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A backtest knows the latest status of a message only: not how long it counted towards a cap."""
    return any("frequencyCap" in graph["settings"] for graph in _graphs(played, entry)) and any(
        message.contact_id == entry.contact_id and (message.bounced or message.automation_id != entry.automation_id)
        for message in played.uncounted
    )


def joins_later(_: PlayedWorld, entry: StartedEntry) -> bool:
    """An explanation of an event before it comes does not know that its entry will join another one after a wait."""
    return entry.outcome == JOINED and len(entry.steps) > 1
