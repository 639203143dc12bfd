"""What Postgres can ask of a payload on behalf of a filter, so that fewer rows are read: it lets too many through, never too few.

Only of filters that ask for one value, or one of some, of the payload alone (`payload @> {"asset": "USDC"}`). A path finds a literal key
first and descends into objects otherwise, so each is asked both ways.
"""

from collections.abc import Collection, Iterator
from typing import Any

from api.language.filter import Filter
from api.language.trigger import BUILT_INS

MOST_OPTIONS = 20  # of one filter; longer lists are left to the interpreter


def forms(each: Filter, roots: Collection[str] = BUILT_INS) -> tuple[dict[str, Any], ...]:
    """Return objects of which a payload that passes contains one; none: nothing can be asked of payloads.

    `roots`: the first words of paths that may find something else than the payload's own.
    """
    return tuple(_forms(each)) if _is_plain(each, roots) else ()


def _is_plain(each: Filter, roots: Collection[str]) -> bool:
    """Return whether a filter asks for values of the payload alone, few enough to send along."""
    if each.path.partition(".")[0] in roots:
        return False
    return each.operator == "eq" or (
        each.operator == "in" and isinstance(each.value, list) and 0 < len(each.value) <= MOST_OPTIONS
    )


def _forms(each: Filter) -> Iterator[dict[str, Any]]:
    first, *rest = each.path.split(".")
    for value in each.value if each.operator == "in" else [each.value]:
        yield {each.path: value}
        if rest:
            yield {first: _nested(rest, value)}


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    assert isinstance(value, dict)
    return value
