"""Contacts: everything stored about one person, and merging two contacts of the same person."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypedDict

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableColumn, TableView, html, moment, plain, table, table_columns
from workbench.display.words import join_and, quantity, value
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.explain import EventToExplain, Explanations, explain
from workbench.language.codec import encode

if TYPE_CHECKING:
    import polars as pl


class ContactIdentifier(TypedDict, total=False):
    """One of `email`, `wallet_address`, `external_id`."""

    email: str
    wallet_address: str
    external_id: str


class _ContactRow(msgspec.Struct, frozen=True, rename="camel"):
    id: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    attributes: dict[str, Any]
    tags: tuple[str, ...]
    segments: tuple[str, ...]
    opted_out: tuple[str, ...]
    created_at: str
    updated_at: str


class TimelineItem(msgspec.Struct, frozen=True):
    """One item of a contact's timeline; `kind` is event, entry, message or conflict."""

    kind: str
    id: str
    at: datetime
    sentence: str
    detail: dict[str, Any]


_SHOWN_ITEMS = 20
_TIMELINE_LIMIT = 1_000
_TIMELINE_PAGE = 500  # items in one request; the service returns no more


class Contact:
    """A contact, displayed with its fields and timeline. Changes are made on the server and return the contact."""

    def __init__(self, connection: Connection, row: _ContactRow) -> None:
        self._connection = connection
        self._row: _ContactRow | None = row  # None after it was erased
        self._id = row.id

    @property
    def id(self) -> str:
        """The contact's id, as in `contacts.id`."""
        return self._id

    @property
    def email(self) -> str | None:
        """The email address; masked unless your key has pii:read."""
        return self._stored().email

    @property
    def wallet_address(self) -> str | None:
        """The wallet address, in lower case."""
        return self._stored().wallet_address

    @property
    def external_id(self) -> str | None:
        """The contact's id in your own system."""
        return self._stored().external_id

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that events and automations set, by name."""
        return self._stored().attributes

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of the contact."""
        return self._stored().tags

    @property
    def segments(self) -> tuple[str, ...]:
        """The names of the segments that contain the contact."""
        return self._stored().segments

    @property
    def opted_out(self) -> tuple[str, ...]:
        """The channels that the contact opted out of: inapp, email, webhook."""
        return self._stored().opted_out

    @usage_example('.opt_out("email"), or "inapp", "webhook"')
    def opt_out(self, *channels: str) -> Self:
        """Opt the contact out of channels: automations skip its messages there. Returns the contact."""
        return self._set_opt_outs(channels, opted_out=True)

    @usage_example('.opt_in("email")')
    def opt_in(self, *channels: str) -> Self:
        """Opt the contact in again, also after it unsubscribed from emails: only if the person asked for it."""
        return self._set_opt_outs(channels, opted_out=False)

    @usage_example('.tag("vip")')
    def tag(self, *tags: str) -> Self:
        """Add tags. Returns the contact."""
        return self._update(self._connection.post(self._path("/tags"), {"add": [*tags]}))

    @usage_example('.untag("vip")')
    def untag(self, *tags: str) -> Self:
        """Remove tags. Returns the contact."""
        return self._update(self._connection.post(self._path("/tags"), {"remove": [*tags]}))

    def refresh(self) -> Self:
        """Read the contact again and return it."""
        return self._update(self._connection.get(self._path()))

    @property
    def timeline(self) -> "pl.DataFrame":
        """A polars frame of the newest 1,000 events, entries, messages and identity conflicts, newest first.

        Columns: at (UTC), kind (event, entry, message, conflict), sentence, id, detail (JSON). `.events(limit=…)`
        goes further back.
        """
        items = self._items(_TIMELINE_LIMIT)
        rows = [(item.at, item.kind, item.sentence, item.id, _json(item.detail)) for item in items]
        return _timeline_frame(items, ("at", "kind", "sentence", "id", "detail"), rows, "Timeline")

    @usage_example(".events() or .events(limit=10_000)")
    def events(self, limit: int = _TIMELINE_LIMIT) -> "pl.DataFrame":
        """Return a polars frame of the contact's events, newest first.

        Columns: at and occurred_at (UTC), event, payload (JSON), idempotency_key, id.
        """
        items = self._items(limit, "event")
        rows = []
        for item in items:
            event = item.detail
            occurred_at = datetime.fromisoformat(event["occurredAt"])
            key = event["idempotencyKey"]
            rows.append((item.at, event["event"], occurred_at, _json(event["payload"]), key, item.id))
        return _timeline_frame(
            items, ("at", "event", "occurred_at", "payload", "idempotency_key", "id"), rows, "Events"
        )

    @usage_example('.explain("Thanks for the deposit") or .explain(a, event={"event": "deposit", "payload": {…}})')
    def explain(self, automation: object, event: EventToExplain = None, *, limit: int = 20) -> Explanations:
        """Return why an automation did or did not start on the contact's newest events, filter by filter.

        `automation`: an automation or its name. `event`: the id of one event, or an event that has not happened. The
        server applies the engine's rules to the version that was live when the event arrived, and to the contact as
        it is today.
        """
        return explain(self._connection, self._stored().id, automation, event, limit)

    def export(self) -> dict[str, Any]:
        """Return everything stored about the contact: contact, events, entries with steps, messages; oldest first."""
        exported: dict[str, Any] = self._connection.get(self._path("/export"))
        return exported

    def erase(self) -> str:
        """Erase the contact's identifiers, attributes, payloads and texts permanently; return a summary.

        Its events and entries remain and still count in reports. Your key needs contacts:erase.
        """
        body = self._connection.delete(self._path())
        self._row = None
        ended = quantity(body["cancelledEntries"], "entry", "entries")
        return f"Erased: the data of {self._id} does not identify a person. Its events still count; {ended} cancelled."

    def _set_opt_outs(self, channels: tuple[str, ...], *, opted_out: bool) -> Self:
        if not channels:
            raise InvalidArgumentError('Pass at least one channel: "inapp", "email" or "webhook"')
        return self._update(self._connection.put(self._path("/opt-outs"), dict.fromkeys(channels, opted_out)))

    def _update(self, body: Any) -> Self:
        self._row = msgspec.convert(body, _ContactRow)
        self._id = self._row.id  # differs when the contact was merged into another one
        return self

    def _path(self, suffix: str = "") -> str:
        return f"/contacts/{self._id}{suffix}"

    def _stored(self) -> _ContactRow:
        if self._row is None:
            raise NotFoundError(f"Contact {self._id} was erased")
        return self._row

    def _items(self, limit: int, kind: str | None = None) -> list[TimelineItem]:
        items: list[TimelineItem] = []
        path, before = self._path("/timeline"), None
        while len(items) < limit:
            size = min(_TIMELINE_PAGE, limit - len(items))
            page = self._connection.get(path, before=before, limit=size, kind=kind)
            items += msgspec.convert(page["timeline"], list[TimelineItem])
            before = page["next"]
            if before is None:
                break
        return items

    def _fields(self) -> list[tuple[str, str]]:
        row = self._stored()
        fields = {
            "email": row.email,
            "wallet": row.wallet_address,
            "external id": row.external_id,
            **{f"attribute {name}": value for name, value in row.attributes.items()},
            "tags": ", ".join(row.tags),
            "segments": ", ".join(row.segments),
            "opted out of": ", ".join(row.opted_out),
            "since (UTC)": moment(row.created_at),
        }
        return [(name, str(value)) for name, value in fields.items() if value not in (None, "")]

    def _counts(self) -> str:
        counts = self._connection.get("/contacts", id=self._id)["counts"]
        nouns = (
            ("events", "event", ""),
            ("entries", "entry", "entries"),
            ("messages", "message", ""),
            ("conflicts", "identity conflict", ""),
        )
        return ", ".join(quantity(counts[name], noun, plural) for name, noun, plural in nouns)

    def __repr__(self) -> str:
        if self._row is None:
            return f"Contact {self._id}: erased"
        fields = plain(_CONTACT_COLUMNS, self._fields())
        timeline = plain(*_timeline_table(self._items(_SHOWN_ITEMS)))
        return "\n".join([f"Contact {self._id}", self._counts(), "", fields, "", timeline])

    def _repr_html_(self) -> str:
        if self._row is None:
            return table(_CONTACT_COLUMNS, (), title=f"Contact {self._id}", empty="Erased.")
        items = self._items(_SHOWN_ITEMS)
        # A request of its own: a conflict may be older than the newest items.
        conflicts = self._items(_SHOWN_ITEMS, "conflict")
        return html(
            "contact.html.j2",
            title=f"Contact {self._id}",
            counts=self._counts(),
            fields=(_CONTACT_COLUMNS, self._fields()),
            conflicts=[f"{moment(conflict.at)}: {conflict.sentence}" for conflict in conflicts],
            timeline=_timeline_table(items),
            note="More: .timeline, .events(), .explain(automation)" if len(items) == _SHOWN_ITEMS else "",
        )


_CONTACT_COLUMNS = table_columns("field", "value")
_TIMELINE_COLUMNS = table_columns("at (UTC)", "kind", "what happened")


def _timeline_table(items: Sequence[TimelineItem]) -> tuple[Sequence[TableColumn], Sequence[Sequence[str]]]:
    return _TIMELINE_COLUMNS, [(moment(item.at), item.kind, item.sentence) for item in items]


def _timeline_frame(
    items: Sequence[TimelineItem], names: Sequence[str], rows: Sequence[Sequence[Any]], title: str
) -> "pl.DataFrame":
    import polars as pl

    from workbench.display.frame import with_view

    # Explicit types: polars would infer Null for every column of a contact without items.
    schema = {name: pl.Datetime("us", "UTC") if name.endswith("at") else pl.String() for name in names}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    title = f"{title}: {quantity(len(rows), 'row')}"
    return with_view(frame, TableView(*_timeline_table(items), title, empty="Nothing yet."))


def _json(value: Any) -> str:
    return encode(value).decode()


def contact(connection: Connection, contact_id: str | None, identifier: Mapping[str, str]) -> Contact:
    """Return a contact by its id or by one identifier."""
    if (contact_id is None) == (not identifier):
        raise InvalidArgumentError(
            'Pass an id or an identifier: wb.contact("0198…") or wb.contact(email="ada@example.com")'
        )
    if contact_id is not None:
        return Contact(connection, msgspec.convert(connection.get(f"/contacts/{contact_id}"), _ContactRow))
    names = {"wallet_address": "walletAddress", "external_id": "externalId"}
    body = {"contact": {names.get(name, name): value for name, value in identifier.items()}}
    # A POST, so that identifiers stay out of URLs, which proxies and servers write to their logs.
    return Contact(connection, msgspec.convert(connection.post("/contacts/find", body), _ContactRow))


class _MovedFields(msgspec.Struct, frozen=True, rename="camel"):
    identifiers: dict[str, str]
    attributes: dict[str, Any]
    tags: tuple[str, ...]
    opted_out: tuple[str, ...]
    segments: tuple[str, ...]


class _RowCounts(msgspec.Struct, frozen=True):
    events: int
    entries: int
    messages: int


class _MergeRow(msgspec.Struct, frozen=True):
    id: str | None
    keep: str
    absorbed: str
    moves: _MovedFields
    hidden: dict[str, str]
    lost: dict[str, Any]
    rows: _RowCounts
    pending: bool


class Merge:
    """A preview of a merge, displayed as a table. `.apply()` merges the contacts, `.undo()` reverts the merge."""

    def __init__(self, connection: Connection, row: _MergeRow) -> None:
        self._connection, self._row = connection, row
        self._note = "This is a preview. .apply() merges the contacts."

    @property
    def id(self) -> str | None:
        """The id of the merge in the audit log; None before it is applied."""
        return self._row.id

    @property
    def moves(self) -> dict[str, Any]:
        """What moves to the kept contact: identifiers, attributes, tags, opted_out, segments."""
        return msgspec.structs.asdict(self._row.moves)

    @property
    def lost(self) -> Mapping[str, Any]:
        """Attributes of the absorbed contact that are hidden by those of the kept one."""
        return self._row.lost

    def apply(self) -> Self:
        """Merge the two contacts. Your key needs automations:write."""
        if self._row.id is not None:
            raise InvalidArgumentError("The contacts are merged already. .undo() reverts the merge")
        pair = {"keep": self._row.keep, "absorb": self._row.absorbed}
        self._row = msgspec.convert(self._connection.post("/contacts/merge", pair), _MergeRow)
        self._note = f"Merged.{_background_note(self._row.pending)} .undo() reverts the merge."
        return self

    def undo(self) -> Self:
        """Split the contact into two again. Raises ConflictError, with the later changes that prevent it."""
        if self._row.id is None:
            raise InvalidArgumentError("The contacts are not merged. .apply() merges them")
        body = self._connection.post(f"/contacts/merges/{self._row.id}/undo")
        self._row = msgspec.structs.replace(self._row, id=None)
        changed = f" Later values of {join_and(body['stays'])} are kept." if body["stays"] else ""
        self._note = (
            f"Reverted.{changed}{_background_note(body['pending'])} "
            "Events that arrived while they were merged stay with the contact that they arrived for."
        )
        return self

    def headline(self) -> str:
        """Return a sentence: the absorbed contact becomes the kept one."""
        return f"Contact {self._row.absorbed} {'is' if self._row.id else 'becomes'} contact {self._row.keep}"

    def _rows(self) -> Sequence[tuple[str, str, str]]:
        row, moves = self._row, self._row.moves
        counts = (
            quantity(row.rows.events, "event"),
            quantity(row.rows.entries, "entry", "entries"),
            quantity(row.rows.messages, "message"),
        )
        sets = (("tag", moves.tags), ("opted out of", moves.opted_out), ("segment", moves.segments))
        hidden = "still identifies the kept contact, which keeps its own"
        lost = "hidden: the kept contact has its own"
        return [
            *((_IDENTIFIERS[name], text, "moves") for name, text in moves.identifiers.items()),
            *((_IDENTIFIERS[name], text, hidden) for name, text in row.hidden.items()),
            *((f"attribute {name}", value(attribute), "moves") for name, attribute in moves.attributes.items()),
            *((f"attribute {name}", value(attribute), lost) for name, attribute in row.lost.items()),
            *((name, text, "moves") for name, texts in sets for text in texts),
            ("history", ", ".join(counts), "moves"),
        ]

    def __repr__(self) -> str:
        return f"{self.headline()}\n{plain(_MERGE_COLUMNS, self._rows())}\n{self._note}"

    def _repr_html_(self) -> str:
        return table(_MERGE_COLUMNS, self._rows(), title=self.headline(), note=self._note)


_MERGE_COLUMNS = table_columns("of the absorbed contact", "value", "result")
_IDENTIFIERS = {"walletAddress": "wallet", "email": "email", "externalId": "external id"}


def _background_note(pending: bool) -> str:
    return " Its events are moved in the background." if pending else ""


def merge(connection: Connection, keep: str, absorb: str) -> Merge:
    """Return a preview of merging two contacts."""
    pair = {"keep": keep, "absorb": absorb, "preview": True}
    return Merge(connection, msgspec.convert(connection.post("/contacts/merge", pair), _MergeRow))
