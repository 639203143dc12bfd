"""Lift equals published figures and a manual computation, and the attribution window covers the longest path."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.advance import MAX_CLOCK_SETBACK, attribution_window, max_duration
from workbench.language.channel import EMAIL, INAPP, RetryPolicy
from workbench.language.graph import Graph, read_graph
from workbench.language.lift import Lift, LiftGroup, lift, newcombe_interval, wilson_interval

SIDES = st.integers(1, 500).flatmap(lambda n: st.integers(0, n).map(lambda reached: LiftGroup(n, reached)))


@pytest.mark.parametrize(
    ("left", "right", "published"),
    [  # Newcombe 1998, table II, method 10
        (LiftGroup(70, 56), LiftGroup(80, 48), (0.0524, 0.3339)),
        (LiftGroup(10, 9), LiftGroup(10, 3), (0.1705, 0.8090)),
        (LiftGroup(56, 5), LiftGroup(29, 0), (-0.0381, 0.1926)),
        (LiftGroup(10, 10), LiftGroup(10, 0), (0.6075, 1.0)),
    ],
)
def test_intervals_equal_those_of_the_paper(left: LiftGroup, right: LiftGroup, published: tuple[float, float]) -> None:
    assert newcombe_interval(left, right) == pytest.approx(published, abs=5e-5)


def test_a_rate_of_all_or_none_ends_at_the_bound() -> None:
    assert all(wilson_interval(LiftGroup(number, number))[1] <= 1.0 for number in range(1, 500))
    assert all(wilson_interval(LiftGroup(number, 0))[0] >= 0.0 for number in range(1, 500))


def test_the_interval_equals_one_computed_by_hand() -> None:
    """50 of 100 against 30 of 100. z² = 3.8415.

    Wilson, 50: 0.5 ± 1.96 sqrt(0.25/100 + 3.8415/40000) / 1.038415 = 0.40383 to 0.59617; 30: 0.21895 to 0.39585.
    Below: sqrt((0.5 - 0.40383)² + (0.39585 - 0.3)²) = 0.13578; above: sqrt(0.09617² + (0.3 - 0.21895)²) = 0.12577.
    """
    assert wilson_interval(LiftGroup(100, 50)) == pytest.approx((0.40383, 0.59617), abs=5e-6)
    assert wilson_interval(LiftGroup(100, 30)) == pytest.approx((0.21895, 0.39585), abs=5e-6)
    assert newcombe_interval(LiftGroup(100, 50), LiftGroup(100, 30)) == pytest.approx(
        (0.2 - 0.13578, 0.2 + 0.12577), abs=1e-5
    )


@given(SIDES, SIDES)
def test_an_interval_contains_the_difference_and_mirrors_with_the_groups(left: LiftGroup, right: LiftGroup) -> None:
    low, high = newcombe_interval(left, right)
    assert -1 - 1e-9 <= low <= left.rate - right.rate <= high <= 1 + 1e-9
    assert newcombe_interval(right, left) == pytest.approx((-high, -low))


@pytest.mark.parametrize(
    ("treated", "held_out", "verdict"),
    [
        (LiftGroup(1_000, 500), LiftGroup(29, 0), "too_few"),
        (LiftGroup(1_000, 4), LiftGroup(1_000, 0), "too_few"),
        (LiftGroup(), LiftGroup(), "too_few"),
        (LiftGroup(1_000, 100), LiftGroup(100, 9), "no_difference"),
        (LiftGroup(1_000, 200), LiftGroup(1_000, 100), "more"),
        (LiftGroup(1_000, 100), LiftGroup(1_000, 200), "fewer"),
    ],
)
def test_small_groups_have_no_numbers(treated: LiftGroup, held_out: LiftGroup, verdict: str) -> None:
    result = lift(treated, held_out)
    assert result.verdict == verdict
    assert (result == Lift("too_few")) is (verdict == "too_few")


def test_a_lift_is_the_difference_of_the_rates_with_its_interval() -> None:
    left, right = LiftGroup(40, 20) + LiftGroup(60, 30), LiftGroup(100, 30)
    assert left == LiftGroup(100, 50)
    assert lift(left, right) == Lift("more", 0.2, *newcombe_interval(left, right))
    assert lift(right, left) == Lift("fewer", -0.2, *newcombe_interval(right, left))
    assert (LiftGroup().rate, LiftGroup(4, 1).rate) == (0.0, 0.25)


def test_30_contacts_and_5_goals_are_enough_for_numbers() -> None:
    assert lift(LiftGroup(30, 3), LiftGroup(30, 2)).verdict == "no_difference"


def waiting(edges: list[tuple[str, ...]], **seconds: int) -> Graph:
    """Return a graph of delays and a condition `p`; edges are (source, target) or (source, target, handle)."""
    pro = {"filters": [{"path": "plan", "operator": "eq", "value": "pro"}]}
    nodes: list[dict[str, Any]] = [{"id": "t", "type": "app_event"}, {"id": "p", "type": "condition", "data": pro}]
    nodes += [{"id": node_id, "type": "delay", "data": {"seconds": number}} for node_id, number in seconds.items()]
    keys = ("source", "target", "sourceHandle")
    parsed = read_graph({"nodes": nodes, "edges": [dict(zip(keys, edge, strict=False)) for edge in edges]})
    assert isinstance(parsed, Graph)
    return parsed


def test_the_attribution_window_is_the_longest_path_and_a_week() -> None:
    edges = [("t", "p"), ("p", "a", "true"), ("a", "c"), ("p", "b", "false"), ("b", "c")]
    graph = waiting(edges, a=10, b=30, c=5, unreached=1_000)
    assert max_duration(graph) == timedelta(seconds=35)
    assert attribution_window(graph) == timedelta(days=7, seconds=35)
    assert max_duration(waiting([("t", "a"), ("a", "a")], a=10)) == timedelta(seconds=10)
    assert max_duration(Graph()) == timedelta()


def test_the_longest_wait_includes_quiet_hours_and_retries() -> None:
    nodes = [{"id": "t", "type": "app_event"}, {"id": "m", "type": "send_inapp", "data": {"title": "x", "body": "y"}}]
    edges, night = [{"source": "t", "target": "m"}], {"quietHours": {"from": "22:15", "to": "08:30"}}
    plain, quiet = (read_graph({"nodes": nodes, "edges": edges, "settings": settings}) for settings in ({}, night))
    assert isinstance(plain, Graph)
    assert isinstance(quiet, Graph)
    assert max_duration(plain, RetryPolicy(())) == timedelta()
    assert max_duration(plain, RetryPolicy((100.0, 50.0))) == timedelta(seconds=180)
    assert max_duration(quiet, RetryPolicy(())) == timedelta(hours=10.25) + MAX_CLOCK_SETBACK
    assert max_duration(quiet, RetryPolicy((100.0,))) == timedelta(seconds=120) + 2 * (
        timedelta(hours=10.25) + MAX_CLOCK_SETBACK
    )
    assert max_duration(plain) == timedelta(seconds=1.2 * sum(INAPP.delays_s))
    assert max_duration(quiet) - max_duration(plain) == 6 * (timedelta(hours=10.25) + MAX_CLOCK_SETBACK)
    email = [nodes[0], {"id": "m", "type": "send_email", "data": {"subject": "x", "body": "y"}}]
    late = read_graph({"nodes": email, "edges": edges, "settings": night})
    assert isinstance(late, Graph)
    retried = 7 * (timedelta(hours=10.25) + MAX_CLOCK_SETBACK)
    assert max_duration(late) == timedelta(seconds=1.2 * sum(EMAIL.delays_s)) + retried
    assert attribution_window(plain, RetryPolicy((100.0,))) == timedelta(days=7, seconds=120)
