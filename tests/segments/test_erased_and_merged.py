"""Erased and merged contacts: they never come back into a segment, also when the query runs at that moment."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from api.automations.automations import Author
from api.clock import uuid7
from api.contacts import erase as contacts_erase
from api.contacts import merge as contacts_merge
from api.contacts.erase import ErasedView, erase_again
from api.contacts.merge import Pair, UndoneView
from api.segments import segments
from api.segments.candidates import query_candidates
from api.segments.definition import query_of
from api.segments.segments import SegmentResult
from api.store import segments as store_segments
from api.store.contacts import ContactKey, erase_contact, schedule_erasure
from api.store.database import Database
from api.store.segments import SegmentRow, find_segment
from tests.segments.conftest import Team
from workbench.language.responses import MergeView

ALL = {"name": "all", "sql": "SELECT id AS contact_id FROM contacts"}
SEEN = {"name": "seen", "sql": "SELECT contact_id FROM app_events"}


def author(team: Team) -> Author:
    now_us = team.org.service.services.clock.unique_now_us()
    return Author(team.id, uuid7(now_us), now_us)


async def erase(team: Team, contact_id: str) -> None:
    assert isinstance(
        await contacts_erase.erase(team.org.service.services.system_database, author(team), contact_id), ErasedView
    )


async def merge(team: Team, keep: str, absorbed: str) -> str:
    done = await contacts_merge.merge(
        team.org.service.services.system_database, author(team), Pair(keep, absorbed), str
    )
    assert isinstance(done, MergeView)
    assert done.id is not None
    return done.id


async def unmerge(team: Team, merge_id: str) -> None:
    undone = await contacts_merge.undo(team.org.service.services.system_database, author(team), merge_id)
    assert isinstance(undone, UndoneView)


async def row_of(team: Team, name: str) -> SegmentRow:
    async with team.services.database.transaction() as tx:
        row = await find_segment(tx, team.id, name)
    assert row is not None
    return row


async def refreshed(team: Team, name: str) -> SegmentResult:
    row = await row_of(team, name)
    filled = await segments.refresh(team.services, row, team.org.service.services.clock.now())
    assert isinstance(filled, SegmentResult)
    return filled


@asynccontextmanager
async def before_commit(team: Team, name: str) -> AsyncIterator[None]:
    """Change members as a refresh does; commit and repair them when the block ends."""
    row = await row_of(team, name)
    now = team.org.service.services.clock.now()
    async with query_candidates(team.services, team.id, query_of(row)) as (tx, counts, _):
        await segments.replace_members(team.services, tx, row, counts, now)
        yield
    await segments.repair(team.services.database, row, now)


async def test_a_refresh_does_not_add_erased_contacts(acme: Team) -> None:
    ann, ben = await acme.contact("ann"), await acme.contact("ben")
    await acme.expect_success("POST", "", ALL)
    await acme.expect_success("POST", "", SEEN)
    await erase(acme, ann)
    assert await acme.members("all") == {ben}
    for name in ("all", "seen"):
        result = await acme.expect_success("POST", f"/{name}/refresh")
        assert (result["size"], result["found"]) == (1, None)  # only contacts that changed were looked at
        assert await acme.members(name) == {ben}
    assert (await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann, ben]}))["size"] == 1


async def test_merged_contacts_count_as_the_contact_that_was_kept(acme: Team) -> None:
    ann, app = await acme.contact("ann"), await acme.contact("app")
    await acme.expect_success("POST", "", SEEN)
    await merge(acme, ann, app)
    assert await acme.members("seen") == {ann}
    await refreshed(acme, "seen")
    assert await acme.members("seen") == {ann}
    made = await acme.expect_success("POST", "", {"name": "invited", "contactIds": [app]})
    assert (made["size"], await acme.members("invited")) == (1, {ann})


async def test_an_audience_follows_a_merge_and_its_undoing(acme: Team) -> None:
    ann, app = await acme.contact("ann"), await acme.contact("app")
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [app]})
    await acme.expect_success("POST", "", {"name": "gone", "contactIds": [app]})
    merge_id = await merge(acme, ann, app)
    assert await acme.members("invited") == {ann}
    await acme.expect_success("DELETE", "/gone")
    await unmerge(acme, merge_id)
    assert await acme.members("invited") == {app}
    assert await acme.members("gone") == set()


async def test_an_audience_is_recounted_after_an_erasure(acme: Team) -> None:
    ann, ben = await acme.contact("ann"), await acme.contact("ben")
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann, ben]})
    await erase(acme, ann)
    result = await acme.expect_success("POST", "/invited/refresh")
    assert (result["size"], result["change"], result["found"]) == (1, {"entered": 0, "departed": 1}, None)


async def test_an_erasure_before_the_commit_of_a_refresh_wins(acme: Team) -> None:
    ben = await acme.contact("ben")
    await acme.expect_success("POST", "", ALL)
    ann = await acme.contact("ann")
    async with before_commit(acme, "all"):
        await erase(acme, ann)
    assert await acme.members("all") == {ben}
    assert (await acme.expect_success("GET", "/all"))["size"] == 1


async def test_an_erasure_long_before_the_commit_of_a_refresh_wins(acme: Team) -> None:
    """The second, scheduled erasure also runs before the members are committed."""
    await acme.expect_success("POST", "", ALL)
    ann = await acme.contact("ann")
    async with before_commit(acme, "all"):
        await erase(acme, ann)
        later = acme.org.service.services.clock.now() + timedelta(minutes=2)
        await erase_again(acme.org.service.services.system_database, later)
    assert await acme.members("all") == set()


async def test_a_merge_before_the_commit_of_a_refresh_wins(acme: Team) -> None:
    ann = await acme.contact("ann")
    await acme.expect_success(
        "POST", "", {"name": "apps", "sql": "SELECT id AS contact_id FROM contacts WHERE external_id = 'app'"}
    )
    app = await acme.contact("app")
    async with before_commit(acme, "apps"):
        await merge(acme, ann, app)
    assert await acme.members("apps") == {ann}


async def test_a_refresh_waits_for_an_erasure(acme: Team) -> None:
    """The erasure has read the members already, and commits after the refresh."""
    await acme.expect_success("POST", "", ALL)
    ann, database = await acme.contact("ann"), acme.org.service.services.system_database
    row = await row_of(acme, "all")
    async with database.transaction() as tx:
        now = acme.org.service.services.clock.now()
        await erase_contact(tx, ContactKey(acme.id, ann), now)
        await schedule_erasure(tx, ContactKey(acme.id, ann), now + timedelta(minutes=1))
        refreshing = asyncio.create_task(segments.refresh(acme.services, row, now))
        await waits_for_a_lock(acme.services.database)
    await refreshing
    assert await acme.members("all") == set()


async def waits_for_a_lock(database: Database) -> None:
    async with asyncio.timeout(10):
        while True:
            async with database.transaction() as tx:
                cursor = await tx.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"
                )
                if await cursor.fetchone():
                    return
            await asyncio.sleep(0.01)


async def test_the_second_erasure_completes_a_killed_refresh(acme: Team) -> None:
    ann = await acme.contact("ann")
    await erase(acme, ann)
    await acme.rows("INSERT INTO segment_members VALUES (%s, 'all', %s, now())", acme.id, ann)
    later = acme.org.service.services.clock.now() + timedelta(minutes=2)
    await erase_again(acme.org.service.services.system_database, later)
    assert await acme.members("all") == set()


async def test_concurrent_refreshes_erasures_and_merges_leave_only_existing_contacts(acme: Team) -> None:
    people = [await acme.contact(f"p{number}") for number in range(24)]
    await acme.expect_success("POST", "", ALL)
    await acme.expect_success("POST", "", SEEN)

    async def refreshes(name: str) -> None:
        for _ in range(6):
            await refreshed(acme, name)

    async def merge_and_erase() -> None:
        for number in range(0, 24, 3):
            await merge(acme, people[number], people[number + 1])
            await erase(acme, people[number + 2])

    await asyncio.gather(refreshes("all"), refreshes("seen"), merge_and_erase())
    kept = {people[number] for number in range(0, 24, 3)}
    assert await acme.members("all") == kept
    assert await acme.members("seen") == kept


async def test_members_locked_by_another_transaction_are_skipped(acme: Team) -> None:
    ann = await acme.contact("ann")
    await acme.expect_success("POST", "", ALL)
    row = await row_of(acme, "all")
    async with acme.org.service.services.system_database.transaction() as tx:
        await tx.execute("DELETE FROM segment_members WHERE contact_id = %s", (ann,))
        async with acme.services.database.transaction() as other:
            key = store_segments.SegmentKey(acme.id, row.name)
            now = acme.org.service.services.clock.now()
            await store_segments.remove_all_members(other, key, now, ann)  # does not wait
