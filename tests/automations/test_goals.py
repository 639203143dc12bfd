"""Goal rates: held-out and treated contacts are measured alike, whatever the engine did for them."""

import tracemalloc
from typing import Any

import pytest

from api.automations import automations, goals
from api.automations.automations import Refusal
from api.automations.body import AutomationEdit
from api.clock import uuid7
from api.contacts.merge import Pair, UndoneView, merge, undo
from api.store.automations import LAST_ID
from api.store.database import load
from workbench.language.body import read_body
from workbench.language.codec import encode
from workbench.language.lift import Lift, LiftGroup
from workbench.language.nodes import HOLDOUT_NODE_ID, bucket
from workbench.language.responses import GoalView, MergeView

NODES = [{"id": "t", "type": "app_event"}, {"id": "d", "type": "delay", "data": {"seconds": 3600}}]
EDGES = [{"source": "t", "target": "d"}]


def graph(**settings: Any) -> dict[str, Any]:
    return {"nodes": NODES, "edges": EDGES, "settings": {"goal": {"event": "bought"}} | settings}


async def rate(tenant: Any, automation_id: str, days: int = 30) -> GoalView:
    view = await goals.measure_goal(
        tenant.database, tenant.org_id, tenant.keys, automation_id, days, tenant.clock.now()
    )
    assert isinstance(view, GoalView)
    return view


async def send(tenant: Any, event: str, *people: str, **payload: Any) -> None:
    for person in people:
        await tenant.ingest(event=event, contact={"externalId": person}, payload=payload)


async def sides(tenant: Any, automation_id: str, percent: int) -> dict[str, bool]:
    """Return whether each contact is held out, by external id, as `bucket` decides."""
    rows = await tenant.rows("SELECT external_id, id::text FROM contacts")
    return {person: bucket(automation_id, HOLDOUT_NODE_ID, contact_id) < percent for person, contact_id in rows}


async def test_held_out_contacts_reach_the_goal_though_they_get_nothing(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(holdout=50))
    people = [f"p{number}" for number in range(16)]
    await send(tenant, "first_deposit", *people)
    await tenant.drive()
    is_held_out = await sides(tenant, row.id, 50)
    some_held = [person for person in people if is_held_out[person]]
    others = [person for person in people if not is_held_out[person]]
    assert some_held
    assert others
    await send(tenant, "bought", some_held[0], *others[:2], others[0], "a contact without entry")
    await tenant.drive()
    view = await rate(tenant, row.id)
    assert (view.goal, view.holdout, view.since_version) == ("bought", 50, 1)
    assert view.within_seconds == 7 * 86_400 + 3_600
    assert view.held_out == LiftGroup(len(some_held), 1)
    assert view.treated == LiftGroup(len(others), 2)
    assert view.lift == Lift("too_few")
    assert [(day.treated, day.held_out) for day in view.by_day] == [(view.treated, view.held_out)]
    ends = await tenant.rows("SELECT outcome, count(*) FROM entries WHERE state <> 'waiting' GROUP BY 1 ORDER BY 1")
    assert ends == [("goal", 2), ("holdout", len(some_held))]


async def test_a_contact_counts_once_from_its_first_entry_and_a_late_engine_loses_none(tenant: Any) -> None:
    row = await tenant.publish(graph=graph())
    await send(tenant, "bought", "early")
    await send(tenant, "first_deposit", "early", "late", "late")
    await send(tenant, "bought", "late", "late")
    await tenant.drive()
    assert await tenant.rows("SELECT step FROM entries WHERE outcome = 'goal'") == [(1,), (1,)]
    view = await rate(tenant, row.id)
    assert (view.treated, view.held_out, view.lift) == (LiftGroup(2, 1), LiftGroup(), None)


async def test_a_goal_after_the_window_or_of_a_refused_entry_does_not_count(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(reentry={"policy": "once"}))
    await send(tenant, "first_deposit", "slow", "slow", "quick")
    await tenant.drive()
    await send(tenant, "bought", "slow", "quick")
    assert (await rate(tenant, row.id)).treated == LiftGroup(2, 2)
    await tenant.rows(
        "UPDATE entries SET event_created_at = (event_created_at AT TIME ZONE 'UTC' - interval '8 days')"
        " AT TIME ZONE 'UTC' WHERE state = 'waiting'"
    )
    assert (await rate(tenant, row.id)).treated == LiftGroup(2, 0)


async def test_the_language_decides_on_the_filters_of_the_goal(tenant: Any) -> None:
    filters = [
        {"path": "amount", "operator": "eq", "value": 5},
        {"path": "contact.plan", "operator": "eq", "value": "pro"},
    ]
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await send(tenant, "first_deposit", "a", "b", "c")
    await tenant.drive()
    for person, plan in (("a", "pro"), ("b", "free"), ("c", "pro")):
        await tenant.ingest(event="seen", contact={"externalId": person}, attributes={"plan": plan})
    await send(tenant, "bought", "a", "b", "c", amount=4)
    await send(tenant, "bought", "a", "b", amount=5)
    await send(tenant, "bought", "c", amount="5")
    assert (await rate(tenant, row.id)).treated == LiftGroup(3, 1)


async def test_only_versions_with_the_holdout_of_today_are_compared(tenant: Any) -> None:
    row = await tenant.publish(graph=graph())
    await send(tenant, "first_deposit", "before")
    await tenant.drive()
    edit = read_body(AutomationEdit, encode({"revision": row.revision, "graph": graph(holdout=10)}))
    assert not isinstance(edit, tuple)
    await automations.update(tenant.database, tenant.author, row.id, edit)
    await automations.publish(tenant.database, tenant.author, row.id, None)
    view = await rate(tenant, row.id)
    assert (view.since_version, view.treated + view.held_out) == (2, LiftGroup())
    await automations.rollback(tenant.database, tenant.author, row.id, 1)
    view = await rate(tenant, row.id)
    assert (view.holdout, view.since_version, view.lift) == (0, 3, None)


async def test_without_a_goal_nothing_is_measured(tenant: Any) -> None:
    row = await tenant.publish()
    assert await rate(tenant, row.id) == GoalView(None, 30)
    unpublished = await tenant.create(graph=graph())
    assert (await rate(tenant, unpublished.id)).goal is None
    other, now = "0198c0de-0000-7000-8000-000000000001", tenant.clock.now()
    assert isinstance(await goals.measure_goal(tenant.database, tenant.org_id, tenant.keys, other, 30, now), Refusal)


async def test_only_entries_of_those_days_count(tenant: Any) -> None:
    row = await tenant.publish(graph=graph())
    await send(tenant, "first_deposit", "x")
    await tenant.drive()
    assert (await rate(tenant, row.id, 1)).treated.contacts == 1
    two_days_ago = uuid7(tenant.clock.now_us() - 2 * 86_400 * 1_000_000)
    await tenant.rows("UPDATE entries SET id = %s", two_days_ago)
    assert (await rate(tenant, row.id, 1)).treated.contacts == 0
    assert (await rate(tenant, row.id, 3)).treated.contacts == 1


CONTRACT = f"0x{'c0' * 20}"


async def log(tenant: Any, person: str, value: str = "1", *, removed: bool = False) -> None:
    """Store a log about a contact, as the follower does."""
    await tenant.rows(
        "INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index,"
        " digest, block_number, block_hash, block_time, args, removed, created_at)"
        " SELECT %s, %s, id, 1, %s, 'Transfer', 'Transfer()', %s, 0, gen_random_uuid(), 7, '0x', %s, %s, %s, %s"
        " FROM contacts WHERE external_id = %s",
        *(tenant.org_id, uuid7(tenant.clock.unique_now_us()), CONTRACT, uuid7(tenant.clock.unique_now_us())),
        *(tenant.clock.now(), encode({"value": value}).decode(), removed, tenant.clock.now(), person),
    )


@pytest.mark.parametrize("filters", [[], [{"path": "value", "operator": "eq", "value": "1"}]], ids=["any", "filtered"])
async def test_a_goal_on_a_chain_counts_unless_its_log_was_dropped(tenant: Any, filters: list[Any]) -> None:
    row = await tenant.publish(graph=graph(goal={"event": f"{CONTRACT}:Transfer", "filters": filters}))
    await send(tenant, "first_deposit", "a", "b", "c")
    await tenant.drive()
    await log(tenant, "a")
    await log(tenant, "b", removed=True)
    assert (await rate(tenant, row.id)).treated == LiftGroup(3, 1)


async def test_the_goal_is_found_however_many_events_of_its_name_came_before(tenant: Any) -> None:
    filters = [{"path": "amount", "operator": "neq", "value": 1}]
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await send(tenant, "first_deposit", "busy", "other")
    await send(tenant, "bought", *["busy"] * 150, amount=1)
    await send(tenant, "bought", "busy", amount=2)
    assert (await rate(tenant, row.id)).treated == LiftGroup(0, 0)
    await tenant.drive()
    assert (await rate(tenant, row.id)).treated == LiftGroup(2, 1)


async def test_an_entry_at_the_first_node_of_a_graph_without_a_trigger_counts(tenant: Any) -> None:
    wait = {"nodes": NODES[1:], "settings": {"goal": {"event": "bought"}, "holdout": 50}}
    fail = {
        "nodes": [{"id": "m", "type": "send_inapp", "data": {"title": "x", "body": "y"}}],
        "settings": wait["settings"],
    }
    for start in (wait, fail):
        row = await tenant.publish(graph=start)
        people = [f"{row.id}-{number}" for number in range(12)]
        await send(tenant, "first_deposit", *people)
        await tenant.drive()
        await send(tenant, "bought", *people)
        held_out = await sides(tenant, row.id, 50)
        held_count = sum(held_out[person] for person in people)
        view = await rate(tenant, row.id)
        assert (view.treated, view.held_out) == (
            LiftGroup(12 - held_count, 12 - held_count),
            LiftGroup(held_count, held_count),
        )
        await automations.deactivate(tenant.database, tenant.author, row.id)


@pytest.mark.parametrize("policy", ["always", "once", "not_while_running"])
async def test_contacts_are_compared_from_the_first_time_they_ever_entered(tenant: Any, policy: str) -> None:
    row = await tenant.publish(graph=graph(holdout=50, reentry={"policy": policy}))
    people = [f"p{number}" for number in range(12)]
    await send(tenant, "first_deposit", *people)
    await tenant.drive()
    await send(tenant, "first_deposit", *people, "new")
    await tenant.drive()
    is_held_out = await sides(tenant, row.id, 50)
    view = await rate(tenant, row.id)
    assert (view.treated.contacts, view.held_out.contacts) == (
        13 - sum(is_held_out.values()),
        sum(is_held_out.values()),
    )
    assert view.later_entries == 12
    long_ago = uuid7(tenant.clock.now_us() - 40 * 86_400 * 1_000_000)[:18]
    await tenant.rows(
        "UPDATE entries e SET id = (%s || right(e.id::text, 18))::uuid,"
        " created_at = (created_at AT TIME ZONE 'UTC' - interval '40 days') AT TIME ZONE 'UTC'"
        " FROM (SELECT org_id, contact_id, min(id::text)::uuid AS id FROM entries GROUP BY 1, 2 HAVING count(*) > 1) f"
        " WHERE e.org_id = f.org_id AND e.id = f.id",
        long_ago,
    )
    view = await rate(tenant, row.id)
    assert view.treated.contacts + view.held_out.contacts == 1
    assert view.later_entries == 12


async def test_two_contacts_that_became_one_count_on_the_side_of_the_first_entry(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(holdout=50))
    people = [f"p{number}" for number in range(12)]
    await send(tenant, "first_deposit", *people)
    await tenant.drive()
    is_held_out = await sides(tenant, row.id, 50)
    counted = {side: sum(is_held is side for is_held in is_held_out.values()) for side in (True, False)}
    first_held = next(person for person in people[:-1] if is_held_out[person])
    later = next(person for person in people[people.index(first_held) + 1 :] if not is_held_out[person])
    ids = dict(await tenant.rows("SELECT external_id, id::text FROM contacts"))
    await send(tenant, "bought", later)
    merged = await merge(tenant.database, tenant.author, Pair(ids[later], ids[first_held]), str)
    assert isinstance(merged, MergeView)
    view = await rate(tenant, row.id)
    assert (view.held_out, view.treated) == (LiftGroup(counted[True], 1), LiftGroup(counted[False] - 1, 0))
    assert (view.mixed, view.later_entries) == (1, 1)
    assert isinstance(await undo(tenant.database, tenant.author, merged.id or ""), UndoneView)
    view = await rate(tenant, row.id)
    assert (view.held_out, view.treated) == (LiftGroup(counted[True], 0), LiftGroup(counted[False], 1))
    assert (view.mixed, view.later_entries) == (0, 0)


async def test_a_contact_that_is_refused_later_stays_on_one_side(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(holdout=50, reentry={"policy": "once"}))
    people = [f"p{number}" for number in range(8)]
    for _ in range(2):
        await send(tenant, "first_deposit", *people)
        await tenant.drive()
    view = await rate(tenant, row.id)
    assert (view.treated.contacts + view.held_out.contacts, view.mixed, view.later_entries) == (8, 0, 8)


async def fill(tenant: Any, automation_id: str, people: int, events: int, size: int = 1) -> None:
    """Add contacts with an entry each and `events` later events of the goal, with texts of `size` characters."""
    await tenant.rows(
        "INSERT INTO contacts (org_id, id, external_id, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), 'filled', now(), now() FROM generate_series(1, %s) RETURNING 1",
        *(tenant.org_id, people),
    )
    await tenant.rows(
        "INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id,"
        " state, node_id, due_at, created_at, updated_at)"
        " SELECT org_id, (%s || right(id::text, 18))::uuid, %s, 1, id, now() - interval '1 hour', id, 'waiting',"
        " 'd', now(), now(), now() FROM contacts WHERE external_id = 'filled' RETURNING 1",
        *(uuid7(tenant.clock.now_us())[:18], automation_id),
    )
    await tenant.rows(
        "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key, payload)"
        " SELECT org_id, gen_random_uuid(), id, 'bought', now(),"
        " now() - interval '30 minutes' + n * interval '1 second', '',"
        " jsonb_build_object('n', n, 'text', repeat('x', %s))"
        " FROM contacts, generate_series(1, %s) AS n WHERE external_id = 'filled' RETURNING 1",
        *(size, events),
    )
    await tenant.rows("UPDATE contacts SET external_id = NULL WHERE external_id = 'filled'")


async def peak(tenant: Any, automation_id: str) -> tuple[LiftGroup, int]:
    """Return the treated group, and the peak of traced memory in bytes."""
    tracemalloc.start()
    try:
        return (await rate(tenant, automation_id)).treated, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_memory_does_not_grow_with_entries_and_events(tenant: Any) -> None:
    filters = [{"path": "payload.n", "operator": "eq", "value": 20}]
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await fill(tenant, row.id, 100, 20, 1_000)
    few, small = await peak(tenant, row.id)
    await fill(tenant, row.id, 400, 20, 1_000)
    many, large = await peak(tenant, row.id)
    assert (few, many) == (LiftGroup(100, 100), LiftGroup(500, 500))
    assert large < 1.5 * small


async def test_entries_and_events_over_the_limits_are_reported(tenant: Any) -> None:
    filters = [{"path": "payload.n", "operator": "eq", "value": 1_001}]
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await fill(tenant, row.id, 1, 1_001)
    view = await rate(tenant, row.id)
    assert (view.treated, view.unknown, view.cut_at) == (LiftGroup(1, 0), 1, None)
    await fill(tenant, row.id, 3, 0)
    now = tenant.clock.now()
    view = await goals.measure_goal(tenant.database, tenant.org_id, tenant.keys, row.id, 30, now, limit=2)
    assert isinstance(view, GoalView)
    assert view.treated == LiftGroup(2, 0)
    assert view.cut_at is not None
    whole = await goals.measure_goal(tenant.database, tenant.org_id, tenant.keys, row.id, 30, now, limit=4)
    assert isinstance(whole, GoalView)
    assert (whole.treated, whole.cut_at) == (LiftGroup(4, 0), None)


@pytest.mark.parametrize(
    ("filters", "reached"),
    [
        ([{"path": "n", "operator": "eq", "value": 1_500}], 1),
        ([{"path": "n", "operator": "in", "value": [0, 1_500.0]}, {"path": "text", "operator": "exists"}], 1),
        ([{"path": "n", "operator": "eq", "value": 1_500}, {"path": "text", "operator": "eq", "value": "y"}], 0),
    ],
    ids=["one", "some", "two"],
)
async def test_events_that_cannot_be_the_goal_are_not_read(tenant: Any, filters: list[Any], reached: int) -> None:
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await fill(tenant, row.id, 1, 1_500)
    view = await rate(tenant, row.id)
    assert (view.treated, view.unknown) == (LiftGroup(1, reached), 0)


async def test_filters_on_contact_and_identifiers_are_decided_for_every_event(tenant: Any) -> None:
    filters = [
        {"path": "payload.n", "operator": "eq", "value": 7},
        {"path": "contact.plan", "operator": "eq", "value": "pro"},
        {"path": "externalId", "operator": "eq", "value": "a"},
        {"path": "deep.down", "operator": "in", "value": [1, 2]},
    ]
    row = await tenant.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await send(tenant, "first_deposit", "a", "b")
    await tenant.ingest(event="seen", contact={"externalId": "a"}, attributes={"plan": "pro"})
    await send(tenant, "bought", "a", "b", n=7, deep={"down": 2})
    await tenant.drive()
    assert (await rate(tenant, row.id)).treated == LiftGroup(2, 1)


async def test_the_event_that_started_the_entry_is_not_its_goal_the_next_of_its_name_is(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(goal={"event": "first_deposit"}))
    await send(tenant, "first_deposit", "again", "again", "only")
    await tenant.drive()
    view = await rate(tenant, row.id)
    assert (view.treated, view.later_entries) == (LiftGroup(2, 1), 1)


async def test_a_changed_goal_also_counts_entries_of_the_previous_version(tenant: Any) -> None:
    row = await tenant.publish(graph=graph(holdout=10))
    await send(tenant, "first_deposit", "a", "b")
    await tenant.drive()
    await send(tenant, "bought", "a", "b")
    await send(tenant, "upgraded", "b")
    edit = read_body(
        AutomationEdit, encode({"revision": row.revision, "graph": graph(holdout=10, goal={"event": "upgraded"})})
    )
    assert not isinstance(edit, tuple)
    await automations.update(tenant.database, tenant.author, row.id, edit)
    await automations.publish(tenant.database, tenant.author, row.id, None)
    view = await rate(tenant, row.id)
    assert (view.goal, view.since_version, view.treated + view.held_out) == ("upgraded", 1, LiftGroup(2, 1))


async def test_at_a_deactivation_entries_under_way_count_and_pending_ones_do_not(tenant: Any) -> None:
    row = await tenant.publish(graph=graph())
    await send(tenant, "first_deposit", "begun")
    await tenant.drive()
    await send(tenant, "first_deposit", "late")
    await automations.deactivate(tenant.database, tenant.author, row.id)
    await tenant.drive()
    await send(tenant, "bought", "begun", "late")
    assert (await rate(tenant, row.id)).treated == LiftGroup(1, 1)
    await automations.activate(tenant.database, tenant.author, row.id)
    await send(tenant, "first_deposit", "begun", "late")
    await tenant.drive()
    view = await rate(tenant, row.id)
    assert (view.treated, view.later_entries) == (LiftGroup(2, 1), 1)


def scanned_rows(plan: Any) -> float:
    """Return the number of rows of `entries` that a plan read. Citus nests the plans of its shards."""
    if isinstance(plan, list):
        return sum(map(scanned_rows, plan))
    if not isinstance(plan, dict):
        return 0
    rows = 0.0
    if plan.get("Relation Name", "").startswith("entries"):
        rows = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return rows + sum(map(scanned_rows, plan.values()))


async def test_a_page_of_entries_reads_no_more_than_its_rows(tenant: Any) -> None:
    row = await tenant.publish(graph=graph())
    await fill(tenant, row.id, 50, 0)
    values = {"org_id": tenant.org_id, "automation_id": row.id, "since_id": row.id, "before_id": LAST_ID, "limit": 20}
    async with tenant.database.transaction() as tx:
        # Without a sort only an index in the order of the page is left, whatever statistics the table has. A statement
        # with another order than the index's would still have to sort, and would read all 50 rows.
        await tx.execute("SET LOCAL enable_sort = off")
        await tx.execute("SET LOCAL enable_seqscan = off")
        statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {load('automations')['list_goal_entries']}"
        (plan,) = (await (await tx.execute(statement, values)).fetchall())[0]
    assert scanned_rows(plan) == 20
