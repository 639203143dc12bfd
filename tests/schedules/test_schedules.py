"""Many orders of the same work: none breaks the service. The week chooses those that `make test` tries."""

import os
import sys
from datetime import UTC, datetime

import pytest

from tests.schedules.world import World

_WEEK = datetime.now(UTC).isocalendar()
SCHEDULES = int(os.environ.get("SCHEDULES", "30"))
FIRST_SEED = int(os.environ.get("SCHEDULE_SEED", (_WEEK.year * 100 + _WEEK.week) * 1_000))
PROGRESS = 100  # schedules between two lines
SEEDS = range(FIRST_SEED, FIRST_SEED + SCHEDULES)


def test_no_schedule_breaks_the_service(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    for number, seed in enumerate(SEEDS, 1):
        result = world.run(seed)
        assert not result.violations, result.report()
        if number % PROGRESS == 0:
            with capsys.disabled():
                sys.stdout.write(f"{number:,} of {SCHEDULES:,} schedules\n")


def test_a_seed_gives_one_schedule(world: World) -> None:
    for seed in (0, 3):
        assert world.run(seed).trace == world.run(seed).trace
