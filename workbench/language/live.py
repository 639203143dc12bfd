"""The history of an automation: its live version at each moment, and whether it started entries."""

from collections.abc import Sequence
from datetime import datetime
from operator import attrgetter
from typing import Literal, TypeAlias

import msgspec

from workbench.language.contact import ChangeOrder
from workbench.language.graph import Graph
from workbench.language.trigger import Trigger

ActivationState: TypeAlias = Literal["live", "paused", "off", "archived"]


class ActivationChange(msgspec.Struct, frozen=True, rename="camel"):
    """The time at which an automation was switched on or off, paused or resumed.

    `cancels_overdue`: the entries that came due during the pause that ends here are cancelled.
    """

    at: datetime
    state: ActivationState
    cancels_overdue: bool = False

    @property
    def active(self) -> bool:
        return self.state == "live"


class PublishedVersion(msgspec.Struct, frozen=True):
    at: datetime
    number: int
    trigger: Trigger
    graph: Graph


class LiveChange(msgspec.Struct, frozen=True):
    """From `at` on, events start entries of this version, if the automation is live. `version` None: none is published.

    `event_id`, `order`: as in `ValueChange`, with which it is ordered.
    """

    at: datetime
    version: PublishedVersion | None
    state: ActivationState
    cancels_overdue: bool = False
    event_id: str = ""
    order: ChangeOrder = ChangeOrder.BEFORE_WAKING


class PastMove(msgspec.Struct, frozen=True):
    """The entry of an event that waited at a node of a version continues at a node of another one.

    `event_id`, `order`: as in `ValueChange`, with which it is ordered.
    """

    at: datetime
    entry_event_id: str
    from_version: int
    from_node_id: str
    version: PublishedVersion
    node_id: str
    event_id: str = ""
    order: ChangeOrder = ChangeOrder.BEFORE_WAKING


def live_changes(
    versions: Sequence[PublishedVersion], activations: Sequence[ActivationChange], current: ActivationState
) -> tuple[LiveChange, ...]:
    """Return what was live, in order; both arguments are in order. `current`: what it is, if it never changed."""
    state: ActivationState = current
    if activations:  # before the first change it was the opposite
        state = "off" if activations[0].state == "live" else "live"
    version: PublishedVersion | None = None
    live: list[LiveChange] = []
    changes: list[PublishedVersion | ActivationChange] = [*versions, *activations]
    for change in sorted(changes, key=attrgetter("at")):
        if isinstance(change, PublishedVersion):
            version = change
            live.append(LiveChange(change.at, version, state))
        else:
            state = change.state
            live.append(LiveChange(change.at, version, state, change.cancels_overdue))
    return tuple(live)
