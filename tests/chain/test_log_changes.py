"""Recognizing logs when a transaction is mined again."""

from datetime import UTC, datetime

from api.chain.logs import LogChanges, OrgLog
from api.store.chain import DroppedLog

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def log(index: int, digest: str, tx_hash: str = "0x1", org_id: int = 1) -> OrgLog:
    return OrgLog(org_id, "", "0xc0", "Transfer", "s", tx_hash, index, 7, {}, (), digest=digest)


def dropped_log(index: int, digest: str, row: str, tx_hash: str = "0x1", org_id: int = 1) -> DroppedLog:
    return DroppedLog(org_id, tx_hash, index, row, digest)


def positions(changes: LogChanges) -> tuple[list[tuple[str, int]], list[int]]:
    return [(log.id, log.log_index) for log in changes.restored], [log.log_index for log in changes.new]


def test_equal_logs_are_restored_in_order() -> None:
    changes = LogChanges(
        [log(4, "a"), log(5, "b"), log(6, "a")],
        set(),
        [dropped_log(2, "a", "y"), dropped_log(0, "a", "x"), dropped_log(1, "b", "z")],
        NOW,
    )
    assert positions(changes) == ([("x", 4), ("z", 5), ("y", 6)], [])


def test_a_changed_log_is_new_also_at_an_old_position() -> None:
    changes = LogChanges(
        [log(0, "other"), log(1, "a")], set(), [dropped_log(0, "a", "x"), dropped_log(1, "b", "y")], NOW
    )
    assert positions(changes) == ([("x", 1)], [0])


def test_one_more_equal_log_is_new() -> None:
    assert positions(LogChanges([log(0, "a"), log(1, "a")], set(), [dropped_log(0, "a", "x")], NOW)) == (
        [("x", 0)],
        [1],
    )


def test_logs_of_other_organizations_and_transactions_are_not_restored() -> None:
    dropped = [dropped_log(0, "a", "x", tx_hash="0x2"), dropped_log(0, "a", "y", org_id=2)]
    assert positions(LogChanges([log(0, "a")], set(), dropped, NOW)) == ([], [0])


def test_stored_logs_are_not_new() -> None:
    assert positions(LogChanges([log(0, "a"), log(1, "a")], {0}, [], NOW)) == ([], [1])
