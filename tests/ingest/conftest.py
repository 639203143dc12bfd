"""Runs live ingest without HTTP: a pipeline on one database per module, and an organization per test."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import pytest

from api.automations import automations
from api.automations.automations import Author
from api.automations.body import NewAutomation
from api.clock import Clock, token, uuid7
from api.crypto import Keyring
from api.embedded import Server
from api.ingest.match import Triggers
from api.ingest.parse import EventReader, Outcome, ParsedEvent
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import Notices
from api.ingest.store import store_batch
from api.store.access import insert_organization
from api.store.automations import AutomationRow
from api.store.database import Database
from tests.conftest import clone
from workbench.language.body import read_body
from workbench.language.codec import decode, encode

_numbers = count(1)


class Intake:
    """The parts of one API process that ingest events."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.database = Database(dsn, size=4)
        self.clock = Clock()
        self.keyring = Keyring("a secret of the tests of ingest")
        self.notices = Notices(self.database, self.clock)
        hot = Database(dsn, size=2, lock_ms=500, hot=True)
        self.pipeline = Pipeline(hot, self.keyring, self.clock, TokenBuckets(0, 1), self.notices)
        self._triggers = Triggers(self.keyring)

    async def start(self) -> None:
        await self.database.open()
        await self.pipeline.start()
        await self.notices.start()
        await self.database.calibrate(self.clock)

    async def stop(self) -> None:
        await self.pipeline.stop()
        await self.notices.stop()
        await self.database.close()

    async def organization(self) -> "Org":
        async with self.database.transaction() as tx:
            org_id = await insert_organization(tx, f"org-{next(_numbers)}-{token(4).hex()}", self.clock.now())
        assert org_id is not None
        return Org(self, org_id)

    async def write(self, *arrivals: ParsedEvent) -> list[Outcome]:
        """Write parsed events of any organizations as one batch."""
        async with self.database.transaction() as tx:
            return await store_batch(tx, list(arrivals), self._triggers, self.clock.now())

    async def rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return rows of the database, with decoded jsonb."""
        async with self.database.transaction() as tx:
            cursor = await tx.execute(statement, values)
            rows = await cursor.fetchall() if cursor.description else []
        return [tuple(decode(value) if isinstance(value, bytes) else value for value in row) for row in rows]


class Org:
    """An organization that sends events."""

    def __init__(self, intake: Intake, org_id: int) -> None:
        self.intake, self.id = intake, org_id
        self.keys = self.org_keys = intake.keyring.of(org_id)
        self._reader = EventReader(intake.clock, token(8).hex())

    async def send(self, *events: dict[str, Any], test: bool = False, through: Pipeline | None = None) -> list[Outcome]:
        """Send events as one request; return their outcomes."""
        return await (through or self.intake.pipeline).ingest(self.id, [encode(event) for event in events], test)

    async def send_at_once(self, *events: dict[str, Any]) -> list[Outcome]:
        """Send every event as a separate request, all concurrently."""
        return [outcome for outcomes in await asyncio.gather(*map(self.send, events)) for outcome in outcomes]

    def arrival(self, sent: dict[str, Any]) -> ParsedEvent:
        """Return a valid event as the pipeline reads it."""
        read = self._reader.read(self.id, self.keys, encode(sent), test_key=False)
        assert isinstance(read, ParsedEvent), read
        return read

    async def automate(
        self, name: str = "", *filters: dict[str, Any], publish: bool = True, where: str | None = None
    ) -> str:
        """Create an active automation for events of one name; return its id."""
        trigger = {"type": "app_event", "event": name or None, "filters": list(filters), "where": where}
        nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "add_tag", "data": {"tag": "seen"}}]
        graph = {"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "x"}]}
        draft = read_body(
            NewAutomation, encode({"name": name or "all", "triggerSpec": trigger, "graph": graph, "active": True})
        )
        assert not isinstance(draft, tuple), draft
        row = await automations.create(self.intake.database, self.author, draft)
        if publish:
            published = await automations.publish(self.intake.database, self.author, row.id, None)
            assert isinstance(published, AutomationRow), published
        return row.id

    @property
    def author(self) -> Author:
        at_us = self.intake.clock.unique_now_us()
        return Author(self.id, uuid7(at_us), at_us)

    async def rows(self, columns: str, table: str, order: str = "1") -> list[tuple[Any, ...]]:
        """Return columns of the organization's rows of a table."""
        return await self.intake.rows(f"SELECT {columns} FROM {table} WHERE org_id = {self.id} ORDER BY {order}")

    async def traces(self) -> dict[str, int]:
        """Return the number of rows by table of ingest, without empty tables."""
        tables = ("events", "idempotency_keys", "contacts", "identities", "entries", "dry_runs", "identity_conflicts")
        counts = ", ".join(f"(SELECT count(*) FROM {table} WHERE org_id = {self.id})" for table in tables)
        (row,) = await self.intake.rows(f"SELECT {counts}")
        return {table: number for table, number in zip(tables, row, strict=True) if number}

    async def contacts(self) -> list[dict[str, Any]]:
        """Return the contacts by wallet and external id, without empty columns, with readable emails."""
        rows = await self.rows(
            "wallet_address, email, external_id, attributes", "contacts", "1 NULLS LAST, 3 NULLS LAST"
        )
        return [
            {name: value for name, value in zip(_CONTACT, self._clear(row), strict=True) if value not in (None, {})}
            for row in rows
        ]

    def _clear(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        wallet, email, *rest = row
        return (wallet, None if email is None else self.keys.open_email(email), *rest)


_CONTACT = ("wallet", "email", "external_id", "attributes")


def event(key: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return an event; `wallet`, `email` and `external_id` go into its contact."""
    contact = {name: fields.pop(field) for field, name in _IDENTIFIERS.items() if field in fields}
    sent = {"event": "deposit", "contact": contact or {"externalId": "u1"}, **fields}
    return sent if key is None else sent | {"idempotencyKey": key}


_IDENTIFIERS = {"wallet": "walletAddress", "email": "email", "external_id": "externalId"}


@pytest.fixture(scope="module")
async def intake(postgres: Server, template: str) -> AsyncIterator[Intake]:
    with clone(postgres, template) as dsn:
        started = Intake(dsn)
        await started.start()
        yield started
        await started.stop()


@pytest.fixture
async def own_intake(database_url: str) -> AsyncIterator[Intake]:
    """An intake on a database of its own, which the test may change."""
    started = Intake(database_url)
    await started.start()
    yield started
    await started.stop()


@pytest.fixture
async def acme(intake: Intake) -> Org:
    return await intake.organization()


@pytest.fixture
async def globex(intake: Intake) -> Org:
    """Another organization."""
    return await intake.organization()
