"""Our plain counts in the form that `prometheus_client` writes. Every name begins with `workbench_`."""

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from api.meters import Spans, Tally
from api.store.database import Database


def counter(name: str, text: str, value: float) -> CounterMetricFamily:
    """Return a count without labels."""
    return CounterMetricFamily(f"workbench_{name}", text, value=value)


def tally(name: str, text: str, counted: Tally) -> CounterMetricFamily:
    """Return a count for every combination of words."""
    family = CounterMetricFamily(f"workbench_{name}", text, labels=counted.labels)
    for words, count in counted:
        family.add_metric(words, count)
    return family


def gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a value that goes up and down."""
    return GaugeMetricFamily(f"workbench_{name}", text, value=value)


def histogram(name: str, text: str, spans: Spans) -> HistogramMetricFamily:
    """Return how long things took."""
    return HistogramMetricFamily(f"workbench_{name}", text, buckets=spans.cumulative(), sum_value=spans.seconds)


def pools(databases: dict[str, Database]) -> list[GaugeMetricFamily]:
    """Return how many connections there are, how many of them are in use, and who waits for one."""
    size = GaugeMetricFamily("workbench_pool_connections", "Connections to Postgres.", labels=["pool"])
    busy = GaugeMetricFamily("workbench_pool_busy", "Connections to Postgres in use.", labels=["pool"])
    waiting = GaugeMetricFamily("workbench_pool_waiting", "Who waits for a connection to Postgres.", labels=["pool"])
    for name, database in databases.items():
        load = database.load()
        size.add_metric([name], load.connections)
        busy.add_metric([name], load.busy)
        waiting.add_metric([name], load.waiting)
    return [size, busy, waiting]
