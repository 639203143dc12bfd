"""Queries accept values of many types, and names that are also parameters of the method."""

from array import array
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from tests.running import Running
from workbench import InvalidArgumentError, Workbench
from workbench.sql import bind_values, plain_value


class Scalar:
    """A number with the interface of a numpy scalar."""

    def tolist(self) -> float:
        return 0.5


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pl.Series([1, 2]), [1, 2]),
        (array("d", [1.5]), [1.5]),
        (Scalar(), 0.5),
        ([Scalar(), "a"], [0.5, "a"]),
        ({"a": (Scalar(), None)}, {"a": [0.5, None]}),
        (Decimal("1.10"), Decimal("1.10")),
    ],
)
def test_columns_and_arrays_are_values(values: Any, expected: Any) -> None:
    assert bind_values("SELECT :x", {"x": values}, None, ()) == {"x": expected}
    assert plain_value(values) == expected


def test_names_of_method_parameters_are_passed_in_params(running: Running) -> None:
    wb = running.workbench()
    query = "SELECT :query AS a, :stream AS b, :as_of AS c, :sql AS d, :name AS e, :params AS f"
    words = {"query": "1", "stream": "2", "as_of": "3", "params": "6"}
    assert wb.sql(query, params=words, sql="4", name="5").rows() == [("1", "2", "3", "4", "5", "6")]
    message = r"as_of= is a parameter of the method itself: pass the value of :as_of as params=\{\"as_of\": …\}"
    with pytest.raises(InvalidArgumentError, match=message):
        wb.sql("SELECT :as_of", as_of="2026-01-01")
    preview = wb.segments.preview("SELECT contact_id FROM app_events WHERE event = :name", params={"name": "deposit"})
    assert preview.size > 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda wb: wb.sql("SELECT :a", params=[1]), "params= takes a mapping of names to values"),
        (lambda wb: wb.sql("SELECT :a", params={"a": 1}, a=2), ":a has two values"),
        (lambda wb: wb.sql(1), "the query must be a string"),
        (lambda wb: wb.segments.define("x", sql="SELECT :every"), r"params=\{\"every\": …\}"),
    ],
)
def test_invalid_values_are_rejected_before_any_request(call: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(Workbench("http://127.0.0.1:9", "wb_x"))
