"""The table of results: a row is a figure, its reference from the same run, their ratio, and the promised bound."""

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec

from bench.figures import Slice, Spread, paired, spread


class Promise(msgspec.Struct, frozen=True):
    """A promise about the ratio or the value of a row, or about all of the interval that its ratio may lie in."""

    of: Literal["ratio", "value", "interval"]
    sign: Literal["≥", "≤"]
    bound: float


def ratio_at_least(bound: float) -> Promise:
    """Promise a ratio to the reference of at least `bound`."""
    return Promise("ratio", "≥", bound)


def ratio_at_most(bound: float) -> Promise:
    """Promise a ratio to the reference of at most `bound`."""
    return Promise("ratio", "≤", bound)


def interval_at_most(bound: float) -> Promise:
    """Promise that even the upper end of the ratio's interval is at most `bound`."""
    return Promise("interval", "≤", bound)


def at_least(bound: float) -> Promise:
    """Promise a value of at least `bound`, in the unit of the row."""
    return Promise("value", "≥", bound)


def at_most(bound: float) -> Promise:
    """Promise a value of at most `bound`, in the unit of the row."""
    return Promise("value", "≤", bound)


class Reference(msgspec.Struct, frozen=True):
    """What a figure is compared with; its value is in the unit of the row."""

    name: str
    value: Spread


class Row(msgspec.Struct, frozen=True):
    """One figure."""

    name: str
    value: Spread
    unit: str
    reference: Reference | None = None
    ratio: Spread | None = None
    promise: Promise | None = None

    @property
    def is_met(self) -> bool | None:
        """Whether the median keeps the promise, or the interval; None where nothing is promised."""
        if self.promise is None:
            return None
        figure = self.value if self.promise.of == "value" else self.ratio
        assert figure is not None
        if self.promise.of == "interval":
            return figure.high <= self.promise.bound
        return figure.median >= self.promise.bound if self.promise.sign == "≥" else figure.median <= self.promise.bound


def row(
    name: str,
    unit: str,
    values: Sequence[float],
    reference: tuple[str, Sequence[float]] | None = None,
    promise: Promise | None = None,
) -> Row:
    """Return the row of a figure that is measured in rounds and compared with its reference in each round."""
    if reference is None:
        return Row(name, spread(values), unit, promise=promise)
    its_name, its_values = reference
    return Row(
        name, spread(values), unit, Reference(its_name, spread(its_values)), spread(paired(values, its_values)), promise
    )


_LAYOUT = "{:<44} {:>9} {:<11} {:<36} {:>6} {:<17} {:<18} {}"
HEADER = _LAYOUT.format("figure", "median", "unit", "reference, its median", "ratio", "low to high", "promise", "met")


def line(row: Row) -> str:
    """Return a row as a line of the table. Without a ratio, the spread is that of the value."""
    reference = "" if row.reference is None else f"{row.reference.name}, {number(row.reference.value.median)}"
    shown = row.ratio or row.value
    return _LAYOUT.format(
        row.name,
        number(row.value.median),
        row.unit,
        reference,
        "" if row.ratio is None else number(row.ratio.median),
        f"{number(shown.low)} to {number(shown.high)}",
        "" if row.promise is None else _promise(row.promise, row.unit),
        {None: "", True: "yes", False: "NO"}[row.is_met],
    ).rstrip()


def circumstances(slices: Sequence[Slice]) -> str:
    """Return the conditions of a measurement: how busy other processes were, and how many events were rejected."""
    others = [slice_.others for slice_ in slices if slice_.others is not None]
    refused = sum(slice_.refused for slice_ in slices)
    notes = (
        [f"others kept {number(statistics.median(others))} cores busy, at most {number(max(others))}"] if others else []
    )
    if refused:
        notes.append(f"{refused:,} of {refused + sum(slice_.accepted for slice_ in slices):,} events were answered 503")
    return "; ".join(notes)


def _promise(promise: Promise, unit: str) -> str:
    return f"{promise.sign} {promise.bound:,g}" + (f" {unit}" if promise.of == "value" else "")


def number(value: float) -> str:
    """Format a number with its significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
