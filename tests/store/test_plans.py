"""Hot statements of the engine and of ingest use the index that was made for them, with and without statistics."""

import copy
import re
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from api.auth import keys
from api.clock import uuid7
from api.embedded import Server
from api.store import chain, entries, events
from api.store.database import Database, Transaction, load
from api.store.entries import Claim, EntryUpdate, TagChange
from api.store.events import wake_waiting_entries
from api.store.messages import abandon_outgoing
from api.store.query import Call, Rows, Statement, run
from tests.conftest import clone
from workbench.language.codec import decode

pytestmark = pytest.mark.plain

WAITING = 20_000
NOW = datetime(2026, 6, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=10)
ID = uuid7(1)
IDS = [uuid7(number) for number in range(200)]  # a batch
CLAIMS = [Claim(id_, ID, id_, NOW, id_, None, 1, 0, 1, 1, LATER, NOW, None, None, 1) for id_ in IDS]
LOGS = [chain.StoredLog(1, id_, "", "", "", id_, 0, 1, 1, "{}", id_, id_, id_) for id_ in IDS]
DUE = [entries.DueEntry(id_, id_) for id_ in IDS]
AFTER = [NOW] * len(CLAIMS), [ID] * len(CLAIMS), [LATER] * len(CLAIMS)
UPDATES = [EntryUpdate(id_, 1, "completed", "completed", "n", 1, 1, None, None) for id_ in IDS]

KEY = "entries_pkey org_id id"
LANES = {"entries_ready org_id due_at", "entries_retrying org_id due_at", "entries_running org_id lease_until"}
EXPECTED = {
    "entries.lock_due_entries": {"entries_ready org_id due_at", "entries_retrying org_id due_at"},
    "entries.claim_entries": {"entries_turns org_id contact_id", KEY},
    "entries.release_turns": {"entries_turns org_id contact_id state", KEY},
    "entries.rescue_entries": {"entries_running org_id lease_until", KEY},
    "entries.find_due_work": LANES | {"automation_epochs_pkey"},
    "entries.next_due": {
        "entries_ready org_id",
        "entries_retrying org_id",
        "entries_running org_id",
        "automation_epochs_pkey",
    },
    "entries.renew_leases": {KEY},
    "entries.record_entries": {KEY},
    "entries.change_tags": {"contacts_pkey org_id id"},
    "events.wake_waiting_entries": {"entries_awaiting org_id contact_id", KEY},
    "messages.abandon_outgoing": {"messages_org_id_entry_id_node_id_visit_key org_id entry_id", KEY},
    "entries.load_events": {"events_other_pkey org_id id id created_at"},
    "entries.load_starting_events": {
        "onchain_events_pkey org_id id id",
        "starts_pkey org_id id id",
        "automation_versions_pkey org_id automation_id version",
    },
    "chain.known_logs": {
        "onchain_events_in_chain org_id chain_id tx_hash tx_hash",
        "onchain_events_dropped org_id chain_id tx_hash tx_hash",
    },
    "chain.confirmed_logs": {"onchain_events_by_block org_id block_number block_number chain_id"},
    "chain.restore_logs": {"onchain_events_pkey org_id id"},
    "chain.set_log_contacts": {"onchain_events_pkey org_id id"},
    "chain.restore_entries": {
        "automations_pkey org_id",
        "automation_versions_pkey org_id automation_id",
        "entries_org_id_automation_id_event_id_key org_id automation_id event_id event_id",
        KEY,
        "messages_org_id_entry_id_node_id_visit_key org_id entry_id node_id",
    },
    "chain.drop_logs": {
        "onchain_events_by_block org_id block_number",
        "onchain_events_pkey org_id id",
        "automations_pkey org_id",
        "automation_versions_pkey org_id automation_id",
        "entries_org_id_automation_id_event_id_key org_id automation_id event_id event_id",
        KEY,
        "messages_org_id_entry_id_node_id_visit_key org_id entry_id",
    },
    "chain.find_erased_wallets": {"erased_wallets_pkey org_id wallet_digest"},
    "chain.count_created": {"unknown_wallet_counts_pkey org_id automation_id hour what"},
    "entries.load_contacts": {"contacts_pkey org_id id", "segment_members_by_contact org_id contact_id"},
    "entries.read_other_entries": {"entries_by_contact org_id contact_id automation_id"},
    "entries.count_recent_entries": {"entries_by_contact org_id contact_id automation_id created_at created_at"},
    "entries.read_message_times": {"messages_by_contact org_id contact_id created_at"},
    "entries.read_later_events": {
        "events_other_org_id_contact_id_created_at_idx org_id contact_id created_at created_at created_at",
        "onchain_events_by_contact org_id contact_id created_at created_at created_at",
    },
    "events.find_key_holders": {"idempotency_keys_pkey org_id key_digest"},
    "events.list_newest_wallets_of_all": {"events_other_pkey org_id id created_at"},
    "events.find_owners": {"identities_pkey org_id kind value_digest", "contacts_pkey org_id id"},
}


@pytest.fixture(scope="module")
async def filled(postgres: Server, template: str) -> AsyncIterator[Database]:
    """A database that has grown since it was last analyzed."""
    with clone(postgres, template) as dsn:
        assert await keys.create_org(dsn, "plans") == 1
        opened = Database(dsn, size=1, hot=True)
        await opened.open()
        await fill(opened)
        yield opened
        await opened.close()


async def test_every_statement_uses_its_index_with_and_without_statistics(filled: Database) -> None:
    assert await plans(filled) == EXPECTED
    async with filled.transaction() as tx:
        await tx.execute("ANALYZE")
    assert await plans(filled) == EXPECTED


async def test_waiting_entries_do_not_slow_down_a_claim(filled: Database) -> None:
    async with filled.transaction() as tx:
        await tx.execute(
            "UPDATE entries SET due_at = %s WHERE org_id = 1 AND id = (SELECT min(id::text)::uuid FROM entries)", (NOW,)
        )
        call = entries.lock_due_entries(1, "ready", NOW, 200)
        (found,) = await run(tx, explained(call, "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"))
        (due_entries,) = await run(tx, call)
        call = explained(
            entries.claim_entries(1, due_entries, NOW, LATER, LATER), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON)"
        )
        (claim,) = await run(tx, call)
    assert claim["Actual Rows"] == 1
    assert sum(part["Shared Hit Blocks"] + part["Shared Read Blocks"] for part in (found, claim)) < 80


async def test_the_sample_of_contacts_does_not_read_all_of_them(filled: Database) -> None:
    async with filled.transaction() as tx:
        await tx.execute("SET LOCAL enable_seqscan = on")
        await tx.execute("UPDATE contacts SET external_id = id::text")
        sample = load("access")["sample_contacts"]
        rows = await (await tx.execute(f"EXPLAIN (FORMAT JSON) {sample}")).fetchall()
        await tx.rollback()
    assert list(scans(plan(rows))) == ["contacts_pkey"]


async def plans(database: Database) -> dict[str, set[str]]:
    """Return the indexes that each statement uses, in its custom and in its generic plan."""
    indexes = {}
    async with database.transaction() as tx:
        for call in calls():
            (custom,) = await run(tx, explained(call, "EXPLAIN (FORMAT JSON)"))
            indexes[call.statement.name.decode()] = set(scans(custom)) | set(scans(await generic(tx, call)))
    return indexes


def calls() -> list[Call[Any]]:
    return [
        entries.lock_due_entries(1, "ready", NOW, 200),
        entries.claim_entries(1, DUE, NOW, LATER, LATER),
        entries.release_turns(1, IDS),
        entries.rescue_entries(1, NOW, 200),
        entries.find_due_work(NOW),
        entries.next_due(),
        entries.renew_leases(1, CLAIMS, LATER),
        entries.record_entries(1, UPDATES, NOW),
        wake_waiting_entries([(1, id_, "purchase", NOW) for id_ in IDS], NOW),
        abandon_outgoing(1, IDS, NOW),
        entries.change_tags(1, [TagChange(id_, "[]", "[]") for id_ in IDS], NOW),
        entries.load_events(1, CLAIMS),
        entries.load_starting_events(1, CLAIMS),
        chain.known_logs(1, LOGS),
        chain.confirmed_logs(1, [chain.BlockRange(1, 5, 10), chain.BlockRange(1, 7, 10)]),
        chain.restore_logs(LOGS),
        chain.set_log_contacts(LOGS, 0),
        chain.restore_entries(1, IDS, NOW),
        chain.drop_logs(1, 1, WAITING - 200, 1_000, NOW),
        chain.find_erased_wallets([1] * len(IDS), IDS),
        chain.count_created([1] * len(IDS), IDS, NOW),
        entries.load_contacts(1, IDS),
        entries.read_other_entries(1, CLAIMS),
        entries.count_recent_entries(1, CLAIMS, timedelta(minutes=1), 100),
        entries.read_message_times(1, CLAIMS, [NOW] * len(CLAIMS)),
        entries.read_later_events(1, CLAIMS, [f"0x{'c0' * 20}:transfer,purchase"] * len(CLAIMS), *AFTER),
        events.find_key_holders([1] * len(IDS), IDS),
        events.list_newest_wallets_of_all(1, ID, NOW - timedelta(days=30), 100),
        events.find_owners([1] * len(IDS), [1] * len(IDS), [id_.replace("-", "") for id_ in IDS], [""] * len(IDS)),
    ]


def explained(call: Call[Any], command: str) -> Call[dict[str, Any]]:
    explaining = copy.copy(call)
    explaining.statement = Statement(
        f"{command} {call.statement.name!r}".encode(),
        f"{command} ".encode() + call.statement.text,
        call.statement.order,
    )
    explaining.read = lambda rows, result: plan(rows)
    return explaining


async def generic(tx: Transaction, call: Call[Any]) -> dict[str, Any]:
    await tx.execute("SET LOCAL plan_cache_mode = force_generic_plan")
    await tx.execute(b"PREPARE guarded AS " + call.statement.text)
    nulls = b"(" + b", ".join([b"NULL"] * len(call.values)) + b")" if call.values else b""
    rows = await (await tx.execute(b"EXPLAIN (FORMAT JSON) EXECUTE guarded" + nulls)).fetchall()
    await tx.execute("DEALLOCATE guarded")
    await tx.execute("SET LOCAL plan_cache_mode = auto")
    return plan(rows)


def plan(rows: Rows) -> dict[str, Any]:
    explained = rows[0][0]
    return (decode(explained) if isinstance(explained, bytes) else explained)[0]["Plan"]


def scans(node: dict[str, Any]) -> Iterator[str]:
    """Yield the indexes with the columns looked up in them, without those of empty partitions of events."""
    if node.get("One-Time Filter") == "false":  # never executed; Postgres 15 plans a scan of the table below it
        return
    table = node.get("Relation Name", "")
    if node["Node Type"] == "Seq Scan":
        yield f"all of {table}"
    elif "Index Name" in node and not table.startswith("events_2"):
        yield " ".join([node["Index Name"], *re.findall(r"\((?:\w+\.)?(\w+) [<>=]", node.get("Index Cond", ""))])
    for child in node.get("Plans", ()):
        yield from scans(child)


async def fill(database: Database) -> None:
    """Give each of many contacts an event, an entry that waits until tomorrow, and a message."""
    numbers = {"id": ID, "now": NOW, "count": WAITING}
    async with database.transaction() as tx:
        await tx.execute(
            "INSERT INTO contacts (org_id, id, created_at, updated_at)"
            " SELECT 1, gen_random_uuid(), %(now)s, %(now)s FROM generate_series(1, %(count)s)",
            numbers,
        )
        await tx.execute(
            "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
            " SELECT 1, gen_random_uuid(), id, 'deposit', %(now)s, %(now)s, id FROM contacts WHERE org_id = 1",
            numbers,
        )
        await tx.execute(
            "INSERT INTO identities (org_id, kind, value_digest, contact_id, created_at)"
            " SELECT 1, 3, gen_random_uuid(), id, created_at FROM contacts WHERE org_id = 1"
        )
        await tx.execute(
            "INSERT INTO idempotency_keys (org_id, key_digest, event_id, body_digest, created_at)"
            " SELECT 1, id, id, id, created_at FROM events WHERE org_id = 1"
        )
        await tx.execute(
            "INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at,"
            " contact_id, state, node_id, due_at, since, awaits, created_at, updated_at)"
            " SELECT 1, gen_random_uuid(), %(id)s, 1, id, created_at, contact_id, 'waiting', 'w',"
            " created_at + interval '1 day', created_at, '{purchase}', created_at, created_at"
            " FROM events WHERE org_id = 1",
            numbers,
        )
        await tx.execute(
            "INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash,"
            " log_index, digest, block_number, block_hash, block_time, created_at)"
            " SELECT 1, id, contact_id, 1, 'c', 'Transfer', 's', id, 0, id, row_number() OVER (), 'h',"
            " created_at, created_at FROM events WHERE org_id = 1"
        )
        await tx.execute(
            "INSERT INTO starts (org_id, id, contact_id, event, created_at)"
            " SELECT 1, id, contact_id, 'segment_entered', created_at FROM events WHERE org_id = 1"
        )
        await tx.execute(
            "INSERT INTO messages"
            " (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status, created_at)"
            " SELECT 1, gen_random_uuid(), contact_id, automation_id, id, 'n', 1, 'inapp', 'sent', created_at"
            " FROM entries WHERE org_id = 1"
        )
