"""Contacts: everything stored about one person, and merging two contacts of the same person."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

import msgspec

from workbench.connection import Connection
from workbench.display.html import TableColumn, TableView, html, moment, plain, printable_text, table, table_columns
from workbench.display.words import join_and, join_or, quantity, value
from workbench.errors import InvalidArgumentError, NotFoundError, usage_example
from workbench.event_json import EventValues
from workbench.explain import EventToExplain, Explanations, explain
from workbench.language.channel import CHANNELS
from workbench.language.codec import encode
from workbench.language.event import MASK
from workbench.language.responses import ContactChangeView, ContactView, MergeView, PreferencesView, TimelineItemView

if TYPE_CHECKING:
    import polars as pl


class ContactIdentifier(TypedDict, total=False):
    """One of `email`, `wallet_address`, `external_id`."""

    email: str
    wallet_address: str
    external_id: str


class Preferences:
    """The preferences of a contact. `topics`, `channels`: whether it gets the messages, by name."""

    def __init__(self, answer: Any) -> None:
        view = msgspec.convert(answer, PreferencesView)
        self.topics, self.channels = view.topics, view.channels

    def _rows(self) -> list[tuple[str, str, str]]:
        kinds = (("topic", self.topics), ("channel", self.channels))
        return [(kind, name, "yes" if wanted else "no") for kind, by_name in kinds for name, wanted in by_name.items()]

    @printable_text
    def __repr__(self) -> str:
        return plain(_PREFERENCE_COLUMNS, self._rows())

    def _repr_html_(self) -> str:
        return table(_PREFERENCE_COLUMNS, self._rows(), title="Preferences", empty="")


_PREFERENCE_COLUMNS = table_columns("kind", "name", "wanted")
_SHOWN_ITEMS = 20
_TIMELINE_LIMIT = 1_000
_TIMELINE_PAGE = 500  # items in one request; the service returns no more


class Contact:
    """A contact, displayed with its fields and timeline. Changes are made on the server and return the contact.

    `id`: as in `contacts.id`. `email`: masked unless your key has pii:read. `wallet_address`: in lower case.
    `external_id`: the id in your own system. `attributes`: values by name, set by events and automations.
    `segments`: the names of the segments that contain the contact. `opted_out`: the channels that the contact opted out
    of (inapp, email, webhook, connection).
    `suppressed`: the reason why the address gets no emails (bounced, complained, unsubscribed, opted_out), or None.
    `declined`: the topics that the contact gets no messages about.
    """

    def __init__(self, connection: Connection, row: ContactView) -> None:
        self._connection = connection
        self._show(row)

    def _show(self, row: ContactView) -> Self:
        self._row: ContactView | None = row  # None after it was erased
        self.id = row.id  # changes when the contact is merged into another one
        self.email, self.wallet_address, self.external_id = row.email, row.wallet_address, row.external_id
        self.attributes, self.tags = row.attributes, row.tags
        self.segments, self.opted_out, self.suppressed = row.segments, row.opted_out, row.suppressed
        self.declined = row.declined
        return self

    if not TYPE_CHECKING:  # so that a type checker still reports unknown fields

        def __getattr__(self, name: str) -> Any:
            if name in ContactView.__struct_fields__:
                raise NotFoundError(f"Contact {self.id} was erased")
            raise AttributeError(name)

    @usage_example('.opt_out("email"), or "inapp", "webhook", "connection"')
    def opt_out(self, *channels: str) -> Self:
        """Opt the contact out of channels: automations skip its messages there. Returns the contact."""
        return self._set_opt_outs(channels, opted_out=True)

    @usage_example('.opt_in("email")')
    def opt_in(self, *channels: str) -> Self:
        """Opt the contact in again, also if it unsubscribed from emails, an email bounced or the recipient complained.

        Only do this if the person asked for it, or if the address works again.
        """
        return self._set_opt_outs(channels, opted_out=False)

    def preferences(self) -> "Preferences":
        """Return what the contact wants, by topic and by channel: `.topics["news"]`, `.channels["email"]`."""
        return Preferences(self._connection.get(self._path("/preferences")))

    @usage_example('.set_preferences(topics={"news": False}, channels={"email": True})')
    def set_preferences(
        self, *, topics: Mapping[str, bool] | None = None, channels: Mapping[str, bool] | None = None
    ) -> "Preferences":
        """Set topics and channels that the contact wants (True) or not (False); return all of them.

        Only do this if the person asked for it. A topic that needs a confirmation is granted without one.
        """
        body = {"topics": dict(topics or {}), "channels": dict(channels or {})}
        preferences = Preferences(self._connection.put(self._path("/preferences"), body))
        self.refresh()
        return preferences

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

        Columns: at (UTC), kind (event, entry, message, conflict, merge, log), sentence, id, detail (JSON).
        `.events(limit=…)` goes further back.
        """
        items = self._items(_TIMELINE_LIMIT)
        return _timeline_frame(items, "Timeline", items, at=datetime, kind=str, sentence=str, id=str, detail=dict)

    @usage_example(".events() or .events(limit=10_000)")
    def events(self, limit: int = _TIMELINE_LIMIT) -> "pl.DataFrame":
        """Return a polars frame of the contact's events, newest first.

        Columns: at and occurred_at (UTC), event, payload (JSON), idempotency_key, id.
        """
        items = self._items(limit, "event")
        rows = []
        for item in items:
            event = item.detail
            key = event["idempotencyKey"]
            rows.append((item.at, event["event"], event["occurredAt"], event["payload"], key, item.id))
        columns = {"at": datetime, "event": str, "occurred_at": datetime, "payload": dict, "idempotency_key": str}
        return _timeline_frame(items, "Events", rows, **columns, id=str)

    @usage_example(".history() or .history(limit=10_000)")
    def history(self, limit: int = _TIMELINE_LIMIT) -> "pl.DataFrame":
        """Return a polars frame of the changes of the contact's values, newest first.

        Columns: at (UTC), field (email, walletAddress, externalId, attributes.NAME, tags, optedOut, segments.NAME,
        mergedInto), old and new (JSON, null: no value), cause (event, step, merge, import, person, refresh), cause_id
        (the event, the entry of the step, the merge, the key), contact_id. A contact has no change for the values that
        it was created with.
        """
        from workbench.display.frame import shown_frame

        changes: list[ContactChangeView] = []
        before = None
        while len(changes) < limit:
            size = min(_TIMELINE_PAGE, limit - len(changes))
            page = self._connection.get(self._path("/history"), before=before, limit=size)
            changes += msgspec.convert(page["history"], list[ContactChangeView])
            before = page["next"]
            if before is None:
                break
        shown = [
            (moment(c.changed_at), c.field, _value_text(c.old), _value_text(c.new), c.cause)
            for c in changes[:_SHOWN_ITEMS]
        ]
        rows = [
            (c.changed_at, c.field, _json_text(c.old), _json_text(c.new), c.cause, c.cause_id, c.contact_id)
            for c in changes
        ]
        view = TableView(_CHANGE_COLUMNS, shown, f"History: {quantity(len(rows), 'change')}")
        columns = {"at": datetime, "field": str, "old": str, "new": str, "cause": str, "cause_id": str}
        return shown_frame(view, rows, **columns, contact_id=str)

    @usage_example('.explain("Thanks for the deposit") or .explain(a, "deposit", payload={…})')
    def explain(
        self, automation: object, event: EventToExplain = None, *, limit: int = 20, **fields: Unpack[EventValues]
    ) -> Explanations:
        """Return why an automation did or did not start on the contact's newest events, filter by filter.

        `automation`: an automation or its name. `event`: the id of one event, or an event that has not happened, with
        its fields as in `wb.events.send`. The server applies the engine's rules to the version that was live when the
        event arrived, and to the contact as it was then.
        """
        return explain(self._connection, self.id, automation, event, fields, limit)

    def export(self) -> dict[str, Any]:
        """Return everything stored about the contact, oldest first; only `history` is newest first.

        contact, absorbed, events, entries with steps, messages, onchainEvents, consents, history.
        """
        exported: dict[str, Any] = self._connection.get(self._path("/export"))
        return exported

    def erase(self) -> str:
        """Erase the contact's identifiers, attributes, payloads and texts permanently; return a summary.

        Its events and entries remain and still count in reports. Your key needs contacts:erase.
        """
        body = self._connection.delete(self._path())
        self._row = None
        for name in vars(self).keys() & {*ContactView.__struct_fields__} - {"id"}:
            delattr(self, name)
        ended = quantity(body["cancelledEntries"], "entry", "entries")
        return f"Erased: the data of {self.id} does not identify a person. Its events still count; {ended} cancelled."

    def _set_opt_outs(self, channels: tuple[str, ...], *, opted_out: bool) -> Self:
        if not channels:
            names = join_or([f'"{name}"' for name in CHANNELS])
            raise InvalidArgumentError(f"Pass at least one channel: {names}")
        return self._update(self._connection.put(self._path("/opt-outs"), dict.fromkeys(channels, opted_out)))

    def _update(self, body: Any) -> Self:
        return self._show(msgspec.convert(body, ContactView))

    def _path(self, suffix: str = "") -> str:
        return f"/contacts/{self.id}{suffix}"

    def _items(self, limit: int, kind: str | None = None) -> list[TimelineItemView]:
        items: list[TimelineItemView] = []
        path, before = self._path("/timeline"), None
        while len(items) < limit:
            size = min(_TIMELINE_PAGE, limit - len(items))
            page = self._connection.get(path, before=before, limit=size, kind=kind)
            items += msgspec.convert(page["timeline"], list[TimelineItemView])
            before = page["next"]
            if before is None:
                break
        return items

    def _fields(self, row: ContactView) -> list[tuple[str, str]]:
        fields = {
            "email": row.email and row.email + (" (masked: this key lacks pii:read)" if MASK in row.email else ""),
            "wallet": row.wallet_address,
            "external id": row.external_id,
            **{f"attribute {name}": value for name, value in row.attributes.items()},
            "tags": ", ".join(row.tags),
            "segments": ", ".join(row.segments),
            "opted out of": ", ".join(row.opted_out),
            "declined topics": ", ".join(row.declined),
            "emails suppressed": _SUPPRESSED.get(row.suppressed or ""),
            "since (UTC)": moment(row.created_at),
        }
        return [(name, str(value)) for name, value in fields.items() if value not in (None, "")]

    def _counts(self) -> str:
        counts = self._connection.get("/contacts", id=self.id)["counts"]
        nouns = (
            ("events", "event", ""),
            ("entries", "entry", "entries"),
            ("messages", "message", ""),
            ("conflicts", "identity conflict", ""),
        )
        return ", ".join(quantity(counts[name], noun, plural) for name, noun, plural in nouns)

    @printable_text
    def __repr__(self) -> str:
        if self._row is None:
            return f"Contact {self.id}: erased"
        fields = plain(_CONTACT_COLUMNS, self._fields(self._row))
        timeline = plain(*_timeline_table(self._items(_SHOWN_ITEMS)))
        return "\n".join([f"Contact {self.id}", self._counts(), "", fields, "", timeline])

    def _repr_html_(self) -> str:
        if self._row is None:
            return table(_CONTACT_COLUMNS, (), title=f"Contact {self.id}", empty="Erased.")
        items = self._items(_SHOWN_ITEMS)
        # A request of its own: a conflict may be older than the newest items.
        conflicts = self._items(_SHOWN_ITEMS, "conflict")
        return html(
            "contact.html.j2",
            title=f"Contact {self.id}",
            counts=self._counts(),
            fields=(_CONTACT_COLUMNS, self._fields(self._row)),
            conflicts=[f"{moment(conflict.at)}: {conflict.sentence}" for conflict in conflicts],
            timeline=_timeline_table(items),
            note="More: .timeline, .events(), .explain(automation)" if len(items) == _SHOWN_ITEMS else "",
        )


_CONTACT_COLUMNS = table_columns("field", "value")
_SUPPRESSED = {  # an opt-out is in its own row
    "bounced": 'an email bounced; .opt_in("email") tries again',
    "complained": "the recipient complained about an email",
}
_TIMELINE_COLUMNS = table_columns("at (UTC)", "kind", "what happened")
_CHANGE_COLUMNS = table_columns("at (UTC)", "field", "old", "new", "cause")


def _json_text(content: Any) -> str | None:
    return None if content is None else encode(content).decode()


def _value_text(content: Any) -> str:
    return "" if content is None else value(content)


def _timeline_table(items: Sequence[TimelineItemView]) -> tuple[Sequence[TableColumn], Sequence[Sequence[str]]]:
    return _TIMELINE_COLUMNS, [(moment(item.at), item.kind, item.sentence) for item in items]


def _timeline_frame(
    items: Sequence[TimelineItemView], title: str, rows: Sequence[Any], **columns: type
) -> "pl.DataFrame":
    from workbench.display.frame import shown_frame

    view = TableView(*_timeline_table(items), f"{title}: {quantity(len(rows), 'row')}")
    return shown_frame(view, rows, **columns)


def contact(connection: Connection, contact_id: str | None, identifier: Mapping[str, str]) -> Contact:
    if (contact_id is None) == (not identifier):
        raise InvalidArgumentError(
            'Pass an id or an identifier: wb.contact("0198…") or wb.contact(email="ada@example.com")'
        )
    if contact_id is not None:
        return Contact(connection, msgspec.convert(connection.get(f"/contacts/{contact_id}"), ContactView))
    names = {"wallet_address": "walletAddress", "external_id": "externalId"}
    body = {"contact": {names.get(name, name): value for name, value in identifier.items()}}
    # A POST, so that identifiers stay out of URLs, which proxies and servers write to their logs.
    return Contact(connection, msgspec.convert(connection.post("/contacts/find", body), ContactView))


class Merge:
    """A preview of a merge, displayed as a table. `.apply()` merges the contacts, `.undo()` reverts the merge.

    `id`: the id of the merge in the audit log; None before it is applied. `moves`: what moves to the kept contact, by
    identifiers, attributes, tags, opted_out and segments. `lost`: attributes of the absorbed contact that are hidden by
    those of the kept one.
    """

    def __init__(self, connection: Connection, row: MergeView) -> None:
        self._connection = connection
        self._show(row, "This is a preview. .apply() merges the contacts.")

    def _show(self, row: MergeView, note: str) -> Self:
        self._row, self._note = row, note
        self.id, self.moves, self.lost = row.id, msgspec.structs.asdict(row.moves), row.lost
        return self

    def apply(self) -> Self:
        """Merge the two contacts. Your key needs automations:write."""
        if self._row.id is not None:
            raise InvalidArgumentError("The contacts are already merged. .undo() reverts the merge")
        pair = {"keep": self._row.keep, "absorb": self._row.absorbed}
        row = msgspec.convert(self._connection.post("/contacts/merge", pair), MergeView)
        return self._show(row, f"Merged.{_background_note(row.pending)} .undo() reverts the merge.")

    def undo(self) -> Self:
        """Split the contact into two again. Raises ConflictError, with the later changes that prevent it."""
        if self._row.id is None:
            raise InvalidArgumentError("The contacts are not merged. .apply() merges them")
        body = self._connection.post(f"/contacts/merges/{self._row.id}/undo")
        changed = f" Later values of {join_and(body['stays'])} are kept." if body["stays"] else ""
        note = "Events that arrived while they were merged stay with the contact that they arrived for."
        note = f"Reverted.{changed}{_background_note(body['pending'])} {note}"
        return self._show(msgspec.structs.replace(self._row, id=None), note)

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

    @printable_text
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
    return Merge(connection, msgspec.convert(connection.post("/contacts/merge", pair), MergeView))
