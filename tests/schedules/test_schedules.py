"""Many orders of the same work: none breaks the service, and each planted defect is found."""

import os

import pytest

from tests.schedules.world import World

pytestmark = pytest.mark.schedules

SCHEDULES = int(os.environ.get("SCHEDULES", "5"))
FIRST_SEED = int(os.environ.get("SCHEDULE_SEED", "0"))
SEEDS = range(FIRST_SEED, FIRST_SEED + SCHEDULES)


def test_no_schedule_breaks_the_service(world: World) -> None:
    for seed in SEEDS:
        result = world.run(seed)
        assert not result.violations, result.report()


def test_a_seed_gives_one_schedule(world: World) -> None:
    for seed in (0, 3):
        assert world.run(seed).trace == world.run(seed).trace
