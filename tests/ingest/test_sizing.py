"""Pieces of an import grow while they are quick, and shrink when others would have to wait."""

import pytest

from api.ingest.reading import CHUNK
from api.ingest.sizing import FEWEST, LONGEST_NS, TURN_NS, Size


@pytest.mark.parametrize(
    ("most", "taken", "turn_ns", "lasted_ns", "then"),
    [
        (8_000, 8_000, TURN_NS, LONGEST_NS, 9_000),
        (CHUNK, CHUNK, 0, 0, CHUNK),
        (100, 100, 0, 0, 200),
        (8_000, 8_000, 2 * TURN_NS, 2 * TURN_NS, 4_000),
        (8_000, 2_000, 2 * TURN_NS, 2 * TURN_NS, 1_000),
        (8_000, 8_000, 0, 4 * LONGEST_NS, 2_000),
        (8_000, 2_000, 0, 4 * LONGEST_NS, 9_000),  # it waited for larger ones
        (8_000, 8_000, 1_000 * TURN_NS, 1_000 * TURN_NS, FEWEST),
    ],
)
def test_the_next_size_follows_from_the_last(most: int, taken: int, turn_ns: int, lasted_ns: int, then: int) -> None:
    size = Size()
    size.most = most
    size.adapt(taken, turn_ns, lasted_ns)
    assert size.most == then
