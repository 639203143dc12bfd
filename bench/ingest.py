"""Ingest: durable single events against a bare route, and batches, with mostly returning contacts.

Singles: one API process, one Postgres, one load generator on the machine's cores. Batches: two API processes, as the two
cores ask for. Rounds alternate between reference and subject, so drift of a shared machine meets both.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from api.access import keys, orgs
from api.embedded import EmbeddedPostgres
from api.keyring import Keyring
from api.store.migrate import migrate
from bench.processes import cpu_seconds, free_port, running

SECRET = "bench-secret-of-more-than-forty-characters"
ROUNDS = 7
CONNECTIONS = 128
CONTACTS = 5_000


def measure(seconds: float = 2.0) -> list[dict[str, Any]]:
    """Return the rows of the table: name, value, unit, reference, ratio, wanted."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home, EmbeddedPostgres(Path(home)) as server:
        key = asyncio.run(_prepare(server.dsn))
        api_port, second_port, noop_port = free_port(), free_port(), free_port()
        environment = {"DATABASE_URL": server.dsn, "WORKBENCH_SECRET": SECRET, "WORKBENCH_INGEST_RATE": "0"}
        with (
            running(["-m", "api", "serve", "--port", str(api_port)], api_port, environment) as api_pid,
            running(["-m", "api", "serve", "--port", str(second_port)], second_port, environment),
            running(["-m", "bench.noop", str(noop_port)], noop_port, {}),
        ):
            load("batch", api_port, key, 4 * seconds, connections=8)  # makes the contacts, and lets statistics settle
            load("single", api_port, key, 2 * seconds)
            noop, single, batch, cpu = [], [], [], []
            for _ in range(ROUNDS):
                noop.append(load("noop", noop_port, key, seconds / 2))
                before = cpu_seconds(api_pid)
                single.append(load("single", api_port, key, seconds))
                cpu.append((cpu_seconds(api_pid) - before) / single[-1]["requests"] * 1e6)
                batch.append(load_both((api_port, second_port), key, seconds))
    rates = [one["rate"] / reference["rate"] for one, reference in zip(single, noop, strict=True)]
    return [
        row("bare route that decodes the event", median(noop), "requests/s"),
        row("POST /events, durable", median(single), "events/s", statistics.median(rates), 0.35),
        row("  p50 at 128 connections", statistics.median(one["p50"] for one in single), "ms"),
        row("  p99 at 128 connections", statistics.median(one["p99"] for one in single), "ms"),
        row("  CPU in the API", statistics.median(cpu), "µs/event"),
        row("POST /events/batch of 100, two APIs", median(batch) * 100, "events/s", median(batch) * 100 / 8_000, 1.0),
        row("  against the bare route", median(batch) * 100 / median(noop), "events per bare request"),
    ]


def load(shape: str, port: int, key: str, seconds: float, connections: int = CONNECTIONS) -> dict[str, Any]:
    arguments = [shape, str(port), key, str(seconds), str(connections), str(CONTACTS)]
    done = subprocess.run([sys.executable, "-m", "bench.load", *arguments], capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    assert list(result["statuses"]) == ["202"], result["statuses"]
    return result


def load_both(ports: tuple[int, int], key: str, seconds: float) -> dict[str, Any]:
    """Send batches to two API processes at once; return what they took together."""
    with ThreadPoolExecutor() as threads:
        results = list(threads.map(lambda port: load("batch", port, key, seconds, connections=4), ports))
    return {"rate": sum(result["rate"] for result in results)}


def median(results: list[dict[str, Any]]) -> float:
    return statistics.median(result["rate"] for result in results)


def row(name: str, value: float, unit: str, ratio: float | None = None, wanted: float | None = None) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "ratio": ratio, "wanted": wanted}


async def _prepare(dsn: str) -> str:
    await migrate(dsn)
    await orgs.create(dsn, "bench")
    return await keys.create(dsn, Keyring(SECRET), "bench", "live", None, "bench")
