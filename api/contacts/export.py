"""The export of one contact: everything stored about it, as one JSON object that is streamed in chunks.

A contact may have a million events, so nothing is built as a whole. Digests and dry runs are not exported.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from api.automations.views import visible_messages
from api.contacts.contacts import change_view, message_with_address, with_address
from api.crypto import EmailDisplay
from api.store.changes import NEWEST_CHANGE, ChangeCursor, ChangeRow, read_changes
from api.store.contacts import (
    EXPORT_PAGE,
    FIRST_CURSOR,
    ContactKey,
    PageCursor,
    export_absorbed,
    export_consents,
    export_entries,
    export_events,
    export_logs,
    export_messages,
)
from api.store.database import Database, Transaction
from api.store.messages import MessageRow
from workbench.language.codec import encode
from workbench.language.responses import ContactView

_Read = Callable[[Transaction, ContactKey, PageCursor, int], Awaitable[Sequence[Any]]]
"""Reads a page of rows, each with `created_at` and `id`."""


async def export_chunks(
    database: Database, contact_key: ContactKey, contact: ContactView, show: EmailDisplay
) -> AsyncIterator[bytes]:
    """Yield a JSON object with the contact and its rows, each list oldest first: a ContactExport.

    `absorbed`: contacts that were merged into this one. Only `history` is newest first.
    """

    async def messages(tx: Transaction, contact_key: ContactKey, after: PageCursor, limit: int) -> Sequence[MessageRow]:
        rows = await export_messages(tx, contact_key, after, limit)
        return await visible_messages(tx, contact_key.org_id, rows, show, lambda row: row.entry_id)

    yield b'{"contact":' + encode(contact)
    for array in (
        _array(database, contact_key, "absorbed", export_absorbed, lambda row: with_address(row, show)),
        _array(database, contact_key, "events", export_events, lambda row: with_address(row, show)),
        _array(database, contact_key, "entries", export_entries, lambda row: row),
        _array(database, contact_key, "messages", messages, lambda row: message_with_address(row, show)),
        _array(database, contact_key, "onchainEvents", export_logs, lambda row: row),
        _array(database, contact_key, "consents", export_consents, lambda row: row),
    ):
        async for chunk in array:
            yield chunk
    async for chunk in _history(database, contact_key, show):
        yield chunk
    yield b"}"


async def _history(database: Database, contact_key: ContactKey, show: EmailDisplay) -> AsyncIterator[bytes]:
    """Yield the member with the changes of the contact, newest first."""
    yield b',"history":['
    before, separator, rows = NEWEST_CHANGE, b"", list[ChangeRow]()
    while not separator or len(rows) == EXPORT_PAGE:
        async with database.transaction() as tx:
            rows = await read_changes(tx, contact_key.org_id, contact_key.contact_id, before, EXPORT_PAGE)
        if not rows:
            break
        yield separator + encode([change_view(row, show) for row in rows])[1:-1]
        before, separator = ChangeCursor(rows[-1].changed_at, rows[-1].contact_id, rows[-1].field), b","
    yield b"]"


async def _array(
    database: Database, contact_key: ContactKey, name: str, read: _Read, view: Callable[[Any], Any]
) -> AsyncIterator[bytes]:
    """Yield one member of the object, an array."""
    yield b',"%b":[' % name.encode()
    after, separator = FIRST_CURSOR, b""
    while True:
        # Each page has its own transaction: a single one would stay open as long as the client reads.
        async with database.transaction() as tx:
            rows = await read(tx, contact_key, after, EXPORT_PAGE)
        if rows:
            yield separator + encode([view(row) for row in rows])[1:-1]
            after, separator = PageCursor(rows[-1].created_at, rows[-1].id), b","
        if len(rows) < EXPORT_PAGE:
            break
    yield b"]"
