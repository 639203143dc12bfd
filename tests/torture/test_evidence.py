"""Faults explain waits: Postgres stops all engines, a killed engine the entries that it held and those behind them."""

from datetime import UTC, datetime

import msgspec
import pytest

from tests.torture.evidence import RECOVERY_US, Evidence, overlap, union
from tests.torture.invariants import judge
from tests.torture.log import Log
from tests.torture.nemesis import Fault, Kind, Role
from tests.torture.rows import EntryRow, LeaseRow, ServiceCounts, StepRow, StoredRows

SECOND = 1_000_000
NOTHING = StoredRows(*([] for _ in StoredRows.__struct_fields__))


def evidence(stored: StoredRows = NOTHING, faults: list[Fault] | None = None, slack: int = 0) -> Evidence:
    """Return the evidence of a run with two engines."""
    return Evidence(Log(), stored, ServiceCounts({}, {}, {}), [], [], faults or [], [], [], engines=2, slack=slack)


def outages(*faults: tuple[Role, Kind, int, int, int]) -> list[tuple[int, int]]:
    """Return the outages in seconds, without the restart time."""
    happened = [
        Fault(role, kind, victim, began * SECOND, ended * SECOND) for role, kind, victim, began, ended in faults
    ]
    spans = evidence(faults=happened).outages
    return [(began // SECOND, (ended - RECOVERY_US) // SECOND) for began, ended in spans]


def test_adjacent_spans_are_joined() -> None:
    assert union([(5, 7), (1, 3), (2, 4), (3, 3)]) == [(1, 4), (5, 7)]
    assert overlap([(1, 4), (6, 9)], [(3, 7)]) == [(3, 4), (6, 7)]


def test_no_engine_works_without_postgres() -> None:
    assert outages(("backend", "kill", 0, 1, 2), ("postgres", "freeze", 0, 20, 22)) == [(1, 3), (20, 24)]


def test_one_engine_works_while_the_other_is_down() -> None:
    assert outages(("engine", "kill", 0, 1, 9), ("engine", "freeze", 1, 30, 31)) == []
    assert outages(("engine", "kill", 0, 1, 9), ("engine", "freeze", 1, 5, 7)) == [(5, 9)]


def delayed(*leases: tuple[str, int, int]) -> Evidence:
    """Return a run in which a delay of the contact `ann` is due after 20 s and ends after 33 s; 2 s more are allowed.

    `leases`: contacts, and the seconds in which another entry of each was held; nobody ended these leases.
    """
    of_wait = EntryRow("acme", "wait", "delays", 1, "e0", "ann", "completed", None, None, 1, None, 0)
    others = [msgspec.structs.replace(of_wait, id=f"other {n}", contact_id=who) for n, (who, *_) in enumerate(leases)]
    until = {"until": datetime.fromtimestamp(20, UTC).isoformat()}
    begun = StepRow("wait", 1, 1, 1, "d", "delay", "waiting", None, until, 10 * SECOND, 10 * SECOND)
    ended = StepRow("wait", 2, 1, 1, "d", "delay", "waited", None, {}, 20 * SECOND, 33 * SECOND)
    claims = [LeaseRow(f"other {n}", 1, lost * SECOND, claimed * SECOND) for n, (_, claimed, lost) in enumerate(leases)]
    stored = msgspec.structs.replace(NOTHING, entries=[of_wait, *others], steps=[begun, ended], leases=claims)
    return evidence(stored, slack=2 * SECOND)


@pytest.mark.parametrize(
    "leases",
    [[("ann", 19, 31)], [("ann", 19, 26), ("ann", 26, 31)], [("ann", 15, 22), ("bob", 20, 30), ("ann", 22, 32)]],
)
def test_a_delay_waits_while_another_entry_of_its_contact_is_held(leases: list[tuple[str, int, int]]) -> None:
    assert judge("V13", delayed(*leases)).violations == []


@pytest.mark.parametrize(
    ("leases", "seconds"),
    [
        ([], "13.0"),
        ([("ann", 5, 19)], "13.0"),
        ([("bob", 19, 31)], "13.0"),
        ([("ann", 19, 26)], "7.0"),
        ([("ann", 19, 26), ("ann", 20, 26)], "7.0"),
    ],
)
def test_a_delay_that_waits_although_its_contact_is_free_is_late(
    leases: list[tuple[str, int, int]], seconds: str
) -> None:
    assert judge("V13", delayed(*leases)).violations == [f"entry wait waited at d {seconds} s late"]
