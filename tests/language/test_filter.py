"""Every operator of a filter is defined for missing values, null and each type, without coercion or exceptions."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.language.strategies import NOW
from workbench.language.codec import decode
from workbench.language.filter import MISSING, OPERATORS, Filter, Verdict, explain, matches, passes, value_at

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
