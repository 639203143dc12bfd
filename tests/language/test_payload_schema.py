"""Changes between two samples of payloads are reported with their counts; differences by chance are not."""

from random import Random
from typing import Any

import pytest

from workbench.language.payload_schema import Frequency, FrequentValue, SchemaChange, schema_changes, summarise_paths

Payload = dict[str, Any]


def times(number: int, **payload: Any) -> list[Payload]:
    return [payload] * number


def test_new_and_gone_paths_and_types_are_reported_with_both_counts() -> None:
    before = times(100, usd=5, asset="a", old={"x": 1})
    recent = times(60, usd="5", asset="a", plan="pro")
    assert schema_changes(before, recent) == (
        SchemaChange("old.x", "gone", Frequency(100, 100), Frequency(0, 60)),
        SchemaChange("plan", "new", Frequency(0, 100), Frequency(60, 60)),
        SchemaChange("usd", "gone", Frequency(100, 100), Frequency(0, 60), "number"),
        SchemaChange("usd", "new", Frequency(0, 100), Frequency(60, 60), "string"),
    )


def test_clearly_more_or_less_frequent_paths_are_reported() -> None:
    before = times(180, usd=5, coupon="x") + times(20, usd=None)
    recent = times(90, usd=5) + times(100, usd=None, coupon="x")
    assert schema_changes(before, recent) == (
        SchemaChange("coupon", "less", Frequency(180, 200), Frequency(100, 190)),
        SchemaChange("usd", "more", Frequency(20, 200), Frequency(100, 190), "null"),
        SchemaChange("usd", "less", Frequency(180, 200), Frequency(90, 190), "number"),
    )


@pytest.mark.parametrize(
    ("before", "recent"),
    [
        (times(1_000, a=1), times(19, b=1)),
        (times(19, a=1), times(1_000, b=1)),
        ([], times(100, a=1)),
        (times(100, a=1), times(50, a=1) + times(1, a=1, b=1)),
        (times(100, a=1) + times(1, a="x"), times(100, a=1)),
        (times(100, a=1) + times(9, a=1, b=2), times(100, a=1) + times(3, a=1, b=2)),
        ([], []),
    ],
)
def test_small_samples_and_rare_values_are_not_reported(before: list[Payload], recent: list[Payload]) -> None:
    assert schema_changes(before, recent) == ()


def test_two_samples_of_the_same_traffic_show_no_change() -> None:
    chance = Random(11)

    def sample(number: int) -> list[Payload]:
        return [
            {f"p{n}": chance.choice([1, "x", None]) for n in range(20) if chance.random() < n / 20}
            for _ in range(number)
        ]

    assert [
        changes for _ in range(20) if (changes := schema_changes(sample(500), sample(chance.randint(20, 500))))
    ] == []


def test_a_path_has_its_missing_and_null_rates_and_top_values() -> None:
    payloads = [{"a": "x", "b": 1}, {"a": "x", "b": True}, {"a": None, "b": 1}, {"b": 1.5}, {"a": "y" * 201, "b": "1"}]
    a, b = summarise_paths(payloads)
    assert (a.count, a.missing, a.missing_rate, a.nulls, a.null_rate) == (4, 1, 0.2, 1, 0.25)
    assert (a.shares, a.top_values, a.distinct) == ({"string": 0.75, "null": 0.25}, (FrequentValue("x", 2),), 2)
    assert (b.types, b.top_values, b.distinct) == ({"number": 3, "boolean": 1, "string": 1}, (FrequentValue(1, 2),), 4)
