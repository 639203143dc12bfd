"""Organizations and processes side by side: no deadlock, no mixing (docs/trust.md C10, G1, G2)."""

import asyncio
from random import Random
from typing import Any

import httpx

from tests.installation import Installation
from tests.promises.conftest import automate, query


async def test_c10_batches_of_the_same_contacts_in_any_order_do_not_deadlock(installation: Installation) -> None:
    keys = await installation.organization()
    apis = [installation.start_api(), installation.start_api()]
    chance = Random(10)
    batches = [people_in_any_order(chance, batch) for batch in range(60)]
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {keys['live']}"}, timeout=30) as client:
        answers = await asyncio.gather(
            *[
                client.post(f"{apis[number % 2].url}/api/v1/events/batch", json={"events": batch})
                for number, batch in enumerate(batches)
            ]
        )
    assert [answer.status_code for answer in answers] == [202] * 60
    assert all(item["accepted"] for answer in answers for item in answer.json()["results"])
    await query(installation.dsn, "SELECT pg_stat_force_next_flush()")
    assert await query(
        installation.dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ) == [(0,)]
    assert await query(installation.dsn, "SELECT count(*), count(DISTINCT contact_id) FROM events") == [(6_000, 20)]


def people_in_any_order(chance: Random, batch: int) -> list[dict[str, Any]]:
    people = [number % 20 for number in range(100)]
    chance.shuffle(people)
    return [
        {
            "event": "deposit",
            "contact": {"walletAddress": f"0xC{person}", "externalId": f"u{person}"},
            "attributes": {"batch": batch},
            "idempotencyKey": f"{batch}-{place}" if chance.random() < 0.9 else f"{batch}-{place}-shared",
        }
        for place, person in enumerate(people)
    ]


async def test_g1_g2_two_organizations_send_equal_events_and_share_nothing(installation: Installation) -> None:
    acme, globex = await installation.organization("acme"), await installation.organization("globex")
    api = installation.start_api()
    automate(api, acme["workbench"])
    sent = {
        "event": "secret_plan",
        "contact": {"walletAddress": "0xA", "email": "a@example.com"},
        "idempotencyKey": "k",
    }
    answers = []
    for keys in (acme, globex):
        with api.client(keys["live"]) as backend:
            live, dry = (backend.post("/events", json=sent | fields).json() for fields in ({}, {"test": True}))
            catalog = backend.get("/events/catalog").json()["events"]
            answers.append((live["deduplicated"], dry["matchedAutomations"], catalog))
    assert answers == [(False, matched, [{"event": "secret_plan", "count": 1}]) for matched in (1, 0)]
    assert await query(
        installation.dsn, "SELECT count(*), count(DISTINCT id), count(DISTINCT email) FROM contacts"
    ) == [(2, 2, 2)]
    with api.client(globex["workbench"]) as stranger, api.client(acme["workbench"]) as own:
        (entry,) = own.get("/entries").json()["entries"]
        assert [client.get(f"/entries/{entry['id']}").status_code for client in (own, stranger)] == [200, 404]
        assert stranger.get("/entries").json()["entries"] == []
