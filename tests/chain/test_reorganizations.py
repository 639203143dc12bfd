"""Reorganizations: dropped logs start nothing more, sent messages stay, and no log is missed or doubled."""

from datetime import timedelta

from tests.chain.anvil import OTHER, Anvil, Token
from tests.chain.conftest import ANN, BOB
from tests.chain.organization import ChainOrg

HOUR = timedelta(hours=1)
CANCELLED = [("cancelled", "chain_reorg")]


async def test_a_dropped_log_is_marked_and_its_entry_ends(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token, delay=3600)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    token.mint(ANN, 5)
    await org.read_up_to(anvil)
    assert await org.messages() == []
    anvil.ask("evm_revert", before)
    token.mint(BOB, 6)
    await org.read_up_to(anvil)
    assert await org.logs() == [(ANN, "5", True), (BOB, "6", False)]
    assert await org.entries() == [*CANCELLED, ("pending", None)]
    moves = await org.fetch("SELECT from_state, to_state, reason FROM entry_transitions ORDER BY seq")
    assert moves[-1] == ("waiting", "cancelled", "chain_reorg")


async def test_logs_from_before_the_first_watch_stay_out_after_a_reorganization(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token)
    token.mint(ANN, 5)
    anvil.mine(3)
    before = anvil.ask("evm_snapshot")
    anvil.mine(2)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    anvil.ask("evm_revert", before)
    token.mint(BOB, 6)
    anvil.mine(3)
    await org.read_up_to(anvil)
    token.mint(BOB, 7)
    await org.read_up_to(anvil)
    assert (ANN, "5", False) not in await org.logs()
    assert await org.messages() in ([(BOB, "7")], [(BOB, "6"), (BOB, "7")])


async def test_a_sent_message_stays_sent_after_a_reorganization(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    token.mint(ANN, 5)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "5")]
    anvil.ask("evm_revert", before)
    anvil.mine(2)
    await org.read_up_to(anvil)
    assert await org.logs() == [(ANN, "5", True)]
    assert await org.entries("state") == [("completed",)]
    assert await org.messages() == [(ANN, "5")]


async def test_an_entry_continues_when_its_log_returns_in_another_block(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token, delay=3600)
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    sent = token.mint(ANN, 5)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "5")]
    anvil.ask("evm_revert", before)
    anvil.mine()
    assert token.mint(ANN, 5) == sent
    await org.read_up_to(anvil)
    assert await org.logs("tx_hash, block_number, removed") == [(sent, anvil.head[0], False)]
    assert await org.fetch("SELECT state FROM entries ORDER BY state") == [("completed",), ("pending",)]
    assert await org.messages() == [(ANN, "5")]
    assert await org.fetch("SELECT state, node_id FROM entries WHERE state = 'waiting'") == [("waiting", "d")]
    org.clock.ahead += HOUR
    assert await org.messages() == [(ANN, "5"), (ANN, "5")]
    assert await org.fetch("SELECT count(*) FROM entry_steps WHERE kind = 'onchain_event'") == [(2,)]


async def test_a_reorganized_chain_of_equal_length_is_read_again(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    token.mint(ANN, 2)
    await org.read_up_to(anvil)
    anvil.reorg(2, [[token.minting(BOB, 3), 0], [token.minting(BOB, 4), 1]])
    await org.read_up_to(anvil)
    assert await org.logs() == [(ANN, "1", True), (BOB, "3", False), (ANN, "2", True), (BOB, "4", False)]
    assert await org.messages() == [(BOB, "3"), (BOB, "4")]


async def test_logs_dropped_before_their_confirmations_start_nothing(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token, confirmations=3)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    anvil.mine()
    await org.read_up_to(anvil)
    anvil.reorg(2, [[token.minting(BOB, 3), 0]])
    await org.read_up_to(anvil)
    anvil.mine(3)
    await org.read_up_to(anvil)
    assert await org.messages() == [(BOB, "3")]


async def test_a_fresh_chain_with_the_same_id_is_read_from_its_beginning(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    anvil.mine(5)
    await org.read_up_to(anvil)
    anvil.stop()
    anvil.start(fresh=True)
    again = Token(anvil)
    assert again.address == token.address
    again.mint(BOB, 2)
    await org.read_up_to(anvil)
    assert sorted(await org.logs()) == [(ANN, "1", True), (BOB, "2", False)]
    assert await org.messages() == [(BOB, "2")]


async def test_a_lagging_node_drops_nothing(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    token.mint(ANN, 1)
    await org.read_up_to(anvil)
    anvil.ask("evm_revert", before)
    await org.until("SELECT problem IS NOT NULL FROM chains", (True,))
    assert await org.logs() == [(ANN, "1", False)]
    anvil.mine(2)
    await org.read_up_to(anvil)
    assert await org.logs() == [(ANN, "1", True)]
    await org.until("SELECT problem FROM chains", (None,))


async def test_a_shorter_fresh_chain_is_noticed_by_its_first_block(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    anvil.mine(50)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    anvil.stop()
    anvil.start(fresh=True)
    Token(anvil).mint(BOB, 2)
    await org.read_up_to(anvil)
    assert await org.messages() == [(BOB, "2")]


async def test_a_transaction_that_moves_behind_another_keeps_its_logs(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token, delay=3600)
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    before = anvil.ask("evm_snapshot")
    three = token.scattering(0xA0, 3) | {"gas": hex(1_000_000), "gasPrice": hex(10**10)}
    token.together(three)
    await org.read_up_to(anvil)
    sent = [(f"0x{0xA0 + number:040x}", str(number)) for number in range(3)]
    assert await org.messages() == sent
    anvil.ask("evm_revert", before)
    token.together(token.minting(BOB, 6) | {"from": OTHER, "gasPrice": hex(10**11)}, three)
    await org.read_up_to(anvil)
    places = "args ->> 'value', log_index, removed"
    assert await org.logs(places) == [("6", 0, False), ("0", 1, False), ("1", 2, False), ("2", 3, False)]
    assert await org.messages() == [*sent, (BOB, "6")]
    org.clock.ahead += HOUR
    assert await org.messages() == sorted([*sent, *sent, (BOB, "6"), (BOB, "6")])
    steps = "SELECT count(*), count(DISTINCT (automation_id, event_id)) FROM entries"
    assert await org.fetch(steps) == [(8, 8)]
