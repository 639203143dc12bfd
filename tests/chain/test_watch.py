"""Watches change while the chain is read: no log is read twice or lost, and no old log starts an entry."""

import pytest

from api.auth import keys
from api.automations import automations
from api.automations.body import AutomationEdit
from api.automations.entries import FindEntriesQuery, find_entries
from api.chain import watch
from api.chain.watch import NO_WATCHES
from api.chain.write import WatchesChangedError
from tests.chain.organization import ChainOrg
from tests.chain.pages import AuthoredAutomation, Chain, later, transfer, wallet
from tests.chain.scripted import CONTRACT, TRANSFER

OTHER = "0x" + "d0" * 20


async def test_a_page_that_was_read_before_an_edit_is_stored(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    requested = await chain.read_watches()
    await tokens.publish(filters=[{"path": "value", "operator": "eq", "value": "2"}])
    await tokens.apply(automations.update, AutomationEdit(tokens.row.revision, "Renamed", None, None, None))
    at = later(org, 1)
    result = await chain.store(3, *(transfer(block, wallet(1), at) for block in (1, 2, 3)), requested=requested)
    assert (result.logs, result.entries) == (3, 1)
    assert await chain.entered() == [2]
    assert (await chain.read_watches()).epoch == result.watches.epoch


async def test_a_page_is_read_again_only_if_a_new_event_is_watched(org: ChainOrg) -> None:
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    requested = await chain.read_watches()
    await AuthoredAutomation.of(org, contract=OTHER)
    with pytest.raises(WatchesChangedError):
        await chain.store(1, transfer(1, wallet(1), later(org, 1)), requested=requested)
    assert await org.logs() == []
    assert {contract for contract, _ in (await chain.read_watches()).requested} - set(requested.contracts) == {OTHER}


async def test_a_page_is_matched_with_the_watches_at_its_commit(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    requested = await chain.read_watches()
    await tokens.apply(automations.archive)
    result = await chain.store(1, transfer(1, wallet(1), later(org, 1)), requested=requested)
    assert (result.logs, result.entries) == (0, 0)


async def test_fewer_confirmations_lose_and_double_no_log(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org, confirmations=10)
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(20, *(transfer(block, wallet(1), at) for block in (5, 12, 19)))
    assert await chain.entered() == [5]
    await tokens.publish(confirmations=5)
    await tokens.publish(confirmations=2)
    await chain.store(21)
    assert await chain.entered() == [5, 12, 19]
    await chain.store(22, transfer(22, wallet(1), at))
    await tokens.publish(confirmations=0)
    await chain.store(23)
    assert await chain.entered() == [5, 12, 19, 22]
    assert await org.fetch("SELECT earlier_confirmations FROM automations") == [(None,)]


async def test_more_and_then_fewer_confirmations_lose_no_log(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org, confirmations=2)
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(10, *(transfer(block, wallet(1), at) for block in (8, 9)))
    await tokens.publish(confirmations=8)
    await chain.store(13, transfer(11, wallet(1), at))
    assert await chain.entered() == [8]
    await tokens.publish(confirmations=1)
    await chain.store(14)
    assert await chain.entered() == [8, 9, 11]


async def test_a_new_automation_takes_no_earlier_log(org: ChainOrg) -> None:
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    before = later(org, 60)
    later(org, 5)
    new = await AuthoredAutomation.of(org, confirmations=3)
    after = later(org, 5)
    await chain.store(9, transfer(1, wallet(1), before), transfer(2, wallet(2), after))
    rows = await org.fetch(
        "SELECT o.block_number FROM entries e JOIN onchain_events o ON o.id = e.event_id WHERE automation_id = %s",
        new.row.id,
    )
    assert rows == [(2,)]
    assert await chain.entered() == [1, 2, 2]


async def test_logs_of_the_second_of_publication_count(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    assert tokens.row.live_since is not None
    await chain.store(1, transfer(1, wallet(1), tokens.row.live_since))
    assert await chain.entered() == [1]


@pytest.mark.parametrize(
    ("off", "on"),
    [
        ((automations.pause,), (automations.resume, {"cancel_overdue": False})),
        ((automations.deactivate,), (automations.activate, {})),
    ],
    ids=["paused", "switched off"],
)
async def test_logs_during_an_inactive_period_start_nothing(
    org: ChainOrg, off: tuple[object], on: tuple[object, dict[str, bool]]
) -> None:
    tokens = await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    await tokens.apply(*off)
    at = later(org, 10)
    await chain.store(1, transfer(1, wallet(1), at))
    later(org, 10)
    await tokens.apply(on[0], **on[1])
    await chain.store(3, transfer(2, wallet(1), at), transfer(3, wallet(1), later(org, 1)))
    assert await chain.entered() == [3]


async def test_a_new_version_continues_after_the_previous_one(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    at = later(org, 10)
    await tokens.publish(filters=[{"path": "value", "operator": "neq", "value": "2"}])
    await tokens.apply(automations.rollback, 1)
    await chain.store(2, transfer(1, wallet(1), at), transfer(2, wallet(1), at))
    assert await chain.entered() == [1, 2]


async def test_a_new_contract_counts_from_its_publication(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org)
    await AuthoredAutomation.of(org, contract=OTHER, filters=[{"path": "value", "operator": "eq", "value": "0"}])
    chain = await Chain.of(org)
    before = later(org, 10)
    later(org, 10)
    await tokens.publish(contract=OTHER)
    await chain.store(
        2, transfer(1, wallet(1), before, contract=OTHER), transfer(2, wallet(1), later(org, 1), contract=OTHER)
    )
    assert await chain.entered() == [2]


async def test_organizations_follow_one_contract_independently(org: ChainOrg) -> None:
    other = ChainOrg(org.database, await keys.create_org(org.database.dsn, "other"), org.transports)
    mine = await AuthoredAutomation.of(org)
    theirs = await AuthoredAutomation.of(other, filters=[{"path": "value", "operator": "eq", "value": "2"}])
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(2, transfer(1, wallet(1), at), transfer(2, wallet(1), at))
    await mine.apply(automations.deactivate)
    await chain.store(3, transfer(3, wallet(1), later(org, 1)))
    await theirs.publish(filters=[])
    await mine.apply(automations.activate)
    await chain.store(4, transfer(4, wallet(1), later(org, 1)))
    counts = (
        "SELECT e.org_id, o.block_number FROM entries e"
        " JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id ORDER BY 1, 2"
    )
    assert await org.fetch(counts) == [
        *((org.org_id, block) for block in (1, 2, 4)),
        *((other.org_id, block) for block in (2, 4)),
    ]
    assert await org.fetch("SELECT org_id, count(*) FROM contacts GROUP BY 1 ORDER BY 1") == [
        (org.org_id, 1),
        (other.org_id, 1),
    ]


async def test_one_address_on_two_chains_is_two_contracts(org: ChainOrg) -> None:
    await AuthoredAutomation.of(org, chainId=5)
    await AuthoredAutomation.of(org, chainId=6)
    first, second = await Chain.of(org, 5), await Chain.of(org, 6)
    at = later(org, 1)
    log = transfer(1, wallet(1), at)
    for chain in (first, second):
        assert (await chain.store(1, log)).entries == 1
    assert await org.fetch("SELECT chain_id, count(*) FROM onchain_events GROUP BY 1 ORDER BY 1") == [(5, 1), (6, 1)]


async def test_a_watch_that_is_removed_and_added_again_skips_the_logs_between(org: ChainOrg) -> None:
    spec = {"chainId": 5, "contract": CONTRACT, "signature": TRANSFER, "walletArg": "to"}
    await watch.add_watch(org.database.dsn, "chain", spec)
    chain = await Chain.of(org)
    await chain.store(1, transfer(1, wallet(1), later(org, 1)))
    requested = await chain.read_watches()
    await watch.remove_watch(org.database.dsn, "chain", spec)
    await chain.store(2, transfer(2, wallet(1), later(org, 1)), requested=requested)
    assert (await chain.read_watches()).requested == frozenset()
    await watch.add_watch(org.database.dsn, "chain", spec)
    with pytest.raises(WatchesChangedError):
        await chain.store(3, transfer(3, wallet(1), later(org, 1)), requested=NO_WATCHES)
    await chain.store(3, transfer(3, wallet(1), later(org, 1)))
    assert await org.logs("block_number") == [(1,), (3,)]
    assert await org.entries() == []


async def test_a_version_published_during_a_pause_counts_from_the_resumption(org: ChainOrg) -> None:
    tokens = await AuthoredAutomation.of(org, confirmations=2)
    chain = await Chain.of(org)
    await chain.store(2, transfer(2, wallet(1), later(org, 1)))
    later(org, 5)
    await tokens.apply(automations.pause)
    await tokens.publish(confirmations=0)
    await chain.store(3, transfer(3, wallet(1), later(org, 1)))
    later(org, 5)
    await tokens.apply(automations.resume, cancel_overdue=False)
    await chain.store(5, transfer(5, wallet(1), later(org, 1)))
    assert await chain.entered() == [5]


async def test_the_entries_of_a_log_are_found_by_its_key(org: ChainOrg) -> None:
    chain, _ = await Chain.of(org), await AuthoredAutomation.of(org)
    await chain.store(1, transfer(1, wallet(1), later(org, 1)), transfer(1, wallet(2), later(org, 1), index=1))
    rows = await org.fetch("SELECT tx_hash, log_index, id::text FROM onchain_events ORDER BY log_index")
    for tx_hash, log_index, log_id in rows:
        query = FindEntriesQuery(10, idempotency_key=f"5:{tx_hash.upper().replace('X', 'x')}:{log_index}")
        (entry,) = await find_entries(org.database, org.org_id, org.keyring.of(org.org_id), query)
        assert entry.event_id == log_id
