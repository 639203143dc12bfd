"""Contacts that were one until the undo of a merge are played together, each with its own choices afterwards."""

from datetime import UTC, datetime, timedelta

import msgspec

from workbench.backtest.merged import PastMerge, contact_groups, merged_topics
from workbench.language.contact import ValueChange

BEGIN, HOUR = datetime(2026, 3, 1, tzinfo=UTC), timedelta(hours=1)


def merge(member_id: str, into_id: str, at: int, contact_id: str, undone_at: int | None = None) -> PastMerge:
    undone = None if undone_at is None else BEGIN + undone_at * HOUR
    return PastMerge(member_id, into_id, BEGIN + at * HOUR, f"{member_id}{into_id}", contact_id, undone)


def test_contacts_that_are_one_or_were_until_an_undo_are_in_one_group() -> None:
    assert contact_groups([merge("a", "b", 1, "b"), merge("c", "b", 2, "b")]) == {"a": "b", "c": "b"}
    undone = [merge("a", "b", 1, "a", 3), merge("c", "a", 4, "a"), merge("b", "d", 5, "d"), merge("d", "e", 6, "d", 7)]
    assert contact_groups(undone) == dict.fromkeys("abcd", "e")


def test_the_latest_choice_of_a_topic_counts_until_the_undo() -> None:
    def chosen(hour: int, old: bool, new: bool) -> ValueChange:
        return ValueChange(BEGIN + hour * HOUR, "topics.news", old, new)

    changes = {"a": [chosen(0, True, False)], "b": [chosen(2, True, True), chosen(5, True, False)]}
    topics = merged_topics([merge("a", "b", 1, "a", 3), merge("a", "b", 4, "b")], changes)
    expected = [(1, False), (3, True), (4, True)]
    assert topics == {
        "b": [ValueChange(BEGIN + hour * HOUR, "topics.news", msgspec.UNSET, new) for hour, new in expected]
    }
