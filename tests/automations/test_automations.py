"""Changes of automations: create, edit, publish, roll back, switch on and off, archive."""

import asyncio
import threading
from typing import Any

import psycopg
import pytest

from api.automations import automations
from api.automations.automations import Refusal
from api.automations.body import AutomationEdit
from api.store import automations as store
from api.store import events
from api.store.automations import FIRST_ID, AutomationRow, VersionRow
from api.store.database import APPLICATION_NAME, RefusedDataError, libpq_dsn
from api.store.query import run
from tests.automations.conftest import GREETING
from workbench.language.codec import decode, encode
from workbench.language.graph import read_graph

EXACT = b'{"type":"app_event","filters":[{"path":"a","operator":"in","value":[1.10,1e2,12345678901234567890.125]}]}'


def edit(revision: int, **changes: Any) -> AutomationEdit:
    return AutomationEdit(revision, *(changes.get(name) for name in ("name", "trigger_spec", "graph", "active")))


async def versions(tenant: Any, automation_id: str) -> list[VersionRow]:
    async with tenant.database.transaction() as tx:
        return await store.list_versions(tx, tenant.org_id, automation_id, 100)


async def entry_states(tenant: Any) -> dict[str, tuple[str, str | None]]:
    return {row[0]: (row[1], row[2]) for row in await tenant.rows("SELECT id, state, outcome FROM entries")}


async def test_a_new_automation_is_active_unpublished_and_at_revision_1(tenant: Any) -> None:
    row = await tenant.create()
    assert (row.name, row.active, row.published_version, row.revision) == ("greeting", True, None, 1)
    assert await tenant.traces() == [1, 1, 1, 0]


async def test_numbers_of_a_spec_keep_every_digit(tenant: Any) -> None:
    row = await tenant.create()
    changed = await automations.update(tenant.database, tenant.author, row.id, edit(1, trigger_spec=EXACT))
    assert decode(changed.trigger_spec) == decode(EXACT)
    assert b"1.10, 100, 12345678901234567890.125" in bytes(changed.trigger_spec)


async def test_an_edit_of_an_old_revision_is_refused_naming_the_current_one(tenant: Any) -> None:
    row = await tenant.create()
    first = await automations.update(tenant.database, tenant.author, row.id, edit(1, name="mine"))
    second = await automations.update(tenant.database, tenant.author, row.id, edit(1, name="yours"))
    assert (first.name, first.revision) == ("mine", 2)
    assert (second.reason, str(second.problems[0])) == (
        "conflict",
        "revision: the automation is at revision 2 now, not 1",
    )


async def test_one_of_two_concurrent_edits_succeeds(tenant: Any) -> None:
    row = await tenant.create()
    both = [
        automations.update(tenant.database, tenant.author, row.id, edit(1, name=name)) for name in ("mine", "yours")
    ]
    results = await asyncio.gather(*both)
    assert sorted(type(result).__name__ for result in results) == ["AutomationRow", "Refusal"]
    assert await tenant.traces() == [2, 2, 1, 0]


async def test_concurrent_publications_create_one_version(tenant: Any) -> None:
    row = await tenant.create()
    both = [automations.publish(tenant.database, tenant.author, row.id, None) for _ in range(2)]
    assert [(row.published_version, row.revision) for row in await asyncio.gather(*both)] == [(1, 2), (1, 2)]
    assert await tenant.traces() == [2, 2, 1, 1]


async def test_graphs_are_read_in_threads_because_templates_may_take_seconds(
    tenant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def read(value: Any) -> Any:
        threads.append(threading.current_thread())
        return read_graph(value)

    monkeypatch.setattr(automations, "read_graph", read)
    await tenant.publish()
    assert len(threads) == 1
    assert threading.main_thread() not in threads


async def test_every_change_leaves_a_revision_an_epoch_and_an_audit_row(tenant: Any) -> None:
    row = await tenant.publish()
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=EXACT))
    await automations.publish(tenant.database, tenant.author, row.id, 3)
    await automations.rollback(tenant.database, tenant.author, row.id, 1)
    await automations.deactivate(tenant.database, tenant.author, row.id)
    await automations.activate(tenant.database, tenant.author, row.id)
    last = await automations.archive(tenant.database, tenant.author, row.id)
    audit = await tenant.rows("SELECT action, key_id, subject_id, detail FROM audit_log ORDER BY id")
    assert [action.removeprefix("automation.") for action, *_ in audit] == [
        *("create", "publish", "update", "publish", "rollback", "deactivate", "activate", "archive")
    ]
    assert {(key_id, subject) for _, key_id, subject, _ in audit} == {(tenant.key_id, row.id)}
    assert decode(audit[4][3]) == {"from": 1, "version": 3, "revision": 5}
    assert (last.revision, await tenant.traces()) == (8, [8, 8, 1, 3])


async def test_a_change_that_changes_nothing_writes_nothing(tenant: Any) -> None:
    row = await tenant.publish()
    before = await tenant.traces()
    at = (tenant.database, tenant.author, row.id)
    assert await automations.publish(*at, 2) == row
    assert await automations.activate(*at) == row
    assert await automations.rollback(*at, 1) == row
    assert await tenant.traces() == before


async def test_deactivating_and_archiving_can_be_repeated(tenant: Any) -> None:
    row = await tenant.create()
    at = (tenant.database, tenant.author, row.id)
    assert await automations.deactivate(*at) == await automations.deactivate(*at)
    assert await automations.archive(*at) == await automations.archive(*at)
    assert await tenant.traces() == [3, 3, 1, 0]


async def test_a_version_never_changes(tenant: Any) -> None:
    row = await tenant.publish()
    [first] = await versions(tenant, row.id)
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=EXACT))
    await automations.publish(tenant.database, tenant.author, row.id, None)
    second, still_first = await versions(tenant, row.id)
    assert (still_first, first.published_by, first.version) == (first, tenant.key_id, 1)
    assert (second.version, decode(second.trigger_spec)) == (2, decode(EXACT))
    with pytest.raises(RefusedDataError, match="automation_versions_pkey"):
        async with tenant.database.transaction() as tx:
            await store.insert_version(tx, tenant.org_id, row.id, second, [])


async def test_a_changed_digit_is_a_new_version(tenant: Any) -> None:
    spec = b'{"type":"app_event","filters":[{"path":"a","operator":"eq","value":1%b}]}'
    row = await tenant.publish(triggerSpec=decode(spec % b""))
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=spec % b".0"))
    assert (await automations.publish(tenant.database, tenant.author, row.id, None)).published_version == 2


async def test_an_error_refuses_publication_naming_its_node(tenant: Any) -> None:
    row = await tenant.create(graph={"nodes": [{"id": "t1", "type": "app_event"}, {"id": "m1", "type": "send_fax"}]})
    refusal = await automations.publish(tenant.database, tenant.author, row.id, None)
    assert refusal.reason == "invalid"
    assert {problem.field for problem in refusal.problems} == {"node t1", "node m1"}
    assert await tenant.traces() == [1, 1, 1, 0]


async def test_rollback_publishes_the_old_spec_as_a_new_version(tenant: Any) -> None:
    row = await tenant.publish()
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=EXACT))
    await automations.publish(tenant.database, tenant.author, row.id, None)
    back = await automations.rollback(tenant.database, tenant.author, row.id, 1)
    newest, _, oldest = await versions(tenant, row.id)
    assert (newest.version, newest.trigger_spec, newest.graph) == (3, oldest.trigger_spec, oldest.graph)
    assert (back.published_version, back.trigger_spec) == (3, oldest.trigger_spec)


async def test_expressions_and_locales_are_published_only_while_every_process_knows_them(
    tenant: Any, database_url: str
) -> None:
    spec = b'{"type": "app_event", "event": "deposit", "where": "amountUsd > 500"}'
    row = await tenant.publish(triggerSpec=decode(spec))
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=EXACT))
    await automations.publish(tenant.database, tenant.author, row.id, None)
    old_name = f"{APPLICATION_NAME}0007_former_turn_indexes serve"
    with psycopg.connect(libpq_dsn(database_url), application_name=old_name):
        refusal = await automations.rollback(tenant.database, tenant.author, row.id, 1)
        assert (refusal.reason, "older version" in str(refusal.problems[0])) == ("conflict", True)
        await automations.update(tenant.database, tenant.author, row.id, edit(4, trigger_spec=spec))
        refusal = await automations.publish(tenant.database, tenant.author, row.id, None)
        assert refusal.reason == "conflict"
        (trigger, message), locales = GREETING["graph"]["nodes"], {"de": {"title": "Danke", "body": "b"}}
        nodes = [trigger, message | {"data": message["data"] | {"locales": locales}}]
        graph = encode(GREETING["graph"] | {"nodes": nodes})
        await automations.update(
            tenant.database, tenant.author, row.id, edit(5, trigger_spec=EXACT, graph=graph, name="x")
        )
        refusal = await automations.publish(tenant.database, tenant.author, row.id, None)
        assert str(refusal.problems[0]).startswith("`locales` cannot be published")
        await automations.update(tenant.database, tenant.author, row.id, edit(6, graph=encode(GREETING["graph"])))
        assert not isinstance(await automations.publish(tenant.database, tenant.author, row.id, None), Refusal)


@pytest.mark.parametrize(
    ("name", "text"), [("preferences_url", "{{ preferences_url }}"), ("sum", "{{ paid |sum('usd') }}")]
)
async def test_texts_are_published_only_while_every_process_can_render_them(
    tenant: Any, database_url: str, name: str, text: str
) -> None:
    email = {"id": "m1", "type": "send_email", "data": {"subject": "Hi", "body": text}}
    graph = encode(GREETING["graph"] | {"nodes": [GREETING["graph"]["nodes"][0], email]})
    row = await tenant.publish()
    await automations.update(tenant.database, tenant.author, row.id, edit(2, graph=graph))
    with psycopg.connect(libpq_dsn(database_url), application_name=f"{APPLICATION_NAME}0016_bounces engine"):
        refusal = await automations.publish(tenant.database, tenant.author, row.id, None)
        assert str(refusal.problems[0]).startswith(f"`{name}` cannot be published")
    assert not isinstance(await automations.publish(tenant.database, tenant.author, row.id, None), Refusal)


async def test_a_start_is_published_only_while_every_process_knows_starts(tenant: Any, database_url: str) -> None:
    row = await tenant.publish()
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=b'{"type": "broadcast"}'))
    old_name = f"{APPLICATION_NAME}0013_broadcasts engine"
    with psycopg.connect(libpq_dsn(database_url), application_name=old_name):
        refusal = await automations.publish(tenant.database, tenant.author, row.id, None)
        assert (refusal.reason, "older version" in str(refusal.problems[0])) == ("conflict", True)


async def test_rollback_leaves_unpublished_work_alone(tenant: Any) -> None:
    row = await tenant.publish()
    await automations.update(tenant.database, tenant.author, row.id, edit(2, trigger_spec=EXACT))
    await automations.publish(tenant.database, tenant.author, row.id, None)
    await automations.update(tenant.database, tenant.author, row.id, edit(4, graph=b'{"nodes":[]}'))
    back = await automations.rollback(tenant.database, tenant.author, row.id, 1)
    assert (back.published_version, decode(back.graph)) == (3, {"nodes": []})


async def test_rollback_needs_a_version_that_was_published(tenant: Any) -> None:
    row = await tenant.create()
    refusal = await automations.rollback(tenant.database, tenant.author, row.id, 1)
    assert str(refusal.problems[0]) == "version: version 1 not found; nothing is published yet"


UNAFFECTED_STATES = ("running", "completed", "exited", "dead")


@pytest.mark.parametrize(
    ("stop", "outcome"), [(automations.deactivate, "automation_inactive"), (automations.archive, "automation_archived")]
)
async def test_deactivation_cancels_entries_that_no_worker_holds(tenant: Any, stop: Any, outcome: str) -> None:
    row, other = await tenant.publish(), await tenant.publish()
    stopped = [await tenant.add_entry(row.id, state) for state in ("pending", "waiting", "retrying")]
    left = {await tenant.add_entry(row.id, state): (state, None) for state in UNAFFECTED_STATES}
    left[await tenant.add_entry(other.id, "pending")] = ("pending", None)
    await stop(tenant.database, tenant.author, row.id)
    assert await entry_states(tenant) == left | dict.fromkeys(stopped, ("cancelled", outcome))
    moves = await tenant.rows("SELECT entry_id, from_state, to_state, reason FROM entry_transitions ORDER BY entry_id")
    origins = zip(stopped, ("pending", "waiting", "retrying"), strict=True)
    assert moves == [(entry_id, origin, "cancelled", outcome) for entry_id, origin in origins]


async def test_an_edit_that_deactivates_also_cancels_entries(tenant: Any) -> None:
    row = await tenant.publish()
    entry_id = await tenant.add_entry(row.id, "waiting")
    await automations.update(tenant.database, tenant.author, row.id, edit(2, active=False))
    assert await entry_states(tenant) == {entry_id: ("cancelled", "automation_inactive")}


async def test_entries_are_cancelled_in_pages(tenant: Any) -> None:
    row = await tenant.create()
    ids = [await tenant.add_entry(row.id, "pending") for _ in range(3)]
    pending = tenant.org_id, row.id, "automation_inactive", tenant.clock.now()
    async with tenant.database.transaction() as tx:
        assert await store.cancel_entries(tx, *pending, FIRST_ID, 2) == (2, ids[1])
        assert await store.cancel_entries(tx, *pending, ids[1], 2) == (1, ids[2])
        assert await store.cancel_entries(tx, *pending, ids[2], 2) == (0, None)


async def test_a_backlog_larger_than_one_transaction_is_cancelled_completely(tenant: Any) -> None:
    row = await tenant.publish()
    await tenant.rows(
        "INSERT INTO entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at,"
        " created_at, updated_at) SELECT %s, gen_random_uuid(), %s, gen_random_uuid(), moment, gen_random_uuid(),"
        " 'waiting', moment, moment, moment FROM generate_series(1, 20001), (VALUES (%s)) AS t (moment) RETURNING 1",
        *(tenant.org_id, row.id, tenant.clock.now()),
    )
    await automations.deactivate(tenant.database, tenant.author, row.id)
    assert await tenant.rows("SELECT state, count(*) FROM entries GROUP BY state") == [("cancelled", 20_001)]
    assert await tenant.rows("SELECT count(*) FROM entry_transitions") == [(20_001,)]


@pytest.mark.parametrize("how", ["activate", "update"])
async def test_activation_does_not_revive_cancelled_entries(tenant: Any, how: str) -> None:
    row = await tenant.publish()
    await automations.deactivate(tenant.database, tenant.author, row.id)
    left = await tenant.add_entry(row.id, "waiting")
    if how == "activate":
        await automations.activate(tenant.database, tenant.author, row.id)
    else:
        await automations.update(tenant.database, tenant.author, row.id, edit(3, active=True))
    assert await entry_states(tenant) == {left: ("cancelled", "automation_inactive")}


async def test_an_archived_automation_cannot_be_changed(tenant: Any) -> None:
    row = await tenant.publish()
    at = (tenant.database, tenant.author, row.id)
    archived = await automations.archive(*at)
    attempts = [
        automations.update(*at, edit(archived.revision, name="new")),
        automations.publish(*at, None),
        automations.rollback(*at, 1),
        automations.activate(*at),
    ]
    assert {(await attempt).reason for attempt in attempts} == {"conflict"}
    assert await automations.deactivate(*at) == archived


async def test_another_organization_finds_nothing(tenant: Any, other_tenant: Any) -> None:
    row = await tenant.publish()
    before = await tenant.traces()
    at = (other_tenant.database, other_tenant.author, row.id)
    attempts = [
        automations.update(*at, edit(2, name="stolen")),
        automations.publish(*at, None),
        automations.rollback(*at, 1),
        automations.activate(*at),
        automations.deactivate(*at),
        automations.archive(*at),
    ]
    assert {(await attempt).reason for attempt in attempts} == {"unknown"}
    assert await tenant.traces() == before
    assert await other_tenant.rows("SELECT count(*) FROM audit_log WHERE org_id = %s", other_tenant.org_id) == [(0,)]


async def test_ingest_reads_the_published_trigger_or_the_drafts(tenant: Any, other_tenant: Any) -> None:
    published, draft = await tenant.publish(), await tenant.create(triggerSpec={"type": "app_event", "event": "b"})
    await automations.update(tenant.database, tenant.author, published.id, edit(2, trigger_spec=EXACT))
    for inactive in [await tenant.create(active=False), await tenant.create()]:
        await automations.archive(tenant.database, tenant.author, inactive.id)
    async with tenant.database.transaction() as tx:
        live = await events.list_active_automations(tx, tenant.org_id)
        (state,) = await run(tx, events.read_epochs([tenant.org_id, other_tenant.org_id]))
    assert [
        (automation.id, automation.published_version, decode(automation.trigger_spec)["event"]) for automation in live
    ] == [(published.id, 1, "first_deposit"), (draft.id, None, "b")]
    assert state.epochs == {tenant.org_id: 8, other_tenant.org_id: 0}


async def test_refusals_are_values(tenant: Any) -> None:
    result = await automations.activate(tenant.database, tenant.author, FIRST_ID)
    assert isinstance(result, Refusal)
    assert str(result.problems[0]) == "automation not found"
    assert isinstance(await tenant.create(), AutomationRow)
