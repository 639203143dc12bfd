"""A thousand worlds of this week: the week is the seed, so every week tests other worlds."""

from datetime import UTC, datetime

import pytest

from tests.fidelity.machine import PART, parts_of, run_cases, seed_of

CASES = 1_000


@pytest.mark.parametrize("part", range(CASES // PART))
def test_all_interpreters_tell_what_the_engine_did(database_url: str, part: int) -> None:
    seed, cases = parts_of(seed_of("week", datetime.now(UTC).date()), CASES)[part]
    run_cases(database_url, seed, cases)
