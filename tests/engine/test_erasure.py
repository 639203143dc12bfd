"""A contact can be erased while its entries run and its events arrive (docs/trust.md C19, O4, V15)."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from api.automations.automations import Author
from api.clock import uuid7
from api.contacts.erase import SECOND_ERASURE_DELAY, ErasedView, erase, erase_again
from api.engine.claims import LEASE
from api.store.locks import hold_contacts
from api.store.messages import Acknowledgement, acknowledge
from api.store.query import run
from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
INAPP = {"id": "i", "type": "send_inapp", "data": {"title": "Hi {{ contact.name | default('you') }}", "body": "there"}}
DELAY = {"id": "d", "type": "delay", "data": {"seconds": 3_600}}
ANN = {"walletAddress": evm_wallet("A"), "email": "ann@example.com", "externalId": "ann-1"}


async def find_contact_id(bench: EngineBench) -> str:
    """Return the id of the only contact that is not erased."""
    ((contact_id,),) = await bench.fetch("SELECT id FROM contacts WHERE erased_at IS NULL")
    return str(contact_id)


async def erase_contact(bench: EngineBench, contact_id: str) -> ErasedView:
    author = Author(bench.org_id, uuid7(bench.clock.now_us()), bench.clock.unique_now_us())
    erased = await erase(bench.database, author, contact_id)
    assert isinstance(erased, ErasedView)
    return erased


async def finish_erasures(bench: EngineBench) -> int:
    return await erase_again(bench.database, bench.clock.now() + SECOND_ERASURE_DELAY + timedelta(seconds=1))


async def send_event(bench: EngineBench, key: str, **more: Any) -> None:
    await bench.ingest({"event": "deposit", "contact": ANN, "idempotencyKey": key, **more})


@pytest.mark.parametrize("nodes", [[INAPP], [DELAY, INAPP]])
async def test_c19_live_entries_end_and_nothing_is_sent_afterwards(
    bench: EngineBench, nodes: list[dict[str, Any]]
) -> None:
    ids = ["t", *(node["id"] for node in nodes)]
    await bench.automation([TRIGGER, *nodes], list(pairwise(ids)))
    await send_event(bench, "k")
    if DELAY in nodes:
        await bench.drive()
    erased = await erase_contact(bench, await find_contact_id(bench))
    assert erased.cancelled_entries == 1
    bench.clock.ahead += timedelta(hours=2)
    await bench.drive()
    assert await bench.entries() == [("cancelled", "contact_erased")]
    assert await bench.fetch("SELECT FROM messages") == []
    ((moved,),) = await bench.fetch("SELECT to_state FROM entry_transitions WHERE reason = 'contact_erased'")
    assert moved == "cancelled"


async def test_b9_a_worker_that_holds_an_entry_writes_nothing_after_the_erasure(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, INAPP], [("t", "i")])
    await send_event(bench, "k", attributes={"name": "Ann"})
    claims = await bench.driver._claims.take(bench.org_id, "ready", 10)
    look = bench.driver._read_facts

    async def read_then_erase(*args: Any) -> Any:
        facts = await look(*args)
        await erase_contact(bench, claims[0].contact_id)
        return facts

    bench.driver._read_facts = read_then_erase  # type: ignore[method-assign]
    await bench.driver._process(bench.org_id, claims)
    assert await bench.entries() == [("cancelled", "contact_erased")]
    assert await bench.fetch("SELECT FROM messages") == []
    assert await bench.steps() == []


async def test_a_message_that_waits_for_another_try_is_skipped(bench: EngineBench) -> None:
    async with endpoint(status(500)) as server:
        await bench.automation(
            [TRIGGER, {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}], [("t", "h")]
        )
        await send_event(bench, "k")
        await bench.drive()
        await erase_contact(bench, await find_contact_id(bench))
        bench.clock.ahead += timedelta(hours=1)
        await bench.drive()
    assert len(server.requests) == 1
    assert await bench.fetch("SELECT status, recipient, body FROM messages") == [("skipped", None, None)]
    assert await bench.fetch("SELECT outcome, reason FROM message_outcomes ORDER BY at") == [
        ("retrying", "refused"),
        ("skipped", "contact_erased"),
    ]


async def test_v15_a_waiting_delivery_is_not_sent_once_its_lease_is_void(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, INAPP], [("t", "i")])
    await send_event(bench, "k")
    claims = await bench.driver._claims.take(bench.org_id, "ready", 10)
    holder = bench.driver._claims
    holder.hold(bench.org_id, claims)
    await holder._renew(bench.org_id, claims)
    assert holder.is_valid(bench.org_id, claims[0])
    await erase_contact(bench, claims[0].contact_id)
    await holder._renew(bench.org_id, claims)
    assert not holder.is_valid(bench.org_id, claims[0])
    holder.release(bench.org_id, claims)


async def test_an_acknowledgement_after_the_erasure_changes_nothing(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, INAPP], [("t", "i")])
    await send_event(bench, "k")
    await bench.drive()
    ((message_id,),) = await bench.fetch("SELECT id FROM messages")
    await erase_contact(bench, await find_contact_id(bench))
    async with bench.database.transaction() as tx:
        await acknowledge(tx, [Acknowledgement((bench.org_id, evm_wallet("a")), str(message_id))], bench.clock.now())
    assert await bench.fetch("SELECT status, delivered_at FROM messages") == [("sent", None)]
    assert await bench.fetch("SELECT outcome FROM message_outcomes") == [("sent",)]


async def test_a_message_in_delivery_during_an_erasure_is_unknown(bench: EngineBench) -> None:
    leaving, answer = asyncio.Event(), asyncio.Event()

    async def hang(writer: asyncio.StreamWriter) -> None:
        leaving.set()
        await answer.wait()
        writer.write(status(200))

    async with endpoint(hang) as server:
        await bench.automation(
            [TRIGGER, {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}], [("t", "h")]
        )
        await send_event(bench, "k")
        await bench.driver.drive(bench.org_id, "ready", 10)
        await leaving.wait()
        await erase_contact(bench, await find_contact_id(bench))
        answer.set()
        await bench.driver.deliveries.stop(60)
    bench.clock.ahead += LEASE * 2
    await bench.driver.rescue(bench.org_id, 10)
    await bench.drive()
    assert await bench.entries() == [("cancelled", "contact_erased")]
    assert await bench.fetch("SELECT status, body FROM messages") == [("unknown", None)]


async def test_an_event_during_the_erasure_leaves_no_data(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, INAPP], [("t", "i")])
    await send_event(bench, "before")
    await bench.drive()
    contact_id = await find_contact_id(bench)
    async with bench.database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        erasing = asyncio.create_task(erase_contact(bench, contact_id))
        await wait_for_lock_waiters(bench, 1)
        arriving = asyncio.create_task(
            send_event(bench, "meanwhile", attributes={"name": "Ann"}, payload={"card": "4711"})
        )
        await wait_for_lock_waiters(bench, 2)
    await asyncio.gather(erasing, arriving)
    # Recognized before, committed after
    assert await bench.fetch("SELECT contact_id FROM events") == [(contact_id,)] * 2
    assert await bench.fetch("SELECT attributes FROM contacts") == [(b"{}",)]
    await bench.drive()
    assert await bench.entries() == [("completed", "completed"), ("cancelled", "contact_erased")]
    assert len(await bench.fetch("SELECT FROM messages")) == 1
    assert await finish_erasures(bench) == 1
    columns = "payload, idempotency_key, wallet_address, email, external_id"
    assert await bench.fetch(f"SELECT {columns} FROM events") == [(b"{}", "", None, None, None)] * 2
    assert await finish_erasures(bench) == 0


async def wait_for_lock_waiters(bench: EngineBench, transactions: int) -> None:
    """Return when this number of transactions waits for an advisory lock."""
    count = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    async with asyncio.timeout(2), bench.database.transaction() as tx:
        while True:
            row = await (await tx.execute(count)).fetchone()
            if row == (transactions,):
                return


async def test_an_event_after_the_erasure_creates_a_new_contact(bench: EngineBench) -> None:
    """An event that brings a new identifier takes the contact's lock: after the erasure it finds no contact."""
    await send_event(bench, "before")
    contact_id = await find_contact_id(bench)
    async with bench.database.transaction() as tx:
        await run(tx, hold_contacts([contact_id]))
        erasing = asyncio.create_task(erase_contact(bench, contact_id))
        await wait_for_lock_waiters(bench, 1)
        arriving = asyncio.create_task(send_event(bench, "meanwhile", contact=ANN | {"email": "new@example.com"}))
        await wait_for_lock_waiters(bench, 2)
    await asyncio.gather(erasing, arriving)
    assert await find_contact_id(bench) != contact_id
    assert {row[0] for row in await bench.fetch("SELECT contact_id FROM identities")} == {await find_contact_id(bench)}


async def test_an_interrupted_erasure_is_finished_by_the_next_process(bench: EngineBench, monkeypatch: Any) -> None:
    await send_event(bench, "k", payload={"card": "4711"})
    contact_id = await find_contact_id(bench)
    with monkeypatch.context() as patched:
        patched.setattr("api.contacts.erase._erase_content", _crash)
        with pytest.raises(CutShortError):
            await erase_contact(bench, contact_id)
    assert await bench.fetch("SELECT payload ->> 'card' FROM events") == [("4711",)]
    assert await finish_erasures(bench) == 1
    assert await bench.fetch("SELECT payload ->> 'card' FROM events") == [(None,)]


async def test_an_erasure_during_the_last_step_of_another_has_its_own_last_step(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send_event(bench, "k")
    contact_id = await find_contact_id(bench)
    await erase_contact(bench, contact_id)
    bench.clock.ahead += SECOND_ERASURE_DELAY
    with monkeypatch.context() as patched:
        patched.setattr("api.contacts.erase._erase_content", lambda *_: erase_meanwhile())

        async def erase_meanwhile() -> None:
            patched.undo()
            await erase_contact(bench, contact_id)

        assert await erase_again(bench.database, bench.clock.now()) == 1
    assert await finish_erasures(bench) == 1
    assert await finish_erasures(bench) == 0


class CutShortError(Exception):
    """Ends the process."""


async def _crash(*_: Any) -> None:
    raise CutShortError


async def test_replaying_a_dead_entry_of_an_erased_contact_does_nothing(bench: EngineBench) -> None:
    broken = {"id": "e", "type": "send_email", "data": {"subject": "{{ contact.name }}", "body": "there"}}
    await bench.automation([TRIGGER, broken], [("t", "e")])
    await send_event(bench, "k", attributes={"name": "two\nlines"})
    await bench.drive()
    await erase_contact(bench, await find_contact_id(bench))
    assert await bench.entries("state, last_error") == [("dead", "invalid_header")]
    assert await bench.fetch("SELECT DISTINCT detail FROM entry_steps") == [(b"{}",)]
    await bench.execute(
        "UPDATE entries SET state = 'pending', outcome = NULL, attempts = 0 WHERE org_id = %s", bench.org_id
    )
    await bench.drive()
    assert await bench.entries() == [("cancelled", "contact_erased")]
