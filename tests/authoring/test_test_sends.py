"""Test sends: what would be sent goes to its author, marked, through the real channels, and nothing counts it."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from email import message_from_bytes, policy
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.clock import token
from api.settings import read
from api.store.database import Database
from api.store.inbox import Acknowledged, acknowledge, read_inboxes
from tests.authoring.test_routes import SECRET, Org
from tests.delivery.conftest import Endpoint, endpoint, status
from tests.in_process import served

NODES = [
    {"id": "t", "type": "app_event", "data": {}},
    {"id": "i", "type": "send_inapp", "data": {"title": "Hi", "body": "{{ n }}", "data": {"link": "x"}}},
    {"id": "d", "type": "delay", "data": {"seconds": 86_400}},
    {"id": "m", "type": "send_email", "data": {"subject": "Mail {{ n }}", "body": "<b>{{ n }}</b>"}},
    {"id": "h", "type": "send_webhook", "data": {"url": "https://customer.example/hook", "body": {"n": "{{ n }}"}}},
]
EDGES = [{"source": a["id"], "target": b["id"]} for a, b in pairwise(NODES)]
DRAFT = {
    "name": "n",
    "triggerSpec": {"type": "app_event", "event": "a"},
    "graph": {"nodes": NODES, "edges": EDGES, "settings": {"holdout": 50, "goal": {"event": "b"}}},
}
ANN = {"walletAddress": "0xAnn", "email": "ann@customer.example"}
EVENT = {"event": "a", "contact": ANN, "payload": {"n": 7}}
ME = "me@author.example"


class House:
    """An API process that sends into a folder, and what may be looked at behind it."""

    def __init__(self, client: httpx.AsyncClient, org: Org, database: Database, mail: Path, automation_id: str) -> None:
        self.client, self.org, self.database, self.mail, self.automation_id = client, org, database, mail, automation_id

    async def test(self, **body: Any) -> Any:
        return await self.org.call("POST", f"/automations/{self.automation_id}/test", {"event": EVENT, **body})

    async def inbox(self, wallet: str) -> list[Any]:
        async with self.database.transaction() as tx:
            return [waiting for _, waiting in await read_inboxes(tx, [(1, wallet)], (), 10)]

    async def rows(self, query: str) -> list[Any]:
        async with self.database.transaction() as tx:
            return await (await tx.execute(query)).fetchall()


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[House]:
    surroundings = {"WORKBENCH_DATA_DIR": str(tmp_path), "WORKBENCH_WEBHOOK_ALLOW": "127.0.0.0/8"}
    app = create_app(read(surroundings), database_url, SECRET, f"tests-{token(4).hex()}")
    database = Database(database_url)
    await database.open()
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
        org = await Org.found(client, database_url, "acme")
        _, made = await org.call("POST", "/automations", DRAFT)
        yield House(client, org, database, tmp_path / "mail" / "new", made["id"])
    await database.close()


@pytest.fixture
async def server() -> AsyncIterator[Endpoint]:
    async with endpoint(status(200)) as opened:
        yield opened


async def test_every_message_goes_to_the_author_marked_as_a_test(house: House, server: Endpoint) -> None:
    to = {"email": ME, "walletAddress": "0xMe", "url": server.url()}
    answered, told = await house.test(to=to)
    assert answered == 200
    assert [(each["nodeId"], each["channel"], each["outcome"]) for each in told["messages"]] == [
        ("i", "inapp", "sent"),
        ("m", "email", "sent"),
        ("h", "webhook", "sent"),
    ]
    [pushed] = await house.inbox("0xme")
    assert (pushed.title, pushed.body, pushed.extra) == ("[Test] Hi", "7", b'{"link": "x", "test": true}')
    [path] = list(house.mail.iterdir())
    mail = message_from_bytes(path.read_bytes(), policy=policy.default)
    assert (mail["To"], mail["Subject"], mail["X-Event-Workbench-Test"]) == (ME, "[Test] Mail 7", "true")
    [request] = server.requests
    assert (request.headers["x-event-workbench-test"], request.body) == ("true", b'{"n":7}')
    assert request.headers["webhook-id"] == told["messages"][2]["id"]


async def test_nobody_else_gets_anything_and_nothing_counts_it(house: House) -> None:
    await house.test(to={"walletAddress": "0xMe"})
    _, told = await house.test(to={"email": ME})
    assert [(each["nodeId"], each["outcome"], each["reason"]) for each in told["messages"]] == [
        ("i", "skipped", "no_address"),
        ("m", "sent", None),
        ("h", "skipped", "no_address"),
    ]
    assert await house.inbox("0xann") == []
    assert len(list(house.mail.iterdir())) == 1
    for table in ("messages", "message_outcomes", "entries", "events", "contacts"):
        assert await house.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    _, usage = await house.org.call("GET", "/usage")
    assert usage["total"] == 0
    [(detail,)] = await house.rows(
        "SELECT detail FROM audit_log WHERE action = 'automation.test' ORDER BY id DESC LIMIT 1"
    )
    assert b"author.example" not in detail


async def test_a_push_is_gone_once_the_wallet_has_it_and_no_report_knows(house: House) -> None:
    await house.test(to={"walletAddress": "0xMe"})
    [pushed] = await house.inbox("0xme")
    async with house.database.transaction() as tx:
        await acknowledge(tx, [Acknowledged((1, "0xother"), pushed.id)], datetime.now(UTC))
    assert len(await house.inbox("0xme")) == 1
    async with house.database.transaction() as tx:
        await acknowledge(tx, [Acknowledged((1, "0xme"), pushed.id)], datetime.now(UTC))
    assert await house.inbox("0xme") == []
    assert await house.rows("SELECT count(*) FROM message_outcomes") == [(0,)]


async def test_one_node_may_be_meant_and_what_would_not_be_sent_says_why(house: House) -> None:
    _, told = await house.test(to={"email": ME, "walletAddress": "0xMe"}, nodeId="m")
    assert [each["nodeId"] for each in told["messages"]] == ["m"]
    no_wallet = {"event": {**EVENT, "contact": {"email": "bob@customer.example"}}}
    _, told = await house.test(**no_wallet, to={"walletAddress": "0xMe"})
    assert [(each["nodeId"], each["outcome"], each["reason"]) for each in told["messages"]] == [
        ("i", "skipped", "no_wallet")
    ]
    answered, refused = await house.test(to={"email": ME}, nodeId="d")
    assert (answered, refused["field"]) == (400, "nodeId")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(status(500), ("failed", "refused", "HTTP 500")), (status(410), ("failed", "gone", "HTTP 410"))],
)
async def test_what_became_of_it_is_said_with_the_reason(house: House, answer: Any, outcome: tuple[str, ...]) -> None:
    async with endpoint(answer) as broken:
        _, told = await house.test(to={"url": broken.url()}, nodeId="h")
    [view] = told["messages"]
    assert (view["outcome"], view["reason"], view["detail"]) == outcome


async def test_who_unsubscribed_gets_no_test_either(house: House) -> None:
    await house.test(to={"email": ME}, nodeId="m")
    [path] = list(house.mail.iterdir())
    url = message_from_bytes(path.read_bytes(), policy=policy.default)["List-Unsubscribe"].strip("<>")
    assert (await house.client.post(url.partition("/api/v1")[2])).status_code == 200
    _, told = await house.test(to={"email": ME}, nodeId="m")
    assert told["messages"][0]["reason"] == "opted_out"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "to"),
        ({"to": {}}, "to"),
        ({"to": {"email": "x"}}, "to.email"),
        ({"to": {"walletAddress": ""}}, "to"),
        ({"to": {"walletAddress": 5}}, "to.walletAddress"),
        ({"to": {"url": "ftp://x"}}, "to.url"),
        ({"to": {"phone": "1"}}, "to"),
        ({"to": {"email": ME}, "event": {"event": "other", "contact": ANN}}, "event"),
        ({"to": {"email": ME}, "event": {"event": "a"}}, "event.contact"),
    ],
)
async def test_a_wrong_wish_is_refused_naming_the_field(house: House, body: dict[str, Any], field: str) -> None:
    answered, refused = await house.test(**body)
    assert (answered, refused["field"]) == (400, field)


async def test_more_than_ten_a_minute_are_too_many(house: House) -> None:
    answers = [await house.test(to={"walletAddress": "0xMe"}) for _ in range(11)]
    assert [answered for answered, _ in answers] == [200] * 10 + [429]
    assert answers[-1][1]["code"] == "RATE_LIMITED"


async def test_only_authors_may(house: House) -> None:
    path, body = f"/automations/{house.automation_id}/test", {"event": EVENT, "to": {"email": ME}}
    for key in (("workbench", "automations:publish", "events:read"), ("live",)):
        assert (await house.org.call("POST", path, body, key))[0] == 403
    stranger = f"/automations/{'0' * 8}-0000-7000-8000-{'0' * 12}/test"
    assert (await house.org.call("POST", stranger, body))[0] == 404
