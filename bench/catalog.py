"""The catalog: the time in which the API lists the events of 30 days, compared with counting the rows.

All events of the database are from those days. They have 200 names with very different frequencies, and their hours are
counted before the measurement begins. No events arrive during the measurement, so few rows are counted live: with ten
million events, some hundred rows a minute. The cost of a busy hour is measured separately, with 200,000 more events in
the last five minutes.
"""

import http.client
import time

from bench import filling, postgres, site
from bench.effort import Effort, Measurement
from bench.postgres import Database, connect
from bench.processes import Service
from bench.table import at_most, row

_COUNTED_TIMEOUT_S = 600.0
_BUSY, _BUSY_DAYS = 200_000, 5 / 1_440
_ROWS = (
    "SELECT event, count(*) FROM workbench.events "
    "WHERE org_id = 1 AND created_at >= clock_timestamp() - interval '30 days'"
    " GROUP BY event ORDER BY 2 DESC, 1 LIMIT 200"
)
_BEHIND = """
    SELECT count(*) = 0 OR bool_or(counted_until < closed_until AND closed_until < '9000-01-01')
    FROM workbench.event_counting"""


def measure(effort: Effort) -> Measurement:
    """Ask for the catalog of `effort.stored_millions` of events, plain and with details, and for one event."""
    with postgres.running() as server:
        full = postgres.prepared(server, "full")
        filling.fill_names(full, effort.stored_millions * 1_000_000)
        filling.settle(server)
        with site.bare_apis(server, full, 1) as (service,):
            began = time.perf_counter()
            _wait_until_counted(full)
            counted = time.perf_counter() - began
            rows, plain, detailed, one = [], [], [], []
            for _ in range(effort.rounds):
                rows.append(_counting_ms(full))
                plain.append(_answer_ms(service, full, ""))
                detailed.append(_answer_ms(service, full, "?detail=true"))
                one.append(_answer_ms(service, full, "/event_0"))
            filling.fill_names(full, _BUSY, _BUSY_DAYS)
            busy = [_answer_ms(service, full, "") for _ in range(effort.rounds)]
    name = f"catalog of {effort.stored_millions} M events"
    return Measurement(
        [
            row(name, "ms", plain, ("count(*) of the rows", rows), at_most(150)),
            row("  with counts by day", "ms", detailed, None, at_most(150)),
            row("  one event, with paths and drift", "ms", one),
            row(f"  after {_BUSY:,} events in five minutes", "ms", busy),
            row("  counting all hours, once", "s", [counted]),
        ],
        {},
    )


def _wait_until_counted(database: Database) -> None:
    deadline = time.monotonic() + _COUNTED_TIMEOUT_S
    with connect(database.dsn) as connection:
        while (behind := connection.execute(_BEHIND).fetchone()) is None or behind[0]:
            if time.monotonic() > deadline:
                raise RuntimeError("the hours were not counted in time")
            time.sleep(0.2)


def _counting_ms(database: Database) -> float:
    with connect(database.dsn) as connection:
        began = time.perf_counter()
        connection.execute(_ROWS).fetchall()
        return (time.perf_counter() - began) * 1_000


def _answer_ms(service: Service, database: Database, query: str) -> float:
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=60)
    began = time.perf_counter()
    connection.request(
        "GET", f"/api/v1/events/catalog{query}", headers={"Authorization": f"Bearer {database.workbench_key}"}
    )
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status}: {body.decode()}")
    return (time.perf_counter() - began) * 1_000
