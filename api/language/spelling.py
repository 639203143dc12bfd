"""Names that were meant by what was written."""

import difflib
from collections.abc import Iterable


def nearest(written: str, names: Iterable[str]) -> str | None:
    """Return the name that is most like what was written, whatever its letters' case; None when none is like it."""
    by_letters = {name.lower(): name for name in reversed(tuple(names))}
    near = difflib.get_close_matches(written.lower(), by_letters, 1)
    return by_letters[near[0]] if near else None


def meant(written: str, names: Iterable[str], otherwise: str = "") -> str:
    """Return `; did you mean …?`, to follow what is wrong with a name; what to say `otherwise` where no name is like it."""
    near = nearest(written, names)
    return otherwise if near is None else f"; did you mean {near!r}?"
