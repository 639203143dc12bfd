"""An import resumes after any interruption, and returns the rows that it refuses."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from api.imports import importer
from api.imports.errors import ImportReport, Rejects, UnwritableError, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import ImportStatus, Listener, import_history
from api.store.database import DatabaseUnavailableError
from tests.ingest.conftest import Org, event
from workbench.language.codec import decode, encode

LINES = 400


class StoppedError(Exception):
    """The import was interrupted."""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the batches of an import so small that a short file has several."""
    monkeypatch.setattr(importer, "BATCH_ROWS", 50)


async def name_of(org: Org) -> str:
    ((name,),) = await org.intake.rows(f"SELECT name FROM organizations WHERE id = {org.id}")
    return str(name)


async def load(
    org: Org, *paths: Path, stop_at: int | None = None, again: bool = False, listener: Listener | None = None
) -> ImportReport:
    """Import files; raise StoppedError after `stop_at` rows."""

    def stop(status: ImportStatus) -> None:
        if stop_at is not None and status.report.read >= stop_at:
            raise StoppedError

    with Rejects(default_rejects_path(paths[0])) as rejects:
        sources, _ = find_sources(paths, ReadOptions(restart=again))
        intake = org.intake
        return await import_history(intake.dsn, intake.keyring, await name_of(org), sources, rejects, listener or stop)


def write(path: Path, count: int = LINES, first: int = 0, bad_every: int = 0) -> Path:
    """Write events; one in `bad_every` has no contact."""
    events = (
        {
            "event": "deposit",
            "contact": {} if bad_every and number % bad_every == 3 else {"externalId": f"u{number % 37}"},
            "occurredAt": f"2025-03-04T05:{number // 60 % 60:02}:{number % 60:02}Z",
            "payload": {"n": number},
            "attributes": {"last": number},
            "idempotencyKey": f"k{number}",
        }
        for number in range(first, first + count)
    )
    path.write_bytes(b"\n".join(map(encode, events)))
    return path


async def stored(org: Org) -> list[int]:
    """Return the numbers of the stored events."""
    return sorted(payload["n"] for (payload,) in await org.rows("payload", "events"))


async def test_large_events_are_stored_in_smaller_batches(acme: Org, tmp_path: Path) -> None:
    """Live ingest waits for the locks of a batch, so a batch must not take longer because its events are large."""
    path, reads, text = tmp_path / "events.ndjson", list[int](), "x" * 15_000
    contact = {"externalId": "u1"}
    fields = {"event": "deposit", "contact": contact, "payload": {"text": text}, "occurredAt": "2025-03-04T05:06:07Z"}
    path.write_bytes(b"\n".join(encode(fields | {"idempotencyKey": str(number)}) for number in range(300)))
    with Rejects(default_rejects_path(path)) as rejects:
        sources, _ = find_sources([path], ReadOptions())
        intake = acme.intake
        await import_history(
            intake.dsn,
            intake.keyring,
            await name_of(acme),
            sources,
            rejects,
            lambda status: reads.append(status.report.read),
        )
    assert reads == [75, 150, 225, 300, 300]  # three steps of 25 rows exceed a megabyte


@pytest.mark.usefixtures("small")
async def test_an_interrupted_import_resumes_where_it_stopped(acme: Org, tmp_path: Path) -> None:
    path = write(tmp_path / "events.ndjson", bad_every=40)
    for stop_at in (50, 100, 50):
        with pytest.raises(StoppedError):
            await load(acme, path, stop_at=stop_at)
    last = await load(acme, path)
    assert (last.before, last.read, last.stored, last.duplicates, last.rejected) == (200, 200, 195, 0, 5)
    assert await stored(acme) == [number for number in range(LINES) if number % 40 != 3]
    assert len(default_rejects_path(path).read_bytes().splitlines()) == 10
    assert await load(acme, path) == ImportReport(before=LINES)
    assert (await load(acme, path, again=True)).duplicates == LINES - 10
    assert len(default_rejects_path(path).read_bytes().splitlines()) == 10


_LOSE_A_BATCH = """
    UPDATE workbench.imports SET lines = lines - 50;
    DELETE FROM workbench.events WHERE (payload ->> 'n')::int >= {};
    DELETE FROM workbench.idempotency_keys k WHERE NOT EXISTS (SELECT FROM workbench.events e WHERE e.id = k.event_id)
"""


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("kept", [50, LINES - 50])
async def test_an_import_ends_when_a_crash_of_postgres_has_lost_a_batch(acme: Org, tmp_path: Path, kept: int) -> None:
    """Commits do not wait for the disk, and Postgres may be back before the next transaction begins."""
    path = write(tmp_path / "events.ndjson")

    def lose_a_batch(status: ImportStatus) -> None:
        if status.report.read == kept + 50:
            with psycopg.connect(acme.intake.dsn, options="-c workbench.org=*") as connection:
                connection.execute(sql.SQL(_LOSE_A_BATCH).format(kept))

    with pytest.raises(DatabaseUnavailableError, match="went back"):
        await load(acme, path, listener=lose_a_batch)
    assert await stored(acme) == list(range(kept))
    assert (await load(acme, path)).stored == LINES - kept
    assert await stored(acme) == list(range(LINES))


@pytest.mark.usefixtures("small")
async def test_files_that_overlap_store_nothing_twice(acme: Org, tmp_path: Path) -> None:
    report = await load(acme, write(tmp_path / "a.ndjson"), write(tmp_path / "b.ndjson", first=LINES // 2))
    assert (report.stored, report.duplicates) == (LINES * 3 // 2, LINES // 2)
    assert await stored(acme) == list(range(LINES * 3 // 2))


@pytest.mark.usefixtures("small")
async def test_a_key_that_repeats_in_the_next_batch_counts_once(acme: Org, tmp_path: Path) -> None:
    path = write(tmp_path / "events.ndjson", count=60)
    path.write_bytes(b"\n".join([path.read_bytes()] * 3))
    report = await load(acme, path)
    assert (report.stored, report.duplicates) == (60, 120)
    assert await stored(acme) == list(range(60))


async def test_a_batch_that_fails_rolls_the_next_one_back(
    acme: Org, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", 7)
    path = write(tmp_path / "events.ndjson", count=60)
    # Three keys of the file belong to events that are already stored.
    await acme.send(*(event(f"k{number}", payload={"n": number}) for number in (20, 21, 40)))
    report = await load(acme, path)
    assert (report.stored, report.duplicates) == (57, 3)
    assert await stored(acme) == list(range(60))


async def test_refused_rows_can_be_corrected_and_imported(acme: Org, tmp_path: Path) -> None:
    path = write(tmp_path / "events.ndjson", count=9, bad_every=4)
    path.write_bytes(path.read_bytes() + b"\n{no json")
    first = await load(acme, path)
    assert (first.stored, first.rejected) == (7, 3)
    refused = [decode(line) for line in default_rejects_path(path).read_bytes().splitlines()]
    assert [row["rejected"]["line"] for row in refused] == [4, 8, 10]
    assert refused[0]["rejected"]["reason"].startswith("contact: ")
    assert refused[2]["rejected"]["text"] == "{no json"
    default_rejects_path(path).write_bytes(
        b"\n".join(encode(row | {"contact": {"externalId": "u1"}}) for row in refused[:2])
    )
    assert await load(acme, default_rejects_path(path)) == ImportReport(read=2, stored=2)
    assert await stored(acme) == list(range(9))


async def test_refused_rows_are_appended_after_a_truncated_line(acme: Org, tmp_path: Path) -> None:
    path = write(tmp_path / "events.ndjson", count=9, bad_every=4)
    await load(acme, path)
    first, second = default_rejects_path(path).read_bytes().splitlines(keepends=True)
    default_rejects_path(path).write_bytes(first + second[:20])
    await load(acme, path, again=True)
    assert default_rejects_path(path).read_bytes().splitlines(keepends=True) == [first, second[:20] + b"\n", second]


async def test_an_unwritable_file_of_refused_rows_stops_an_import(acme: Org, tmp_path: Path) -> None:
    path = write(tmp_path / "events.ndjson", count=9, bad_every=4)
    default_rejects_path(path).mkdir()
    with pytest.raises(UnwritableError, match="--rejects PATH"):
        await load(acme, path)


@pytest.mark.parametrize("chunk", [5, 10_000])
async def test_a_value_that_postgres_refuses_rejects_only_its_row(
    acme: Org, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(importer, "BATCH_ROWS", chunk)
    path = tmp_path / "events.ndjson"
    event: dict[str, Any] = {"event": "e", "contact": {"externalId": "u1"}, "occurredAt": "2025-03-04T05:06:07Z"}
    names = ["unlucky" if n in (20, 21) else "e" for n in range(23)]
    many = [event | {"event": name, "payload": {"n": n}, "idempotencyKey": str(n)} for n, name in enumerate(names)]
    path.write_bytes(b"\n".join(map(encode, many)))
    await acme.intake.rows("ALTER TABLE events DROP CONSTRAINT IF EXISTS unlucky")
    await acme.intake.rows("ALTER TABLE events ADD CONSTRAINT unlucky CHECK (event <> 'unlucky') NOT VALID")
    report = await load(acme, path)
    assert (report.stored, report.rejected, [row.line for row in report.rejected_rows]) == (21, 2, [21, 22])
    assert await stored(acme) == [*range(20), 22]


class Command:
    """Runs `workbench import` as a separate process."""

    def __init__(self, org: Org, name: str, path: Path) -> None:
        self._command = [sys.executable, "-m", "api", "import", str(path), "--org", name]
        secret = {"WORKBENCH_SECRET": "a secret of the tests of ingest"}
        self._environment = os.environ | secret | {"DATABASE_URL": org.intake.dsn}

    def start(self, stderr: int = subprocess.DEVNULL) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, env=self._environment, stdout=subprocess.DEVNULL, stderr=stderr)

    def run(self) -> str:
        return subprocess.run(self._command, env=self._environment, capture_output=True, text=True, check=True).stdout


async def test_a_killed_import_can_be_run_again(acme: Org, tmp_path: Path) -> None:
    command = Command(acme, await name_of(acme), write(tmp_path / "events.ndjson", count=22_000))
    with command.start() as process:
        while not any(lines for (lines,) in await acme.rows("lines", "imports")):
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert " stored, 0 duplicates, 0 rejected" in command.run()
    assert await stored(acme) == list(range(22_000))


async def test_ctrl_c_keeps_the_progress_bar_and_explains_how_to_continue(acme: Org, tmp_path: Path) -> None:
    command = Command(acme, await name_of(acme), write(tmp_path / "events.ndjson", count=300_000))
    terminal, theirs = pty.openpty()
    with command.start(stderr=theirs) as process:
        os.close(theirs)
        output, interrupted = b"", False
        for piece in until_closed(terminal):
            output += piece
            if b" rows/s" in output and not interrupted:
                process.send_signal(signal.SIGINT)
                interrupted = True
    assert process.returncode == 130
    assert b"events.ndjson" in output
    assert b"stopped; imported events are kept; run the same command again to continue" in output


def until_closed(terminal: int) -> Iterator[bytes]:
    with os.fdopen(terminal, "rb", 0) as reader, suppress(OSError):  # Linux raises it when the terminal was closed
        while piece := reader.read(4_096):
            yield piece
