"""How many events an import tries to store in one transaction: no more than others may be kept waiting for."""

from api.ingest import reading

FEWEST = 250
TURN_NS = 300_000_000
"""How long a piece's turn should last, in which it holds locks of contacts: live ingest waits half a second for one."""
LONGEST_NS = 3 * TURN_NS
"""How long its transaction should last, which holds its keys; it waits for the pieces before it."""


class Size:
    """`most`: the events that are tried, up to what is read at once."""

    def __init__(self) -> None:
        self.most = reading.CHUNK

    def adapt(self, taken: int, turn_ns: int, lasted_ns: int) -> None:
        """Try fewer events after a transaction of so many that took long, and more after any other.

        Of fewer than were tried, only the turn is judged: they may have waited for many.
        """
        over = max(turn_ns / TURN_NS, lasted_ns / LONGEST_NS if taken >= self.most else 0.0)
        if over > 1:
            self.most = max(int(taken / over), FEWEST)
        else:
            self.most = min(max(self.most + self.most // 8, 2 * min(self.most, FEWEST)), reading.CHUNK)
