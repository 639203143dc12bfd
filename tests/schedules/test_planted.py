"""Schedules find planted defects, and print how to repeat the schedule that found one."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest

from tests.schedules import plants
from tests.schedules.world import World

MAX_SCHEDULES = 1_000
pytestmark = pytest.mark.schedules
Plant = Callable[[psycopg.Connection[Any]], AbstractContextManager[None]]


@pytest.mark.parametrize("seed", [0, 10_000, 20_000])
@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (plants.lost_lease, "passed node|completed under claim"),
        (plants.lost_wake_up, "waited although b1 had come"),
        (plants.double_entry, r"stored \d+ times"),
    ],
)
def test_a_planted_defect_is_found(world: World, plant: Plant, says: str, seed: int) -> None:
    with plant(world.control):
        for number in range(seed, seed + MAX_SCHEDULES):
            result = world.run(number)
            if result.violations:
                break
    assert any(re.search(says, violation) for violation in result.violations), result.report()
    assert f"SCHEDULE_SEED={result.seed}" in result.report()
