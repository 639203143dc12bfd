"""Random questions, of which `python -m tests.parts` asks more."""

from pathlib import Path

from tests.ingest.conftest import Org
from tests.parts.questions import COUNTED_REPORTS, differences, opened_world


async def test_parts_answer_like_the_sql(acme: Org, tmp_path: Path) -> None:
    world = await opened_world(acme, tmp_path, seed=20261127)
    assert [difference async for difference in differences(world, 60)] == []
    assert set(world.answered) == COUNTED_REPORTS
    assert world.left == 0
