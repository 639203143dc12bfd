"""The impact of a publication: entries of earlier versions that have not ended."""

from typing import Any

from api.automations import automations
from api.automations.body import AutomationEdit
from api.automations.views import impact_view
from api.store import automations as store
from api.store.automations import AutomationRow
from tests.inapp.wallet import evm_wallet
from workbench.language.responses import EarlierView, ImpactView
from workbench.language.run import State

OTHER = b'{"type":"app_event","event":"other"}'


async def publish_next(tenant: Any, row: AutomationRow) -> AutomationRow:
    await automations.update(
        tenant.database, tenant.author, row.id, AutomationEdit(row.revision, None, OTHER, None, None)
    )
    published = await automations.publish(tenant.database, tenant.author, row.id, None)
    assert isinstance(published, AutomationRow), published
    return published


async def impact_of(tenant: Any, row: AutomationRow) -> ImpactView:
    async with tenant.database.transaction() as tx:
        earlier = await store.count_entries_of_other_versions(tx, row.org_id, row.id, row.published_version)
    return impact_view(earlier, active=row.active)


async def test_entries_that_have_not_ended_are_counted_by_version_node_and_state(tenant: Any) -> None:
    row, unconcerned = await tenant.publish(), await tenant.publish()
    for state in [*State, State.WAITING]:
        await tenant.add_entry(row.id, state)
    await tenant.add_entry(unconcerned.id, "waiting")
    await tenant.rows("UPDATE entries SET node_id = 'm1' WHERE state <> 'pending'")
    published = await publish_next(tenant, row)
    assert await impact_of(tenant, published) == ImpactView(
        6,
        (
            EarlierView(1, None, "pending", 1, "finishes"),
            EarlierView(1, "m1", "paused", 1, "finishes"),
            EarlierView(1, "m1", "retrying", 1, "finishes"),
            EarlierView(1, "m1", "running", 1, "finishes"),
            EarlierView(1, "m1", "waiting", 2, "finishes"),
        ),
    )


async def test_entries_of_the_published_version_itself_are_not_concerned(tenant: Any) -> None:
    row = await tenant.publish()
    await tenant.add_entry(row.id, "waiting")
    assert await impact_of(tenant, row) == ImpactView(0, ())


async def test_entries_finish_on_their_own_version(tenant: Any) -> None:
    row = await tenant.publish()
    await tenant.ingest(
        event="first_deposit", contact={"walletAddress": evm_wallet("AB")}, payload={}, idempotencyKey="k1"
    )
    published = await publish_next(tenant, row)
    [earlier] = (await impact_of(tenant, published)).earlier
    assert (earlier.version, earlier.then) == (1, "finishes")
    await tenant.drive()
    assert await tenant.rows("SELECT automation_version, node_id FROM entries") == [(1, "m1")]
    assert await impact_of(tenant, published) == ImpactView(0, ())


async def test_entries_from_before_the_first_publication_end(tenant: Any) -> None:
    row = await tenant.create()
    await tenant.ingest(event="first_deposit", contact={"walletAddress": evm_wallet("AB")}, idempotencyKey="k1")
    published = await automations.publish(tenant.database, tenant.author, row.id, None)
    assert await impact_of(tenant, published) == ImpactView(
        1, (EarlierView(None, None, "pending", 1, "no_published_version"),)
    )
    await tenant.drive()
    assert await tenant.rows("SELECT state, outcome FROM entries") == [("completed", "no_published_version")]


async def test_entries_of_an_automation_that_is_off_end_cancelled(tenant: Any) -> None:
    row = await tenant.publish()
    await automations.deactivate(tenant.database, tenant.author, row.id)
    await tenant.add_entry(row.id, "running")  # a worker held it
    published = await publish_next(tenant, await current(tenant, row.id))
    assert [entry.then for entry in (await impact_of(tenant, published)).earlier] == ["automation_inactive"]


async def current(tenant: Any, automation_id: str) -> AutomationRow:
    async with tenant.database.transaction() as tx:
        row = await store.find_automation(tx, tenant.org_id, automation_id)
    assert row is not None
    return row
