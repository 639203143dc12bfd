"""From a log on a real node to a message, and the rows stored on the way."""

import pytest

from api.auth import AccessError, keys
from api.chain import watch
from api.chain.watch import read_watches
from tests.chain.anvil import OWNER, Anvil, Token
from tests.chain.conftest import ANN, BOB
from tests.chain.world import TRANSFER, World
from workbench.language.abi import event_topic
from workbench.language.codec import decode


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


async def test_logs_before_the_first_look_start_nothing(world: World, anvil: Anvil, token: Token) -> None:
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
    await world.on_chain(token, signature="Approval(address,address,uint256)", walletArg="owner")
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    await world.read_up_to(anvil)
    await world.on_chain(token)
    token.mint(ANN, 2)
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, "2")]


async def test_two_automations_take_both_sides_of_a_transfer(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    await world.on_chain(token, walletArg="from", filters=[{"path": "to", "operator": "eq", "value": BOB}])
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(OWNER, 100)
    token.transfer(BOB, 40)
    await world.read_up_to(anvil)
    assert sorted(await world.messages()) == sorted([(OWNER, "100"), (OWNER, "40"), (BOB, "40")])


async def test_an_unknown_wallet_becomes_a_contact_only_if_an_automation_takes_its_log(
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


async def test_an_automation_waits_for_its_confirmations(world: World, anvil: Anvil, token: Token) -> None:
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
        "tag": event_topic("a tag"),
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
    anvil.mine(200, seconds=12)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    assert await world.fetch("SELECT count(*), count(DISTINCT tx_hash) FROM onchain_events") == [(10_000, 10)]
    assert await world.fetch("SELECT count(*) FROM entries") == [(10,)]


async def test_watched_events_are_stored_without_an_automation(world: World, anvil: Anvil, token: Token) -> None:
    spec = {"chainId": 31337, "contract": token.address, "signature": "Transfer(address,address,uint256)"}
    watch_key = await watch.add_watch(world.database.dsn, "chain", spec | {"walletArg": "to"})
    assert await watch.list_watches(world.database.dsn, "chain") == [watch_key]
    await world.ingest({"event": "seen", "contact": {"walletAddress": ANN}, "idempotencyKey": "1"})
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    token.mint(BOB, 2)
    await world.read_up_to(anvil)
    assert await world.logs("args ->> 'value', contact_id IS NULL") == [("1", False), ("2", True)]
    assert await world.entries() == []
    await watch.remove_watch(world.database.dsn, "chain", spec)
    await world.on_chain(token, signature="Approval(address,address,uint256)", walletArg="owner")
    token.mint(ANN, 3)
    await world.read_up_to(anvil)
    assert await world.logs("args ->> 'value'") == [("1",), ("2",)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"chainId": 0}, "chain id"),
        ({"contract": "0x1"}, "must be an address"),
        ({"signature": "Transfer("}, "not complete"),
        ({"walletArg": "value"}, "no address parameter 'value'"),
    ],
)
async def test_an_invalid_watch_is_refused_with_the_reason(changes: dict[str, object], reason: str) -> None:
    spec = {"chainId": 1, "contract": ANN, "signature": "Transfer(address,address,uint256)", "walletArg": "to"}
    with pytest.raises(AccessError, match=reason):
        await watch.add_watch("postgresql://nowhere", "chain", spec | changes)


async def test_several_organizations_follow_one_contract(world: World, anvil: Anvil, token: Token) -> None:
    other_id = await keys.create_org(world.database.dsn, "other")
    other = World(world.database, other_id, world.transports)
    await world.on_chain(token)
    await other.on_chain(token, confirmations=1)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, "1")]
    anvil.mine()
    await world.read_up_to(anvil)
    await other.drive()
    counts = await world.fetch("SELECT org_id, count(*) FROM messages GROUP BY 1 ORDER BY 1")
    assert counts == [(world.org_id, 1), (other_id, 1)]
    assert await world.fetch("SELECT count(*), count(DISTINCT contact_id) FROM onchain_events") == [(2, 2)]


async def test_a_node_and_a_follower_may_restart(world: World, anvil: Anvil, token: Token) -> None:
    await world.on_chain(token)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    token.mint(ANN, 1)
    await world.read_up_to(anvil)
    anvil.stop()
    await world.until("SELECT trouble IS NOT NULL FROM chains", (True,))
    anvil.start()
    token.mint(ANN, 2)
    await world.read_up_to(anvil)
    await world.unfollow()
    token.mint(ANN, 3)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    assert await world.messages() == [(ANN, "1"), (ANN, "2"), (ANN, "3")]


@pytest.mark.parametrize(("version", "followed"), [(1, [True]), (None, [])])
async def test_logs_of_a_paused_automation_are_stored_and_start_nothing(
    world: World, version: int | None, followed: list[bool]
) -> None:
    transfer = {"signature": TRANSFER, "walletArg": "to", "chainId": 1}
    trigger = {"type": "onchain_event", "contract": "0x" + "ab" * 20, **transfer}
    nodes = [{"id": "t", "type": "onchain_event", "data": {}}, {"id": "g", "type": "add_tag", "data": {"tag": "x"}}]
    await world.automation(nodes, [("t", "g")], version, trigger)
    async with world.database.transaction() as tx:
        assert [followed.active is None for followed in (await read_watches(tx, 1)).watches] == [False]
    await world.execute("UPDATE automations SET paused_at = now()")
    async with world.database.transaction() as tx:
        watches = await read_watches(tx, 1)
    assert [followed.active is None for followed in watches.watches] == followed
    assert watches.contracts == ["0x" + "ab" * 20] * len(followed)


async def test_logs_of_a_paused_automation_start_nothing_and_later_ones_do(
    world: World, anvil: Anvil, token: Token
) -> None:
    await world.on_chain(token)
    world.follow(anvil.url)
    await world.read_up_to(anvil)
    for value, paused in ((1, "now()"), (2, "NULL")):
        await world.execute(f"UPDATE automations SET paused_at = {paused}")
        await world.execute("UPDATE automation_epochs SET epoch = epoch + 1")
        token.mint(ANN, value)
        await world.read_up_to(anvil)
    assert [row[1] for row in await world.logs()] == ["1", "2"]
    assert len(await world.entries()) == 1
