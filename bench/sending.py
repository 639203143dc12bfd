"""Sends a load from a separate process and measures the CPU time of every process involved."""

import contextlib
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

import msgspec

from bench.figures import Slice
from bench.load import ANSWER_TIMEOUT_S, LoadSpec
from bench.postgres import Database, Postgres, stored_events
from bench.processes import Service, cpu_seconds, machine_cpu_seconds

_START_TIMEOUT_S = 30.0


def send(server: Postgres, order: LoadSpec, *services: Service) -> Slice:
    """Send a load from a separate process; return its slice with the CPU time of services and Postgres."""
    order = msgspec.structs.replace(order, ports=tuple(service.port for service in services))
    pids = [service.pid for service in services]
    before, begun = cpu_so_far(server, pids), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "bench.load", msgspec.json.encode(order).decode()],
        capture_output=True,
        check=False,
        timeout=order.seconds + ANSWER_TIMEOUT_S + _START_TIMEOUT_S,
    )
    cpu = {name: seconds - before[name] for name, seconds in cpu_so_far(server, pids).items()}
    others = cpu.pop("others") / (time.perf_counter() - begun)
    if done.returncode:
        raise RuntimeError(done.stderr.decode()[-2000:])
    result = msgspec.json.decode(done.stdout, type=Slice)
    if strange := result.statuses.keys() - {"202", "503"}:
        raise RuntimeError(f"unexpected answers: {strange} in {result.statuses}")
    return msgspec.structs.replace(result, cpu={**result.cpu, **cpu}, others=others)


@contextlib.contextmanager
def accounted(database: Database) -> Iterator[list[Slice]]:
    """Yield a list for the slices of a database. At the end every accepted event must be stored.

    An event answered with 503 may be stored or not; no other event may be stored.
    """
    slices: list[Slice] = []
    before = stored_events(database)
    yield slices
    accepted, stored = sum(slice_.accepted for slice_ in slices), stored_events(database) - before
    refused = sum(slice_.refused for slice_ in slices)
    if not accepted <= stored <= accepted + refused:
        raise RuntimeError(f"{accepted} events were accepted, {refused} refused, {stored} are stored")


def cpu_so_far(server: Postgres, pids: Sequence[int]) -> dict[str, float]:
    """Return the CPU seconds of services and Postgres so far, and of all `others` on the machine."""
    ours = {"service": sum(cpu_seconds(pid) for pid in pids), "postgres": cpu_seconds(server.pid)}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    generator = children.ru_utime + children.ru_stime
    return {**ours, "others": machine_cpu_seconds() - generator - time.process_time() - sum(ours.values())}
