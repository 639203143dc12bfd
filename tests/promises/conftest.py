"""Real processes under load: clients that record every answer, and the checks that must pass afterwards.

An attempt without an answer (the connection broke, or it took too long) is *unknown*, and is made again with the same
key until it is answered; so is an attempt that was answered with 429 or 503.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
import psycopg

from api.store.database import libpq_dsn, seeing_all_organizations
from tests.ingest.test_identity import ASTRAY
from tests.installation import Api

CLIENT_TIMEOUT_S = 10.0  # seconds that a client waits; no request may take this long


class Load:
    """Clients of one organization; `log` holds (idempotency key, answer) of every attempt, in order."""

    def __init__(self, key: str, apis: list[Api], seed: int = 0) -> None:
        self.apis = apis
        self.log: list[tuple[str, str]] = []
        self.sent: dict[str, dict[str, Any]] = {}
        self.slowest = 0.0
        self.strange: list[str] = []
        self._headers = {"authorization": f"Bearer {key}"}
        self._chance = Random(seed)
        self._counts: Counter[str] = Counter()
        self._running = True

    def event(self) -> dict[str, Any]:
        """Return a new event of one of a hundred people, with any identifiers of the person.

        A contact has at most 1,000 attributes, and every event adds one: a fast machine sends 20,000 events in a test.
        """
        key, person = f"k{len(self.sent)}", self._chance.randrange(100)
        contact = {"walletAddress": f"0xC{person}", "email": f"p{person}@example.com", "externalId": f"u{person}"}
        names = self._chance.sample(sorted(contact), self._chance.choice((1, 2, 3)))
        self.sent[key] = {
            "event": "deposit",
            "contact": {name: contact[name] for name in names},
            "attributes": {key: True, "last": key},
            "idempotencyKey": key,
        }
        return self.sent[key]

    def answers(self, key: str) -> list[str]:
        return [answer for sent_key, answer in self.log if sent_key == key]

    def count(self, answer: str) -> int:
        return self._counts[answer]

    async def run(self, clients: int = 8) -> None:
        """Send until `stop`, each client one request at a time, some of them batches."""
        async with self._connected() as client:
            await asyncio.gather(*[self._client(client, number) for number in range(clients)])

    def stop(self) -> None:
        self._running = False

    async def settle(self) -> None:
        """Send every event without a final answer again, until there is one."""
        async with self._connected() as client:
            for _ in range(50):
                answered = {key for key, answer in self.log if answer in ("new", "again", "refused")}
                if not (open_ := [event for key, event in self.sent.items() if key not in answered]):
                    return
                for start in range(0, len(open_), 100):
                    await self.send(client, open_[start : start + 100])
        raise AssertionError("some events never got an answer")

    async def send(self, client: httpx.AsyncClient, events: list[dict[str, Any]]) -> None:
        """Send one event alone or several as a batch to one of the APIs, and record the answers."""
        url = self._chance.choice(self.apis).url
        path, body = ("/events/batch", {"events": events}) if len(events) > 1 else ("/events", events[0])
        since = time.monotonic()
        try:
            response = await client.post(f"{url}/api/v1{path}", json=body)
            answers = self._read(response, len(events))
        except httpx.TransportError:
            answers = ["unknown"] * len(events)
        self.slowest = max(self.slowest, time.monotonic() - since)
        self.log += zip((event["idempotencyKey"] for event in events), answers, strict=True)
        self._counts.update(answers)

    def _read(self, response: httpx.Response, size: int) -> list[str]:
        if response.status_code == 202:
            body = response.json()
            return [_classify(item) for item in body.get("results", [body])]
        if response.status_code == 503 and response.json().get("code") == "INGEST_UNAVAILABLE":
            return ["later"] * size
        self.strange.append(f"{response.status_code} {response.text}")
        return ["strange"] * size

    async def _client(self, client: httpx.AsyncClient, number: int) -> None:
        while self._running:
            await self.send(client, [self.event() for _ in range(1 if number % 4 else 7)])
            # A client backs off after a failure. The short pause leaves the processors to the processes that start.
            await asyncio.sleep(0.1 if self.log[-1][1] in ("unknown", "later") else 0.01)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[httpx.AsyncClient]:
        async with httpx.AsyncClient(headers=self._headers, timeout=CLIENT_TIMEOUT_S) as client:
            yield client


def _classify(item: dict[str, Any]) -> str:
    if item["accepted"]:
        return "again" if item["deduplicated"] else "new"
    return "later" if item["error"].startswith(("INGEST_UNAVAILABLE", "RATE_LIMITED")) else "refused"


def automate(api: Api, key: str) -> None:
    """Publish an automation that every event enters."""
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "add_tag", "data": {"tag": "seen"}}]
    graph = {"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "x"}]}
    with api.client(key) as workbench:
        made = workbench.post(
            "/automations", json={"name": "all", "triggerSpec": {"type": "app_event"}, "graph": graph}
        )
        assert workbench.post(f"/automations/{made.json()['id']}/publish", json={}).status_code == 200


async def until(holds: Callable[[], bool], seconds: float = 20) -> None:
    """Let other tasks run until a condition holds."""
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def query(dsn: str, statement: str, *values: Any) -> list[tuple[Any, ...]]:
    async with await psycopg.AsyncConnection.connect(libpq_dsn(dsn), autocommit=True) as connection:
        await connection.execute("SET search_path = workbench")
        async with seeing_all_organizations(connection):
            cursor = await connection.execute(statement, values)  # type: ignore[arg-type]
            return await cursor.fetchall() if cursor.description else []


async def check_promises(dsn: str, load: Load, automations: int = 0) -> None:
    """Assert V1-V5, V7 and V8 for one organization whose wildcard automations were always active."""
    assert load.strange == []
    rows = await query(dsn, "SELECT idempotency_key, contact_id, created_at FROM events")
    stored = Counter(key for key, _, _ in rows)
    accepted = {key for key, answer in load.log if answer in ("new", "again")}
    assert stored == dict.fromkeys(accepted, 1)  # V1, V3
    for key in accepted:  # V2
        answers = load.answers(key)
        assert answers.count("new") == 1 or (answers.count("new") == 0 and {"unknown", "later"} & {*answers})
    (counts,) = await query(
        dsn,
        "SELECT (SELECT count(*) FROM idempotency_keys), (SELECT count(*) FROM events),"
        " (SELECT count(*) FROM events e JOIN contacts c ON c.org_id = e.org_id AND c.id = e.contact_id),"
        " (SELECT count(*) FROM entries), (SELECT count(DISTINCT (automation_id, event_id)) FROM entries)",
    )
    total = len(accepted)
    assert counts == (total, total, total, total * automations, total * automations)  # V4, V5
    ((org_id,),) = await query(dsn, "SELECT DISTINCT org_id FROM events")
    assert await query(dsn, ASTRAY.replace("%(org_id)s", str(org_id))) == []  # V7
    for contact_id, attributes in await query(dsn, "SELECT id, attributes FROM contacts"):  # V8
        own = {key for key, owner, _ in rows if owner == contact_id}
        assert attributes.pop("last") in own
        assert attributes == dict.fromkeys(own, True)
