"""The server's automations written into a folder. What was edited there and not applied yet stays as it is."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from workbench import publish
from workbench.connection import Connection
from workbench.errors import DraftError, NotThereError
from workbench.folder.file import file_name, files_of, read_file
from workbench.folder.lock import Known, Lock
from workbench.folder.server import There, everything

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
    Raises NotThereError for a name that no automation has.
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
            raise NotThereError(f"no automation is called {name!r}; without --name, all of them are pulled")


class _Pulling:
    def __init__(self, folder: Path, lock: Lock, connection: Connection, *, overwrite: bool) -> None:
        self._folder, self._lock, self._connection, self._overwrite = folder, lock, connection, overwrite
        self._said = {path.name: _digest(path) for path in files_of(folder)}
        self._names = {path.name: _name(path) for path in files_of(folder)}

    def one(self, there: There) -> Pulled:
        """Write one automation where its file does not say something of its own."""
        file, base = self._file_of(there)
        said, digest = self._said.get(file), there.kept.digest()
        notes = ("has changes that are not published; the file says what is live",) if there.unpublished else ()
        if said == digest:
            self._lock.note(file, Known(there.record.id, digest))
            return Pulled(file, there.kept.name, "same", notes)
        if said is not None and said != base and not self._overwrite:
            if digest == base:
                return Pulled(file, there.kept.name, "kept", ("edited here, not applied yet", *notes))
            deed = publish.last_deed(self._connection, there.record)
            return Pulled(
                file,
                there.kept.name,
                "conflict",
                (f"edited here, and changed on the server ({deed}): --overwrite takes the server's", *notes),
            )
        self._folder.joinpath(file).write_text(there.kept.text(), encoding="utf-8")
        self._said[file] = digest
        self._lock.note(file, Known(there.record.id, digest))
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
                found.append(Pulled(file, self._names.get(file, file), "removed", ("it was put away on the server",)))
            else:
                note = "edited here, but put away on the server: apply --overwrite makes it anew"
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
    except DraftError:
        return "unreadable"


def _name(path: Path) -> str:
    try:
        return read_file(path).name
    except DraftError:
        return path.stem
