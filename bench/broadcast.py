"""A broadcast to every contact of a large organization, beside single events and an engine that drives its entries.

The time is that from the request to the last entry, by one engine, which drives the entries that are due meanwhile.
Single events arrive in an open loop, before and during the broadcast; their latency is measured from the time at which
each was due.
"""

import threading
import time

import msgspec

from bench import engines, filling, postgres, site
from bench.automations import thanks
from bench.effort import Effort, Measurement
from bench.figures import Slice, percentile
from bench.postgres import Database, connect
from bench.sending import accounted, send
from bench.singles import order_of_singles
from bench.table import Row, at_most, ratio_at_most, row

CONTACTS, QUICK = 1_000_000, 200_000
EVENTS_PER_SECOND = 200.0
_BEFORE_S, _SLICE_S = 30.0, 5.0
_TIMEOUT_S = 900.0
_DONE = """SELECT b.entries, (SELECT count(*) FROM workbench.entries e
                       WHERE e.automation_id = b.automation_id AND e.state = 'exited')
    FROM workbench.broadcasts b WHERE b.state = 'done'"""


def measure(effort: Effort) -> Measurement:
    """Send events, then a broadcast to all contacts while further events come."""
    contacts = QUICK if effort.rounds <= 5 else CONTACTS  # the first with --quick
    with postgres.running() as server:
        database = postgres.prepared(server, "broadcast")
        with site.apis(server, database, 1) as (api,):
            filling.fill_recipients(database, contacts)
            filling.settle(server)
            automation_id = site.publish(api, database, _automation())
            order = order_of_singles(database, effort)
            paced = msgspec.structs.replace(order, rate=EVENTS_PER_SECOND, seconds=_SLICE_S)
            with engines.engines(server, database, 1), accounted(database) as slices:
                before = [send(server, paced, api) for _ in range(round(_BEFORE_S / _SLICE_S))]
                begun = time.perf_counter()
                site.ask(api, database, f"{site.AUTOMATIONS}/{automation_id}/broadcasts", {"all": True})
                ended = _Completion(database)
                during = []
                while ended.is_alive():
                    during.append(send(server, paced, api))
                slices.extend(before + during)
            return Measurement(_rows(ended, ended.at - begun, before, during), {"before": before, "during": during})


def _rows(ended: "_Completion", seconds: float, before: list[Slice], during: list[Slice]) -> list[Row]:
    p50, p99 = ((_at(percent, during), ("before", _at(percent, before))) for percent in (50, 99))
    return [
        row(f"broadcast to {ended.entries:,} contacts, entries made", "s", [seconds], None, at_most(120)),
        row("  entries driven meanwhile", "entries/s", [ended.driven / seconds]),
        row("single events meanwhile, 200/s, p50", "ms", *p50),
        row("single events meanwhile, 200/s, p99", "ms", *p99, ratio_at_most(2)),
    ]


def _automation() -> dict[str, object]:
    """Return an automation of two steps that broadcasts start."""
    automation = thanks()
    trigger, _, message, _ = automation["graph"]["nodes"]
    trigger |= {"type": "broadcast", "data": {"actionType": "broadcast"}}
    message["data"]["body"] = "It begins tomorrow."
    return automation | {"name": "announcement", "triggerSpec": {"type": "broadcast"}}


class _Completion(threading.Thread):
    """Waits until the broadcast has ended."""

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._database = database
        self.at = 0.0
        self.entries = self.driven = 0
        self.start()

    def run(self) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        with connect(self._database.dsn) as connection:
            while time.monotonic() < deadline:
                if (row := connection.execute(_DONE).fetchone()) is not None:
                    self.at, (self.entries, self.driven) = time.perf_counter(), row
                    break
                time.sleep(0.1)


def _at(percent: float, slices: list[Slice]) -> list[float]:
    """Return a percentile of all latencies of slices of the same length."""
    return [percentile(sorted(latency for slice_ in slices for latency in slice_.latencies_ms), percent)]
