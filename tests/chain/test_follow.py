"""From a log on a real node to a message, and the rows stored on the way."""

import pytest

from api.auth import AccessError, keys
from api.chain import watch
from api.chain.watch import read_watches
from tests.chain.anvil import OWNER, Anvil, Token
from tests.chain.conftest import ANN, BOB
from tests.chain.organization import TRANSFER, ChainOrg
from workbench.language.abi import event_topic
from workbench.language.codec import decode


async def test_a_log_becomes_a_message_to_the_wallet_in_it(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    sent = token.mint(ANN, 10**30)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, str(10**30))]
    assert await org.fetch("SELECT body FROM messages") == [(f"Transfer of {token.address} in {sent}",)]
    assert await org.logs("event, signature, contract, tx_hash, contact_id IS NOT NULL") == [
        ("Transfer", "Transfer(address,address,uint256)", token.address, sent, True)
    ]


async def test_logs_before_the_first_read_start_nothing(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    token.mint(ANN, 1)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 2)
    await org.read_up_to(anvil)
    assert await org.logs() == [(ANN, "2", False)]


async def test_an_automation_that_is_published_later_takes_the_next_block(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token, signature="Approval(address,address,uint256)", walletArg="owner")
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    await org.read_up_to(anvil)
    await org.on_chain(token)
    token.mint(ANN, 2)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "2")]


async def test_two_automations_take_both_sides_of_a_transfer(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    await org.on_chain(token, walletArg="from", filters=[{"path": "to", "operator": "eq", "value": BOB}])
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(OWNER, 100)
    token.transfer(BOB, 40)
    await org.read_up_to(anvil)
    assert sorted(await org.messages()) == sorted([(OWNER, "100"), (OWNER, "40"), (BOB, "40")])


async def test_an_unknown_wallet_becomes_a_contact_only_if_an_automation_takes_its_log(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token, createContacts=False)
    await org.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "7"}])
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    token.mint(BOB, 7)
    token.mint(BOB, 8)
    await org.read_up_to(anvil)
    assert await org.messages() == [(BOB, "7"), (BOB, "7"), (BOB, "8")]
    assert await org.fetch("SELECT wallet_address FROM contacts") == [(BOB,)]
    assert await org.logs("args ->> 'value', contact_id IS NULL") == [("1", True), ("7", False), ("8", False)]


async def test_an_automation_waits_for_its_confirmations(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token, confirmations=2)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 5)
    anvil.mine()
    await org.read_up_to(anvil)
    assert await org.messages() == []
    anvil.mine()
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "5")]
    anvil.mine(5)
    await org.read_up_to(anvil)
    assert await org.entries() == [("completed", "completed")]


async def test_texts_and_arrays_are_decoded(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    note = "Note(address indexed author, string indexed tag, string text, int128[] numbers)"
    await org.on_chain(token, signature=note, walletArg="author")
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.note("a tag", "köstlich", [1, -(2**126)])
    await org.read_up_to(anvil)
    (row,) = await org.logs("args")
    assert decode(row[0]) == {
        "author": OWNER,
        "tag": event_topic("a tag"),
        "text": "köstlich",
        "numbers": ["1", str(-(2**126))],
    }


async def test_ten_thousand_logs_are_read_in_pages_and_ranges(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token, filters=[{"path": "value", "operator": "eq", "value": "999"}])
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    await org.unfollow()
    for number in range(10):
        token.scatter(1_000_000 * (number + 1), 1_000)
    anvil.mine(200, seconds=12)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    assert await org.fetch("SELECT count(*), count(DISTINCT tx_hash) FROM onchain_events") == [(10_000, 10)]
    assert await org.fetch("SELECT count(*) FROM entries") == [(10,)]


async def test_watched_events_are_stored_without_an_automation(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    spec = {"chainId": 31337, "contract": token.address, "signature": "Transfer(address,address,uint256)"}
    watch_key = await watch.add_watch(org.database.dsn, "chain", spec | {"walletArg": "to"})
    assert await watch.list_watches(org.database.dsn, "chain") == [watch_key]
    await org.ingest({"event": "seen", "contact": {"walletAddress": ANN}, "idempotencyKey": "1"})
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    token.mint(BOB, 2)
    await org.read_up_to(anvil)
    assert await org.logs("args ->> 'value', contact_id IS NULL") == [("1", False), ("2", True)]
    assert await org.entries() == []
    await watch.remove_watch(org.database.dsn, "chain", spec)
    await org.on_chain(token, signature="Approval(address,address,uint256)", walletArg="owner")
    token.mint(ANN, 3)
    await org.read_up_to(anvil)
    assert await org.logs("args ->> 'value'") == [("1",), ("2",)]


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


async def test_several_organizations_follow_one_contract(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    other_id = await keys.create_org(org.database.dsn, "other")
    other = ChainOrg(org.database, other_id, org.transports)
    await org.on_chain(token)
    await other.on_chain(token, confirmations=1)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "1")]
    anvil.mine()
    await org.read_up_to(anvil)
    await other.drive()
    counts = await org.fetch("SELECT org_id, count(*) FROM messages GROUP BY 1 ORDER BY 1")
    assert counts == [(org.org_id, 1), (other_id, 1)]
    assert await org.fetch("SELECT count(*), count(DISTINCT contact_id) FROM onchain_events") == [(2, 2)]


async def test_a_node_and_a_follower_may_restart(org: ChainOrg, anvil: Anvil, token: Token) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    token.mint(ANN, 1)
    await org.read_up_to(anvil)
    anvil.stop()
    await org.until("SELECT problem IS NOT NULL FROM chains", (True,))
    anvil.start()
    token.mint(ANN, 2)
    await org.read_up_to(anvil)
    await org.unfollow()
    token.mint(ANN, 3)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    assert await org.messages() == [(ANN, "1"), (ANN, "2"), (ANN, "3")]


@pytest.mark.parametrize(("version", "followed"), [(1, [True]), (None, [])])
async def test_logs_of_a_paused_automation_are_stored_and_start_nothing(
    org: ChainOrg, version: int | None, followed: list[bool]
) -> None:
    transfer = {"signature": TRANSFER, "walletArg": "to", "chainId": 1}
    trigger = {"type": "onchain_event", "contract": "0x" + "ab" * 20, **transfer}
    nodes = [{"id": "t", "type": "onchain_event", "data": {}}, {"id": "g", "type": "add_tag", "data": {"tag": "x"}}]
    await org.automation(nodes, [("t", "g")], version, trigger)
    async with org.database.transaction() as tx:
        assert [followed.active is None for followed in (await read_watches(tx, 1)).watches] == [False]
    await org.execute("UPDATE automations SET paused_at = now()")
    async with org.database.transaction() as tx:
        watches = await read_watches(tx, 1)
    assert [followed.active is None for followed in watches.watches] == followed
    assert watches.contracts == ["0x" + "ab" * 20] * len(followed)


async def test_logs_of_a_paused_automation_start_nothing_and_later_ones_do(
    org: ChainOrg, anvil: Anvil, token: Token
) -> None:
    await org.on_chain(token)
    org.follow(anvil.url)
    await org.read_up_to(anvil)
    for value, paused in ((1, "now()"), (2, "NULL")):
        await org.execute(f"UPDATE automations SET paused_at = {paused}")
        await org.execute("UPDATE automation_epochs SET epoch = epoch + 1")
        token.mint(ANN, value)
        await org.read_up_to(anvil)
    assert [row[1] for row in await org.logs()] == ["1", "2"]
    assert len(await org.entries()) == 1
