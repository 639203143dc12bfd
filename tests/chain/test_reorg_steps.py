"""A reorganization is dropped in steps: completely, by any follower, for automations that start from logs."""

import pytest

from api.chain import reorg
from api.chain.reorg import drop_above, move_cursor_back
from api.chain.store import LostError
from api.store.chain import LEASE_DURATION, claim_chain
from api.store.query import COMMIT, run
from tests.chain.pages import Authored, Chain, later, transfer, wallet
from tests.chain.world import World

BLOCKS = 7
REMAINING = "SELECT count(*) FILTER (WHERE NOT removed) FROM onchain_events"
ENDED = "SELECT count(*) FROM entries WHERE outcome = 'chain_reorg'"


async def followed(world: World) -> Chain:
    """Return a chain in which every block started two entries."""
    await Authored.of(world)
    await Authored.of(world)
    chain = await Chain.of(world)
    at = later(world, 1)
    await chain.store(BLOCKS, *(transfer(block, wallet(block), at) for block in range(1, BLOCKS + 1)))
    return chain


async def test_steps_that_are_smaller_than_a_block_drop_above_all_of_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorg, "LOGS_PER_STEP", 2)
    chain = await followed(world)
    at = later(world, 1)
    await chain.store(BLOCKS + 1, *(transfer(BLOCKS + 1, wallet(1), at, index=index) for index in range(5)))
    await move_cursor_back(world.database, world.clock, chain.claim.lease, (2, "0x2"))
    result = await drop_above(world.database, world.clock, chain.claim.lease, 2)
    assert (result.logs, result.entries) == (BLOCKS - 2 + 5, 2 * (BLOCKS - 2 + 5))
    assert await world.fetch(REMAINING) == [(2,)]
    assert await world.fetch(ENDED) == [(2 * (BLOCKS - 2 + 5),)]
    assert await world.fetch("SELECT block_number, dropping_above FROM chains") == [(2, None)]


async def test_the_next_follower_continues_where_a_killed_one_stopped(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reorg, "LOGS_PER_STEP", 1)
    chain = await followed(world)
    lease = chain.claim.lease
    await move_cursor_back(world.database, world.clock, lease, (2, "0x2"))
    async for _ in reorg.drop_steps(world.database, world.clock, lease, world.org_id, 2):
        break
    now = later(world, 60)
    async with world.database.transaction() as tx:
        claim, _ = await run(tx, claim_chain(5, now, now + LEASE_DURATION), COMMIT)
    assert claim is not None
    assert (claim.block_number, claim.dropping_above) == (2, 2)
    with pytest.raises(LostError):
        await drop_above(world.database, world.clock, lease, 2)
    await move_cursor_back(world.database, world.clock, claim.lease, (4, "0x4"))
    assert await world.fetch("SELECT dropping_above FROM chains") == [(2,)]
    await drop_above(world.database, world.clock, claim.lease, 2)
    assert await world.fetch(REMAINING) == [(2,)]
    assert await world.fetch(ENDED) == [(2 * (BLOCKS - 2),)]


async def test_entries_end_also_after_their_automation_got_another_trigger(world: World) -> None:
    chain = await followed(world)
    await world.execute(
        """UPDATE automations SET trigger_spec = '{"type": "app_event"}', archived_at = now(), active = false"""
    )
    await move_cursor_back(world.database, world.clock, chain.claim.lease, (BLOCKS - 1, "0x6"))
    assert (await drop_above(world.database, world.clock, chain.claim.lease, BLOCKS - 1)).entries == 2
