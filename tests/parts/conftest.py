"""Live ingest, and parts of what it stores, with the fixtures of `tests/ingest`."""

from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.parts import build, files
from api.parts.build import BuildResult
from api.store import parts as store
from api.store.database import Database
from tests.ingest.conftest import Org, acme, intake

__all__ = ["acme", "intake"]

_COLUMNS = ["id", "contact", "event", "occurred_at", "stored_in", "payload", "created_at"]
_HEAP = """
    SELECT e.id::text, c.number, e.event, (extract(epoch FROM e.occurred_at) * 1000000)::bigint, e.stored_in,
           e.payload::text, (extract(epoch FROM e.created_at) * 1000000)::bigint
    FROM events e JOIN contacts c ON c.org_id = e.org_id AND c.id = e.contact_id WHERE e.org_id = %(org_id)s
"""


class Parts(msgspec.Struct):
    """The parts of an organization."""

    org: Org
    folder: Path
    now: datetime

    @property
    def database(self) -> Database:
        return self.org.intake.database

    async def build(self, later: timedelta = timedelta()) -> BuildResult:
        self.now += later
        return await build.build(self.database, self.folder, self.org.id, lambda: self.now)

    async def listed(self) -> list[store.PartFile]:
        async with self.database.transaction() as tx:
            return await store.list_parts(tx, self.org.id)

    def paths(self) -> set[str]:
        folder = files.folder(self.folder, self.org.id)
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def table(self, part: store.PartFile) -> pa.Table:
        return pq.read_table(files.path(self.folder, self.org.id, part.file))

    async def assert_exact(self) -> None:
        """Compare all events with what a reader of parts finds in one snapshot: parts, the tail, touched contacts."""
        async with self.database.transaction() as tx:
            await tx.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            progress = await store.find_progress(tx, self.org.id)
            parts = await store.list_parts(tx, self.org.id)
            touched = {contact.number for contact in await store.list_touched(tx, self.org.id)}
            names = {number: name for name, number in (await store.list_event_numbers(tx, self.org.id)).items()}
            rows = await (await tx.execute(_HEAP, {"org_id": self.org.id})).fetchall()
        closed = 0 if progress is None else progress.closed
        found = [row for row in rows if row[4] >= closed or row[1] in touched]
        for part in parts:
            for row in self.table(part).select(_COLUMNS).to_pylist():
                event_id, contact, event, *rest = row.values()
                if contact not in touched:
                    found.append((str(UUID(bytes=event_id)), contact, names[event], *rest))
        assert sorted(found) == sorted(rows)


@pytest.fixture
async def parts(acme: Org, tmp_path: Path) -> AsyncIterator[Parts]:
    """The parts of an organization, which are dropped at the end: doctor and metrics look at all organizations."""
    yield (opened := Parts(acme, tmp_path, datetime(2026, 11, 27, tzinfo=UTC)))
    await build.drop(opened.database, opened.folder, acme.id, opened.now)


def events(count: int, first: int = 0, contacts: int = 7) -> Iterable[dict[str, object]]:
    """Yield events of a few contacts, with payloads of several kinds."""
    for number in range(first, first + count):
        payload = {
            "n": number,
            "usd": number / 8,
            "country": ["CH", "DE", 'A"\\é'][number % 3],
            "more": {"deep": [number]},
        }
        yield {
            "event": f"event-{number % 4}",
            "contact": {"externalId": f"c-{number % contacts}"},
            "idempotencyKey": f"key-{number}",
            "payload": payload,
        }


async def send(org: Org, count: int, first: int = 0, contacts: int = 7) -> None:
    for start in range(first, first + count, 50):
        await org.send(*events(min(50, first + count - start), start, contacts))
