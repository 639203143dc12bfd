"""`POST /contacts/merge` and `/contacts/merges/{id}/undo`: merging two contacts, and undoing the merge."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.contacts import merge as contacts_merge
from api.contacts.merge import SETTLE_DELAY, settle_due
from api.store.merges import RowMove, move_rows
from tests.contacts.test_contacts import CARE, arrived, call
from tests.contacts.test_erase import fill
from tests.contacts.test_timeline import timeline
from tests.routes.conftest import Org
from workbench.language.codec import decode

WEB = {"walletAddress": "0x3eb"}
APP = {"walletAddress": "0xA99", "email": "app@acme.example", "externalId": "app-1"}
STATE = "id, email, email_domain, wallet_address, wallet_raw, external_id, attributes, tags, opted_out, merged_into"
ROWS = ("events", "messages", "entries", "onchain_events")


async def create_two_contacts(org: Org) -> tuple[str, str]:
    """Return the ids of two contacts of one user: one from the web, and one from the app, with rows in every table."""
    web = await arrived(org, WEB, attributes={"plan": "pro", "name": "Ann"})
    app = await arrived(org, APP, attributes={"plan": "free", "city": "Rome"})
    await call(org, "POST", f"/{app}/tags", *CARE, body={"add": ["beta"]})
    await call(org, "PUT", f"/{app}/opt-outs", *CARE, body={"inapp": True})
    spec, graph = '{"type": "app_event", "event": "x"}', '{"nodes": [], "edges": []}'
    await org.service.rows(
        f"INSERT INTO automations VALUES ({org.id}, '{app}', 'Welcome', '{spec}', '{graph}', true, 2, 1, NULL,"
        " now(), now())"
    )
    await fill(org, app)
    return web, app


async def merged(org: Org, keep: str, absorb: str, *, preview: bool = False) -> dict[str, Any]:
    response = await call(org, "POST", "/merge", *CARE, body={"keep": keep, "absorb": absorb, "preview": preview})
    assert response.status_code == 200, response.text
    return decode(response.content)


async def undo(org: Org, merge_id: str) -> dict[str, Any]:
    response = await call(org, "POST", f"/merges/{merge_id}/undo", *CARE)
    assert response.status_code == 200, response.text
    return decode(response.content)


async def refused(org: Org, path: str, **body: str) -> tuple[int, str]:
    response = await call(org, "POST", path, *CARE, body=body)
    return response.status_code, response.json()["error"]


async def all_rows(org: Org) -> list[Any]:
    """Return all rows that a merge can change."""
    rows: list[Any] = [await org.rows(STATE, "contacts")]
    rows.append(await org.rows("kind, value_digest, contact_id", "identities", "kind, value_digest"))
    rows.append(await org.rows("segment, contact_id, entered_at", "segment_members", "segment, contact_id"))
    rows.append(await org.rows("id, resolved_by", "identity_conflicts"))
    rows.append(await org.rows("id, contact_id", "messages"))
    return [*rows, *[await org.rows("id, contact_id, merged_from", table) for table in ROWS if table != "messages"]]


async def owners(org: Org) -> set[str]:
    return {contact_id for table in ROWS for (contact_id,) in await org.rows("contact_id", table)}


async def move_late_rows(org: Org) -> None:
    now = org.service.services.clock.now() + SETTLE_DELAY + timedelta(seconds=1)
    assert await settle_due(org.service.services.system_database, now) > 0


async def test_a_preview_lists_what_moves_and_what_is_lost_and_writes_nothing(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    before = await all_rows(acme)
    assert await merged(acme, web, app, preview=True) == {
        "id": None,
        "keep": web,
        "absorbed": app,
        "moves": {
            "identifiers": {"email": "a•••@acme.example", "externalId": "app-1"},
            "attributes": {"city": "Rome"},
            "tags": ["beta"],
            "optedOut": ["inapp"],
            "segments": ["big-spenders"],
        },
        "hidden": {"walletAddress": "0xa99"},
        "lost": {"plan": "free"},
        "rows": {"events": 1, "entries": 1, "messages": 1, "conflicts": 0},
        "pending": False,
    }
    assert await all_rows(acme) == before


async def test_after_a_merge_one_contact_is_left(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    assert (await merged(acme, web, app))["pending"] is False
    for query in (
        "walletAddress=0xa99",
        "walletAddress=0x3eb",
        "email=app@acme.example",
        "externalId=app-1",
        f"id={app}",
    ):
        shown = (await call(acme, "GET", f"?{query}", *CARE)).json()
        assert (shown["id"], shown["walletAddress"], shown["tags"]) == (web, "0x3eb", ["beta"])
    assert shown["attributes"] == {"plan": "pro", "name": "Ann", "city": "Rome"}
    assert (shown["optedOut"], shown["segments"]) == (["inapp"], ["big-spenders"])
    assert shown["counts"] == {"events": 2, "entries": 1, "messages": 1, "conflicts": 0}
    assert (await call(acme, "GET", f"/{app}", *CARE)).json()["id"] == web
    assert await owners(acme) == {web}
    await acme.post({"event": "step", "contact": {"walletAddress": "0xA99"}})
    assert await owners(acme) == {web}
    kinds = [item["kind"] for item in (await timeline(acme, app))["timeline"]]
    assert sorted(kinds) == ["entry", "event", "event", "event", "log", "merge", "message"]
    assert await acme.service.rows(f"SELECT count(*) FROM analyst.contacts c WHERE id IN ('{web}', '{app}')") == [(1,)]
    assert (await acme.rows("action, subject_id", "audit_log"))[-1] == ("contact.merge", web)


async def test_undoing_restores_exactly_what_the_merge_changed(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    before = await all_rows(acme)
    merge = await merged(acme, web, app)
    assert await all_rows(acme) != before
    undone_merge = await undo(acme, merge["id"])
    assert (undone_merge["stays"], undone_merge["pending"]) == ([], False)
    assert await all_rows(acme) == before
    again = await call(acme, "POST", f"/merges/{merge['id']}/undo", *CARE)
    assert (again.status_code, again.json()["error"][:24]) == (409, "this merge was undone at")


async def test_data_from_between_merge_and_undo_stays_on_the_kept_contact(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    merge = await merged(acme, web, app)
    await acme.post(
        {"event": "between", "contact": {"walletAddress": "0xa99"}, "attributes": {"city": "Oslo", "new": 1}}
    )
    assert (await undo(acme, merge["id"]))["stays"] == ["city"]
    first, second = await acme.rows("id, attributes", "contacts", "created_at")
    assert first == (web, {"plan": "pro", "name": "Ann", "city": "Oslo", "new": 1})
    assert second == (app, {"plan": "free", "city": "Rome"})
    assert await acme.rows("event, contact_id", "events", "created_at") == [
        ("signup", web),
        ("signup", app),
        ("between", web),
    ]


async def test_an_identifier_of_a_third_contact_prevents_undoing(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    merge = await merged(acme, web, app)
    other = await arrived(acme, {"walletAddress": "0x074e7"})
    await acme.post({"event": "moved", "contact": {"walletAddress": "0x074e7", "email": "app@acme.example"}})
    assert await refused(acme, f"/merges/{merge['id']}/undo") == (
        409,
        f"email: this identifier now belongs to contact {other}",
    )
    assert (await call(acme, "GET", f"?id={app}", *CARE)).json()["id"] == web


async def test_nested_merges_are_undone_in_reverse_order(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    third = await arrived(acme, {"walletAddress": "0x7417d"})
    before = await all_rows(acme)
    inner = await merged(acme, web, app)
    between = await all_rows(acme)
    outer = await merged(acme, third, web)
    assert await owners(acme) == {third}
    assert (await call(acme, "GET", "?walletAddress=0xa99", *CARE)).json()["id"] == third
    status, error = await refused(acme, f"/merges/{inner['id']}/undo")
    assert (status, error) == (409, f"the contact has been merged into another since: undo merge {outer['id']} first")
    await undo(acme, outer["id"])
    assert await all_rows(acme) == between
    await undo(acme, inner["id"])
    assert await all_rows(acme) == before


async def test_the_conflict_between_two_merged_contacts_is_resolved(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    await acme.post({"event": "hint", "contact": {"walletAddress": "0x3eb", "externalId": "app-1"}})
    merge = await merged(acme, web, app)
    assert await acme.rows("resolved_by", "identity_conflicts") == [(merge["id"],)]
    (conflict,) = (await timeline(acme, web, "?kind=conflict"))["timeline"]
    assert conflict["sentence"].endswith("; the two contacts have been merged since")
    await undo(acme, merge["id"])
    assert await acme.rows("resolved_by", "identity_conflicts") == [(None,)]


async def test_late_events_of_the_absorbed_contact_follow_it(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    merge = await merged(acme, web, app)
    await acme.service.rows(f"UPDATE events SET contact_id = '{app}', merged_from = NULL WHERE merged_from = '{app}'")
    await acme.service.rows(
        f"UPDATE contacts SET attributes = attributes || '{{\"late\": true}}', tags = tags || 'late'::text"
        f" WHERE id = '{app}'"
    )
    await move_late_rows(acme)
    assert await owners(acme) == {web}
    ((attributes, tags),) = await acme.service.rows(f"SELECT attributes, tags FROM contacts WHERE id = '{web}'")
    assert (attributes, tags) == ({"plan": "pro", "name": "Ann", "city": "Rome", "late": True}, ["beta", "late"])
    assert await acme.rows("due_at", "contact_merges") == [(None,)]
    await undo(acme, merge["id"])
    assert await owners(acme) == {web, app}


async def test_a_hot_contact_moves_page_by_page(acme: Org, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contacts_merge, "PAGE_ROWS", 2)
    monkeypatch.setattr("api.contacts.merge.PAGES_PER_REQUEST", 2)
    web, app = await create_two_contacts(acme)
    await acme.post_batch(*({"event": "step", "contact": APP, "payload": {"n": n}} for n in range(9)))
    merge = await merged(acme, web, app)
    assert merge["pending"] is True
    assert await owners(acme) == {web, app}
    await move_late_rows(acme)
    assert await owners(acme) == {web}
    assert (await undo(acme, merge["id"]))["pending"] is True
    await move_late_rows(acme)
    assert len(await acme.service.rows(f"SELECT id FROM events WHERE contact_id = '{app}'")) == 10


async def test_events_that_arrive_during_a_merge_are_never_lost(acme: Org) -> None:
    web, app = await create_two_contacts(acme)

    async def send(number: int) -> None:
        contact = {"walletAddress": ("0xa99", "0x3eb")[number % 2], "externalId": f"extra-{number % 3}"}
        event = {
            "event": "busy",
            "contact": contact,
            "attributes": {f"k{number}": number},
            "idempotencyKey": f"b{number}",
        }
        for _ in range(20):
            status, _ = await acme.post(event)
            if status != 503:  # a writer that waits two seconds for a lock gives up
                break
        assert status == 202

    async def merge_and_back() -> str:
        last = ""
        for _ in range(3):
            last = (await merged(acme, web, app))["id"]
            response = await call(acme, "POST", f"/merges/{last}/undo", *CARE)
            if response.status_code == 409:
                return last
        return str((await merged(acme, web, app))["id"])

    await asyncio.gather(merge_and_back(), *map(send, range(40)))
    await move_late_rows(acme)
    stored = await acme.service.rows(f"SELECT contact_id FROM events WHERE org_id = {acme.id} AND event = 'busy'")
    assert len(stored) == 40
    for table in ("identities", "events"):
        pointing = f"SELECT FROM {table} r JOIN contacts c ON c.org_id = r.org_id AND c.id = r.contact_id"
        assert await acme.service.rows(
            f"SELECT EXISTS ({pointing} WHERE r.org_id = {acme.id} AND c.merged_into IS NOT NULL)"
        ) == [(False,)]
    ((attributes,),) = await acme.service.rows(
        f"SELECT array_agg(DISTINCT k) FROM contacts, jsonb_object_keys(attributes) k WHERE org_id = {acme.id}"
        " AND k ~ '^k[0-9]+$'"
    )
    assert len(attributes) == 40


async def test_erasing_the_kept_contact_erases_the_absorbed(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    merge = await merged(acme, web, app)
    response = await call(acme, "DELETE", f"/{app}", "contacts:erase")
    assert (response.status_code, response.json()["error"][:29]) == (409, "this contact was merged into ")
    assert (await call(acme, "DELETE", f"/{web}", "contacts:erase")).status_code == 200
    assert (
        await acme.rows("email, wallet_address, external_id, attributes, tags", "contacts")
        == [(None, None, None, {}, [])] * 2
    )
    assert await acme.rows("gained, identities", "contact_merges") == [({}, [])]
    assert await refused(acme, f"/merges/{merge['id']}/undo") == (409, "the contact has been erased since")


async def test_a_contact_is_not_erased_while_an_undo_is_pending(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    merge = await merged(acme, web, app)
    await undo(acme, merge["id"])
    response = await call(acme, "DELETE", f"/{web}", "contacts:erase")
    assert (response.status_code, response.json()["error"][:23]) == (409, "a merge was undone a mo")
    await move_late_rows(acme)
    assert (await call(acme, "DELETE", f"/{web}", "contacts:erase")).status_code == 200
    ((idempotency_key,),) = await acme.service.rows(f"SELECT idempotency_key FROM events WHERE contact_id = '{app}'")
    assert idempotency_key


async def test_an_export_has_the_absorbed_contact_unchanged(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    await merged(acme, web, app)
    for contact_id in (web, app):
        exported = decode((await call(acme, "GET", f"/{contact_id}/export", "contacts:read")).content)
        ((absorbed,), events) = exported["absorbed"], exported["events"]
        assert (exported["contact"]["id"], len(events)) == (web, 2)
        assert absorbed.keys() == exported["contact"].keys()
        assert (absorbed["walletAddress"], absorbed["email"]) == ("0xa99", "a•••@acme.example")
        assert (absorbed["attributes"], absorbed["tags"]) == ({"plan": "free", "city": "Rome"}, ["beta"])


async def test_required_scopes_and_refused_requests(acme: Org, globex: Org) -> None:
    web, app = await create_two_contacts(acme)
    pair = {"keep": web, "absorb": app}
    for scopes, body, status in (
        (("contacts:read",), pair, 403),
        (("automations:write",), {**pair, "preview": True}, 403),
        (("contacts:read",), {**pair, "preview": True}, 200),
        (CARE, {"keep": web, "absorb": web}, 400),
        (CARE, {"keep": web}, 400),
        (CARE, {"keep": web, "absorb": "somebody"}, 400),
    ):
        assert (await call(acme, "POST", "/merge", *scopes, body=body)).status_code == status
    assert await refused(globex, "/merge", **pair) == (404, "contact not found: keep")
    merge = await merged(acme, web, app)
    assert await refused(acme, "/merge", **pair) == (409, f"absorb: this contact was merged into {web}")
    assert (await refused(globex, f"/merges/{merge['id']}/undo"))[0] == 404
    for method, path in (("POST", f"/{app}/tags"), ("PUT", f"/{app}/opt-outs")):
        assert (await call(acme, method, path, *CARE, body={"add": ["x"], "email": True})).status_code == 404


async def test_a_merge_waits_for_a_claimed_entry(acme: Org) -> None:
    web, app = await create_two_contacts(acme)
    await acme.service.rows(f"UPDATE entries SET state = 'running' WHERE contact_id = '{app}'")
    status, error = await refused(acme, "/merge", keep=web, absorb=app)
    assert (status, error[:24]) == (409, "an automation is working")
    async with acme.service.services.system_database.transaction() as tx:
        assert await move_rows(tx, acme.id, "entries", RowMove(app, web), 10) == 0
