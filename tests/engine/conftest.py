"""Runs an engine with its own database and without the loop: the test drives it and moves its clock."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import HealthCheck

from api import settings
from api.auth import keys
from api.channels.outcome import Outcome, Sent
from api.channels.outgoing import Transports, open_transports
from api.clock import Clock, uuid7
from api.crypto import Keyring
from api.engine.drive import Driver
from api.ingest.match import Triggers
from api.ingest.parse import EventReader
from api.ingest.store import store_batch
from api.store.automations import VersionRow, insert_version
from api.store.connections import save_connection
from api.store.database import Database
from api.store.segments import SegmentKey, change_some_members, copy_candidates, resolve_members
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import graph_of
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode, encode

SECRET = "engine-test-secret-of-forty-characters-x"


def compared_cases(default: int) -> hypothesis.settings:
    """Run the same `default` cases each time, or as many other ones as `COMPARED_CASES` says."""
    cases = os.environ.get("COMPARED_CASES")
    return hypothesis.settings(
        max_examples=int(cases or default),
        derandomize=cases is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )


class MovedClock(Clock):
    """The time of the database plus an offset that the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta()

    def now_us(self) -> int:
        return super().now_us() + self.ahead // timedelta(microseconds=1)


class ManualClock(MovedClock):
    """A clock that only tests move. Events are received a millisecond before they are stored."""

    def now_us(self) -> int:
        return self.ahead // timedelta(microseconds=1)

    def unique_now_us(self) -> int:
        self._last_unique_us = max(self.now_us() - 1_000, self._last_unique_us + 1)
        return self._last_unique_us


class AcceptingTransport:
    """A transport that accepts every message."""

    async def send(self, *_: Any) -> Outcome:
        return Sent()

    async def close(self) -> None:
        """Do nothing."""


def written_graph(
    nodes: list[dict[str, Any]], edges: list[tuple[str, ...]], settings: dict[str, Any]
) -> dict[str, Any]:
    """Return a graph as it is written in JSON; an edge is (source, target) or (source, target, handle)."""
    written_edges = [
        {"source": edge[0], "target": edge[1], "sourceHandle": edge[2] if len(edge) > 2 else None} for edge in edges
    ]
    return {"nodes": nodes, "edges": written_edges, "settings": settings}


class EngineBench:
    """One organization, its automations and events, and a driver."""

    def __init__(self, database: Database, org_id: int, transports: Transports) -> None:
        self.transports = transports
        self.database = database
        self.org_id = org_id
        self.clock = MovedClock()
        self.retries = RetryPolicy((10.0, 10.0))
        self.keyring = Keyring(SECRET)
        self.driver = self.new_driver()

    def new_driver(self) -> Driver:
        return Driver(self.database, self.keyring, self.clock, self.retries, self.transports)

    async def automation(
        self,
        nodes: list[dict[str, Any]],
        edges: list[tuple[str, ...]],
        version: int | None = 1,
        trigger: dict[str, Any] | None = None,
        snippets: dict[str, Any] | None = None,
        zone: str | None = None,
        **settings: Any,
    ) -> str:
        """Create an automation, published unless `version` is None. `snippets`, `zone`: what publication adds to it."""
        automation_id = uuid7(self.clock.now_us())
        graph = encode(written_graph(nodes, edges, settings) | {"snippets": snippets, "timezone": zone})
        spec = encode(trigger or {"type": "app_event", "event": "deposit"})
        await self.execute(
            "INSERT INTO automations VALUES (%s, %s, 'a', %s::jsonb, %s::jsonb, true, %s, 1, NULL, %s, %s)",
            self.org_id,
            automation_id,
            spec.decode(),
            graph.decode(),
            version,
            self.clock.now(),
            self.clock.now(),
        )
        if version is not None:
            row = VersionRow(version, spec, graph, self.clock.now(), None)
            async with self.database.transaction() as tx:
                await insert_version(tx, self.org_id, automation_id, row, sorted(graph_of(decode(graph)).wakes))
        await self.execute(
            "INSERT INTO automation_epochs VALUES (%s, 1)"
            " ON CONFLICT (org_id) DO UPDATE SET epoch = automation_epochs.epoch + 1",
            self.org_id,
        )
        return automation_id

    async def connection(self, name: str, key: str, url: str = "https://chat.example", **more: Any) -> None:
        """Save a connection with the secret `key` and the optional field `text`."""
        definition = {
            "url": url,
            "headers": {"authorization": "Bearer {{ secrets.key }}"},
            "body": {"text": "{{ fields.text | default('') }}", "id": "{{ messageId }}"},
            "success": {"where": "answer.ok"},
            "permanent": {"where": "answer.error == 'no_channel'"},
        }
        secrets = self.keyring.of(self.org_id).seal_connection(encode({"key": key}).decode(), name)
        now = self.clock.now()
        async with self.database.transaction() as tx:
            written = encode(definition | more).decode()
            await save_connection(tx, self.org_id, name, written, secrets, now, uuid7(self.clock.now_us()))

    async def add_topics(self) -> None:
        """Add the topics of random graphs; contacts that have not confirmed `deals` decline it."""
        await self.execute(
            "INSERT INTO topics (org_id, name, label, opt_in, created_at, updated_at)"
            " SELECT %s, name, name, opt_in, now(), now() FROM (VALUES ('news', 'none'), ('deals', 'double'))"
            " AS t (name, opt_in) ON CONFLICT DO NOTHING",
            self.org_id,
        )

    async def send(self, key: str, contact: dict[str, str] | None = None, **payload: Any) -> None:
        """Ingest a deposit."""
        await self.ingest(
            {
                "event": "deposit",
                "contact": contact or {"walletAddress": evm_wallet("A")},
                "payload": payload,
                "idempotencyKey": key,
            }
        )

    async def ingest(self, *events: dict[str, Any]) -> None:
        """Ingest a batch."""
        batch = []
        for event in events:
            body = encode({"contact": {"walletAddress": evm_wallet("A")}} | event)
            parsed = EventReader(self.clock, "n").read(self.org_id, self.keyring.of(self.org_id), body, False)
            assert not isinstance(parsed, tuple), parsed
            batch.append(parsed)
        async with self.database.transaction() as tx:
            await store_batch(tx, batch, Triggers(self.keyring), self.clock.now())

    async def change_member(self, segment: str, contact_id: str, enters: bool) -> bool:
        """Let a contact enter or leave a segment, as a refresh does; return whether it changed. It starts nothing."""

        async def wanted() -> AsyncIterator[bytes]:
            if enters:
                yield f"{contact_id}\n".encode()

        async def left(_: list[str]) -> None:
            """Do nothing."""

        key = SegmentKey(self.org_id, segment)
        async with self.database.transaction() as tx:
            await copy_candidates(tx, wanted())
            await resolve_members(tx, self.org_id)
            changed = await change_some_members(tx, key, self.clock.now(), [contact_id], left)
        return bool(changed.entered + changed.departed)

    async def drive(self) -> int:
        """Drive entries until none is due; return the number of claims."""
        total = 0
        while claimed := await self.drive_once():
            total += claimed
        return total

    async def drive_once(self) -> int:
        """Drive the entries that are due now, before those that follow from them; return the number of claims."""
        claimed = await self.driver.drive(self.org_id, "ready", 100)
        claimed += await self.driver.drive(self.org_id, "retrying", 100)
        await self.driver.deliveries.stop(60)
        return claimed

    async def drive_together(self) -> int:
        """Drive ready entries with several drivers at once until none is due; return the number of claims."""
        drivers, total = [self.new_driver() for _ in range(8)], 0
        while claimed := sum(await asyncio.gather(*(driver.drive(self.org_id, "ready", 7) for driver in drivers))):
            total += claimed
        return total

    async def steps(self) -> list[str]:
        return [row[0] for row in await self.fetch("SELECT outcome FROM entry_steps ORDER BY entry_id, claim, step")]

    async def entries(self, columns: str = "state, outcome") -> list[tuple[Any, ...]]:
        return await self.fetch(f"SELECT {columns} FROM entries ORDER BY id")

    async def fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        async with self.database.transaction() as tx:
            return await (await tx.execute(query.encode(), values)).fetchall()

    async def execute(self, query: str, *values: Any) -> None:
        async with self.database.transaction() as tx:
            await tx.execute(query.encode(), values)


@pytest.fixture
async def bench(database_url: str, tmp_path: Path) -> AsyncIterator[EngineBench]:
    org_id = await keys.create_org(database_url, "engine")
    database = Database(database_url, size=4, lock_ms=10_000, hot=True)  # tests hold locks for long
    await database.open()
    environment = {"WORKBENCH_DATA_DIR": str(tmp_path), "WORKBENCH_WEBHOOK_ALLOW": "127.0.0.0/8"}
    transports = open_transports(settings.read(environment))
    yield EngineBench(database, org_id, transports)
    await transports.close()
    await database.close()


async def read_report(bench: EngineBench, text: str, params: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a statement of a notebook, read on the views of analysts."""
    named = re.sub(r"(?<!:):(\w+)", r"%(\1)s", text.replace("%", "%%"))
    async with bench.database.transaction() as tx:
        await tx.execute(b"SET LOCAL search_path = analyst")
        return await (await tx.execute(named.encode(), params)).fetchall()
