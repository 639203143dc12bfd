"""`/contacts`: finding contacts, opting out, tags, and the required scopes."""

from typing import Any

import httpx
import pytest

from api.auth.key_format import Kind
from api.channels.signing import Unsubscription, unsubscribe_token
from api.store.contacts import find_contact_state
from api.store.messages import find_suppressed
from tests.routes.conftest import Org
from workbench.language.codec import decode
from workbench.language.event import Identifiers

CARE = ("contacts:read", "automations:write")
ANN = {"walletAddress": "0xA22", "email": "ann@acme.example", "externalId": "ann-1"}


async def call(
    org: Org, method: str, path: str, *scopes: str, kind: Kind = "workbench", body: object = None
) -> httpx.Response:
    headers = {"authorization": f"Bearer {await org.key(kind, *scopes)}"}
    return await org.service.client.request(method, f"/contacts{path}", json=body, headers=headers)


async def arrived(org: Org, contact: dict[str, str] = ANN, **more: Any) -> str:
    """Send an event of a contact; return the id of the contact."""
    assert (await org.post({"event": "signup", "contact": contact, **more}))[0] == 202
    return str((await find_contact(org, contact))["id"])


async def find_contact(org: Org, contact: dict[str, str]) -> dict[str, Any]:
    response = await call(org, "POST", "/find", *CARE, body={"contact": contact})
    assert response.status_code == 200, response.text
    return decode(response.content)


async def choose(org: Org, contact_id: str, **outs: bool) -> list[str]:
    """Opt out of channels, or in again; return the channels that are opted out."""
    response = await call(org, "PUT", f"/{contact_id}/opt-outs", *CARE, body=outs)
    assert response.status_code == 200, response.text
    opted_out: list[str] = response.json()["optedOut"]
    return opted_out


async def is_suppressed(org: Org, address: str = "ann@acme.example") -> bool:
    digest = org.service.keyring.of(org.id).digest("email", address)
    async with org.service.services.system_database.transaction() as tx:
        return bool(await find_suppressed(tx, org.id, "email", [digest]))


async def test_a_contact_is_found_by_its_identifiers(acme: Org) -> None:
    contact_id = await arrived(acme, attributes={"plan": "pro"})
    for kind, value in ANN.items():
        assert (await find_contact(acme, {kind: value}))["id"] == contact_id
    shown = (await call(acme, "GET", f"/{contact_id}", *CARE)).json()
    assert {name: value for name, value in shown.items() if not name.endswith("At")} == {
        "id": contact_id,
        "walletAddress": "0xa22",
        "walletRaw": "0xA22",
        "email": "a•••@acme.example",
        "externalId": "ann-1",
        "attributes": {"plan": "pro"},
        "tags": [],
        "segments": [],
        "optedOut": [],
        "suppressed": None,
        "declined": [],
    }
    clear = (await call(acme, "GET", f"/{contact_id}", "contacts:read", "pii:read")).json()
    assert clear["email"] == "ann@acme.example"


async def test_another_organization_does_not_find_the_contact(acme: Org, globex: Org) -> None:
    contact_id = await arrived(acme)
    for method, path, body in (
        ("GET", f"/{contact_id}", None),
        ("POST", "/find", {"contact": ANN}),
        ("PUT", f"/{contact_id}/opt-outs", {"email": True}),
        ("POST", f"/{contact_id}/tags", {"add": ["vip"]}),
        ("GET", "/not-an-id", None),
    ):
        response = await call(globex, method, path, *CARE, body=body)
        assert (response.status_code, response.json()["error"]) == (404, "contact not found")


async def test_opting_out_and_in_again(acme: Org) -> None:
    contact_id = await arrived(acme)
    assert await choose(acme, contact_id, inapp=True, email=True) == ["email", "inapp"]
    assert await is_suppressed(acme)
    assert await choose(acme, contact_id, inapp=False) == ["email"]
    assert await choose(acme, contact_id, email=False, webhook=True) == ["webhook"]
    assert not await is_suppressed(acme)
    audit = await acme.rows("action, subject_id, detail", "audit_log")
    assert audit[0] == ("contact.opt_out", contact_id, {"inapp": True, "email": True})


async def test_the_unsubscribe_link_opts_the_contact_out_of_emails(acme: Org) -> None:
    contact_id = await arrived(acme)
    digest = acme.service.keyring.of(acme.id).digest("email", "ann@acme.example")
    token = unsubscribe_token(acme.service.keyring, Unsubscription(acme.id, digest))
    for _ in range(2):
        assert (await acme.service.client.post(f"/unsubscribe?token={token}")).status_code == 200
    assert await acme.rows("opted_out", "contacts") == [(["email"],)]
    assert (await find_contact(acme, ANN))["optedOut"] == ["email"]
    assert await choose(acme, contact_id, email=False) == []
    assert not await is_suppressed(acme)


async def test_an_address_that_unsubscribed_before_it_had_a_contact(acme: Org) -> None:
    digest = acme.service.keyring.of(acme.id).digest("email", "ann@acme.example")
    token = unsubscribe_token(acme.service.keyring, Unsubscription(acme.id, digest))
    await acme.service.client.post(f"/unsubscribe?token={token}")
    await arrived(acme)
    assert (await find_contact(acme, ANN))["optedOut"] == ["email"]


async def test_an_unsubscribed_address_stays_opted_out_after_the_contact_gets_another(acme: Org) -> None:
    digest = acme.service.keyring.of(acme.id).digest("email", "old@acme.example")
    token = unsubscribe_token(acme.service.keyring, Unsubscription(acme.id, digest))
    await acme.service.client.post(f"/unsubscribe?token={token}")
    contact_id = await arrived(acme, ANN | {"email": "old@acme.example"})
    await arrived(acme)
    keys = acme.service.keyring.of(acme.id)
    async with acme.service.services.system_database.transaction() as tx:
        stored = await find_contact_state(tx, acme.id, keys, Identifiers(email="ann@acme.example"))
    assert stored is not None
    assert (stored.id, stored.opted_out) == (contact_id, ("email",))
    assert (await find_contact(acme, ANN))["optedOut"] == ["email"]


async def test_a_simulation_respects_opt_outs(acme: Org) -> None:
    await choose(acme, await arrived(acme), inapp=True)
    node = {"id": "i", "type": "send_inapp", "data": {"title": "Hi", "body": "there"}}
    graph = {"nodes": [{"id": "t", "type": "app_event", "data": {}}, node], "edges": [{"source": "t", "target": "i"}]}
    trial = {
        "triggerSpec": {"type": "app_event", "event": "signup"},
        "graph": graph,
        "event": {"event": "signup", "contact": ANN},
    }
    headers = {"authorization": f"Bearer {await acme.key('workbench', *CARE)}"}
    response = await acme.service.client.post("/simulate", json=trial, headers=headers)
    assert response.status_code == 200, response.text
    step = response.json()["steps"][-1]
    assert (step["outcome"], step["detail"]) == ("skipped", {"cause": "opted_out"})


async def test_tags_are_added_and_removed(acme: Org) -> None:
    contact_id = await arrived(acme)
    for body, tags in (
        ({"add": ["vip", "new", "vip"]}, ["vip", "new"]),
        ({"remove": ["new"], "add": ["vip", "old"]}, ["vip", "old"]),
        ({"remove": ["nothing"]}, ["vip", "old"]),
    ):
        response = await call(acme, "POST", f"/{contact_id}/tags", *CARE, body=body)
        assert (response.status_code, response.json()["tags"]) == (200, tags)
    assert {row[0] for row in await acme.rows("action", "audit_log")} == {"contact.tag"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("opt-outs", {}, None),
        ("opt-outs", {"fax": True}, None),
        ("opt-outs", {"email": "yes"}, "email"),
        ("tags", {"add": "vip"}, "add"),
        ("tags", {"add": [""]}, "add"),
        ("tags", {"remove": [7]}, "remove"),
        ("tags", {"remove": ["x" * 65]}, "remove"),
        ("tags", {"add": ["\0"]}, "add"),
        ("tags", {"add": ["x"] * 101}, "add"),
    ],
)
async def test_fields_that_cannot_be_read_are_named(acme: Org, path: str, body: object, field: str | None) -> None:
    method = "PUT" if path == "opt-outs" else "POST"
    response = await call(acme, method, f"/{await arrived(acme)}/{path}", *CARE, body=body)
    assert (response.status_code, response.json().get("field")) == (400, field)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "contact"),
        ({"contact": {}}, "contact"),
        ({"contact": 7}, "contact"),
        ({"contact": {"email": "x"}}, "contact.email"),
    ],
)
async def test_a_search_requires_an_identifier(acme: Org, body: object, field: str) -> None:
    response = await call(acme, "POST", "/find", *CARE, body=body)
    assert (response.status_code, response.json()["field"]) == (400, field)


@pytest.mark.parametrize(
    ("kind", "scopes", "looks", "changes", "exports", "erases"),
    [
        ("live", (), 200, 200, 403, 403),
        ("test", (), 403, 403, 403, 403),
        ("publishable", (), 401, 401, 401, 401),
        ("workbench", ("contacts:read",), 200, 403, 200, 403),
        ("workbench", ("automations:write",), 403, 200, 403, 403),
        ("workbench", ("contacts:erase",), 403, 403, 403, 200),
        ("workbench", ("events:read", "sql:read", "pii:read"), 403, 403, 403, 403),
    ],
)
async def test_each_request_requires_its_scope(
    acme: Org, kind: Kind, scopes: tuple[str, ...], looks: int, changes: int, exports: int, erases: int
) -> None:
    contact_id = await arrived(acme)
    statuses = [
        (await call(acme, method, f"/{contact_id}{path}", *scopes, kind=kind, body=body)).status_code
        for method, path, body in (
            ("GET", "", None),
            ("PUT", "/opt-outs", {"email": True}),
            ("POST", "/tags", {"add": ["vip"]}),
            ("GET", "/export", None),
            ("DELETE", "", None),
        )
    ]
    assert statuses == [looks, changes, changes, exports, erases]


async def test_properties_are_those_of_new_contacts_and_of_contacts_with_new_events(acme: Org, globex: Org) -> None:
    await globex.post({"event": "e", "contact": {"externalId": "x"}, "attributes": {"secret": 1}})
    for number, attributes in enumerate(({"age": "5", "zip": 8000}, {"age": 7})):
        await acme.post({"event": "e", "contact": {"externalId": f"u{number}"}, "attributes": attributes})
    contact_id = await arrived(acme)
    await call(acme, "POST", f"/{contact_id}/tags", *CARE, body={"add": ["vip"]})
    body = (await call(acme, "GET", "/properties", "sql:read")).json()
    types = {path["path"]: path["types"] for path in body["paths"]}
    assert (types["age"], types["zip"]) == ({"string": 1, "number": 1}, {"number": 1})
    assert ("secret" in types, body["tags"]) == (False, ["vip"])
    for kind, scopes in (("workbench", ("contacts:read",)), ("live", ())):
        assert (await call(acme, "GET", "/properties", *scopes, kind=kind)).status_code == 403
