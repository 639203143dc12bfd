"""Compare a folder of automation files with a server, and apply it. If anything is wrong, nothing is applied.

`compare` reads both sides. `apply` changes the server. The `describe_…` functions return the output of the commands as
lines for people; `as_json` returns the same for programs.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from workbench import publish
from workbench.changes import Changes, changes
from workbench.connection import Connection
from workbench.display.words import quantity
from workbench.errors import InvalidAutomationError, WorkbenchError
from workbench.git.files import (
    AutomationFile,
    Lock,
    LockEntry,
    PullResult,
    ServerAutomation,
    files_of,
    read_file,
    server_automations,
    upload,
)
from workbench.language.check import Consent, errors, without_consent
from workbench.language.codec import encode

Action: TypeAlias = Literal["same", "create", "update", "conflict", "broken", "missing"]
"""`conflict`: the server has changes that the file was not made from. `missing`: the file was deleted."""

_STATES = {"live": "published and switched on", "off": "published and switched off", "draft": "saved, not published"}


class Item(msgspec.Struct, frozen=True):
    """One file or one automation: what `apply` would do with it, and why; and what it would have done in the past."""

    file: str
    name: str
    action: Action
    content: AutomationFile | None = None
    current: ServerAutomation | None = None
    changes: Changes = Changes()
    notes: tuple[str, ...] = ()
    backtest: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """The comparison of a folder with a server. `others`: number of automations on the server without a file."""

    items: tuple[Item, ...]
    lock: Lock
    others: int = 0

    @property
    def differs(self) -> bool:
        return any(item.action != "same" for item in self.items)

    def of(self, *actions: Action) -> list[Item]:
        return [item for item in self.items if item.action in actions]


def compare(folder: Path, connection: Connection, agreed: Collection[Consent] = ()) -> Comparison:
    """Return what the files of a folder would change on the server. Changes nothing on either side.

    `agreed`: what may be published although it needs consent.
    """
    if not folder.is_dir():
        raise InvalidAutomationError(f"Folder not found: {folder}. workbench automations pull {folder} creates it.")
    lock = Lock(folder, connection.url)
    automations = {automation.record.id: automation for automation in server_automations(connection)}
    files: dict[str, AutomationFile] = {}
    broken: dict[str, str] = {}
    for path in files_of(folder):
        try:
            files[path.name] = read_file(path)
        except InvalidAutomationError as error:
            broken[path.name] = str(error)
    comparer = _Comparer(connection, lock, automations, Counter(content.name for content in files.values()), agreed)
    items = [
        comparer.item(name, files[name]) if name in files else Item(name, name, "broken", notes=(broken[name],))
        for name in sorted({*files, *broken})
    ]
    with_file = {item.current.record.id for item in items if item.current is not None}
    for name, entry in lock.entries.items():
        if name not in files and name not in broken and entry.id in automations and entry.id not in with_file:
            current = automations[entry.id]
            note = "its file is gone; --archive-missing archives the automation"
            items.append(Item(name, current.content.name, "missing", current=current, notes=(note,)))
            with_file.add(entry.id)
    return Comparison(tuple(items), lock, len(automations.keys() - with_file))


class _Comparer(msgspec.Struct, frozen=True):
    connection: Connection
    lock: Lock
    automations: Mapping[str, ServerAutomation]
    name_counts: Mapping[str, int]
    agreed: Collection[Consent]

    def item(self, file: str, content: AutomationFile) -> Item:
        current = self._find_current(file, content)
        if isinstance(current, str):
            return Item(file, content.name, "broken", content, notes=(current,))
        if current is not None and current.content.digest() == content.digest():
            return Item(file, content.name, "same", content, current)
        difference = changes(None if current is None else current.content.payload, content.payload)
        if content.state != "draft":
            remarks = content.draft().remarks()
            problems = tuple(f"cannot be published: {error}" for error in errors(remarks))
            problems += tuple(
                f"needs --{consent.replace('_', '-')}: {warning}"
                for warning, consent in without_consent(remarks, self.agreed)
            )
        elif current is not None and current.content.state != "draft":
            problems = ('it is published on the server, which cannot be undone: set its state to "live" or "off"',)
        else:
            problems = ()
        if problems:
            return Item(file, content.name, "broken", content, current, difference, problems)
        conflict = self._find_conflict(file, content, current)
        if conflict:
            return Item(file, content.name, "conflict", content, current, difference, (conflict,))
        # `difference` does not include a change of the state.
        same_state = current is not None and current.content.state == content.state
        notes = () if same_state else (f"will be {_STATES[content.state]}",)
        return Item(file, content.name, "create" if current is None else "update", content, current, difference, notes)

    def _find_current(self, file: str, content: AutomationFile) -> ServerAutomation | str | None:
        """Return the automation of a file, None for a new one, or why the choice is ambiguous."""
        entry = self.lock.entries.get(file)
        if entry is not None:
            return self.automations.get(entry.id)
        name = content.name
        if self.name_counts[name] > 1:
            return f"another file has the name {name!r}, too: give one of them another name"
        # An automation that belongs to another file of the lock is the last choice, because this file may be that one
        # under a new name.
        owned = {other.id for other_file, other in self.lock.entries.items() if other_file != file}
        named = [automation for automation in self.automations.values() if automation.content.name == name]
        unowned = [automation for automation in named if automation.record.id not in owned]
        if len(unowned) > 1:
            return (
                f"the server has {len(unowned)} automations {name!r}: pull first, so that each gets a file of its own"
            )
        return next(iter(unowned or named), None)

    def _find_conflict(self, file: str, content: AutomationFile, current: ServerAutomation | None) -> str:
        """Return why applying the file would lose a change on the server; empty if it would not."""
        entry = self.lock.entries.get(file)
        if current is None:
            return (
                "" if entry is None else "it was archived on the server since you pulled: --overwrite creates it again"
            )
        if entry is None:  # the file was renamed: its base is in the entry of the old name
            entry = next((other for other in self.lock.entries.values() if other.id == current.record.id), None)
        change = publish.last_change(self.connection, current.record)
        if entry is None:
            return f"the server has an automation of this name that was not pulled ({change}): pull it, or --overwrite"
        if entry.digest != current.content.digest():
            edited = content.digest() != entry.digest
            here = "and here: move your file away and pull" if edited else "and not here: pull takes it over"
            return f"it was changed on the server since you pulled ({change}), {here}, or --overwrite"
        if current.unpublished:
            return (
                f"it has changes on the server that are not published ({change}): publish them and pull, or --overwrite"
            )
        return ""


def apply(
    comparison: Comparison,
    connection: Connection,
    *,
    overwrite: bool = False,
    archive_missing: bool = False,
    move: Literal["none", "safe"] = "none",
) -> list[Item]:
    """Create, update, publish, activate or deactivate what differs; return the items that were changed.

    `move="safe"`: waiting entries of earlier versions are moved to the new ones, as by `a.publish(move="safe")`.
    Raises InvalidAutomationError before any change if an item is broken or in conflict. Raises the error of the first
    automation that the server refuses; those before it stay changed.
    """
    blocking = [*comparison.of("broken"), *([] if overwrite else comparison.of("conflict"))]
    if blocking:
        lines = [f"  {item.file}: {note}" for item in blocking for note in item.notes]
        raise InvalidAutomationError("\n".join(["nothing was changed, because", *lines]))
    for item in comparison.of("same"):
        assert item.content is not None
        assert item.current is not None
        # The lock entry is missing (as after a merge in git) or old. Both sides agree, so this content is the new base.
        entry = LockEntry(item.current.record.id, item.content.digest())
        if comparison.lock.entries.get(item.file) != entry:
            comparison.lock.record(item.file, entry)
    # The lock is written after every automation: if one is refused, those before it are recorded as applied.
    applied = comparison.of("create", "update", *(("conflict",) if overwrite else ()))
    for item in applied:
        assert item.content is not None
        try:
            result = upload(connection, item.content, item.current, move)
        except WorkbenchError as error:
            raise error.rephrased(f"{item.file}: {error}") from error
        comparison.lock.record(item.file, LockEntry(result.record.id, result.content.digest()))
    missing = comparison.of("missing") if archive_missing else []
    for item in missing:
        assert item.current is not None
        publish.change(connection, item.current.record, "archive")
        comparison.lock.forget(item.file)
    return [*applied, *missing]


_SIGNS: dict[Action, str] = {"create": "+", "update": "~", "conflict": "!", "broken": "!", "missing": "-", "same": "="}
_PLANNED = {"create": ": new", "missing": ": missing", "conflict": ": conflict", "broken": ": cannot be applied"}
_APPLIED = {"create": "created", "update": "updated", "conflict": "overwritten", "missing": "archived"}


def describe_plan(comparison: Comparison) -> list[str]:
    lines = []
    for item in comparison.items:
        if item.action != "same":
            name = f" ({item.name})" if item.name != item.file else ""
            lines.append(f"{_SIGNS[item.action]} {item.file}{name}{_PLANNED.get(item.action, '')}")
            lines += [f"  {line}" for line in item.changes.lines()]
            lines += [f"    {note}" for note in item.notes]
            lines += [f"    {line}" for line in item.backtest.splitlines()]
    same = len(comparison.of("same"))
    summary = [f"{quantity(same, 'automation')} as on the server"] if same else []
    if comparison.others:
        summary.append(f"{quantity(comparison.others, 'automation')} of the server not in this folder")
    return [*lines, f"{', '.join(summary)}." if summary else "No automations."]


def describe_apply(items: Sequence[Item]) -> list[str]:
    return [f"{_APPLIED[item.action]}: {item.file} ({item.name})" for item in items] or ["Nothing to do."]


def describe_pull(results: Sequence[PullResult]) -> list[str]:
    lines = []
    for result in results:
        if result.action != "same" or result.notes:
            lines.append(f"{result.action}: {result.file} ({result.name})")
            lines += [f"  {note}" for note in result.notes]
    same = sum(result.action == "same" for result in results)
    return [*lines, *([f"{quantity(same, 'automation')} unchanged."] if same or not lines else [])]


def as_json(items: Sequence[Item | PullResult], **fields: Any) -> str:
    """Return items as one JSON object, with these fields before them."""
    automations = []
    for item in items:
        automation: dict[str, Any] = {"file": item.file, "name": item.name, "action": item.action}
        if isinstance(item, Item):
            automation["changes"] = [
                {"kind": change.kind, "subject": change.subject, "text": change.text} for change in item.changes.items
            ]
            if item.backtest:
                automation["backtest"] = item.backtest
        automations.append(automation | {"notes": item.notes})
    return encode({**fields, "automations": automations}).decode()
