"""A short run of `make torture`: no accepted event is lost, duplicated or half-applied, whichever process is killed."""

from tests.torture.conftest import FinishedRun
from tests.torture.invariants import INVARIANTS, check
from tests.torture.journeys import CHAT, DIGEST, LETTER, PATIENT, SEGMENT_JOINED
from tests.torture.log import ACCEPTED, UNKNOWN
from tests.torture.nemesis import ENGINE_KILLS, KILLS, RunSpec, plan
from tests.torture.sinks import Reaction
from tests.torture.summary import summary, table


def test_nothing_is_lost_doubled_or_half_applied(finished_run: FinishedRun) -> None:
    verdicts = check(finished_run.run.evidence)
    assert {verdict.name: verdict.violations for verdict in verdicts if verdict.violations} == {}, summary(
        finished_run.run, verdicts
    )
    assert all(verdict.checked for verdict in verdicts)


def test_the_faults_had_an_effect(finished_run: FinishedRun) -> None:
    assert {(fault.role, fault.kind) for fault in finished_run.run.faults} >= KILLS.keys() | ENGINE_KILLS.keys()
    answers = {attempt.answer for attempt in finished_run.run.evidence.log.attempts}
    assert answers & UNKNOWN
    assert answers >= ACCEPTED
    assert any(attempt.half_closed and attempt.answer in ACCEPTED for attempt in finished_run.run.evidence.log.attempts)
    warnings = {warning for attempt in finished_run.run.evidence.log.attempts for warning in attempt.warnings}
    assert {warning.partition(".")[0] for warning in warnings} > {"attributes"}
    assert {arrival.reaction for arrival in finished_run.installation.sinks.arrivals} == set(Reaction)


def test_the_marketer_did_everything(finished_run: FinishedRun) -> None:
    journeys = finished_run.run.evidence.journeys
    assert journeys is not None
    log = journeys.log
    assert all([log.notes, log.chats, log.bounced, log.declined, log.stops, log.clicked, log.moved])
    automations = {entry.automation for entry in journeys.entries}
    assert automations >= {LETTER, SEGMENT_JOINED, DIGEST, CHAT, PATIENT}  # a short run may see no minute of MINUTELY


def test_the_summary_shows_the_load_and_the_verdicts(finished_run: FinishedRun) -> None:
    text = summary(finished_run.run, check(finished_run.run.evidence))
    assert text.startswith("seed 3: ")
    rows = [line.split() for line in text.splitlines()]
    assert ["fault", "api", "worker", "engine", "postmaster", "postgres", "backend", "all"] in rows
    assert ["kill", "1", "1", "4", "1", "1", "1", "9"] in rows
    assert {row[0] for row in rows if row[-1:] == ["0"]} >= INVARIANTS.keys()
    assert text.endswith("\n0 lost, 0 doubled, 0 other violations")


def test_a_table_has_its_numbers_on_the_right() -> None:
    longest = " ".join(["word"] * 16)
    assert table(["who", "many"], [["one", 7], [f"{longest} word", 1_234]]) == [
        f"who{' ' * 76}   many",
        f"{'-' * 79}  -----",
        f"one{' ' * 76}      7",
        f"{longest}  1,234",
        "word",
    ]


def test_a_seed_determines_the_plan() -> None:
    spec = RunSpec(7, kills=200, engine_kills=100, seconds=900)
    assert plan(spec) == plan(spec) != plan(RunSpec(8, kills=200, engine_kills=100, seconds=900))
    struck = [(fault.role, fault.kind) for fault in plan(spec)]
    assert [len([fault for fault in struck if fault in kills]) for kills in (KILLS, ENGINE_KILLS)] == [200, 100]
