"""Splits are constant and exact, and SQL computes the same buckets."""

from collections import Counter

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.actions import Branch
from workbench.language.nodes import branch_for, bucket


def test_the_buckets_never_change() -> None:
    assert [bucket("a", "n", str(contact)) for contact in range(8)] == [28, 48, 63, 96, 46, 14, 21, 0]
    assert bucket("0198c0de-0000-7000-8000-000000000001", "über", "c") == 44


def test_the_bucket_in_sql_is_the_same(database_url: str) -> None:
    ids = [("a", "n", str(contact)) for contact in range(100)] + [("ä/b", "über", "日本")]
    _, _, formula = (bucket.__doc__ or "").rpartition("In SQL:\n")
    with psycopg.connect(database_url) as connection:
        cursors = [
            connection.execute(
                f"SELECT {formula.strip().strip('`.')} FROM (VALUES (%s, %s, %s)) AS v (a, n, c)", triple
            )
            for triple in ids
        ]
        assert [cursor.fetchone() for cursor in cursors] == [(bucket(*triple),) for triple in ids]


def test_each_of_the_three_ids_changes_the_bucket() -> None:
    names = [(a, n, c) for a in ("x", "y") for n in ("x", "y") for c in ("x", "y")]
    assert len({bucket(*triple) for triple in names}) > 4


def test_contacts_are_distributed_by_the_percentages() -> None:
    branches = (Branch("a", 50), Branch("b", 30), Branch("c", 20))
    counts = Counter(branch_for(branches, bucket("a", "n", f"contact-{number}")) for number in range(10_000))
    assert [round(counts[name] / 100) for name in "abc"] == [50, 30, 20]


@given(st.text(), st.text(), st.text())
def test_a_bucket_is_below_a_hundred(automation: str, node: str, contact: str) -> None:
    parts = [part.encode(errors="ignore").decode() for part in (automation, node, contact)]
    assert 0 <= bucket(*parts) < 100


@given(st.lists(st.integers(0, 100), min_size=1, max_size=20))
def test_every_bucket_has_its_branch(percents: list[int]) -> None:
    total, branches = 0, []
    for index, percent in enumerate(percents):
        branches.append(Branch(str(index), min(percent, 100 - total)))
        total += branches[-1].percent
    branches.append(Branch("rest", 100 - total))
    taken = Counter(branch_for(branches, number) for number in range(100))
    assert dict(taken) == {branch.handle: branch.percent for branch in branches if branch.percent}


def test_branches_below_a_hundred_percent_raise() -> None:
    with pytest.raises(ValueError, match="50 percent"):
        branch_for((Branch("a", 50),), 50)
