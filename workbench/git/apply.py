"""A folder beside a server: what each file would change, and what stands in the way.

A folder brought to the server: all of it or, where anything stands in the way, nothing.

What the commands say about a folder: for people line by line, for programs as JSON.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from workbench import publish
from workbench.changes import Changes, changes
from workbench.connection import Connection
from workbench.display.words import quantity as report_counted
from workbench.errors import InvalidAutomationError, WorkbenchError
from workbench.git.files import (
    AutomationFile,
    Lock,
    Pulled,
    PulledAutomation,
    There,
    bring,
    everything,
    files_of,
    read_file,
)
from workbench.language.check import errors
from workbench.language.codec import encode

Action: TypeAlias = Literal["same", "create", "update", "conflict", "broken", "missing"]
"""`conflict`: the server's is not what the file was made from. `missing`: a file is gone whose automation is still there."""

_STATES = {"live": "published and switched on", "off": "published and switched off", "draft": "saved, not published"}


class Item(msgspec.Struct, frozen=True):
    """One file or one automation: what `apply` would do about it, and why."""

    file: str
    name: str
    action: Action
    kept: AutomationFile | None = None
    there: There | None = None
    changes: Changes = Changes()
    notes: tuple[str, ...] = ()


class Comparison(msgspec.Struct, frozen=True):
    """All of a folder. `others`: how many automations of the server the folder knows nothing of."""

    items: tuple[Item, ...]
    lock: Lock
    others: int = 0

    def of(self, *actions: Action) -> list[Item]:
        """Return the items for which one of these is to be done."""
        return [item for item in self.items if item.action in actions]


def compare(folder: Path, connection: Connection) -> Comparison:
    """Return what the files of a folder would change on the server. Nothing is written, here or there."""
    if not folder.is_dir():
        raise InvalidAutomationError(f"there is no folder {folder}; workbench automations pull {folder} makes one")
    lock = Lock(folder, connection.url)
    held = {each.record.id: each for each in everything(connection)}
    files = _read(folder)
    names = Counter(each.name for each in files.values() if isinstance(each, AutomationFile))
    items = [_compared_item(name, kept, _Beside(lock, held, names, connection)) for name, kept in files.items()]
    used = {item.there.record.id for item in items if item.there is not None}
    for name, known in lock.files.items():
        if name not in files and known.id in held and known.id not in used:
            there = held[known.id]
            note = "its file is gone; --archive-missing puts the automation away"
            items.append(Item(name, there.kept.name, "missing", there=there, notes=(note,)))
            used.add(known.id)
    return Comparison(tuple(items), lock, len(held.keys() - used))


class _Beside(msgspec.Struct, frozen=True):
    lock: Lock
    held: Mapping[str, There]
    names: Mapping[str, int]
    connection: Connection


def _read(folder: Path) -> dict[str, AutomationFile | str]:
    """Return what each file says, or what is wrong with it."""
    found: dict[str, AutomationFile | str] = {}
    for path in files_of(folder):
        try:
            found[path.name] = read_file(path)
        except InvalidAutomationError as error:
            found[path.name] = str(error)
    return found


def _compared_item(file: str, kept: AutomationFile | str, beside: _Beside) -> Item:
    if isinstance(kept, str):
        return Item(file, file, "broken", notes=(kept,))
    there = _match(file, kept, beside)
    if isinstance(there, str):
        return Item(file, kept.name, "broken", kept, notes=(there,))
    if there is not None and there.kept.digest() == kept.digest():
        return Item(file, kept.name, "same", kept, there)
    found = changes(None if there is None else there.kept.payload, kept.payload)
    objections = _objections(kept, there)
    if objections:
        return Item(file, kept.name, "broken", kept, there, found, objections)
    conflicts = _conflicts(file, kept, there, beside)
    if conflicts:
        return Item(file, kept.name, "conflict", kept, there, found, conflicts)
    state = () if there is not None and there.kept.state == kept.state else (f"will be {_STATES[kept.state]}",)
    return Item(file, kept.name, "create" if there is None else "update", kept, there, found, state)


def _match(file: str, kept: AutomationFile, beside: _Beside) -> There | str | None:
    """Return the automation that a file is, or why nobody can tell."""
    known = beside.lock.files.get(file)
    if known is not None:
        return beside.held.get(known.id)
    if beside.names[kept.name] > 1:
        return f"another file says it is {kept.name!r}, too: give one of them another name"
    gone = {each.id for name, each in beside.lock.files.items() if name != file}
    named = [each for each in beside.held.values() if each.kept.name == kept.name and each.record.id not in gone]
    moved = [each for each in beside.held.values() if each.kept.name == kept.name and each.record.id in gone]
    if len(named) > 1:
        return (
            f"the server has {len(named)} automations {kept.name!r}: pull first, so that it is known which one this is"
        )
    return next(iter([*named, *moved]), None)


def _objections(kept: AutomationFile, there: There | None) -> tuple[str, ...]:
    """Return what the server would refuse."""
    if kept.state == "draft":
        published = there is not None and there.kept.state != "draft"
        return ("it is published on the server, which cannot be undone: its state is live or off",) if published else ()
    return tuple(f"cannot be published: {each}" for each in errors(kept.draft().remarks()))


def _conflicts(file: str, kept: AutomationFile, there: There | None, beside: _Beside) -> tuple[str, ...]:
    known = beside.lock.files.get(file)
    if there is None:
        return (
            () if known is None else ("it was archived on the server since you pulled: --overwrite creates it again",)
        )
    base = known.digest if known is not None else _digest_of(there, beside.lock)
    deed = publish.last_change(beside.connection, there.record)
    if base is None:
        return (
            f"the server has one of this name that was not pulled into this folder ({deed}): pull it, or --overwrite",
        )
    if base != there.kept.digest():
        mine = "and here: move your file away and pull" if kept.digest() != base else "and not here: pull takes it over"
        return (f"it was changed on the server since you pulled ({deed}), {mine}, or --overwrite",)
    if there.unpublished:
        return (f"it has changes on the server that are not published ({deed}): publish them and pull, or --overwrite",)
    return ()


def _digest_of(there: There, lock: Lock) -> str | None:
    """Return what an automation said when its file, which has another name now, was last the same."""
    return next((known.digest for known in lock.files.values() if known.id == there.record.id), None)


def counted(items: Sequence[Item]) -> dict[Action, int]:
    """Return how many items there are of each action."""
    return dict(Counter(item.action for item in items))


def apply(
    comparison: Comparison, connection: Connection, *, overwrite: bool = False, archive_missing: bool = False
) -> list[Item]:
    """Create, update, publish and switch what differs; return what was done.

    Raises InvalidAutomationError when something stands in the way, before anything is changed; the error of the first automation that the server
    refuses, after those before it.
    """
    _refuse([*comparison.of("broken"), *([] if overwrite else comparison.of("conflict"))])
    for item in comparison.of("same"):
        _note(comparison, item)
    done = comparison.of("create", "update", *(("conflict",) if overwrite else ()))
    for item in done:
        assert item.kept is not None
        try:
            held = bring(connection, item.kept, item.there)
        except WorkbenchError as error:
            raise type(error)(f"{item.file}: {error}") from error
        comparison.lock.note(item.file, PulledAutomation(held.record.id, held.kept.digest()))
    missing = comparison.of("missing") if archive_missing else []
    for item in missing:
        assert item.there is not None
        publish.switch(connection, item.there.record, "archive")
        comparison.lock.forget(item.file)
    return [*done, *missing]


def _refuse(items: list[Item]) -> None:
    if items:
        lines = [f"  {item.file}: {note}" for item in items for note in item.notes]
        raise InvalidAutomationError("\n".join(["nothing was changed, because", *lines]))


def _note(comparison: Comparison, item: Item) -> None:
    """Know a file that says what the server says, however that came to be."""
    assert item.kept is not None
    assert item.there is not None
    known = PulledAutomation(item.there.record.id, item.kept.digest())
    if comparison.lock.files.get(item.file) != known:
        comparison.lock.note(item.file, known)


_SIGNS: dict[Action, str] = {"create": "+", "update": "~", "conflict": "!", "broken": "!", "missing": "-", "same": "="}
_DONE: dict[Action, str] = {
    "create": "created",
    "update": "updated",
    "conflict": "overwritten",
    "missing": "archived",
}


def planned(comparison: Comparison) -> list[str]:
    """Return what `plan` says."""
    lines = [line for item in comparison.items if item.action != "same" for line in _report_item(item)]
    same = len(comparison.of("same"))
    tail = [f"{report_counted(same, 'automation')} as on the server"] if same else []
    if comparison.others:
        tail.append(f"{report_counted(comparison.others, 'automation')} of the server not in this folder")
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
    return [*lines, *([f"{report_counted(same, 'automation')} unchanged."] if same or not lines else [])]


def as_json(items: Sequence[Item | Pulled], **more: Any) -> str:
    """Return the same for programs."""
    return encode({**more, "automations": [_plain(item) for item in items]}).decode()


def _plain(item: Item | Pulled) -> dict[str, Any]:
    if isinstance(item, Pulled):
        return {"file": item.file, "name": item.name, "action": item.deed, "notes": item.notes}
    changes = [{"kind": each.kind, "subject": each.subject, "text": each.text} for each in item.changes.items]
    return {"file": item.file, "name": item.name, "action": item.action, "changes": changes, "notes": item.notes}


def _report_item(item: Item) -> list[str]:
    words = {"create": ": new", "missing": ": missing", "conflict": ": conflict", "broken": ": cannot be applied"}
    called = f" ({item.name})" if item.name != item.file else ""
    head = f"{_SIGNS[item.action]} {item.file}{called}{words.get(item.action, '')}"
    return [head, *(f"  {line}" for line in item.changes.lines()), *(f"    {note}" for note in item.notes)]
