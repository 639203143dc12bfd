"""Automations that start when contacts enter or leave a segment, over the real API and its database."""

from typing import Any

import pytest

from api.automations.automations import Author
from api.clock import uuid7
from api.contacts import merge as contacts_merge
from api.segments.refresh import refresh_due
from tests.segments.conftest import LateClock, Team
from tests.segments.test_erased_and_merged import erase, merge

VIP = {"name": "vip", "sql": "SELECT id AS contact_id FROM contacts WHERE 'vip' = ANY (tags)"}
GRAPH = {
    "nodes": [
        {"id": "t", "type": "segment_entered", "data": {}},
        {"id": "x", "type": "add_tag", "data": {"tag": "in"}},
    ],
    "edges": [{"id": "e", "source": "t", "target": "x"}],
}


async def automate(team: Team, *, publish: bool = True, **trigger: Any) -> str:
    """Create an automation that starts from the segment; return its id."""
    key = await team.org.key("workbench", "automations:write", "automations:publish", "contacts:read")
    headers = {"authorization": f"Bearer {key}"}
    spec = {"type": "segment_entered", "segment": "vip"} | trigger
    created = await team.org.call("POST", "/automations", {"name": "a", "triggerSpec": spec, "graph": GRAPH}, **headers)
    assert created.status_code == 201, created.text
    automation_id: str = created.json()["id"]
    if publish:
        published = await team.org.call("POST", f"/automations/{automation_id}/publish", {}, **headers)
        assert published.status_code == 200, published.text
    return automation_id


async def tag(team: Team, contact_id: str, *tags: str) -> None:
    await team.rows("UPDATE contacts SET tags = %s WHERE org_id = %s AND id = %s", list(tags), team.id, contact_id)


async def entries(team: Team) -> list[tuple[str, str, Any]]:
    """Return contact, event and automation of the entries, in order of contacts."""
    rows = await team.rows(
        "SELECT e.contact_id::text, s.event, e.automation_id::text FROM entries e"
        " JOIN starts s ON s.org_id = e.org_id AND s.id = e.event_id AND s.created_at = e.event_created_at"
        " WHERE e.org_id = %s ORDER BY 1, 2, 3",
        team.id,
    )
    return [(contact_id, event, automation_id) for contact_id, event, automation_id in rows]


@pytest.fixture
async def vip(acme: Team) -> list[str]:
    """Four contacts, of which the first two are in the segment `vip`."""
    people = [await acme.contact(name) for name in ("ann", "ben", "cid", "dan")]
    for contact_id in people[:2]:
        await tag(acme, contact_id, "vip")
    await acme.expect_success("POST", "", VIP)
    return people


async def test_a_refresh_starts_each_contact_that_enters_or_leaves_once(acme: Team, vip: list[str]) -> None:
    ann, _, cid, dan = vip
    entering, leaving = await automate(acme), await automate(acme, type="segment_left")
    await tag(acme, ann)
    for contact_id in (cid, dan):
        await tag(acme, contact_id, "vip")
    for _ in range(2):
        await acme.expect_success("POST", "/vip/refresh")
    started = {(ann, "segment_left", leaving), (cid, "segment_entered", entering), (dan, "segment_entered", entering)}
    assert set(await entries(acme)) == started
    assert len(await entries(acme)) == len(started)


async def test_an_engine_that_refreshes_starts_them_too_and_members_of_before_start_nothing(
    acme: Team, vip: list[str], clock: LateClock
) -> None:
    automation_id = await automate(acme)
    await tag(acme, vip[2], "vip")
    await acme.rows("UPDATE segments SET due_at = now() WHERE org_id = %s", acme.id)
    await refresh_due(acme.services, clock)
    assert await entries(acme) == [(vip[2], "segment_entered", automation_id)]


async def test_filters_see_the_identifiers_of_the_contact(acme: Team, vip: list[str]) -> None:
    mailed = await acme.org.post({"event": "deposit", "contact": {"externalId": "cid", "email": "cid@b.co"}})
    assert mailed[0] == 202
    filtered = await automate(acme, filters=[{"path": "email", "operator": "eq", "value": "cid@b.co"}])
    also = await automate(acme, where="externalId in ['cid', 'dan'] and segment == 'vip'")
    for contact_id in vip[2:]:
        await tag(acme, contact_id, "vip")
    await acme.expect_success("POST", "/vip/refresh")
    expected = {(vip[2], filtered), (vip[2], also), (vip[3], also)}
    assert {(contact_id, automation_id) for contact_id, _, automation_id in await entries(acme)} == expected
    assert await acme.rows("SELECT count(*) FROM starts WHERE org_id = %s", acme.id) == [(2,)]


async def test_without_an_active_automation_nothing_is_written(acme: Team, vip: list[str]) -> None:
    automation_id = await automate(acme)
    key = await acme.org.key("workbench")
    await acme.org.call("POST", f"/automations/{automation_id}/pause", {}, authorization=f"Bearer {key}")
    await tag(acme, vip[2], "vip")
    await acme.expect_success("POST", "/vip/refresh")
    assert await acme.rows("SELECT 1 FROM starts WHERE org_id = %s", acme.id) == []


async def test_a_segment_that_starts_an_automation_cannot_be_deleted(acme: Team, vip: list[str]) -> None:
    await automate(acme)
    assert await acme.expect_refusal("DELETE", "/vip") == (409, "the automation 'a' uses it")


async def test_starts_are_explained_and_shown_like_events_of_their_contact(acme: Team, vip: list[str]) -> None:
    automation_id = await automate(acme, filters=[{"path": "email", "operator": "exists"}])
    await tag(acme, vip[2], "vip")
    await acme.expect_success("POST", "/vip/refresh")
    key = await acme.org.key("workbench", "contacts:read", "events:read", "automations:write")
    headers = {"authorization": f"Bearer {key}"}
    body = {"automationId": automation_id}
    explained = await acme.org.call("POST", f"/contacts/{vip[2]}/explain", body, **headers)
    newest = explained.json()["explanations"][0]
    assert (newest["event"], newest["matched"], newest["reasons"]) == ("segment_entered", False, ["filters"])
    timeline = (await acme.org.call("GET", f"/contacts/{vip[2]}/timeline", **headers)).json()
    assert "segment_entered" in [
        item["detail"].get("event") for item in timeline["timeline"] if item["kind"] == "event"
    ]


async def test_a_trial_of_a_stored_contact_reads_it_by_its_identifiers(acme: Team, vip: list[str]) -> None:
    automation_id = await automate(acme, where="externalId == 'cid'")
    key = await acme.org.key("workbench", "automations:write")
    body = {"event": {"type": "segment_entered", "contact": {"externalId": "cid"}}}
    answer = await acme.org.call("POST", f"/automations/{automation_id}/simulate", body, authorization=f"Bearer {key}")
    trace = answer.json()
    assert (trace["matched"], trace["tags"], trace["outcome"]) == (True, ["in"], "completed")


async def test_starts_follow_merges_and_their_undoing_and_an_erasure_clears_them(acme: Team, vip: list[str]) -> None:
    await automate(acme)
    keep, absorbed = vip[3], vip[2]
    await tag(acme, absorbed, "vip")
    await acme.expect_success("POST", "/vip/refresh")

    async def owners() -> list[str]:
        rows = await acme.rows("SELECT contact_id::text FROM starts WHERE org_id = %s", acme.id)
        return [contact_id for (contact_id,) in rows]

    merge_id = await merge(acme, keep, absorbed)
    await acme.expect_success("POST", "/vip/refresh")  # the merge moved the membership: that starts nothing
    assert await owners() == [keep]
    now_us = acme.org.service.services.clock.unique_now_us()
    author = Author(acme.id, uuid7(now_us), now_us)
    await contacts_merge.undo(acme.org.service.services.system_database, author, merge_id)
    assert await owners() == [absorbed]
    await erase(acme, absorbed)
    assert await acme.rows("SELECT payload FROM starts WHERE org_id = %s", acme.id) == [({},)]
