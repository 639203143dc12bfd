"""Which logs of a page are new, and which were dropped once and are back.

A log is its transaction and its content: when a transaction comes into another block, or to another place in it, its logs have other
indexes, and an index of before may mean another log. So a log that is back is known by contract, topics and data; of several alike,
the first is the first. What a transaction no longer says stays dropped, what it says now and did not say before is new.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import datetime

from api.chain.sightings import Sighting
from api.clock import to_us, uuid7
from api.language.codec import encode
from api.store import chain as store
from api.store.calls import Call
from api.store.chain import DroppedLog, LogRows


class News:
    """Sightings, in the order of the chain, that are `fresh`, with new ids in that order, and those that are `back`, with the ids they had."""

    def __init__(
        self, sightings: Iterable[Sighting], known: Set[int], dropped: Iterable[DroppedLog], at: datetime
    ) -> None:
        self.fresh: list[Sighting] = []
        self.back: list[Sighting] = []
        gone = _Gone(dropped)
        for each in (each for position, each in enumerate(sightings) if position not in known):
            stored = gone.take(each)
            each.id = uuid7(to_us(at) + len(self.fresh)) if stored is None else stored
            (self.fresh if stored is None else self.back).append(each)

    def writes(self, chain_id: int, at: datetime) -> Iterator[Call[object]]:
        """Yield what is written of them."""
        if self.back:
            yield store.restore_logs(_rows(self.back))
        if self.fresh:
            yield store.add_logs(chain_id, _rows(self.fresh), at)
        for org_id in sorted({each.org_id for each in self.back}):
            yield store.revive_entries(org_id, [each.id for each in self.back if each.org_id == org_id], at)


class _Gone:
    """Logs that were dropped, by what makes them these logs, each to be taken once."""

    def __init__(self, dropped: Iterable[DroppedLog]) -> None:
        self._ids: dict[tuple[int, str, str], list[str]] = {}
        for each in sorted(dropped, key=lambda each: each.log_index, reverse=True):
            self._ids.setdefault((each.org_id, each.tx_hash, each.digest), []).append(each.id)

    def take(self, sighting: Sighting) -> str | None:
        ids = self._ids.get((sighting.org_id, sighting.tx_hash, sighting.digest))
        return ids.pop() if ids else None


def _rows(sightings: Sequence[Sighting]) -> LogRows:
    logs = [each.log for each in sightings if each.log is not None]
    return LogRows(
        org_ids=[each.org_id for each in sightings],
        ids=[each.id for each in sightings],
        contact_ids=[each.contact_id for each in sightings],
        contracts=[each.contract for each in sightings],
        events=[each.event for each in sightings],
        signatures=[each.signature for each in sightings],
        tx_hashes=[each.tx_hash for each in sightings],
        log_indexes=[each.log_index for each in sightings],
        digests=[each.digest for each in sightings],
        block_numbers=[each.block_number for each in sightings],
        block_hashes=[each.block_hash for each in logs],
        block_seconds=[each.seconds or 0 for each in logs],
        args=[encode(each.args).decode() for each in sightings],
    )
