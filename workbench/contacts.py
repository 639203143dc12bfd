"""One contact: what is known of it, what it wants no messages through, what is kept of it, and forgetting it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypedDict

import msgspec

from workbench import timeline as happened
from workbench.connection import Connection
from workbench.display.page import html, moment
from workbench.display.table import Column, plain, table
from workbench.display.words import counted
from workbench.errors import DraftError, NotThereError, spoken
from workbench.explained import Asked, Explained, explained

if TYPE_CHECKING:
    import polars as pl

_NEWEST = 1_000
_COLUMNS = (Column("what"), Column("value"))


class Identified(TypedDict, total=False):
    """One of `email`, `wallet_address`, `external_id`."""

    email: str
    wallet_address: str
    external_id: str


class _Known(msgspec.Struct, frozen=True, rename="camel"):
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


class Contact:
    """A person. Shows what is known; every verb changes it on the server and returns it."""

    def __init__(self, connection: Connection, known: _Known) -> None:
        self._connection = connection
        self._known: _Known | None = known
        self._id = known.id

    @property
    def id(self) -> str:
        """The contact's id, as in `contacts.id`."""
        return self._id

    @property
    def email(self) -> str | None:
        """The address, masked unless your key has pii:read."""
        return self._there().email

    @property
    def wallet_address(self) -> str | None:
        """The wallet, in lower case."""
        return self._there().wallet_address

    @property
    def external_id(self) -> str | None:
        """Your own id of it."""
        return self._there().external_id

    @property
    def attributes(self) -> dict[str, Any]:
        """What events and automations said about it."""
        return self._there().attributes

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return self._there().tags

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments it is in."""
        return self._there().segments

    @property
    def opted_out(self) -> tuple[str, ...]:
        """The channels it wants no messages through."""
        return self._there().opted_out

    @spoken('.opt_out("email"); there are inapp, email, webhook')
    def opt_out(self, *channels: str) -> Self:
        """Send it nothing more through these channels; the engine skips what would go there."""
        return self._choose(channels, is_out=True)

    @spoken('.opt_in("email"), when the contact asks for it')
    def opt_in(self, *channels: str) -> Self:
        """Send it messages through these channels again, also emails that it had unsubscribed."""
        return self._choose(channels, is_out=False)

    @spoken('.tag("vip")')
    def tag(self, *tags: str) -> Self:
        """Give it tags."""
        return self._changed("POST", "/tags", {"add": [*tags]})

    @spoken('.untag("vip")')
    def untag(self, *tags: str) -> Self:
        """Take tags from it."""
        return self._changed("POST", "/tags", {"remove": [*tags]})

    def refresh(self) -> Self:
        """Read it again."""
        return self._told(self._connection.get(self._path()))

    @property
    def timeline(self) -> "pl.DataFrame":
        """What happened to it, the newest first: at, kind (event, entry, message, conflict), sentence, id, detail (JSON).

        The newest 1,000 rows; `.events(most=…)` goes back further.
        """
        return happened.timeline(happened.newest(self._connection, self._there().id, _NEWEST))

    @spoken(".events() or .events(most=10_000)")
    def events(self, most: int = _NEWEST) -> "pl.DataFrame":
        """Return its events, the newest first: at, event, occurred_at, payload (JSON), idempotency_key, id."""
        return happened.events(happened.newest(self._connection, self._there().id, most, "event"))

    @spoken('.explain("Thanks for the deposit") or .explain(a, event={"event": "deposit", "payload": {…}})')
    def explain(self, automation: object, event: Asked = None, *, most: int = 20) -> Explained:
        """Say why an automation (or the one of that name) did or did not take its newest events, filter by filter.

        `event`: the id of one of them, or an event that has not happened. The server judges by what the automation was at each
        event's moment, with the engine's own rules; the contact is the one of today.
        """
        return explained(self._connection, self._there().id, automation, event, most)

    def export(self) -> dict[str, Any]:
        """Return what is kept of it: `contact`, `events`, `entries` with their steps, `messages`, the oldest first."""
        exported: dict[str, Any] = self._connection.get(self._path("/export"))
        return exported

    def erase(self) -> str:
        """Forget it for good: identifiers, attributes, payloads, texts. Its rows stay, and count. Your key needs contacts:erase."""
        answer = self._connection.delete(self._path())
        self._known = None
        ended = counted(answer["cancelledEntries"], "entry", "entries")
        return f"Erased: nothing says any more who {self._id} was. Its events still count; {ended} ended."

    def _choose(self, channels: tuple[str, ...], *, is_out: bool) -> Self:
        if not channels:
            raise DraftError('name a channel: "inapp", "email" or "webhook"')
        return self._changed("PUT", "/opt-outs", dict.fromkeys(channels, is_out))

    def _changed(self, method: str, path: str, body: Mapping[str, Any]) -> Self:
        send = self._connection.put if method == "PUT" else self._connection.post
        return self._told(send(self._path(path), body))

    def _told(self, answer: Any) -> Self:
        self._known = msgspec.convert(answer, _Known)
        self._id = self._known.id  # another one, when it was merged
        return self

    def _path(self, more: str = "") -> str:
        return f"/contacts/{self._id}{more}"

    def _there(self) -> _Known:
        if self._known is None:
            raise NotThereError("this contact was erased")
        return self._known

    def _rows(self) -> list[tuple[str, str]]:
        known = self._there()
        facts = {
            "email": known.email,
            "wallet": known.wallet_address,
            "external id": known.external_id,
            **{f"attribute {name}": value for name, value in known.attributes.items()},
            "tags": ", ".join(known.tags),
            "segments": ", ".join(known.segments),
            "opted out of": ", ".join(known.opted_out),
            "since (UTC)": moment(known.created_at),
        }
        return [(name, str(value)) for name, value in facts.items() if value not in (None, "")]

    def __repr__(self) -> str:
        if self._known is None:
            return f"Contact {self._id}: erased"
        counts, rows = self._told_of(), happened.newest(self._connection, self._id, happened.SHOWN)
        parts = [f"Contact {self._id}", counts, "", plain(_COLUMNS, self._rows()), "", plain(*happened.table_of(rows))]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        if self._known is None:
            return table(_COLUMNS, (), title=f"Contact {self._id}", empty="Erased.")
        rows = happened.newest(self._connection, self._id, happened.SHOWN)
        conflicts = happened.newest(self._connection, self._id, happened.SHOWN, "conflict")
        return html(
            "contact.html.j2",
            title=f"Contact {self._id}",
            counts=self._told_of(),
            known=(_COLUMNS, self._rows()),
            conflicts=[f"{moment(each.at)}: {each.sentence}" for each in conflicts],
            timeline=happened.table_of(rows),
            note="More: .timeline, .events(), .explain(automation)" if len(rows) == happened.SHOWN else "",
        )

    def _told_of(self) -> str:
        """Say how much there is about it."""
        counts = self._connection.get("/contacts", id=self._id)["counts"]
        nouns = (
            ("events", "event", ""),
            ("entries", "entry", "entries"),
            ("messages", "message", ""),
            ("conflicts", "identity conflict", ""),
        )
        return ", ".join(counted(counts[name], noun, plural) for name, noun, plural in nouns)


def contact(connection: Connection, contact_id: str | None, sent: Mapping[str, str]) -> Contact:
    """Return a contact by its id, or by what identifies it."""
    if (contact_id is None) == (not sent):
        raise DraftError('name one: wb.contact("0198…"), or wb.contact(email="ada@example.com")')
    if contact_id is not None:
        return Contact(connection, msgspec.convert(connection.get(f"/contacts/{contact_id}"), _Known))
    names = {"wallet_address": "walletAddress", "external_id": "externalId"}
    asked = {names.get(name, name): value for name, value in sent.items()}
    return Contact(connection, msgspec.convert(connection.post("/contacts/find", {"contact": asked}), _Known))
