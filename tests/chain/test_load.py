"""Heavy load: thousands of logs in one block, several followers, and a reorganization during a catch-up."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chain.anvil import Anvil, Token, running
from tests.chain.conftest import ANN, BOB
from tests.chain.world import World


@pytest.fixture
def anvil(tmp_path: Path) -> Iterator[Anvil]:
    with running(tmp_path, 31337, "--gas-limit", "1000000000") as node:
        yield node


async def test_ten_thousand_logs_in_one_block_and_two_followers(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "7"}])
    world.follow(anvil.url)
    first = world.task
    await world.read_up_to(anvil)
    world.follow(anvil.url)
    token.together(*(token.scattering(1_000_000 * (number + 1), 1_000) for number in range(10)))
    await world.read_up_to(anvil)
    assert await world.fetch("SELECT count(*), count(DISTINCT block_number) FROM onchain_events") == [(10_000, 1)]
    assert await world.fetch("SELECT count(*) FROM entries") == [(10,)]
    await world.unfollow()
    world.task = first


async def test_a_reorganization_while_the_follower_catches_up(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    await world.unfollow()
    before = anvil.ask("evm_snapshot")
    for _ in range(3):
        token.scatter(1_000_000, 1_000)
        anvil.mine(100, seconds=12)
    world.follow(anvil.url)
    await world.until("SELECT count(*) > 0 FROM onchain_events", (True,))
    anvil.ask("evm_revert", before)
    token.mint(BOB, 6)
    anvil.mine(400)
    await world.read_up_to(anvil)
    assert await world.fetch("SELECT args ->> 'to' FROM onchain_events WHERE NOT removed") == [(BOB,)]
    assert await world.fetch("SELECT count(*) FROM entries WHERE state NOT IN ('cancelled', 'completed')") == [(1,)]


async def test_parameters_may_have_the_names_of_columns_and_built_ins(world: World, anvil: Anvil, token: Token) -> None:
    named = "Transfer(address indexed org_id, address indexed walletAddress, uint256 contract)"
    own = {"path": "contract", "operator": "eq", "value": "5"}
    await world.on_chain(token, signature=named, walletArg="walletAddress", filters=[own])
    await world.on_chain(token, filters=[own | {"value": token.address}])
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 5)
    token.mint(BOB, 6)
    await world.read_up_to(anvil)
    assert sorted(await world.messages()) == [(ANN, "5"), (BOB, "6")]
    assert sorted(await world.entries("state, last_error")) == [
        ("completed", None),
        ("completed", None),
        ("dead", "template_error: the value 'value' is missing"),
    ]
