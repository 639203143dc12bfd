"""One short run for all tests here: every kind of kill once, in about half a minute."""

from collections.abc import AsyncIterator

import msgspec
import pytest

from tests.torture.installation import Installation, installed
from tests.torture.run import Run, Wish, torture


class Tortured(msgspec.Struct):
    """A finished run, and its installation, which still runs."""

    run: Run
    installation: Installation


@pytest.fixture(scope="session")
async def tortured(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Tortured]:
    async with installed(tmp_path_factory.mktemp("torture"), apis=2, engines=2) as installation:
        run = await torture(installation, Wish(seed=3, kills=7, seconds=10, longest_freeze=2))
        yield Tortured(run, installation)
