"""The organization's account: audit log, API keys, the rights of the current key, and usage."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, html, moment, printable_text, table_columns
from workbench.display.words import quantity, short
from workbench.duration import seconds_of
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.responses import AuditView, CallerView, KeyView

if TYPE_CHECKING:
    import polars as pl


_AUDIT_PAGE = 500  # the most that the server lists in one response
_AUDIT_COLUMNS = table_columns("at (UTC)", "action", "subject", "live version", "by", "key")


def audit(
    connection: Connection, limit: int, action: str | None = None, subject_id: str | None = None
) -> "pl.DataFrame":
    """Return a frame with one row per change, newest first, optionally of one action or one subject.

    Columns: id, at, action, by, key, subject, subject_id, key_id, from_version, to_version, detail (JSON).
    """
    from workbench.display.frame import shown_frame

    changes: list[AuditView] = []
    while len(changes) < limit:
        size, before = min(limit - len(changes), _AUDIT_PAGE), changes[-1].id if changes else None
        body = connection.get("/audit", limit=size, before=before, action=action, subjectId=subject_id)
        page = msgspec.convert(body["changes"], list[AuditView])
        changes += page
        if len(page) < size:
            break
    rows = []
    for change in changes:
        kind, _, verb = change.action.partition(".")
        action_text = f"{kind}: {verb.replace('_', ' ')}" if verb else kind  # contact.opt_out → contact: opt out
        subject = change.subject or short(change.subject_id)
        versions = "" if change.to_version is None else f"{change.from_version or 'none'} → {change.to_version}"
        by = change.by if change.by != change.key_id else short(change.by)
        rows.append((moment(change.at), action_text, subject, versions, by, change.key or ""))
    title = f"Changes: {quantity(len(changes), 'row')}, the newest first"
    view = TableView(_AUDIT_COLUMNS, rows, title, "Nothing was changed yet.")
    texts = dict.fromkeys(("action", "by", "key", "subject", "subject_id", "key_id"), str)
    return shown_frame(view, changes, id=str, at=datetime, **texts, from_version=int, to_version=int, detail=dict)


class Key(KeyView, frozen=True, rename="camel"):
    """An API key. `key` shows its beginning and end. `status`: active, ending (it was rolled), ended or revoked."""

    def status_text(self) -> str:
        """Return its status with the date that belongs to it."""
        match self.status:
            case "ending":
                return f"works until {moment(self.expires_at)}"
            case "revoked":
                return f"revoked {moment(self.revoked_at)}"
            case status:
                return status


class NewKey:
    """A key that was just created. `secret` is the whole key.

    It is displayed without the secret, because the output of a notebook is saved and shared.
    """

    def __init__(self, secret: str, key: Key) -> None:
        self.secret = secret
        self.key = key

    @printable_text
    def __repr__(self) -> str:
        return f"{self._sentence()} {_SECRET_NOTE}"

    def _repr_html_(self) -> str:
        return html("line.html.j2", text=self._sentence(), state="created", look="good", note=_SECRET_NOTE, block="")

    def _sentence(self) -> str:
        return f"A new {self.key.kind} key: {self.key.key}."


_SECRET_NOTE = "`.secret` has the whole key, this once: store it without showing it here."  # noqa: S105  a sentence


class Keys(TableSequence[Key]):
    """Every key of the organization, oldest first. `.create("live", name="backend")` creates one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        super().__init__(msgspec.convert(connection.get("/keys")["keys"], tuple[Key, ...]))

    @usage_example('.create("live", name="backend") or .create("workbench", scopes=["events:read", "sql:read"])')
    def create(
        self, kind: str, *, name: str | None = None, scopes: Sequence[str] | None = None, strict: bool | None = None
    ) -> NewKey:
        """Create a live, test, publishable or workbench key. By default it gets the default scopes of its kind.

        A `strict` live or test key refuses events with unknown fields.
        """
        scope_list = None if scopes is None else [*scopes]
        options = {"kind": kind, "name": name, "scopes": scope_list, "strict": strict}
        body = {option: value for option, value in options.items() if value is not None}
        return self._new_key(self._connection.post("/keys", body))

    @usage_example('.edit("backend", strict=True)')
    def edit(self, key: Key | str, *, strict: bool) -> Key:
        """Let a live or test key refuse events with unknown fields (`strict=True`), or accept them.

        `key` is a Key, its id, or the name of one active key.
        """
        return msgspec.convert(self._connection.post(f"/keys/{self._id_of(key)}/edit", {"strict": strict}), Key)

    @usage_example('.roll("backend", overlap="2h")')
    def roll(self, key: Key | str, overlap: object = "1d") -> NewKey:
        """Create a key with the same rights, name and `strict`. The old key works for `overlap` longer; 0 ends it now.

        `key` is a Key, its id, or the name of one active key.
        """
        seconds = 0 if overlap == 0 else seconds_of(overlap, "overlap")  # `seconds_of` refuses 0
        return self._new_key(self._connection.post(f"/keys/{self._id_of(key)}/roll", {"overlapSeconds": seconds}))

    @usage_example('.revoke("backend")')
    def revoke(self, key: Key | str) -> Key:
        """End a key permanently. `key` is a Key, its id, or the name of one active key."""
        return msgspec.convert(self._connection.post(f"/keys/{self._id_of(key)}/revoke"), Key)

    def _new_key(self, body: Any) -> NewKey:
        return NewKey(body["secret"], msgspec.convert(body["key"], Key))

    def _id_of(self, key: Key | str) -> str:
        if isinstance(key, Key):
            return key.id
        ids = [
            candidate.id
            for candidate in self
            if key == candidate.id or (key == candidate.name and candidate.status == "active")
        ]
        if len(ids) > 1:
            raise InvalidArgumentError(f"{len(ids)} keys have the name {key!r}: pass the id of one")
        if not ids:
            raise NotFoundError(f"active key not found: {key!r}. wb.keys lists the keys")
        return ids[0]

    def _view(self) -> TableView:
        columns = table_columns("name", "key", "kind", "scopes", "last used", "status", "id")
        rows = []
        for key in self:
            used = moment(key.last_used_at) or "never"
            kind = f"{key.kind}, strict" if key.strict else key.kind
            rows.append((key.name, key.key, kind, " ".join(key.scopes), used, key.status_text(), key.id))
        # The server's processes cache a key for up to two seconds.
        return TableView(columns, rows, "Keys", "Nothing yet.", "Revoking takes effect within five seconds.")


# What each scope permits, in the words of the display of a Workbench
SCOPE_ACTIONS = {
    "events:read": "read events",
    "sql:read": "run SQL",
    "automations:write": "write automations",
    "automations:publish": "publish them",
}


def caller(connection: Connection) -> CallerView:
    """Return the organization and the key of this connection; raise AuthenticationError without a valid key."""
    return msgspec.convert(connection.get("/me"), CallerView)


_USAGE_COLUMNS = table_columns("channel", "messages", numbers=("messages",))


def usage(connection: Connection, month: str | None) -> "pl.DataFrame":
    """Return a frame with the messages sent per channel in a month of UTC (default: this one).

    Columns: month, channel, messages. Incoming events are not metered.
    """
    from workbench.display.frame import shown_frame

    body: dict[str, Any] = connection.get("/usage", month=month)
    rows = list(body["messages"].items())
    title = f"{body['month']}: {quantity(body['total'], 'message')} sent"
    view = TableView(_USAGE_COLUMNS, rows, title, empty="", note="Incoming events are not counted.")
    return shown_frame(view, [(body["month"], *row) for row in rows], month=str, channel=str, messages=int)


def timezone(connection: Connection) -> str | None:
    """Return the time zone of the organization; None: UTC."""
    zone: str | None = connection.get("/organization")["timezone"]
    return zone


def set_timezone(connection: Connection, zone: str | None) -> None:
    connection.put("/organization", {"timezone": zone})
