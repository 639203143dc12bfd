"""Entries: finding them, reading them as a simulation shows them, and replaying dead ones."""

import asyncio
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from api.automations import automations, entries, trial
from api.automations.entries import FindEntriesQuery
from api.automations.trial import TrialContext
from api.contacts import contacts
from api.crypto import EmailDisplay
from api.store.automations import EntriesQuery
from api.store.contacts import FIRST_CURSOR, LAST_CURSOR, ContactKey, export_messages
from api.store.engines import ENTRIES_CHANNEL
from api.store.messages import count_sent
from tests.inapp.wallet import evm_wallet
from workbench.language.body import read_body
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode, encode
from workbench.language.run import State, message_id
from workbench.language.simulate import SIMULATED_ID

DEPOSIT = {
    "event": "first_deposit",
    "contact": {"walletAddress": evm_wallet("AB")},
    "payload": {"amountUsd": Decimal("1.50")},
}
GOLD = {"attributes": {"tier": "gold"}}
WITHOUT_WALLET = {"event": "first_deposit", "contact": {"externalId": "u1"}, "idempotencyKey": "k1"}


async def find_entries(tenant: Any, limit: int = 10, **wanted: Any) -> Any:
    return await entries.find_entries(tenant.database, tenant.org_id, tenant.keys, FindEntriesQuery(limit, **wanted))


async def a_dead_entry(tenant: Any) -> Any:
    """Return a dead entry: its contact has no wallet for the in-app message."""
    await tenant.publish()
    await tenant.ingest(**WITHOUT_WALLET)
    await tenant.drive()
    [entry] = await find_entries(tenant)
    assert (entry.state, entry.outcome) == (State.DEAD, "no_wallet")
    return entry


async def test_an_entry_has_the_same_steps_as_a_trial(tenant: Any) -> None:
    row = await tenant.publish()
    parsed = trial.trial_of(read_body(trial.TrialBody, encode({"event": DEPOSIT | GOLD})), tenant.clock.now())
    trace = await trial.simulate_trial(
        tenant.database, TrialContext(tenant.org_id, tenant.show, RetryPolicy(())), row.id, parsed
    )
    await tenant.ingest(**DEPOSIT, **GOLD)
    await tenant.drive()
    [entry] = await find_entries(tenant)
    history = decode(encode(await entries.read_history(tenant.database, tenant.org_id, entry.id, tenant.show)))
    engine_steps = encode(history["steps"]).decode().replace(message_id(entry.id, "m1"), message_id(SIMULATED_ID, "m1"))
    steps = [step | {"at": None} for step in decode(engine_steps.encode())]
    assert steps == [step | {"at": None} for step in decode(encode(trace.steps))]
    [message] = history["messages"]
    assert (message["id"], message["title"], message["body"]) == (
        *(message_id(entry.id, "m1"), "Thanks, gold", "You paid in 1.50"),
    )
    assert [(move["from"], move["to"]) for move in history["transitions"]] == [
        ("pending", "running"),
        ("running", "completed"),
    ]
    assert (history["event"], history["payload"], history["state"]) == (
        "first_deposit",
        {"amountUsd": Decimal("1.50")},
        "completed",
    )


async def test_the_entry_of_an_event_is_found_by_key_id_and_name(tenant: Any) -> None:
    await tenant.publish()
    await tenant.ingest(**WITHOUT_WALLET)
    await tenant.ingest(**DEPOSIT)
    newest, oldest = await find_entries(tenant)
    assert await find_entries(tenant, event="first_deposit") == [newest, oldest]
    assert await find_entries(tenant, idempotency_key="k1") == [oldest]
    assert await find_entries(tenant, event_id=newest.event_id, event="first_deposit") == [newest]
    for nothing in (
        {"event": "other"},
        {"idempotency_key": "k2"},
        {"idempotency_key": "k1", "event_id": newest.event_id},
        {"event_id": newest.event_id, "event": "other"},
    ):
        assert await find_entries(tenant, **nothing) == []


async def test_a_list_is_read_page_by_page(tenant: Any) -> None:
    row = await tenant.publish()
    ids = [await tenant.add_entry(row.id, state) for state in ("pending", "dead", "dead", "dead")]
    first = await entries.list_entries(tenant.database, tenant.org_id, row.id, EntriesQuery(2, State.DEAD))
    second = await entries.list_entries(
        tenant.database, tenant.org_id, row.id, EntriesQuery(2, State.DEAD, first[-1].id)
    )
    assert [entry.id for entry in first + second] == [ids[3], ids[2], ids[1]]
    assert [entry.id for entry in await find_entries(tenant, 2, after=ids[2])] == [ids[1], ids[0]]


async def test_stats_count_states_and_outcomes(tenant: Any) -> None:
    row = await tenant.publish()
    for event in (WITHOUT_WALLET, DEPOSIT | GOLD):
        await tenant.ingest(**event)
    await tenant.drive()
    waiting = await tenant.add_entry(row.id, "waiting")
    await tenant.rows("UPDATE entries SET node_id = 'm1' WHERE id = %s", waiting)
    stats = await entries.count_stats(tenant.database, tenant.org_id, row.id)
    assert {state: count for state, count in stats.entries.items() if count} == {
        "waiting": 1,
        "completed": 1,
        "dead": 1,
    }
    assert stats.nodes == {"t1": {"entered": 2}, "m1": {"sent": 1, "failed": 1}}
    assert (stats.live, stats.entries_counted) == ({"m1": 1}, 3)


async def test_a_dead_entry_is_replayed_from_where_it_died(tenant: Any) -> None:
    entry = await a_dead_entry(tenant)
    revived = await entries.replay(tenant.database, tenant.author, entry.id, tenant.show)
    assert (revived.state, revived.attempts, revived.outcome, revived.node_id) == (State.PENDING, 0, None, "m1")
    await tenant.ingest(event="wallet", contact={"externalId": "u1", "walletAddress": evm_wallet("1")}, **GOLD)
    await tenant.rows("UPDATE events SET payload = '{\"amountUsd\": 2}' WHERE event = 'first_deposit'")
    await tenant.drive()
    history = await entries.read_history(tenant.database, tenant.org_id, entry.id, tenant.show)
    assert [(step.node_id, step.outcome) for step in history.steps] == [
        *(("t1", "entered"), ("m1", "failed"), ("m1", "sent"))
    ]
    assert [(message.id, message.wallet_address) for message in history.messages] == [
        (message_id(entry.id, "m1"), evm_wallet("1"))
    ]


async def test_a_replay_leaves_a_move_an_audit_row_and_wakes_the_engine(tenant: Any, database_url: str) -> None:
    entry = await a_dead_entry(tenant)
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as listener:
        await listener.execute(f"LISTEN {ENTRIES_CHANNEL}")
        revived = await entries.replay(tenant.database, tenant.author, entry.id, tenant.show)
        assert [notice.channel async for notice in listener.notifies(timeout=5, stop_after=1)] == [ENTRIES_CHANNEL]
    last = revived.transitions[-1]
    assert (last.from_state, last.to_state, last.reason) == ("dead", "pending", "replay")
    [audit] = await tenant.rows("SELECT key_id, subject_id, detail FROM audit_log WHERE action = 'entry.replay'")
    assert (audit[:2], decode(audit[2])) == ((tenant.key_id, entry.id), {"cause": "no_wallet"})


@pytest.mark.parametrize("state", [state for state in State if state is not State.DEAD])
async def test_only_a_dead_entry_can_be_replayed(tenant: Any, state: State) -> None:
    row = await tenant.publish()
    entry_id = await tenant.add_entry(row.id, state)
    refusal = await entries.replay(tenant.database, tenant.author, entry_id, tenant.show)
    assert (refusal.reason, str(refusal.problems[0])) == (
        *("conflict", f"only a dead entry can be replayed; this one is {state}"),
    )


async def test_one_of_two_concurrent_replays_succeeds(tenant: Any) -> None:
    entry = await a_dead_entry(tenant)
    both = await asyncio.gather(
        *(entries.replay(tenant.database, tenant.author, entry.id, tenant.show) for _ in range(2))
    )
    assert sorted(type(result).__name__ for result in both) == ["EntryHistoryView", "Refusal"]
    assert await tenant.rows("SELECT count(*) FROM entry_transitions WHERE from_state = 'dead'") == [(1,)]


async def test_nothing_is_replayed_for_an_automation_that_is_switched_off(tenant: Any) -> None:
    entry = await a_dead_entry(tenant)
    await automations.deactivate(tenant.database, tenant.author, entry.automation_id)
    one = await entries.replay(tenant.database, tenant.author, entry.id, tenant.show)
    every = await entries.replay_all(tenant.database, tenant.author, entry.automation_id, None)
    assert {one.reason, every.reason} == {"conflict"}
    assert (await find_entries(tenant))[0].state is State.DEAD


async def test_dead_entries_are_replayed_in_bulk_by_cause(tenant: Any) -> None:
    row, other = await tenant.publish(), await tenant.publish()
    for automation_id, outcome in ((row.id, "no_wallet"), (row.id, "template_error"), (other.id, "no_wallet")):
        await tenant.add_entry(automation_id, "dead", outcome)
    assert await entries.replay_all(tenant.database, tenant.author, row.id, "no_wallet") == 1
    assert await entries.replay_all(tenant.database, tenant.author, row.id, None) == 1
    assert await entries.replay_all(tenant.database, tenant.author, row.id, None) == 0
    audit = await tenant.rows("SELECT detail FROM audit_log WHERE action = 'automation.replay' ORDER BY id")
    assert [decode(detail) for (detail,) in audit] == [
        {"cause": "no_wallet", "replayed": 1},
        {"cause": None, "replayed": 1},
    ]
    assert sorted(entry.state for entry in await find_entries(tenant)) == ["dead", "pending", "pending"]


async def test_dead_entries_of_every_active_automation_are_replayed_in_bulk(tenant: Any) -> None:
    row, other, resting = [await tenant.publish() for _ in range(3)]
    for automation_id, outcome in ((row.id, "no_wallet"), (other.id, "no_wallet"), (other.id, "template_error")):
        await tenant.add_entry(automation_id, "dead", outcome)
    await tenant.add_entry(resting.id, "dead", "no_wallet")
    await automations.deactivate(tenant.database, tenant.author, resting.id)
    assert await entries.replay_everywhere(tenant.database, tenant.author, "no_wallet") == 2
    assert await entries.replay_everywhere(tenant.database, tenant.author, None) == 1
    assert [entry.automation_id for entry in await find_entries(tenant, state=State.DEAD)] == [resting.id]


async def test_stats_cover_the_newest_entries_and_return_their_number(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = await tenant.publish()
    for state in ("completed", "completed", "waiting", "dead"):
        await tenant.add_entry(row.id, state)
    assert (await entries.count_stats(tenant.database, tenant.org_id, row.id)).entries_counted == 4
    monkeypatch.setattr(entries, "COUNTED", 2)
    newest = await entries.count_stats(tenant.database, tenant.org_id, row.id)
    assert newest.entries_counted == 2
    assert [newest.entries[state] for state in ("completed", "waiting", "dead")] == [0, 1, 1]


async def test_another_organization_finds_no_entry(tenant: Any, other_tenant: Any) -> None:
    entry = await a_dead_entry(tenant)
    database, author = other_tenant.database, other_tenant.author
    refusals = [
        await entries.read_history(database, other_tenant.org_id, entry.id, tenant.show),
        await entries.replay(database, author, entry.id, tenant.show),
        await entries.replay_all(database, author, entry.automation_id, None),
        await entries.count_stats(database, other_tenant.org_id, entry.automation_id),
        await entries.list_entries(database, other_tenant.org_id, entry.automation_id, EntriesQuery(10)),
    ]
    assert {refusal.reason for refusal in refusals} == {"unknown"}
    for wanted in ({}, {"event": "first_deposit"}, {"event_id": entry.event_id}, {"idempotency_key": "k1"}):
        assert await find_entries(other_tenant, **wanted) == []


async def test_messages_have_the_fields_of_their_channel(tenant: Any) -> None:
    graph = {
        "nodes": [
            {"id": "t", "type": "app_event"},
            {"id": "e", "type": "send_email", "data": {"subject": "Thanks", "body": "<b>{{ amountUsd }}</b>"}},
            {"id": "h", "type": "send_webhook", "data": {"url": "http://127.0.0.1:1/x", "body": "paid"}},
        ],
        "edges": [{"source": "t", "target": "e"}, {"source": "e", "target": "h"}],
    }
    await tenant.publish(graph=graph)
    await tenant.ingest(event="first_deposit", contact={"email": "ann@example.com"}, payload={"amountUsd": 5})
    await tenant.drive()
    [entry] = await find_entries(tenant)
    history = decode(encode(await entries.read_history(tenant.database, tenant.org_id, entry.id, tenant.show)))
    email, webhook = history["messages"]
    assert {name: email[name] for name in ("channel", "status", "email", "subject", "body", "html")} == {
        "channel": "email",
        "status": "sent",
        "email": "ann@example.com",
        "subject": "Thanks",
        "body": "<b>5</b>",
        "html": True,
    }
    assert {name: webhook[name] for name in ("channel", "status", "url", "body")} == {
        "channel": "webhook",
        "status": "failed",
        "url": "http://127.0.0.1:1/x",
        "body": "paid",
    }


async def test_a_skipped_message_is_a_message_in_sql_and_in_every_view_and_is_not_metered(tenant: Any) -> None:
    graph = {
        "nodes": [
            {"id": "t", "type": "app_event"},
            {"id": "i", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}},
            {"id": "e", "type": "send_email", "data": {"subject": "Hi", "body": "there"}},
        ],
        "edges": [{"source": "t", "target": "i"}, {"source": "i", "target": "e"}],
        "settings": {"frequencyCap": {"messages": 1, "seconds": 60}},
    }
    await tenant.publish(graph=graph)
    await tenant.ingest(event="first_deposit", contact={"walletAddress": evm_wallet("AB"), "email": "ann@example.com"})
    await tenant.drive()
    [entry] = await find_entries(tenant)
    history = decode(encode(await entries.read_history(tenant.database, tenant.org_id, entry.id, tenant.show)))
    views = {message["id"]: (message["channel"], message["status"], message["body"]) for message in history["messages"]}
    assert sorted(views.values()) == [("email", "skipped", None), ("inapp", "sent", "there")]
    email = next(message for message in history["messages"] if message["channel"] == "email")
    assert (email["email"], email["subject"]) == (None, None)

    rows = await tenant.rows("SELECT id::text, channel, status, body FROM analyst.messages")
    assert {row[0]: tuple(row[1:]) for row in rows} == views
    contact = ContactKey(tenant.org_id, entry.contact_id)
    page = await contacts.timeline(tenant.database, contact, ["message"], LAST_CURSOR, 10, tenant.show)
    details = {item["id"]: item["detail"] for item in decode(encode(page))["timeline"]}
    assert {id_: tuple(map(detail.get, ("channel", "status", "body"))) for id_, detail in details.items()} == views
    async with tenant.database.transaction() as tx:
        exported = await export_messages(tx, contact, FIRST_CURSOR, 10)
        sent = await count_sent(tx, tenant.org_id, entry.created_at, tenant.clock.now() + timedelta(seconds=1))
    assert {row.id: (row.channel, row.status, row.body) for row in exported} == views
    assert sent == {"inapp": 1}


async def test_without_pii_read_texts_with_an_address_are_shown_as_templates(tenant: Any) -> None:
    body = "{{ contact.email | urlencode }} paid {{ amountUsd }}"
    graph = {
        "nodes": [
            {"id": "t", "type": "app_event"},
            {"id": "e", "type": "send_email", "data": {"subject": "You paid {{ amountUsd }}", "body": body}},
            {"id": "h", "type": "send_webhook", "data": {"url": "http://127.0.0.1:1/x"}},
        ],
        "edges": [{"source": "t", "target": "e"}, {"source": "e", "target": "h"}],
    }
    await tenant.publish(graph=graph)
    await tenant.ingest(event="first_deposit", contact={"email": "ann+x@example.com"}, payload={"amountUsd": 5})
    await tenant.drive()
    [entry] = await find_entries(tenant)

    history = encode(
        await entries.read_history(tenant.database, tenant.org_id, entry.id, EmailDisplay(tenant.keys, clear=False))
    )
    email, webhook = decode(history)["messages"]
    assert (email["subject"], email["body"], email["email"]) == ("You paid 5", body, "a•••@example.com")
    assert decode(webhook["body"].encode())["data"]["email"] == "a•••@example.com"
    assert not [address for address in (b"ann+", b"ann%") if address in history]
