"""What waits to be written: first in, first out for each organization, and turns between organizations.

Turns are deficit round robin (Shreedhar and Varghese, 1995): each turn an organization may take QUANTUM events, so the
size of its requests or the length of its line gains it nothing. Room is shared by what is left: nobody may hold more
than what stays free for the others. One organization alone fills half of the queue, n that flood it 1 / (n + 1) each,
and one that has little waiting always finds room.
"""

from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")

QUANTUM = 16  # weight; smaller is smoother for the others, and a turn costs about as much as an item


class _Line(Generic[Item]):
    """What one organization has waiting. `credit` is the weight it may still take in this turn."""

    __slots__ = ("credit", "items", "org_id", "weight")

    def __init__(self, org_id: int) -> None:
        self.org_id = org_id
        self.items: deque[tuple[Item, int]] = deque()
        self.weight = 0
        self.credit = QUANTUM


class Queue(Generic[Item]):
    """Items with weights (whole numbers from 1), never more than `most` in all. `waiting` is the weight of those inside."""

    def __init__(self, most: int) -> None:
        self.waiting = 0
        self._items = 0
        self._most = most
        self._lines: dict[int, _Line[Item]] = {}
        self._turns: deque[_Line[Item]] = deque()

    def __len__(self) -> int:
        """Return how many items wait."""
        return self._items

    def fits(self, org_id: int, weight: int) -> bool:
        """Tell whether an item would be let in now; cheaper than making one in vain."""
        line = self._lines.get(org_id)
        held = 0 if line is None else line.weight
        return held + weight <= self._most - self.waiting - weight

    def put(self, org_id: int, item: Item, weight: int) -> bool:
        """Let the item in at the end of its organization's line; return False when there is no room for it."""
        if not self.fits(org_id, weight):
            return False
        line = self._lines.get(org_id)
        if line is None:
            line = self._lines[org_id] = _Line(org_id)
            self._turns.append(line)
        line.items.append((item, weight))
        line.weight += weight
        self.waiting += weight
        self._items += 1
        return True

    def take(self, most: int) -> list[Item]:
        """Return the next items, together no heavier than `most`; a heavier one comes alone."""
        taken: list[Item] = []
        room = most
        turns = self._turns
        while turns:
            line = turns[0]
            item, weight = line.items[0]
            if weight > line.credit:
                line.credit += QUANTUM
                turns.rotate(-1)
                continue
            if taken and weight > room:
                break
            taken.append(item)
            room -= weight
            self._remove_first(line, weight)
        return taken

    def _remove_first(self, line: _Line[Item], weight: int) -> None:
        """Remove the first item of the line whose turn it is; credit does not outlive a line."""
        line.items.popleft()
        line.weight -= weight
        line.credit -= weight
        self.waiting -= weight
        self._items -= 1
        if not line.items:
            self._turns.popleft()
            del self._lines[line.org_id]
