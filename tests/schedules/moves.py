"""A model of one entry: its row, its automation, two engines that may work on it, operators, and the clock.

`moved` says what one statement of the service does to the row; `successors` lets engines, operators and the clock act
in any order. `tests/schedules/test_moves.py` explores all states that they reach, and compares `moved` with Postgres.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from workbench.language.run import TERMINAL, TRANSITIONS, State

CLAIMABLE = frozenset({State.PENDING, State.WAITING, State.RETRYING})
PARKED = CLAIMABLE | {State.PAUSED}  # unfinished, and no engine works on them
RECORDED = tuple(new for old, new in TRANSITIONS if old is State.RUNNING)


class Automation(StrEnum):
    ACTIVE = "active"
    PAUSED = "paused"
    INACTIVE = "inactive"


class Hold(StrEnum):
    """What an engine has: no claim, the claim that holds the entry, or one that is not valid any more."""

    NONE = "none"
    CURRENT = "current"
    LOST = "lost"


class Row(NamedTuple):
    """The row of an entry. `ended_with`: while it is not finished, the outcome with which it is to end."""

    state: State
    is_due: bool = True  # also of a row that no engine may claim
    is_leased: bool = False
    is_marked: bool = False  # it is to end before its next step
    is_dropped: bool = False  # cancelled because its log left the chain


class World(NamedTuple):
    row: Row
    automation: Automation
    engines: tuple[Hold, Hold]


START = World(Row(State.PENDING), Automation.ACTIVE, (Hold.NONE, Hold.NONE))

OPERATORS = ("pause", "resume", "resume_without_overdue", "deactivate", "activate", "publish", "move", "replay")
OTHERS = ("erase", "drop", "restore", "wake", "becomes_due", "lease_expires")
ENGINE = ("claim", "rescue", "renew", *(f"record_{state}" for state in RECORDED))
RAISES_TOKEN = frozenset({"claim", "rescue", "erase", "drop"})


def moved(row: Row, automation: Automation, action: str, hold: Hold = Hold.NONE) -> Row:
    """Return the row after an action; the same row if the action does nothing. `hold`: the claim of the engine."""
    state = row.state
    match action:
        case "claim" if state in CLAIMABLE and row.is_due:
            return row._replace(state=State.RUNNING, is_leased=True)
        case "rescue" if state is State.RUNNING and not row.is_leased:
            return row._replace(state=State.RETRYING)
        case "renew" if hold is Hold.CURRENT:
            return row._replace(is_leased=True)
        case "pause" | "publish":
            return row
        case "move" if state is State.WAITING and automation is not Automation.INACTIVE:
            return row._replace(is_due=False)  # the new version waits longer
        case "resume" if automation is Automation.PAUSED and state is State.PAUSED:
            return Row(State.PENDING)
        case "resume_without_overdue" if automation is Automation.PAUSED:
            if state is State.RUNNING:
                return row._replace(is_marked=True)
            return Row(State.CANCELLED) if state in PARKED and (row.is_due or state is State.PAUSED) else row
        case "deactivate" if state in PARKED:
            return Row(State.CANCELLED)
        case "activate" if automation is Automation.INACTIVE and state in PARKED:
            return Row(State.CANCELLED)
        case "replay" if state is State.DEAD and automation is not Automation.INACTIVE:
            return Row(State.PENDING)
        case "erase" | "drop" if state not in TERMINAL:
            return Row(State.CANCELLED, is_dropped=action == "drop")
        case "restore" if row.is_dropped:
            return Row(State.PENDING)
        case "wake" if state is State.WAITING:
            return row._replace(is_due=True)
        case "becomes_due" if state in (State.WAITING, State.RETRYING):
            return row._replace(is_due=True)
        case "lease_expires":
            return row._replace(is_leased=False)
    if action.startswith("record_") and hold is Hold.CURRENT:
        return _recorded(row, automation, State(action.removeprefix("record_")))
    return row


def _recorded(row: Row, automation: Automation, to: State) -> Row:
    """Return the row after an engine that holds it records a decision."""
    if to is not State.CANCELLED:  # a decision to cancel comes before all others
        if (to is State.PAUSED) != (automation is Automation.PAUSED):
            return row  # decided on stale facts: it decides again
        if row.is_marked:
            return row  # it decides again, to cancel
    return Row(to, is_due=to not in (State.WAITING, State.RETRYING))


def successors(world: World) -> Iterator[tuple[str, World]]:
    """Yield what may happen next, and the world after it."""
    row, automation, engines = world
    for action in OPERATORS + OTHERS:
        after = World(moved(row, automation, action), _switched(automation, action), engines)
        if action in RAISES_TOKEN and after.row != row:
            after = after._replace(engines=_lost(engines))
        yield action, after
    for number, hold in enumerate(engines):
        for action in ENGINE:
            new = moved(row, automation, action, hold)
            if action.startswith("record_"):
                if hold is Hold.NONE:
                    continue
                # An engine that has lost its claim learns it now. One that has to decide again keeps it.
                now = hold if hold is Hold.CURRENT and new == row else Hold.NONE
                after = world._replace(row=new, engines=_with(engines, number, now))
            elif new == row:
                continue
            elif action == "claim":
                after = world._replace(row=new, engines=_with(_lost(engines), number, Hold.CURRENT))
            elif action == "rescue":
                after = world._replace(row=new, engines=_lost(engines))
            else:
                after = world._replace(row=new)
            yield f"engine {number + 1}: {action}", after
        yield f"engine {number + 1}: crash", world._replace(engines=_with(engines, number, Hold.NONE))


def _switched(automation: Automation, action: str) -> Automation:
    match action:
        case "pause" if automation is Automation.ACTIVE:
            return Automation.PAUSED
        case "resume" | "resume_without_overdue" if automation is Automation.PAUSED:
            return Automation.ACTIVE
        case "deactivate":
            return Automation.INACTIVE
        case "activate" if automation is Automation.INACTIVE:
            return Automation.ACTIVE
    return automation


def _lost(engines: tuple[Hold, Hold]) -> tuple[Hold, Hold]:
    first, second = (Hold.LOST if hold is Hold.CURRENT else hold for hold in engines)
    return first, second


def _with(engines: tuple[Hold, Hold], number: int, hold: Hold) -> tuple[Hold, Hold]:
    return (hold, engines[1]) if number == 0 else (engines[0], hold)


def explore(start: World = START) -> dict[World, list[tuple[str, World]]]:
    """Return all reachable worlds, each with what may happen next."""
    reached: dict[World, list[tuple[str, World]]] = {}
    new = [start]
    while new:
        world = new.pop()
        if world not in reached:
            reached[world] = list(successors(world))
            new += [after for _, after in reached[world]]
    return reached
