"""From a log on a real node to a message, and what is stored on the way."""

from tests.chain.anvil import Anvil, Token
from tests.chain.conftest import ANN, BOB, World


async def test_a_log_becomes_a_message_to_the_wallet_in_it(world: World, node: Anvil, token: Token) -> None:
    await world.on_chain(token)
    world.follow(node.url)
    await world.read_up_to(node)
    sent = token.mint(ANN, 10**30)
    await world.read_up_to(node)
    assert await world.messages() == [(ANN, str(10**30))]
    assert await world.fetch("SELECT body FROM messages") == [(f"Transfer of {token.address} in {sent}",)]
    assert await world.logs("event, signature, contract, tx_hash, contact_id IS NOT NULL") == [
        ("Transfer", "Transfer(address,address,uint256)", token.address, sent, True)
    ]
