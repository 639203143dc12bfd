"""Outages: those of Postgres count, those of engines only where all engines are down."""

from tests.torture.evidence import RECOVERY_US, Evidence, overlap, union
from tests.torture.log import Log
from tests.torture.nemesis import Fault, Kind, Role
from tests.torture.rows import ServiceCounts, StoredRows

SECOND = 1_000_000


def outages(*faults: tuple[Role, Kind, int, int, int]) -> list[tuple[int, int]]:
    """Return the outages of two engines in seconds, without the restart time."""
    happened = [
        Fault(role, kind, victim, began * SECOND, ended * SECOND) for role, kind, victim, began, ended in faults
    ]
    nothing = StoredRows(*([] for _ in StoredRows.__struct_fields__))
    evidence = Evidence(Log(), nothing, ServiceCounts({}, {}, {}), [], [], happened, [], [], engines=2, slack=0)
    return [(began // SECOND, (ended - RECOVERY_US) // SECOND) for began, ended in evidence.outages]


def test_adjacent_spans_are_joined() -> None:
    assert union([(5, 7), (1, 3), (2, 4), (3, 3)]) == [(1, 4), (5, 7)]
    assert overlap([(1, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]


def test_no_engine_works_without_postgres() -> None:
    assert outages(("backend", "kill", 0, 1, 2), ("postgres", "freeze", 0, 20, 22)) == [(1, 3), (20, 24)]


def test_one_engine_works_while_the_other_is_down() -> None:
    assert outages(("engine", "kill", 0, 1, 9), ("engine", "freeze", 1, 30, 31)) == []
    assert outages(("engine", "kill", 0, 1, 9), ("engine", "freeze", 1, 5, 7)) == [(5, 9)]
