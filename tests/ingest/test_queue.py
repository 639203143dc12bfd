"""The queue loses no item, keeps the order of each organization, and shares its capacity fairly."""

from collections import Counter
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.ingest.queue import QUANTUM, Queue

HEAVIEST = 100  # events in one request
MOST = 1_000

Item: TypeAlias = tuple[int, int, int]  # organization, number, weight

unhurried = settings(deadline=None, database=None)  # test machines are shared
weights = st.integers(1, HEAVIEST)
puts = st.tuples(st.integers(1, 5), weights)
takes = st.integers(1, 2 * HEAVIEST)


def drain(queue: Queue[Item], most: int = 256) -> list[Item]:
    taken = []
    while queue:
        taken += queue.take(most)
    return taken


def weight_of(items: list[Item]) -> int:
    return sum(weight for _, _, weight in items)


@unhurried
@given(st.lists(puts | takes))
def test_items_of_one_organization_stay_complete_and_in_order(moves: list[tuple[int, int] | int]) -> None:
    queue: Queue[Item] = Queue(MOST)
    accepted: list[Item] = []
    taken: list[Item] = []
    for number, move in enumerate(moves):
        if isinstance(move, int):
            batch = queue.take(move)
            assert weight_of(batch) <= move or len(batch) == 1
            assert bool(batch) == (len(taken) < len(accepted))
            taken += batch
        elif queue.put(move[0], item := (move[0], number, move[1]), move[1]):
            accepted.append(item)
        assert queue.waiting == weight_of(accepted) - weight_of(taken) <= MOST
        assert bool(queue) == (len(taken) < len(accepted))
    taken += drain(queue)
    assert sorted(taken) == sorted(accepted)
    assert sorted(taken, key=lambda item: item[0]) == sorted(accepted)  # stable: each organization in its own order


@unhurried
@given(st.lists(st.lists(weights, min_size=30, max_size=30), min_size=2, max_size=5), takes)
def test_organizations_with_a_backlog_get_equal_shares(lines: list[list[int]], most: int) -> None:
    queue: Queue[Item] = Queue(1_000_000)
    remaining = {org_id: sum(line) for org_id, line in enumerate(lines)}
    taken_weights = Counter(dict.fromkeys(remaining, 0))
    for org_id, line in enumerate(lines):
        for number, weight in enumerate(line):
            assert queue.put(org_id, (org_id, number, weight), weight)
    while all(remaining.values()):
        for org_id, _, weight in queue.take(most):
            taken_weights[org_id] += weight
            remaining[org_id] -= weight
            if not remaining[org_id]:
                return  # after this the shares may differ
        # The bound of deficit round robin
        assert max(taken_weights.values()) - min(taken_weights.values()) <= QUANTUM + 2 * HEAVIEST


@unhurried
@given(st.integers(1, 5), weights)
def test_a_single_event_waits_for_one_turn_of_the_others_at_most(others: int, weight: int) -> None:
    queue: Queue[Item] = Queue(MOST)
    for org_id in range(others):
        while queue.put(org_id, (org_id, 0, weight), weight):
            pass
    assert queue.put(99, (99, 0, 1), 1)
    before = drain(queue, 1)
    assert weight_of(before[: before.index((99, 0, 1))]) <= others * (QUANTUM + weight)


@pytest.mark.parametrize("flooding", [1, 2, 9, 20])
def test_organizations_that_flood_share_the_room_and_leave_as_much_for_the_others(flooding: int) -> None:
    queue: Queue[int] = Queue(MOST)
    for _ in range(MOST):
        for org_id in range(flooding):
            queue.put(org_id, org_id, 1)
    taken_weights = Counter(queue.take(MOST))
    assert set(taken_weights) == set(range(flooding))
    assert max(taken_weights.values()) <= MOST // (flooding + 1) + 1
    assert MOST - sum(taken_weights.values()) >= MOST // (flooding + 1)


def test_taken_items_free_their_room() -> None:
    queue: Queue[str] = Queue(200)
    assert queue.put(1, "fills its half", 100)
    assert not queue.fits(1, 1)
    assert not queue.put(1, "one too many", 1)
    assert queue.put(2, "another's", 50)
    assert queue.take(1) == ["another's"]
    assert queue.take(1) == ["fills its half"]
    assert queue.put(1, "again", 100)


def test_turns_follow_the_order_of_arrival() -> None:
    queue: Queue[str] = Queue(MOST)
    for org_id, name in ((1, "a"), (2, "b"), (1, "a"), (3, "c"), (2, "b")):
        queue.put(org_id, name, QUANTUM)
    assert queue.take(MOST) == ["a", "b", "c", "a", "b"]


def test_a_turn_continues_in_the_next_batch() -> None:
    queue: Queue[int] = Queue(MOST)
    for org_id in (1, 2):
        for _ in range(2 * QUANTUM):
            queue.put(org_id, org_id, 1)
    taken = queue.take(QUANTUM - 1) + queue.take(QUANTUM + 2) + queue.take(MOST)
    assert taken == 2 * (QUANTUM * [1] + QUANTUM * [2])
