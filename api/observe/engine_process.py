"""The numbers of an engine process."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from api.engine.loop import Engine
from api.observe.families import counter, gauge, pools, tally
from api.store.database import Database


def collect(engine: Engine, databases: dict[str, Database]) -> Iterator[Metric]:
    """Give the numbers of this moment."""
    account = engine.driver.account
    yield tally("steps", "Steps of entries by kind of node and outcome.", account.steps)
    yield tally(
        "entries", "Entries that left the hands of this engine, by the state they were left in.", account.entries
    )
    yield counter("leases_lost", "Entries that another engine took meanwhile.", account.lost)
    yield counter("leases_expired", "Entries of engines that stopped in the middle, given back.", account.rescued)
    yield gauge("deliveries_under_way", "Emails and webhooks on their way.", engine.driver.under_way)
    yield gauge("oldest_due_seconds", "How late the oldest due entry is.", engine.lag_seconds())
    yield from pools(databases)
