"""Kill followers and reorganize the chain while tokens move: `python -m tests.chain.torture --kills 50 --reorgs 20`.

At the end, every transfer in the chain of the node must have one row and one entry that was not cancelled. All other
rows must be marked as removed, and no contact may have two messages for one transfer.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from api import settings
from api.auth import keys
from api.channels.outgoing import open_transports
from api.store.database import Database
from bench import postgres
from tests.chain.anvil import OTHER, Anvil, Token, running
from tests.chain.organization import ChainOrg
from workbench.language.abi import event_topic

SECRET = "engine-test-secret-of-forty-characters-x"
DEEPEST = 4  # blocks of a reorganization
LONGEST_REST = 9.0  # seconds between two faults; the lease of a follower that was killed lasts five
_DRIVE_EVERY = 0.2
_SETTLED_WITHIN = 120.0


class Summary(msgspec.Struct, frozen=True):
    """The results. The last four must be 0."""

    transfers: int
    removed: int
    messages: int
    missed: int
    invented: int
    unanswered: int
    doubled: int


class KillableFollower:
    """A follower process that can be killed and started again."""

    def __init__(self, dsn: str, url: str, folder: Path) -> None:
        self._environment = os.environ | {
            "DATABASE_URL": dsn,
            "WORKBENCH_EVM_RPC": url,
            "WORKBENCH_SECRET": SECRET,
            "WORKBENCH_DATA_DIR": str(folder),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        }
        self._log = (folder / "chain.log").open("ab")
        self._process = self._started()

    def kill(self) -> None:
        """Kill the process and start another."""
        self._process.kill()
        self._process.wait()
        self._process = self._started()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "api", "chain"]
        return subprocess.Popen(command, env=self._environment, stdout=self._log, stderr=self._log)


async def torture(org: ChainOrg, node: Anvil, folder: Path, kills: int, reorgs: int, chance: random.Random) -> Summary:
    """Run kills and reorganizations in a random order with transfers between them; return the results."""
    token = Token(node)
    node.mine(2 * DEEPEST)  # the token itself is never dropped
    await org.on_chain(token)
    await org.on_chain(token, confirmations=2, delay=1)
    process = KillableFollower(org.database.dsn, node.url, folder)
    driving = asyncio.create_task(_drive(org))
    try:
        await org.until("SELECT count(*) FROM chains WHERE block_number IS NOT NULL", (1,))
        await asyncio.to_thread(node.mine, 2 * DEEPEST)  # no reorganization reaches the blocks before these
        faults = ["kill"] * kills + ["reorg"] * reorgs
        chance.shuffle(faults)
        number = 1_000
        for fault in faults:
            number = await asyncio.to_thread(_move, token, number, chance)
            await asyncio.sleep(chance.random() * LONGEST_REST)
            if fault == "kill":
                await asyncio.to_thread(process.kill)
            else:
                await asyncio.to_thread(_reorganize, node, token, number, chance)
                number += DEEPEST
        await asyncio.to_thread(node.mine, 3)
        await org.until(
            "SELECT number, hash FROM chain_blocks ORDER BY number DESC LIMIT 1", node.head, _SETTLED_WITHIN
        )
        await org.until(
            "SELECT count(*) FROM entries WHERE state NOT IN ('completed', 'cancelled')", (0,), _SETTLED_WITHIN
        )
    finally:
        driving.cancel()
        await asyncio.gather(driving, return_exceptions=True)
        process.stop()
    return await _check_results(org, node, token)


def _move(token: Token, number: int, chance: random.Random) -> int:
    for _ in range(chance.randrange(1, 4)):
        count = chance.randrange(1, 30)
        token.scatter(number, count)
        number += count
    return number


def _reorganize(node: Anvil, token: Token, number: int, chance: random.Random) -> None:
    depth = chance.randrange(1, DEEPEST + 1)
    if chance.random() < 0.5:  # one block has a new transaction, then all the old ones
        first = token.minting(f"0x{number:040x}", 1) | {"from": OTHER}
        node.reorg(depth, [[first, 0], *([transaction, 0] for transaction in node.newest_transactions(depth))])
        return
    replacements = [
        [token.minting(f"0x{number + offset:040x}", 1), offset] for offset in range(chance.randrange(depth + 1))
    ]
    node.reorg(depth, replacements)


async def _drive(org: ChainOrg) -> None:
    while True:
        await org.drive()
        await asyncio.sleep(_DRIVE_EVERY)


async def _check_results(org: ChainOrg, node: Anvil, token: Token) -> Summary:
    log_filter = {"fromBlock": "0x0", "toBlock": "latest", "address": token.address}
    logs: list[dict[str, Any]] = await asyncio.to_thread(
        node.ask, "eth_getLogs", {**log_filter, "topics": [event_topic("Transfer(address,address,uint256)")]}
    )
    transfers = {(log["transactionHash"], int(log["logIndex"], 16)) for log in logs}
    rows = await org.fetch("SELECT tx_hash, log_index, removed, id::text FROM onchain_events")
    live = {(tx_hash, index): row_id for tx_hash, index, removed, row_id in rows if not removed}
    completed = await org.fetch(
        "SELECT event_id::text, count(*) FROM entries WHERE state = 'completed' GROUP BY event_id"
    )
    entered = dict(completed)
    doubled = await org.fetch(
        "SELECT e.automation_id, o.tx_hash, o.args ->> 'to' FROM messages m JOIN entries e ON e.id = m.entry_id"
        " JOIN onchain_events o ON o.id = e.event_id GROUP BY 1, 2, 3 HAVING count(*) > 1"
    )
    ((messages,),) = await org.fetch("SELECT count(*) FROM messages")
    return Summary(
        transfers=len(transfers),
        removed=len(rows) - len(live),
        messages=messages,
        missed=len(transfers - live.keys()),
        invented=len(live.keys() - transfers),
        unanswered=sum(entered.get(row_id, 0) != 2 for row_id in live.values()),
        doubled=len(doubled),
    )


def main() -> int:
    """Run the torture once, on a separate Postgres."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chain.torture", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--reorgs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    os.environ["PGOPTIONS"] = "-c workbench.org=*"  # our own queries see every organization
    with postgres.running() as server, tempfile.TemporaryDirectory() as folder, running(Path(folder)) as node:
        dsn = postgres.prepared(server, "torture").dsn
        summary = asyncio.run(_run(dsn, node, Path(folder), args))
    sys.stdout.write(f"{summary}\n")
    return int(bool(summary.missed or summary.invented or summary.unanswered or summary.doubled))


async def _run(dsn: str, node: Anvil, folder: Path, args: argparse.Namespace) -> Summary:
    org_id = await keys.create_org(dsn, "torture")
    database = Database(dsn, size=4, lock_ms=10_000, hot=True)
    await database.open()
    transports = open_transports(settings.read({"WORKBENCH_DATA_DIR": str(folder)}))
    org = ChainOrg(database, org_id, transports)
    try:
        return await torture(org, node, folder, args.kills, args.reorgs, random.Random(args.seed))
    finally:
        await transports.close()
        await database.close()


if __name__ == "__main__":
    sys.exit(main())
