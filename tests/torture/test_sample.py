"""A short run of `make torture`: whatever dies when, nothing that was accepted is lost, doubled or half-applied."""

from tests.torture.conftest import Tortured
from tests.torture.invariants import check
from tests.torture.log import ACCEPTED, UNKNOWN
from tests.torture.nemesis import ENGINE_KILLS, KILLS, Wish, plan
from tests.torture.sinks import Mood
from tests.torture.summary import summary


def test_nothing_is_lost_doubled_or_half_applied(tortured: Tortured) -> None:
    verdicts = check(tortured.run.evidence)
    assert {each.name: each.violations for each in verdicts if each.violations} == {}, summary(tortured.run, verdicts)
    assert all(each.checked for each in verdicts)


def test_the_faults_were_felt(tortured: Tortured) -> None:
    assert {(each.role, each.kind) for each in tortured.run.faults} >= KILLS.keys() | ENGINE_KILLS.keys()
    answers = {each.answer for each in tortured.run.evidence.log.attempts}
    assert answers & UNKNOWN
    assert answers >= ACCEPTED
    assert {each.mood for each in tortured.run.evidence.arrivals} == set(Mood)


def test_the_summary_says_what_was_done_and_found(tortured: Tortured) -> None:
    text = summary(tortured.run, check(tortured.run.evidence))
    assert text.startswith("seed 3: ")
    assert "\nkill       9: api 1 · worker 1 · engine 4 · postmaster 1 · postgres 1 · backend 1\n" in text
    assert text.endswith("\n0 lost, 0 doubled, 0 other violations")


def test_a_seed_is_a_plan() -> None:
    wish = Wish(7, kills=200, engine_kills=100, seconds=900)
    assert plan(wish) == plan(wish) != plan(Wish(8, kills=200, engine_kills=100, seconds=900))
    struck = [(each.role, each.kind) for each in plan(wish)]
    assert [len([each for each in struck if each in kills]) for kills in (KILLS, ENGINE_KILLS)] == [200, 100]
