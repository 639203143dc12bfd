"""The keys of your organization: looked at, made, rolled and revoked, with a key of yours that has keys:admin."""

from collections.abc import Sequence
from typing import Any

import msgspec

from workbench.connection import Connection
from workbench.display.page import html, moment
from workbench.display.table import Column, plain, table
from workbench.errors import DraftError, NotThereError, spoken
from workbench.spans import seconds_of

_COLUMNS = tuple(map(Column, ("name", "key", "kind", "scopes", "last used", "standing", "id")))
_NOTE = "Revoking is felt within five seconds."


class Key(msgspec.Struct, frozen=True, rename="camel"):
    """A key; `key` has only its beginning and its end. `standing`: active, ending (it was rolled), ended or revoked."""

    id: str
    kind: str
    key: str
    name: str
    scopes: tuple[str, ...]
    standing: str
    created_at: str
    last_used_at: str | None
    expires_at: str | None
    revoked_at: str | None

    def standing_now(self) -> str:
        """Say how it stands, and since or until when."""
        match self.standing:
            case "ending":
                return f"works until {moment(self.expires_at)}"
            case "revoked":
                return f"revoked {moment(self.revoked_at)}"
            case standing:
                return standing


class NewKey:
    """A key that was just made. `secret` is the key; it does not show itself, since notebooks are saved and sent around."""

    def __init__(self, secret: str, key: Key) -> None:
        self.secret = secret
        self.key = key

    def __repr__(self) -> str:
        return f"{self._sentence()} {_SECRET}"

    def _repr_html_(self) -> str:
        return html("line.html.j2", text=self._sentence(), state="made", look="good", note=_SECRET, block="")

    def _sentence(self) -> str:
        return f"A new {self.key.kind} key: {self.key.key}."


_SECRET = "`.secret` is the key, this once; put it where it belongs without showing it here."  # noqa: S105  a sentence


class Keys(Sequence[Key]):
    """Every key of the organization, oldest first. `.create("live", name="backend")` makes one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._keys = msgspec.convert(connection.get("/keys")["keys"], tuple[Key, ...])

    @spoken('.create("live", name="backend") or .create("workbench", scopes=["events:read", "sql:read"])')
    def create(self, kind: str, *, name: str | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        """Make a key: live, test, publishable or workbench, with the usual scopes of its kind or those you name."""
        return self._made("/keys", {"kind": kind, "name": name, "scopes": None if scopes is None else [*scopes]})

    @spoken('.roll("backend", overlap="2h")')
    def roll(self, key: Key | str, overlap: object = "1d") -> NewKey:
        """Make a key like this one (its id, or a name that only one has), which works on for so long. `overlap=0`: it ends now."""
        seconds = 0 if overlap == 0 else seconds_of(overlap, "overlap")
        return self._made(f"/keys/{self._id(key)}/roll", {"overlapSeconds": seconds})

    @spoken('.revoke("backend")')
    def revoke(self, key: Key | str) -> Key:
        """End a key for good (its id, or a name that only one has)."""
        return msgspec.convert(self._connection.post(f"/keys/{self._id(key)}/revoke"), Key)

    def _made(self, path: str, body: dict[str, object]) -> NewKey:
        answer = self._connection.post(path, {name: value for name, value in body.items() if value is not None})
        return NewKey(answer["secret"], msgspec.convert(answer["key"], Key))

    def _id(self, key: Key | str) -> str:
        if isinstance(key, Key):
            return key.id
        live = [each.id for each in self._keys if key == each.id or (key == each.name and each.standing == "active")]
        if len(live) > 1:
            raise DraftError(f"{len(live)} keys have the name {key!r}: give the id of one")
        if not live:
            raise NotThereError(f"there is no active key {key!r}; wb.keys shows those there are")
        return live[0]

    def __getitem__(self, index: Any) -> Any:
        return self._keys[index]

    def __len__(self) -> int:
        return len(self._keys)

    def __repr__(self) -> str:
        return plain(_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_COLUMNS, self._rows(), title="Keys", note=_NOTE)

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                *(each.name, each.key, each.kind, " ".join(each.scopes)),
                *(moment(each.last_used_at) or "never", each.standing_now(), each.id),
            )
            for each in self._keys
        ]
