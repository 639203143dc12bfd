"""Problems of input as values, so that a reader reports all of them at once; and suggestions for misspelt names."""

import difflib
from collections.abc import Iterable

import msgspec


class Problem(msgspec.Struct, frozen=True):
    """One reason why input was refused. `field` is a path such as `contact.email`; empty for the body itself."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}" if self.field else self.reason


Problems = tuple[Problem, ...]


def problems_in(field: str, problems: Iterable[Problem]) -> Problems:
    """Return the problems of a nested value, with the name of its field in front of their paths."""
    return tuple(Problem(f"{field}.{problem.field}".removesuffix("."), problem.reason) for problem in problems)


class DeclarationError(Exception):
    """A kind of node or an operator lacks one of its parts. Raised at import, so that it cannot fail in a run."""


def nearest_name(written: str, names: Iterable[str], similarity: float = 0.6) -> str | None:
    """Return the name most similar to `written`, ignoring case, or None if none has this similarity (0 to 1)."""
    by_lower_case = {name.lower(): name for name in reversed(tuple(names))}
    matches = difflib.get_close_matches(written.lower(), by_lower_case, 1, similarity)
    return by_lower_case[matches[0]] if matches else None


def suggestion(written: str, names: Iterable[str], default: str = "") -> str:
    """Return `; did you mean …?`, to append to an error about a name, or `default` if no name is similar."""
    nearest = nearest_name(written, names)
    return default if nearest is None else f"; did you mean {nearest!r}?"
