"""Changes between two samples of payloads are reported with their counts; differences by chance are not."""

from random import Random
from typing import Any

import pytest

from workbench.language.payload_schema import (
    MAX_PATHS,
    Frequency,
    FrequentValue,
    PropertyPath,
    SchemaChange,
    schema_changes,
    summarise_paths,
)

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
        (times(200, a=1) + times(200), times(220, a=1) + times(180)),  # 5 % more
        (times(10, a=1) + times(15), times(15, a=1) + times(10)),  # 20 % more, which is 1.4 standard errors
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


def test_the_whole_description_of_a_path() -> None:
    long, longest = "y" * 200, "y" * 201
    values = [None, 1, 1, True, 1.5, "1", long, long, longest, longest, [1], [1], {}]
    payloads: list[Payload] = [*({"a": {"b": value}} for value in values), {}, {"a": {}}]
    assert summarise_paths(payloads) == (
        PropertyPath("a", 1, {"object": 1}, 0, 0.0, ({},), 14, 14 / 15, {"object": 1.0}, (), 1),
        PropertyPath(
            "a.b",
            13,
            {"number": 3, "boolean": 1, "string": 5, "array": 2, "object": 1},
            1,
            1 / 13,
            (1, 1.5, "1", long, longest),
            2,
            2 / 15,
            {"string": 5 / 13, "number": 3 / 13, "array": 2 / 13, "null": 1 / 13, "boolean": 1 / 13, "object": 1 / 13},
            (FrequentValue(1, 2), FrequentValue(long, 2)),
            8,
        ),
    )


def test_only_the_first_paths_and_the_most_frequent_values_are_described() -> None:
    wide = {f"p{number:03}": number for number in range(MAX_PATHS + 1)}
    described = summarise_paths([wide, {"p000": 0, "new": 1}])
    assert [path.path for path in described] == [f"p{number:03}" for number in range(MAX_PATHS)]
    assert [(path.count, path.missing) for path in described[:2]] == [(2, 0), (1, 1)]
    (twice,) = summarise_paths([{"a.b": 1, "a": {"b": 2}}])
    assert (twice.path, twice.count, twice.missing) == ("a.b", 2, 0)
    (path,) = summarise_paths({"a": value} for value in "aabbccddeeff")
    assert [item.value for item in path.top_values] == ["a", "b", "c", "d", "e"]
    changes = schema_changes(times(20), times(20, **wide))
    assert [change.path for change in changes] == [f"p{number:03}" for number in range(MAX_PATHS)]


@pytest.mark.parametrize(
    ("before", "recent", "what"),
    [
        (times(20), times(8, a=1) + times(12), "new"),  # 0.6 to the power of 20 is 4e-5
        (times(20), times(7, a=1) + times(13), None),
        (times(8, a=1) + times(12), times(20), "gone"),
        (times(7, a=1) + times(13), times(20), None),
        (times(100, a=1) + times(900), times(200, a=1) + times(800), "more"),  # by a tenth, and 6.3 standard errors
        (times(200, a=1) + times(800), times(100, a=1) + times(900), "less"),
        (times(100, a=1) + times(900), times(199, a=1) + times(801), None),
        (times(60, a=1) + times(40), times(87, a=1) + times(13), "more"),  # 4.3 standard errors
        (times(60, a=1) + times(40), times(84, a=1) + times(16), None),  # 3.8
    ],
)
def test_the_smallest_change_that_is_reported(before: list[Payload], recent: list[Payload], what: str | None) -> None:
    assert [change.what for change in schema_changes(before, recent)] == ([] if what is None else [what])


def test_types_are_compared_if_both_samples_have_20_values() -> None:
    before, recent = times(20, a=1) + times(5), times(20, a="x") + times(5)
    assert schema_changes(before, recent) == (
        SchemaChange("a", "gone", Frequency(20, 20), Frequency(0, 20), "number"),
        SchemaChange("a", "new", Frequency(0, 20), Frequency(20, 20), "string"),
    )
    assert schema_changes(before[1:], recent) == schema_changes(before, recent[1:]) == ()
    assert str(Frequency(1_000, 20_000)) == "1,000 of 20,000"
