"""Two limits in front of the writers: a queue that is fair between organizations, and the ingest rate.

Queue: first in, first out within an organization, and deficit round robin between organizations (Shreedhar and
Varghese, 1995). In each turn an organization may take QUANTUM events, so it gains nothing from large requests or a long
backlog. An organization may take at most as many places as it leaves free. A single organization that floods the queue
fills half of it, n of them fill 1 / (n + 1) each, and an organization with little traffic always finds room.

Rate: a token bucket per organization, in the memory of one API instance (docs/contract.md 8). A bucket is one number,
the time at which it will be full again, so 0 is a full bucket. The workers of an instance share a table of these
numbers.
"""

import fcntl
import mmap
import os
from collections import deque
from typing import Generic, TypeVar

# Weight per turn. Smaller turns delay the other organizations less, but a turn costs about as much as an item.
QUANTUM = 16

# With more organizations, two share a bucket. A page of the table uses memory only after it is written.
BUCKET_SLOTS = 1 << 20
BUCKETS_FILE_BYTES = 8 * BUCKET_SLOTS
_LOCK_ATTEMPTS = 100  # the lock is held for a microsecond

Item = TypeVar("Item")


class _Backlog(Generic[Item]):
    """The items of one organization. `credit` is the weight that it may still take in this turn."""

    __slots__ = ("credit", "items", "org_id", "weight")

    def __init__(self, org_id: int) -> None:
        self.org_id = org_id
        self.items: deque[tuple[Item, int]] = deque()
        self.weight = 0
        self.credit = QUANTUM


class Queue(Generic[Item]):
    """Items with integer weights of at least 1, `capacity` at most in total. `waiting`: the weight of queued items."""

    def __init__(self, capacity: int) -> None:
        self.waiting = 0
        self._items = 0
        self._capacity = capacity
        self._backlogs: dict[int, _Backlog[Item]] = {}
        self._turns: deque[_Backlog[Item]] = deque()

    def __len__(self) -> int:
        return self._items

    def fits(self, org_id: int, weight: int) -> bool:
        """Return whether an item would be accepted now: cheaper than building an item that is refused."""
        backlog = self._backlogs.get(org_id)
        queued = 0 if backlog is None else backlog.weight
        return queued + weight <= self._capacity - self.waiting - weight

    def put(self, org_id: int, item: Item, weight: int) -> bool:
        """Append an item to its organization's backlog; return False if it does not fit."""
        if not self.fits(org_id, weight):
            return False
        backlog = self._backlogs.get(org_id)
        if backlog is None:
            backlog = self._backlogs[org_id] = _Backlog(org_id)
            self._turns.append(backlog)
        backlog.items.append((item, weight))
        backlog.weight += weight
        self.waiting += weight
        self._items += 1
        return True

    def take(self, max_weight: int) -> list[Item]:
        """Remove and return the next items up to a total weight. An item that exceeds it is returned alone."""
        taken: list[Item] = []
        room = max_weight
        turns = self._turns
        while turns:
            backlog = turns[0]
            item, weight = backlog.items[0]
            if weight > backlog.credit:
                backlog.credit += QUANTUM
                turns.rotate(-1)
                continue
            if taken and weight > room:
                break
            taken.append(item)
            room -= weight
            backlog.items.popleft()
            backlog.weight -= weight
            backlog.credit -= weight
            self.waiting -= weight
            self._items -= 1
            if not backlog.items:  # unused credit is lost with the backlog
                turns.popleft()
                del self._backlogs[backlog.org_id]
        return taken


class TokenBuckets:
    """`rate` tokens per second up to `burst` for each organization; a rate of 0 switches the limit off.

    `shared_fd`: a file of BUCKETS_FILE_BYTES zero bytes that other processes use too. By default the table is private.
    """

    def __init__(self, rate: float, burst: int, shared_fd: int = -1) -> None:
        self._rate = rate
        self._burst = burst
        self._shared_fd = shared_fd
        self._full_at_ns = memoryview(mmap.mmap(shared_fd, BUCKETS_FILE_BYTES)).cast("d")

    def take(self, org_id: int, wanted: int, now_ns: int) -> int:
        """Return how many of `wanted` events may pass now; the rest is over the limit."""
        if not self._rate:
            return wanted
        slot = org_id % BUCKET_SLOTS
        if self._shared_fd < 0:
            return self._take(slot, wanted, now_ns)
        is_locked = self._lock(slot)
        try:
            return self._take(slot, wanted, now_ns)
        finally:
            if is_locked:
                fcntl.lockf(self._shared_fd, fcntl.LOCK_UN, 8, 8 * slot)

    def give_back(self, org_id: int, count: int, now_ns: int) -> None:
        """Return tokens that were taken. A bucket does not hold more than `burst`."""
        self.take(org_id, -count, now_ns)

    def _take(self, slot: int, wanted: int, now_ns: int) -> int:
        filling_ns = max(0.0, self._full_at_ns[slot] - now_ns)
        granted = min(wanted, int(self._burst - filling_ns * self._rate / 1e9))
        if granted:
            self._full_at_ns[slot] = now_ns + filling_ns + granted * 1e9 / self._rate
        return granted

    def _lock(self, slot: int) -> bool:
        """Lock the number of a slot; return False if another worker holds the lock for too long."""
        # A record lock, which the kernel releases when its process dies. If a process hangs while it holds the lock,
        # the others continue without it. When it resumes, it may overwrite what they took, which grants at most one
        # `burst` too much.
        for _ in range(_LOCK_ATTEMPTS):
            try:
                fcntl.lockf(self._shared_fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 8, 8 * slot)
            except BlockingIOError:
                os.sched_yield()
            else:
                return True
        return False
