"""A log that the database refuses stops nobody: it is dead, with the reason, and everything else goes on."""

import logging
from collections.abc import Iterator

import pytest

from api.access import orgs
from api.chain import status
from tests.chain.scripted import ScriptedNode, scripted
from tests.chain.test_nodes import following
from tests.chain.world import World

BLOCKS = 100


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS)) as node:
        yield node


async def test_only_the_log_that_is_refused_is_left_out(
    world: World, node: ScriptedNode, caplog: pytest.LogCaptureFixture
) -> None:
    other = World(world.database, await orgs.create(world.database.dsn, "other"), world.ways)
    await world.execute(
        "ALTER TABLE onchain_events ADD CONSTRAINT unlucky"
        " CHECK (args ->> 'value' NOT IN ('13', '90') OR args ->> 'value' = '13' AND org_id > 1)"
    )
    with caplog.at_level(logging.INFO):
        await following(other, node)
        await other.unfollow()
        await world.execute("DELETE FROM chains")
        await world.execute("DELETE FROM chain_blocks")
        await following(world, node)
        await world.until("SELECT block_number FROM chains", (BLOCKS,))
    kept = await world.fetch("SELECT org_id, count(*) FROM onchain_events GROUP BY 1 ORDER BY 1")
    assert kept == [(world.org_id, BLOCKS - 2), (other.org_id, BLOCKS - 1)]
    assert await world.fetch("SELECT org_id, block_number, reason FROM chain_dead_logs ORDER BY 1, 2") == [
        (world.org_id, 13, "CheckViolation onchain_events unlucky"),
        (world.org_id, 90, "CheckViolation onchain_events unlucky"),
        (other.org_id, 90, "CheckViolation onchain_events unlucky"),
    ]
    dead = await status.dead(world.database.dsn)
    assert sorted((each.organization, each.log_index, each.block_number) for each in dead) == [
        ("chain", 0, 13),
        ("chain", 0, 90),
        ("other", 0, 90),
    ]
    assert [record.message for record in caplog.records].count("log_dead") == 3
    await world.until("SELECT trouble FROM chains", (None,))


async def test_a_page_that_is_refused_for_another_reason_is_waited_for(world: World, node: ScriptedNode) -> None:
    await world.execute("ALTER TABLE chain_blocks ADD CONSTRAINT unlucky CHECK (number <> 100)")
    await following(world, node, BLOCKS - 5)
    await world.until(
        "SELECT trouble FROM chains", ("the database refuses what was read: CheckViolation chain_blocks unlucky",)
    )
    assert await world.fetch("SELECT count(*) FROM chain_dead_logs") == [(0,)]
    assert await world.fetch("SELECT count(*) FROM onchain_events") == [(0,)]
