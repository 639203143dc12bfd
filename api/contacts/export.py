"""The export of one contact: everything stored about it, as one JSON object that is streamed in chunks.

A contact may have a million events, so nothing is built as a whole. Digests and dry runs are not exported.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from api.automations.views import Shown, without_addresses
from api.contacts.contacts import ContactView, absorbed_view, entry_view, event_view, log_view, message_view
from api.store.contacts import (
    EXPORT_PAGE,
    FIRST_CURSOR,
    ContactKey,
    Cursor,
    ExportedMessageRow,
    export_absorbed,
    export_entries,
    export_events,
    export_logs,
    export_messages,
)
from api.store.database import Database, Transaction
from workbench.language.codec import encode


class _Dated(Protocol):
    @property
    def created_at(self) -> Any: ...
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=_Dated)
Read = Callable[[Transaction, ContactKey, Cursor], Awaitable[Sequence[Row]]]


async def export_chunks(
    database: Database, contact_key: ContactKey, contact: ContactView, shown: Shown, *, clear: bool
) -> AsyncIterator[bytes]:
    """Yield `{"contact", "absorbed", "events", "entries", "messages", "onchainEvents"}`, each oldest first.

    `absorbed`: contacts that were merged into this one. Without `clear`, a message text that may contain an email
    address is shown as its template.
    """

    async def messages(tx: Transaction, contact_key: ContactKey, after: Cursor) -> Sequence[ExportedMessageRow]:
        rows = await export_messages(tx, contact_key, after)
        return rows if clear else await without_addresses(tx, contact_key.org_id, rows, lambda row: row.entry_id)

    yield b'{"contact":' + encode(contact)
    for array in (
        _array(database, contact_key, "absorbed", export_absorbed, lambda row: absorbed_view(row, shown)),
        _array(database, contact_key, "events", export_events, lambda row: event_view(row, shown)),
        _array(database, contact_key, "entries", export_entries, entry_view),
        _array(database, contact_key, "messages", messages, lambda row: message_view(row, shown)),
        _array(database, contact_key, "onchainEvents", export_logs, log_view),
    ):
        async for chunk in array:
            yield chunk
    yield b"}"


async def _array(
    database: Database, contact_key: ContactKey, name: str, read: Read[Row], view: Callable[[Row], Any]
) -> AsyncIterator[bytes]:
    """Yield one member of the object, an array."""
    yield b',"%b":[' % name.encode()
    after, separator = FIRST_CURSOR, b""
    while True:
        # Each page has its own transaction: a single one would stay open as long as the client reads.
        async with database.transaction() as tx:
            rows = await read(tx, contact_key, after)
        if rows:
            yield separator + encode([view(row) for row in rows])[1:-1]
            after, separator = (rows[-1].created_at, rows[-1].id), b","
        if len(rows) < EXPORT_PAGE:
            break
    yield b"]"
