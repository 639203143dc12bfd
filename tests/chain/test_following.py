"""From a log on a real node to a message, and what is stored on the way."""

from api.language.codec import decode
from api.language.keccak import topic
from tests.chain.anvil import OWNER, Anvil, Token
from tests.chain.conftest import ANN, BOB
from tests.chain.world import World


async def test_a_log_becomes_a_message_to_the_wallet_in_it(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    sent = token.mint(ANN, 10**30)
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, str(10**30))]
    assert await world.fetch("SELECT body FROM messages") == [(f"Transfer of {token.address} in {sent}",)]
    assert await world.logs("event, signature, contract, tx_hash, contact_id IS NOT NULL") == [
        ("Transfer", "Transfer(address,address,uint256)", token.address, sent, True)
    ]


async def test_what_was_before_the_first_look_is_history(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    token.mint(ANN, 1)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 2)
    await world.read_up_to(anvil)
    assert await world.logs() == [(ANN, "2", False)]


async def test_an_automation_that_is_published_later_takes_the_next_block(
    world: World, anvil: Anvil, token: Token
) -> None:
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    await world.read_up_to(anvil)
    await world.on_chain(token)
    token.mint(ANN, 2)
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, "2")]


async def test_two_automations_about_both_sides_of_a_transfer(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    await world.on_chain(token, walletArg="from", filters=[{"path": "to", "operator": "eq", "value": BOB}])
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(OWNER, 100)
    token.transfer(BOB, 40)
    await world.read_up_to(anvil)
    assert sorted(await world.messages()) == sorted([(OWNER, "100"), (OWNER, "40"), (BOB, "40")])


async def test_a_stranger_becomes_a_contact_only_where_an_automation_takes_it_in(
    world: World, anvil: Anvil, token: Token
) -> None:
    await world.on_chain(token, createContacts=False)
    await world.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "7"}])
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    token.mint(BOB, 7)
    token.mint(BOB, 8)
    await world.read_up_to(anvil)
    assert await world.messages() == [(BOB, "7"), (BOB, "7"), (BOB, "8")]
    assert await world.fetch("SELECT wallet_address FROM contacts") == [(BOB,)]
    assert await world.logs("args ->> 'value', contact_id IS NULL") == [("1", True), ("7", False), ("8", False)]


async def test_confirmations_are_waited_for(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token, confirmations=2)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 5)
    anvil.mine()
    await world.read_up_to(anvil)
    assert await world.messages() == []
    anvil.mine()
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, "5")]
    anvil.mine(5)
    await world.read_up_to(anvil)
    assert await world.entries() == [("completed", "completed")]


async def test_texts_and_arrays_are_decoded(world: World, anvil: Anvil, token: Token) -> None:
    note = "Note(address indexed author, string indexed tag, string text, int128[] numbers)"
    await world.on_chain(token, signature=note, walletArg="author")
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.note("a tag", "köstlich", [1, -(2**126)])
    await world.read_up_to(anvil)
    (row,) = await world.logs("args")
    assert decode(row[0]) == {
        "author": OWNER,
        "tag": topic("a tag"),
        "text": "köstlich",
        "numbers": ["1", str(-(2**126))],
    }


async def test_ten_thousand_logs_are_read_in_pages_and_ranges(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "999"}])
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    await world.unfollow()
    for number in range(10):
        token.scatter(1_000_000 * (number + 1), 1_000)
    anvil.mine(200)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    assert await world.fetch("SELECT count(*), count(DISTINCT tx_hash) FROM onchain_events") == [(10_000, 10)]
    assert await world.fetch("SELECT count(*) FROM entries") == [(10,)]
