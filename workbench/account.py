"""The organization's account: audit log, API keys, the permissions of the current key, and usage."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableSequence, TableView, html, moment, table_columns
from workbench.display.words import quantity, short
from workbench.duration import seconds_of
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.language.codec import encode

if TYPE_CHECKING:
    import polars as pl


class _AuditRow(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    at: str
    action: str
    by: str
    key_id: str | None
    key: str | None
    subject_id: str | None
    subject: str | None
    from_version: int | None
    to_version: int | None
    detail: dict[str, Any]


_AUDIT_PAGE = 500  # the most that the server lists in one response
_AUDIT_COLUMNS = table_columns("at (UTC)", "action", "subject", "live version", "by", "key")


def audit(
    connection: Connection, limit: int, action: str | None = None, subject_id: str | None = None
) -> "pl.DataFrame":
    """Return a frame with one row per change, newest first, optionally of one action or one subject.

    Columns: id, at, action, by, key, subject, subject_id, key_id, from_version, to_version, detail (JSON).
    """
    import polars as pl

    from workbench.display.frame import with_view
    from workbench.frames import struct_frame

    changes: list[_AuditRow] = []
    while len(changes) < limit:
        size, before = min(limit - len(changes), _AUDIT_PAGE), changes[-1].id if changes else None
        body = connection.get("/audit", limit=size, before=before, action=action, subjectId=subject_id)
        page = msgspec.convert(body["changes"], list[_AuditRow])
        changes += page
        if len(page) < size:
            break
    names = ("id", "at", "action", "by", "key", "subject", "subject_id", "key_id", "from_version", "to_version")
    details = pl.Series("detail", [encode(change.detail).decode() for change in changes], pl.String)
    frame = struct_frame(changes, names, numbers=("from_version", "to_version"), times=("at",)).with_columns(details)
    rows = []
    for change in changes:
        kind, _, verb = change.action.partition(".")
        action_text = f"{kind}: {verb.replace('_', ' ')}" if verb else kind  # contact.opt_out: “contact: opt out”
        subject = change.subject or short(change.subject_id)
        versions = "" if change.to_version is None else f"{change.from_version or 'none'} → {change.to_version}"
        by = change.by if change.by != change.key_id else short(change.by)
        rows.append((moment(change.at), action_text, subject, versions, by, change.key or ""))
    title = f"Changes: {quantity(len(changes), 'row')}, the newest first"
    return with_view(frame, TableView(_AUDIT_COLUMNS, rows, title, "Nothing was changed yet."))


class Key(msgspec.Struct, frozen=True, rename="camel"):
    """An API key. `key` shows its beginning and end. `status`: active, ending (it was rolled), ended or revoked."""

    id: str
    kind: str
    key: str
    name: str
    scopes: tuple[str, ...]
    status: str
    created_at: str
    last_used_at: str | None
    expires_at: str | None
    revoked_at: str | None

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
    """A key that was just created. `secret` is the key.

    It never shows the secret, because the output of a notebook is saved and shared.
    """

    def __init__(self, secret: str, key: Key) -> None:
        self.secret = secret
        self.key = key

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
    def create(self, kind: str, *, name: str | None = None, scopes: Sequence[str] | None = None) -> NewKey:
        """Create a live, test, publishable or workbench key. By default it gets the default scopes of its kind."""
        options = {"kind": kind, "name": name, "scopes": None if scopes is None else [*scopes]}
        body = {option: value for option, value in options.items() if value is not None}
        return self._new_key(self._connection.post("/keys", body))

    @usage_example('.roll("backend", overlap="2h")')
    def roll(self, key: Key | str, overlap: object = "1d") -> NewKey:
        """Create a key with the same kind, name and scopes. The old one works for another `overlap`; 0 ends it at once.

        `key` is a Key, its id, or the name of one active key.
        """
        seconds = 0 if overlap == 0 else seconds_of(overlap, "overlap")  # which refuses 0 as a duration
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
            rows.append((key.name, key.key, key.kind, " ".join(key.scopes), used, key.status_text(), key.id))
        # The server's processes cache a key for up to two seconds.
        return TableView(columns, rows, "Keys", "Nothing yet.", "Revoking takes effect within five seconds.")


# The API has no route that lists the scopes of the calling key. These requests change nothing: a key without the scope
# gets 401 or 403, one with it gets 200, 400 or 404.
_UNKNOWN_ID = "00000000-0000-0000-0000-000000000000"
_PROBES: tuple[tuple[str, str, str, dict[str, Any] | None], ...] = (
    ("read events", "GET", "/events/catalog", None),
    ("run SQL", "POST", "/sql", {"sql": "SELECT 1"}),
    ("write automations", "PUT", f"/automations/{_UNKNOWN_ID}", {}),
    ("publish them", "POST", f"/automations/{_UNKNOWN_ID}/publish", {}),
)


def permissions(connection: Connection) -> list[tuple[str, bool]]:
    """Return the actions that need a scope, each with whether this key has it."""
    return [
        (action, connection.request(method, path, body=body).status not in (401, 403))
        for action, method, path, body in _PROBES
    ]


_USAGE_COLUMNS = table_columns("channel", "messages", numbers=("messages",))


def usage(connection: Connection, month: str | None) -> "pl.DataFrame":
    """Return a frame with the messages sent per channel in a month of UTC (default: this one).

    Columns: month, channel, messages. Incoming events are not metered.
    """
    import polars as pl

    from workbench.display.frame import with_view

    body: dict[str, Any] = connection.get("/usage", month=month)
    rows = list(body["messages"].items())
    schema = {"month": pl.String, "channel": pl.String, "messages": pl.Int64}
    frame = pl.DataFrame([(body["month"], *row) for row in rows], schema=schema, orient="row")
    title = f"{body['month']}: {quantity(body['total'], 'message')} sent"
    return with_view(frame, TableView(_USAGE_COLUMNS, rows, title, empty="", note="Incoming events are not counted."))
