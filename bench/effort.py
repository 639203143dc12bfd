"""How a part is to measure, and what it gives back."""

import msgspec

from bench.figures import Slice
from bench.table import Row


class Effort(msgspec.Struct, frozen=True):
    """How many rounds of alternating slices, and of what."""

    rounds: int
    seconds: float  # of a slice
    new_every: int  # one event in so many comes from a new contact; 0: none
    stored_millions: int  # events in the full database of `growth`


class Measured(msgspec.Struct, frozen=True):
    """The rows of a part, and the slices they come from."""

    rows: list[Row]
    slices: dict[str, list[Slice]]
