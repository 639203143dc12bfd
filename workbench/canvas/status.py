"""How an automation is doing, and whether somebody else has changed it: asked now and then while a canvas is looked at."""

from collections.abc import Mapping

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.display.words import entry_counts, outcome
from workbench.draft import JsonObject
from workbench.publish import AutomationRecord

_PAUSE, _SHARE = 2.0, 20  # seconds at least; counting takes no more than a twentieth of the time
_STAYED = ("waiting", "held_out")
_FAILED = ("failed", "refused")


class LiveStatus(msgspec.Struct, frozen=True):
    """What was seen: counts by node id, also of nodes that the draft no longer has, a line about all, and the server's revision."""

    nodes: Mapping[str, JsonObject]
    headline: str
    revision: int


class StatusPoller:
    """Looks at one automation on the server, no more often than is good for it."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def soon(self) -> None:
        """Look again at the next occasion."""
        self._next_at = 0.0

    def look(self, connection: Connection, record: AutomationRecord) -> LiveStatus | None:
        """Return what there is to see; None when it is too early to look again."""
        began_at = environment.monotonic_s()
        if began_at < self._next_at:
            return None
        path = f"/automations/{record.id}"
        there = connection.get(path)
        stats = connection.get(f"{path}/stats")
        took = environment.monotonic_s() - began_at
        self._next_at = began_at + max(_PAUSE, took * _SHARE)
        live, nodes = stats["live"], stats["nodes"]
        nodes = {each: _counts(live.get(each, 0), nodes.get(each, {})) for each in {*live, *nodes}}
        return LiveStatus(nodes, entry_counts(stats["entries"]), there["revision"])


def _counts(live: int, outcomes: Mapping[str, int]) -> JsonObject:
    failed = sum(count for word, count in outcomes.items() if word in _FAILED)
    passed = sum(count for word, count in outcomes.items() if word not in (*_FAILED, *_STAYED))
    told = [{"says": outcome(word), "count": count} for word, count in sorted(outcomes.items())]
    return {"live": live, "passed": passed, "failed": failed, "outcomes": told}
