"""One run: load with faults, heal, drain until nothing is due, collect."""

import asyncio
import itertools
from collections.abc import Callable

import msgspec
import psycopg

from tests.torture import stored
from tests.torture.automations import Author, Automation, publish
from tests.torture.clients import Load
from tests.torture.evidence import Evidence
from tests.torture.installation import Installation
from tests.torture.log import now_us
from tests.torture.nemesis import Fault, Nemesis, Wish, plan
from tests.torture.stored import Connection

CALM = 6.0  # seconds of load after the faults, in which what piled up is worked off
SETTLE_WITHIN = 120.0
DRAIN_WITHIN = 120.0
QUIET_WITHIN = 15.0


class Run(msgspec.Struct):
    """What was done and what is known of it. Moments are microseconds."""

    wish: Wish
    faults: list[Fault]
    evidence: Evidence
    began: int
    healed: int
    drained: int


async def torture(installation: Installation, wish: Wish, report: Callable[[str], None] = lambda _: None) -> Run:
    """Return the outcome of a run; the installation is healthy and idle afterwards. `report` hears how it goes."""
    automations = await _publish(installation)
    load, nemesis = Load(installation.urls, installation.accounts, wish.seed, wish.clients), Nemesis(installation)
    keys = {account.org: account.keys["workbench"] for account in installation.accounts}
    author = Author(installation.urls, keys, wish.seed, load.log)
    began = now_us()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(load.run())
        beside = [group.create_task(do) for each in automations for do in author.busy_with(each, wish.seconds / 2)]
        beside.append(group.create_task(_tell(load, nemesis, report)))
        await nemesis.run(plan(wish))
        await installation.ready()
        await asyncio.sleep(CALM)
        healed = now_us()
        for task in beside:
            task.cancel()
        load.stop()
        await asyncio.wait([sending], timeout=SETTLE_WITHIN)
        sending.cancel()
    async with await psycopg.AsyncConnection.connect(installation.postgres.server.admin_dsn, autocommit=True) as tx:
        await _drain(tx)
        drained = now_us()
        left = await _left(tx)
        rows = await stored.read(tx, installation.keyring, load.log.sent.values())
    told = await stored.ask(installation.urls[0], installation.accounts)
    evidence = Evidence(
        load.log,
        rows,
        told,
        automations,
        installation.sinks.arrivals,
        nemesis.faults,
        left,
        installation.complaints(),
        len(installation.engines),
        int(wish.slack * 1e6),
    )
    return Run(wish, nemesis.faults, evidence, began, healed, drained)


async def _publish(installation: Installation) -> list[Automation]:
    url, sink = installation.urls[0], f"http://127.0.0.1:{installation.sinks.webhook_port}"
    return [
        automation
        for account in installation.accounts
        for automation in await publish(url, sink, account.org, account.keys["workbench"])
    ]


async def _tell(load: Load, nemesis: Nemesis, report: Callable[[str], None]) -> None:
    for minute in itertools.count(1):
        await asyncio.sleep(60)
        report(f"{minute} min: {len(load.log.sent):,} events sent, {len(nemesis.faults)} faults survived")


async def _drain(connection: Connection) -> None:
    """Return when every entry has come to its end, or after a while."""
    deadline = now_us() + int(DRAIN_WITHIN * 1e6)
    while await stored.open_entries(connection) and now_us() < deadline:
        await asyncio.sleep(0.2)


async def _left(connection: Connection) -> list[str]:
    """Return what is held although nothing is to be done; what engines hold while they look for work does not count."""
    deadline = now_us() + int(QUIET_WITHIN * 1e6)
    while (left := await stored.left_open(connection)) and now_us() < deadline:
        await asyncio.sleep(0.1)
    return left
