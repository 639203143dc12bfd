"""One short run for all tests of this folder: every kind of kill at least once, in about a minute."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.torture.installation import Installation, installed
from tests.torture.nemesis import RunSpec
from tests.torture.run import Run, torture


class FinishedRun(msgspec.Struct):
    """A finished run, and its installation, which still runs."""

    run: Run
    installation: Installation


@pytest.fixture(scope="session")
async def finished_run(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[FinishedRun]:
    async with installed(tmp_path_factory.mktemp("torture"), seed=3, apis=2, engines=2) as installation:
        spec = RunSpec(seed=3, kills=6, engine_kills=4, seconds=8, longest_freeze=2, slack=60)
        run = await torture(installation, spec)
        yield FinishedRun(run, installation)
