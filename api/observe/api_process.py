"""The numbers of an API process."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from api.ingest.pipeline import MOST_WAITING
from api.observe.chains import chains
from api.observe.families import counter, gauge, histogram, pools, tally
from api.observe.lag import Lag
from api.routes.entrance import Parts


def collect(parts: Parts, lag: Lag) -> Iterator[Metric]:
    """Give the numbers of this moment."""
    pipeline, notices, sockets = parts.pipeline, parts.notices, parts.feed.sockets
    yield tally("http_requests", "Answers by method, pattern of the address and status.", parts.edge.answers)
    yield tally("events", "Events that were understood, by what their callers were told.", pipeline.meters.events)
    yield tally("events_rejected", "Events that were refused, by the field that was wrong.", notices.refused)
    yield histogram("ingest_seconds", "Time until the events of a request were answered.", pipeline.meters.waits)
    yield gauge("ingest_waiting", "Events that wait to be stored; large ones count for several.", pipeline.waiting)
    yield gauge("ingest_waiting_most", "So many may wait.", MOST_WAITING)
    yield gauge("ingest_oldest_seconds", "How long the oldest of them has been waiting.", pipeline.oldest_seconds())
    yield gauge("ingest_writers_alive", "1 while every writer runs.", pipeline.alive)
    yield counter("notices_dropped", "Notices of refused and repeated events that were lost.", notices.dropped)
    yield gauge("sockets", "Open WebSockets.", len(sockets))
    yield gauge("inboxes", "Inboxes with an open WebSocket.", len(sockets.inboxes))
    yield gauge("engine_silent_seconds", "Time since any engine was heard of.", lag.silent_seconds())
    yield gauge("oldest_due_seconds", "How late the oldest due entry is.", lag.seconds())
    yield from chains(lag)
    databases = {
        "api": parts.database,
        "service": parts.service,
        "ingest": pipeline.database,
        "segments": parts.segments.database,
    }
    yield from pools(databases)
