"""Planted evidence of misuse: every invariant of `misuse` fails on it, and passes what the product does."""

from typing import Any

import msgspec
import pytest

from tests.torture.evidence import Evidence
from tests.torture.invariants import judge
from tests.torture.leaks import FORMULAS, OBEYED, LeakDetector
from tests.torture.log import BOMB, AttackOnUp, Bomb, CommandRun, LiftedLimit, Log, Reply, ShownText
from tests.torture.nemesis import Fault
from tests.torture.operators import BACKUP, PULLED, REFUSED_START
from tests.torture.terminals import CSV, DISPLAY, shown, spreadsheet
from tests.torture.test_evidence import SECOND, evidence

REFUSED = CommandRun(f"{REFUSED_START}no secret in its file: serve", 1, "workbench: the secret is missing\n")
FILES = {"backup": 0o700, "database.dump": 0o600, "manifest.json": 0o600}
COMPLETE = CommandRun(BACKUP, 0, "7 rows in backup\n", FILES)
SAID = "engine stopped (SIGKILL); restarting it in 1 s\n"
SURVIVED = AttackOnUp(
    "its log folder is lost", "engine", "stopped", SAID, [200, 200], others_ran_on=True, is_restarted=True
)
STOPPED = Bomb("acme", "endless", 0, 11 * SECOND, 408, 10**9)
PUT_BACK = LiftedLimit("acme", 0, SECOND)
SHOWN = [ShownText(place, quotes=True, wrong=[]) for place in (DISPLAY, CSV, PULLED)]


def log(**records: Any) -> Evidence:
    return msgspec.structs.replace(evidence(slack=SECOND), log=Log(**records))


def test_correct_evidence_has_no_violation() -> None:
    good = {"F14": [REFUSED], "B22": [COMPLETE], "V25": [SURVIVED], "L10": [STOPPED], "L11": [PUT_BACK], "V26": SHOWN}
    kinds = {"F14": "commands", "B22": "commands", "V25": "attacks", "L10": "bombs", "L11": "lifted", "V26": "shown"}
    for invariant, records in good.items():
        assert judge(invariant, log(**{kinds[invariant]: records})).violations == []
        assert judge(invariant, log()).violations == ["nothing was checked"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"code": 0}, "ended with 0"),
        ({"code": None}, "ended with None"),
        ({"output": "Traceback"}, "ended with 1"),
        ({"files": {"secret": 0o600}}, r"made [secret]"),
    ],
)
def test_a_start_with_a_wrong_secret_is_detected(change: dict[str, Any], words: str) -> None:
    (violation,) = judge("F14", log(commands=[msgspec.structs.replace(REFUSED, **change)])).violations
    assert words in violation


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"output": "engine stopped"}, "and it said"),
        ({"is_restarted": False}, "was not restarted"),
        ({"others_ran_on": False}, "did not keep running"),
        ({"statuses": [200, 0, 503]}, "did not keep running: [0, 200, 503]"),
    ],
)
def test_a_supervisor_that_does_not_survive_is_detected(change: dict[str, Any], words: str) -> None:
    attack = msgspec.structs.replace(SURVIVED, expected_output="stopped (SIGKILL); restarting it", **change)
    (violation,) = judge("V25", log(attacks=[attack])).violations
    assert words in violation


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (FILES | {"database.dump": 0o644}, "a backup has database.dump 644"),
        (FILES | {"backup": 0o750}, "a backup has backup 750"),
        ({"backup": 0o700}, "the last backup failed"),
    ],
)
def test_a_backup_that_others_can_read_or_that_lacks_files_is_detected(files: dict[str, int], words: str) -> None:
    (violation,) = judge("B22", log(commands=[msgspec.structs.replace(COMPLETE, files=files)])).violations
    assert words in violation


def test_a_query_that_is_not_stopped_is_detected() -> None:
    late, large = (
        msgspec.structs.replace(STOPPED, ended=17 * SECOND),
        msgspec.structs.replace(STOPPED, peak=3 * 10**9),
    )
    assert judge("L10", log(bombs=[late])).violations == ["the endless query of acme ended after 17.0 s at 1.0 GB"]
    assert judge("L10", log(bombs=[large])).violations == ["the endless query of acme ended after 11.0 s at 3.0 GB"]
    unwatched = msgspec.structs.replace(log(bombs=[large]), faults=[Fault("api", "kill", 1, 0, SECOND)])
    assert judge("L10", unwatched).violations == []
    answered = msgspec.structs.replace(STOPPED, status=200)
    assert judge("L10", log(bombs=[answered])).violations == [
        "the endless query was never stopped, it was answered {200}"
    ]
    replies = [Reply("acme", BOMB, 0, 15 * SECOND, 408), Reply("acme", BOMB, 0, 17 * SECOND, 408)]
    assert judge("V24", log(replies=replies)).violations == ["acme bomb ended after 17.0 s"]


@pytest.mark.parametrize("ended", [0, 3 * SECOND])
def test_a_limit_that_stays_lifted_is_detected(ended: int) -> None:
    assert len(judge("L11", log(lifted=[LiftedLimit("acme", 0, ended)])).violations) == 1


@pytest.mark.parametrize("text", OBEYED)
def test_a_text_that_a_terminal_obeys_is_detected(text: str) -> None:
    assert shown(DISPLAY, f"note\t{text.encode('unicode_escape').decode()}\n").wrong == []
    raw = shown(DISPLAY, f"note\t{text}\n")
    assert raw.wrong
    assert judge("V26", log(shown=[*SHOWN, raw])).violations == [f"{DISPLAY} has {wrong}" for wrong in raw.wrong]


def test_a_traceback_in_a_text_is_detected() -> None:
    assert shown(DISPLAY, "Traceback (most recent call last):\nKeyError").wrong


@pytest.mark.parametrize("text", FORMULAS)
def test_a_cell_that_begins_a_formula_is_detected(text: str) -> None:
    assert spreadsheet(f'"\'{text}",b\r\n').wrong == []
    assert spreadsheet(f'a,"{text}"\r\n').wrong == [f"the cell {text!a}"]


@pytest.mark.parametrize("place", [DISPLAY, CSV, PULLED])
def test_a_search_without_hostile_texts_is_detected(place: str) -> None:
    texts = [text for text in SHOWN if text.place != place]
    assert judge("V26", log(shown=texts)).violations == [f"no {place} has a hostile text, so {place} proves nothing"]


def test_a_role_that_names_an_organization_is_detected() -> None:
    leak_detector = LeakDetector()
    leak_detector.check_names("acme", "roles", "wb_reader_7f3e wb_reader_globex")
    assert (
        "a response of roles to acme has the name globex"
        in judge("V18", log(leak_detector=leak_detector)).violations[0]
    )
