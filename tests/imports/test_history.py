"""An import stores the same rows as live ingest, once, with the times of the events."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.crypto import Keyring
from api.imports.errors import ImportReport, Rejects, ReportedRow, default_rejects_path
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import UnknownOrganizationError, import_history
from api.imports.row import UnreadableFileError
from api.store.database import libpq_dsn, seeing_all_organizations
from workbench.language.codec import encode
from workbench.language.contact import IdentifierKind
from workbench.language.event import Identifiers
from workbench.language.problem import Problem

KEYRING = Keyring("a secret of the tests")
PARTITION = r"regexp_replace(tableoid::regclass::text, '^workbench\.|_\d{6,}$', '', 'g')"  # on Citus that of a shard
DAY = datetime(2025, 3, 4, 5, 6, 7, tzinfo=UTC)


class History:
    """The organization `acme` of a database, with methods to import into it and to read it."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], dsn: str, folder: Path, org_id: int) -> None:
        self.dsn, self.org_keys = dsn, KEYRING.of(org_id)
        self._connection, self._folder = connection, folder

    async def load(self, *events: dict[str, Any] | bytes) -> ImportReport:
        return await self.load_file("events.ndjson", as_lines(events))

    async def load_file(self, name: str, content: bytes) -> ImportReport:
        path = self._folder / name
        path.write_bytes(content)
        return await self.run(path)

    async def run(self, *paths: Path, org: str = "acme", **options: Any) -> ImportReport:
        sources, _ = find_sources(paths, ReadOptions(**options))
        with Rejects(default_rejects_path(paths[0])) as rejects:
            return await import_history(self.dsn, KEYRING, org, sources, rejects)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        async with seeing_all_organizations(self._connection):
            return await (await self._connection.execute(query)).fetchall()


@pytest.fixture
async def history(database_url: str, tmp_path: Path) -> AsyncIterator[History]:
    dsn = libpq_dsn(database_url)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("SET search_path = workbench; SET timezone = 'UTC'")
        cursor = await connection.execute(
            "INSERT INTO organizations (name, created_at) VALUES ('acme', clock_timestamp()) RETURNING id"
        )
        row = await cursor.fetchone()
        assert row is not None
        yield History(connection, database_url, tmp_path, row[0])


def as_lines(events: Iterable[dict[str, Any] | bytes]) -> bytes:
    return b"\n".join(line if isinstance(line, bytes) else encode(line) for line in events)


def event(name: str = "deposit", at: str = "2025-03-04T05:06:07Z", **fields: Any) -> dict[str, Any]:
    return {"event": name, "contact": {"externalId": "u1"}, "occurredAt": at, **fields}


async def test_an_event_is_stored_as_of_when_it_occurred(history: History) -> None:
    report = await history.load(event("First_Deposit", contact={"walletAddress": "0xAb"}, payload={"amount": 5}))
    assert report == ImportReport(read=1, stored=1)
    assert await history.rows("SELECT event, occurred_at, created_at, payload, wallet_address FROM events") == [
        ("first_deposit", DAY, DAY, {"amount": 5}, "0xab")
    ]
    assert await history.rows("SELECT wallet_address, wallet_raw, created_at FROM contacts") == [("0xab", "0xAb", DAY)]
    assert await history.rows(f"SELECT {PARTITION} FROM events") == [("events_2025_03",)]


async def test_importing_twice_stores_nothing_new(history: History) -> None:
    events = [event(at=f"2025-03-04T05:06:{second:02}Z", attributes={"seen": second}) for second in range(30)]
    await history.load(*events)
    before = await history.rows("SELECT * FROM contacts")
    assert await history.load(*events) == ImportReport(before=30)
    assert await history.load(*events, b"") == ImportReport(read=30, duplicates=30)
    assert await history.rows("SELECT count(*) FROM events") == [(30,)]
    assert await history.rows("SELECT * FROM contacts") == before


async def test_a_key_counts_once_within_a_file(history: History) -> None:
    twice = event(idempotencyKey="same", payload={"n": 1}), event(idempotencyKey="same", payload={"n": 2})
    assert await history.load(*twice) == ImportReport(read=2, stored=1, duplicates=1)
    assert await history.rows("SELECT payload, idempotency_key FROM events") == [({"n": 1}, "same")]


async def test_bad_lines_are_reported_and_their_neighbours_stored(history: History) -> None:
    report = await history.load(
        event(),
        b'{"event": "cut off',
        b"",
        event(contact={"email": "nobody"}),
        event("no spaces allowed", contact={}),
        b'{"event": "\xff"}',
        event(at="2025-03-04T05:06:08Z"),
    )
    assert (report.read, report.stored, report.rejected) == (6, 2, 4)
    fields = [(row.line, [problem.field for problem in row.problems]) for row in report.rejected_rows]
    assert fields == [(2, [""]), (4, ["contact.email"]), (5, ["event", "contact"]), (6, [""])]


async def test_an_imported_event_needs_its_time(history: History) -> None:
    undated = {"event": "deposit", "contact": {"externalId": "u1"}}
    assert await history.load(undated, event(test=True), event(at="2099-01-01T00:00:00Z")) == ImportReport(
        read=3,
        rejected=3,
        rejected_rows=(
            ReportedRow(1, (Problem("occurredAt", "is required in an import"),)),
            ReportedRow(2, (Problem("test", "a dry run cannot be imported"),)),
            ReportedRow(3, (Problem("occurredAt", "is more than 5 minutes in the future"),)),
        ),
    )


async def test_attributes_are_merged_in_the_order_of_the_file(history: History) -> None:
    await history.load(event(attributes={"plan": "free", "tier": 1}))
    await history.load(
        event(at="2025-03-05T00:00:00Z", attributes={"plan": "plus", "country": "DE"}),
        event(at="2025-03-01T00:00:00Z", attributes={"plan": "pro"}),
    )
    assert await history.rows("SELECT attributes FROM contacts") == [({"plan": "pro", "tier": 1, "country": "DE"},)]


async def test_emails_are_sealed_and_their_domain_is_clear(history: History) -> None:
    await history.load(event(contact={"email": "Ann@Example.com"}))
    [(sealed, domain, of_event)] = await history.rows(
        "SELECT c.email, email_domain, e.email FROM contacts c"
        " JOIN events e ON e.org_id = c.org_id AND e.contact_id = c.id"
    )
    assert (history.org_keys.open_email(sealed), domain, of_event) == ("ann@example.com", "example.com", sealed)


async def test_no_automation_is_triggered(history: History) -> None:
    await history.load(event())
    assert await history.rows("SELECT count(*) FROM entries") == [(0,)]


async def test_every_text_is_stored_unchanged(history: History) -> None:
    odd = 'tab\t quote" back\\slash \\N line\nend\r ünï'
    await history.load(event(contact={"externalId": odd}, idempotencyKey=odd, payload={"text": odd}))
    assert await history.rows("SELECT external_id, idempotency_key, payload FROM events") == [(odd, odd, {"text": odd})]


async def test_rows_of_a_month_without_partition_stay_in_the_default_partition(history: History) -> None:
    await history.rows(
        "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key) VALUES "
        "(9, gen_random_uuid(), gen_random_uuid(), 'old', '2025-03-09Z', '2025-03-09Z', 'k') RETURNING 1"
    )
    report = await history.load(event(), event(at="1969-07-20T20:17:40Z"), event(at="2025-04-01T00:00:00Z"))
    assert report.stored == 3
    assert await history.rows(
        f"SELECT {PARTITION}, (occurred_at AT TIME ZONE 'UTC')::date::text FROM events ORDER BY 2"
    ) == [
        ("events_other", "1969-07-20"),
        ("events_other", "2025-03-04"),
        ("events_other", "2025-03-09"),
        ("events_2025_04", "2025-04-01"),
    ]


@pytest.mark.plain
async def test_imported_events_have_the_number_of_their_transaction(history: History) -> None:
    await history.load(event())
    assert await history.rows("SELECT stored_in = xmin::text::bigint FROM events") == [(True,)]


async def test_parquet_gives_the_same_as_ndjson(history: History, tmp_path: Path) -> None:
    events = [
        event(at="2025-03-04T05:06:07.123456Z", payload={"a": {"b": 1.50}}, attributes={"vip": True}),
        event(at="2025-03-04T05:06:08Z", contact={"email": "ann@example.com", "walletAddress": "0xAB"}),
        event(at="2025-03-04T05:06:09Z", idempotencyKey="k-1"),
    ]
    await history.load(*events)
    stored = await history.rows("SELECT * FROM events")
    report = await history.load_file("events.parquet", parquet(tmp_path, events))
    assert report == ImportReport(read=3, duplicates=3)
    assert await history.rows("SELECT * FROM events") == stored


async def test_valid_rows_of_parquet_are_stored_and_the_bad_one_is_reported(history: History, tmp_path: Path) -> None:
    table = pa.table(
        {
            "event": ["signup", "signup", "signup", None],
            "occurred_at": pa.array([DAY.replace(tzinfo=None)] * 4, pa.timestamp("ns")),
            "external_id": ["u1", "u2", None, "u4"],
            "payload": ['{"n": 1.10}', '{"n": 1}, "event": "other"', None, "{}"],
        }
    )
    pq.write_table(table, tmp_path / "made.parquet")
    report = await history.load_file("events.parquet", (tmp_path / "made.parquet").read_bytes())
    assert [(row.line, row.problems[0].field) for row in report.rejected_rows] == [
        (2, "payload"),
        (3, "contact"),
        (4, "event"),
    ]
    assert await history.rows("SELECT event, occurred_at, payload::text FROM events") == [
        ("signup", DAY, '{"n": 1.10}')
    ]


async def test_a_missing_file_or_organization_is_named(history: History, tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"events\.xlsx: \.xlsx is not one of"):
        await history.load_file("events.xlsx", b"")
    with pytest.raises(UnreadableFileError, match=r"events\.parquet"):
        await history.load_file("events.parquet", b"PAR1 not really")
    (tmp_path / "empty.ndjson").touch()
    with pytest.raises(UnknownOrganizationError, match="Organization not found: nobody"):
        await history.run(tmp_path / "empty.ndjson", org="nobody")


async def test_imports_of_the_same_contacts_run_concurrently(history: History) -> None:
    events = [event(at=f"2025-03-04T05:06:{n % 60:02}Z", contact={"externalId": f"u{n}"}) for n in range(2_500)]
    reports = await asyncio.gather(
        *(history.load_file(f"{n}.ndjson", as_lines(events[::step])) for n, step in enumerate((1, -1)))
    )
    assert sum(report.stored for report in reports) == 2_500
    assert await history.rows("SELECT count(*), count(DISTINCT external_id) FROM contacts") == [(2_500, 2_500)]


@pytest.mark.parametrize("seed", range(4))
async def test_imported_contacts_follow_the_identity_rules(history: History, seed: int) -> None:
    chance = Random(seed)
    sent = [Identifiers(*(chance.choice((None, None, *pool)) for pool in POOLS)) for _ in range(400)]
    events = [
        event(at=f"2025-03-04T05:{n // 60:02}:{n % 60:02}Z", contact=as_contact(identifiers), idempotencyKey=str(n))
        for n, identifiers in enumerate(sent)
        if identifiers != Identifiers()
    ]
    for start in (0, 150, 160):
        await history.load(*events[start : {0: 150, 150: 160}.get(start)])
    expected = Fold(history)
    for past_event in events:
        expected.apply_event(past_event)
    assert await stored_contacts(history) == expected.contacts()


POOLS = (("w1", "w2", "w3"), ("a@example.com", "b@example.com", "c@example.com"), ("e1", "e2", "e3"))


def as_contact(identifiers: Identifiers) -> dict[str, str]:
    fields = {"walletAddress": identifiers.wallet, "email": identifiers.email, "externalId": identifiers.external_id}
    return {field: value for field, value in fields.items() if value is not None}


class Fold:
    """The identity rules of docs/contract.md 4.5 on dicts, event by event, without `workbench.language.contact`."""

    def __init__(self, history: History) -> None:
        self._org_keys = history.org_keys
        self.owners: dict[tuple[IdentifierKind, str], str] = {}
        self.columns: dict[str, dict[IdentifierKind, str]] = {}
        self._events: dict[str, set[str]] = {}

    def apply_event(self, sent: dict[str, Any]) -> str:
        """Apply an event, and return its contact."""
        names = zip(IdentifierKind, ("walletAddress", "email", "externalId"), strict=True)
        values = {kind: sent["contact"][name] for kind, name in names if name in sent["contact"]}
        matched = [kind for kind, value in values.items() if (kind, value) in self.owners]
        contact_id = self.owners[matched[0], values[matched[0]]] if matched else f"contact {len(self.columns)}"
        columns = self.columns.setdefault(contact_id, {})
        for kind, value in values.items():
            owner = self.owners.get((kind, value), contact_id)
            if kind is IdentifierKind.EMAIL and matched[:1] == [IdentifierKind.WALLET]:
                if self.columns[owner].get(kind) == value:
                    del self.columns[owner][kind]
            elif owner != contact_id or columns.get(kind, value) != value:
                continue
            self.owners[kind, value] = contact_id
            columns[kind] = value
        self._events.setdefault(contact_id, set()).add(sent["idempotencyKey"])
        return contact_id

    def contacts(self) -> set[tuple[Any, ...]]:
        digests: dict[str, set[tuple[int, str]]] = defaultdict(set)
        for (kind, value), owner in self.owners.items():
            digests[owner].add((int(kind), self._org_keys.digest(kind.name.lower(), value)))
        return {
            (
                *(self.columns[contact_id].get(kind) for kind in IdentifierKind),
                frozenset(digests[contact_id]),
                frozenset(self._events[contact_id]),
            )
            for contact_id in self.columns
        }


async def stored_contacts(history: History) -> set[tuple[Any, ...]]:
    rows = await history.rows("""
        SELECT wallet_address, email, external_id,
               ARRAY(SELECT jsonb_build_array(kind, replace(value_digest::text, '-', '')) FROM identities i
                     WHERE i.org_id = c.org_id AND i.contact_id = c.id),
               ARRAY(SELECT idempotency_key FROM events e WHERE e.org_id = c.org_id AND e.contact_id = c.id)
        FROM contacts c""")
    return {
        (
            wallet,
            None if email is None else history.org_keys.open_email(email),
            external_id,
            frozenset(map(tuple, identities)),
            frozenset(events),
        )
        for wallet, email, external_id, identities, events in rows
    }


def parquet(folder: Path, events: list[dict[str, Any]]) -> bytes:
    contacts = [past_event["contact"] for past_event in events]
    table = pa.table(
        {
            "event": [past_event["event"] for past_event in events],
            "occurred_at": [datetime.fromisoformat(past_event["occurredAt"]) for past_event in events],
            "payload": [text(past_event.get("payload")) for past_event in events],
            "attributes": [text(past_event.get("attributes")) for past_event in events],
            "email": [contact.get("email") for contact in contacts],
            "wallet_address": [contact.get("walletAddress") for contact in contacts],
            "external_id": [contact.get("externalId") for contact in contacts],
            "idempotency_key": [past_event.get("idempotencyKey") for past_event in events],
        }
    )
    pq.write_table(table, folder / "made.parquet")
    return (folder / "made.parquet").read_bytes()


def text(value: Any) -> str | None:
    return None if value is None else encode(value).decode()


async def test_imported_changes_are_dated_when_their_events_occurred(history: History) -> None:
    def plan(name: str, at: str, **more: Any) -> dict[str, Any]:
        return event("plan", at, attributes={"plan": name}, **more)

    await history.load(
        plan("free", "2025-01-01T00:00:00Z"),
        plan("pro", "2025-02-01T00:00:00Z"),
        plan("pro", "2025-02-02T00:00:00Z"),
        plan("max", "2025-03-01T00:00:00Z", contact={"externalId": "u1", "email": "ann@acme.example"}),
    )
    await history.load(plan("team", "2025-03-01T00:00:00Z"), plan("solo", "2025-04-01T00:00:00Z"))
    columns = "field, old, new, cause, changed_at::text"
    dated = await history.rows(f"SELECT {columns} FROM contact_changes WHERE field <> 'email' ORDER BY changed_at")
    assert dated == [
        ("attributes.plan", "free", "pro", "import", "2025-02-01 00:00:00+00"),
        ("attributes.plan", "pro", "max", "import", "2025-03-01 00:00:00+00"),
        ("attributes.plan", "max", "team", "import", "2025-03-01 00:00:00.000001+00"),
        ("attributes.plan", "team", "solo", "import", "2025-04-01 00:00:00+00"),
    ]
    at = "SELECT metadata ->> 'plan', email IS NULL FROM analyst.contacts_at"
    assert [(await history.rows(f"{at}('2025-0{month}-15')"))[0] for month in (1, 2, 3, 4)] == [
        ("free", True),
        ("pro", True),
        ("team", False),
        ("solo", False),
    ]


async def test_an_imported_change_of_a_contact_that_changed_later_is_dated_at_the_import(history: History) -> None:
    await history.load(event(attributes={"plan": "pro"}, at="2025-05-01T00:00:00Z"))
    await history.rows('UPDATE contacts SET attributes = \'{"plan": "max"}\', updated_at = now() RETURNING 1')
    await history.load(event("old", attributes={"plan": "free"}, at="2025-06-01T00:00:00Z"))
    query = "SELECT old, new, changed_at > now() - interval '1 minute' FROM contact_changes"
    assert await history.rows(query) == [("max", "free", True)]
