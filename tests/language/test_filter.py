"""Every operator of a filter is defined for missing values, null and each type, without coercion or exceptions."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.language.strategies import NOW
from workbench.language.codec import decode
from workbench.language.filter import (
    MISSING,
    OPERATORS,
    Filter,
    Verdict,
    Where,
    condition_fields,
    equated_values,
    explain,
    is_expression,
    matches,
    passes,
    paths_of,
    value_at,
    written_conditions,
)

CONTEXT = decode(
    b"""{"text": "Premium plan", "one": 1, "half": 0.5, "yes": true, "no": false, "nothing": null,
         "list": [1, "a", null], "object": {"inner": {"deep": 7}, "a.b": 8},
         "dotted.key": "literal", "dotted": {"key": "inner"}, "empty": ""}"""
)


def filter_passes(path: str, operator: str, value: Any = None) -> bool:
    return passes(Filter(path, operator, value), CONTEXT, NOW)


@pytest.mark.parametrize(
    ("operator", "expected"), [("eq", False), ("neq", True), ("in", False), ("contains", False), ("exists", False)]
)
@pytest.mark.parametrize("value", [None, [], [None], "x", 0, False])
def test_a_missing_path_passes_only_neq(operator: str, expected: bool, value: Any) -> None:
    assert filter_passes("nowhere", operator, value) is expected
    assert filter_passes("text.length", operator, value) is expected


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("exists", None, True),
        ("eq", None, True),
        ("eq", False, False),
        ("eq", "", False),
        ("neq", None, False),
        ("neq", 0, True),
        ("in", [None], True),
        ("in", [0, ""], False),
        ("contains", None, False),
    ],
)
def test_a_present_null_is_a_value(operator: str, value: Any, expected: bool) -> None:
    assert filter_passes("nothing", operator, value) is expected


@pytest.mark.parametrize(
    ("path", "value", "equal"),
    [
        ("one", 1, True),
        ("one", Decimal("1.0"), True),
        ("one", True, False),
        ("one", "1", False),
        ("yes", True, True),
        ("yes", 1, False),
        ("yes", "true", False),
        ("no", 0, False),
        ("no", None, False),
        ("half", Decimal("0.50"), True),
        ("text", "Premium plan", True),
        ("text", "premium plan", False),
        ("list", [1, "a", None], True),
        ("list", [1, "a"], False),
        ("object.inner", {"deep": 7}, True),
        ("object", {}, False),
        ("empty", "", True),
        ("empty", None, False),
    ],
)
def test_equality_follows_json(path: str, value: Any, equal: bool) -> None:
    assert filter_passes(path, "eq", value) is equal
    assert filter_passes(path, "neq", value) is not equal


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("one", [0, 1], True),
        ("one", [True, "1"], False),
        ("one", [], False),
        ("one", 1, False),
        ("text", "Premium plan", False),
        ("text", {"Premium plan": 1}, False),
        ("list", [[1, "a", None]], True),
        ("one", None, False),
    ],
)
def test_in_accepts_only_an_array(path: str, value: Any, expected: bool) -> None:
    assert filter_passes(path, "in", value) is expected


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("text", "plan", True),
        ("text", "Plan", False),
        ("text", "", True),
        ("text", 1, False),
        ("text", ["plan"], False),
        ("list", 1, True),
        ("list", "a", True),
        ("list", None, True),
        ("list", True, False),
        ("list", [1], False),
        ("one", 1, False),
        ("object", "inner", False),
        ("yes", True, False),
    ],
)
def test_contains_matches_a_part_of_a_text_or_an_element(path: str, value: Any, expected: bool) -> None:
    assert filter_passes(path, "contains", value) is expected


FAILING = {"eq": ("one", 2), "neq": ("one", 1), "in": ("one", []), "contains": ("text", "?"), "exists": ("nowhere", 0)}


@pytest.mark.parametrize("operator", OPERATORS)
def test_every_operator_is_evaluated(operator: str) -> None:
    path, value = FAILING[operator]
    assert not filter_passes(path, operator, value)


def test_an_unknown_operator_is_dropped() -> None:
    assert filter_passes("nowhere", "gt", 5)
    assert matches([Filter("one", "eq", 1), Filter("one", "matches", "x")], CONTEXT, NOW)


def test_all_filters_must_pass_and_no_filters_pass() -> None:
    assert matches([], CONTEXT, NOW)
    assert not matches([Filter("one", "eq", 1), Filter("one", "eq", 2)], CONTEXT, NOW)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("dotted.key", "literal"),
        ("object.inner.deep", 7),
        ("object.a.b", MISSING),
        ("object.", MISSING),
        (".one", MISSING),
        ("", MISSING),
        ("list.0", MISSING),
        ("__class__", MISSING),
        ("text.__class__", MISSING),
        ("object.__class__.__mro__", MISSING),
        ("object.items", MISSING),
        ("x" * 10_000, MISSING),
        ("." * 10_000, MISSING),
        ("ünïcode", MISSING),
    ],
)
def test_a_path_is_a_literal_key_and_then_dots_into_objects(path: str, value: Any) -> None:
    assert value_at(path, CONTEXT) == value


def test_verdicts_have_the_actual_values() -> None:
    filters = [Filter("one", "eq", "1"), Filter("nowhere", "exists"), Filter("nothing", "exists")]
    assert explain(filters, CONTEXT, NOW) == (
        Verdict("one", "eq", "1", False, True, 1),
        Verdict("nowhere", "exists", None, False, False),
        Verdict("nothing", "exists", None, True, True),
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.decimals(allow_nan=False) | st.text(max_size=3) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
)
paths = st.text("abc.", max_size=6)


@given(st.dictionaries(paths, values), paths, st.sampled_from([*OPERATORS]) | st.text(max_size=3), values)
def test_filters_never_raise_and_agree_with_their_explanation(
    context: dict[str, Any], path: str, operator: str, value: Any
) -> None:
    one = Filter(path, operator, value)
    assert matches([one], context, NOW) is explain([one], context, NOW)[0].passed is passes(one, context, NOW)


@given(st.dictionaries(paths, values), paths, values)
def test_neq_is_the_opposite_of_eq(context: dict[str, Any], path: str, value: Any) -> None:
    assert passes(Filter(path, "eq", value), context, NOW) is not passes(Filter(path, "neq", value), context, NOW)


@pytest.mark.parametrize(
    ("filter_", "paths", "required", "values"),
    [
        (Filter("plan", "eq", "pro"), {"plan"}, {"plan"}, ["pro"]),
        (Filter("plan", "in", ["pro", "max"]), {"plan"}, {"plan"}, ["pro", "max"]),
        (Filter("plan", "in", "pro"), {"plan"}, {"plan"}, []),
        (Filter("plan", "neq", "pro"), {"plan"}, set(), None),
        (Filter("plan", "exists"), {"plan"}, {"plan"}, None),
        (Filter("plan", "contains", "p"), {"plan"}, {"plan"}, None),
        (Filter("plan", "like", "p"), {"plan"}, set(), None),
        (Where("plan == 'pro' or size is defined"), {"plan", "size"}, set(), None),
        (Where("amountUsd > 5"), {"amountUsd"}, {"amountUsd"}, None),
    ],
)
def test_the_paths_of_a_filter_and_the_values_that_can_pass(
    filter_: Filter, paths: set[str], required: set[str], values: list[Any] | None
) -> None:
    assert (filter_.paths, filter_.required, equated_values(filter_)) == (paths, required, values)


def test_the_paths_of_an_expression_and_none_if_it_is_not_one() -> None:
    assert paths_of("plan == 'pro' and contact.size > 1") == {"plan", "contact.size"}
    assert paths_of("plan ==") == frozenset()


@pytest.mark.parametrize(
    ("text", "expected"), [("contact.plan", False), ("0xa:b/c@d-e$", False), ("a > 1", True), ("", True)]
)
def test_a_text_that_is_more_than_a_path_is_an_expression(text: str, expected: bool) -> None:
    assert is_expression(text) is expected


ONE, TWO = {"path": "a", "operator": "exists"}, {"path": "b", "operator": "eq", "value": 1}


@pytest.mark.parametrize(
    ("owner", "conditions"),
    [
        ({}, []),
        ({"filters": None, "where": None}, []),
        ({"filters": [ONE, TWO]}, [ONE, TWO]),
        ({"where": "a > 1"}, [{"where": "a > 1"}]),
        ({"filters": [ONE], "where": "a > 1", "id": "x"}, [ONE, {"where": "a > 1"}]),
    ],
)
def test_conditions_are_filters_and_then_where(owner: dict[str, Any], conditions: list[Any]) -> None:
    assert written_conditions(owner) == conditions


@pytest.mark.parametrize(
    ("conditions", "fields"),
    [
        ([], {"filters": []}),
        ([ONE, "odd", {"where": "a", "path": "b"}], {"filters": [ONE, "odd", {"where": "a", "path": "b"}]}),
        ([{"where": "a or b"}, TWO], {"filters": [TWO], "where": "a or b"}),
        ([{"where": "a > 1"}, ONE, {"where": "order < 2"}], {"filters": [ONE], "where": "a > 1 and order < 2"}),
        ([{"where": "a or b"}, {"where": "x if y"}], {"filters": [], "where": "(a or b) and (x if y)"}),
        ([{"where": "a"}, {"where": "b"}, {"where": 3}], {"filters": [], "where": "a and b and 3"}),
    ],
)
def test_several_expressions_are_joined(conditions: list[Any], fields: dict[str, Any]) -> None:
    assert condition_fields(conditions) == fields
