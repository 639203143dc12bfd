import msgspec
import pytest

from bench.figures import Slice
from bench.table import (
    HEADER,
    Promise,
    at_least,
    at_most,
    circumstances,
    interval_at_most,
    line,
    number,
    ratio_at_least,
    ratio_at_most,
    row,
)


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_row_compares_with_its_reference_round_by_round() -> None:
    table_row = row(
        "singles", "events/s", [4_000.0, 6_000.0, 5_000.0], ("bare route", [10_000.0] * 3), ratio_at_least(0.35)
    )
    assert table_row.ratio is not None
    assert (table_row.value.median, table_row.ratio.median, table_row.ratio.low, table_row.ratio.high) == (
        5_000.0,
        0.5,
        0.4,
        0.6,
    )


@pytest.mark.parametrize(
    ("promise", "is_met"),
    [
        (None, None),
        (ratio_at_least(0.5), True),
        (ratio_at_least(0.51), False),
        (ratio_at_most(0.5), True),
        (ratio_at_most(0.49), False),
        (at_least(20), True),
        (at_least(21), False),
        (at_most(20), True),
        (at_most(19), False),
    ],
)
def test_the_median_keeps_the_promise_or_does_not(promise: Promise | None, is_met: bool | None) -> None:
    assert row("figure", "ms", [20.0], ("reference", [40.0]), promise).is_met is is_met


def test_all_of_an_interval_keeps_a_promise() -> None:
    interval = row("figure", "ms", [20.0, 22.0], ("reference", [20.0, 20.0]), interval_at_most(1.1))
    assert interval.is_met
    assert not msgspec.structs.replace(interval, promise=interval_at_most(1.09)).is_met


def test_a_line_shows_figure_reference_ratio_spread_and_promise() -> None:
    table_row = row(
        "singles", "events/s", [4_000.0, 6_000.0, 5_000.0], ("bare route", [10_000.0] * 3), ratio_at_least(0.6)
    )
    assert words(line(table_row)) == "singles 5,000 events/s bare route, 10,000 0.50 0.40 to 0.60 ≥ 0.6 NO"


def test_a_line_without_reference_shows_the_spread_of_the_value() -> None:
    table_row = row("memory", "MiB", [140.0, 130.0], None, at_most(200))
    assert words(line(table_row)) == "memory 135 MiB 130 to 140 ≤ 200 MiB yes"


def test_columns_are_aligned_with_their_names() -> None:
    table_row = row("figure", "ms", [20.0], ("reference", [40.0]), at_most(25))
    assert line(table_row).index("reference") == HEADER.index("reference")
    assert line(table_row).index("≤ 25 ms") == HEADER.index("promise")
    assert line(table_row).index("yes") == HEADER.index("met")


def test_numbers_have_as_many_digits_as_they_need() -> None:
    assert [number(value) for value in (0.351, 9.994, 12.34, 20_123.4)] == ["0.35", "9.99", "12.3", "20,123"]


def a_slice(others: float | None, refused: int = 0) -> Slice:
    return Slice(10, 1_000, refused, 1.0, {}, [], {}, others)


def test_a_note_reports_the_load_of_other_processes_and_the_rejected_events() -> None:
    assert circumstances([a_slice(0.5), a_slice(1.5), a_slice(None)]) == "others kept 1.00 cores busy, at most 1.50"
    assert circumstances([a_slice(None, refused=100)]) == "100 of 1,100 events were answered 503"
