"""One automation as a file: the contract's payload as JSON, and how it should stand on the server.

The same automation always gives the same bytes: keys in one order, whatever fits on a line on one line.

What a folder knows of a server: which file is which automation, and what it said when both were last the same.

`automations.lock.json` stands beside the files and in git. It has a part for each server, so one folder can serve several.

What the server holds, in the words of files, and the way there: every change says which revision it was made from.

The server's automations written into a folder. What was edited there and not applied yet stays as it is.
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
from workbench.language.codec import MalformedJsonError, decode, encode, normalise
from workbench.publish import AutomationRecord

State: TypeAlias = Literal["live", "off", "draft"]
"""Published and on; published and switched off; never published."""

STATES: tuple[State, ...] = ("live", "off", "draft")
LOCK = "automations.lock.json"
_WIDTH = 110
_FIRST = ("name", "state", "triggerSpec", "graph", "settings", "nodes", "edges", "id", "type", "actionType", "event", "eventNames", "filters",
          "source", "sourceHandle", "target", "path", "operator", "value")  # fmt: skip
_LAST = ("position",)
_LONGEST = 60


class AutomationFile(msgspec.Struct, frozen=True):
    """What a file says."""

    name: str
    state: State
    trigger_spec: dict[str, Any]
    graph: dict[str, Any]

    @property
    def payload(self) -> dict[str, Any]:
        """The contract's payload."""
        return {"name": self.name, "triggerSpec": self.trigger_spec, "graph": self.graph}

    def draft(self) -> Draft:
        """Return what is written in it."""
        return from_json(self.payload)

    def text(self) -> str:
        """Return the file's text."""
        return f"{_written(_ordered(normalise({**self.payload, 'state': self.state})), 0)}\n"

    def digest(self) -> str:
        """Return what is the same for the same automation."""
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]


def read_file(path: Path) -> AutomationFile:
    """Return what a file says; raise InvalidAutomationError naming the file when it is no automation."""
    try:
        value = decode(path.read_bytes())
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
            raise InvalidAutomationError("it is an object with name, state, triggerSpec and graph")
        state = next((each for each in STATES if each == value.get("state", "live")), None)
        if state is None:
            raise InvalidAutomationError(f"state is one of {', '.join(STATES)}")
        from_json(value)
    except (MalformedJsonError, InvalidAutomationError) as error:
        raise InvalidAutomationError(f"{path.name} is not an automation: {error}") from None
    return AutomationFile(value["name"], state, value["triggerSpec"], value["graph"])


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that hold automations, by name."""
    return sorted(path for path in folder.glob("*.json") if path.name != LOCK)


def file_name(name: str, taken: Collection[str]) -> str:
    """Return the name of a new file: `thanks-for-the-deposit.json`, with a number where that is taken."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_LONGEST].strip("-") or "automation"
    names = (f"{slug}.json" if number == 1 else f"{slug}-{number}.json" for number in range(1, len(taken) + 3))
    return next(each for each in names if each not in taken and each != LOCK)


def _ordered(value: Any) -> Any:
    match value:
        case dict():
            return {key: _ordered(value[key]) for key in sorted(value, key=_rank)}
        case list():
            return [_ordered(each) for each in value]
        case _:
            return value


def _rank(key: str) -> tuple[int, str]:
    if key in _FIRST:
        return _FIRST.index(key), ""
    return len(_FIRST) + (key in _LAST), key


def _written(value: Any, indent: int) -> str:
    """Return JSON on one line where it fits, otherwise a line for each part; of several objects each has its own."""
    line = msgspec.json.format(encode(value), indent=0).decode()
    fits = indent > 0 and indent + len(line) <= _WIDTH and not _holds_objects(value)
    if not isinstance(value, dict | list) or not value or fits:
        return line
    margin, inner = " " * indent, " " * (indent + 2)
    if isinstance(value, list):
        parts = [f"{inner}{_written(each, indent + 2)}" for each in value]
        return "[\n" + ",\n".join(parts) + f"\n{margin}]"
    parts = [f"{inner}{encode(key).decode()}: {_written(each, indent + 2)}" for key, each in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{margin}}}"


def _holds_objects(value: Any) -> bool:
    """Return whether this is, or has somewhere in it, an array of objects."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    listed = isinstance(value, list) and any(isinstance(each, dict) for each in value)
    return listed or any(_holds_objects(each) for each in parts)


class PulledAutomation(msgspec.Struct, frozen=True):
    """An automation on the server. `digest`: of what it said when it was pulled or applied last."""

    id: str
    digest: str


class Lock:
    """The files of a folder that are known to be automations of one server."""

    def __init__(self, folder: Path, server: str) -> None:
        self._path = folder / LOCK
        self._server = server
        self._servers = _read(self._path)
        self.files: dict[str, PulledAutomation] = {**self._servers.get(server, {})}

    def file_of(self, automation_id: str) -> str | None:
        """Return the file of an automation."""
        return next((name for name, known in self.files.items() if known.id == automation_id), None)

    def note(self, name: str, known: PulledAutomation) -> None:
        """Keep what a file is; no other file is the same automation."""
        self.files = {other: each for other, each in self.files.items() if each.id != known.id} | {name: known}
        self.write()

    def forget(self, name: str) -> None:
        """Drop a file."""
        self.files.pop(name, None)
        self.write()

    def write(self) -> None:
        """Write it, a line for each file."""
        servers = self._servers | {self._server: self.files}
        parts = [_part(server, files) for server, files in sorted(servers.items()) if files]
        self._path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def _part(server: str, files: dict[str, PulledAutomation]) -> str:
    lines = [f"    {_json(name)}: {_json(known)}" for name, known in sorted(files.items())]
    return f"  {_json(server)}: {{\n" + ",\n".join(lines) + "\n  }"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _read(path: Path) -> dict[str, dict[str, PulledAutomation]]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, PulledAutomation]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidAutomationError(
            f"{path.name} cannot be read ({error}); without it, pull writes a new one"
        ) from None


class There(msgspec.Struct, frozen=True):
    """An automation of the server. `kept`: what is live of it, the draft where nothing is; `unpublished`: its draft says something else."""

    record: AutomationRecord
    kept: AutomationFile
    unpublished: bool = False


def everything(connection: Connection) -> list[There]:
    """Return all automations that are not put away."""
    return [_there(connection, record) for record in publish.all_automations(connection)]


def bring(connection: Connection, kept: AutomationFile, there: There | None) -> There:
    """Make the server hold what a file says, and return what it holds then.

    Raises ConflictError when somebody changed it a moment ago, and PublishError naming nodes.
    """
    record = _saved(connection, kept, there)
    if kept.state == "off" and record.active:
        record = publish.switch(connection, record, "deactivate")
    if kept.state != "draft":
        record = publish.release(connection, record)
    if kept.state == "live" and not record.active:
        record = publish.switch(connection, record, "activate")
    return There(record, _kept(record, kept.state, record.trigger_spec, record.graph))


def _saved(connection: Connection, kept: AutomationFile, there: There | None) -> AutomationRecord:
    body: dict[str, Any] = kept.payload
    if there is None:
        return _record(connection.post("/automations", body | ({"active": False} if kept.state == "off" else {})))
    if _kept(there.record, kept.state, there.record.trigger_spec, there.record.graph).digest() == kept.digest():
        return there.record
    address = f"/automations/{there.record.id}"
    return _record(connection.put(address, body | {"revision": there.record.revision}))


def _record(answer: dict[str, Any]) -> AutomationRecord:
    return msgspec.convert(answer, AutomationRecord)


def _there(connection: Connection, record: AutomationRecord) -> There:
    version = publish.live_version(connection, record)
    if version is None:
        return There(record, _kept(record, "draft", record.trigger_spec, record.graph))
    kept = _kept(record, "live" if record.active else "off", version.trigger_spec, version.graph)
    draft = _kept(record, kept.state, record.trigger_spec, record.graph)
    return There(record, kept, unpublished=draft.digest() != kept.digest())


def _kept(
    record: AutomationRecord, state: State, trigger_spec: dict[str, Any], graph: dict[str, Any]
) -> AutomationFile:
    return AutomationFile(record.name, state, trigger_spec, graph)


Deed: TypeAlias = Literal["same", "new", "updated", "kept", "removed", "conflict"]


class Pulled(msgspec.Struct, frozen=True):
    """What became of one file."""

    file: str
    name: str
    deed: Deed
    notes: tuple[str, ...] = ()


def pull(folder: Path, connection: Connection, *, names: Collection[str] = (), overwrite: bool = False) -> list[Pulled]:
    """Write a file for each automation, or for those of some names, and return what became of each.

    A file that was edited stays (`kept`); where the server's changed as well, both are left alone (`conflict`) unless `overwrite`.
    Raises NotFoundError for a name that no automation has.
    """
    held = everything(connection)
    _require(names, {there.record.name for there in held})
    folder.mkdir(parents=True, exist_ok=True)
    pulling = _Pulling(folder, Lock(folder, connection.url), connection, overwrite=overwrite)
    wanted = [there for there in reversed(held) if not names or there.record.name in names]
    pulled = [pulling.one(there) for there in wanted]  # the oldest first, so that files keep their names
    return [*pulled, *pulling.gone({there.record.id for there in held})]


def _require(names: Collection[str], there: Collection[str]) -> None:
    for name in names:
        if name not in there:
            raise NotFoundError(f"no automation is called {name!r}; without --name, all of them are pulled")


class _Pulling:
    def __init__(self, folder: Path, lock: Lock, connection: Connection, *, overwrite: bool) -> None:
        self._folder, self._lock, self._connection, self._overwrite = folder, lock, connection, overwrite
        self._said = {path.name: _digest(path) for path in files_of(folder)}
        self._names = {path.name: _name(path) for path in files_of(folder)}

    def one(self, there: There) -> Pulled:
        """Write one automation where its file does not say something of its own."""
        file, base = self._file_of(there)
        said, digest = self._said.get(file), there.kept.digest()
        notes = ("has unpublished changes; the file has the published version",) if there.unpublished else ()
        if said == digest:
            self._lock.note(file, PulledAutomation(there.record.id, digest))
            return Pulled(file, there.kept.name, "same", notes)
        if said is not None and said != base and not self._overwrite:
            if digest == base:
                return Pulled(file, there.kept.name, "kept", ("edited here, not applied yet", *notes))
            deed = publish.last_change(self._connection, there.record)
            return Pulled(
                file,
                there.kept.name,
                "conflict",
                (f"edited here, and changed on the server ({deed}): --overwrite takes the server's version", *notes),
            )
        self._folder.joinpath(file).write_text(there.kept.text(), encoding="utf-8")
        self._said[file] = digest
        self._lock.note(file, PulledAutomation(there.record.id, digest))
        return Pulled(file, there.kept.name, "new" if said is None else "updated", notes)

    def gone(self, held: set[str]) -> list[Pulled]:
        """Remove the files of automations that were put away, where nobody edited them."""
        found = []
        for file, known in [*self._lock.files.items()]:
            if known.id in held:
                continue
            if self._said.get(file) in (None, known.digest) or self._overwrite:
                self._folder.joinpath(file).unlink(missing_ok=True)
                self._lock.forget(file)
                found.append(Pulled(file, self._names.get(file, file), "removed", ("it was archived on the server",)))
            else:
                note = "edited here, but archived on the server: apply --overwrite creates it again"
                found.append(Pulled(file, self._names.get(file, file), "kept", (note,)))
        return found

    def _file_of(self, there: There) -> tuple[str, str | None]:
        """Return the file of an automation, and what it said when both were last the same; a new one has said nothing."""
        file = self._lock.file_of(there.record.id)
        base = self._lock.files[file].digest if file is not None else None
        if file is not None and file in self._said:
            return file, base
        free = [name for name, said in self._names.items() if said == there.kept.name and name not in self._lock.files]
        if free:
            return min(free, key=lambda name: self._said[name] != there.kept.digest()), base
        taken = {*self._said, *(name for name in self._lock.files if name != file)}
        return file or file_name(there.kept.name, taken), base


def _digest(path: Path) -> str:
    try:
        return read_file(path).digest()
    except InvalidAutomationError:
        return "unreadable"


def _name(path: Path) -> str:
    try:
        return read_file(path).name
    except InvalidAutomationError:
        return path.stem
