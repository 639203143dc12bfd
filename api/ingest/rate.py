"""The ingest rate: a token bucket per organization, in the memory of one API instance (contract §8).

A bucket is one number, the moment at which it will be full again, so that 0 is a full one. The numbers lie in a table by
organization, which the workers of an instance share: one that takes locks that one number, and the kernel unlocks it when
the worker dies. A worker that hangs in the middle of a take is not waited for; going on, it may forget what others took
in the meantime, which gives away no more than one `burst`.
"""

import fcntl
import mmap
import os

SLOTS = 1 << 20  # organizations; from here on two share a bucket. Memory is only used where one has sent something
SIZE = 8 * SLOTS
_TRIES = 100  # a take lasts a microsecond


class Buckets:
    """`rate` tokens per second up to `burst`; rate 0 switches the limit off.

    `shared`: a file of SIZE zero bytes that other processes count in too; by default nobody else does.
    """

    def __init__(self, rate: float, burst: int, shared: int = -1) -> None:
        self._rate = rate
        self._burst = burst
        self._shared = shared
        self._full_at_ns = memoryview(mmap.mmap(shared, SIZE)).cast("d")

    def take(self, org_id: int, wanted: int, now_ns: int) -> int:
        """Return how many of `wanted` events may pass now; the rest are over the limit."""
        if not self._rate:
            return wanted
        slot = org_id % SLOTS
        if self._shared < 0:
            return self._take(slot, wanted, now_ns)
        locked = self._lock(slot)
        try:
            return self._take(slot, wanted, now_ns)
        finally:
            if locked:
                fcntl.lockf(self._shared, fcntl.LOCK_UN, 8, 8 * slot)

    def _take(self, slot: int, wanted: int, now_ns: int) -> int:
        filling_ns = max(0.0, self._full_at_ns[slot] - now_ns)
        granted = min(wanted, int(self._burst - filling_ns * self._rate / 1e9))
        if granted:
            self._full_at_ns[slot] = now_ns + filling_ns + granted * 1e9 / self._rate
        return granted

    def _lock(self, slot: int) -> bool:
        for _ in range(_TRIES):
            try:
                fcntl.lockf(self._shared, fcntl.LOCK_EX | fcntl.LOCK_NB, 8, 8 * slot)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False
