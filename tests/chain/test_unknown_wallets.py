"""Wallets without a contact: the zero address, those of a popular token, and those of erased contacts."""

from datetime import timedelta

import msgspec

from api.automations.automations import Author
from api.chain.write import PageWriter
from api.contacts.erase import erase
from api.crypto import Keyring, next_chain
from api.store.chain import list_unknown_wallets
from tests.chain.organization import ChainOrg
from tests.chain.pages import AuthoredAutomation, Chain, author_of, later, transfer, wallet
from tests.engine.conftest import SECRET
from workbench.language.onchain import ZERO_ADDRESS

WALLETS = "SELECT wallet_address FROM contacts WHERE wallet_address IS NOT NULL ORDER BY 1"


async def count_wallets(org: ChainOrg) -> dict[str, int]:
    """Return the counts of unknown wallets by outcome."""
    async with org.database.transaction() as tx:
        rows = await list_unknown_wallets(tx, org.org_id, org.clock.now() - timedelta(hours=2))
    return {what: sum(row.count for row in rows if row.what == what) for what in {row.what for row in rows}}


async def test_the_zero_address_has_no_contact(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": ZERO_ADDRESS}})
    await AuthoredAutomation.of(org, filters=[{"path": "value", "operator": "neq", "value": "3"}])
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(3, transfer(1, ZERO_ADDRESS, at), transfer(2, wallet(2), at), transfer(3, ZERO_ADDRESS, at))
    assert await chain.entered() == [2]
    assert await org.logs("contact_id IS NULL") == [(True,), (False,), (True,)]
    assert await org.fetch(WALLETS) == [(ZERO_ADDRESS,), (wallet(2),)]
    assert await count_wallets(org) == {"created": 1, "zero_address": 1}


async def test_an_expression_compares_amounts_of_more_than_64_bits(org: ChainOrg) -> None:
    wei = 10**24  # such amounts travel as texts
    where = f"value | decimal > {wei} and blockNumber > 0 and '2020-01-01' | days_since > 365"
    await AuthoredAutomation.of(org, where=where)
    await AuthoredAutomation.of(org, where=f"value > {wei} or value == {wei + 1}")  # of a text with a number
    chain = await Chain.of(org)
    amounts = {1: wei, 2: wei + 1, 3: 5}
    logs = [transfer(block, wallet(block), later(org, 1)) for block in amounts]
    logs = [msgspec.structs.replace(log, data=f"0x{amounts[log.block_number]:064x}") for log in logs]
    await chain.store(3, *logs)
    assert await chain.entered() == [2]
    assert await count_wallets(org) == {"created": 1}


async def test_only_automations_that_ask_for_it_create_contacts(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": wallet(1)}})
    await AuthoredAutomation.of(org, createContacts=False)
    chain = await Chain.of(org)
    at = later(org, 1)
    await chain.store(2, transfer(1, wallet(1), at), transfer(2, wallet(2), at))
    assert await chain.entered() == [1]
    assert await org.fetch(WALLETS) == [(wallet(1),)]
    assert await count_wallets(org) == {"unknown": 1}


async def test_an_automation_creates_a_limited_number_of_contacts_an_hour(org: ChainOrg) -> None:
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org, max_contacts_per_hour=3)
    at = later(org, 1)
    await chain.store(2, transfer(1, wallet(1), at), transfer(2, wallet(2), at))
    await chain.store(
        6, *(transfer(block, wallet(block // 2), at) for block in (4, 5, 6)), transfer(6, wallet(9), at, index=1)
    )
    assert await chain.entered() == [1, 2, 4, 5, 6]
    assert await count_wallets(org) == {"created": 3, "limit": 1}
    await chain.store(7, transfer(7, wallet(9), later(org, 3600)))
    assert await chain.entered() == [1, 2, 4, 5, 6, 7]


async def test_a_wallet_refused_for_one_automation_may_enter_another(org: ChainOrg) -> None:
    await AuthoredAutomation.of(org, createContacts=False)
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    await chain.store(1, transfer(1, wallet(1), later(org, 1)))
    assert await chain.entered() == [1, 1]


async def test_a_log_does_not_recreate_an_erased_contact(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": wallet(1)}})
    await AuthoredAutomation.of(org, confirmations=5)
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    before = later(org, 1)
    await chain.store(1, transfer(1, wallet(1), before))
    await erase_first_contact(org)
    after = later(org, 10)
    await chain.store(3, transfer(2, wallet(1), before), transfer(3, wallet(1), after))
    await chain.store(9)
    assert await org.logs("contact_id") == [(None,)] * 3
    assert await org.fetch(WALLETS) == []
    assert await org.fetch("SELECT DISTINCT state, outcome FROM entries") == [("cancelled", "contact_erased")]
    assert await count_wallets(org) == {"erased": 5}


async def test_an_event_with_an_erased_wallet_creates_a_new_contact(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": wallet(1)}})
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    before = later(org, 1)
    await erase_first_contact(org)
    later(org, 10)
    await org.ingest({"event": "seen_again", "contact": {"walletAddress": wallet(1)}, "idempotencyKey": "2"})
    await chain.store(2, transfer(1, wallet(1), before), transfer(2, wallet(1), later(org, 1)))
    assert await chain.entered() == [2]
    assert await org.logs("contact_id IS NULL") == [(True,), (False,)]


async def test_wallets_of_erased_contacts_are_found_while_the_secret_is_rotated(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": wallet(1)}})
    await AuthoredAutomation.of(org)
    await erase_first_contact(org)
    chain = await Chain.of(org)
    chain.writer = PageWriter(Keyring(next_chain(SECRET, "the next secret of tests")))
    at = later(org, 10)
    await chain.store(3, transfer(1, wallet(2), at), transfer(2, wallet(1), at), transfer(3, wallet(3), at))
    assert await chain.entered() == [1, 3]
    assert await count_wallets(org) == {"created": 2, "erased": 1}


async def test_an_erasure_does_not_affect_other_organizations(org: ChainOrg) -> None:
    await org.ingest({"event": "seen", "contact": {"walletAddress": wallet(1)}})
    await erase_first_contact(org)
    assert await org.fetch("SELECT org_id FROM erased_wallets") == [(org.org_id,)]
    await org.execute("UPDATE erased_wallets SET org_id = org_id + 1")
    await AuthoredAutomation.of(org)
    chain = await Chain.of(org)
    await chain.store(1, transfer(1, wallet(1), later(org, 1)))
    assert await chain.entered() == [1]


async def erase_first_contact(org: ChainOrg) -> None:
    """Erase the contact of the first wallet."""
    ((contact_id,),) = await org.fetch("SELECT id::text FROM contacts WHERE wallet_address = %s", wallet(1))
    author: Author = author_of(org)
    await erase(org.database, author, contact_id)
