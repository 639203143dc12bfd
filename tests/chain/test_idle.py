"""A chain without watches costs its node nothing; a new watch is read from its beginning."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest

from api.chain import follow as chain_follow
from api.chain.read import NEAR_BLOCKS
from tests.chain.organization import ChainOrg
from tests.chain.scripted import CONTRACT, TRANSFER, ScriptedNode, scripted
from workbench.language.codec import encode

BLOCKS = 500


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS, seconds=1)) as node:
        yield node


@pytest.fixture(autouse=True)
def _short_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_follow, "POLL_INTERVAL_S", 0.02)


async def follow(org: ChainOrg, node: ScriptedNode, block: int) -> None:
    """Publish an automation that is live since a block."""
    spec = {"type": "onchain_event", "chainId": node.chain_id, "contract": CONTRACT, "signature": TRANSFER}
    values = (org.org_id, encode(spec | {"walletArg": "to"}).decode(), int(node.began + block))
    async with org.database.transaction() as tx:
        await tx.execute(
            "INSERT INTO automations SELECT"
            " %s, gen_random_uuid(), 'a', %s::jsonb, '{}', true, 1, 1, NULL, now(), now(), 1, NULL, to_timestamp(%s)",
            values,
        )
        await tx.execute(
            "INSERT INTO automation_versions"
            " SELECT org_id, id, 1, trigger_spec, '{}', now() FROM automations ON CONFLICT DO NOTHING"
        )
        await tx.execute(
            "INSERT INTO automation_epochs VALUES (%s, 1)"
            " ON CONFLICT (org_id) DO UPDATE SET epoch = automation_epochs.epoch + 1",
            (org.org_id,),
        )


async def test_a_chain_without_watches_is_not_read(org: ChainOrg, node: ScriptedNode) -> None:
    org.clock.ahead = timedelta(seconds=-10)
    org.follow(node.url)
    await org.until("SELECT count(*) FROM chains", (1,))
    await count_requests(node)
    assert await count_requests(node) == 0
    await follow(org, node, BLOCKS - 3)
    await org.until("SELECT min(block_number), max(block_number) FROM onchain_events", (BLOCKS - 3, BLOCKS))
    await org.execute("UPDATE automations SET archived_at = now(), active = false")
    await org.execute("UPDATE automation_epochs SET epoch = epoch + 1")
    await count_requests(node)
    assert await count_requests(node) == 0


async def count_requests(node: ScriptedNode) -> int:
    """Return the number of requests within 0.3 s."""
    before = len(node.requests)
    await asyncio.sleep(0.3)
    return len(node.requests) - before


async def test_blocks_before_the_first_watch_are_skipped(org: ChainOrg, node: ScriptedNode) -> None:
    await org.execute("INSERT INTO chains VALUES (%s, 1, '2000-01-01', 0)", node.chain_id)
    await org.execute("INSERT INTO chain_blocks VALUES (%s, 0, %s)", node.chain_id, f"0x{0:064x}")
    await follow(org, node, BLOCKS - NEAR_BLOCKS - 20)
    org.follow(node.url)
    await org.until("SELECT block_number FROM chains", (BLOCKS,))
    read = await org.fetch("SELECT count(*), min(block_number) FROM onchain_events")
    assert read == [(NEAR_BLOCKS + 21, BLOCKS - NEAR_BLOCKS - 20)]
    assert sum(method == "eth_getBlockByNumber" for method, _ in node.requests) < 200


async def test_a_watch_from_before_the_process_started_begins_at_the_head(org: ChainOrg, node: ScriptedNode) -> None:
    await follow(org, node, 10)
    org.follow(node.url)
    await org.until("SELECT block_number FROM chains", (BLOCKS,))
    node.head += 2
    await org.until("SELECT count(*), min(block_number) FROM onchain_events", (2, BLOCKS + 1))
