"""What callers see of contacts: the JSON shapes, nothing else."""

from collections.abc import Callable
from datetime import datetime

import msgspec

from api.store.care import ContactRow
from api.store.export import AbsorbedRow, EntryRow, EventRow, LogRow, MessageRow

Shown = Callable[[str], str]
"""How a reader sees a sealed email address."""


class ContactView(msgspec.Struct, frozen=True, rename="camel"):
    """A contact. `wallet_raw`: the wallet as it was first sent; `opted_out`: the channels it wants nothing through."""

    id: str
    wallet_address: str | None
    wallet_raw: str | None
    email: str | None
    external_id: str | None
    attributes: msgspec.Raw
    tags: list[str]
    segments: list[str]
    opted_out: list[str]
    created_at: datetime
    updated_at: datetime


class AbsorbedView(msgspec.Struct, frozen=True, rename="camel"):
    """A contact that was merged into another, as it was."""

    id: str
    wallet_address: str | None
    email: str | None
    external_id: str | None
    attributes: msgspec.Raw
    tags: list[str]
    created_at: datetime


class EventView(msgspec.Struct, frozen=True, rename="camel"):
    """An event of a contact, with the identifiers that it carried."""

    id: str
    event: str
    occurred_at: datetime
    created_at: datetime
    payload: msgspec.Raw
    idempotency_key: str
    wallet_address: str | None
    email: str | None
    external_id: str | None


class EntryView(msgspec.Struct, frozen=True, rename="camel"):
    """An entry of a contact, with what it looked at and did."""

    id: str
    automation_id: str
    automation_version: int | None
    event_id: str
    state: str
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    created_at: datetime
    updated_at: datetime
    steps: msgspec.Raw


class LogView(msgspec.Struct, frozen=True, rename="camel"):
    """A log of a chain."""

    created_at: datetime
    id: str
    chain_id: int
    contract: str
    event: str
    tx_hash: str
    log_index: int
    block_number: int
    block_time: datetime
    args: msgspec.Raw
    removed: bool


class MessageView(msgspec.Struct, frozen=True, rename="camel"):
    """A message to a contact, of any channel; `recipient`: an address or a url."""

    id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    wallet_address: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    data: msgspec.Raw | None
    created_at: datetime
    sent_at: datetime | None
    delivered_at: datetime | None


def contact_view(row: ContactRow, shown: Shown) -> ContactView:
    """Return the view of a contact."""
    known = msgspec.structs.asdict(row)
    return ContactView(**known | {"email": _address(row.email, shown), "attributes": msgspec.Raw(row.attributes)})


def absorbed_view(row: AbsorbedRow, shown: Shown) -> AbsorbedView:
    """Return the view of a contact that was merged into another."""
    known = msgspec.structs.asdict(row)
    return AbsorbedView(**known | {"email": _address(row.email, shown), "attributes": msgspec.Raw(row.attributes)})


def event_view(row: EventRow, shown: Shown) -> EventView:
    """Return the view of an event."""
    known = msgspec.structs.asdict(row)
    return EventView(**known | {"email": _address(row.email, shown), "payload": msgspec.Raw(row.payload)})


def log_view(row: LogRow) -> LogView:
    """Return the view of a log of a chain."""
    return LogView(**msgspec.structs.asdict(row) | {"args": msgspec.Raw(row.args)})


def entry_view(row: EntryRow) -> EntryView:
    """Return the view of an entry."""
    return EntryView(**msgspec.structs.asdict(row) | {"steps": msgspec.Raw(row.steps)})


def message_view(row: MessageRow, shown: Shown) -> MessageView:
    """Return the view of a message."""
    known = msgspec.structs.asdict(row)
    extra = known.pop("extra")
    if row.channel == "email":
        known["recipient"] = _address(row.recipient, shown)
    return MessageView(**known, data=None if extra is None else msgspec.Raw(extra))


def _address(sealed: str | None, shown: Shown) -> str | None:
    return None if sealed is None else shown(sealed)
