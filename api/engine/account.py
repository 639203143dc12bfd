"""What an engine did: counted, and where something was to reach somebody, told in the log with the request that began it all.

A line tells of some effects together: a line each would cost as much time as the effect of an in-app message.
"""

import logging
from collections.abc import Iterable, Iterator

from api.engine.perform import Progress
from api.language.run import State
from api.meters import Tally

AT_ONCE = 16  # effects in a line: about 4,000 bytes

_log = logging.getLogger("workbench.engine")


class Account:
    """The counts of one engine process."""

    def __init__(self) -> None:
        self.steps = Tally("kind", "outcome")
        self.entries = Tally("state")
        self.lost = 0
        self.rescued = 0

    def note(self, org_id: int, done: Iterable[Progress]) -> None:
        """Take note of what was recorded just now."""
        effects: list[dict[str, str | None]] = []
        for each in done:
            for step in each.steps:
                self.steps.add(step.kind, step.outcome)
            if each.run.state is not State.RUNNING:
                self.entries.add(each.run.state)
            effects += _effects(each)
        for start in range(0, len(effects), AT_ONCE):
            _log.info("effects", extra={"org_id": org_id, "effects": effects[start : start + AT_ONCE]})


def _effects(each: Progress) -> Iterator[dict[str, str | None]]:
    claim = each.claim
    for step in each.steps:
        if step.kind.startswith("send_"):
            yield {
                "request_id": claim.request_id,
                "entry_id": claim.entry_id,
                "event_id": claim.event_id,
                "node_id": step.node_id,
                "kind": step.kind,
                "outcome": step.outcome,
            }
