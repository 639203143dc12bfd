"""Ids of nodes that nobody named: readable, and following from what the node does."""

import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from workbench.display.words import duration

_LONGEST = 40


def free_id(kind: str, data: Mapping[str, Any], taken: Collection[str]) -> str:
    """Return the id of a new node: `add_tag_vip`, or with a number after it when that is taken."""
    stem = re.sub(r"[^a-z0-9]+", "_", _stem(kind, data).lower()).strip("_")[:_LONGEST] or "step"
    number = next(number for number in range(1, len(taken) + 2) if _numbered(stem, number) not in taken)
    return _numbered(stem, number)


def _stem(kind: str, data: Mapping[str, Any]) -> str:
    match kind, data:
        case ("add_tag" | "remove_tag", {"tag": str(tag)}):
            return f"{kind}_{tag}"
        case "delay", {"seconds": int(seconds)} if 0 < seconds < _MOST_SECONDS:
            return f"delay_{duration(timedelta(seconds=seconds))}"
        case "wait_for_event", {"event": str(event)}:
            return f"wait_for_{event}"
        case "condition", {"filters": [{"path": str(path)}, *_]}:
            return f"if_{path.removeprefix('contact.')}"
        case _:
            return kind


def _numbered(stem: str, number: int) -> str:
    return stem if number == 1 else f"{stem}_{number}"


_MOST_SECONDS = 10**9
