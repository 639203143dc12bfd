"""One world for all schedules of a module."""

from collections.abc import Iterator

import pytest

from api.embedded import Server
from tests.conftest import clone
from tests.engine.conftest import bench
from tests.schedules.scheduler import ScheduledIds, ScheduledLoop
from tests.schedules.world import World

__all__ = ["bench", "world"]


@pytest.fixture(scope="module")
def world(postgres: Server, template: str) -> Iterator[World]:
    loop = ScheduledLoop()
    with pytest.MonkeyPatch.context() as patch, clone(postgres, template) as dsn:
        # Ids and durations are drawn and measured in the schedule.
        patch.setattr("api.clock._RANDOM_BITS", ScheduledIds())
        for module in ("api.ingest.pipeline", "api.engine.progress"):
            patch.setattr(f"{module}.monotonic_ns", lambda: int(loop.now * 1e9))
        world = World(loop, dsn)
        loop.run_until_complete(world.start())
        yield world
        loop.run_until_complete(world.stop())
        loop.close()
