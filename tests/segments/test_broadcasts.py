"""Broadcasts: an automation is started once for every contact of a segment, in pages, whatever happens meanwhile."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest

from api.catalog.maintenance import delete_expired
from api.clock import Clock
from api.contacts import merge as contacts_merge
from api.segments import broadcasts
from api.segments.broadcasts import send_due, start_due
from api.segments.results import read_results
from api.store import broadcasts as store
from api.store.database import Database
from tests.segments.conftest import LateClock, Team
from tests.segments.test_erased_and_merged import erase, merge, unmerge
from tests.segments.test_starts import VIP, automate, tag
from workbench.language.channel import DEFAULT_POLICY
from workbench.language.responses import BroadcastResults

BROADCAST = {"type": "broadcast", "segment": None}


async def call(team: Team, method: str, path: str, body: Any = None) -> httpx.Response:
    key = await team.org.key("workbench", "automations:write", "automations:publish", "contacts:read")
    return await team.org.call(method, path, body, authorization=f"Bearer {key}")


async def preview(team: Team, automation_id: str) -> Any:
    return (await call(team, "POST", f"/automations/{automation_id}/broadcasts/preview", {"segment": "vip"})).json()


async def send(team: Team, automation_id: str, **body: Any) -> dict[str, Any]:
    answer = await call(team, "POST", f"/automations/{automation_id}/broadcasts", {"segment": "vip"} | body)
    assert answer.status_code == 201, answer.text
    planned: dict[str, Any] = answer.json()
    assert planned["state"] == "planned"
    return planned


async def progress(team: Team, broadcast: dict[str, Any]) -> tuple[Any, ...]:
    shown = (await call(team, "GET", f"/broadcasts/{broadcast['id']}")).json()
    return tuple(shown[name] for name in ("state", "contacts", "entered", "departed", "entries"))


async def entered(team: Team) -> list[str]:
    rows = await team.rows("SELECT contact_id::text FROM entries WHERE org_id = %s ORDER BY 1", team.id)
    return [contact_id for (contact_id,) in rows]


async def send_all(database: Database, clock: Clock) -> None:
    await start_due(database, clock)
    await send_due(database, clock)


@pytest.fixture
async def vip(acme: Team, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Seven contacts in the segment `vip`; a page of a broadcast has two."""
    monkeypatch.setattr(broadcasts, "PAGE_CONTACTS", 2)
    people = sorted([await acme.contact(f"vip{number}") for number in range(7)])
    await acme.rows("UPDATE contacts SET tags = '{vip}' WHERE org_id = %s", acme.id)
    await acme.expect_success("POST", "", VIP)
    return people


async def test_every_member_is_started_once_by_several_engines(acme: Team, vip: list[str], clock: LateClock) -> None:
    automation_id = await automate(acme, **BROADCAST)
    other = await acme.contact("other")
    previewed = await preview(acme, automation_id)
    assert (previewed["contacts"], previewed["sample"]) == (7, vip)
    sent = await send(acme, automation_id)
    await asyncio.gather(*(send_all(acme.services.database, clock) for _ in range(3)))
    assert await entered(acme) == vip
    assert await progress(acme, sent) == ("done", 7, 0, 0, 7)
    everyone = await send(acme, automation_id, segment=None, all=True)
    await send_all(acme.services.database, clock)
    assert sorted(await entered(acme)) == sorted([*vip, *vip, other])
    assert await progress(acme, everyone) == ("done", 8, 0, 0, 8)
    context = await acme.rows(
        "SELECT DISTINCT event, payload, automation_id::text FROM starts WHERE org_id = %s", acme.id
    )
    assert sorted(context, key=str) == [
        ("broadcast", {"segment": "vip"}, automation_id), ("broadcast", {}, automation_id)
    ]  # fmt: skip


async def test_a_broadcast_counts_the_contacts_that_entered_and_left_since_its_preview(
    acme: Team, vip: list[str], clock: LateClock
) -> None:
    automation_id = await automate(acme, **BROADCAST)
    previewed = await preview(acme, automation_id)
    new = await acme.contact("new")
    await tag(acme, new, "vip")
    await tag(acme, vip[0])
    await acme.expect_success("POST", "/vip/refresh")
    await erase(acme, vip[1])
    sent = await send(acme, automation_id, contacts=previewed["contacts"], watermark=previewed["watermark"])
    await send_all(acme.services.database, clock)
    assert await progress(acme, sent) == ("done", 7, 1, 2, 6)
    assert await entered(acme) == sorted([*vip[2:], new])


@pytest.mark.parametrize(("limit", "counted", "is_partial"), [(7, 7, False), (4, 4, True)])
async def test_results_say_whether_they_are_of_all_entries(
    acme: Team, vip: list[str], clock: LateClock, limit: int, counted: int, is_partial: bool
) -> None:
    sent = await send(acme, await automate(acme, **BROADCAST))
    database, keys = acme.services.database, acme.services.keyring.of(acme.id)
    await send_all(database, clock)
    results = await read_results(database, acme.id, keys, sent["id"], DEFAULT_POLICY, limit)
    assert results == BroadcastResults(counted, is_partial, {"pending": counted}, (), None)


async def test_contacts_that_are_merged_or_erased_between_pages_are_started_once_or_not_at_all(
    acme: Team, vip: list[str], clock: LateClock
) -> None:
    automation_id = await automate(acme, **BROADCAST)
    outsider = await acme.contact("outsider")
    await send(acme, automation_id)
    database = acme.services.database

    async def page() -> None:
        ((org_id, broadcast_id),) = await acme.rows(
            "SELECT org_id, id::text FROM broadcasts WHERE org_id = %s", acme.id
        )
        assert await broadcasts._send_page(database, clock, org_id, broadcast_id)

    await start_due(database, clock)  # the recipients are fixed
    await page()
    await merge(acme, vip[5], vip[0])
    await merge(acme, outsider, vip[6])
    await erase(acme, vip[4])
    await send_all(database, clock)
    assert await entered(acme) == sorted([vip[1], vip[2], vip[3], vip[5], outsider])


@pytest.mark.parametrize("pages", [0, 1], ids=["merged before the first page", "merged after it"])
async def test_a_contact_is_started_once_before_its_merge_has_moved_its_rows(
    acme: Team, vip: list[str], clock: LateClock, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    sent, database = await send(acme, await automate(acme, **BROADCAST)), acme.services.database

    async def page() -> None:
        assert await broadcasts._send_page(database, clock, acme.id, sent["id"])

    await start_due(database, clock)
    for _ in range(pages):
        await page()
    with monkeypatch.context() as patch:
        patch.setattr(contacts_merge, "_PARTS", ())
        merge_id = await merge(acme, vip[5], vip[1])
    if pages == 0:
        await page()
        await contacts_merge.move_pages(database, acme.id, merge_id)
    await send_all(database, clock)
    await contacts_merge.move_pages(database, acme.id, merge_id)
    assert await entered(acme) == [vip[0], *vip[2:]]


@pytest.mark.parametrize("pair", [(5, 1), (1, 5)], ids=["the later one stays", "the earlier one stays"])
@pytest.mark.parametrize("moved", [True, False], ids=["rows moved", "rows not moved back yet"])
@pytest.mark.parametrize("pages", [0, 1, 4], ids=["merged before the first page", "after it", "after all"])
async def test_contacts_that_are_separate_again_are_both_started(
    acme: Team,
    vip: list[str],
    clock: LateClock,
    monkeypatch: pytest.MonkeyPatch,
    pages: int,
    moved: bool,
    pair: tuple[int, int],
) -> None:
    sent, database = await send(acme, await automate(acme, **BROADCAST)), acme.services.database
    await start_due(database, clock)
    for _ in range(pages):
        await broadcasts._send_page(database, clock, acme.id, sent["id"])
    merge_id = await merge(acme, *(vip[number] for number in pair))
    while pages < 3:
        await broadcasts._send_page(database, clock, acme.id, sent["id"])
        pages += 1
    with monkeypatch.context() as patch:
        if not moved:
            patch.setattr(contacts_merge, "_PARTS", ())
        await unmerge(acme, merge_id)
    await send_all(database, clock)
    await contacts_merge.move_pages(database, acme.id, merge_id)
    assert await entered(acme) == vip
    assert (await progress(acme, sent))[0] == "done"


async def test_a_stop_does_not_wait_until_the_recipients_are_stored(
    acme: Team, vip: list[str], clock: LateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = await send(acme, await automate(acme, **BROADCAST))
    add_recipients, stopped = store.add_recipients, []

    async def stop_meanwhile(*args: Any) -> None:
        await add_recipients(*args)
        stopped.append((await call(acme, "POST", f"/broadcasts/{sent['id']}/stop")).status_code)

    monkeypatch.setattr(store, "add_recipients", stop_meanwhile)
    await send_all(acme.services.database, clock)
    assert stopped == [200]
    assert await progress(acme, sent) == ("stopped", 7, None, None, 0)
    assert await acme.rows("SELECT count(*) FROM starts WHERE org_id = %s", acme.id) == [(0,)]


async def test_it_starts_at_its_time_and_is_stopped_between_pages(acme: Team, vip: list[str], clock: LateClock) -> None:
    automation_id = await automate(acme, **BROADCAST)
    at = clock.now() + timedelta(hours=2)
    sent = await send(acme, automation_id, at=at.isoformat())
    database = acme.services.database
    await send_all(database, clock)
    assert await progress(acme, sent) == ("planned", 7, None, None, 0)
    assert (await acme.expect_refusal("DELETE", "/vip"))[1] == "a broadcast of 'a' uses it"
    clock.ahead = timedelta(hours=3)
    await start_due(database, clock)
    for _ in range(2):
        assert await broadcasts._send_page(database, clock, acme.id, sent["id"])
    stopped = (await call(acme, "POST", f"/broadcasts/{sent['id']}/stop")).json()
    assert (stopped["state"], stopped["entries"]) == ("stopped", 4)
    await send_all(database, clock)
    assert await entered(acme) == vip[:4]
    # What was not sent is deleted after a month.
    for days, kept in ((29, 7), (31, 4)):
        await delete_expired(database, acme.id, clock.now() + timedelta(days=days))
        assert await acme.rows("SELECT count(*) FROM starts WHERE org_id = %s", acme.id) == [(kept,)]


async def test_a_pause_holds_it_and_switching_the_automation_off_ends_it(
    acme: Team, vip: list[str], clock: LateClock
) -> None:
    automation_id = await automate(acme, **BROADCAST)
    sent, database = await send(acme, automation_id), acme.services.database
    await call(acme, "POST", f"/automations/{automation_id}/pause")
    await send_all(database, clock)
    assert (await progress(acme, sent))[0] == "planned"
    await call(acme, "POST", f"/automations/{automation_id}/resume", {})
    await start_due(database, clock)
    await call(acme, "POST", f"/automations/{automation_id}/deactivate")
    await send_all(database, clock)
    assert await progress(acme, sent) == ("stopped", 7, 0, 0, 0)


async def test_a_planned_broadcast_stays_stopped_when_its_automation_is_switched_on_again(
    acme: Team, vip: list[str], clock: LateClock
) -> None:
    automation_id = await automate(acme, **BROADCAST)
    sent = await send(acme, automation_id, at=(clock.now() + timedelta(hours=2)).isoformat())
    await call(acme, "POST", f"/automations/{automation_id}/deactivate")
    assert (await progress(acme, sent))[0] == "stopped"
    await call(acme, "POST", f"/automations/{automation_id}/activate")
    clock.ahead = timedelta(hours=3)
    await send_all(acme.services.database, clock)
    assert await entered(acme) == []


async def test_a_broadcast_that_fails_does_not_hold_those_of_others(
    acme: Team, globex: Team, vip: list[str], clock: LateClock
) -> None:
    failing = await send(acme, await automate(acme, **BROADCAST))
    await acme.rows(
        "INSERT INTO starts (org_id, id, contact_id, event, created_at)"
        " VALUES (%s, (left(%s, 24) || '000000000001')::uuid, %s, 'broadcast', now())",
        acme.id,
        failing["id"],
        vip[0],
    )
    other = await globex.contact("other")
    sent = await send(globex, await automate(globex, **BROADCAST), segment=None, all=True)
    await send_all(acme.services.database, clock)
    assert (await progress(acme, failing))[0] == "planned"
    assert (await progress(globex, sent))[0] == "done"
    assert await entered(globex) == [other]


async def test_only_a_live_automation_that_starts_from_broadcasts_is_sent(acme: Team, vip: list[str]) -> None:
    segment = await automate(acme)
    draft = await automate(acme, publish=False, **BROADCAST)
    live = await automate(acme, **BROADCAST)

    async def refusal(automation_id: str, **body: Any) -> tuple[int, str]:
        answer = await call(acme, "POST", f"/automations/{automation_id}/broadcasts", body)
        return answer.status_code, answer.json().get("field") or ""

    assert [await refusal(automation_id, segment="vip") for automation_id in (segment, draft)] == [(409, "")] * 2
    assert await refusal(live) == (400, "")
    assert await refusal(live, segment="vip", all=True) == (400, "")
    assert await refusal(live, segment="nobody") == (400, "segment")
    assert await refusal(live, segment="vip", at="2020-01-01T00:00:00Z") == (400, "at")
    assert await refusal(live, segment="vip", contacts=5) == (400, "watermark")
    assert await refusal(live, segment="vip", contacts=10**19, watermark="2020-01-01T00:00:00Z") == (400, "contacts")
    assert (await call(acme, "GET", "/broadcasts")).json() == {"broadcasts": []}


async def test_moments_are_spread_so_that_events_do_not_wait_for_all_recipients(
    acme: Team, vip: list[str], clock: LateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "PACE", 3)
    await send(acme, await automate(acme, **BROADCAST))
    await send_all(acme.services.database, clock)
    rows = await acme.rows(
        "SELECT count(*) FROM entries WHERE org_id = %s AND created_at = event_created_at AND due_at = created_at"
        " GROUP BY due_at ORDER BY due_at",
        acme.id,
    )
    assert [count for (count,) in rows] == [3, 3, 1]
