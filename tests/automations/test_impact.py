"""The impact of a publication: entries of earlier versions that have not ended."""

from typing import Any

from api.automations import automations
from api.automations.body import AutomationEdit
from api.automations.views import EarlierView, ImpactView, published_view
from api.store import automations as store
from api.store.automations import AutomationRow
from workbench.language.run import State

OTHER = b'{"type":"app_event","event":"other"}'


async def publish_next(desk: Any, row: AutomationRow) -> AutomationRow:
    await automations.update(desk.database, desk.author, row.id, AutomationEdit(row.revision, None, OTHER, None, None))
    published = await automations.publish(desk.database, desk.author, row.id, None)
    assert isinstance(published, AutomationRow), published
    return published


async def impact_of(desk: Any, row: AutomationRow) -> ImpactView:
    async with desk.database.transaction() as tx:
        earlier = await store.count_entries_of_other_versions(tx, row.org_id, row.id, row.published_version)
    return published_view(row, earlier).impact


async def test_entries_that_have_not_ended_are_counted_by_version_node_and_state(desk: Any) -> None:
    row, unconcerned = await desk.publish(), await desk.publish()
    for state in [*State, State.WAITING]:
        await desk.add_entry(row.id, state)
    await desk.add_entry(unconcerned.id, "waiting")
    await desk.rows("UPDATE entries SET node_id = 'm1' WHERE state <> 'pending'")
    published = await publish_next(desk, row)
    assert await impact_of(desk, published) == ImpactView(
        6,
        (
            EarlierView(1, None, "pending", 1, "finishes"),
            EarlierView(1, "m1", "paused", 1, "finishes"),
            EarlierView(1, "m1", "retrying", 1, "finishes"),
            EarlierView(1, "m1", "running", 1, "finishes"),
            EarlierView(1, "m1", "waiting", 2, "finishes"),
        ),
    )


async def test_entries_of_the_published_version_itself_are_not_concerned(desk: Any) -> None:
    row = await desk.publish()
    await desk.add_entry(row.id, "waiting")
    assert await impact_of(desk, row) == ImpactView(0, ())


async def test_they_finish_on_their_own_version(desk: Any) -> None:
    row = await desk.publish()
    await desk.ingest(event="first_deposit", contact={"walletAddress": "0xAB"}, payload={}, idempotencyKey="k1")
    published = await publish_next(desk, row)
    [earlier] = (await impact_of(desk, published)).earlier
    assert (earlier.version, earlier.then) == (1, "finishes")
    await desk.drive()
    assert await desk.rows("SELECT automation_version, node_id FROM entries") == [(1, "m1")]
    assert await impact_of(desk, published) == ImpactView(0, ())


async def test_entries_from_before_the_first_publication_end(desk: Any) -> None:
    row = await desk.create()
    await desk.ingest(event="first_deposit", contact={"walletAddress": "0xAB"}, idempotencyKey="k1")
    published = await automations.publish(desk.database, desk.author, row.id, None)
    assert await impact_of(desk, published) == ImpactView(
        1, (EarlierView(None, None, "pending", 1, "no_published_version"),)
    )
    await desk.drive()
    assert await desk.rows("SELECT state, outcome FROM entries") == [("completed", "no_published_version")]


async def test_entries_of_an_automation_that_is_off_end_cancelled(desk: Any) -> None:
    row = await desk.publish()
    await automations.deactivate(desk.database, desk.author, row.id)
    await desk.add_entry(row.id, "running")  # a worker held it
    published = await publish_next(desk, await current(desk, row.id))
    assert [entry.then for entry in (await impact_of(desk, published)).earlier] == ["automation_inactive"]


async def current(desk: Any, automation_id: str) -> AutomationRow:
    async with desk.database.transaction() as tx:
        row = await store.find_automation(tx, desk.org_id, automation_id)
    assert row is not None
    return row
