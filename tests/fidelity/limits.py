"""What an interpreter cannot know, by its documentation. The comparison leaves out nothing else.

Each limit has its reason. To lift one, delete it here and where it is used. `worlds` draws around more:

- While engines are late or killed, caps, quiet hours and retries follow the real time, and decisions see the contact of
  then (docs/automation-language.md, Moments). Such worlds have one contact, which nothing changes but its entries.
- In a backtest of a draft, imported events start entries: no world has imports and a trigger for every event.
- A trial names the kind of a start only: one automation has a schedule, and one starts by a broadcast.
- A broadcast needs an automation that is live: no automation with starts is paused.
- Every delivery is accepted, and no event is a log of a chain or a click.
"""

from tests.fidelity.stage import PlayedEvent, PlayedWorld, StartedEntry
from workbench.language.explain import was_active_at
from workbench.language.run import JOINED


def engine_was_behind(played: PlayedWorld, event: PlayedEvent) -> bool:
    """A trial and an explanation read what is stored, also if an engine that lags has yet to do what came before."""
    return played.world.lags and any(
        other.contact_id == event.contact_id and other.position < event.position for other in played.events
    )


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
    return any(
        other.contact_id == entry.contact_id
        and any(step[4] == entry.created_at for step in other.steps)
        and (other.created_at, other.event_id, order[other.automation_id])
        < (entry.created_at, entry.event_id, order[entry.automation_id])
        for other in played.entries
    )


def others_interfere(played: PlayedWorld, entry: StartedEntry) -> bool:
    """A trial follows one entry: it does not know what others of the contact do while the entry is open."""
    return any(
        other.id != entry.id
        and other.contact_id == entry.contact_id
        and not (other.state == "cancelled" and len(other.steps) < 2)
        and other.created_at <= entry.last_at
        and other.last_at >= entry.created_at
        for other in played.entries
    )


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


def joins_later(_: PlayedWorld, entry: StartedEntry) -> bool:
    """An explanation of an event before it comes does not know that its entry will join another one after a wait."""
    return entry.outcome == JOINED and len(entry.steps) > 1
