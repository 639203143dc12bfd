"""On-chain events: the time from a transaction to its message with one block a second, and the rate of catching up.

The node is local (`make bench` and `make chain` install it). The follower and the engine run in separate processes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from bench import postgres, site
from bench.effort import Effort, Measurement
from bench.figures import percentile, quantiles
from bench.postgres import SECRET, Database, Postgres
from bench.processes import beside
from bench.table import Row, at_least, at_most, row
from tests.chain.anvil import Anvil, Token, running

TRANSFERS = 20  # in a round
LOGS = 20_000
PER_TRANSACTION = 1_000
_TIMEOUT_S = 120.0


def measure(effort: Effort) -> Measurement:
    """Measure the latencies of each round, then the rate of catching up."""
    with postgres.running() as server:
        rows = [_latency(server, effort), _catching_up(server, effort)]
    return Measurement(rows, {})


def _latency(server: Postgres, effort: Effort) -> Row:
    database = postgres.prepared(server, "chain_latency")
    with running(server.home, 31_337, "--block-time", "1") as node:
        token = Token(node)
        _publish(server, database, token)
        with (
            _following(server, database, node),
            _engine(server, database),
            postgres.connect(database.dsn) as connection,
        ):
            _wait(connection, "SELECT count(*) FROM workbench.chains WHERE block_number IS NOT NULL", 1)
            rounds = [_transfers(connection, token, number) for number in range(effort.rounds)]
    worst = [percentile(round_, 99) for round_ in rounds]
    return row("transaction to message, block time 1 s, p99", "ms", worst, None, at_most(2_000))


def _transfers(connection: psycopg.Connection, token: Token, number: int) -> list[float]:
    """Return the latencies of a round in milliseconds, as made by `quantiles`."""
    sent: dict[str, float] = {}
    for index in range(TRANSFERS):
        amount = number * TRANSFERS + index + 1
        sent[str(amount)] = time.time()
        token.mint(f"0x{amount:040x}", amount)  # returns when the transaction is in a block
    _wait(connection, "SELECT count(*) FROM workbench.messages", (number + 1) * TRANSFERS)
    rows = connection.execute(
        "SELECT subject, extract(epoch FROM created_at)::float8 FROM workbench.messages"
    ).fetchall()
    return quantiles([(at - sent[subject]) * 1e3 for subject, at in rows if subject in sent])


def _catching_up(server: Postgres, effort: Effort) -> Row:
    rates = []
    for number in range(min(effort.rounds, 3)):
        database = postgres.prepared(server, f"chain_behind_{number}")
        with running(server.home) as node, postgres.connect(database.dsn) as connection:
            token = Token(node)
            _publish(server, database, token)
            with _following(server, database, node):
                _wait(connection, "SELECT count(*) FROM workbench.chains WHERE block_number IS NOT NULL", 1)
            for first in range(LOGS // PER_TRANSACTION):
                token.scatter(first % 5 * PER_TRANSACTION + 1, PER_TRANSACTION)
            node.mine(100)
            began = time.monotonic()
            with _following(server, database, node):
                _wait(connection, "SELECT count(*) FROM workbench.onchain_events", LOGS)
            rates.append(LOGS / (time.monotonic() - began))
    return row(f"catching up with {LOGS:,} logs, start included", "logs/s", rates, None, at_least(2_000))


def _publish(server: Postgres, database: Database, token: Token) -> None:
    spec = {"chainId": 31_337, "contract": token.address, "signature": "Transfer(address,address,uint256)"}
    say = {"recipientMode": "triggering_profile", "title": "{{ value }}", "body": "Your tokens have arrived."}
    automation = {
        "name": "thanks",
        "triggerSpec": {"type": "onchain_event", "walletArg": "to", "createContacts": True, **spec},
        "graph": {
            "nodes": [{"id": "t", "type": "onchain_event"}, {"id": "n", "type": "send_inapp", "data": say}],
            "edges": [{"id": "e", "source": "t", "target": "n"}],
        },
    }
    with site.bare_apis(server, database, 1) as services:
        site.publish(services[0], database, automation)


@contextmanager
def _following(server: Postgres, database: Database, node: Anvil) -> Iterator[None]:
    environment = {"DATABASE_URL": database.dsn, "WORKBENCH_SECRET": SECRET, "WORKBENCH_EVM_RPC": node.url}
    with beside("-m", "api", "chain", log=Path(server.home / "chain.log"), environment=environment):
        yield


@contextmanager
def _engine(server: Postgres, database: Database) -> Iterator[None]:
    environment = {"DATABASE_URL": database.dsn, "WORKBENCH_SECRET": SECRET}
    with beside("-m", "api", "engine", log=Path(server.home / "engine.log"), environment=environment):
        yield


def _wait(connection: psycopg.Connection, query: str, promise: int) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while (row := connection.execute(query).fetchone()) is None or row[0] < promise:
        if time.monotonic() > deadline:
            raise RuntimeError(f"after {_TIMEOUT_S:.0f} s {query!r} is still {row}")
        time.sleep(0.02)
