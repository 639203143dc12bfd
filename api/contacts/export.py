"""What is kept of one contact, as the text of one JSON object, piece by piece: a contact may have a million events.

Digests and dry runs are left out.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

from api.authoring.texts import without_addresses
from api.contacts.views import ContactView, Shown, absorbed_view, entry_view, event_view, log_view, message_view
from api.language.codec import encode
from api.store.database import Database, Transaction
from api.store.erasure import BEGINNING, Cursor, Subject
from api.store.export import (
    PAGE,
    MessageRow,
    export_absorbed,
    export_entries,
    export_events,
    export_logs,
    export_messages,
)


class _Dated(Protocol):
    @property
    def created_at(self) -> Any: ...
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=_Dated)
Read = Callable[[Transaction, Subject, Cursor], Awaitable[Sequence[Row]]]


async def pieces(
    database: Database, who: Subject, contact: ContactView, shown: Shown, *, clear: bool
) -> AsyncIterator[bytes]:
    """Yield `{"contact", "absorbed", "events", "entries", "messages", "onchainEvents"}`, the oldest of each first; absorbed are merged contacts.

    Not `clear`: texts of messages that an address may stand in are told as they were written.
    """

    async def messages(tx: Transaction, who: Subject, after: Cursor) -> Sequence[MessageRow]:
        rows = await export_messages(tx, who, after)
        return rows if clear else await without_addresses(tx, who.org_id, rows, lambda row: row.entry_id)

    yield b'{"contact":' + encode(contact)
    async for piece in _listed(database, who, "absorbed", export_absorbed, lambda row: absorbed_view(row, shown)):
        yield piece
    async for piece in _listed(database, who, "events", export_events, lambda row: event_view(row, shown)):
        yield piece
    async for piece in _listed(database, who, "entries", export_entries, entry_view):
        yield piece
    async for piece in _listed(database, who, "messages", messages, lambda row: message_view(row, shown)):
        yield piece
    async for piece in _listed(database, who, "onchainEvents", export_logs, log_view):
        yield piece
    yield b"}"


async def _listed(
    database: Database, who: Subject, name: str, read: Read[Row], view: Callable[[Row], Any]
) -> AsyncIterator[bytes]:
    """Yield one member of the object: an array, page by page, each read in a transaction of its own."""
    yield b',"%b":[' % name.encode()
    after, between = BEGINNING, b""
    while True:
        async with database.transaction() as tx:
            rows = await read(tx, who, after)
        if rows:
            yield between + encode([view(row) for row in rows])[1:-1]
            after, between = (rows[-1].created_at, rows[-1].id), b","
        if len(rows) < PAGE:
            break
    yield b"]"
