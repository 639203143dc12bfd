"""The metrics of API processes and engine processes. Every name begins with `workbench_`.

An API process also reports the delay of engines and chain followers, computed from their latest heartbeats in the
database. The delay grows with time even without new heartbeats, so a stopped engine is visible.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)

from api import process
from api.clock import Clock, monotonic_ns, token
from api.engine.loop import Engine
from api.ingest.pipeline import QUEUE_CAPACITY
from api.jobs import every
from api.process import Spans, Tally
from api.routes.request import Services
from api.store.chain import count_dead_logs, list_chains
from api.store.database import Database
from api.store.engines import Heartbeat, last_heartbeat
from api.store.parts import ProgressSummary, summarize_progress
from workbench.language.responses import ChainView

POLL_INTERVAL_S = 5.0
STALE_AFTER_S = 15.0

Collect = Callable[[], Iterable[Metric]]


class Lag:
    """The latest heartbeats of engines and chain followers, and the progress of parts."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._heartbeat: Heartbeat | None = None
        self._polled_at: datetime | None = None
        self.chains: Sequence[ChainView] = ()
        self.dead_logs: Mapping[int, int] = {}
        self._parts = ProgressSummary(0, None)

    async def run(self) -> None:
        """Poll the database every few seconds until cancelled."""
        await every(POLL_INTERVAL_S, "lag", self.poll)

    def heartbeat_age_s(self) -> float:
        """Return the age of the latest heartbeat of any engine; NaN if there was none."""
        return math.nan if self._heartbeat is None else (self._clock.now() - self._heartbeat.seen_at).total_seconds()

    def oldest_due_s(self) -> float:
        """Return how late the oldest due entry is; 0 if none is known."""
        return 0.0 if self._heartbeat is None else self._heartbeat.lag_seconds(self._clock.now())

    def seconds_since(self, moment: datetime) -> float:
        return max((self._clock.now() - moment).total_seconds(), 0.0)

    def parts_failing(self) -> int:
        """Return the number of organizations whose parts could not be built."""
        return self._parts.failing

    def parts_behind_s(self) -> float:
        """Return how long the first event has waited that is not in parts."""
        since = self._parts.behind_since
        return 0.0 if since is None else self.seconds_since(since)

    def is_stale(self) -> bool:
        """Return whether the last poll is so old that the values may be wrong."""
        return self._polled_at is None or self.seconds_since(self._polled_at) > STALE_AFTER_S

    async def poll(self) -> None:
        now = self._clock.now()
        async with self._database.transaction() as tx:
            self._heartbeat = await last_heartbeat(tx)
            self.chains, self.dead_logs = await list_chains(tx, now), await count_dead_logs(tx)
            self._parts = await summarize_progress(tx)
        self._polled_at = now


def chain_metrics(lag: Lag) -> Iterator[GaugeMetricFamily]:
    """Yield the metrics of all chains. If their state is not known, each is reported as having a problem."""

    def family(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"workbench_chain_{name}", text, labels=["chain"])

    read_age = family("read_age_seconds", "Time since a new block of the chain was read.")
    blocks_behind = family("blocks_behind", "Blocks that the node has and that are not read yet.")
    problem = family("problem", "1 while something prevents its follower from reading, or its state is unknown.")
    dead_logs = family("dead_logs", "Logs that could not be stored.")
    for chain in lag.chains:
        label = [str(chain.chain_id)]
        read_age.add_metric(label, math.nan if chain.read_at is None else lag.seconds_since(chain.read_at))
        behind = math.nan
        if chain.head is not None and chain.block_number is not None:
            behind = max(chain.head - chain.block_number, 0)
        blocks_behind.add_metric(label, behind)
        problem.add_metric(label, chain.problem is not None or lag.is_stale())
        dead_logs.add_metric(label, lag.dead_logs.get(chain.chain_id, 0))
    yield from (read_age, blocks_behind, problem, dead_logs)


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(f"workbench_{name}", text, value=value)


def tally(name: str, text: str, counted: Tally) -> CounterMetricFamily:
    family = CounterMetricFamily(f"workbench_{name}", text, labels=counted.labels)
    for values, count in counted:
        family.add_metric(values, count)
    return family


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"workbench_{name}", text, value=value)


def histogram(name: str, text: str, spans: Spans) -> HistogramMetricFamily:
    return HistogramMetricFamily(f"workbench_{name}", text, buckets=spans.cumulative(), sum_value=spans.seconds)


def pools(databases: dict[str, Database]) -> list[GaugeMetricFamily]:
    """Return the size, the connections in use and the waiting transactions of connection pools."""
    size = GaugeMetricFamily("workbench_pool_connections", "Connections to Postgres.", labels=["pool"])
    busy = GaugeMetricFamily("workbench_pool_busy", "Connections to Postgres in use.", labels=["pool"])
    waiting = GaugeMetricFamily(
        "workbench_pool_waiting", "Transactions that wait for a connection to Postgres.", labels=["pool"]
    )
    for name, database in databases.items():
        load = database.load()
        size.add_metric([name], load.connections)
        busy.add_metric([name], load.busy)
        waiting.add_metric([name], load.waiting)
    return [size, busy, waiting]


def collect_api(parts: Services, lag: Lag) -> Iterator[Metric]:
    pipeline, notices, sockets = parts.pipeline, parts.notices, parts.feed.sockets
    yield tally("http_requests", "Responses by method, route and status.", parts.access_log.answers)
    yield tally("events", "Valid events by outcome.", pipeline.meters.events)
    yield tally("clicks", "Clicks on tracked links by outcome; `lost` were never stored.", parts.clicks.outcomes)
    yield tally("events_rejected", "Rejected events by the invalid field.", notices.refused)
    yield histogram(
        "ingest_seconds", "Time from receiving the events of a request to the response.", pipeline.meters.waits
    )
    yield gauge("ingest_waiting", "Events that wait to be stored; a large one counts as several.", pipeline.waiting)
    yield gauge("ingest_queue_capacity", "Events that may wait to be stored.", QUEUE_CAPACITY)
    yield gauge("ingest_oldest_seconds", "Time that the oldest waiting event has waited.", pipeline.oldest_seconds())
    yield gauge("ingest_writers_alive", "1 while all writers run.", pipeline.alive)
    yield counter("notices_dropped", "Notices of rejected and duplicate events that were lost.", notices.dropped)
    yield gauge("sockets", "Open WebSockets.", len(sockets))
    yield gauge("inboxes", "Inboxes with an open WebSocket.", len(sockets.inboxes))
    yield gauge("engine_heartbeat_age_seconds", "Time since the latest heartbeat of any engine.", lag.heartbeat_age_s())
    yield gauge("oldest_due_seconds", "How late the oldest due entry is.", lag.oldest_due_s())
    yield gauge("parts_failing", "Organizations whose parts could not be built.", lag.parts_failing())
    yield gauge("parts_behind_seconds", "Time that the first event has waited to be in parts.", lag.parts_behind_s())
    yield from chain_metrics(lag)
    databases = {
        "api": parts.database,
        "service": parts.system_database,
        "ingest": pipeline.database,
        "segments": parts.segments.database,
    }
    yield from pools(databases)


def collect_engine(engine: Engine, databases: dict[str, Database]) -> Iterator[Metric]:
    counts = engine.driver.counts
    yield tally("steps", "Steps of entries by node kind and outcome.", counts.steps)
    yield tally("entries", "Entries that this engine released, by state.", counts.entries)
    yield counter("leases_lost", "Entries whose lease expired while this engine worked on them.", counts.lost)
    yield counter("leases_expired", "Entries of stopped engines that this engine made available again.", counts.rescued)
    yield gauge(
        "deliveries_in_flight",
        "Emails, webhooks and connection messages that are being sent.",
        len(engine.driver.deliveries),
    )
    yield gauge("oldest_due_seconds", "How late the oldest due entry is.", engine.lag_seconds())
    yield from pools(databases)


class ProcessMetrics:
    """The metrics of this process. `name` is unique, also among containers that share the data folder."""

    def __init__(self, role: str, collect: Collect) -> None:
        self.name = f"{role}-{token(3).hex()}"
        self._role = role
        self._collect = collect
        self._standard = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily(
            "workbench_process", "Role and pid of the process.", value={"role": self._role, "pid": str(os.getpid())}
        )
        yield gauge(
            "clock_seconds", "The monotonic clock of this process when the metrics were read.", monotonic_ns() / 1e9
        )
        yield counter("log_lines_dropped", "Log lines that could not be written.", process.dropped())
        yield from self._collect()
        yield from self._standard.collect()

    def text(self) -> bytes:
        return generate_latest(self)
