"""The client of a backend: what `track` takes, and how many events a second go through its file to the service.

Each round is a new process, as a backend is. Its first event, with which it imports httpx and connects, is not timed.
It tracks as fast as it can and then waits until everything is accepted; the threads that send share its core. The bare
reference inserts the same rows into a SQLite file, and sends nothing. The first round, which makes the contacts, is not
counted.
"""

import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench import postgres, site
from bench.effort import Effort, Measurement
from bench.processes import Service
from bench.sending import cpu_so_far
from bench.table import at_least, at_most, row

_EVENTS = 40_000
_IMPORTS = 5
_TIMEOUT_S = 120.0
_ROW = b'{"event":"deposit","contact":{"externalId":"c1"},"payload":{"amountUsd":12.5},"idempotencyKey":"'


class Tracked(msgspec.Struct, frozen=True):
    """Of one process: microseconds of `track` and of a bare insert (medians), and events a second until accepted.

    `cpu`: its CPU seconds, later with those of the API (`service`) and of `postgres`.
    """

    track_us: float
    insert_us: float
    rate: float
    cpu: dict[str, float]


def measure(effort: Effort) -> Measurement:
    imports = [_import_ms() for _ in range(_IMPORTS)]
    with postgres.running() as server:
        database = postgres.prepared(server, "client")
        with site.apis(server, database, 1) as (api,):
            before = postgres.stored_events(database)
            _, *rounds = (_track(server, api, database.live_key) for _ in range(1 + effort.rounds))
            stored = postgres.stored_events(database) - before
    expected = (1 + _EVENTS) * (1 + effort.rounds)
    if stored != expected:
        raise RuntimeError(f"{expected} events were tracked, {stored} are stored")
    bare = ("bare INSERT", [tracked.insert_us for tracked in rounds])
    return Measurement(
        [
            row("from workbench import Client", "ms", imports, None, at_most(60)),
            row("track, p50", "µs", [tracked.track_us for tracked in rounds], bare, at_most(30)),
            row("tracked, sent and accepted", "events/s", [tracked.rate for tracked in rounds], None, at_least(20_000)),
            *(
                row(f"  CPU in {process}", "µs/event", [tracked.cpu[name] / _EVENTS * 1e6 for tracked in rounds])
                for name, process in (("client", "the client"), ("service", "the API"), ("postgres", "Postgres"))
            ),
        ],
        {},
    )


def _import_ms() -> float:
    code = "import time; t = time.perf_counter(); from workbench import Client; print(1000 * (time.perf_counter() - t))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=_TIMEOUT_S)
    return float(done.stdout)


def _track(server: postgres.Postgres, api: Service, key: str) -> Tracked:
    before = cpu_so_far(server, [api.pid])
    with tempfile.TemporaryDirectory(prefix="bench-client-") as folder:
        command = [sys.executable, "-m", "bench.client", f"http://127.0.0.1:{api.port}", key, folder]
        done = subprocess.run(command, capture_output=True, check=False, timeout=_TIMEOUT_S)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    cpu = {name: seconds - before[name] for name, seconds in cpu_so_far(server, [api.pid]).items()}
    tracked = msgspec.json.decode(done.stdout, type=Tracked)
    return msgspec.structs.replace(tracked, cpu=tracked.cpu | cpu)


def _track_all(url: str, key: str, folder: Path) -> Tracked:
    from workbench import Client

    insert_us = statistics.median(_bare_inserts(folder))
    taken_us = []
    with Client(url, key, spool=folder / "spool") as client:
        client.track("deposit", external_id="c0", payload={"amountUsd": 12.5, "asset": "USDC"})
        client.flush()
        started, cpu_started = time.perf_counter(), time.process_time()
        for number in range(_EVENTS):
            begun = time.perf_counter_ns()
            client.track("deposit", external_id=f"c{number % 5_000}", payload={"amountUsd": 12.5, "asset": "USDC"})
            taken_us.append((time.perf_counter_ns() - begun) / 1000)
        if waiting := client.flush(timeout_s=_TIMEOUT_S / 2):
            raise RuntimeError(f"{waiting} events still wait: {client.failure}")
        rate = _EVENTS / (time.perf_counter() - started)
        cpu_s = time.process_time() - cpu_started
    return Tracked(statistics.median(taken_us), insert_us, rate, {"client": cpu_s})


def _bare_inserts(folder: Path) -> list[float]:
    database = sqlite3.connect(folder / "bare.sqlite", isolation_level=None)
    database.execute("PRAGMA journal_mode = wal")
    database.execute("PRAGMA synchronous = off")
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, body BLOB)")
    taken_us = []
    for number in range(_EVENTS // 4):
        begun = time.perf_counter_ns()
        database.execute("INSERT INTO events (body) VALUES (?)", (_ROW + b'%d"}' % number,))
        taken_us.append((time.perf_counter_ns() - begun) / 1000)
    database.close()
    return taken_us


if __name__ == "__main__":
    print(msgspec.json.encode(_track_all(sys.argv[1], sys.argv[2], Path(sys.argv[3]))).decode())
