"""A reorganization is written in steps: completely, by any follower, for automations that start from logs."""

import pytest

from api.chain import write
from api.chain.write import LostLeaseError, drop_above, move_cursor_back
from api.store.chain import LEASE_DURATION, claim_chain, drop_logs
from api.store.query import COMMIT, run
from tests.chain.organization import ChainOrg
from tests.chain.pages import AuthoredAutomation, Chain, later, transfer, wallet

BLOCKS = 7
REMAINING = "SELECT count(*) FILTER (WHERE NOT removed) FROM onchain_events"
ENDED = "SELECT count(*) FROM entries WHERE outcome = 'chain_reorg'"


async def followed(org: ChainOrg) -> Chain:
    """Return a chain in which every block started two entries."""
    await AuthoredAutomation.of(org)
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(BLOCKS, *(transfer(block, wallet(block), at) for block in range(1, BLOCKS + 1)))
    return chain


async def test_steps_that_are_smaller_than_a_block_drop_above_all_of_it(
    org: ChainOrg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "LOGS_PER_STEP", 2)
    chain = await followed(org)
    at = later(org, 1)
    await chain.store(BLOCKS + 1, *(transfer(BLOCKS + 1, wallet(1), at, index=index) for index in range(5)))
    await move_cursor_back(org.database, org.clock, chain.claim, (2, "0x2"))
    result = await drop_above(org.database, org.clock, chain.claim, 2)
    assert (result.logs, result.entries) == (BLOCKS - 2 + 5, 2 * (BLOCKS - 2 + 5))
    assert await org.fetch(REMAINING) == [(2,)]
    assert await org.fetch(ENDED) == [(2 * (BLOCKS - 2 + 5),)]
    assert await org.fetch("SELECT block_number, dropping_above FROM chains") == [(2, None)]


async def test_the_next_follower_continues_where_a_killed_one_stopped(org: ChainOrg) -> None:
    chain = await followed(org)
    lease = chain.claim
    await move_cursor_back(org.database, org.clock, lease, (2, "0x2"))
    now = later(org, 60)
    async with org.database.transaction() as tx:
        await run(tx, drop_logs(org.org_id, 5, 2, 1, now), COMMIT)  # the first step of the killed one
    async with org.database.transaction() as tx:
        claim, _ = await run(tx, claim_chain(5, now, now + LEASE_DURATION), COMMIT)
    assert claim is not None
    assert (claim.block_number, claim.dropping_above) == (2, 2)
    with pytest.raises(LostLeaseError):
        await drop_above(org.database, org.clock, lease, 2)
    await move_cursor_back(org.database, org.clock, claim, (4, "0x4"))
    assert await org.fetch("SELECT dropping_above FROM chains") == [(2,)]
    await drop_above(org.database, org.clock, claim, 2)
    assert await org.fetch(REMAINING) == [(2,)]
    assert await org.fetch(ENDED) == [(2 * (BLOCKS - 2),)]


async def test_entries_end_also_after_their_automation_got_another_trigger(org: ChainOrg) -> None:
    chain = await followed(org)
    await org.execute(
        """UPDATE automations SET trigger_spec = '{"type": "app_event"}', archived_at = now(), active = false"""
    )
    await move_cursor_back(org.database, org.clock, chain.claim, (BLOCKS - 1, "0x6"))
    assert (await drop_above(org.database, org.clock, chain.claim, BLOCKS - 1)).entries == 2
