"""The API over real HTTP: one server and database for each test file, one organization for each test."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import httpx
import pytest

from api.app import App, create_app
from api.auth import keys
from api.auth.key_format import Kind, choose
from api.clock import token
from api.crypto import Keyring
from api.embedded import Server
from api.routes.request import Services
from api.settings import Settings
from api.store import access
from tests.conftest import clone
from tests.in_process import served
from workbench.language.codec import decode, encode

SECRET = "a secret of the tests of routes"
UNLIMITED = Settings(ingest_rate=0)

_numbers = count(1)


class Service:
    """One API process in the test's event loop."""

    def __init__(self, dsn: str, app: App, port: int, client: httpx.AsyncClient) -> None:
        self.dsn, self.app, self.port, self.client = dsn, app, port, client
        self.keyring = Keyring(SECRET)

    @property
    def services(self) -> Services:
        return self.app.ctx.services  # type: ignore[no-any-return]

    async def organization(self) -> "Org":
        name = f"org-{next(_numbers)}"
        async with self.services.system_database.transaction() as tx:
            org_id = await access.insert_organization(tx, name, self.services.clock.now())
        assert org_id is not None
        return Org(self, name, org_id)

    async def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the rows of a statement, with jsonb decoded."""
        async with self.services.system_database.transaction() as tx:
            cursor = await tx.execute(statement, values)
            rows = await cursor.fetchall() if cursor.description else []
        return [tuple(decode(value) if isinstance(value, bytes) else value for value in row) for row in rows]

    async def exchange(self, *pieces: bytes, answers: int = 1) -> bytes:
        """Send raw bytes; return what the server sends until `answers` answers, its close, or a timeout."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            while not _whole(received, answers) and (more := await asyncio.wait_for(reader.read(65_536), 2)):
                received += more
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()
        return received

    async def half_closed(self, piece: bytes) -> bytes:
        """Send bytes and end the own side; return everything that the server sends until it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(piece)
        writer.write_eof()
        async with asyncio.timeout(20):
            received = await reader.read()
        writer.close()
        return received

    async def send_and_disconnect(self, piece: bytes) -> None:
        """Send bytes and disconnect without waiting for an answer."""
        _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(piece)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


def _whole(received: bytes, answers: int) -> bool:
    for _ in range(answers):
        head, _, rest = received.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        if not length or len(rest) < int(length):
            return False
        received = rest[int(length) :]
    return True


class Org:
    """An organization that calls the API with keys of its own."""

    def __init__(self, service: Service, name: str, org_id: int) -> None:
        self.service, self.name, self.id = service, name, org_id
        self._keys: dict[tuple[str, ...], str] = {}

    async def key(self, kind: Kind = "live", *scopes: str) -> str:
        if (kind, *scopes) not in self._keys:
            wish = keys.KeySpec(self.id, self.name, kind, choose(kind, scopes or None), "")
            async with self.service.services.system_database.transaction() as tx:
                self._keys[kind, *scopes], _ = await keys.issue(
                    tx, self.service.keyring, wish, self.service.services.clock.now()
                )
        return self._keys[kind, *scopes]

    async def call(
        self, method: str, path: str, body: Any = None, kind: Kind = "live", **headers: str
    ) -> httpx.Response:
        """Call with a key of the organization; a body that is not bytes is sent as JSON."""
        content = body if isinstance(body, bytes) or body is None else encode(body)
        sent = {"authorization": f"Bearer {await self.key(kind)}", "content-type": "application/json", **headers}
        return await self.service.client.request(method, path, content=content, headers=sent)

    async def post(self, event: Any, kind: Kind = "live") -> tuple[int, dict[str, Any]]:
        """Send one event; return status and body."""
        response = await self.call("POST", "/events", event, kind)
        return response.status_code, decode(response.content)

    async def post_batch(self, *events: Any, kind: Kind = "live") -> list[dict[str, Any]]:
        """Send a batch; return its results."""
        response = await self.call("POST", "/events/batch", {"events": list(events)}, kind)
        assert response.status_code == 202, response.text
        results: list[dict[str, Any]] = decode(response.content)["results"]
        return results

    async def get(self, path: str, kind: Kind = "live") -> tuple[int, dict[str, Any]]:
        response = await self.call("GET", path, kind=kind)
        return response.status_code, decode(response.content)

    async def traces(self) -> dict[str, int]:
        """Return the number of the organization's rows in each table of ingest that has any."""
        tables = ("events", "idempotency_keys", "contacts", "identities", "entries", "dry_runs", "identity_conflicts")
        counts = ", ".join(f"(SELECT count(*) FROM {table} WHERE org_id = {self.id})" for table in tables)
        (row,) = await self.service.rows(f"SELECT {counts}")
        return {table: number for table, number in zip(tables, row, strict=True) if number}

    async def rows(self, columns: str, table: str, order: str = "id") -> list[tuple[Any, ...]]:
        """Return columns of the organization's rows of a table."""
        return await self.service.rows(f"SELECT {columns} FROM {table} WHERE org_id = {self.id} ORDER BY {order}")


@asynccontextmanager
async def serving(dsn: str, settings: Settings = UNLIMITED) -> AsyncIterator[Service]:
    """Run an API on a free port until the block ends."""
    app = create_app(settings, dsn, SECRET, f"routes-{token(4).hex()}")
    limits = httpx.Limits(max_connections=200)
    async with (
        served(app) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", limits=limits, timeout=120) as client,
    ):
        yield Service(dsn, app, port, client)


@pytest.fixture(scope="module")
async def service(postgres: Server, template: str) -> AsyncIterator[Service]:
    with clone(postgres, template) as dsn:
        async with serving(dsn) as started:
            yield started


@pytest.fixture
async def acme(service: Service) -> Org:
    return await service.organization()


@pytest.fixture
async def globex(service: Service) -> Org:
    """Another organization."""
    return await service.organization()
