"""Entry counts and the revision of an automation, polled from the server while a canvas is open."""

from collections.abc import Mapping

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.words import entry_counts, outcome
from workbench.draft import JsonObject
from workbench.publish import AutomationRecord

_MIN_INTERVAL_S = 2.0
_LOAD_FACTOR = 20  # polling takes at most 1/20 of the time, however slow the counts of a large automation are
_NOT_PASSED = ("waiting", "held_out")  # the entry is still at the node, or never went on
_FAILED = ("failed", "refused")


class LiveStatus(msgspec.Struct, frozen=True):
    """Counts by node id (also of nodes that the draft does not contain), a summary line, and the server's revision."""

    nodes: Mapping[str, JsonObject]
    headline: str
    revision: int


class StatusPoller:
    """Reads the status of one automation, at a limited rate."""

    def __init__(self) -> None:
        self._next_at_s = 0.0

    def poll_soon(self) -> None:
        """Make the next `poll` read the status, even if the interval is not over."""
        self._next_at_s = 0.0

    def poll(self, connection: Connection, record: AutomationRecord) -> LiveStatus | None:
        """Return the status, or None if the interval since the last poll is not over."""
        started_s = environment.monotonic_s()
        if started_s < self._next_at_s:
            return None
        path = f"/automations/{record.id}"
        current = connection.get(path)
        stats = connection.get(f"{path}/stats")
        elapsed_s = environment.monotonic_s() - started_s
        self._next_at_s = started_s + max(_MIN_INTERVAL_S, elapsed_s * _LOAD_FACTOR)
        live, outcomes = stats["live"], stats["nodes"]
        nodes: dict[str, JsonObject] = {}
        # Nodes of earlier versions are counted too: their entries are still in progress.
        for node_id in {*live, *outcomes}:
            counts = outcomes.get(node_id, {})
            nodes[node_id] = {
                "live": live.get(node_id, 0),
                "passed": sum(count for word, count in counts.items() if word not in (*_FAILED, *_NOT_PASSED)),
                "failed": sum(count for word, count in counts.items() if word in _FAILED),
                "outcomes": [{"outcome": outcome(word), "count": count} for word, count in sorted(counts.items())],
            }
        return LiveStatus(nodes, entry_counts(stats["entries"]), current["revision"])
