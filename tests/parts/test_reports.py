"""Reports over parts through the API, which counts them in a child process."""

import asyncio
import fcntl
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import msgspec
import psutil
import pytest

from api.app import create_app
from api.auth import keys
from api.clock import token
from api.crypto import Keyring
from api.parts import build
from api.parts.count import MEMORY_BYTES, CountRequest, count, read
from api.parts.reports import ReportCounter
from api.parts.turns import CountingBusyError, progress_file, turn, write_progress
from api.query.gateway import Gateway
from api.settings import Settings
from api.store import parts as store
from api.store.analyst import QueryTimeoutError
from api.store.database import Database, with_application_name
from tests.in_process import served
from workbench import Workbench, reports
from workbench.display.html import ProgressLine
from workbench.language.reports import Funnel, ReportProgress

SECRET = "a secret of the reports over parts"
SINCE = "2026-01-01T00:00:00Z"
REPORTS: dict[str, dict[str, Any]] = {
    "funnel": {"steps": ["visit", "buy"], "by": "country"},
    "revenue": {"event": "buy", "value": "usd", "every": "day"},
    "active_users": {"every": "month"},
}
FUNNEL = Funnel(since=datetime(2026, 1, 1, tzinfo=UTC), steps=("visit", "buy"))


class Shop(msgspec.Struct, frozen=True):
    """An organization with sixty events over HTTP, and parts of the first forty."""

    client: httpx.AsyncClient
    wb: Workbench
    counter: ReportCounter
    database: Database
    folder: Path

    def __repr__(self) -> str:
        return "Shop"  # asyncio prints it when a step was slow, and the text of `wb` would wait for this loop

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
        counter = ReportCounter(Gateway(database, Keyring(SECRET)), database_url, tmp_path)
        yield Shop(client, Workbench(f"http://127.0.0.1:{port}", key), counter, database, tmp_path)
        await counter.close()


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


async def test_files_are_counted_after_the_transaction_has_ended(shop: Shop) -> None:
    dsn = with_application_name(shop.database.dsn, "counting")
    request = CountRequest(dsn, str(shop.folder), 1, "funnel", msgspec.to_builtins(FUNNEL), None)
    rows = await read(request)
    async with shop.database.transaction() as tx:
        still_open = await tx.fetch_value(
            "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE '%counting' AND xact_start IS NOT NULL"
        )
    assert still_open == 0
    counts = rows.count()
    assert counts.counted == (await count(request)).counted
    steps = msgspec.json.decode(counts.counted[0])["steps"]
    assert [(step["event"], step["contacts"]) for step in steps] == [("visit", 7), ("buy", 7)]


async def test_a_process_reads_only_the_organization_of_its_report(shop: Shop, database_url: str) -> None:
    await keys.create_org(database_url, "other")
    async with Database(database_url, org="2") as database, database.transaction() as tx:
        assert await store.list_parts(tx, 1) == []
    request = CountRequest(shop.database.dsn, str(shop.folder), 2, "funnel", msgspec.to_builtins(FUNNEL), None)
    assert (await count(request)).reason == "NoPartsError: no parts"


async def test_two_organizations_count_at_a_time_each_one_report(tmp_path: Path) -> None:
    async with turn(tmp_path, 1):
        with pytest.raises(CountingBusyError):
            async with turn(tmp_path, 1, wait_s=0.1):
                pass
        async with turn(tmp_path, 2):
            with pytest.raises(CountingBusyError):
                async with turn(tmp_path, 3, wait_s=0.1):
                    pass
        async with turn(tmp_path, 3, wait_s=0.1):
            pass
    assert {path.name for path in (tmp_path / "reports").iterdir()} == {"1", "2", "3", "process-0", "process-1"}


async def test_the_sql_answers_while_another_process_counts(shop: Shop) -> None:
    async with turn(shop.folder, 1):
        response = await shop.ask("revenue")
    assert response.headers["Answered-From"] == "sql"
    assert (await shop.ask("revenue")).json() == response.json()


async def test_the_process_of_the_next_report_waits_for_it(shop: Shop) -> None:
    before = await shop.counter.count(1, FUNNEL)
    (spare,) = shop.counter.spares
    after = await shop.counter.count(1, FUNNEL)
    assert before is not None
    assert after is not None
    assert (spare.returncode, after.counted) == (0, before.counted)
    assert shop.counter.spares != [spare]


async def test_the_process_of_the_first_report_starts_with_the_service(shop: Shop, tmp_path: Path) -> None:
    await shop.counter.start()
    assert len(shop.counter.spares) == 1
    without_parts = ReportCounter(Gateway(shop.database, Keyring(SECRET)), shop.database.dsn, tmp_path / "empty")
    await without_parts.start()
    assert without_parts.spares == []


async def test_a_folder_that_cannot_be_read_leaves_reports_to_the_sql(shop: Shop) -> None:
    """So does a mounted one whose server does not answer."""
    unreadable = ReportCounter(Gateway(shop.database, Keyring(SECRET)), shop.database.dsn, Path("/", "x" * 256))
    await unreadable.start()
    assert (unreadable.spares, await unreadable.count(1, FUNNEL)) == ([], None)
    folder_id = shop.folder / "parts" / "id"
    folder_id.unlink()
    folder_id.mkdir()
    request = CountRequest(shop.database.dsn, str(shop.folder), 1, "funnel", msgspec.to_builtins(FUNNEL), None)
    assert (await count(request)).reason == f"NoPartsError: {folder_id} cannot be read: Is a directory"


async def test_a_folder_that_does_not_answer_leaves_the_loop_to_other_work(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    monkeypatch.setattr(Path, "is_dir", lambda _: answers.wait(5))
    monkeypatch.setattr("api.parts.reports.COUNT_TIMEOUT_S", 0.1)
    try:
        with pytest.raises(QueryTimeoutError):
            await shop.counter.count(1, FUNNEL)
    finally:
        answers.set()


async def test_a_process_ends_with_the_one_that_started_it() -> None:
    code = "import subprocess, sys; print(subprocess.Popen(sys.argv[1:]).pid, flush=True); sys.stdin.read()"
    pipe = asyncio.subprocess.PIPE  # which the child inherits and this test keeps open
    starter = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", code, sys.executable, "-P", "-m", "api.parts.count"), stdin=pipe, stdout=pipe
    )
    assert starter.stdout is not None
    child = psutil.Process(int(await starter.stdout.readline()))
    while child.rlimit(psutil.RLIMIT_DATA)[0] != MEMORY_BYTES:  # noqa: ASYNC110  it begins with its limits
        await asyncio.sleep(0.01)
    starter.kill()
    async with asyncio.timeout(10):
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await starter.wait()


async def test_a_cancelled_report_ends_its_process(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_SECRET", SECRET)
    counting = asyncio.create_task(shop.counter.count(1, FUNNEL))
    while not shop.counter.running:  # noqa: ASYNC110  a process has no event for its start
        await asyncio.sleep(0.01)
    (child,) = shop.counter.running
    assert SECRET not in psutil.Process(child.pid).environ().values()
    counting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await counting
    assert (child.returncode, shop.counter.running) == (-9, set())


async def test_progress_has_every_bucket(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUCKET_ROWS", 10)
    await build.build(shop.database, shop.folder, 1, lambda: datetime.now(UTC))
    progress: list[tuple[int, int]] = []
    request = CountRequest(shop.database.dsn, str(shop.folder), 1, "funnel", msgspec.to_builtins(FUNNEL), None, 5)
    await count(request, lambda counted, buckets: progress.append((counted, buckets)))
    assert progress == [(counted, 8) for counted in range(9)]
    await shop.ask("funnel")
    assert msgspec.json.decode(progress_file(shop.folder, 1).read_bytes()) == msgspec.to_builtins(
        ReportProgress("funnel", 8, 8)
    )


async def test_progress_is_that_of_the_report_that_is_being_counted(shop: Shop) -> None:
    async def read() -> Any:
        return (await shop.client.get("/reports/progress")).json()

    nothing = {"report": None, "counted": 0, "buckets": 0}
    assert await read() == nothing
    async with turn(shop.folder, 1):
        assert await read() == nothing
        write_progress(shop.folder, 1, ReportProgress("funnel", 3, 16))
        assert await read() == {"report": "funnel", "counted": 3, "buckets": 16}
    assert await read() == nothing


async def stopped_process(shop: Shop) -> psutil.Process:
    """Return the process that will count the next report of the API, stopped."""
    await shop.ask("revenue")
    (child,) = (child for child in psutil.Process().children() if "api.parts.count" in child.cmdline())
    child.suspend()
    return child


async def test_a_client_that_leaves_ends_the_process_of_its_report(shop: Shop) -> None:
    child = await stopped_process(shop)
    asking = asyncio.create_task(shop.ask("funnel"))
    while not progress_is_locked(shop):  # noqa: ASYNC110  a lock has no event
        await asyncio.sleep(0.01)
    asking.cancel()
    async with asyncio.timeout(10):
        while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        while progress_is_locked(shop):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def progress_is_locked(shop: Shop) -> bool:
    with progress_file(shop.folder, 1).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def test_a_notebook_shows_how_far_a_report_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ProgressLine, "show", lambda _, *line: lines.append(line))
    monkeypatch.setattr(reports, "PROGRESS_INTERVAL_S", 0.1)
    child = await stopped_process(shop)
    asking = asyncio.create_task(asyncio.to_thread(shop.wb.funnel, ["visit", "buy"], since=SINCE))
    while not progress_is_locked(shop):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    write_progress(shop.folder, 1, ReportProgress("funnel", 3, 16))
    while not lines:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    child.resume()
    assert (await asking)["contacts"].to_list() == [7, 7]
    assert lines[0] == ("Report", "3 of 16 buckets of contacts", "busy", 3 / 16)
    assert lines[-1] == ("Report", "counted", "good")
