"""A minute of `python -m tests.chain.torture`."""

import random
from pathlib import Path

from tests.chain.anvil import Anvil
from tests.chain.organization import ChainOrg
from tests.chain.torture import torture


async def test_kills_and_reorganizations_lose_and_double_nothing(org: ChainOrg, anvil: Anvil, tmp_path: Path) -> None:
    summary = await torture(org, anvil, tmp_path, 1, 4, random.Random(7))
    assert (summary.missed, summary.invented, summary.unanswered, summary.doubled) == (0, 0, 0, 0)
    assert summary.transfers + summary.removed > 20
