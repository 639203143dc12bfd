"""Which log is which, when a transaction is mined again."""

from datetime import UTC, datetime

from api.chain.logs import LogChanges, OrgLog
from api.store.chain import DroppedLog

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def seen(index: int, digest: str, tx_hash: str = "0x1", org_id: int = 1) -> OrgLog:
    return OrgLog(org_id, "", "0xc0", "Transfer", "s", tx_hash, index, 7, {}, (), digest=digest)


def gone(index: int, digest: str, row: str, tx_hash: str = "0x1", org_id: int = 1) -> DroppedLog:
    return DroppedLog(org_id, tx_hash, index, row, digest)


def places(news: LogChanges) -> tuple[list[tuple[str, int]], list[int]]:
    return [(each.id, each.log_index) for each in news.restored], [each.log_index for each in news.new]


def test_logs_that_say_the_same_come_back_in_their_order() -> None:
    news = LogChanges(
        [seen(4, "a"), seen(5, "b"), seen(6, "a")],
        set(),
        [gone(2, "a", "y"), gone(0, "a", "x"), gone(1, "b", "z")],
        NOW,
    )
    assert places(news) == ([("x", 4), ("z", 5), ("y", 6)], [])


def test_what_a_transaction_says_now_is_new_also_at_a_place_of_before() -> None:
    news = LogChanges([seen(0, "other"), seen(1, "a")], set(), [gone(0, "a", "x"), gone(1, "b", "y")], NOW)
    assert places(news) == ([("x", 1)], [0])


def test_one_more_of_the_same_is_new() -> None:
    assert places(LogChanges([seen(0, "a"), seen(1, "a")], set(), [gone(0, "a", "x")], NOW)) == ([("x", 0)], [1])


def test_logs_of_others_and_of_other_transactions_are_left_alone() -> None:
    dropped = [gone(0, "a", "x", tx_hash="0x2"), gone(0, "a", "y", org_id=2)]
    assert places(LogChanges([seen(0, "a")], set(), dropped, NOW)) == ([], [0])


def test_stored_logs_are_not_new() -> None:
    assert places(LogChanges([seen(0, "a"), seen(1, "a")], {0}, [], NOW)) == ([], [1])
