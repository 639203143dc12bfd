"""`/bounces`: reports of mail servers and of providers suppress addresses and are events of contacts."""

from typing import Any

import pytest

from tests.channels.reports import bounce, complaint, email_to
from tests.routes.conftest import Org
from workbench.language.run import message_id

ENTRY_ID = "01930000-0000-7000-8000-000000000000"
ID = message_id(ENTRY_ID, "e")
ZOE = "zoe@example.com"
ABOUT = {"messageId": ID, "automationId": ENTRY_ID, "nodeId": "e"}


async def send_email(org: Org, address: str = ZOE) -> bytes:
    """Store an email to a new contact as sent; return it as it left."""
    assert (await org.post({"event": "signup", "contact": {"email": address, "externalId": address}}))[0] == 202
    await org.service.rows(
        "INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,"
        " recipient, created_at) SELECT org_id, %s, contact_id, %s, %s, 'e', 1, 'email', 'sent', %s, now() FROM events"
        " WHERE org_id = %s ORDER BY created_at DESC LIMIT 1",
        *(ID, ENTRY_ID, ENTRY_ID, org.service.keyring.of(org.id).seal_email(address), org.id),
    )
    return email_to(org.service.keyring, org.id, ID, address)


async def pipe(org: Org, report: bytes) -> Any:
    headers = {"authorization": f"Bearer {await org.key()}", "content-type": "message/rfc822"}
    response = await org.service.client.post("/bounces", content=report, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["outcome"]


async def contact(org: Org, address: str = ZOE) -> tuple[Any, Any]:
    """Return the channels that a contact opted out of, and why its address is suppressed."""
    found = (await org.call("POST", "/contacts/find", {"contact": {"email": address}})).json()
    return found["optedOut"], found["suppressed"]


async def feedback(org: Org) -> list[tuple[Any, ...]]:
    return [row for row in await org.rows("event, payload", "events") if row[0].startswith("email.")]


async def test_a_permanent_bounce_suppresses_the_address_until_it_is_lifted(acme: Org) -> None:
    report = bounce(await send_email(acme))
    for _ in range(2):  # mail servers may deliver a report twice
        assert await pipe(acme, report) == "suppressed"
    assert await feedback(acme) == [("email.bounced", {"status": "5.1.1", "permanent": True} | ABOUT)]
    assert await contact(acme) == (["email"], "bounced")
    assert await acme.rows("status, feedback", "messages") == [("failed", "bounced")]
    assert await acme.rows("outcome, reason", "message_outcomes", "at") == [("failed", "bounced")]
    ((contact_id,),) = await acme.rows("id", "contacts")
    assert (await acme.call("PUT", f"/contacts/{contact_id}/opt-outs", {"inapp": True})).status_code == 200
    assert await contact(acme) == (["email", "inapp"], "bounced")
    assert await acme.rows("opted_out", "contacts") == [(["inapp"],)]  # the bounce has not become its choice
    assert (await acme.call("PUT", f"/contacts/{contact_id}/opt-outs", {"email": False})).status_code == 200
    assert await contact(acme) == (["inapp"], None)


async def test_a_temporary_bounce_is_only_an_event(acme: Org) -> None:
    assert await pipe(acme, bounce(await send_email(acme), "4.2.2")) == "recorded"
    assert await feedback(acme) == [("email.bounced", {"status": "4.2.2", "permanent": False} | ABOUT)]
    assert await contact(acme) == ([], None)
    assert await acme.rows("status, feedback", "messages") == [("sent", None)]


async def test_a_permanent_bounce_that_is_not_about_the_address_closes_nothing(acme: Org) -> None:
    assert await pipe(acme, bounce(await send_email(acme), "5.2.2")) == "recorded"
    assert await feedback(acme) == [("email.bounced", {"status": "5.2.2", "permanent": True} | ABOUT)]
    assert await contact(acme) == ([], None)
    assert await acme.rows("status, feedback", "messages") == [("failed", "bounced")]


async def test_a_complaint_suppresses_the_address(acme: Org) -> None:
    assert await pipe(acme, complaint(await send_email(acme))) == "suppressed"
    assert await feedback(acme) == [("email.complained", {"permanent": True} | ABOUT)]
    assert await contact(acme) == (["email"], "complained")
    assert await acme.rows("status, feedback", "messages") == [("sent", "complained")]


async def test_a_provider_reports_as_json(acme: Org) -> None:
    await send_email(acme)
    body = {"type": "bounced", "email": "ZOE@example.com", "messageId": ID, "status": "5.2.1"}
    assert (await acme.call("POST", "/bounces", body)).json() == {"outcome": "suppressed"}
    assert await feedback(acme) == [("email.bounced", {"status": "5.2.1", "permanent": True} | ABOUT)]
    # Without the id of the message: once a day.
    for _ in range(2):
        response = await acme.call("POST", "/bounces", {"type": "complained", "email": ZOE})
        assert response.json() == {"outcome": "suppressed"}
    assert (await feedback(acme))[1:] == [("email.complained", {"permanent": True})]


async def test_an_address_without_a_contact_is_suppressed_and_becomes_none(acme: Org) -> None:
    temporary = {"type": "bounced", "email": ZOE, "status": "4.4.7"}
    assert (await acme.call("POST", "/bounces", temporary)).json() == {"outcome": "unknown"}
    assert (await acme.call("POST", "/bounces", {"type": "bounced", "email": ZOE})).json() == {"outcome": "suppressed"}
    assert await acme.traces() == {}
    await acme.post({"event": "signup", "contact": {"email": ZOE}})
    assert await contact(acme) == (["email"], "bounced")


async def test_a_report_only_reaches_the_email_that_its_link_belongs_to(acme: Org, globex: Org) -> None:
    report = bounce(await send_email(acme))
    assert await pipe(globex, report) == "unknown"
    other = bounce(email_to(acme.service.keyring, acme.id, ID, "ann@example.com"))
    assert await pipe(acme, other) == "suppressed"
    assert await contact(acme) == ([], None)
    assert (await feedback(acme), await acme.rows("status", "messages")) == ([], [("sent",)])
    assert await pipe(acme, b"no report") == "unknown"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"email": ZOE}, "type"),
        ({"type": "bounced"}, "email"),
        ({"type": "bounced", "email": "zoe"}, "email"),
        ({"type": "opened", "email": ZOE}, "type"),
        ({"type": "bounced", "email": ZOE, "status": "550"}, "status"),
        ({"type": "bounced", "email": ZOE, "messageId": "<1@acme.example>"}, "messageId"),
    ],
)
async def test_what_is_wrong_in_a_report_is_named(acme: Org, body: dict[str, Any], field: str) -> None:
    response = await acme.call("POST", "/bounces", body)
    assert (response.status_code, response.json()["field"]) == (400, field)
