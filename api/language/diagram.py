"""The table of moves between states as a page with a picture, so that what is drawn is what holds."""

from api.language.run import MOVES, TERMINAL, State

_WHY = {
    (State.PENDING, State.RUNNING): "claimed",
    (State.WAITING, State.RUNNING): "due, or woken by an event",
    (State.RETRYING, State.RUNNING): "tried again",
    (State.RUNNING, State.WAITING): "a delay, an event to wait for, quiet hours",
    (State.RUNNING, State.RETRYING): "a step failed, or its worker stopped",
    (State.RUNNING, State.COMPLETED): "the end of the graph, or held out",
    (State.RUNNING, State.EXITED): "an exit, or the goal",
    (State.RUNNING, State.CANCELLED): "switched off, dropped, or not let in",
    (State.RUNNING, State.DEAD): "no try left, or none can help",
    (State.CANCELLED, State.PENDING): "its log is on the chain again",
    (State.RUNNING, State.PAUSED): "its automation is paused",
    (State.PAUSED, State.PENDING): "its automation is resumed",
    (State.DEAD, State.PENDING): "replayed",
}
_SWITCHED_OFF = "switched off, or its log was dropped"


def page() -> str:
    """Return `docs/entry-states.md`."""
    return f"""# States of an entry

Written by `python docs/entry_states.py` from the table in `api/language/run.py`; the database has the same table as a CHECK.

```mermaid
{state_diagram()}
```
"""


def state_diagram() -> str:
    """Return the states and the moves between them as mermaid text."""
    order = list(State)
    moves = sorted(MOVES, key=lambda move: (order.index(move[0]), order.index(move[1])))
    lines = ["stateDiagram-v2", f"    [*] --> {State.PENDING.value}"]
    lines += [f"    {old.value} --> {new.value}: {_WHY.get((old, new), _SWITCHED_OFF)}" for old, new in moves]
    lines += [f"    {state.value} --> [*]" for state in order if state in TERMINAL]
    return "\n".join(lines)
