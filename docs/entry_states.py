"""Writes `docs/entry-states.md` from the table of states: `python docs/entry_states.py`."""

from pathlib import Path

from workbench.language.run import entry_states_page

if __name__ == "__main__":
    Path(__file__).with_name("entry-states.md").write_text(entry_states_page())
