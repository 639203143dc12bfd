"""Send the content of a copy of an organization's events: the list of its files, and the events that are not in them.

Both are of one snapshot, which the watermark names. A copy is the listed files without the events of `touched`
contacts, and the events that follow. Those have the names of events instead of numbers, and no columns of payloads.

Rows are written to a temporary file before they are sent. So a snapshot, which keeps Postgres from removing dead rows,
lasts as long as Postgres needs to read them, however slow the client is.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from api.crypto import Keyring
from api.parts import files
from api.parts.listing import MAX_UNFILED_ROWS, Listing, NoPartsError, read_listing, read_unfiled
from api.query.arrow import BatchStream
from api.query.gateway import Gateway
from api.query.limits import ConcurrencyLimits, QuerySlots
from api.query.results import write_watermark
from api.store import part_reads
from api.store import parts as store
from api.store.analyst import QueryTimeoutError, Snapshot, export_snapshot
from api.store.database import Database, Transaction
from api.store.parts import FIRST_ID, EventPage, PartFile, Progress
from workbench.language.responses import LakeFile, LakeManifest

SNAPSHOT_S = 60.0  # a million events take five
DOWNLOAD_LIMITS = ConcurrencyLimits(per_organization=4, total=16)  # that one process sends at a time
CONTACTS_PER_PAGE = 50_000
_TIME = pa.timestamp("us", "UTC")
EVENTS = pa.schema(
    [
        pa.field("contact", pa.int64()),
        pa.field("event", pa.string()),
        pa.field("occurred_at", _TIME),
        pa.field("created_at", _TIME),
        pa.field("id", pa.binary(16)),
        pa.field("payload", pa.string()),
    ]
)
_NO_PARTS = Progress(0, 0, (), "", 0, datetime.fromtimestamp(0, UTC), None, None, None, False)
CONTACTS = pa.schema([pa.field("contact", pa.int64()), pa.field("id", pa.binary(16))])


class LakeSource:
    """Reads what copies need, for one API process. `data_dir` None: parts are switched off."""

    def __init__(self, gateway: Gateway, keyring: Keyring, dsn: str, data_dir: Path | None) -> None:
        self._gateway, self._keyring, self._dsn, self._data_dir = gateway, keyring, dsn, data_dir
        self._downloads = QuerySlots(DOWNLOAD_LIMITS)

    @asynccontextmanager
    async def events(self, org_id: int) -> AsyncIterator[tuple[LakeManifest, BinaryIO]]:
        """Yield the manifest, and a file with the events that are not in its files, as an Arrow stream.

        Raises NoPartsError, TooManyQueriesError, QueryTimeoutError or DatabaseUnavailableError.
        """
        async with self.slot(org_id):
            with TemporaryFile() as output:
                async with self._snapshot(org_id) as tx:
                    shared = await export_snapshot(tx)
                    if shared is None:
                        raise NoPartsError("this database has no common order of transactions")
                    listing = await self._read_listing(tx, org_id, shared[1])
                    if await store.has_unnumbered_contacts(tx, org_id):
                        raise NoPartsError("some contacts have no number yet; run: workbench parts build")
                    manifest = LakeManifest(
                        write_watermark(shared[1], self._keyring.of(org_id)),
                        tuple(
                            LakeFile(part.file, part.rows, part.size, part.sha256.hex())
                            for part in listing.parts
                            if not part.is_logs
                        ),
                        await store.list_event_numbers(tx, org_id) if listing.parts else {},
                        tuple(listing.touched_numbers),
                    )
                    await _write(output, EVENTS, _unfiled(tx, org_id, listing))
                yield manifest, output

    async def _read_listing(self, tx: Transaction, org_id: int, snapshot: Snapshot) -> Listing:
        """Return the listing of an organization. One with few events may have no parts; its listing is then empty."""
        try:
            if self._data_dir is None:
                raise NoPartsError("parts are switched off")
            return await read_listing(tx, self._data_dir, org_id)
        except (NoPartsError, OSError) as error:
            if await store.count_tail(tx, org_id, 0, MAX_UNFILED_ROWS + 1) > MAX_UNFILED_ROWS:
                raise NoPartsError(f"more than {MAX_UNFILED_ROWS:,} events are not in parts: {error}") from error
            return Listing(snapshot, _NO_PARTS, [], [])

    @asynccontextmanager
    async def contacts(self, org_id: int, above: int) -> AsyncIterator[BinaryIO]:
        """Yield a file with the numbers and ids of contacts with numbers above one. Raises as `events`."""
        async with self.slot(org_id):
            with TemporaryFile() as output:
                async with self._snapshot(org_id) as tx:
                    await _write(output, CONTACTS, _contacts(tx, org_id, above))
                yield output

    @asynccontextmanager
    async def _snapshot(self, org_id: int) -> AsyncIterator[Transaction]:
        try:
            # A connection of its own: those of the pool are for short statements.
            async with (
                self._gateway.slot(org_id),
                asyncio.timeout(SNAPSHOT_S),
                Database(self._dsn, size=1, org=str(org_id)) as database,
                database.transaction() as tx,
            ):
                await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                await tx.execute("SET LOCAL enable_nestloop = on")
                await tx.execute(f"SET LOCAL idle_in_transaction_session_timeout = '{SNAPSHOT_S:g}s'")
                yield tx
        except TimeoutError:
            raise QueryTimeoutError(f"reading the rows took longer than {SNAPSHOT_S:g} s") from None

    def slot(self, org_id: int) -> AbstractAsyncContextManager[None]:
        """Hold a slot for one download; raise TooManyQueriesError if none is free in time."""
        return self._downloads.acquire(org_id)

    async def open_file(self, database: Database, org_id: int, file: str) -> tuple[BinaryIO, PartFile] | None:
        """Open a file that is listed now; None if it is not, or cannot be read on this machine."""
        async with database.transaction() as tx:
            part = await store.find_part(tx, org_id, file)
        if part is None or self._data_dir is None:
            return None
        try:
            return await files.look(files.path(self._data_dir, org_id, file).open, "rb"), part
        except OSError:
            return None


async def _write(output: BinaryIO, schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> None:
    stream = BatchStream(schema)

    def write(batch: pa.RecordBatch) -> None:
        output.write(stream.batch(batch))

    async for batch in batches:
        await asyncio.to_thread(write, batch)
    output.write(stream.end())
    output.flush()


async def _unfiled(tx: Transaction, org_id: int, listing: Listing) -> AsyncIterator[pa.RecordBatch]:
    outdated = np.array(listing.touched_numbers, np.int64)
    async for page, of_touched in read_unfiled(tx, org_id, listing.progress.closed, listing.touched):
        batch = _batch(page)
        yield batch if of_touched else batch.filter(pa.array(~np.isin(page.contacts, outdated)))


def _batch(page: EventPage) -> pa.RecordBatch:
    moments = (pa.array(moment).cast(_TIME) for moment in (page.occurred_at, page.created_at))
    return pa.record_batch([pa.array(page.contacts), page.events, *moments, page.ids, page.payloads], schema=EVENTS)


async def _contacts(tx: Transaction, org_id: int, above: int) -> AsyncIterator[pa.RecordBatch]:
    after = FIRST_ID
    while page := await part_reads.read_contact_ids(tx, org_id, above, CONTACTS_PER_PAGE, after):
        batch, after = page
        yield batch
