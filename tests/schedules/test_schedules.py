"""Many orders of the same work: none breaks the service. The week chooses those that `make test` tries."""

import os
from datetime import UTC, datetime

from tests.schedules.world import World

_WEEK = datetime.now(UTC).isocalendar()
SCHEDULES = int(os.environ.get("SCHEDULES", "30"))
FIRST_SEED = int(os.environ.get("SCHEDULE_SEED", (_WEEK.year * 100 + _WEEK.week) * 1_000))
SEEDS = range(FIRST_SEED, FIRST_SEED + SCHEDULES)


def test_no_schedule_breaks_the_service(world: World) -> None:
    for seed in SEEDS:
        result = world.run(seed)
        assert not result.violations, result.report()


def test_a_seed_gives_one_schedule(world: World) -> None:
    for seed in (0, 3):
        assert world.run(seed).trace == world.run(seed).trace
