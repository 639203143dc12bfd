"""Every row of the catalogue of faults and attacks has proofs that exist, or is listed as open (`tests/trust.toml`)."""

import re
import tomllib
from pathlib import Path

import pytest

from bench.__main__ import PARTS
from tests.torture.invariants import INVARIANTS

ROOT = Path(__file__).parents[1]
TRUST = tomllib.loads((ROOT / "tests" / "trust.toml").read_text())
PAGE = frozenset(re.findall(r"^- \*\*([A-Z]\d+)\*\* ", (ROOT / "docs" / "trust.md").read_text("utf-8"), re.MULTILINE))
ROWS, INVARIANT_ROWS = 208, 32
CITATION = re.compile(r"trust\.md,? ((?:[A-Z]\d+(?:, | and | to |-)?)+)", re.IGNORECASE)


def exists(proof: str) -> bool:
    match re.split(r" |::", proof):
        case ["bench", part]:
            return part in PARTS
        case ["torture", invariant]:
            return invariant in INVARIANTS
        case [path, name] if (file := ROOT / path).is_file():
            return re.search(rf"^(async )?def {name}\(", file.read_text(), re.MULTILINE) is not None
        case _:
            return False


@pytest.mark.parametrize("row", TRUST["proved"])
def test_the_proofs_of_a_row_exist(row: str) -> None:
    assert TRUST["proved"][row]
    assert [proof for proof in TRUST["proved"][row] if not exists(proof)] == []


def test_every_row_is_proved_or_open() -> None:
    assert TRUST["proved"].keys().isdisjoint(TRUST["open"])
    rows = TRUST["proved"].keys() | TRUST["open"].keys()
    invariants = {row for row in rows if row.startswith("V")}
    assert (len(rows - invariants), len(invariants)) == (ROWS, INVARIANT_ROWS)
    assert len(TRUST["proved"].keys() - invariants) >= 190


def test_the_page_has_every_row_once() -> None:
    assert TRUST["proved"].keys() | TRUST["open"].keys() == PAGE
    assert (ROOT / "docs" / "trust.md").read_text("utf-8").count("\n- **") == len(PAGE)


def test_every_row_that_a_test_cites_is_on_the_page() -> None:
    cited = {
        (row, str(path.relative_to(ROOT)))
        for path in (ROOT / "tests").rglob("*.py")
        for rows in CITATION.findall(path.read_text("utf-8"))
        for row in re.findall(r"[A-Z]\d+", rows)
    }
    assert len(cited) > 60
    assert {(row, path) for row, path in cited if row not in PAGE} == set()
