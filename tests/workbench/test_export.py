"""Exports are complete, resume after an interruption, and can be imported into another organization."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import polars as pl
import pytest

from tests.http_server import Handler, serving
from tests.running import Running
from workbench import InvalidArgumentError, SqlError, Workbench, export
from workbench.language.codec import decode, encode

_EVENTS = """
    SELECT event, occurred_at, payload, idempotency_key, c.email, c.wallet_address, c.external_id
    FROM app_events e JOIN contacts c ON c.id = e.contact_id ORDER BY idempotency_key"""
_CONTACTS = "SELECT email, wallet_address, external_id, metadata FROM contacts ORDER BY 3, 2, 1"
_PEOPLE = [
    {"externalId": "u1", "email": "ann@example.com"},
    {"email": "bob@example.com"},
    {"walletAddress": "0xAb", "externalId": "u3"},
]


class Operator:
    """Runs operator commands on the running system."""

    def __init__(self, running: Running) -> None:
        self._url = running.url
        self._environment = running.environment() | {"WORKBENCH_DATA_DIR": str(running.folder / "data")}
        self._environment.pop("DATABASE_URL", None)

    def run(self, *arguments: str | Path) -> str:
        """Run a command and return its output."""
        command = [sys.executable, "-m", "api", *map(str, arguments)]
        done = subprocess.run(command, check=False, env=self._environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def organization(self, name: str, scopes: str = "sql:read,pii:read") -> Workbench:
        """Create an organization and return a workbench for it."""
        self.run("org", "create", name)
        return Workbench(self._url, self.key(name, scopes))

    def key(self, name: str, scopes: str) -> str:
        """Create a key for notebooks."""
        return self.run("key", "create", "--org", name, "--kind", "workbench", "--scopes", scopes).strip()


@pytest.fixture(scope="module")
def operator(running: Running) -> Operator:
    return Operator(running)


@pytest.fixture(scope="module")
def wb(operator: Operator, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench for an organization with 300 events in three months."""
    created = operator.organization("exporting")
    history = tmp_path_factory.mktemp("history") / "events.ndjson"
    history.write_bytes(b"\n".join(map(encode, _history())))
    operator.run("import", history, "--org", "exporting")
    return created


def _history() -> Iterator[dict[str, Any]]:
    for number in range(300):
        yield {
            "event": ("signup", "deposit", "trade")[number % 3],
            "contact": _PEOPLE[number % 7 % 3],
            "occurredAt": f"2026-0{1 + number % 3}-07T05:{number // 60:02}:{number % 60:02}.5Z",
            "payload": {"amount": Decimal(f"{number}.10"), "text": 'tab\t"ünï"', "deep": [{"a": None}]},
            "attributes": {"plan": "pro", "seen": number},
        }


def test_an_export_is_imported_as_the_same_history(operator: Operator, wb: Workbench, tmp_path: Path) -> None:
    exported = wb.export(tmp_path / "out", tables=["events", "contacts", "messages", "entries"])
    assert exported.rows == {"events": 300, "contacts": 3, "messages": 0, "entries": 0}
    copy = operator.organization("copy")
    report = operator.run("import", tmp_path / "out", "--org", "copy")
    assert report == "300 read: 300 stored, 0 duplicates, 0 rejected\n"
    for query in (_EVENTS, _CONTACTS):
        assert copy.sql(query).equals(wb.sql(query))


def test_events_are_written_by_month_and_a_complete_month_is_kept(wb: Workbench, tmp_path: Path) -> None:
    first = wb.export(str(tmp_path), tables=["events"])
    files = sorted((tmp_path / "events").rglob("*.parquet"))
    assert [file.relative_to(tmp_path).as_posix() for file in files] == [
        f"events/month=2026-0{month}/part-0.parquet" for month in (1, 2, 3)
    ]
    assert (first.written, first.kept) == (3, 0)
    frame = pl.read_parquet(files[1])
    assert set(frame["created_at"].dt.month()) == {2}
    files[1].write_bytes(b"cut off")
    second = wb.export(tmp_path, tables=["events"])
    assert (second.written, second.kept, second.rows) == (1, 2, {"events": 300})
    assert pl.read_parquet(files[1]).equals(frame)


def test_a_month_is_written_again_when_it_changes(
    operator: Operator, running: Running, wb: Workbench, tmp_path: Path
) -> None:
    late = tmp_path / "late.ndjson"
    late.write_text('{"event": "signup", "contact": {"externalId": "u9"}, "occurredAt": "2026-02-09T05:00:00Z"}\n')
    wb.export(tmp_path, tables=["events"])
    operator.run("import", late, "--org", "exporting")
    added = wb.export(tmp_path, tables=["events"])
    assert (added.written, added.kept, added.rows) == (1, 2, {"events": 301})
    steward = Workbench(running.url, operator.key("exporting", "contacts:read,contacts:erase,pii:read"))
    steward.contact(external_id="u9").erase()
    erased = wb.export(tmp_path, tables=["events"])
    assert (erased.written, erased.kept, erased.rows) == (1, 2, {"events": 301})
    assert "u9" not in pl.read_parquet(tmp_path / "events")["external_id"]
    analyst = Workbench(running.url, operator.key("exporting", "sql:read"))
    assert analyst.export(tmp_path, tables=["events"]).written == 3
    assert "Email addresses are left out" in repr(analyst.export(tmp_path, tables=["events"]))


def test_an_interrupted_export_leaves_no_file(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal, sys, threading
import polars as pl
from workbench.sql import write_parquet

def frames():
    for number in range(1_000_000):
        if number == 5:
            os.kill(os.getpid(), signal.SIGINT)
        yield pl.DataFrame({"a": [number] * 1000})

write_parquet(frames(), pathlib.Path(sys.argv[1]) / "a.parquet")
"""
    done = subprocess.run([sys.executable, "-c", program, tmp_path], check=False, capture_output=True, timeout=60)
    assert b"KeyboardInterrupt" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_masked_emails_are_left_out_and_reported(
    operator: Operator, running: Running, wb: Workbench, tmp_path: Path
) -> None:
    analyst = Workbench(running.url, operator.key("exporting", "sql:read"))
    exported = analyst.export(tmp_path)
    assert "Email addresses are left out" in repr(exported)
    assert pl.read_parquet(tmp_path / "contacts" / "part-0.parquet")["email"].is_null().all()


def test_an_export_reads_the_fingerprints_of_several_months_at_once(wb: Workbench, tmp_path: Path) -> None:
    requests: list[bytes] = []
    wb._connection._client.event_hooks["request"] = [lambda request: requests.append(request.content)]
    try:
        assert wb.export(tmp_path, tables=["events"]).written == 3
    finally:
        wb._connection._client.event_hooks["request"] = []
    # The bounds, the fingerprints of 16, 64, 256, … weeks, the contacts, and a page of each of three months.
    assert len(requests) <= 1 + 4 + 1 + 3


@pytest.mark.parametrize("limit", [{"contacts": len(_PEOPLE) - 1}, {"bytes": 10}])
def test_contacts_that_are_not_kept_in_memory_are_read_page_by_page(
    wb: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]
) -> None:
    wb.export(tmp_path / "kept", tables=["events"])
    for name, most in limit.items():
        monkeypatch.setitem(export._MEMORY_LIMITS, name, most)
    monkeypatch.setattr(export, "_PAGE_ROWS", 7)
    kept_in_memory = export._ExportRun(wb._connection, tmp_path)._identifiers(export._MEMORY_LIMITS, of_page=False)
    assert kept_in_memory.height == 0
    wb.export(tmp_path / "paged", tables=["events"])
    kept, paged = (pl.read_parquet(tmp_path / name / "events").drop("attributes") for name in ("kept", "paged"))
    assert paged.equals(kept)
    assert kept["external_id"].n_unique() == len(_PEOPLE)


@pytest.fixture
def slow(wb: Workbench) -> Iterator[Workbench]:
    """The workbench of a server on which fingerprints of more than a week take too long."""

    class Slow(Handler):
        def do_POST(self) -> None:
            body = self.read_body()
            params = decode(body).get("params", {})
            # The first month of an export begins in year 1.
            since = max(str(params.get("since", "")), "2026-01-01T00:00:00Z")
            days = datetime.fromisoformat(params.get("until", since)) - datetime.fromisoformat(since)
            if "bounds" in params and days > timedelta(days=8):
                self.answer_json(408, {"error": "sql: the query took longer than 10 s"})
            else:
                answer = httpx.post(f"{wb.url}{self.path}", content=body, headers=dict(self.headers))
                self.answer(answer.status_code, answer.content, {"Content-Type": answer.headers["Content-Type"]})

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Slow)) as server:
        yield Workbench(f"http://127.0.0.1:{server.server_port}", wb._connection._key)


def test_months_that_take_too_long_are_compared_week_by_week(wb: Workbench, slow: Workbench, tmp_path: Path) -> None:
    wb.export(tmp_path, tables=["events"])
    again = slow.export(tmp_path, tables=["events"])
    assert (again.written, again.kept) == (0, 3)


def test_a_query_that_takes_too_long_is_an_sql_error_that_says_so(slow: Workbench) -> None:
    long = {"bounds": 1, "since": "2026-01-01T00:00:00Z", "until": "2026-12-01T00:00:00Z"}
    with pytest.raises(SqlError, match=r"^the query took longer than 10 s$"):
        slow.sql("SELECT :bounds, :since, :until", params=long)


def test_an_unknown_table_is_refused_with_the_known_tables(wb: Workbench, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="'events', 'contacts', 'messages', 'entries'"):
        wb.export(tmp_path, tables=["people"])
