"""A minute of `python -m tests.chain.torture`."""

import random
from pathlib import Path

from tests.chain.anvil import Anvil
from tests.chain.torture import torture
from tests.chain.world import World


async def test_kills_and_reorganizations_lose_and_double_nothing(world: World, anvil: Anvil, tmp_path: Path) -> None:
    summary = await torture(world, anvil, tmp_path, 1, 4, random.Random(7))
    assert (summary.missed, summary.invented, summary.unanswered, summary.doubled) == (0, 0, 0, 0)
    assert summary.transfers + summary.removed > 20
