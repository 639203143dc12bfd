"""Recognizing logs when a transaction is mined again."""

from api.chain.logs import OrgLog, compare_logs
from api.store.chain import KnownLog


def log(index: int, digest: str) -> OrgLog:
    return OrgLog(
        org_id=1,
        id="new",
        contract="0xc0",
        event="Transfer",
        signature="s",
        tx_hash="0x1",
        log_index=index,
        block_number=7,
        block_hash="0xb7",
        seconds=0,
        args="{}",
        digest=digest,
        values={},
        watches=(),
    )


def dropped_log(index: int, digest: str, row: str, tx_hash: str = "0x1", org_id: int = 1) -> KnownLog:
    return KnownLog(org_id, tx_hash, index, row, digest, removed=True)


def changes(logs: list[OrgLog], *known_logs: KnownLog) -> tuple[list[tuple[str, int]], list[int]]:
    """Return ids and indexes of the restored logs, and indexes of the new ones."""
    new, restored = compare_logs(logs, known_logs)
    return [(log.id, log.log_index) for log in restored], [log.log_index for log in new]


def test_equal_logs_are_restored_in_order() -> None:
    dropped = dropped_log(2, "a", "y"), dropped_log(0, "a", "x"), dropped_log(1, "b", "z")
    assert changes([log(4, "a"), log(5, "b"), log(6, "a")], *dropped) == ([("x", 4), ("z", 5), ("y", 6)], [])


def test_a_changed_log_is_new_also_at_an_old_position() -> None:
    dropped = dropped_log(0, "a", "x"), dropped_log(1, "b", "y")
    assert changes([log(0, "other"), log(1, "a")], *dropped) == ([("x", 1)], [0])


def test_one_more_equal_log_is_new() -> None:
    assert changes([log(0, "a"), log(1, "a")], dropped_log(0, "a", "x")) == ([("x", 0)], [1])


def test_logs_of_other_organizations_and_transactions_are_not_restored() -> None:
    dropped = dropped_log(0, "a", "x", tx_hash="0x2"), dropped_log(0, "a", "y", org_id=2)
    assert changes([log(0, "a")], *dropped) == ([], [0])


def test_stored_logs_are_not_new() -> None:
    assert changes([log(0, "a"), log(1, "a")], KnownLog(1, "0x1", 0, "x", "a", removed=False)) == ([], [1])
