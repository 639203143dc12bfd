"""One run: load with faults, recovery, drain until no entry is due, collection of the evidence."""

import asyncio
import itertools
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec
import psycopg

from api.contacts.erase import SECOND_ERASURE_DELAY, erase_again
from api.store.database import Database
from tests.torture import journeys, stored
from tests.torture.automations import Automation, publish
from tests.torture.evidence import Evidence
from tests.torture.installation import Installation
from tests.torture.log import now_us
from tests.torture.nemesis import Fault, Nemesis, RunSpec, plan
from tests.torture.secret_search import in_database, in_files
from tests.torture.stored import Connection
from tests.torture.supervised import supervised
from tests.torture.terminals import shown
from tests.torture.users import Users
from tests.torture.wallets import has_wallet, wallet_of

CALM = 6.0  # seconds of load after the faults, for the backlog
SEE_WITHIN = 60.0
SETTLE_WITHIN = 120.0
DRAIN_WITHIN = 120.0
COLLECT_WITHIN = 120.0
QUIET_WITHIN = 15.0


class Run(msgspec.Struct):
    """The result of a run. Times are microseconds."""

    spec: RunSpec
    faults: list[Fault]
    evidence: Evidence
    began: int
    healed: int
    drained: int


async def torture(installation: Installation, spec: RunSpec, report: Callable[[str], None] = lambda _: None) -> Run:
    """Run the load with its faults.

    The installation is healthy and idle afterwards. `report` is called with a line every minute.
    """
    automations = await _publish(installation)
    users, nemesis = Users(installation, spec), Nemesis(installation)
    await users.prepare()
    began = now_us()
    async with supervised(installation.folder) as up, asyncio.TaskGroup() as group:
        attacking = group.create_task(up.attack(spec.seed, users.log, lambda: users.load.stopping))
        healed = await _load_with_faults(users, nemesis, automations, report)
        await attacking
    async with await psycopg.AsyncConnection.connect(installation.postgres.server.admin_dsn, autocommit=True) as tx:
        await users.marketer.finish()
        await _drain(tx)
        await _run_second_erasures(installation)
        await _collect(tx, users)
        await users.do_everything()
        drained = now_us()
        left = await _open_resources(tx)
        journey = await journeys.read(tx, users.marketer.log, installation.sinks.arrivals)
        rows = await stored.read(tx, installation.keyring, users.log.sent.values())
        searched = await in_database(tx)
    await users.close()
    logs = [*installation.logs, up.log]
    users.log.shown += [shown(log.name, log.read_text(errors="replace")) for log in logs]
    searched += in_files(logs, users.holders.visits.tokens) + users.read
    evidence = Evidence(
        users.log,
        rows,
        await stored.request_counts(installation.urls[0], installation.accounts),
        automations,
        [arrival for arrival in installation.sinks.arrivals if not journeys.belongs_here(arrival)],
        nemesis.faults,
        left,
        installation.complaints(),
        len(installation.engines),
        int(spec.slack * 1e6),
        searched,
        journey,
    )
    return Run(spec, nemesis.faults, evidence, began, healed, drained)


async def _load_with_faults(
    users: Users, nemesis: Nemesis, automations: list[Automation], report: Callable[[str], None]
) -> int:
    """Run the load with its faults. Returns the time at which every process works again."""
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(users.load.run())
        marketing = group.create_task(users.marketer.work())
        beside = [
            group.create_task(work)
            for work in (*users.other_coroutines(automations), _report_progress(users, nemesis, report))
        ]
        await nemesis.run(plan(users.spec))
        await nemesis.installation.ready()
        await _calm(users)
        healed = now_us()
        for task in (*beside, marketing):
            task.cancel()
        users.load.stop()
        await asyncio.wait([sending], timeout=SETTLE_WITHIN)
        sending.cancel()
    return healed


async def _calm(users: Users) -> None:
    """Continue the load without faults until every invariant has something to check, at most SEE_WITHIN seconds."""
    deadline = now_us() + int(SEE_WITHIN * 1e6)
    await asyncio.sleep(CALM)
    while not users.has_seen_enough and now_us() < deadline:
        await asyncio.sleep(0.5)


async def _run_second_erasures(installation: Installation) -> None:
    """Run the second erasure, which processes do a minute after the first."""
    database = Database(installation.postgres.server.dsn)
    await database.open()
    while await erase_again(database, datetime.now(UTC) + SECOND_ERASURE_DELAY):
        pass
    await database.close()


async def _collect(connection: Connection, users: Users) -> None:
    """Collect the messages of all wallets whose key we have, at most COLLECT_WITHIN seconds."""
    deadline = now_us() + int(COLLECT_WITHIN * 1e6)
    addresses = {wallet_of(person).address for person in users.load.all_people if has_wallet(person)}
    while now_us() < deadline:
        waiting = [(org, wallet) for org, wallet in await stored.waiting(connection) if wallet in addresses]
        if not waiting:
            return
        await users.holders.collect(waiting, users.load.all_people)


async def _publish(installation: Installation) -> list[Automation]:
    url, sink = installation.urls[0], f"http://127.0.0.1:{installation.sinks.webhook_port}"
    return [
        automation
        for account in installation.accounts
        for automation in await publish(url, f"{sink}/{account.org}", account.org, account.keys["workbench"])
    ]


async def _report_progress(users: Users, nemesis: Nemesis, report: Callable[[str], None]) -> None:
    for minute in itertools.count(1):
        await asyncio.sleep(60)
        report(f"{minute} min: {len(users.log.sent):,} events sent, {len(nemesis.faults)} faults survived")


async def _drain(connection: Connection) -> None:
    """Wait until every entry has ended, at most DRAIN_WITHIN seconds."""
    deadline = now_us() + int(DRAIN_WITHIN * 1e6)
    while await stored.open_entries(connection) and now_us() < deadline:
        await asyncio.sleep(0.2)


async def _open_resources(connection: Connection) -> list[str]:
    """Return the locks and transactions that remain open.

    Those of engines that look for work end within QUIET_WITHIN seconds.
    """
    deadline = now_us() + int(QUIET_WITHIN * 1e6)
    while (left := await stored.left_open(connection)) and now_us() < deadline:
        await asyncio.sleep(0.1)
    return left
