"""One run: load with faults, heal, drain until nothing is due, collect."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import msgspec
import psycopg

from tests.torture import stored
from tests.torture.automations import Automation, publish, switch
from tests.torture.clients import Load
from tests.torture.evidence import Evidence
from tests.torture.installation import Installation
from tests.torture.log import now_us
from tests.torture.nemesis import Fault, Nemesis, plan
from tests.torture.stored import Connection

SETTLE_WITHIN = 120.0
DRAIN_WITHIN = 120.0
QUIET_WITHIN = 15.0


class Wish(msgspec.Struct, frozen=True):
    """What to do: how many kills in how many seconds, and how long a freeze lasts at most."""

    seed: int
    kills: int
    seconds: float
    longest_freeze: float = 13.0


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
    load, nemesis = Load(installation.urls, installation.accounts, wish.seed), Nemesis(installation)
    began = now_us()
    async with asyncio.TaskGroup() as group:
        sending = group.create_task(load.run())
        beside = [group.create_task(each) for each in _switching(installation, automations, load, wish.seed)]
        beside.append(group.create_task(_tell(load, nemesis, report)))
        await nemesis.run(plan(wish.seed, wish.kills, wish.seconds, wish.longest_freeze))
        await installation.ready()
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
    evidence = Evidence(load.log, rows, told, automations, left, installation.complaints())
    return Run(wish, nemesis.faults, evidence, began, healed, drained)


async def _publish(installation: Installation) -> list[Automation]:
    url = installation.urls[0]
    return [
        automation
        for account in installation.accounts
        for automation in await publish(url, account.org, account.keys["workbench"])
    ]


def _switching(
    installation: Installation, automations: list[Automation], load: Load, seed: int
) -> list[Coroutine[Any, Any, None]]:
    keys = {account.org: account.keys["workbench"] for account in installation.accounts}
    return [
        switch(installation.urls, keys[each.org], each, Random(f"{seed}/{each.org}"), load.log)
        for each in automations
        if each.rule.switched
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
