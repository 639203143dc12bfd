"""One automation as a file: the contract's payload as JSON, and how it should stand on the server.

The same automation always gives the same bytes: keys in one order, whatever fits on a line on one line.
"""

import hashlib
import re
import unicodedata
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from api.language.codec import MalformedJsonError, decode, encode, normalise
from workbench.author import Draft, from_json
from workbench.errors import DraftError

State: TypeAlias = Literal["live", "off", "draft"]
"""Published and on; published and switched off; never published."""

STATES: tuple[State, ...] = ("live", "off", "draft")
LOCK = "automations.lock.json"
_WIDTH = 110
_FIRST = ("name", "state", "triggerSpec", "graph", "settings", "nodes", "edges", "id", "type", "actionType", "event", "eventNames", "filters",
          "source", "sourceHandle", "target", "path", "operator", "value")  # fmt: skip
_LAST = ("position",)
_LONGEST = 60


class Kept(msgspec.Struct, frozen=True):
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


def read_file(path: Path) -> Kept:
    """Return what a file says; raise DraftError naming the file when it is no automation."""
    try:
        value = decode(path.read_bytes())
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"].strip():
            raise DraftError("it is an object with name, state, triggerSpec and graph")
        state = next((each for each in STATES if each == value.get("state", "live")), None)
        if state is None:
            raise DraftError(f"state is one of {', '.join(STATES)}")
        from_json(value)
    except (MalformedJsonError, DraftError) as error:
        raise DraftError(f"{path.name} is no automation: {error}") from None
    return Kept(value["name"], state, value["triggerSpec"], value["graph"])


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
