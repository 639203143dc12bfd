"""What the commands say about a folder: for people line by line, for programs as JSON."""

from collections.abc import Sequence
from typing import Any

from api.language.codec import encode
from workbench.display.words import counted
from workbench.folder.compare import Action, Comparison, Item
from workbench.folder.pull import Pulled

_SIGNS: dict[Action, str] = {"create": "+", "update": "~", "conflict": "!", "broken": "!", "missing": "-", "same": "="}
_DONE: dict[Action, str] = {
    "create": "created",
    "update": "updated",
    "conflict": "overwritten",
    "missing": "put away",
}


def planned(comparison: Comparison) -> list[str]:
    """Return what `plan` says."""
    lines = [line for item in comparison.items if item.action != "same" for line in _item(item)]
    same = len(comparison.of("same"))
    tail = [f"{counted(same, 'automation')} as on the server"] if same else []
    if comparison.others:
        tail.append(f"{counted(comparison.others, 'automation')} of the server not in this folder")
    return [*lines, f"{', '.join(tail)}." if tail else "No automations."]


def differs(comparison: Comparison) -> bool:
    """Return whether the folder and the server say different things."""
    return len(comparison.of("same")) < len(comparison.items)


def applied(items: Sequence[Item]) -> list[str]:
    """Return what `apply` says was done."""
    return [f"{_DONE[item.action]}: {item.file} ({item.name})" for item in items] or ["Nothing to do."]


def pulled(items: Sequence[Pulled]) -> list[str]:
    """Return what `pull` says was done."""
    told = [item for item in items if item.deed != "same" or item.notes]
    lines = [
        line
        for item in told
        for line in (f"{item.deed}: {item.file} ({item.name})", *(f"  {note}" for note in item.notes))
    ]
    same = sum(item.deed == "same" for item in items)
    return [*lines, *([f"{counted(same, 'automation')} unchanged."] if same or not lines else [])]


def as_json(items: Sequence[Item | Pulled], **more: Any) -> str:
    """Return the same for programs."""
    return encode({**more, "automations": [_plain(item) for item in items]}).decode()


def _plain(item: Item | Pulled) -> dict[str, Any]:
    if isinstance(item, Pulled):
        return {"file": item.file, "name": item.name, "action": item.deed, "notes": item.notes}
    changes = [{"kind": each.kind, "subject": each.subject, "text": each.text} for each in item.changes.items]
    return {"file": item.file, "name": item.name, "action": item.action, "changes": changes, "notes": item.notes}


def _item(item: Item) -> list[str]:
    words = {"create": ": new", "missing": ": missing", "conflict": ": conflict", "broken": ": cannot be applied"}
    called = f" ({item.name})" if item.name != item.file else ""
    head = f"{_SIGNS[item.action]} {item.file}{called}{words.get(item.action, '')}"
    return [head, *(f"  {line}" for line in item.changes.lines()), *(f"    {note}" for note in item.notes)]
