"""Reports over parts through the API, which counts them in a child process."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from api.app import create_app
from api.auth import keys
from api.clock import token
from api.crypto import Keyring
from api.parts import build
from api.parts.reports import ReportCounter
from api.query.gateway import Gateway
from api.settings import Settings
from api.store.database import Database
from tests.in_process import served
from workbench.language.reports import Funnel

SECRET = "a secret of the reports over parts"
SINCE = "2026-01-01T00:00:00Z"
REPORTS: dict[str, dict[str, Any]] = {
    "funnel": {"steps": ["visit", "buy"], "by": "country"},
    "revenue": {"event": "buy", "value": "usd", "every": "day"},
    "active_users": {"every": "month"},
}


class Shop(msgspec.Struct, frozen=True):
    """An organization with sixty events over HTTP, and parts of the first forty."""

    client: httpx.AsyncClient
    counter: ReportCounter

    async def ask(self, name: str, **more: str) -> httpx.Response:
        body = {"since": SINCE, **REPORTS[name], **more}
        response = await self.client.post(f"/reports/{name}", json=body)
        assert response.status_code == 200, response.text
        return response


def _events(numbers: range) -> list[dict[str, Any]]:
    return [
        {
            "event": ("visit", "buy")[number % 2],
            "contact": {"externalId": f"c-{number % 7}"},
            "payload": {"usd": number / 4, "country": ("CH", "DE")[number % 5 > 2]},
            "idempotencyKey": f"{number}",
        }
        for number in numbers
    ]


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> Any:
    org_id = await keys.create_org(database_url, "acme")
    live, key = [await keys.create(database_url, Keyring(SECRET), "acme", kind) for kind in ("live", "workbench")]
    app = create_app(Settings(data_dir=tmp_path), database_url, SECRET, name=f"parts-{token(4).hex()}")
    async with (
        served(app) as port,
        Database(database_url) as database,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=60) as client,
    ):
        sending = {"authorization": f"Bearer {live}"}
        await client.post("/events/batch", json={"events": _events(range(40))}, headers=sending)
        await build.build(database, tmp_path, org_id, lambda: datetime.now(UTC))
        await client.post("/events/batch", json={"events": _events(range(40, 60))}, headers=sending)
        client.headers["authorization"] = f"Bearer {key}"
        yield Shop(client, ReportCounter(Gateway(database, Keyring(SECRET)), database_url, tmp_path))


async def test_reports_are_counted_over_parts_and_the_rows_after_them(shop: Shop, tmp_path: Path) -> None:
    from_parts = [await shop.ask(name) for name in REPORTS]
    watermarks = [response.headers["Watermark"] for response in from_parts]
    again = [await shop.ask(name, asOf=mark) for name, mark in zip(REPORTS, watermarks, strict=True)]
    (folder,) = (tmp_path / "parts").glob("[0-9]*")
    folder.rename(tmp_path / "away")
    by_sql = [await shop.ask(name) for name in REPORTS]
    assert {response.headers["Answered-From"] for response in from_parts + again} == {"parts"}
    assert {response.headers["Answered-From"] for response in by_sql} == {"sql"}
    assert [response.json() for response in from_parts] == [response.json() for response in by_sql]
    assert [response.headers["Query-Hash"] for response in from_parts] == [
        response.headers["Query-Hash"] for response in by_sql
    ]
    assert [row[:4] for row in from_parts[0].json()["rows"] if row[1] == 1] == [
        ["CH", 1, "visit", 5],
        ["DE", 1, "visit", 2],
    ]
    assert [response.json()["rows"][0][:3] for response in again] == [
        response.json()["rows"][0][:3] for response in from_parts
    ]


async def test_a_report_that_nobody_waits_for_ends_its_process(shop: Shop) -> None:
    report = Funnel(since=datetime(2026, 1, 1, tzinfo=UTC), steps=("visit", "buy"))
    counting = asyncio.create_task(shop.counter.count(1, report))
    while not shop.counter.running:  # noqa: ASYNC110  a process has no event for its start
        await asyncio.sleep(0.01)
    (child,) = shop.counter.running
    counting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting
    assert (child.returncode, shop.counter.running) == (-9, set())
