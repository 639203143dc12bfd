"""Random questions over random events: the answer from parts is that of the SQL, between changes of every kind.

A world is an organization whose events are stored by transactions of its own, with many ties, mixed payloads and dates
out of order, and logs of a chain. Between questions, events and logs arrive, a transaction stays open, contacts are
merged, separated and erased, blocks are dropped and logs return, parts are built, and builders are killed. Everything
follows from a seed: `python -m tests.parts --questions 2000`.
"""

import asyncio
import contextlib
import random
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from api.clock import uuid7
from api.contacts import erase, merge
from api.crypto import EmailDisplay
from api.parts import build
from api.parts.count import CountRequest, ReportCounts, count
from api.parts.verify import verify
from api.query.formats import JsonText, stream
from api.query.gateway import AnalystQuery, Gateway
from api.query.reports import statement
from api.store import chain
from api.store.database import Transaction, transaction_offset
from api.store.query import run
from tests.ingest.conftest import Org
from workbench.language.codec import encode
from workbench.language.reports import (
    REPORTS,
    ActiveUsers,
    Cohorts,
    Funnel,
    MessagePerformance,
    Paths,
    ReportBody,
    ReportQuery,
    Retention,
    Revenue,
    TimeToConvert,
    report_query,
)
from workbench.language.responses import MergeView

START = datetime(2026, 9, 20, tzinfo=UTC)
DAYS = 60
NAMES = ("signup", "visit", "deposit", "trade", "exit")
CHAIN, CONTRACT, LOGS = 5, f"0x{7:040x}", ("Transfer", "Approval")
PATHS = ("amount", "method", "deep.usd", "a.b", "list.1", "absent")
AMOUNTS = (
    *("5", "5.0", "2.50", "-3.125", "0", "1e2", "12345678901234567890.123456789", "9007199254740993", "0.0000001"),
    *("1e24", "999999999999.999999", "1000000000000", '"7"', '"text"', "true", "null", "[1]", '{"x": 1}', "9.1e11"),
)
METHODS = ('"card"', '"wire"', '"ä\\"\\\\\\n"', "1.50", "1.5", "true", "null", '["x", 1]', '{"k": 1.0}', '""')
_INSERT_CONTACT = """
    INSERT INTO contacts (org_id, id, external_id, attributes, created_at, updated_at)
    VALUES (%s, %s, %s, %s, %s, %s)"""
_DROPPED_LOGS = """
    SELECT id, contract, event, signature, tx_hash, log_index, block_number, args::text, digest, block_hash, contact_id
    FROM onchain_events WHERE org_id = %s AND removed ORDER BY id"""
_LOGS_WITHOUT_CONTACT = _DROPPED_LOGS.replace("removed", "contact_id IS NULL")
_INSERT_EVENT = """
    INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, stored_in)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, pg_current_xact_id()::text::bigint + %s)"""


class World:
    """An organization and its parts."""

    def __init__(self, org: Org, gateway: Gateway, folder: Path, seed: int) -> None:
        self.org, self.gateway, self.folder = org, gateway, folder
        self.chance = random.Random(seed)
        self.contacts: list[str] = []
        self.merges: list[str] = []
        self.watermarks: list[str] = []
        self.now = START + timedelta(days=DAYS)
        self.block = 0  # the last one with a log
        self.answered: Counter[str] = Counter()  # questions that were answered from parts, by report
        self.left = 0  # questions that the kernels left to the SQL
        self.open = AsyncExitStack()  # a transaction with events that are not committed
        self._killed: asyncio.subprocess.Process | None = None

    # Changes

    async def add_contacts(self, number: int) -> None:
        async with self.org.intake.database.transaction() as tx:
            for _ in range(number):
                contact_id = self._id()
                plan = self.chance.choice(['{"plan": "pro"}', '{"plan": "free"}', '{"plan": 1.50}', "{}"])
                values = (self.org.id, contact_id, f"c-{len(self.contacts)}", plan, START, START)
                await tx.execute(_INSERT_CONTACT, values)
                self.contacts.append(contact_id)

    async def add_events(self, tx: Transaction, number: int) -> None:
        added = await transaction_offset(tx)
        for _ in range(number):
            # Few seconds of an hour, so that many events of a contact are at the same microsecond.
            hours = self.chance.choice([self.chance.randrange(DAYS * 24), self.chance.randrange(48)])
            at = START + timedelta(hours=hours, seconds=self.chance.choice([0, 0, 1, 1800]))
            late = self.chance.choice([timedelta(), timedelta(minutes=-4), timedelta(days=6)])
            names = NAMES if self.chance.random() < 0.98 else (f"rare-{self.chance.randrange(50)}",)
            values = (self._id(), self.chance.choice(self.contacts), self.chance.choice(names), at, at + late)
            event_id, *rest = values
            await tx.execute(_INSERT_EVENT, (self.org.id, event_id, *rest, self._payload(), event_id, added))

    async def add_logs(self, tx: Transaction, number: int) -> None:
        logs = []
        for _ in range(number):
            self.block += 1
            contact_id = self.chance.choice([None, *self.contacts])
            event, block_hash, digest = self.chance.choice(LOGS), f"0x{self.block:064x}", self._id()
            logs.append(
                chain.StoredLog(
                    *(self.org.id, self._id(), CONTRACT, event, f"{event}()", block_hash, 0, self.block),
                    *(self._block_second(), self._payload(), digest, block_hash, contact_id),
                )
            )
        await run(tx, chain.add_logs(CHAIN, logs, [log.args for log in logs], START, await transaction_offset(tx)))

    async def change_logs(self, tx: Transaction, kind: str) -> None:
        """Drop the last blocks, restore some of the logs that were dropped, or find the contacts of some."""
        if kind == "drop":
            above = self.block - self.chance.randint(1, 40)
            await run(tx, chain.drop_logs(self.org.id, CHAIN, above, 1_000, self.now))
            return
        rows = await (
            await tx.execute(_DROPPED_LOGS if kind == "restore" else _LOGS_WITHOUT_CONTACT, (self.org.id,))
        ).fetchall()
        logs = []
        for id_, contract, event, signature, tx_hash, index, block, args, digest, block_hash, contact in rows[:20]:
            position = (tx_hash, index + 1, block + self.chance.randint(0, 5), self._block_second())
            contact_id = contact or self.chance.choice(self.contacts)
            names = (self.org.id, str(id_), contract, event, signature)
            logs.append(chain.StoredLog(*names, *position, args, str(digest), block_hash, str(contact_id)))
        changed = (
            chain.restore_logs(logs)
            if kind == "restore"
            else chain.set_log_contacts(logs, await transaction_offset(tx))
        )
        await run(tx, changed)

    def _block_second(self) -> int:
        return int((START + timedelta(hours=self.chance.randrange(DAYS * 24))).timestamp())

    async def change(self) -> None:
        """Make one change of a random kind."""
        database = self.org.intake.database
        changes = ("add", "add", "add", "open", "close", "merge", "undo", "erase", "build", "build", "kill")
        match kind := self.chance.choice((*changes, "logs", "drop", "restore", "assign")):
            case "add":
                async with database.transaction() as tx:
                    await self.add_events(tx, self.chance.randint(1, 40))
            case "logs":
                async with database.transaction() as tx:
                    await self.add_logs(tx, self.chance.randint(1, 40))
            case "drop" | "restore" | "assign":
                async with database.transaction() as tx:
                    await self.change_logs(tx, kind)
            case "open":
                await self.open.aclose()
                tx = await self.open.enter_async_context(database.transaction())
                await tx.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
                await self.add_events(tx, 5)
                await self.add_logs(tx, 5)
            case "close":
                await self.open.aclose()
            case "merge" if len(self.contacts) > 5:
                keep, absorb = self.chance.sample(self.contacts, 2)
                show = EmailDisplay(self.org.keys, False)
                merged = await merge.merge(database, self.org.author, merge.Pair(keep, absorb), show)
                if isinstance(merged, MergeView):
                    self.contacts.remove(absorb)
                    self.merges.append(str(merged.id))
            case "undo" if self.merges:
                await merge.undo(database, self.org.author, self.merges.pop())
            case "erase" if len(self.contacts) > 5:
                gone = self.contacts.pop(self.chance.randrange(len(self.contacts)))
                await erase.erase(database, self.org.author, gone)
            case "build":
                self.now += timedelta(minutes=self.chance.choice([1, 20]))
                with contextlib.suppress(build.BusyError):  # Postgres has not yet seen that a builder was killed
                    await build.build(database, self.folder, self.org.id, lambda: self.now)
            case "kill":
                self.now += timedelta(minutes=self.chance.choice([1, 20]))
                await self._build_and_kill(calls=self.chance.randrange(12))
            case _:
                pass

    async def _build_and_kill(self, calls: int) -> None:
        if self._killed is None:
            arguments = (self.org.intake.dsn, str(self.folder), str(self.org.id))
            self._killed = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.parts.killed", *arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        assert self._killed.stdin is not None
        assert self._killed.stdout is not None
        self._killed.stdin.write(f"{calls} {self.now.timestamp()}\n".encode())
        assert int(await self._killed.stdout.readline()) in (0, 1, -signal.SIGKILL)  # 1: as above, another one builds

    async def close(self) -> None:
        await self.open.aclose()
        if self._killed is not None:
            assert self._killed.stdin is not None
            self._killed.stdin.close()
            await self._killed.wait()

    def _id(self) -> str:
        # Of a random moment, so that ids are in another order than events.
        return uuid7(1_700_000_000_000_000 + self.chance.randrange(10**15))

    def _payload(self) -> str:
        amount, method = self.chance.choice(AMOUNTS), self.chance.choice(METHODS)
        fields = [
            f'"amount": {amount}',
            f'"method": {method}',
            f'"deep": {{"usd": {self.chance.choice(AMOUNTS)}}}',
            f'"a.b": {self.chance.choice(AMOUNTS)}',
            f'"a": {{"b": {self.chance.choice(AMOUNTS)}}}',
            f'"list": [1, {amount}]',
        ]
        return "{" + ", ".join(field for field in fields if self.chance.random() < 0.7) + "}"

    # Questions

    def question(self) -> ReportBody:
        """Return a random report. Logs have no past."""
        report = self._report()
        return msgspec.structs.replace(report, as_of=None) if report.logs else report

    def _report(self) -> ReportBody:
        chance = self.chance
        since = START + timedelta(hours=chance.randrange(DAYS * 12), microseconds=chance.choice([0, 1]))
        until = chance.choice([None, since + timedelta(hours=chance.randint(1, DAYS * 24))])
        common: dict[str, Any] = {"since": since, "until": until}
        if self.watermarks and chance.random() < 0.4:
            common["as_of"] = chance.choice(self.watermarks)
        past = "as_of" in common
        if not past and chance.random() < 0.2:
            common["segments"] = tuple(chance.sample(["some", "others"], chance.randint(1, 2)))
        groups = [None, None, *PATHS, *(() if past else ("contact.plan", "contact.segments", "contact.externalId"))]
        names = (*NAMES, "unknown", *(f"{CONTRACT}:{name}" for name in LOGS))
        name = lambda: chance.choice(names)  # noqa: E731
        every, by = chance.choice(["day", "week", "month"]), chance.choice(groups)
        within = chance.choice([1, 1800, 3600, 86_400, 40 * 86_400])
        match chance.randrange(7):
            case 0:
                steps = tuple(name() for _ in range(chance.randint(2, 4)))
                return Funnel(**common, steps=steps, within_seconds=within, by=by)
            case 1:
                return Retention(**common, start=name(), back=chance.choice([None, name()]), every=every, periods=9)
            case 2:
                value = chance.choice([None, *PATHS])
                return Cohorts(**common, start=name(), event=name(), value=value, every=every, periods=9)
            case 3:
                return ActiveUsers(**common, event=chance.choice([None, name()]), every=every)
            case 4:
                limit, steps_ = chance.choice([1, 5, 1_000]), chance.randint(1, 12)
                return Paths(
                    **common, start=chance.choice([None, name()]), steps=steps_, within_seconds=within, limit=limit
                )
            case 5:
                return Revenue(
                    **common, event=name(), value=chance.choice(PATHS), by=by, every=chance.choice([None, every])
                )
            case _:
                return TimeToConvert(**common, start=name(), goal=name(), within_seconds=within)

    async def ask(self, report: ReportBody) -> tuple[bytes, bytes] | None:
        """Return the rows from parts and from the SQL; None if the kernels leave the report to the SQL."""
        snapshot = None if report.as_of is None else await self.gateway.snapshot_of(self.org.id, report.as_of)
        dsn, body = self.org.intake.dsn, msgspec.to_builtins(report)
        pieces = self.chance.choice([1, 1_000_000])
        counted = await count(CountRequest(dsn, str(self.folder), self.org.id, report.name, body, snapshot, pieces))
        if counted.reason:
            return None
        assert counted.snapshot is not None
        query = report_query(report, statement, counted.counted, counted.snapshot.at)
        by_parts = await self.rows(query, counted=counted)
        return by_parts, await self.rows(report_query(report, statement), report.as_of)

    async def rows(
        self, query: ReportQuery, as_of: str | None = None, counted: ReportCounts | None = None
    ) -> list[Any]:
        asked = AnalystQuery(self.org.id, query.text, query.params, True, as_of)
        at = None if counted is None else counted.snapshot
        async with self.gateway.run(asked, counted_at=at) as result:
            text = b"".join([piece async for piece in stream(result, JsonText)])
            if result.watermark is not None and as_of is None:
                self.watermarks = [*self.watermarks[-9:], result.watermark]
        return bytes(msgspec.json.decode(text, type=dict[str, msgspec.Raw])["rows"])


async def opened_world(org: Org, folder: Path, seed: int) -> World:
    """Return a world with a few hundred events, most of them in parts."""
    world = World(org, Gateway(org.intake.database, org.intake.keyring), folder, seed)
    await world.rows(ReportQuery("SELECT 1 AS one", {}))  # its role needs locks that an open transaction would hold
    await world.add_contacts(30)
    async with org.intake.database.transaction() as tx:
        await world.add_events(tx, 600)
        await world.add_logs(tx, 200)
        for number, contact_id in enumerate(world.contacts):
            for segment in ("some",) * (number % 3 == 0) + ("others",) * (number % 2 == 0):
                values = (org.id, segment, contact_id, START)
                await tx.execute("INSERT INTO segment_members VALUES (%s, %s, %s, %s)", values)
    await build.build(org.intake.database, folder, org.id, lambda: world.now)
    return world


COUNTED_REPORTS = {report.name for report in REPORTS} - {MessagePerformance.name}


async def differences(world: World, questions: int) -> AsyncIterator[str]:
    """Ask random questions between random changes; yield a text for each that has two answers."""
    while world.answered.total() < questions:
        for _ in range(world.chance.randint(0, 2)):
            await world.change()
        report = world.question()
        rows = await world.ask(report)
        if rows is None:
            world.left += 1
            continue
        world.answered[report.name] += 1
        by_parts, by_sql = (text.decode() for text in rows)
        if by_parts != by_sql:
            yield f"{encode(msgspec.to_builtins(report)).decode()}: {by_parts} from parts, {by_sql} by SQL"
    await world.close()
    for difference in await verify(world.org.intake.database, world.folder, world.org.id):
        yield difference
