"""How long a part measures, and what it returns."""

import msgspec

from bench.figures import Slice
from bench.table import Row


class Effort(msgspec.Struct, frozen=True):
    """The number of rounds, the length of a slice, and the sizes of the data."""

    rounds: int
    seconds: float  # of a slice
    new_every: int  # one event in `new_every` is from a new contact; 0: none
    stored_millions: int  # events in the full database of `growth`


class Measurement(msgspec.Struct, frozen=True):
    """The rows of a part, and the slices they are computed from."""

    rows: list[Row]
    slices: dict[str, list[Slice]]
