"""Automations as files: their format, the lock file, pulling them from a server, and uploading one.

The same automation is always written as the same bytes: keys in a fixed order, and a value on one line if it fits. The
file contains the contract's payload and the state that the automation should have on the server.

`automations.lock.json`, next to the files and in git, maps each file to its automation and records the content at the
last pull or apply. That content is the base of a three-way comparison: it tells which side was edited since. The lock
has a section for each server, so one folder can serve several.
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from workbench import publish
from workbench.connection import Connection
from workbench.draft import Draft, from_json
from workbench.errors import InvalidAutomationError, NotFoundError
from workbench.language.codec import MalformedJsonError, decode, encode, normalize, printable
from workbench.language.graph import PINS
from workbench.publish import AutomationRecord

State: TypeAlias = Literal["live", "off", "draft"]
"""Published and switched on; published and switched off; never published."""

STATES: tuple[State, ...] = ("live", "off", "draft")
LOCK = "automations.lock.json"
_LINE_WIDTH = 110
_FIRST_KEYS = (
    "name", "state", "triggerSpec", "graph", "settings", "nodes", "edges", "id", "type", "actionType", "event",
    "eventNames", "filters", "where", "source", "sourceHandle", "target", "path", "operator", "value",
)  # fmt: skip
_LAST_KEYS = ("position",)
_MAX_SLUG = 60  # characters


class AutomationFile(msgspec.Struct, frozen=True):
    name: str
    state: State
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    @classmethod
    def of(cls, record: AutomationRecord, state: State) -> "AutomationFile":
        """Return the file for the draft of a record; `state` is the state that the file asks for."""
        return cls(record.name, state, record.trigger_spec, record.graph)

    @property
    def payload(self) -> dict[str, Any]:
        return {"name": self.name, "triggerSpec": self.trigger_spec, "graph": self.graph}

    def draft(self) -> Draft:
        return from_json(self.payload)

    def text(self) -> str:
        return printable(f"{_format(_sort_keys(normalize({**self.payload, 'state': self.state})), 0)}\n")

    def digest(self) -> str:
        """Return a digest of the text: equal for equal automations."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def read_file(path: Path) -> AutomationFile:
    """Return the content of a file; raise InvalidAutomationError with the name of the file if it is not valid."""
    try:
        value = decode(path.read_bytes())
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
            raise InvalidAutomationError("expected an object with name, state, triggerSpec and graph")
        state = next((state for state in STATES if state == value.get("state", "live")), None)
        if state is None:
            raise InvalidAutomationError(f"state must be one of {', '.join(STATES)}")
        from_json(value)
    except (MalformedJsonError, InvalidAutomationError) as error:
        # `from None`: the message of the cause is part of this one.
        raise InvalidAutomationError(f"{path.name} is not an automation: {error}") from None
    return AutomationFile(value["name"], state, value["triggerSpec"], value["graph"])


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that contain automations, sorted by name."""
    return sorted(path for path in folder.glob("*.json") if path.name != LOCK)


def file_name(name: str, taken: Collection[str]) -> str:
    """Return the name of a new file: `thanks-for-the-deposit.json`, with a number if that is taken."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    # Only ASCII letters, digits and hyphens: names are equal on all file systems and cannot leave the folder.
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_MAX_SLUG].strip("-") or "automation"
    names = (f"{slug}.json" if number == 1 else f"{slug}-{number}.json" for number in range(1, len(taken) + 3))
    return next(name for name in names if name not in taken and name != LOCK)


def _sort_keys(value: Any) -> Any:
    def rank(key: str) -> tuple[int, str]:
        if key in _FIRST_KEYS:
            return _FIRST_KEYS.index(key), ""
        return len(_FIRST_KEYS) + (key in _LAST_KEYS), key

    match value:
        case dict():
            return {key: _sort_keys(value[key]) for key in sorted(value, key=rank)}
        case list():
            return [_sort_keys(item) for item in value]
        case _:
            return value


def _format(value: Any, indent: int) -> str:
    """Return JSON on one line if it fits, otherwise one line per member. Arrays of objects are never on one line."""
    line = msgspec.json.format(encode(value), indent=0).decode()
    fits = indent > 0 and indent + len(line) <= _LINE_WIDTH and not _contains_object_array(value)
    if not isinstance(value, dict | list) or not value or fits:
        return line
    margin, inner = " " * indent, " " * (indent + 2)
    if isinstance(value, list):
        parts = [f"{inner}{_format(item, indent + 2)}" for item in value]
        return "[\n" + ",\n".join(parts) + f"\n{margin}]"
    parts = [f"{inner}{encode(key).decode()}: {_format(member, indent + 2)}" for key, member in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{margin}}}"


def _contains_object_array(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_contains_object_array(member) for member in value.values())
    return isinstance(value, list) and any(isinstance(item, dict) or _contains_object_array(item) for item in value)


class LockEntry(msgspec.Struct, frozen=True):
    """The automation of a file, and the digest of its content at the last pull or apply."""

    id: str
    digest: str


class Lock:
    """The lock file of a folder: the entries of one server by file name. Every change is written immediately."""

    def __init__(self, folder: Path, server: str) -> None:
        self._path = folder / LOCK
        self._server = server
        self._servers: dict[str, dict[str, LockEntry]] = {}
        if self._path.exists():
            try:
                self._servers = msgspec.json.decode(self._path.read_bytes(), type=dict[str, dict[str, LockEntry]])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise InvalidAutomationError(
                    f"{LOCK} cannot be read ({error}). Delete it and pull: pull writes a new one."
                ) from None
        self.entries: dict[str, LockEntry] = {**self._servers.get(server, {})}

    def file_of(self, automation_id: str) -> str | None:
        return next((name for name, entry in self.entries.items() if entry.id == automation_id), None)

    def record(self, name: str, entry: LockEntry) -> None:
        """Set the entry of a file. Other entries with the same automation are removed: it was renamed."""
        others = {file: other for file, other in self.entries.items() if other.id != entry.id}
        self.entries = others | {name: entry}
        self._write()

    def forget(self, name: str) -> None:
        self.entries.pop(name, None)
        self._write()

    def _write(self) -> None:
        # One line per file, so that merges in git conflict only where two people changed the same automation.
        sections = []
        for server, entries in sorted((self._servers | {self._server: self.entries}).items()):
            lines = [f"    {_json(name)}: {_json(entry)}" for name, entry in sorted(entries.items())]
            if lines:
                sections.append(f"  {_json(server)}: {{\n" + ",\n".join(lines) + "\n  }")
        self._path.write_text("{\n" + ",\n".join(sections) + "\n}\n", encoding="utf-8")


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


class ServerAutomation(msgspec.Struct, frozen=True):
    """An automation on the server. `content`: its published version, or its draft if it was never published.

    `unpublished`: the draft differs from the published version.
    """

    record: AutomationRecord
    content: AutomationFile
    unpublished: bool = False


def server_automations(connection: Connection) -> list[ServerAutomation]:
    """Return all automations that are not archived, newest first."""
    automations = []
    for record in publish.all_automations(connection):
        version = publish.live_version(connection, record)
        if version is None:
            automations.append(ServerAutomation(record, AutomationFile.of(record, "draft")))
            continue
        state: State = "off" if record.state == "off" else "live"  # a pause is not part of a file
        # Publication adds the newest snippets and the time zone, so files have none.
        graph = {key: value for key, value in version.graph.items() if key not in PINS}
        content = AutomationFile(record.name, state, version.trigger_spec, graph)
        # Digests, because the server may return keys in another order.
        unpublished = AutomationFile.of(record, state).digest() != content.digest()
        automations.append(ServerAutomation(record, content, unpublished))
    return automations


def upload(
    connection: Connection,
    content: AutomationFile,
    current: ServerAutomation | None,
    move: Literal["none", "safe"] = "none",
) -> ServerAutomation:
    """Save, publish, activate or deactivate an automation as its file says; return the result.

    Every change names the revision that it was made from. Raises ConflictError when the automation was changed after
    `current` was read, and PublishError with the nodes that are not valid.
    """
    body: dict[str, Any] = content.payload
    if current is None:
        answer = connection.post("/automations", body | ({"active": False} if content.state == "off" else {}))
        record = msgspec.convert(answer, AutomationRecord)
    else:
        record = current.record
        if AutomationFile.of(record, content.state).digest() != content.digest():
            answer = connection.put(f"/automations/{record.id}", body | {"revision": record.revision})
            record = msgspec.convert(answer, AutomationRecord)
    # Deactivated before publishing and activated after it, so that no event starts an entry on the wrong version.
    if content.state == "off" and record.active:
        record = publish.change(connection, record, "deactivate")
    if content.state != "draft":
        record = publish.release(connection, record, move)
    if content.state == "live" and not record.active:
        record = publish.change(connection, record, "activate")
    return ServerAutomation(record, AutomationFile.of(record, content.state))


PullAction: TypeAlias = Literal["same", "new", "updated", "kept", "removed", "conflict"]


class PullResult(msgspec.Struct, frozen=True):
    file: str
    name: str
    action: PullAction
    notes: tuple[str, ...] = ()


def pull(
    folder: Path, connection: Connection, *, names: Collection[str] = (), overwrite: bool = False
) -> list[PullResult]:
    """Write a file for each automation, or for those with these names; return the result for each file.

    A file that was edited stays (`kept`). If its automation was changed on the server too, neither is changed
    (`conflict`) unless `overwrite`. Raises NotFoundError for a name without an automation.
    """
    automations = server_automations(connection)
    for name in names:
        if all(automation.record.name != name for automation in automations):
            raise NotFoundError(f"Automation not found: {name!r}. Without --name, all automations are pulled.")
    folder.mkdir(parents=True, exist_ok=True)
    puller = _Puller(folder, Lock(folder, connection.url), connection, overwrite=overwrite)
    # The oldest comes first, because it keeps the file name without a number when two automations have the same name.
    chosen = [automation for automation in reversed(automations) if not names or automation.record.name in names]
    results = [puller.write(automation) for automation in chosen]
    return [*results, *puller.remove_archived({automation.record.id for automation in automations})]


class _Puller:
    def __init__(self, folder: Path, lock: Lock, connection: Connection, *, overwrite: bool) -> None:
        self._folder, self._lock, self._connection, self._overwrite = folder, lock, connection, overwrite
        self._digests: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for path in files_of(folder):
            try:
                content = read_file(path)
                self._digests[path.name], self._names[path.name] = content.digest(), content.name
            except InvalidAutomationError:
                # This equals no digest, so the file counts as edited and is not overwritten.
                self._digests[path.name], self._names[path.name] = "unreadable", path.stem

    def write(self, automation: ServerAutomation) -> PullResult:
        """Write the file of an automation unless it was edited."""
        file, base = self._find_file(automation)
        local, remote = self._digests.get(file), automation.content.digest()
        name = automation.content.name
        notes = ("has unpublished changes; the file has the published version",) if automation.unpublished else ()
        if local == remote:
            # Written even without a change: the lock may be missing, or the file may have been renamed.
            self._lock.record(file, LockEntry(automation.record.id, remote))
            return PullResult(file, name, "same", notes)
        if local is not None and local != base and not self._overwrite:
            if remote == base:
                return PullResult(file, name, "kept", ("edited here, not applied yet", *notes))
            change = publish.last_change(self._connection, automation.record)
            conflict = f"edited here, and changed on the server ({change}): --overwrite takes the server's version"
            return PullResult(file, name, "conflict", (conflict, *notes))
        self._folder.joinpath(file).write_text(automation.content.text(), encoding="utf-8")
        self._digests[file] = remote
        self._lock.record(file, LockEntry(automation.record.id, remote))
        return PullResult(file, name, "new" if local is None else "updated", notes)

    def remove_archived(self, ids: Collection[str]) -> list[PullResult]:
        """Remove the files of automations that are not among `ids` any more, unless they were edited."""
        results = []
        for file, entry in [*self._lock.entries.items()]:
            if entry.id in ids:
                continue
            name = self._names.get(file, file)
            if self._digests.get(file) in (None, entry.digest) or self._overwrite:
                self._folder.joinpath(file).unlink(missing_ok=True)
                self._lock.forget(file)
                results.append(PullResult(file, name, "removed", ("it was archived on the server",)))
            else:
                note = "edited here, but archived on the server: apply --overwrite creates it again"
                results.append(PullResult(file, name, "kept", (note,)))
        return results

    def _find_file(self, automation: ServerAutomation) -> tuple[str, str | None]:
        """Return the file of an automation and the digest of its base; None for a file without a base."""
        file = self._lock.file_of(automation.record.id)
        base = self._lock.entries[file].digest if file is not None else None
        if file is not None and file in self._digests:
            return file, base
        # The file was renamed, or the lock is missing: look for a file with this name, preferably with the same
        # content.
        name, digest = automation.content.name, automation.content.digest()
        free = [other for other, other_name in self._names.items() if other_name == name]
        free = [other for other in free if other not in self._lock.entries]
        if free:
            return min(free, key=lambda other: self._digests[other] != digest), base
        taken = {*self._digests, *(other for other in self._lock.entries if other != file)}
        return file or file_name(name, taken), base
