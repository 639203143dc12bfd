"""Writes `docs/entry-states.md` from the table of states: `python docs/entry_states.py`."""

from pathlib import Path

from workbench.language.run import TERMINAL, TRANSITIONS, State


def entry_states_page() -> str:
    return f"""# States of an entry

Written by `python docs/entry_states.py` from `workbench/language/run.py`; the database has the same table as a CHECK.

```mermaid
{state_diagram()}
```
"""


def state_diagram() -> str:
    """Return the states and transitions as Mermaid text."""
    order = list(State)
    transitions = sorted(TRANSITIONS, key=lambda pair: (order.index(pair[0]), order.index(pair[1])))
    lines = ["stateDiagram-v2", f"    [*] --> {State.PENDING.value}"]
    lines += [f"    {old.value} --> {new.value}: {TRANSITIONS[old, new]}" for old, new in transitions]
    lines += [f"    {state.value} --> [*]" for state in order if state in TERMINAL]
    return "\n".join(lines)


if __name__ == "__main__":
    Path(__file__).with_name("entry-states.md").write_text(entry_states_page())
