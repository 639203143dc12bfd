"""A copy of all events on an analyst's machine is equal to the database at its watermark."""

import asyncio
import hashlib
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import msgspec
import polars as pl
import pytest

from api.app import create_app
from api.auth import keys
from api.clock import token
from api.crypto import Keyring
from api.parts import build, files
from api.parts.lake import LakeSource
from api.query.gateway import Gateway
from api.query.limits import ConcurrencyLimits
from api.settings import Settings
from api.store.analyst import TooManyQueriesError
from api.store.database import Database, with_application_name
from tests.in_process import served
from tests.parts.test_logs import insert
from workbench import MissingDependencyError, SqlError, UnknownOutcomeError, Workbench
from workbench.connection import Connection
from workbench.contacts import Contact
from workbench.lake import Lake, sync

SECRET = "a secret of lakes"
_COUNTRIES = ["CH", 'A"\\é', None, True, 12.50, ["x"], "12"]


class Site(msgspec.Struct):
    """An organization over HTTP, whose parts are in `folder`, and its lake in `copy`."""

    client: httpx.AsyncClient
    wb: Workbench
    key: str
    connection: Connection
    database: Database
    org_id: int
    folder: Path
    copy: Path
    now: datetime

    def __repr__(self) -> str:
        return "Site"  # asyncio prints it when a step was slow, and the text of `wb` would wait for this loop

    async def send(self, *numbers: int, **payload: Any) -> None:
        events = [
            {
                "event": ("visit", "buy")[number % 2],
                "contact": {"externalId": f"c-{number % 7}"},
                "payload": {"usd": number / 8, "country": _COUNTRIES[number % 7], "n": [{}], **payload},
            }
            for number in numbers
        ]
        for start in range(0, len(events), 50):
            response = await self.client.post("/events/batch", json={"events": events[start : start + 50]})
            assert response.status_code == 202, response.text

    async def build(self, later: timedelta = timedelta()) -> None:
        self.now += later
        await build.build(self.database, self.folder, self.org_id, lambda: self.now)

    async def sync(self) -> Lake:
        return await asyncio.to_thread(sync, self.connection, self.copy)

    async def assert_equal(self) -> Lake:
        """Sync, and compare every event with that of the database at the watermark."""
        copied = await self.sync()
        found = copied.events.collect().drop("contact").sort("id")
        columns = ["id", "contact_id", "event", "occurred_at", "created_at", "payload"]
        typed = [_column(name) for name in found.columns if name not in columns]
        query = f"SELECT {', '.join([*columns, *typed])} FROM app_events ORDER BY id"
        rows = await asyncio.to_thread(self.wb.sql, query, as_of=copied.watermark)
        assert found.select(rows.columns).equals(pl.DataFrame(rows))
        assert copied.rows == rows.height
        return copied

    def has(self, text: str) -> bool:
        """Return whether a payload in any file of the copy contains a text."""
        return any(
            pl.read_parquet(file)["payload"].str.contains(text, literal=True).any()
            for file in (self.copy / "events").iterdir()
        )

    def parts(self) -> list[Path]:
        return files.list_files(self.folder, self.org_id)

    async def read(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return await self.client.get(path, headers={"authorization": f"Bearer {self.key}", **(headers or {})})

    def contact(self, number: int) -> Contact:
        return self.wb.contact(external_id=f"c-{number}")


def _column(name: str) -> str:
    """Return what a column of a payload's key has, as SQL."""
    kind, _, key = name.partition("_")
    value, number = f"payload -> '{key}'", f"CAST(payload ->> '{key}' AS numeric(38, 18))"
    if kind == "number":
        return f"CASE jsonb_typeof({value}) WHEN 'number' THEN {number} END AS \"{name}\""
    return f"CASE WHEN jsonb_typeof({value}) NOT IN ('object', 'array') THEN payload ->> '{key}' END AS \"{name}\""


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    org_id = await keys.create_org(database_url, "acme")
    scopes = ["sql:read", "contacts:read", "contacts:erase", "automations:write"]
    live = await keys.create(database_url, Keyring(SECRET), "acme", "live")
    key = await keys.create(database_url, Keyring(SECRET), "acme", "workbench", scopes=scopes)
    data_dir = tmp_path / "data"
    app = create_app(Settings(data_dir=data_dir), database_url, SECRET, name=f"lake-{token(4).hex()}")
    async with (
        served(app) as port,
        Database(database_url) as database,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as client,
    ):
        client.headers["authorization"] = f"Bearer {live}"
        url = f"http://127.0.0.1:{port}"
        connection = Connection(url, key)
        wb, copy, now = Workbench(url, key), tmp_path / "copy", datetime.now(UTC)
        yield Site(client, wb, key, connection, database, org_id, data_dir, copy, now)


async def test_a_copy_has_the_events_of_files_and_those_after_them(site: Site) -> None:
    await site.send(*range(40))
    await site.assert_equal()  # without parts
    async with site.database.transaction() as tx:  # logs of chains are not events
        contact_id = await tx.fetch_value("SELECT id FROM contacts LIMIT 1")
        await tx.execute(insert("0"), {"org_id": site.org_id, "first": contact_id})
    await site.build()
    await site.send(*range(40, 60))
    await site.assert_equal()
    await site.send(*range(60, 80), late="yes")  # a key that the first file has no columns for
    await site.build(timedelta(hours=1))
    copied = await site.assert_equal()
    assert copied.rows == 80
    assert copied.events.collect()["text_late"].drop_nulls().to_list() == 20 * ["yes"]


async def test_merges_and_erasures_reach_a_copy_while_events_arrive(site: Site) -> None:
    await site.send(*range(70), secret="erase me")
    await site.build()
    await site.assert_equal()

    async def keep_sending() -> None:
        for number in itertools.count(70):
            await site.send(number, number + 1)

    sending = asyncio.create_task(keep_sending())
    try:
        await asyncio.to_thread(lambda: site.wb.merge(site.contact(1), site.contact(2)).apply())
        await site.assert_equal()
        for contact in (3, 4):
            await asyncio.to_thread(lambda number: site.contact(number).erase(), contact)
            await site.assert_equal()
            await site.build(timedelta(minutes=10))
        await site.assert_equal()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
    for contact in (0, 1, 5, 6):
        await asyncio.to_thread(lambda number: site.contact(number).erase(), contact)
    assert site.has("erase me")
    await site.assert_equal()  # the files of the service still have them
    assert not site.has("erase me")


async def test_a_download_continues_and_is_compared_with_its_digest(site: Site) -> None:
    await site.send(*range(40))
    await site.build()
    (part,) = site.parts()
    (site.copy / "downloads").mkdir(parents=True)
    unfinished = site.copy / "downloads" / f"{UUID(part.stem)}.part"
    unfinished.write_bytes(part.read_bytes()[:1000])
    await site.assert_equal()
    (site.copy / "events" / f"{UUID(part.stem)}.parquet").unlink()
    unfinished.write_bytes(b"x" * 1000)
    with pytest.raises(UnknownOutcomeError, match="did not arrive as it was sent"):
        await site.sync()
    await site.assert_equal()
    assert [path.name for path in (site.copy / "downloads").iterdir()] == []


async def test_a_copy_follows_parts_that_are_rebuilt(site: Site) -> None:
    await site.send(*range(40))
    await site.build()
    before = await site.assert_equal()
    await build.drop(site.database, site.folder, site.org_id, site.now)
    await site.assert_equal()
    assert [path.name for path in (before.folder / "events").iterdir()] == ["tail.parquet"]
    for folder in (site.copy, *filter(Path.is_dir, site.copy.iterdir())):
        assert folder.stat().st_mode & 0o777 == 0o700


async def test_sql_over_a_copy(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    await site.send(*range(40))
    await site.build()
    await site.send(*range(40, 60))
    copied = await site.sync()
    left = copied.folder / "spill-left"  # by a process that was killed
    left.mkdir()
    os.utime(left, (0, 0))
    await site.sync()
    assert not left.exists()
    query = "SELECT event, count(*) AS events, sum({}) AS usd FROM {} GROUP BY event ORDER BY event"
    found = await asyncio.to_thread(copied.sql, query.format("number_usd", "events"))
    sums = await asyncio.to_thread(site.wb.sql, query.format("(payload ->> 'usd')::numeric", "app_events"))
    assert found.rows() == sums.rows()
    assert copied.sql("SELECT count(*) FROM events WHERE text_country = $country", country="CH").item() == 9
    with pytest.raises(SqlError, match="nothing"):
        copied.sql("SELECT nothing FROM events")
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingDependencyError, match=r"event-workbench\[lake\]"):
        copied.sql("SELECT 1")


async def test_files_are_sent_to_keys_of_their_organization_that_may_read_sql(site: Site, database_url: str) -> None:
    await site.send(*range(40))
    await site.build()
    (part,) = site.parts()
    path, content = f"/lake/files/{UUID(part.stem)}", part.read_bytes()
    whole = await site.read(path)
    rest = await site.read(path, {"range": "bytes=1000-"})
    assert (whole.status_code, whole.content) == (200, content)
    assert whole.headers["etag"] == f'"{hashlib.sha256(content).hexdigest()}"'
    assert (rest.status_code, rest.content) == (206, content[1000:])
    assert rest.headers["content-range"] == f"bytes 1000-{len(content) - 1}/{len(content)}"
    assert (await site.read(path, {"range": f"bytes={len(content)}-"})).status_code == 416
    await keys.create_org(database_url, "other")
    other = await keys.create(database_url, Keyring(SECRET), "other", "workbench")
    assert (await site.read(path, {"authorization": f"Bearer {other}"})).status_code == 404
    blind = await keys.create(database_url, Keyring(SECRET), "acme", "workbench", scopes=["events:read"])
    for route in (path, "/lake/events", "/lake/contacts"):
        assert (await site.read(route, {"authorization": f"Bearer {blind}"})).status_code == 403
    part.unlink()
    part.symlink_to(part)  # cannot be opened
    assert (await site.read(path)).status_code == 404
    await build.drop(site.database, site.folder, site.org_id, site.now)
    assert (await site.read(path)).status_code == 404


async def test_no_snapshot_is_open_while_rows_are_sent(site: Site) -> None:
    await site.send(*range(40))
    dsn = with_application_name(site.database.dsn, "lakes")
    source = LakeSource(Gateway(site.database, Keyring(SECRET)), Keyring(SECRET), dsn, site.folder)
    async with source.events(site.org_id) as (manifest, rows), site.database.transaction() as tx:
        still_open = "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%lakes'"
        assert await tx.fetch_value(still_open) == 0
        rows.seek(0)
        assert (manifest.files, pl.read_ipc_stream(rows).height) == ((), 40)
    async with source.contacts(site.org_id, 0) as rows:
        rows.seek(0)
        assert pl.read_ipc_stream(rows).height == 7


async def test_few_answers_are_sent_at_a_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = ConcurrencyLimits(per_organization=1, total=2, wait_seconds=0.05)
    monkeypatch.setattr("api.parts.lake.DOWNLOAD_LIMITS", limits)
    source = LakeSource(Gateway(site.database, Keyring(SECRET)), Keyring(SECRET), site.database.dsn, site.folder)
    async with source.slot(site.org_id):
        with pytest.raises(TooManyQueriesError):
            async with source.events(site.org_id):
                pass
        async with source.slot(site.org_id + 1):
            pass


async def test_the_python_in_the_docs_runs(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "WORKBENCH_URL": site.connection.url,
        "WORKBENCH_KEY": site.key,
        "HOME": str(site.copy),
    }.items():
        monkeypatch.setenv(name, value)
    await site.send(*range(40), amountUsd=12.5, asset="USDC")
    names: dict[str, Any] = {}
    page = Path(__file__).parents[2] / "docs" / "lake.md"
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
        await asyncio.to_thread(exec, block, names)
    amounts = await asyncio.to_thread(names["lake"].sql, "SELECT sum(number_amountUsd) FROM events")
    assert amounts.item() == 500
