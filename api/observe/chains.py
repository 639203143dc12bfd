"""How chains are read, in the form of `prometheus_client`."""

import math
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from api.observe.lag import Lag
from api.store.logs import ChainRow


def chains(lag: Lag) -> Iterator[GaugeMetricFamily]:
    """Give what is known of every chain. What was not looked at for long is troubled: nobody knows better."""
    unread = _gauge("unread_seconds", "Time since something new was read of a chain.")
    behind = _gauge("blocks_behind", "Blocks that its node has and that are not read yet.")
    troubled = _gauge("troubled", "1 while something hinders its follower, or nobody knows.")
    dead = _gauge("dead_logs", "Logs that could not be stored.")
    for each in lag.chains:
        label = [str(each.chain_id)]
        unread.add_metric(label, math.nan if each.read_at is None else lag.since(each.read_at))
        behind.add_metric(label, _behind(each))
        troubled.add_metric(label, each.trouble is not None or lag.is_blind())
        dead.add_metric(label, lag.dead_logs.get(each.chain_id, 0))
    yield from (unread, behind, troubled, dead)


def _gauge(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"workbench_chain_{name}", text, labels=["chain"])


def _behind(chain: ChainRow) -> float:
    return math.nan if chain.head is None or chain.block_number is None else max(chain.head - chain.block_number, 0)
