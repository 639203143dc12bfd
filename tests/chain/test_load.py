"""Heavy load: thousands of logs in one block, several followers, and a reorganization during a catch-up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chain.anvil import Anvil, Token, running
from tests.chain.conftest import ANN, BOB
from tests.chain.organization import ChainOrg


@pytest.fixture
def anvil(tmp_path: Path) -> Iterator[Anvil]:
    with running(tmp_path, 31337, "--gas-limit", "1000000000") as node:
        yield node


async def test_ten_thousand_logs_in_one_block_and_two_followers(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "7"}])
    org.follow(anvil.url)
    first = org.task
    await org.read_up_to(anvil)
    org.follow(anvil.url)
    token.together(*(token.scattering(1_000_000 * (number + 1), 1_000) for number in range(10)))
    await org.read_up_to(anvil)
    assert await org.fetch("SELECT count(*), count(DISTINCT block_number) FROM onchain_events") == [(10_000, 1)]
    assert await org.fetch("SELECT count(*) FROM entries") == [(10,)]
    await org.unfollow()
    org.task = first


async def test_a_reorganization_while_the_follower_catches_up(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    await org.unfollow()
    before = anvil.ask("evm_snapshot")
    for _ in range(3):
        token.scatter(1_000_000, 1_000)
        anvil.mine(100, seconds=12)
    org.follow(anvil.url)
    await org.until("SELECT count(*) > 0 FROM onchain_events", (True,))
    anvil.ask("evm_revert", before)
    token.mint(BOB, 6)
    anvil.mine(400)
    await org.read_up_to(anvil)
    assert await org.fetch("SELECT args ->> 'to' FROM onchain_events WHERE NOT removed") == [(BOB,)]
    assert await org.fetch("SELECT count(*) FROM entries WHERE state NOT IN ('cancelled', 'completed')") == [(1,)]


async def test_parameters_may_have_the_names_of_columns_and_built_ins(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    named = "Transfer(address indexed org_id, address indexed walletAddress, uint256 contract)"
    own = {"path": "contract", "operator": "eq", "value": "5"}
    await org.on_chain(token, signature=named, walletArg="walletAddress", filters=[own])
    await org.on_chain(token, filters=[own | {"value": token.address}])
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 5)
    token.mint(BOB, 6)
    await org.read_up_to(anvil)
    assert sorted(await org.messages()) == [(ANN, "5"), (BOB, "6")]
    assert sorted(await org.entries("state, last_error")) == [
        ("completed", None),
        ("completed", None),
        ("dead", "template_error: the value 'value' is missing"),
    ]
