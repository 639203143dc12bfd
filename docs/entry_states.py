"""Writes `docs/entry-states.md` from the table of states: `python docs/entry_states.py`."""

from pathlib import Path

from api.language.diagram import page

if __name__ == "__main__":
    Path(__file__).with_name("entry-states.md").write_text(page())
