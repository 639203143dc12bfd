"""What a folder knows of a server: which file is which automation, and what it said when both were last the same.

`automations.lock.json` stands beside the files and in git. It has a part for each server, so one folder can serve several.
"""

from pathlib import Path

import msgspec

from workbench.errors import DraftError
from workbench.folder.file import LOCK


class Known(msgspec.Struct, frozen=True):
    """An automation on the server. `digest`: of what it said when it was pulled or applied last."""

    id: str
    digest: str


class Lock:
    """The files of a folder that are known to be automations of one server."""

    def __init__(self, folder: Path, server: str) -> None:
        self._path = folder / LOCK
        self._server = server
        self._servers = _read(self._path)
        self.files: dict[str, Known] = {**self._servers.get(server, {})}

    def file_of(self, automation_id: str) -> str | None:
        """Return the file of an automation."""
        return next((name for name, known in self.files.items() if known.id == automation_id), None)

    def note(self, name: str, known: Known) -> None:
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


def _part(server: str, files: dict[str, Known]) -> str:
    lines = [f"    {_json(name)}: {_json(known)}" for name, known in sorted(files.items())]
    return f"  {_json(server)}: {{\n" + ",\n".join(lines) + "\n  }"


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _read(path: Path) -> dict[str, dict[str, Known]]:
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, Known]])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DraftError(f"{path.name} cannot be read ({error}); without it, pull writes a new one") from None
