"""Why something was not done: a closed set of reasons, with the problems a caller is told."""

from typing import Literal

import msgspec

from api.language.problem import Problem, Problems

Reason = Literal["unknown", "conflict", "invalid", "limited"]


class Refusal(msgspec.Struct, frozen=True):
    """`unknown`: there is no such thing for this organization; `conflict`: not in its present state; `invalid`: bad input.

    `limited`: too often in a short time.
    """

    reason: Reason
    problems: Problems


def unknown(what: str) -> Refusal:
    """Return the refusal of an id nobody of this organization knows."""
    return Refusal("unknown", (Problem("", f"there is no such {what}"),))


def conflict(sentence: str, field: str = "") -> Refusal:
    """Return the refusal of what the present state does not allow."""
    return Refusal("conflict", (Problem(field, sentence),))


def limited(sentence: str) -> Refusal:
    """Return the refusal of what was asked too often."""
    return Refusal("limited", (Problem("", sentence),))


def invalid(problems: Problems) -> Refusal:
    """Return the refusal of bad input."""
    return Refusal("invalid", problems)
