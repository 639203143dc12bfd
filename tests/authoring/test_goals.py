"""Goal rates: held-out and treated contacts are measured alike, whatever the engine did for them."""

from typing import Any

import pytest

from api.authoring import automations, goals
from api.authoring.draft import read_edit
from api.authoring.goals import Asked, GoalView
from api.authoring.refusal import Refusal
from api.clock import uuid7
from api.language.codec import encode
from api.language.lift import Lift, Side
from api.language.split import HOLDOUT, share

NODES = [{"id": "t", "type": "app_event"}, {"id": "d", "type": "delay", "data": {"seconds": 3600}}]
EDGES = [{"source": "t", "target": "d"}]


def graph(**settings: Any) -> dict[str, Any]:
    return {"nodes": NODES, "edges": EDGES, "settings": {"goal": {"event": "bought"}} | settings}


async def rate(desk: Any, automation_id: str, days: int = 30) -> GoalView:
    found = await goals.goal_of(desk.database, desk.org_id, desk.keys, Asked(automation_id, days, desk.clock.now()))
    assert isinstance(found, GoalView)
    return found


async def come(desk: Any, event: str, *people: str, **payload: Any) -> None:
    for person in people:
        await desk.ingest(event=event, contact={"externalId": person}, payload=payload)


async def sides(desk: Any, automation_id: str, percent: int) -> dict[str, bool]:
    """Return who is held out, by external id, as anybody can compute it."""
    rows = await desk.rows("SELECT external_id, id::text FROM contacts")
    return {person: share(automation_id, HOLDOUT, contact_id) < percent for person, contact_id in rows}


async def test_held_out_contacts_reach_the_goal_though_they_get_nothing(desk: Any) -> None:
    row = await desk.publish(graph=graph(holdout=50))
    people = [f"p{number}" for number in range(16)]
    await come(desk, "first_deposit", *people)
    await desk.drive()
    held = await sides(desk, row.id, 50)
    some_held = [person for person in people if held[person]]
    others = [person for person in people if not held[person]]
    assert some_held
    assert others
    await come(desk, "bought", some_held[0], *others[:2], others[0], "a stranger")
    await desk.drive()
    found = await rate(desk, row.id)
    assert (found.goal, found.holdout, found.since_version) == ("bought", 50, 1)
    assert found.within_seconds == 7 * 86_400 + 3_600
    assert found.held_out == Side(len(some_held), 1)
    assert found.treated == Side(len(others), 2)
    assert found.lift == Lift("too_few")
    assert [(day.treated, day.held_out) for day in found.by_day] == [(found.treated, found.held_out)]
    ends = await desk.rows("SELECT outcome, count(*) FROM entries WHERE state <> 'waiting' GROUP BY 1 ORDER BY 1")
    assert ends == [("goal", 2), ("holdout", len(some_held))]


async def test_a_contact_counts_once_from_its_first_entry_and_a_late_engine_loses_none(desk: Any) -> None:
    row = await desk.publish(graph=graph())
    await come(desk, "bought", "early")
    await come(desk, "first_deposit", "early", "late", "late")
    await come(desk, "bought", "late", "late")
    await desk.drive()
    assert await desk.rows("SELECT step FROM entries WHERE outcome = 'goal'") == [(0,), (0,)]
    found = await rate(desk, row.id)
    assert (found.treated, found.held_out, found.lift) == (Side(2, 1), Side(), None)


@pytest.mark.plain
async def test_a_goal_after_the_horizon_or_of_who_was_refused_does_not_count(desk: Any) -> None:
    row = await desk.publish(graph=graph(reentry={"policy": "once"}))
    await come(desk, "first_deposit", "slow", "slow", "quick")
    await desk.drive()
    await come(desk, "bought", "slow", "quick")
    assert (await rate(desk, row.id)).treated == Side(2, 2)
    await desk.rows(
        "UPDATE entries SET event_created_at = event_created_at - interval '8 days' WHERE state = 'waiting'"
    )
    assert (await rate(desk, row.id)).treated == Side(2, 0)


async def test_the_language_judges_the_filters_of_the_goal(desk: Any) -> None:
    filters = [
        {"path": "amount", "operator": "eq", "value": 5},
        {"path": "contact.plan", "operator": "eq", "value": "pro"},
    ]
    row = await desk.publish(graph=graph(goal={"event": "bought", "filters": filters}))
    await come(desk, "first_deposit", "a", "b", "c")
    await desk.drive()
    for person, plan in (("a", "pro"), ("b", "free"), ("c", "pro")):
        await desk.ingest(event="seen", contact={"externalId": person}, attributes={"plan": plan})
    await come(desk, "bought", "a", "b", "c", amount=4)
    await come(desk, "bought", "a", "b", amount=5)
    await come(desk, "bought", "c", amount="5")
    assert (await rate(desk, row.id)).treated == Side(3, 1)


async def test_only_versions_with_the_holdout_of_today_are_compared(desk: Any) -> None:
    row = await desk.publish(graph=graph())
    await come(desk, "first_deposit", "before")
    await desk.drive()
    edit = read_edit(encode({"revision": row.revision, "graph": graph(holdout=10)}))
    assert not isinstance(edit, tuple)
    await automations.update(desk.database, desk.author, row.id, edit)
    await automations.publish(desk.database, desk.author, row.id, None)
    found = await rate(desk, row.id)
    assert (found.since_version, found.treated + found.held_out) == (2, Side())
    await automations.rollback(desk.database, desk.author, row.id, 1)
    found = await rate(desk, row.id)
    assert (found.holdout, found.since_version, found.lift) == (0, 3, None)


async def test_without_a_goal_there_is_nothing_to_measure(desk: Any) -> None:
    row = await desk.publish()
    assert await rate(desk, row.id) == GoalView(None, 30)
    unpublished = await desk.create(graph=graph())
    assert (await rate(desk, unpublished.id)).goal is None
    asked = Asked("0198c0de-0000-7000-8000-000000000001", 30, desk.clock.now())
    assert isinstance(await goals.goal_of(desk.database, desk.org_id, desk.keys, asked), Refusal)


async def test_only_entries_of_those_days_count(desk: Any) -> None:
    row = await desk.publish(graph=graph())
    await come(desk, "first_deposit", "x")
    await desk.drive()
    assert (await rate(desk, row.id, 1)).treated.contacts == 1
    two_days_ago = uuid7(desk.clock.now_us() - 2 * 86_400 * 1_000_000)
    await desk.rows("UPDATE entries SET id = %s", two_days_ago)
    assert (await rate(desk, row.id, 1)).treated.contacts == 0
    assert (await rate(desk, row.id, 3)).treated.contacts == 1
