"""Every row of the catalogue of faults and attacks is proved by something that exists, or said to be open (`tests/trust.toml`)."""

import re
import tomllib
from pathlib import Path

import pytest

from bench.__main__ import PARTS
from tests.torture.invariants import INVARIANTS

ROOT = Path(__file__).parents[1]
TRUST = tomllib.loads((ROOT / "tests" / "trust.toml").read_text())
ROWS, INVARIANT_ROWS = 206, 20


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
def test_what_proves_a_row_exists(row: str) -> None:
    assert TRUST["proved"][row]
    assert [proof for proof in TRUST["proved"][row] if not exists(proof)] == []


def test_every_row_is_proved_or_said_to_be_open() -> None:
    assert TRUST["proved"].keys().isdisjoint(TRUST["open"])
    rows = TRUST["proved"].keys() | TRUST["open"].keys()
    invariants = {row for row in rows if row.startswith("V")}
    assert (len(rows - invariants), len(invariants)) == (ROWS, INVARIANT_ROWS)
    assert len(TRUST["proved"].keys() - invariants) >= 190
