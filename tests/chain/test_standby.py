"""Nodes without progress that still answer: another one takes over, or the problem is reported."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from api.chain import follow
from api.chain.follow import STUCK_AFTER_S, Standby
from api.store.chain import list_chains
from tests.chain.organization import ChainOrg
from tests.chain.scripted import ScriptedNode, scripted
from tests.chain.test_nodes import publish_and_follow

BLOCKS = 100


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS)) as node:
        yield node


@pytest.mark.parametrize(
    ("looks", "is_stuck"),
    [
        ([(100, 90), (100, 90)], True),
        ([(100, 90), (130, 90)], True),
        ([(100, 90), (130, 95)], True),
        ([(100, 90), (130, 125)], False),
        ([(1_000_000, 10), (1_000_030, 5_000)], False),
        ([(100, 99), (130, 129), (160, 159)], False),
        ([(100, 120), (100, 120)], False),
    ],
    ids=["stuck", "stuck-with-new-blocks", "slow", "one-behind", "catches-up", "keeps-up", "own-node-behind"],
)
def test_a_follower_without_progress_is_stuck(looks: Sequence[tuple[int, int]], is_stuck: bool) -> None:
    standby = Standby()
    results = [standby.is_stuck(head, read, number * STUCK_AFTER_S) for number, (head, read) in enumerate(looks)]
    assert results == [False] * (len(looks) - 1) + [is_stuck]


def test_a_follower_is_not_stuck_before_the_timeout() -> None:
    standby = Standby()
    assert not standby.is_stuck(100, 90, 0)
    assert not standby.is_stuck(110, 90, STUCK_AFTER_S / 2)


async def test_another_node_takes_over_from_one_without_progress(
    org: ChainOrg, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "STUCK_AFTER_S", 0.3)
    monkeypatch.setattr(follow, "STANDBY_INTERVAL_S", 0.05)
    with scripted(ScriptedNode(BLOCKS)) as other:
        await publish_and_follow(org, node, BLOCKS - 2)
        await org.until("SELECT block_number FROM chains", (BLOCKS,))
        first = org.task
        org.follow(other.url)
        other.head = BLOCKS + 5
        await org.until("SELECT block_number FROM chains", (BLOCKS + 5,))
        await org.until("SELECT block_number FROM onchain_events ORDER BY 1 DESC LIMIT 1", (BLOCKS + 5,))
        await org.unfollow()
        org.task = first


async def test_an_old_head_is_reported(org: ChainOrg, node: ScriptedNode) -> None:
    node.began -= 300
    await publish_and_follow(org, node, BLOCKS - 2)
    await org.until("SELECT problem LIKE 'no new block since %%UTC', block_number FROM chains", (True, BLOCKS))
    node.began += 300
    node.head += 1
    await org.until("SELECT problem, block_number FROM chains", (None, BLOCKS + 1))


async def test_a_chain_without_a_follower_is_reported(org: ChainOrg, node: ScriptedNode) -> None:
    async def problems() -> list[str | None]:
        async with org.database.transaction() as tx:
            return [chain.problem for chain in await list_chains(tx, org.clock.now() + timedelta(seconds=6))]

    await publish_and_follow(org, node, BLOCKS - 2)
    await org.until("SELECT problem, block_number FROM chains", (None, BLOCKS))
    await org.unfollow()
    assert await problems() == ["no process follows it now"]
    await org.execute("UPDATE chains SET lease_until = now() + interval '1 hour', block_number = NULL")
    assert await problems() == ["no block was read yet"]
