"""An organization with an author, real ingest and a real engine's driver, all in the test's own database."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api import settings
from api.app import create_app
from api.auth import keys
from api.automations import automations
from api.automations.automations import Author
from api.automations.body import NewAutomation
from api.channels.outgoing import Transports, open_transports
from api.clock import Clock, token, uuid7
from api.crypto import EmailDisplay, Keyring, OrgKeys
from api.embedded import Server
from api.engine.drive import Driver
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import Notices
from api.settings import Settings
from api.store.automations import AutomationRow
from api.store.database import Database
from tests.conftest import clone
from tests.in_process import served
from tests.routes.conftest import service
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode, encode

__all__ = ["service"]  # a fixture

GREETING: dict[str, Any] = {
    "name": "greeting",
    "triggerSpec": {"type": "app_event", "event": "first_deposit"},
    "graph": {
        "nodes": [
            {"id": "t1", "type": "app_event", "data": {"actionType": "app_event", "event": "first_deposit"}},
            {
                "id": "m1",
                "type": "send_inapp",
                "data": {"title": "Thanks, {{ contact.tier }}", "body": "You paid in {{ amountUsd }}"},
            },
        ],
        "edges": [{"id": "e1", "source": "t1", "target": "m1"}],
    },
}


SECRET = "a test's secret"


class Tenant:
    """The automations, ingest and engine of one organization."""

    def __init__(
        self,
        database: Database,
        pipeline: Pipeline,
        org_id: int,
        keyring: Keyring,
        clock: Clock,
        transports: Transports,
    ) -> None:
        self.database = database
        self.org_id = org_id
        self.keys: OrgKeys = keyring.of(org_id)
        self.show = EmailDisplay(self.keys, clear=True)
        self.clock = clock
        self.key_id = uuid7(clock.unique_now_us())
        self._pipeline = pipeline
        self._driver = Driver(database, keyring, clock, RetryPolicy(()), transports)

    @property
    def author(self) -> Author:
        """The author at this moment."""
        return Author(self.org_id, self.key_id, self.clock.unique_now_us())

    async def create(self, **changes: Any) -> AutomationRow:
        """Create the greeting with these changes."""
        draft = read_body(NewAutomation, encode(GREETING | changes))
        assert not isinstance(draft, tuple), draft
        return await automations.create(self.database, self.author, draft)

    async def publish(self, **changes: Any) -> AutomationRow:
        created = await self.create(**changes)
        published = await automations.publish(self.database, self.author, created.id, None)
        assert isinstance(published, AutomationRow), published
        return published

    async def ingest(self, **event: Any) -> None:
        """Ingest an event through the pipeline of the API."""
        await self._pipeline.ingest(self.org_id, [encode(event)], False)

    async def drive(self) -> int:
        """Run the engine on every entry that is due for its first attempt; return their number."""
        claimed = await self._driver.drive(self.org_id, "ready", 100)
        await self._driver.deliveries.stop(60)
        return claimed

    async def rows(self, statement: str, *values: Any) -> list[Any]:
        async with self.database.transaction() as tx:
            cursor = await tx.execute(statement, values)
            return await cursor.fetchall() if cursor.description else []

    async def add_entry(self, automation_id: str, state: str, outcome: str | None = None) -> str:
        """Store an entry in any state, without its event."""
        entry_id, other = uuid7(self.clock.unique_now_us()), uuid7(self.clock.unique_now_us())
        await self.rows(
            "INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at,"
            " contact_id, state, outcome, attempts, due_at, created_at, updated_at)"
            " VALUES (%s, %s, %s, 1, %s, %s, %s, %s, %s, 3, %s, %s, %s)",
            *(self.org_id, entry_id, automation_id, other, self.clock.now(), other, state, outcome),
            *[self.clock.now()] * 3,
        )
        return entry_id

    async def traces(self) -> list[int]:
        """Return the epoch, and the numbers of audit rows, automations and versions."""
        [row] = await self.rows(
            "SELECT coalesce((SELECT epoch FROM automation_epochs WHERE org_id = %s), 0),"
            " (SELECT count(*) FROM audit_log), (SELECT count(*) FROM automations),"
            " (SELECT count(*) FROM automation_versions)",
            self.org_id,
        )
        return list(row)


NewTenant = Callable[[str], Awaitable[Tenant]]


@pytest.fixture
def keyring() -> Keyring:
    return Keyring(SECRET)


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, size=4)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def open_tenant(
    database: Database, database_url: str, keyring: Keyring, tmp_path: Path
) -> AsyncIterator[NewTenant]:
    """Return a function that opens a tenant: an organization with its services."""
    clock = Clock()
    await database.calibrate(clock)
    pipeline = Pipeline(
        Database(database_url, size=2), keyring, clock, TokenBuckets(1e6, 1_000_000), Notices(database, clock)
    )
    await pipeline.start()

    async def new_tenant(name: str) -> Tenant:
        return Tenant(database, pipeline, await keys.create_org(database_url, name), keyring, clock, transports)

    transports = open_transports(settings.read({"WORKBENCH_DATA_DIR": str(tmp_path)}))
    yield new_tenant
    await transports.close()
    await pipeline.stop()


@pytest.fixture
async def tenant(open_tenant: NewTenant) -> Tenant:
    return await open_tenant("acme")


@pytest.fixture
async def other_tenant(open_tenant: NewTenant) -> Tenant:
    """Another organization."""
    return await open_tenant("other")


class Org:
    """An organization that calls the API with keys of its own."""

    def __init__(self, client: httpx.AsyncClient, dsn: str, name: str, org_id: int) -> None:
        self.id = org_id
        self._client, self._dsn, self._name = client, dsn, name
        self._keys: dict[tuple[str, ...], str] = {}

    @classmethod
    async def create(cls, client: httpx.AsyncClient, dsn: str, name: str) -> "Org":
        return cls(client, dsn, name, await keys.create_org(dsn, name))

    async def call(self, method: str, path: str, body: Any = None, key: tuple[str, ...] = ("workbench",)) -> Any:
        """Return status and decoded answer; `key` is the kind and the scopes."""
        if key not in self._keys:
            self._keys[key] = await keys.create(self._dsn, Keyring(SECRET), self._name, key[0], key[1:])
        content = None if body is None else encode(body)
        headers = {"authorization": f"Bearer {self._keys[key]}", "content-type": "application/json"}
        response = await self._client.request(method, path, content=content, headers=headers)
        return response.status_code, decode(response.content)


@pytest.fixture(scope="module")
def dsn(postgres: Server, template: str) -> Iterator[str]:
    """The database of `client`."""
    with clone(postgres, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
async def client(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(Settings(), dsn, SECRET, f"automations-{token(4).hex()}")
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as opened:
        yield opened


@pytest.fixture
async def acme(client: httpx.AsyncClient, dsn: str) -> Org:
    return await Org.create(client, dsn, f"acme-{token(4).hex()}")
