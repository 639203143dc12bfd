"""`workbench parts`, and the engine that starts it."""

import asyncio
import os
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
import psycopg
import pytest

from api.cli.doctor import check_parts
from api.clock import Clock
from api.contacts.erase import erase
from api.embedded import Server
from api.metrics.collect import Lag
from api.parts import build, builders, files
from api.parts.build import OtherFolderError
from api.parts.builders import DueBuilds, build_all, start_builder
from api.parts.count import CountRequest, count
from api.parts.verify import read_status
from api.settings import Settings
from api.store import parts as store
from api.store.database import Database
from tests.cli.conftest import Here, run
from tests.parts.conftest import Parts, send
from tests.parts.test_faults import full_disk
from tests.parts.test_touched import LATER, contact_ids, contents, touched
from tests.servers import database_dsn
from workbench.language.reports import Funnel

__all__ = ["run"]

pytestmark = pytest.mark.plain

_EVENTS = """
    SET workbench.org = '*';
    INSERT INTO workbench.contacts (org_id, id, created_at, updated_at)
    SELECT o.id, gen_random_uuid(), now(), now() FROM workbench.organizations o, generate_series(1, 3);
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)
    SELECT org_id, gen_random_uuid(), id, 'e', now(), now(), '{"n": 1.50}', '' FROM workbench.contacts
"""


def change(database_url: str, statement: str) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(statement.encode())


def test_parts_are_built_shown_verified_and_dropped(run: Here, database_url: str, tmp_path: Path) -> None:
    run("org", "create", "acme")
    change(database_url, _EVENTS)
    assert run("parts", "status", "--org", "acme") == (0, "acme\tno parts\n", "")
    assert run("parts", "build") == (0, "", "")  # too few events
    assert run("parts", "status") == (0, "", "")
    assert run("parts", "build", "--org", "acme") == (0, "", "3 events added, 0 files rewritten, 0 files deleted\n")
    code, status, _ = run("parts", "status")
    assert code == 0
    assert re.fullmatch(
        r"acme\t3 events in 1 files, 0\.0 MB\t0 not yet\tbuilt \S+\+00:00\t0 contacts outdated\tok\n", status
    )
    assert run("parts", "verify") == (0, "acme\tparts and database are equal\n", "")
    change(database_url, "ALTER TABLE workbench.events DISABLE TRIGGER touch_contacts")
    change(database_url, "SET workbench.org = '*'; UPDATE workbench.events SET payload = '{}'")
    code, differences, _ = run("parts", "verify")
    assert (code, differences.count("has other events in parts than in the database")) == (1, 1)
    change(database_url, "SET workbench.org = '*'; DELETE FROM workbench.events")
    assert "has 3 events in parts and 0 in the database" in run("parts", "verify")[1]
    assert run("parts", "drop", "--org", "acme") == (0, "", "acme: 1 files are no longer used\n")
    assert [*(tmp_path / "parts" / "1").iterdir()] == []
    assert run("parts", "status", "--org", "acme") == (0, "acme\tno parts\n", "")


def test_verify_names_a_file_that_changed_or_is_missing(run: Here, database_url: str, tmp_path: Path) -> None:
    run("org", "create", "acme")
    change(database_url, _EVENTS)
    run("parts", "build", "--org", "acme")
    change(database_url, "SET workbench.org = '*'; UPDATE workbench.parts SET sha256 = ''")
    (file,) = (tmp_path / "parts" / "1").iterdir()
    assert run("parts", "verify") == (1, f"acme\t{file} has changed since it was written\n", "")
    file.unlink()
    assert f"acme\t{file} is missing\n" in run("parts", "verify")[1]


def test_a_build_on_a_full_disk_says_so(run: Here, database_url: str, tmp_path: Path) -> None:
    run("org", "create", "acme")
    change(database_url, _EVENTS)
    with full_disk():
        code, output, error = run("parts", "build", "--org", "acme")
    assert (code, output, error.count("\n")) == (1, "", 1)
    assert re.fullmatch(r"workbench: the parts were not built: .*File too large\n", error)
    assert [*(tmp_path / "parts" / "1").iterdir()] == []


async def test_an_engine_builds_when_it_pays(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "MIN_EVENTS", 20)
    monkeypatch.setattr(builders, "NEW_EVENTS", 10)
    org_id, due = parts.org.id, DueBuilds(parts.database, parts.folder)

    async def is_due(later: timedelta = timedelta()) -> bool:
        parts.now += later
        return org_id in await due.find_due(parts.now)

    await send(parts.org, 19)
    assert not await is_due()
    await send(parts.org, 1, first=19)
    assert not await is_due(timedelta(minutes=59))  # small organizations are counted once an hour
    assert await is_due(timedelta(minutes=1))
    await parts.build()
    assert not await is_due(timedelta(hours=2))
    await send(parts.org, 9, first=20)
    await parts.build()
    await send(parts.org, 9, first=29)
    assert not await is_due(timedelta(minutes=59))
    assert await is_due(timedelta(minutes=1))
    await send(parts.org, 1, first=38)
    await parts.build()
    await send(parts.org, 10, first=39)
    assert await is_due()
    await parts.build(LATER)
    await parts.build(LATER)
    assert not await is_due()
    await erase(parts.database, parts.org.author, (await contact_ids(parts))[0])
    assert await is_due()
    due.pause(parts.now)
    assert not await is_due(timedelta(minutes=9))
    assert await is_due(timedelta(minutes=1))
    await parts.build()
    assert not await is_due()
    await parts.org.intake.rows("UPDATE parts SET month = '1999_01' WHERE org_id = %(id)s", id=org_id)
    assert await is_due()  # its partition is gone
    assert org_id not in await DueBuilds(parts.database, parts.folder / "other").find_due(parts.now)


async def test_a_builder_is_a_process(parts: Parts) -> None:
    await send(parts.org, 20)
    settings = Settings(data_dir=parts.folder)
    assert await start_builder(settings, parts.org.intake.dsn, [parts.org.id])
    assert sum(part.rows for part in await parts.listed()) == 20
    await parts.assert_exact()


async def test_a_failed_build_says_why_until_one_succeeds(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.build()
    await send(parts.org, 20, first=20)
    folder = parts.folder / "parts" / str(parts.org.id)
    hidden = folder.rename(folder.with_name("hidden"))
    folder.write_text("a file in the place of the folder")
    assert parts.org.id in await build_all(parts.database, parts.folder, [parts.org.id], lambda: parts.now)
    status = await read_status(parts.database, parts.org.id)
    assert status is not None
    assert (status.rows, status.tail, status.problem is None) == (20, 20, False)
    folder.unlink()
    hidden.rename(folder)
    assert await build_all(parts.database, parts.folder, [parts.org.id], lambda: parts.now) == {}
    status = await read_status(parts.database, parts.org.id)
    assert status is not None
    assert (status.rows, status.tail, status.problem) == (40, 0, None)


async def test_a_damaged_file_ends_its_parts_and_no_other_build(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.build()
    (path,) = files.list_files(parts.folder, parts.org.id)
    path.write_bytes(bytes(path.stat().st_size))
    await send(parts.org, 20, first=20)
    other = await parts.org.intake.organization()
    await send(other, 5)
    problems = await build_all(parts.database, parts.folder, [parts.org.id, other.id], lambda: parts.now)
    assert [*problems] == [parts.org.id]
    assert "is damaged" in problems[parts.org.id]
    assert [await read_status(parts.database, org_id) is None for org_id in (parts.org.id, other.id)] == [True, False]
    await parts.assert_exact()
    await parts.build()
    await parts.assert_exact()


async def test_within_half_an_hour_no_file_has_an_erased_contact(parts: Parts) -> None:
    await send(parts.org, 40)
    await parts.org.send({"event": "secret", "contact": {"externalId": "c-0"}, "payload": {"canary": "4711"}})
    await parts.build()
    first, second, *_ = await contact_ids(parts)
    await erase(parts.database, parts.org.author, second)
    await parts.build(LATER)  # the next rewrite is ten minutes away
    await erase(parts.database, parts.org.author, first)
    due, minutes = DueBuilds(parts.database, parts.folder), 0
    while b"4711" in contents(parts):
        parts.now += timedelta(minutes=1)
        minutes += 1
        assert minutes <= 30
        if parts.org.id in await due.find_due(parts.now):
            await parts.build()
    assert minutes > 10


async def test_doctor_counts_files_that_an_engine_should_have_deleted(parts: Parts) -> None:
    await send(parts.org, 20)
    parts.now = Clock().now()
    await parts.build()
    await send(parts.org, 20, first=20)
    await parts.build()
    status = await read_status(parts.database, parts.org.id)
    assert status is not None
    assert (status.files, status.removed) == (1, 2)
    for minutes, verdict in ((29, "ok"), (31, "warn")):
        async with parts.database.transaction() as tx:
            later = parts.now + timedelta(minutes=minutes)
            findings = await check_parts(Settings(parts=False), tx, later)
        assert [finding.verdict for finding in findings] == [verdict]
    await builders.drop_all(parts.database, parts.folder / "other", parts.now)
    assert await read_status(parts.database, parts.org.id) is not None
    await builders.drop_all(parts.database, parts.folder, parts.now)
    assert await read_status(parts.database, parts.org.id) is None
    assert parts.paths() == set()


async def test_files_and_marks_without_parts_are_deleted(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.org.intake.rows("UPDATE events SET payload = '{}' WHERE org_id = %(id)s", id=parts.org.id)
    assert len(await touched(parts)) == 7
    await builders.tidy_up(parts.database, parts.folder)
    assert await touched(parts) == set()
    await parts.org.intake.rows("UPDATE events SET payload = '{}' WHERE org_id = %(id)s", id=parts.org.id)
    await parts.build()
    assert await touched(parts) == set()
    other = Parts(parts.org, parts.folder / "other", parts.now)
    stale = files.path(other.folder, other.org.id, "0" * 32)
    stale.parent.mkdir(parents=True)
    stale.touch()
    await builders.tidy_up(other.database, other.folder)
    await builders.tidy_up(parts.database, parts.folder)
    assert (other.paths(), len(parts.paths())) == (set(), 1)
    await parts.assert_exact()


async def test_an_open_transaction_starts_no_builder_and_the_wait_grows(parts: Parts, monkeypatch: Any) -> None:
    monkeypatch.setattr(builders, "NEW_EVENTS", 5)
    await send(parts.org, 20)
    await parts.build()
    due = DueBuilds(parts.database, parts.folder)

    async def behind_since() -> datetime | None:
        async with parts.database.transaction() as tx:
            return (await store.summarize_progress(tx)).behind_since

    async with Database(parts.org.intake.dsn, size=1) as other, other.transaction() as tx:
        await tx.execute("SELECT pg_current_xact_id()")
        await parts.build()
        await send(parts.org, 20, first=20)
        since = await behind_since()
        assert since is not None
        await parts.build(LATER)
        assert await behind_since() == since
        assert parts.org.id not in await due.find_due(parts.now)
    assert parts.org.id in await due.find_due(parts.now)
    await parts.build()
    assert await behind_since() is None


async def test_an_engine_does_its_other_work_while_the_folder_does_not_answer(parts: Parts) -> None:
    folder_id = parts.folder / "parts" / "id"
    folder_id.parent.mkdir()
    os.mkfifo(folder_id)  # a reader waits until there is a writer
    late = threading.Timer(5, folder_id.write_text, [str(uuid4())])
    late.start()
    looking = asyncio.create_task(DueBuilds(parts.database, parts.folder).find_due(parts.now))
    await asyncio.sleep(0.2)
    assert late.is_alive()
    late.cancel()
    await asyncio.to_thread(folder_id.write_text, str(uuid4()))
    assert parts.org.id not in await looking


async def test_another_data_folder_does_not_take_over(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.build()
    other = Parts(parts.org, parts.folder / "other", parts.now)
    assert parts.org.id in await build_all(parts.database, other.folder, [parts.org.id], lambda: parts.now)
    await parts.assert_exact()
    assert other.paths() == set()


async def test_a_folder_that_no_engine_looks_after_is_given_up(parts: Parts) -> None:
    hour, org_id = timedelta(minutes=61), parts.org.id
    await send(parts.org, 20)
    parts.now = Clock().now()
    await parts.build()
    other = Parts(parts.org, parts.folder / "other", parts.now)
    due = DueBuilds(other.database, other.folder)
    assert org_id not in await due.find_due(other.now + hour)  # engines may start at different times
    async with parts.database.transaction() as tx:
        await store.keep_folder(tx, files.find_folder_id(parts.folder), parts.now + hour)
    assert org_id not in await due.find_due(other.now + 2 * hour - timedelta(minutes=2))
    with pytest.raises(OtherFolderError):
        await other.build(2 * hour - timedelta(minutes=2))
    assert org_id in await due.find_due(parts.now + 4 * hour)
    await other.build(4 * hour)
    await other.assert_exact()
    with pytest.raises(OtherFolderError):
        await parts.build()
    await builders.tidy_up(parts.database, parts.folder)
    assert (parts.paths(), len(other.paths())) == (set(), 1)


_CITUS = """
    SET allow_system_table_mods = on;
    INSERT INTO pg_extension
    SELECT 1, 'citus', extowner, extnamespace, false, '0', NULL, NULL FROM pg_extension WHERE extname = 'plpgsql'
"""


def test_citus_is_refused(
    run: Here, postgres: Server, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The extension is only a row of the catalog here, by which the service recognises Citus."""
    run("org", "create", "acme")
    change(database_url, _EVENTS)
    change(database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:]), _CITUS)

    async def read() -> tuple[list[int], str, str]:
        async with Database(database_url, org="*") as database:
            due = DueBuilds(database, tmp_path)
            found = await due.find_due(Clock().now()) + await due.find_due(Clock().now())
            async with database.transaction() as tx:
                (finding,) = await check_parts(Settings(), tx, Clock().now())
        report = Funnel(since=datetime(2026, 1, 1, tzinfo=UTC), steps=("e", "f"))
        request = CountRequest(database_url, str(tmp_path), 1, "funnel", msgspec.to_builtins(report), None)
        return found, finding.message, (await count(request)).reason

    assert asyncio.run(read()) == (
        [],
        "there are no parts on Citus; reports read events from the database",
        "NoPartsError: no parts",
    )
    assert [record.reason for record in caplog.records if record.message == "parts_unsupported"] == [build.ON_CITUS]
    for arguments in (("build", "--org", "acme"), ("drop", "--org", "acme")):
        code, _, error = run("parts", *arguments)
        assert (code, build.ON_CITUS in error) == (1, True)
    assert run("parts", "status", "--org", "acme") == (0, "acme\tno parts\n", "")


async def test_doctor_and_metrics_say_what_keeps_parts_back(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.build()
    clock = Clock()
    lag = Lag(parts.database, clock)
    await lag.poll()
    assert (lag.parts_failing(), lag.parts_behind_s()) == (0, 0.0)
    async with parts.database.transaction() as tx:
        assert (await check_parts(Settings(), tx, clock.now()))[-1].verdict == "ok"
        assert "switched off" in (await check_parts(Settings(parts=False), tx, clock.now()))[0].message
        await store.note_problem(tx, parts.org.id, "No space left on device")
    async with Database(parts.org.intake.dsn, size=1) as other, other.transaction() as open_tx:
        await open_tx.execute("SELECT pg_current_xact_id()")
        await send(parts.org, 1, first=20)
        async with parts.database.transaction() as tx:
            later = await tx.fetch_value("SELECT now() + interval '16 minutes'")
            findings = await check_parts(Settings(), tx, later)
        await lag.poll()
    assert [finding.verdict for finding in findings] == ["warn", "warn"]
    assert findings[0].message.endswith("were not built: No space left on device")
    assert findings[1].message.startswith("events stored since")
    assert "one has been open since" in findings[1].message
    assert lag.parts_failing() == 1
    assert lag.parts_behind_s() > 0


async def test_an_engine_with_nothing_to_build_writes_nothing(parts: Parts) -> None:
    await DueBuilds(parts.database, parts.folder).find_due(parts.now)
    await builders.drop_all(parts.database, parts.folder, parts.now)
    await builders.tidy_up(parts.database, parts.folder)
    assert [*parts.folder.iterdir()] == []
