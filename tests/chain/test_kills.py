"""A minute of what `python -m tests.chain.torture` does for longer."""

import random
from pathlib import Path

from tests.chain.anvil import Anvil
from tests.chain.torture import torture
from tests.chain.world import World


async def test_kills_and_reorganizations_lose_and_double_nothing(world: World, anvil: Anvil, tmp_path: Path) -> None:
    found = await torture(world, anvil, tmp_path, 1, 4, random.Random(7))
    assert (found.missed, found.invented, found.unanswered, found.doubled) == (0, 0, 0, 0)
    assert found.transfers + found.removed > 20
