"""Increments: after every refresh the members are those that the whole query returns in the same snapshot.

Each case draws queries of all forms and a history: events of all dates, late transactions, changes of contacts, merges
and their undoing, erasures, imports, and refreshes that run at the same time or are killed. Cutoffs are a few
seconds away, so the clock moves contacts across them. The whole query runs in the session and the snapshot of each
refresh, before the refresh limits it to the contacts that changed. `SEGMENT_WORLDS`: the number of cases.
"""

import asyncio
import os
import random
from collections.abc import Awaitable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest

from api.clock import Clock, to_us, uuid7
from api.contacts import erase as contacts_erase
from api.contacts import merge as contacts_merge
from api.contacts.merge import Pair, settle_due
from api.crypto import Keyring
from api.imports.errors import Rejects
from api.imports.formats import ReadOptions, find_sources
from api.imports.importer import import_history
from api.query.parameters import bind
from api.segments import changed, segments
from api.segments.changed import Watermark, choose_contacts, full_refresh_reason
from api.segments.definition import SegmentQuery, query_of
from api.segments.refresh import refresh_due
from api.segments.segments import SegmentResult
from api.store.analyst import ContactChoice, Snapshot
from api.store.database import TransactionConflictError, libpq_dsn
from api.store.segments import SegmentRow, find_segment, list_segments
from tests.segments.conftest import Team
from tests.segments.test_erased_and_merged import ALL, author, merge, refreshed, row_of
from workbench.language.codec import encode
from workbench.language.problem import Problem
from workbench.language.responses import MergeView, RefreshScope

CONTACTS = 10
EVENTS = ("deposit", "login", "signup")
PLANS = ("free", "pro", "team")


class SegmentQueries:
    """Draws queries."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def cutoff(self) -> str:
        seconds = self.draw.choice((1, 2, 4, 8))
        return self.draw.choice(
            (
                f"now() - interval '{seconds} seconds'",
                f"current_timestamp - make_interval(secs => {seconds})",
                "now() - :seconds * interval '1 second'",
                f"date_trunc('second', now()) - interval '{seconds} seconds'",
                "current_date",
                "now()",
            )
        )

    def when(self, table: str) -> str:
        """Return a condition on the time of an event."""
        column = f"{table}.{self.draw.choice(('occurred_at', 'occurred_at', 'created_at'))}"
        sign = self.draw.choice(("<", "<=", ">", ">="))
        return self.draw.choice(
            (
                f"{column} {sign} {self.cutoff()}",
                f"{self.cutoff()} {sign} {column}",
                f"{column} BETWEEN {self.cutoff()} AND {self.cutoff()}",
                f"{column}::date {sign} current_date - {self.draw.choice((0, 1, 3))}",
                f"{column} {sign} '2026-11-20'",
            )
        )

    def event(self, table: str) -> str:
        """Return a condition on an event."""
        parts = [f"{table}.event = '{self.draw.choice(EVENTS)}'"]
        if self.draw.random() < 0.5:
            parts.append(self.when(table))
        if self.draw.random() < 0.4:
            parts.append(f"({table}.payload ->> 'amount')::numeric > {self.draw.randrange(100)}")
        if self.draw.random() < 0.2:
            parts.append(f"({self.when(table)} OR NOT {table}.payload ? 'amount')")
        return " AND ".join(parts)

    def contact(self, table: str) -> str:
        """Return a condition on a contact."""
        plan = self.draw.choice(PLANS)
        return self.draw.choice(
            (
                f"{table}.metadata ->> 'plan' = '{plan}'",
                f"{table}.metadata ->> 'plan' IN ('{plan}', 'none')",
                f"'vip' = ANY ({table}.tags)",
                f"{table}.email IS NOT NULL",
                f"{table}.email_domain = 'example.com'",
                f"NOT 'email' = ANY ({table}.opted_out)",
                f"{table}.created_at > {self.cutoff()}",
                f"{table}.external_id LIKE 'u%'",
            )
        )

    def aggregate(self, table: str) -> str:
        when = self.when(table)
        return self.draw.choice(
            (
                f"count(*) >= {self.draw.randrange(1, 4)}",
                f"count(*) FILTER (WHERE {when}) > 1",
                f"sum(({table}.payload ->> 'amount')::numeric) > {self.draw.randrange(150)}",
                f"max({table}.occurred_at) < {self.cutoff()}",
                f"min({table}.occurred_at) > {self.cutoff()}",
                f"count(DISTINCT {table}.event) > 1",
                f"bool_or({when})",
                f"sum(CASE WHEN {when} THEN 1 ELSE 0 END) = 1",
            )
        )

    def simple(self) -> str:
        return self.draw.choice(
            (
                lambda: f"SELECT contact_id FROM app_events e WHERE {self.event('e')}",
                lambda: f"SELECT DISTINCT e.contact_id FROM app_events AS e WHERE {self.event('e')}",
                lambda: f"SELECT id AS contact_id FROM contacts c WHERE {self.contact('c')}",
                lambda: f"SELECT contact_id FROM app_events e GROUP BY 1 HAVING {self.aggregate('e')}",
                lambda: (
                    f"SELECT e.contact_id FROM app_events e WHERE {self.event('e')} GROUP BY e.contact_id "
                    f"HAVING {self.aggregate('e')}"
                ),
                lambda: f"SELECT contact_id FROM segment_members WHERE segment = 's{self.draw.randrange(3)}'",
            )
        )()

    def query(self) -> str:
        sign = self.draw.choice(("", "NOT "))
        return self.draw.choice(
            (
                self.simple,
                lambda: (
                    f"SELECT c.id AS contact_id FROM contacts c WHERE {self.contact('c')} AND {sign}EXISTS ("
                    f"SELECT 1 FROM app_events e WHERE e.contact_id = c.id AND {self.event('e')})"
                ),
                lambda: f"SELECT id AS contact_id FROM contacts WHERE id {sign}IN ({self.simple()})",
                lambda: (
                    f"SELECT c.id AS contact_id FROM contacts c LEFT JOIN app_events e ON e.contact_id = c.id AND "
                    f"{self.event('e')} GROUP BY c.id HAVING count(e.id) = {self.draw.randrange(2)}"
                ),
                lambda: (
                    f"SELECT e.contact_id FROM app_events e JOIN contacts c ON c.id = e.contact_id "
                    f"WHERE {self.event('e')} AND {self.contact('c')}"
                ),
                lambda: f"{self.simple()} {self.draw.choice(('UNION', 'EXCEPT', 'INTERSECT'))} {self.simple()}",
                lambda: (
                    "WITH last AS (SELECT contact_id, max(occurred_at) AS at FROM app_events GROUP BY 1) "
                    f"SELECT contact_id FROM last JOIN contacts c ON c.id = contact_id WHERE at < {self.cutoff()} "
                    f"AND {self.contact('c')}"
                ),
                lambda: (
                    "SELECT c.id AS contact_id FROM contacts c WHERE (SELECT max(e.occurred_at) FROM app_events e "
                    f"WHERE e.contact_id = c.id AND e.event = 'login') < {self.cutoff()}"
                ),
                lambda: (
                    "SELECT a.contact_id FROM app_events a, app_events b WHERE a.contact_id = b.contact_id "
                    f"AND {self.event('a')} AND {self.event('b')} AND a.occurred_at < b.occurred_at"
                ),
                lambda: (
                    "SELECT c.id AS contact_id FROM contacts c JOIN segment_members m ON m.contact_id = c.id "
                    f"WHERE m.segment = 's{self.draw.randrange(3)}' AND {self.contact('c')}"
                ),
                # These are refreshed as a whole.
                lambda: f"SELECT contact_id FROM ({self.simple()}) q ORDER BY 1 LIMIT 3",
                lambda: (
                    "SELECT contact_id FROM app_events WHERE occurred_at > "
                    "(SELECT max(occurred_at) - interval '1 hour' FROM app_events)"
                ),
            )
        )()


def snapshot_time(watermark: bytes | None) -> datetime | None:
    return None if watermark is None else msgspec.json.decode(watermark, type=Watermark).snapshot.at


class World:
    """An organization with a history, and the members that the whole queries return."""

    def __init__(self, team: Team, draw: random.Random, folder: Path) -> None:
        self.team, self.draw, self.folder = team, draw, folder
        self.expected: dict[tuple[str, datetime | None], set[str]] = {}
        self.refreshes = {"increment": 0, "full": 0}
        self._late: list[psycopg.AsyncConnection[Any]] = []
        self._merges: list[str] = []
        self._number = 0

    @property
    def database(self) -> Any:
        return self.team.org.service.services.system_database

    async def close(self) -> None:
        for connection in self._late:
            await connection.close()

    # --- History

    def name(self) -> str:
        return f"u{self.draw.randrange(CONTACTS)}"

    def body(self) -> dict[str, Any]:
        self._number += 1
        contact: dict[str, str] = {"externalId": self.name()}
        if self.draw.random() < 0.4:
            contact["email"] = f"{self.name()}@{self.draw.choice(('example.com', 'acme.test'))}"
        if self.draw.random() < 0.2:
            contact["walletAddress"] = f"0x{self.draw.randrange(CONTACTS):040x}"
        event: dict[str, Any] = {"event": self.draw.choice(EVENTS), "contact": contact}
        if self.draw.random() < 0.7:
            event["payload"] = {"amount": self.draw.randrange(120)}
        if self.draw.random() < 0.4:
            event["attributes"] = {"plan": self.draw.choice(PLANS)}
        if self.draw.random() < 0.7:
            event["occurredAt"] = self.moment().isoformat()
        return event | {"idempotencyKey": f"k{self._number}"}

    def moment(self) -> datetime:
        seconds = self.draw.choice(
            (self.draw.uniform(-9, 3), self.draw.uniform(-9, 3), -86_400 * self.draw.random() * 6)
        )
        return datetime.now(UTC) + timedelta(seconds=seconds)

    async def post(self) -> None:
        for result in await self.team.org.post_batch(*[self.body() for _ in range(self.draw.randrange(1, 6))]):
            assert "error" not in result, result

    async def contacts(self) -> list[str]:
        rows = await self.team.rows(
            "SELECT id FROM contacts WHERE org_id = %s AND erased_at IS NULL AND merged_into IS NULL ORDER BY id",
            self.team.id,
        )
        return [str(contact_id) for (contact_id,) in rows]

    async def begin_late(self) -> None:
        """Store an event in a transaction that stays open, also across refreshes."""
        if len(self._late) > 2 or not (ids := await self.contacts()):
            return
        connection = await psycopg.AsyncConnection.connect(libpq_dsn(self.team.org.service.dsn))
        self._number += 1
        await connection.execute(
            "INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, "
            "idempotency_key, stored_in) SELECT %s, gen_random_uuid(), %s, %s, %s, clock_timestamp(), %s, %s, "
            "pg_current_xact_id()::text::bigint + (SELECT max(added) FROM workbench.clusters)",
            (
                self.team.id,
                self.draw.choice(ids),
                self.draw.choice(EVENTS),
                self.moment(),
                '{"amount": 77}',
                f"late{self._number}",
            ),
        )
        self._late.append(connection)

    async def end_late(self) -> None:
        if self._late:
            connection = self._late.pop(self.draw.randrange(len(self._late)))
            await connection.commit() if self.draw.random() < 0.8 else await connection.rollback()
            await connection.close()

    async def change(self) -> None:
        if ids := await self.contacts():
            contact = f"/contacts/{self.draw.choice(ids)}"
            change = self.draw.choice(("tags", "opt-outs"))
            if change == "tags":
                lists = self.draw.sample(("add", "remove"), 2)
                done = await self.team.org.call("POST", f"{contact}/tags", {lists[0]: ["vip"]})
            else:
                done = await self.team.org.call("PUT", f"{contact}/opt-outs", {"email": self.draw.random() < 0.5})
            assert done.status_code == 200, done.text

    async def merge(self) -> None:
        if len(ids := await self.contacts()) > 2:
            merged = await contacts_merge.merge(self.database, author(self.team), Pair(*self.draw.sample(ids, 2)), str)
            if isinstance(merged, MergeView) and merged.id is not None:  # else it is refused, or was done before
                self._merges.append(merged.id)

    async def undo(self) -> None:
        if self._merges:
            merge_id = self._merges.pop(self.draw.randrange(len(self._merges)))
            await contacts_merge.undo(self.database, author(self.team), merge_id)  # or it is refused

    async def settle(self) -> None:
        """Move the remaining rows of merges that are due now, or in two minutes; then it is for the last time."""
        await settle_due(self.database, datetime.now(UTC) + timedelta(minutes=2) * self.draw.randrange(2))

    async def erase(self) -> None:
        if (ids := await self.contacts()) and self.draw.random() < 0.3:
            # It is refused while an undone merge is moved.
            await contacts_erase.erase(self.database, author(self.team), self.draw.choice(ids))

    async def import_past(self) -> None:
        lines = []
        for _ in range(self.draw.randrange(1, 5)):
            body = self.body()
            age = self.draw.choice((timedelta(days=400), timedelta(days=3), timedelta(seconds=3)))
            lines.append(encode(body | {"occurredAt": (datetime.now(UTC) - age).isoformat()}) + b"\n")
        path = self.folder / f"{self._number}.ndjson"
        path.write_bytes(b"".join(lines))
        ((name,),) = await self.team.rows("SELECT name FROM organizations WHERE id = %s", self.team.id)
        sources = find_sources([path], ReadOptions())[0]
        service = self.team.org.service
        report = await import_history(
            service.dsn, service.keyring, name, sources, Rejects(path.with_suffix(".rejects"))
        )
        assert report.stored == len(lines), report

    async def wait(self) -> None:
        await asyncio.sleep(self.draw.uniform(0, 1.5))  # for the cutoffs, which the database's clock moves

    def step(self) -> Awaitable[None]:
        return self.draw.choice(
            (
                *(self.post,) * 5,
                self.begin_late,
                self.end_late,
                *(self.change,) * 2,
                self.merge,
                self.undo,
                self.settle,
                self.erase,
                self.import_past,
                self.wait,
            )
        )()

    # --- Refreshes

    async def rows(self) -> list[SegmentRow]:
        async with self.database.transaction() as tx:
            return await list_segments(tx, self.team.id)

    async def refresh(self, row: SegmentRow) -> None:
        async with self.database.transaction() as tx:
            current = await find_segment(tx, self.team.id, row.name)
        assert current is not None
        with suppress(TransactionConflictError):  # the engine postpones the refresh
            result = await segments.refresh(self.team.services, current, self.team.org.service.services.clock.now())
            if isinstance(result, SegmentResult):
                self.refreshes["increment" if result.scope and result.scope.contacts is not None else "full"] += 1

    async def refresh_amid_changes(self, row: SegmentRow) -> None:
        """Refresh a segment while its contacts change, twice at a time, or with a kill in between."""
        chance = self.draw.random()
        if chance < 0.25:
            await asyncio.gather(self.refresh(row), self.refresh(row), self.post())
        elif chance < 0.5:
            killed = asyncio.create_task(self.refresh(row))
            await asyncio.sleep(self.draw.uniform(0, 0.06))
            killed.cancel()
            with suppress(asyncio.CancelledError):
                await killed
        elif chance < 0.6:
            await asyncio.gather(self.refresh(row), self.merge())
        await self.refresh(row)

    async def check(self, row: SegmentRow) -> None:
        async with self.database.transaction() as tx:
            current = await find_segment(tx, self.team.id, row.name)
        assert current is not None
        whole = self.expected[row.sql or "", snapshot_time(current.watermark)]
        rows = await self.team.rows(
            "SELECT coalesce(merged_into, id) FROM contacts WHERE org_id = %s AND id = ANY (%s) AND erased_at IS NULL",
            self.team.id,
            list(whole),
        )
        members = await self.team.members(row.name)
        assert members == {str(contact_id) for (contact_id,) in rows}, (row.name, row.sql, self.refreshes)
        assert current.size == len(members)


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> dict[int, World]:
    """The worlds by organization: each refresh of theirs also notes what the whole query returns."""
    worlds: dict[int, World] = {}

    async def choose_and_note(org_id: int, query: SegmentQuery, keyring: Keyring, *others: Any) -> ContactChoice:
        former, tx, share_snapshot, evaluate = others
        whole: list[str | None] = []

        async def share_and_evaluate() -> Snapshot | None:
            snapshot = await share_snapshot()
            text = f"SELECT array_agg(DISTINCT contact_id) FROM ({query.sql}\n) whole"
            statement = bind(text, query.params, keyring.of(org_id).seal_email)
            assert not isinstance(statement, Problem), statement
            whole.extend(await evaluate(statement.statement, statement.parameters))
            return snapshot

        choice = await choose_contacts(org_id, query, keyring, former, tx, share_and_evaluate, evaluate)
        (ids,) = whole
        worlds[org_id].expected[query.sql, snapshot_time(choice.watermark)] = set((ids or "{}")[1:-1].split(",")) - {""}
        return choice

    monkeypatch.setattr(segments, "choose_contacts", choose_and_note)
    # With five minutes every contact of a world would be a new one, and nothing could be missed.
    monkeypatch.setattr(changed, "_OVERLAP", timedelta(0))
    monkeypatch.setattr(contacts_merge, "PAGE_ROWS", 2)
    monkeypatch.setattr(contacts_merge, "PAGES_PER_REQUEST", 1)
    return worlds


@pytest.mark.parametrize("seed", range(int(os.environ.get("SEGMENT_WORLDS", "2"))))
async def test_members_equal_those_of_the_whole_query_in_the_same_snapshot(
    acme: Team, worlds: dict[int, World], tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    world = worlds[acme.id] = World(acme, draw, tmp_path)
    queries = SegmentQueries(draw)
    try:
        for _ in range(4):
            await world.post()
        for number in range(7):
            sql = queries.query()
            params = {"seconds": 3} if ":seconds" in sql else None
            await acme.expect_success("POST", "", {"name": f"s{number}", "sql": sql, "params": params})
        rows = [row for row in await world.rows() if row.sql is not None]
        for _ in range(9):
            for _ in range(draw.randrange(1, 5)):
                await world.step()
            for row in rows:
                await (world.refresh_amid_changes(row) if draw.random() < 0.2 else world.refresh(row))
                await world.check(row)
    finally:
        await world.close()
    incremental = sum(full_refresh_reason(query_of(row)) is None for row in rows)
    assert world.refreshes["increment"] >= incremental * 5, world.refreshes


async def test_a_transaction_that_was_open_for_long_is_not_missed(acme: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "_OVERLAP", timedelta(0))
    await acme.contact("ann")
    await acme.expect_success("POST", "", ALL)
    async with await psycopg.AsyncConnection.connect(libpq_dsn(acme.org.service.dsn)) as connection:
        ((began_at,),) = await (await connection.execute("SELECT now()")).fetchall()
        await acme.contact("ben")
        assert (await refreshed(acme, "all")).row.size == 2  # its snapshot begins after the transaction
        await connection.execute(
            "INSERT INTO workbench.contacts (org_id, id, external_id, created_at, updated_at) "
            "VALUES (%s, %s, 'cid', %s, %s)",
            (acme.id, uuid7(to_us(began_at)), began_at, began_at),
        )
        await connection.commit()
    result = await refreshed(acme, "all")
    assert result.scope is not None
    assert (result.row.size, result.scope.reason) == (3, None)


async def test_a_merge_during_the_query_makes_it_read_all_contacts(acme: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "_OVERLAP", timedelta(0))
    rich = "SELECT contact_id FROM app_events GROUP BY 1 HAVING sum((payload ->> 'amount')::numeric) > 10"
    ann, ben = await acme.contact("ann"), await acme.contact("ben")
    deposit = {"event": "deposit", "contact": {"externalId": "ben"}, "payload": {"amount": 20}}
    assert (await acme.org.post(deposit))[0] == 202
    await acme.expect_success("POST", "", {"name": "rich", "sql": rich})
    await acme.contact("ann")  # only she is read

    async def merge_after_choice(*arguments: Any) -> ContactChoice:
        monkeypatch.setattr(segments, "choose_contacts", choose_contacts)
        choice = await choose_contacts(*arguments)
        assert choice.contact_ids == {ann}
        await merge(acme, ann, ben)
        return choice

    monkeypatch.setattr(segments, "choose_contacts", merge_after_choice)
    result = await refreshed(acme, "rich")
    assert result.scope is not None
    assert result.scope.reason == "the segment was refreshed, or contacts were merged, while its query ran"
    assert await acme.members("rich") == {ann}
    changes = await acme.rows(
        "SELECT contact_id, new FROM contact_changes WHERE org_id = %s AND cause = 'refresh'", acme.id
    )
    assert [(str(contact_id), new) for contact_id, new in changes] == [(ben, True)]


@pytest.mark.parametrize("name", ["a", "day", "MI", "time", "timestamptz"])
async def test_cutoffs_take_the_parameters_that_they_name(acme: Team, name: str) -> None:
    sql = f"SELECT contact_id FROM app_events WHERE event = :{name} AND occurred_at > now() - :days * interval '1 day'"
    await acme.expect_success("POST", "", {"name": "new", "sql": sql, "params": {name: "deposit", "days": 3}})
    ann = await acme.contact("ann")
    assert (await refreshed(acme, "new")).scope == RefreshScope(1, None)
    assert await acme.members("new") == {ann}


@pytest.mark.parametrize(
    ("cutoff", "at", "reason"),
    [
        ("greatest(now(), 'infinity')", datetime.max.replace(tzinfo=UTC), None),
        ("least(now(), '-infinity')", datetime.min.replace(tzinfo=UTC), None),
        ("least(now(), '0044-03-15 BC')", datetime.min.replace(tzinfo=UTC), None),
        ("least(now(), '2020-01-01 00:00:00.000001Z')", datetime(2020, 1, 1, 0, 0, 0, 1, tzinfo=UTC), None),
        ("nullif(least(now(), '2020-01-01'), '2020-01-01')", None, "a time that the query compares with is null"),
    ],
)
async def test_cutoffs_beyond_the_calendar(acme: Team, cutoff: str, at: datetime | None, reason: str | None) -> None:
    sql = f"SELECT contact_id FROM app_events WHERE occurred_at > {cutoff}"
    await acme.expect_success("POST", "", {"name": "new", "sql": sql})
    row = await row_of(acme, "new")
    assert row.watermark is not None
    mark = msgspec.json.decode(row.watermark, type=Watermark)
    assert mark.cutoffs == (at,)
    other = msgspec.structs.replace(mark, cutoffs=(datetime(2026, 1, 1, tzinfo=UTC),))
    row = msgspec.structs.replace(row, watermark=msgspec.json.encode(other))
    await acme.rows(
        "UPDATE segments SET watermark = %s WHERE org_id = %s RETURNING id", row.watermark.decode(), acme.id
    )
    result = await refreshed(acme, "new")
    assert result.scope is not None
    assert result.scope.reason == reason


async def test_a_watermark_of_an_earlier_proof_is_not_used(acme: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    await acme.expect_success("POST", "", ALL)
    assert (await refreshed(acme, "all")).scope == RefreshScope(0, None)
    monkeypatch.setattr(changed, "_PROOF_VERSION", 0)
    reason = "there is no earlier refresh of this query to start from"
    assert (await refreshed(acme, "all")).scope == RefreshScope(None, reason)


async def test_many_new_events_are_not_looked_through(acme: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changed, "MAX_NEW_EVENTS", 1)
    await acme.expect_success("POST", "", ALL)
    await acme.contact("ann")
    assert (await refreshed(acme, "all")).scope == RefreshScope(1, None)
    await acme.contact("ben")
    await acme.contact("cid")
    assert (await refreshed(acme, "all")).scope == RefreshScope(None, "more than 1 events are new")


async def test_contacts_that_are_merged_with_changed_ones_are_counted(
    acme: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed, "_OVERLAP", timedelta(0))
    ann, ben = await acme.contact("ann"), await acme.contact("ben")
    await merge(acme, ann, ben)
    await settle_due(acme.org.service.services.system_database, datetime.now(UTC) + timedelta(minutes=2))
    await acme.expect_success("POST", "", ALL)
    for limit, scope in ((2, RefreshScope(2, None)), (1, RefreshScope(None, "more than 1 contacts changed"))):
        monkeypatch.setattr(changed, "MAX_CHANGED", limit)
        await acme.org.call("POST", f"/contacts/{ann}/tags", {"add": [f"limit {limit}"]})
        assert (await refreshed(acme, "all")).scope == scope


async def test_a_defect_is_a_failure_of_its_segment(acme: Team, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    await acme.expect_success("POST", "", ALL)
    await acme.rows("UPDATE segments SET due_at = now() - interval '1 hour' WHERE org_id = %s RETURNING id", acme.id)

    async def fail(*arguments: Any) -> None:
        raise AssertionError(arguments)

    monkeypatch.setattr(segments, "choose_contacts", fail)
    assert await refresh_due(acme.services, clock) == 1
    row = await row_of(acme, "all")
    assert (row.last_error, row.failures) == ("internal error; the log has it", 1)
    assert row.due_at is not None
    assert row.due_at > clock.now()
