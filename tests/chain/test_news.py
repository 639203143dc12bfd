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


def test_equal_logs_are_restored_in_order() -> None:
    news = LogChanges(
        [seen(4, "a"), seen(5, "b"), seen(6, "a")],
        set(),
        [gone(2, "a", "y"), gone(0, "a", "x"), gone(1, "b", "z")],
        NOW,
    )
    assert places(news) == ([("x", 4), ("z", 5), ("y", 6)], [])


def test_a_changed_log_is_new_also_at_an_old_position() -> None:
    news = LogChanges([seen(0, "other"), seen(1, "a")], set(), [gone(0, "a", "x"), gone(1, "b", "y")], NOW)
    assert places(news) == ([("x", 1)], [0])


def test_one_more_equal_log_is_new() -> None:
    assert places(LogChanges([seen(0, "a"), seen(1, "a")], set(), [gone(0, "a", "x")], NOW)) == ([("x", 0)], [1])


def test_logs_of_other_organizations_and_transactions_are_not_restored() -> None:
    dropped = [gone(0, "a", "x", tx_hash="0x2"), gone(0, "a", "y", org_id=2)]
    assert places(LogChanges([seen(0, "a")], set(), dropped, NOW)) == ([], [0])


def test_stored_logs_are_not_new() -> None:
    assert places(LogChanges([seen(0, "a"), seen(1, "a")], {0}, [], NOW)) == ([], [1])
