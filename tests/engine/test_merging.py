"""Contacts can be merged while their entries wait and their events arrive."""

from datetime import timedelta
from typing import Any

from api.automations.automations import Author
from api.clock import uuid7
from api.contacts.merge import SETTLE_DELAY, Pair, UndoneView, merge, settle_due, undo
from tests.engine.conftest import EngineBench
from workbench.language.responses import MergeView

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
WAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "purchase", "timeoutSeconds": 86_400}}
TAG = {"id": "g", "type": "add_tag", "data": {"tag": "bought"}}
WEB, APP = {"walletAddress": "0x3eb"}, {"externalId": "app-1"}


async def send_event(bench: EngineBench, contact: dict[str, str], event: str = "deposit", **more: Any) -> str:
    """Send an event; return its contact."""
    await bench.ingest({"event": event, "contact": contact, **more})
    ((contact_id,),) = await bench.fetch("SELECT contact_id FROM events ORDER BY created_at DESC, id DESC LIMIT 1")
    return str(contact_id)


def author(bench: EngineBench) -> Author:
    return Author(bench.org_id, uuid7(bench.clock.now_us()), bench.clock.unique_now_us())


async def merge_contacts(bench: EngineBench, keep: str, absorbed: str) -> str:
    done = await merge(bench.database, author(bench), Pair(keep, absorbed), str)
    assert isinstance(done, MergeView)
    assert done.id is not None
    return done.id


async def publish_wait(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, WAIT, TAG], [("t", "w"), ("w", "g", "matched")])


async def test_a_waiting_entry_continues_with_the_surviving_contact(bench: EngineBench) -> None:
    await publish_wait(bench)
    app = await send_event(bench, APP)
    web = await send_event(bench, WEB, "visit")
    await bench.drive()
    await merge_contacts(bench, web, app)
    await send_event(bench, WEB, "purchase")
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")]
    assert await bench.fetch("SELECT id, tags FROM contacts WHERE merged_into IS NULL") == [(web, ["bought"])]


async def test_after_an_undo_an_entry_waits_for_the_absorbed_contact_again(bench: EngineBench) -> None:
    await publish_wait(bench)
    app = await send_event(bench, APP)
    web = await send_event(bench, WEB, "visit")
    await bench.drive()
    undone = await undo(bench.database, author(bench), await merge_contacts(bench, web, app))
    assert isinstance(undone, UndoneView)
    await send_event(bench, WEB, "purchase")
    await bench.drive()
    assert [state for state, _ in await bench.entries()] == ["waiting"]
    await send_event(bench, APP, "purchase")
    await bench.drive()
    assert await bench.fetch("SELECT tags FROM contacts WHERE id = %s", app) == [(["bought"],)]


async def test_an_event_of_the_absorbed_contact_wakes_entries_of_the_surviving_one(bench: EngineBench) -> None:
    await publish_wait(bench)
    app = await send_event(bench, APP)
    web = await send_event(bench, WEB, "visit")
    await bench.drive()
    await merge_contacts(bench, web, app)
    await send_event(bench, WEB, "other")
    await bench.execute("UPDATE events SET event = 'purchase', contact_id = %s WHERE event = 'other'", app)
    bench.clock.ahead += SETTLE_DELAY + timedelta(seconds=1)
    assert await settle_due(bench.database, bench.clock.now()) == 1
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")]


async def test_entries_of_the_absorbed_contact_count_for_reentry(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "g")], reentry={"policy": "once"})
    app = await send_event(bench, APP)
    await bench.drive()
    web = await send_event(bench, WEB, "visit")
    await merge_contacts(bench, web, app)
    await send_event(bench, WEB)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed"), ("cancelled", "reentry")]
