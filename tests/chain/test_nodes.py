"""Nodes as providers run them, with limits, outages and wrong answers: no log is missed or stored twice."""

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from api.chain import follow as chain_follow
from api.chain.watch import read_watches
from api.chain.write import BlockPage, LostLeaseError, PageWriter
from api.store.chain import LEASE_DURATION, claim_chain
from api.store.query import COMMIT, run
from tests.chain.organization import ChainOrg
from tests.chain.scripted import CONTRACT, TRANSFER, Refusal, ScriptedNode, scripted

BLOCKS = 400


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS)) as node:
        yield node


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain_follow, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(chain_follow, "STANDBY_INTERVAL_S", 0.05)


async def publish(
    org: ChainOrg, node: ScriptedNode, events: Iterable[tuple[str, str]] = ((CONTRACT, TRANSFER),)
) -> None:
    """Publish an automation for each (contract, signature)."""
    for contract, signature in events:
        spec = {"type": "onchain_event", "chainId": node.chain_id, "contract": contract, "signature": signature}
        trigger = {"walletArg": "to" if signature == TRANSFER else "owner", "createContacts": False}
        await org.automation([{"id": "t", "type": "onchain_event"}], [], 1, spec | trigger)


async def publish_and_follow(org: ChainOrg, node: ScriptedNode, read: int = 0) -> None:
    """Follow all transfers of a node; the blocks up to `read` count as read."""
    await publish(org, node)
    await follow(org, node, read)


async def follow(org: ChainOrg, node: ScriptedNode, read: int = 0) -> None:
    """Follow a node; the blocks up to `read` count as read."""
    await org.execute("INSERT INTO chains VALUES (%s, 1, '2000-01-01', %s)", node.chain_id, read)
    await org.execute("INSERT INTO chain_blocks VALUES (%s, %s, %s)", node.chain_id, read, f"0x{read:064x}")
    org.follow(node.url)


async def check_all_logs(org: ChainOrg, node: ScriptedNode, read: int = 0) -> None:
    await org.until("SELECT block_number FROM chains", (node.head,))
    numbers = await org.fetch("SELECT block_number FROM onchain_events ORDER BY block_number")
    assert numbers == [(number,) for number in range(read + 1, node.head + 1) for _ in range(node.per_block)]


@pytest.mark.chain
@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        (-32005, "query returned more than 10000 results. Try with this block range [0x1, 0x64].", 200),
        (-32602, "Log response size exceeded. You can make eth_getLogs requests with up to a 2K block range", 400),
        (-32614, "eth_getLogs is limited to a 10,000 range", 413),
        (-32000, "block range is too wide", 200),
        (
            -32701,
            "Please specify an address in your request or, to remove restrictions, order a dedicated full node",
            403,
        ),
        (-32000, "query timeout exceeded", 200),
    ],
)
async def test_ranges_adapt_to_the_limit_of_the_node(
    org: ChainOrg, node: ScriptedNode, code: int, message: str, status: int
) -> None:
    def refuse_wide_ranges(method: str, params: list[Any]) -> Refusal | None:
        if method == "eth_getLogs" and "fromBlock" in params[0]:
            wide = int(params[0]["toBlock"], 16) - int(params[0]["fromBlock"], 16) + 1 > 50
            return Refusal(message, code, status) if wide else None
        return None

    node.refuse = refuse_wide_ranges
    await publish_and_follow(org, node)
    await check_all_logs(org, node)
    assert max(node.ranges()) in range(40, 51)


@pytest.mark.chain
@pytest.mark.parametrize(
    "refusal",
    [
        Refusal("daily request count exceeded, request rate limited", -32005),
        Refusal("too many requests", 429, 429),
        Refusal(body=b"slow down", status=429, headers={"Retry-After": "0"}),
        Refusal("Your app has exceeded its compute units per second capacity.", 429, 429),
        Refusal(body=b"<html>Bad Gateway</html>", status=502),
        Refusal(body=b"", status=200),
        Refusal(body=b'{"jsonrpc": "2.0", "id": 1, "result": {"not": "this"}}'),
        Refusal(body=b'{"jsonrpc": "2.0", "id": 1, "result": null}'),
        Refusal("header not found", -32000),
        Refusal(body=b'{"id": 1, "result": ' + b"[" * 100_000),
        Refusal(body=b'{"id": 1, "result": {"number": "0x1", "hash": "0x2", "parentHash": "0x3", "timestamp": "0x4"}}'),
        Refusal(body=b'{"id": "' + b"1" * 10_000 + b'", "result": null}'),
    ],
    ids=lambda refusal: (refusal.message or str(refusal.body))[:20],
)
async def test_a_failed_request_is_repeated(
    org: ChainOrg, node: ScriptedNode, refusal: Refusal, caplog: pytest.LogCaptureFixture
) -> None:
    requests = 0

    def refuse_sometimes(method: str, params: list[Any]) -> Refusal | None:
        nonlocal requests
        requests += 1
        return refusal if requests % 7 == 2 else None

    node.refuse = refuse_sometimes
    with caplog.at_level(logging.INFO):
        await publish_and_follow(org, node, BLOCKS - 8)
        await check_all_logs(org, node, BLOCKS - 8)
    output = "".join(str(vars(record)) for record in caplog.records if record.name.startswith("workbench"))
    assert "secret-of-the-operator" not in output


async def test_a_node_that_switches_to_another_chain_changes_nothing(org: ChainOrg, node: ScriptedNode) -> None:
    await publish_and_follow(org, node, BLOCKS - 5)
    await check_all_logs(org, node, BLOCKS - 5)
    other = ScriptedNode(BLOCKS + 10, chain_id=6)
    node.answer = lambda *request: _with_other_hashes(other.answer(*request))  # type: ignore[method-assign]
    await org.until("SELECT count(*) FROM chains WHERE chain_id = 6", (1,))
    assert await org.fetch("SELECT count(*) FROM onchain_events WHERE removed OR chain_id = 6") == [(0,)]
    assert await org.fetch("SELECT block_number FROM chains WHERE chain_id = 5") == [(BLOCKS,)]


def _with_other_hashes(value: Any) -> Any:
    """Return a block with the hashes of another chain."""
    if isinstance(value, dict):
        return value | {name: "0xff" + value[name][4:] for name in ("hash", "parentHash")}
    return value


async def test_a_suspended_follower_writes_nothing(org: ChainOrg, node: ScriptedNode) -> None:
    now = org.clock.now()
    async with org.database.transaction() as tx:
        claim, _ = await run(tx, claim_chain(5, now, now + LEASE_DURATION), COMMIT)
    assert claim is not None
    async with org.database.transaction() as tx:
        second_claim, later_claim, _ = await run(
            tx,
            claim_chain(5, now, now + LEASE_DURATION),
            claim_chain(5, now + LEASE_DURATION, now + 2 * LEASE_DURATION),
            COMMIT,
        )
    assert second_claim is None
    assert later_claim is not None
    page = BlockPage(0, 1, 1, [], [(1, "0x1")])
    async with org.database.transaction() as tx:
        watches = await read_watches(tx, 5)
        with pytest.raises(LostLeaseError):
            await PageWriter(org.keyring).write(tx, claim, now + LEASE_DURATION, watches, page, now)
    assert await org.fetch("SELECT block_number, token FROM chains") == [(None, later_claim.token)]


@pytest.mark.chain
async def test_a_second_node_takes_over_when_the_first_fails(org: ChainOrg, node: ScriptedNode) -> None:
    with scripted(ScriptedNode(BLOCKS)) as other:
        await publish_and_follow(org, node, BLOCKS - 5)
        await check_all_logs(org, node, BLOCKS - 5)
        first = org.task
        org.follow(other.url)
        node.refuse = lambda _method, _params: Refusal(body=b"gone", status=503)
        other.head = node.head + 3
        await check_all_logs(org, other, BLOCKS - 5)
        await org.unfollow()
        org.task = first
    assert await org.fetch("SELECT token > 2 FROM chains") == [(True,)]
