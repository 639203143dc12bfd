"""`/click`: the redirect of tracked links, and the events that it stores."""

import asyncio
from typing import Any, NoReturn

import pytest

from api.channels.tracked_links import Link, click_url
from api.ingest import clicks
from api.process import Tally
from api.store.database import DatabaseUnavailableError
from tests.routes.conftest import Org, Service
from workbench.language.run import message_id

URL = "https://shop.example/sale?a=1"
ENTRY_ID = "01930000-0000-7000-8000-000000000000"


async def link_of(org: Org, contact: dict[str, str], node_id: str = "e", url: str = URL) -> str:
    """Store an email to a contact; return the path of a link in it."""
    assert (await org.post({"event": "signup", "contact": contact}))[0] == 202
    id_ = message_id(ENTRY_ID, node_id)
    await org.service.rows(
        "INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,"
        " created_at) SELECT org_id, %s, contact_id, %s, %s, %s, 1, 'email', 'sent', now() FROM events"
        " WHERE org_id = %s ORDER BY created_at DESC LIMIT 1 RETURNING id",
        *(id_, ENTRY_ID, ENTRY_ID, node_id, org.id),
    )
    return click_url("", org.service.keyring, Link(org.id, id_, url)).removeprefix("/api/v1")


async def click(org: Org, path: str) -> None:
    response = await org.service.client.get(path)
    assert (response.status_code, response.headers["location"]) == (302, URL)


async def outcomes(service: Service) -> dict[str, float]:
    """Wait until the clicks are stored; return their outcomes since the last call."""
    noted = service.services.clicks
    await asyncio.gather(*noted._waiting.values())
    counted, noted.outcomes = noted.outcomes, Tally("outcome")
    return {outcome: number for (outcome,), number in counted}


async def clicked(org: Org) -> list[tuple[Any, ...]]:
    return [
        (event, payload) for event, payload in await org.rows("event, payload", "events") if event == "link.clicked"
    ]


async def test_a_click_leads_to_the_target_and_is_an_event_of_the_contact(acme: Org) -> None:
    trigger = {
        "type": "app_event",
        "event": "link.clicked",
        "filters": [{"path": "url", "operator": "eq", "value": URL}],
    }
    graph = {"nodes": [{"id": "t", "type": "app_event", "data": {}}], "edges": []}
    automation = {"name": "A", "triggerSpec": trigger, "graph": graph, "active": True}
    assert (await acme.call("POST", "/automations", automation, kind="workbench")).status_code == 201
    path = await link_of(acme, {"email": "zoe@acme.example"})
    await click(acme, path)
    assert await outcomes(acme.service) == {"stored": 1}
    payload = {"url": URL, "messageId": message_id(ENTRY_ID, "e"), "automationId": ENTRY_ID, "nodeId": "e"}
    assert await clicked(acme) == [("link.clicked", payload)]
    assert await acme.traces() == {"events": 2, "idempotency_keys": 2, "contacts": 1, "identities": 1, "entries": 1}


async def test_clicks_of_one_minute_count_once_for_each_link_of_each_message(
    acme: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clicks, "REPEAT_WINDOW_US", 10**15)  # a test may run across the end of a minute
    path, other = [await link_of(acme, {"externalId": "zoe"}, node_id) for node_id in ("e", "f")]
    for outcome in ("stored", "repeated"):
        await click(acme, path)
        assert await outcomes(acme.service) == {outcome: 1}
    await asyncio.gather(*(click(acme, other) for _ in range(3)))
    assert await outcomes(acme.service) == {"stored": 1, "repeated": 2}
    assert len(await clicked(acme)) == 2
    assert await acme.rows("count(*)", "idempotency_mismatches", "1") == [(0,)]


async def test_head_answers_alike_and_counts_nothing(acme: Org) -> None:
    response = await acme.service.client.head(await link_of(acme, {"externalId": "zoe"}))
    assert (response.status_code, response.headers["location"]) == (302, URL)
    assert (response.headers["cache-control"], response.headers["referrer-policy"]) == ("no-store", "no-referrer")
    assert await outcomes(acme.service) == {}


async def test_a_link_of_an_erased_contact_still_leads_to_its_target_and_stores_nothing(acme: Org) -> None:
    path = await link_of(acme, {"walletAddress": "0xabc", "email": "zoe@acme.example"})
    ((contact_id,),) = await acme.rows("id", "contacts")
    headers = {"authorization": f"Bearer {await acme.key('workbench', 'contacts:erase')}"}
    erased = await acme.service.client.delete(f"/contacts/{contact_id}", headers=headers)
    assert erased.is_success, erased.text
    before = await acme.traces()
    await click(acme, path)
    assert await outcomes(acme.service) == {"unknown": 1}
    assert await acme.traces() == before


async def test_a_link_that_was_not_signed_here_is_not_found(acme: Org) -> None:
    path = await link_of(acme, {"externalId": "zoe"})
    for method in ("GET", "HEAD"):
        response = await acme.service.client.request(method, path[:-6] + "AAAAAA")
        assert (response.status_code, response.headers.get("location")) == (404, None)
    assert (await acme.service.client.get("/click")).status_code == 400


async def test_clicks_do_not_use_up_the_rate_of_the_organization(acme: Org) -> None:
    path = await link_of(acme, {"externalId": "zoe"})
    buckets = acme.service.services.pipeline.buckets
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(buckets, "take", lambda *_: 0)
        await click(acme, path)
        assert await outcomes(acme.service) == {"stored": 1}
        assert (await acme.post({"event": "x", "contact": {"externalId": "zoe"}}))[0] == 429


async def test_without_the_database_the_link_leads_to_its_target_and_the_lost_click_is_counted(
    acme: Org, monkeypatch: pytest.MonkeyPatch
) -> None:
    services = acme.service.services
    path = click_url("", acme.service.keyring, Link(acme.id, message_id(ENTRY_ID, "e"), URL)).removeprefix("/api/v1")
    monkeypatch.setattr(clicks, "ATTEMPTS_AFTER_S", (0.0, 0.0))
    for database in (services.clicks._database, services.database):
        monkeypatch.setattr(database, "transaction", unreachable)
    await click(acme, path)
    assert await outcomes(acme.service) == {"lost": 1}


def unreachable() -> NoReturn:
    raise DatabaseUnavailableError("it is away")
