"""docs/entry-states.md is generated from the table of transitions."""

from pathlib import Path

from docs.entry_states import entry_states_page, state_diagram
from workbench.language.run import TRANSITIONS, State

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_current() -> None:
    assert (DOCS / "entry-states.md").read_text() == entry_states_page(), "run: python docs/entry_states.py"


def test_every_state_and_every_transition_is_drawn_once() -> None:
    drawn = [line.split(":")[0].split() for line in state_diagram().splitlines()[1:]]
    moves = [(old, new) for old, arrow, new in drawn if arrow == "-->" and "[*]" not in (old, new)]
    assert sorted(moves) == sorted((old.value, new.value) for old, new in TRANSITIONS)
    assert {state for line in drawn for state in (line[0], line[2])} - {"[*]"} == {state.value for state in State}
