"""The ingest rate: a token bucket per organization, in the memory of this process (contract §8)."""


class Buckets:
    """`rate` tokens per second up to `burst`; rate 0 switches the limit off."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._levels: dict[int, tuple[float, int]] = {}

    def take(self, org_id: int, wanted: int, now_ns: int) -> int:
        """Return how many of `wanted` events may pass now; the rest are over the limit."""
        if not self._rate:
            return wanted
        level, then_ns = self._levels.get(org_id, (self._burst, now_ns))
        level = min(self._burst, level + (now_ns - then_ns) * self._rate / 1e9)
        granted = min(wanted, int(level))
        self._levels[org_id] = (level - granted, now_ns)
        return granted
