"""Batches of an import grow while they are quick, and shrink when they would delay others."""

import pytest

from api.imports.reader import CHUNK_ROWS, MIN_BATCH_EVENTS, TRANSACTION_NS, TURN_NS, BatchSize


@pytest.mark.parametrize(
    ("before", "taken", "turn_ns", "transaction_ns", "after"),
    [
        (8_000, 8_000, TURN_NS, TRANSACTION_NS, 9_000),
        (CHUNK_ROWS, CHUNK_ROWS, 0, 0, CHUNK_ROWS),
        (100, 100, 0, 0, 200),
        (8_000, 8_000, 2 * TURN_NS, 2 * TURN_NS, 4_000),
        (8_000, 2_000, 2 * TURN_NS, 2 * TURN_NS, 1_000),
        (8_000, 8_000, 0, 4 * TRANSACTION_NS, 2_000),
        (8_000, 2_000, 0, 4 * TRANSACTION_NS, 9_000),  # it waited for larger ones
        (8_000, 8_000, 1_000 * TURN_NS, 1_000 * TURN_NS, MIN_BATCH_EVENTS),
    ],
)
def test_the_next_size_follows_from_the_last(
    before: int, taken: int, turn_ns: int, transaction_ns: int, after: int
) -> None:
    size = BatchSize()
    size.events = before
    size.adapt(taken, turn_ns, transaction_ns)
    assert size.events == after
