"""Reading far behind the head, from nodes with limits: no log is missed or stored twice, and reading continues."""

from collections.abc import Iterator
from typing import Any

import pytest

from api.chain import follow, read, rpc
from tests.chain.organization import ChainOrg
from tests.chain.scripted import APPROVAL, CONTRACTS, TRANSFER, Refusal, ScriptedNode, scripted
from tests.chain.test_nodes import check_all_logs, publish, publish_and_follow
from tests.chain.test_nodes import follow as follow_node

pytestmark = pytest.mark.chain

BLOCKS = 150


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS)) as node:
        yield node


@pytest.fixture(autouse=True)
def _few_near_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make few blocks near the head, since each takes two requests."""
    monkeypatch.setattr(read, "NEAR_BLOCKS", 8)
    monkeypatch.setattr(read, "NEAR_S", 96)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(follow, "MAX_RETRY_S", 0.02)
    monkeypatch.setattr(follow, "STANDBY_INTERVAL_S", 0.02)


async def test_a_lagging_node_behind_the_same_address_hides_no_log(org: ChainOrg, node: ScriptedNode) -> None:
    node.behind = 2
    await publish_and_follow(org, node)
    await check_all_logs(org, node)


async def test_a_node_without_batches_is_read(org: ChainOrg, node: ScriptedNode) -> None:
    node.accepts_batches = False
    await publish_and_follow(org, node)
    await check_all_logs(org, node)
    assert node.ranges()


async def test_an_unavailable_node_gets_few_requests(org: ChainOrg, node: ScriptedNode) -> None:
    node.refuse = lambda method, _: Refusal(body=b"gone", status=503) if method == "eth_getLogs" else None
    await publish_and_follow(org, node)
    await org.until("SELECT problem IS NOT NULL FROM chains", (True,))
    await org.unfollow()
    assert len([params for method, params in node.refused if method == "eth_getLogs"]) <= follow.MAX_NODE_FAILURES


async def test_fast_blocks_are_near_by_their_time(org: ChainOrg, node: ScriptedNode) -> None:
    node.seconds = 1
    await publish_and_follow(org, node)
    await check_all_logs(org, node)
    ends = [
        int(params[0]["toBlock"], 16)
        for method, params in node.requests
        if method == "eth_getLogs"
        if "toBlock" in params[0]
    ]
    assert ends
    assert max(ends) <= BLOCKS - read.NEAR_S


async def test_blocks_fetched_before_a_rate_limit_are_kept(org: ChainOrg, node: ScriptedNode) -> None:
    remaining = 3

    def refuse_every_fourth(method: str, params: list[Any]) -> Refusal | None:
        nonlocal remaining
        if method != "eth_getBlockByNumber" or params[0] == "latest" or int(params[0], 16) > BLOCKS - read.NEAR_BLOCKS:
            return None
        remaining = 3 if remaining == 0 else remaining - 1
        return None if remaining else Refusal("too many requests", 429, 429)

    node.refuse = refuse_every_fourth
    await publish_and_follow(org, node, BLOCKS - read.NEAR_BLOCKS - 20)
    await check_all_logs(org, node, BLOCKS - read.NEAR_BLOCKS - 20)


async def test_a_log_of_a_block_that_the_node_does_not_have_is_not_stored(org: ChainOrg, node: ScriptedNode) -> None:
    lies = 3

    def fork_block_50(number: int, index: int) -> dict[str, Any]:
        nonlocal lies
        lies -= number == 50
        return ScriptedNode.log(node, number, index) | (
            {"blockHash": f"0x{'f' * 64}"} if number == 50 and lies > 0 else {}
        )

    node.log = fork_block_50  # type: ignore[method-assign]
    await publish_and_follow(org, node)
    await check_all_logs(org, node)
    assert await org.fetch("SELECT count(*) FROM onchain_events WHERE block_hash LIKE '0xffff%%'") == [(0,)]


async def test_a_log_that_is_returned_twice_is_stored_once(org: ChainOrg, node: ScriptedNode) -> None:
    logs = ScriptedNode._logs
    node._logs = lambda log_filter, head: logs(node, log_filter, head) * 2  # type: ignore[method-assign]
    await publish_and_follow(org, node)
    await check_all_logs(org, node)


@pytest.mark.parametrize("read", [0, BLOCKS - 8], ids=["far", "near"])
async def test_a_large_block_is_requested_in_parts(
    org: ChainOrg, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch, read: int
) -> None:
    node.per_block, node.padding = 8, 2_000
    monkeypatch.setattr(rpc, "MAX_RESPONSE_BYTES", 12_000)  # enough for two of the eight logs
    node.head = read + 12
    await publish(org, node, [(contract, event) for contract in CONTRACTS for event in (TRANSFER, APPROVAL)])
    await follow_node(org, node, read)
    await check_all_logs(org, node, read)
    assert node.largest > 12_000


async def test_a_large_block_that_cannot_be_divided_is_read_whole(
    org: ChainOrg, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.padding = 10_000
    monkeypatch.setattr(rpc, "MAX_RESPONSE_BYTES", 12_000)
    await publish_and_follow(org, node, BLOCKS - 8)
    await check_all_logs(org, node, BLOCKS - 8)


async def test_a_block_that_exceeds_every_limit_is_reported(
    org: ChainOrg, node: ScriptedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.padding = 200_000
    monkeypatch.setattr(rpc, "MAX_RESPONSE_BYTES", 12_000)
    monkeypatch.setattr(rpc, "MAX_UNDIVIDED_BYTES", 24_000)
    await publish_and_follow(org, node, BLOCKS - 8)
    await org.until("SELECT problem FROM chains", ("the node does not return all logs of a block",))
