"""Reentry, the message cap and the loop guard depend on the history of a contact."""

from datetime import timedelta
from typing import Any

import pytest

from tests.engine.conftest import EngineBench
from workbench.language.advance import LOOP_LIMIT

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
TAG = {"id": "a", "type": "add_tag", "data": {"tag": "vip"}}
MESSAGE = {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}}
DELAY = {"id": "d", "type": "delay", "data": {"seconds": 3_600}}
HOOK = {"id": "h", "type": "send_webhook", "data": {"url": "https://example.com/hook"}}
REFUSED = ("cancelled", "reentry")
DONE = ("completed", "completed")
DAY = timedelta(days=1)


async def outcomes(bench: EngineBench, ahead: timedelta, **settings: Any) -> list[tuple[Any, ...]]:
    """Send two events of a contact, this time apart."""
    await bench.automation([TRIGGER, TAG], [("t", "a")], **settings)
    await bench.send("k1")
    await bench.drive()
    bench.clock.ahead += ahead
    await bench.send("k2")
    await bench.drive()
    return await bench.entries()


@pytest.mark.parametrize(
    ("reentry", "ahead", "second"),
    [
        ({"policy": "always"}, timedelta(), DONE),
        ({"policy": "once"}, 400 * DAY, REFUSED),
        ({"policy": "once_per", "days": 2}, DAY, REFUSED),
        ({"policy": "once_per", "days": 2}, 3 * DAY, DONE),
        ({"policy": "not_while_running"}, timedelta(), DONE),
    ],
)
async def test_a_contact_enters_again_by_the_policy(
    bench: EngineBench, reentry: dict[str, Any], ahead: timedelta, second: tuple[str, str]
) -> None:
    assert await outcomes(bench, ahead, reentry=reentry) == [DONE, second]


async def test_an_entry_that_died_at_its_first_node_counts_for_reentry(bench: EngineBench) -> None:
    broken = {"id": "m", "type": "send_inapp", "data": {"title": "{{ unknown }}", "body": "there"}}
    await bench.automation([broken], [], reentry={"policy": "once"})
    for key in ("k1", "k2"):
        await bench.send(key)
        await bench.drive()
    assert await bench.entries("state") == [("dead",), ("cancelled",)]


async def test_reentry_is_refused_while_an_entry_is_running(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, DELAY], [("t", "d")], reentry={"policy": "not_while_running"})
    await bench.send("k1")
    await bench.drive()
    await bench.send("k2")
    await bench.drive()
    assert await bench.entries("state, outcome") == [("waiting", None), REFUSED]
    bench.clock.ahead += timedelta(hours=1)
    await bench.drive()
    await bench.send("k3")
    await bench.drive()
    assert await bench.entries("state") == [("completed",), ("cancelled",), ("waiting",)]


async def test_of_simultaneous_entries_the_first_created_is_admitted(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, TAG], [("t", "a")], reentry={"policy": "once"})
    for number in range(20):
        await bench.send(f"k{number}")
    await bench.drive_together()
    assert await bench.entries() == [DONE] + [REFUSED] * 19


async def test_an_entry_of_an_unpublished_automation_does_not_count(bench: EngineBench) -> None:
    automation_id = await bench.automation([TRIGGER, TAG], [("t", "a")], reentry={"policy": "once"})
    await bench.execute("UPDATE automations SET published_version = NULL WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automation_epochs SET epoch = epoch + 1 WHERE org_id = %s", bench.org_id)
    await bench.send("k1")
    await bench.drive()
    await bench.execute("UPDATE automations SET published_version = 1 WHERE id = %s", automation_id)
    await bench.execute("UPDATE automation_epochs SET epoch = epoch + 1 WHERE org_id = %s", bench.org_id)
    await bench.send("k2")
    await bench.drive()
    assert await bench.entries() == [("completed", "no_published_version"), DONE]


async def test_the_cap_counts_messages_of_every_automation(bench: EngineBench) -> None:
    cap = {"messages": 2, "seconds": 3_600}
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")])
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], frequencyCap=cap)
    await bench.send("k1")
    await bench.send("k2")
    await bench.drive()
    ((count,),) = await bench.fetch("SELECT count(*) FROM messages WHERE status = 'sent'")
    skipped = await bench.fetch("SELECT count(*) FROM entry_steps WHERE outcome = 'skipped'")
    assert count + skipped[0][0] == 4
    assert count <= 3  # two of the automation without a cap, and at most one of the other
    bench.clock.ahead += timedelta(hours=2)
    await bench.send("k3")
    await bench.drive()
    assert await bench.fetch("SELECT count(*) FROM messages WHERE status = 'sent'") == [(count + 2,)]


async def test_a_cap_by_day_ends_at_midnight_by_the_clock_of_the_contact(bench: EngineBench) -> None:
    hours = (await bench.fetch("SELECT extract(hour FROM now() AT TIME ZONE 'UTC')::integer"))[0][0]
    west = (hours - 21 + 11) % 24 - 11  # it is between 21:00 and 22:00 there; this many hours west of Greenwich
    cap = {"messages": 1, "per": "day"}
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], frequencyCap=cap, timezone=f"Etc/GMT{west:+d}")
    for key, ahead in (("k1", 0), ("k2", 1), ("k3", 3)):
        bench.clock.ahead += timedelta(hours=ahead)
        await bench.send(key)
        await bench.drive()
    assert await bench.fetch("SELECT outcome FROM entry_steps WHERE node_id = 'm' ORDER BY at") == [
        ("sent",),
        ("skipped",),
        ("sent",),
    ]


async def test_engines_share_the_message_cap(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, MESSAGE], [("t", "m")], frequencyCap={"messages": 3, "seconds": 3_600})
    for number in range(20):
        await bench.send(f"k{number}")
    await bench.drive_together()
    assert await bench.fetch("SELECT count(*) FROM messages WHERE status = 'sent'") == [(3,)]
    assert (await bench.steps()).count("skipped") == 17


async def test_the_loop_guard_stops_an_automation_that_starts_itself(bench: EngineBench) -> None:
    automation_id = await bench.automation([TRIGGER, HOOK], [("t", "h")])
    await bench.send("k")
    ((event_id, at, contact_id),) = await bench.fetch("SELECT id, created_at, contact_id FROM events")
    await bench.execute(
        "INSERT INTO entries"
        " (org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), %s, gen_random_uuid(), now(), %s, 'completed', now(),"
        " %s::timestamptz - n * interval '1 ms', now() FROM generate_series(1, %s) AS n RETURNING 1",
        bench.org_id,
        automation_id,
        contact_id,
        at,
        LOOP_LIMIT,
    )
    await bench.drive()
    assert await bench.fetch("SELECT state, outcome FROM entries WHERE event_id = %s", event_id) == [
        ("cancelled", "loop_guard")
    ]
