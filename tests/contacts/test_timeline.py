"""`GET /contacts` and `/contacts/{id}/timeline`: a contact with counts, and its history."""

from typing import Any

import pytest

from tests.contacts.test_contacts import ANN, CARE, arrived, call
from tests.contacts.test_erase import fill
from tests.routes.conftest import Org
from workbench.language.codec import decode, encode


async def timeline(org: Org, contact_id: str, query: str = "", *scopes: str) -> dict[str, Any]:
    response = await call(org, "GET", f"/{contact_id}/timeline{query}", *(scopes or CARE))
    assert response.status_code == 200, response.text
    return decode(response.content)


@pytest.mark.parametrize("query", ["email=Ann@acme.example", "walletAddress=0xA22", "externalId=ann-1"])
async def test_a_contact_is_selected_by_its_identifiers(acme: Org, query: str) -> None:
    contact_id = await arrived(acme, attributes={"plan": "pro"})
    shown = (await call(acme, "GET", f"?{query}", *CARE)).json()
    assert (shown["id"], shown["email"], shown["attributes"]) == (contact_id, "a•••@acme.example", {"plan": "pro"})
    assert shown["counts"] == {"events": 1, "entries": 0, "messages": 0, "conflicts": 0}
    by_id = await call(acme, "GET", f"?id={contact_id}", "contacts:read", "pii:read")
    assert by_id.json()["email"] == "ann@acme.example"


async def test_another_organization_does_not_see_it_and_a_request_names_exactly_one(acme: Org, globex: Org) -> None:
    contact_id = await arrived(acme)
    for path in ("?externalId=ann-1", f"?id={contact_id}", f"/{contact_id}/timeline"):
        assert (await call(globex, "GET", path, *CARE)).status_code == 404
    for path in ("", "?email=nonsense", "?externalId=ann-1&walletAddress=0xa22", f"/{contact_id}/timeline?before=soon"):
        assert (await call(acme, "GET", path, *CARE)).status_code == 400
    assert (await call(acme, "GET", f"/{contact_id}/timeline", kind="live")).status_code == 403
    assert (await call(acme, "GET", f"/{contact_id}/timeline", "events:read")).status_code == 403


async def test_the_timeline_is_newest_first(acme: Org) -> None:
    contact_id = await arrived(acme, payload={"step": 1})
    await arrived(acme, {"externalId": "ben"})
    await acme.post({"event": "deposit", "contact": {"walletAddress": "0xa22", "externalId": "ben"}})
    sentences = [(item["kind"], item["sentence"]) for item in (await timeline(acme, contact_id))["timeline"]]
    ((ben,),) = await acme.service.rows(f"SELECT id FROM contacts WHERE org_id = {acme.id} AND external_id = 'ben'")
    assert sorted(sentences[:2]) == [
        ("conflict", f"an event contained the external id of contact {ben}, which was not moved"),
        ("event", "sent deposit"),
    ]
    assert sentences[2:] == [("event", "sent signup")]
    (other, _) = (await timeline(acme, ben))["timeline"]
    assert other["sentence"] == f"an event of contact {contact_id} contained its external id, which was not moved"
    assert other["detail"]["kind"] == "externalId"


async def test_entries_and_messages_show_their_state(acme: Org) -> None:
    contact_id = await arrived(acme)
    spec, graph = '{"type": "app_event", "event": "signup"}', '{"nodes": [], "edges": []}'
    await acme.service.rows(
        f"INSERT INTO automations VALUES ({acme.id}, '{contact_id}', 'Welcome', '{spec}', '{graph}', true, 2, 1, NULL,"
        " now(), now())"
    )
    await fill(acme, contact_id)
    message, entry = sorted(
        (
            item
            for item in (await timeline(acme, contact_id, "", *CARE, "pii:read"))["timeline"]
            if item["kind"] in ("entry", "message")
        ),
        key=lambda item: str(item["kind"]),
        reverse=True,
    )
    assert message["sentence"] == "in-app message “canary-4711” of “Welcome”: sent"
    assert entry["sentence"] == "entered the automation “Welcome”: dead (refused)"
    assert (entry["detail"]["automation"], entry["detail"]["state"]) == ("Welcome", "dead")
    counts = (await call(acme, "GET", f"?id={contact_id}", *CARE)).json()["counts"]
    assert counts == {"events": 1, "entries": 1, "messages": 1, "conflicts": 0}


async def test_entries_of_an_automation_that_was_not_published_are_left_out(acme: Org) -> None:
    contact_id = await arrived(acme)
    spec, graph = '{"type": "app_event", "event": "signup"}', '{"nodes": [], "edges": []}'
    await acme.service.rows(
        f"INSERT INTO automations VALUES ({acme.id}, '{contact_id}', 'Draft', '{spec}', '{graph}', true, NULL, 1, NULL,"
        " now(), now())"
    )
    await fill(acme, contact_id)
    await acme.service.rows("UPDATE entries SET state = 'completed', outcome = 'no_published_version'")
    kinds = [item["kind"] for item in (await timeline(acme, contact_id))["timeline"]]
    assert "entry" not in kinds
    assert "event" in kinds


async def test_pages_meet_without_gap_or_overlap(acme: Org) -> None:
    contact_id = await arrived(acme)
    await acme.post_batch(*({"event": "step", "contact": ANN, "payload": {"n": n}} for n in range(6)))
    whole = (await timeline(acme, contact_id))["timeline"]
    items, before = [], ""
    while True:
        page = await timeline(acme, contact_id, f"?limit=3{before}")
        items += page["timeline"]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert (len(whole), items) == (7, whole)
    assert (await timeline(acme, contact_id, "?before=2020-01-01T00:00:00Z"))["timeline"] == []


async def test_texts_with_an_address_are_shown_as_templates_without_pii_read(acme: Org) -> None:
    contact_id = await arrived(acme)
    title = "{{ contact.email | urlencode }}"
    node = {"id": "i", "type": "send_inapp", "data": {"title": title, "body": "Hi"}}
    graph = encode({"nodes": [{"id": "t", "type": "app_event"}, node], "edges": []}).decode()
    await acme.service.rows(
        f"INSERT INTO automations VALUES ({acme.id}, '{contact_id}', 'Welcome', '{{}}', '{graph}', true, 1, 1, NULL,"
        " now(), now());"
        f"INSERT INTO automation_versions VALUES ({acme.id}, '{contact_id}', 1, '{{}}', '{graph}', now())"
    )
    await fill(acme, contact_id)
    await acme.service.rows("UPDATE entries SET automation_version = 1")
    await acme.service.rows("UPDATE messages SET node_id = 'i', subject = 'ann%%40acme.example', body = 'Hi'")
    for scopes, subject in ((CARE, title), ((*CARE, "pii:read"), "ann%40acme.example")):
        (message,) = (await timeline(acme, contact_id, "?kind=message", *scopes))["timeline"]
        exported = (await call(acme, "GET", f"/{contact_id}/export", *scopes)).json()["messages"]
        assert {message["detail"]["subject"], exported[0]["subject"]} == {subject}
        assert {message["detail"]["body"], exported[0]["body"]} == {"Hi"}
