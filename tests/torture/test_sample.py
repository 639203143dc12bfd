"""A short run of `make torture`: whatever dies when, nothing that was accepted is lost, doubled or half-applied."""

from tests.torture.conftest import Tortured
from tests.torture.invariants import check
from tests.torture.log import ACCEPTED, UNKNOWN
from tests.torture.nemesis import KILLS, plan
from tests.torture.summary import summary


def test_nothing_is_lost_doubled_or_half_applied(tortured: Tortured) -> None:
    verdicts = check(tortured.run.evidence)
    assert {each.name: each.violations for each in verdicts if each.violations} == {}, summary(tortured.run, verdicts)
    assert all(each.checked for each in verdicts)


def test_the_faults_were_felt(tortured: Tortured) -> None:
    assert {(each.role, each.kind) for each in tortured.run.faults} >= KILLS.keys()
    answers = {each.answer for each in tortured.run.evidence.log.attempts}
    assert answers & UNKNOWN
    assert answers >= ACCEPTED


def test_the_summary_says_what_was_done_and_found(tortured: Tortured) -> None:
    text = summary(tortured.run, check(tortured.run.evidence))
    assert text.startswith("seed 3: ")
    assert "\nkill       6: api 1 · worker 1 · engine 1 · postmaster 1 · postgres 1 · backend 1\n" in text
    assert text.endswith("\n0 lost, 0 doubled, 0 other violations")


def test_a_seed_is_a_plan() -> None:
    assert plan(7, 200, 900) == plan(7, 200, 900) != plan(8, 200, 900)
    assert len([each for each in plan(7, 200, 900) if (each.role, each.kind) in KILLS]) == 200
