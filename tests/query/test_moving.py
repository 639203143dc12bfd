"""Watermarks stay valid after a dump is restored in another cluster, which counts transactions from the start."""

import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import msgspec
import psycopg
import pytest

from api.app import create_app
from api.auth import keys
from api.clock import token
from api.crypto import Keyring
from api.embedded import EmbeddedPostgres, Server
from api.embedded.cluster import locate
from api.embedded.paths import server_account
from api.settings import Settings
from api.store.migrate import migrate
from tests.in_process import served

pytestmark = pytest.mark.plain

SECRET = "a secret that moves along"
COUNT = "SELECT count(*) FROM app_events"


class Installation(msgspec.Struct, frozen=True):
    """A served database, and the keys of its organization."""

    client: httpx.AsyncClient
    workbench_key: str
    live_key: str

    async def send(self, event: str) -> None:
        body = {"event": event, "contact": {"externalId": event}, "idempotencyKey": event}
        response = await self.client.post("/api/v1/events", json=body, headers=_bearer(self.live_key))
        assert response.json()["accepted"], response.text

    async def ask(self, as_of: str | None = None) -> httpx.Response:
        body = {"sql": COUNT, "asOf": as_of}
        return await self.client.post("/api/v1/sql", json=body, headers=_bearer(self.workbench_key))

    async def counted(self, as_of: str | None = None) -> tuple[int, str]:
        response = await self.ask(as_of)
        assert response.status_code == 200, response.text
        return response.json()["rows"][0][0], response.headers["Watermark"]


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Server]:
    """Another cluster."""
    with EmbeddedPostgres(tmp_path / "elsewhere") as server:
        yield server


@asynccontextmanager
async def installation(dsn: str, workbench_key: str, live_key: str) -> AsyncIterator[Installation]:
    app = create_app(Settings(), dsn, SECRET, name=f"moving-{token(4).hex()}")
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield Installation(client, workbench_key, live_key)


def at(server: str, database: str) -> str:
    """Return the URL of a server with the database name of another URL."""
    return urlsplit(server)._replace(path=urlsplit(database).path).geturl()


def restore(source: str, target: str) -> None:
    """Dump a database and restore it into an empty one, as an operator would."""
    programs = locate(None, server_account()).folder
    dump = subprocess.run([programs / "pg_dump", "-xO", source], capture_output=True, check=True, timeout=60)
    subprocess.run([programs / "psql", "-qX", target], input=dump.stdout, capture_output=True, check=True, timeout=60)


def use_ids(dsn: str, count: int) -> None:
    """Use up transaction ids: every subtransaction that writes takes one."""
    with psycopg.connect(dsn) as connection:
        connection.execute("CREATE TEMPORARY TABLE t ()")
        connection.execute(
            f"DO $$ BEGIN FOR i IN 1..{count} LOOP"
            " BEGIN INSERT INTO t DEFAULT VALUES; EXCEPTION WHEN others THEN NULL; END; END LOOP; END $$"
        )


def counter(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
        assert row is not None
        return row[0]


async def test_watermarks_outlive_a_move_to_another_cluster(
    postgres: Server, database_url: str, elsewhere: Server
) -> None:
    keyring, admin_dsn = Keyring(SECRET), at(postgres.admin_dsn, database_url)
    use_ids(admin_dsn, 10_000)
    await keys.create_org(database_url, "a")
    both = [await keys.create(database_url, keyring, "a", kind) for kind in ("workbench", "live")]
    async with installation(database_url, *both) as old:
        await old.send("before")
        count, watermark = await old.counted()
        await old.send("after")
        use_ids(admin_dsn, 10)  # ids without events
        late = (await old.counted())[1]
        restore(admin_dsn, elsewhere.dsn)
        assert counter(elsewhere.dsn) < counter(database_url)
        async with installation(elsewhere.dsn, *both) as unnoticed:
            refused = await unnoticed.client.post(
                "/api/v1/events", json={"event": "x", "contact": {"externalId": "x"}}, headers=_bearer(both[1])
            )
            assert refused.status_code == 503
            assert "Watermark" not in (await unnoticed.ask()).headers
        await migrate(elsewhere.dsn, admin_dsn=elsewhere.admin_dsn)
        went_on = (await old.counted())[1]
        async with installation(elsewhere.dsn, *both) as new:
            assert await new.counted(watermark) == (count, watermark)
            first, mark = await new.counted()
            for event in ("new", "newer"):
                await new.send(event)
            assert await new.counted(watermark) == (count, watermark) == (1, watermark)
            assert await new.counted(late) == (2, late)
            assert await new.counted(mark) == (first, mark) == (2, mark)
            assert (await new.counted())[0] == 4
            for watermark, place in ((went_on, new), (mark, old)):
                response = await place.ask(watermark)
                assert response.status_code == 400
                assert response.json()["error"].startswith("asOf: is from a database that diverged from this one")


async def test_citus_neither_returns_nor_accepts_watermarks(postgres: Server, database_url: str) -> None:
    await keys.create_org(database_url, "a")
    both = [await keys.create(database_url, Keyring(SECRET), "a", kind) for kind in ("workbench", "live")]
    async with installation(database_url, *both) as place:
        _, watermark = await place.counted()
        with psycopg.connect(at(postgres.admin_dsn, database_url)) as admin:  # by this row the service recognizes Citus
            admin.execute(
                "INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)"
                " SELECT 1000000, 'citus', extowner, extnamespace, false, '13' FROM pg_extension LIMIT 1"
            )
            admin.execute(  # the service looks only when it connects
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid()"
            )
        assert "Watermark" not in (await place.ask()).headers
        response = await place.ask(watermark)
        assert response.status_code == 400
        assert response.json()["error"].startswith("asOf: is not available on Citus")
