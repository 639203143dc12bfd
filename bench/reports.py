"""A funnel over millions of events: the ready-made report compared with hand-written SQL, both through `wb.sql`."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import polars as pl

from bench import filling, postgres, site
from bench.effort import Effort, Measurement
from bench.table import ratio_at_most, row
from workbench import Workbench

# The hand-written query takes 2.6 s for 2 M events. For 5 M it takes 6.5 s on a quiet machine, and after other parts
# more than the query limit of 10 s.
_MILLIONS = 2
_STEPS = ["signup", "page.view", "deposit"]
_BY_HAND = """
WITH signed_up AS (
    SELECT contact_id, min(occurred_at) AS at FROM app_events
    WHERE event = 'signup' AND occurred_at >= :since GROUP BY contact_id
), looked AS (
    SELECT s.contact_id, s.at AS signed_up_at, min(e.occurred_at) AS at
    FROM signed_up s JOIN app_events e ON e.contact_id = s.contact_id
    WHERE e.event = 'page.view' AND e.occurred_at > s.at AND e.occurred_at <= s.at + interval '7 days'
    GROUP BY s.contact_id, s.at
), paid AS (
    SELECT l.contact_id, l.signed_up_at, min(e.occurred_at) AS at
    FROM looked l JOIN app_events e ON e.contact_id = l.contact_id
    WHERE e.event = 'deposit' AND e.occurred_at > l.at AND e.occurred_at <= l.signed_up_at + interval '7 days'
    GROUP BY l.contact_id, l.signed_up_at
)
SELECT 1 AS step, count(*) AS contacts FROM signed_up
UNION ALL SELECT 2, count(*) FROM looked
UNION ALL SELECT 3, count(*) FROM paid
ORDER BY step"""


def measure(effort: Effort) -> Measurement:
    """Run both in turn, and compare their results."""
    with postgres.running() as server:
        database = postgres.prepared(server, "journeys")
        filling.fill_journeys(database, _MILLIONS * 1_000_000)
        with site.bare_apis(server, database, 1) as (api,):
            wb = Workbench(f"http://127.0.0.1:{api.port}", database.workbench_key)
            since, ours, by_hand = datetime.now(UTC) - timedelta(days=30), [], []
            for _ in range(effort.rounds):
                by_hand.append(_seconds(lambda: wb.sql(_BY_HAND, since=since)))
                ours.append(_seconds(lambda: wb.funnel(_STEPS, within="7d", since=since)))
    if len({tuple(contacts) for _, contacts in ours + by_hand}) > 1:
        raise RuntimeError(f"the funnel counts {ours[0][1]}, by hand it is {by_hand[0][1]}")
    name, hand = f"wb.funnel over {_MILLIONS} M events", [seconds for seconds, _ in by_hand]
    return Measurement([row(name, "s", [seconds for seconds, _ in ours], ("by hand", hand), ratio_at_most(1.5))], {})


def _seconds(ask: Callable[[], pl.DataFrame]) -> tuple[float, list[int]]:
    begun = time.perf_counter()
    frame = ask()
    return time.perf_counter() - begun, frame["contacts"].to_list()
