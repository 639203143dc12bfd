"""Test sends: messages go to the author, marked, through the real channels, and are not counted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from email import message_from_bytes, policy
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.automations import test_send
from api.clock import token
from api.crypto import Keyring
from api.settings import read
from api.store.database import Database
from api.store.messages import Acknowledgement, acknowledge, read_inboxes
from tests.automations.conftest import SECRET, Org
from tests.channels.conftest import Endpoint, endpoint, status
from tests.in_process import served
from tests.inapp.wallet import evm_wallet
from workbench.language.codec import decode

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
ANN = {"walletAddress": evm_wallet("A22"), "email": "ann@customer.example"}
EVENT = {"event": "a", "contact": ANN, "payload": {"n": 7}}
ME, MY_WALLET = "me@author.example", evm_wallet("3e")


class Installation:
    """An API process that writes emails into a folder, and the objects behind it."""

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


NAMED = {"WORKBENCH_TEST_RECEIVERS": f"{MY_WALLET}, 127.0.0.1, author.example"}


@pytest.fixture
async def installation(database_url: str, tmp_path: Path) -> AsyncIterator[Installation]:
    async with built(database_url, tmp_path, NAMED) as opened:
        yield opened


@pytest.fixture
async def strict(database_url: str, tmp_path: Path) -> AsyncIterator[Installation]:
    """A process with a mail server, whose operator allows no receivers."""
    async with built(database_url, tmp_path, {"WORKBENCH_SMTP_URL": "smtp://127.0.0.1:9?starttls=never"}) as opened:
        yield opened


@asynccontextmanager
async def built(database_url: str, tmp_path: Path, operator: dict[str, str]) -> AsyncIterator[Installation]:
    surroundings = {"WORKBENCH_DATA_DIR": str(tmp_path), "WORKBENCH_WEBHOOK_ALLOW": "127.0.0.0/8"} | operator
    app = create_app(read(surroundings), database_url, SECRET, f"tests-{token(4).hex()}")
    database = Database(database_url)
    await database.open()
    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1") as client:
        org = await Org.create(client, database_url, "acme")
        _, made = await org.call("POST", "/automations", DRAFT)
        yield Installation(client, org, database, tmp_path / "mail" / "new", made["id"])
    await database.close()


@pytest.fixture
async def server() -> AsyncIterator[Endpoint]:
    async with endpoint(status(200)) as opened:
        yield opened


async def test_every_message_is_sent_to_the_author_and_marked_as_a_test(
    installation: Installation, server: Endpoint
) -> None:
    to = {"email": ME, "walletAddress": MY_WALLET, "url": server.url()}
    answered, answer = await installation.test(to=to)
    assert answered == 200
    assert [(message["nodeId"], message["channel"], message["outcome"]) for message in answer["messages"]] == [
        ("i", "inapp", "sent"),
        ("m", "email", "sent"),
        ("h", "webhook", "sent"),
    ]
    [pushed] = await installation.inbox(MY_WALLET)
    assert (pushed.title, pushed.body, pushed.extra) == ("[Test] Hi", "7", b'{"link": "x", "test": true}')
    [path] = list(installation.mail.iterdir())
    mail = message_from_bytes(path.read_bytes(), policy=policy.default)
    assert (mail["To"], mail["Subject"], mail["X-Event-Workbench-Test"]) == (ME, "[Test] Mail 7", "true")
    [request] = server.requests
    assert (request.headers["x-event-workbench-test"], request.body) == ("true", b'{"n":7}')
    assert request.headers["webhook-id"] == answer["messages"][2]["id"]


async def test_a_test_has_the_texts_of_the_locale_that_it_names(installation: Installation) -> None:
    locales = {"de": {"subject": "Post {{ n }}", "body": "b"}}
    nodes = [NODES[0], NODES[3] | {"data": NODES[3]["data"] | {"locales": locales}}]
    body = DRAFT | {"graph": {"nodes": nodes, "edges": [{"source": "t", "target": "m"}]}, "event": EVENT}
    for locale, title in (("de_AT", "Post 7"), ("default", "Mail 7")):
        _, answer = await installation.org.call("POST", "/test", body | {"to": {"email": ME}, "locale": locale})
        assert [message["title"] for message in answer["messages"]] == [title]
        _, trace = await installation.org.call("POST", "/simulate", body | {"locale": locale})
        assert [message["subject"] for message in trace["messages"]] == [title]
    status_code, answer = await installation.org.call("POST", "/simulate", body | {"locale": "German"})
    assert (status_code, answer["field"]) == (400, "locale")


async def test_a_test_reaches_only_its_receivers_and_is_not_counted(installation: Installation) -> None:
    await installation.test(to={"walletAddress": MY_WALLET})
    _, answer = await installation.test(to={"email": ME})
    assert [(message["nodeId"], message["outcome"], message["reason"]) for message in answer["messages"]] == [
        ("i", "skipped", "no_address"),
        ("m", "sent", None),
        ("h", "skipped", "no_address"),
    ]
    assert await installation.inbox(evm_wallet("a22")) == []
    assert len(list(installation.mail.iterdir())) == 1
    for table in ("messages", "message_outcomes", "entries", "events", "contacts"):
        assert await installation.rows(f"SELECT count(*) FROM {table}") == [(0,)]
    _, usage = await installation.org.call("GET", "/usage")
    assert usage["total"] == 0
    [(detail,)] = await installation.rows(
        "SELECT detail FROM audit_log WHERE action = 'automation.test' ORDER BY id DESC LIMIT 1"
    )
    assert b"author.example" not in detail


async def test_an_acknowledged_test_push_is_deleted_and_in_no_report(installation: Installation) -> None:
    await installation.test(to={"walletAddress": MY_WALLET})
    [pushed] = await installation.inbox(MY_WALLET)
    async with installation.database.transaction() as tx:
        await acknowledge(tx, [Acknowledgement((1, evm_wallet("074e7")), pushed.id)], datetime.now(UTC))
    assert len(await installation.inbox(MY_WALLET)) == 1
    async with installation.database.transaction() as tx:
        await acknowledge(tx, [Acknowledgement((1, MY_WALLET), pushed.id)], datetime.now(UTC))
    assert await installation.inbox(MY_WALLET) == []
    assert await installation.rows("SELECT count(*) FROM message_outcomes") == [(0,)]


async def test_a_single_node_is_tested_and_unsent_messages_have_a_reason(installation: Installation) -> None:
    _, answer = await installation.test(to={"email": ME, "walletAddress": MY_WALLET}, nodeId="m")
    assert [message["nodeId"] for message in answer["messages"]] == ["m"]
    no_wallet = {"event": {**EVENT, "contact": {"email": "bob@customer.example"}}}
    _, answer = await installation.test(**no_wallet, to={"walletAddress": MY_WALLET})
    assert [(message["nodeId"], message["outcome"], message["reason"]) for message in answer["messages"]] == [
        ("i", "skipped", "no_wallet"),
        ("m", "skipped", "no_address"),
        ("h", "skipped", "no_address"),
    ]
    answered, refused = await installation.test(to={"email": ME}, nodeId="d")
    assert (answered, refused["field"]) == (400, "nodeId")


async def test_a_message_that_a_draft_cannot_send_has_a_reason(installation: Installation) -> None:
    broken = {**NODES[3], "data": {"subject": "{{ broken", "body": "-"}}
    graph = {"nodes": [NODES[0], broken], "edges": [{"source": "t", "target": "m"}]}
    _, made = await installation.org.call("POST", "/automations", DRAFT | {"graph": graph})
    for node_id in (None, "m"):
        body = {"event": EVENT, "to": {"email": ME}, "nodeId": node_id}
        answered, answer = await installation.org.call("POST", f"/automations/{made['id']}/test", body)
        assert answered == 200
        [message] = answer["messages"]
        assert (message["channel"], message["outcome"], message["reason"]) == ("email", "skipped", "node_invalid")


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(status(500), ("failed", "refused", "HTTP 500")), (status(410), ("failed", "gone", "HTTP 410"))],
)
async def test_the_outcome_is_shown_with_its_reason(
    installation: Installation, answer: Any, outcome: tuple[str, ...]
) -> None:
    async with endpoint(answer) as broken:
        _, response = await installation.test(to={"url": broken.url()}, nodeId="h")
    [view] = response["messages"]
    assert (view["outcome"], view["reason"], view["detail"]) == outcome


async def test_an_unsubscribed_address_gets_no_test(installation: Installation) -> None:
    await installation.test(to={"email": ME}, nodeId="m")
    [path] = list(installation.mail.iterdir())
    url = message_from_bytes(path.read_bytes(), policy=policy.default)["List-Unsubscribe"].strip("<>")
    assert (await installation.client.post(url.partition("/api/v1")[2])).status_code == 200
    _, answer = await installation.test(to={"email": ME}, nodeId="m")
    assert answer["messages"][0]["reason"] == "opted_out"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "to"),
        ({"to": {}}, "to"),
        ({"to": {"email": "x"}}, "to.email"),
        ({"to": {"walletAddress": ""}}, "to"),
        ({"to": {"walletAddress": 5}}, "to.walletAddress"),
        ({"to": {"walletAddress": "vitalik.eth"}}, "to.walletAddress"),
        ({"to": {"url": "ftp://x"}}, "to.url"),
        ({"to": {"phone": "1"}}, "to"),
        ({"to": {"email": ME}, "event": {"event": "other", "contact": ANN}}, "event"),
        ({"to": {"email": ME}, "event": {"event": "a"}}, "event.contact"),
    ],
)
async def test_an_invalid_request_is_refused_with_the_name_of_the_field(
    installation: Installation, body: dict[str, Any], field: str
) -> None:
    answered, refused = await installation.test(**body)
    assert (answered, refused["field"]) == (400, field)


async def test_more_than_ten_tests_a_minute_are_refused(installation: Installation) -> None:
    answers = [await installation.test(to={"walletAddress": MY_WALLET}) for _ in range(11)]
    assert [answered for answered, _ in answers] == [200] * 10 + [429]
    assert answers[-1][1]["code"] == "RATE_LIMITED"


async def test_ten_tests_a_minute_are_the_limit_also_for_concurrent_requests(installation: Installation) -> None:
    _, other = await installation.org.call("POST", "/automations", DRAFT | {"name": "other"})
    body = {"event": EVENT, "to": {"walletAddress": MY_WALLET}}
    ids = [installation.automation_id, other["id"]] * 8
    answers = await asyncio.gather(
        *(installation.org.call("POST", f"/automations/{automation_id}/test", body) for automation_id in ids)
    )
    assert sorted(answered for answered, _ in answers) == [200] * 10 + [429] * 6
    assert len(await installation.inbox(MY_WALLET)) == 10


@pytest.mark.parametrize(
    ("to", "field"),
    [
        ({"email": "victim@elsewhere.example"}, "to.email"),
        ({"walletAddress": evm_wallet("11c713")}, "to.walletAddress"),
        ({"url": "https://elsewhere.example/hook"}, "to.url"),
    ],
)
async def test_unknown_receivers_get_no_tests(strict: Installation, to: dict[str, str], field: str) -> None:
    answered, refused = await strict.test(to=to)
    assert (answered, refused["field"]) == (400, field)
    assert "WORKBENCH_TEST_RECEIVERS" in refused["error"]
    assert await strict.inbox(evm_wallet("11c713")) == []
    assert await strict.rows("SELECT count(*) FROM audit_log WHERE action = 'automation.test'") == [(0,)]


async def test_contacts_and_endpoints_of_published_automations_get_tests(
    strict: Installation, server: Endpoint
) -> None:
    await strict.org.call("POST", "/events", EVENT, ("live",))
    hook = [NODES[0], {"id": "h", "type": "send_webhook", "data": {"url": server.url(path="/{{ n }}")}}]
    draft = {"name": "p", "graph": {"nodes": hook, "edges": [{"source": "t", "target": "h"}]}}
    _, made = await strict.org.call("POST", "/automations", DRAFT | draft)
    assert (await strict.test(to={"url": server.url()}))[0] == 400
    await strict.org.call("POST", f"/automations/{made['id']}/publish", {})
    to = {"email": "ANN@customer.example", "walletAddress": evm_wallet("A22"), "url": server.url(path="/test")}
    _, answer = await strict.test(to=to)
    assert [(message["channel"], message["outcome"], message["reason"]) for message in answer["messages"]] == [
        ("inapp", "sent", None),
        ("email", "failed", "unreachable"),
        ("webhook", "sent", None),
    ]


async def test_an_opted_out_contact_gets_no_test_through_that_channel(installation: Installation) -> None:
    bob = {"walletAddress": evm_wallet("B0b"), "email": "bob@customer.example"}
    await installation.org.call("POST", "/events", EVENT | {"contact": bob}, ("live",))
    await installation.rows(
        "UPDATE contacts SET opted_out = '{inapp,email}' WHERE wallet_address LIKE '%b0b' RETURNING id"
    )
    _, answer = await installation.test(to=bob)
    assert [(message["channel"], message["outcome"], message["reason"]) for message in answer["messages"]] == [
        ("inapp", "skipped", "opted_out"),
        ("email", "skipped", "opted_out"),
        ("webhook", "skipped", "no_address"),
    ]
    assert await installation.inbox(evm_wallet("b0b")) == []
    assert not installation.mail.exists()


async def test_a_wallet_that_can_never_sign_in_gets_no_test_message_but_the_reason(installation: Installation) -> None:
    event = EVENT | {"contact": {"walletAddress": "vitalik.eth"}}
    _, answer = await installation.test(event=event, to={"email": ME})
    (message,) = [message for message in answer["messages"] if message["channel"] == "inapp"]
    assert (message["outcome"], message["reason"]) == ("skipped", "undeliverable")
    assert message["detail"] == "only EVM wallets (0x…) can sign in"


async def test_the_audit_has_the_receivers_as_blind_indexes(installation: Installation) -> None:
    await installation.test(to={"email": ME, "walletAddress": MY_WALLET})
    [(detail,)] = await installation.rows("SELECT detail FROM audit_log WHERE action = 'automation.test'")
    keys = Keyring(SECRET).of(1)
    assert decode(detail)["to"] == {
        "email": keys.digest("email", ME),
        "walletAddress": keys.digest("wallet", MY_WALLET),
    }
    assert not [address for address in (b"author.example", MY_WALLET.encode()) if address in detail.lower()]


async def test_messages_beyond_twenty_are_reported_as_skipped(installation: Installation) -> None:
    nodes = [NODES[0], *({**NODES[1], "id": f"i{number:02}"} for number in range(22))]
    edges = [{"source": a["id"], "target": b["id"]} for a, b in pairwise(nodes)]
    _, made = await installation.org.call("POST", "/automations", DRAFT | {"graph": {"nodes": nodes, "edges": edges}})
    body = {"event": EVENT, "to": {"walletAddress": MY_WALLET}}
    _, answer = await installation.org.call("POST", f"/automations/{made['id']}/test", body)
    outcomes = [(message["nodeId"], message["outcome"], message["reason"]) for message in answer["messages"]]
    assert [outcome[1:] for outcome in outcomes[:20]] == [("sent", None)] * 20
    assert outcomes[20:] == [("i20", "skipped", "too_many"), ("i21", "skipped", "too_many")]


async def test_a_send_without_an_answer_by_the_deadline_is_unknown(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(test_send, "TIMEOUT_S", 0.5)
    hangs = asyncio.Event()

    async def never(_: asyncio.StreamWriter) -> None:
        await hangs.wait()

    async with endpoint(never) as silent:
        _, answer = await installation.test(to={"url": silent.url(), "walletAddress": MY_WALLET})
        assert [
            (message["nodeId"], message["outcome"], message["reason"], message["detail"])
            for message in answer["messages"]
        ] == [("i", "sent", None, ""), ("m", "skipped", "no_address", ""), ("h", "unknown", "no_answer", "after 0.5 s")]
        hangs.set()


@pytest.mark.parametrize(
    ("scopes", "title"), [((), "[Test] a%E2%80%A2%E2%80%A2%E2%80%A2%40"), (("pii:read",), "[Test] ann%40")]
)
async def test_an_address_is_masked_in_texts_for_a_key_that_may_not_see_it(
    installation: Installation, scopes: tuple[str, ...], title: str
) -> None:
    await installation.org.call("POST", "/events", EVENT, ("live",))
    nodes = [NODES[0], {**NODES[1], "data": {"title": "{{ contact.email | urlencode }}", "body": "-"}}]
    graph = {"nodes": nodes, "edges": [{"source": "t", "target": "i"}]}
    _, made = await installation.org.call("POST", "/automations", DRAFT | {"graph": graph})
    body = {"event": EVENT | {"contact": {"walletAddress": evm_wallet("A22")}}, "to": {"walletAddress": MY_WALLET}}
    key = ("workbench", "automations:write", *scopes)
    _, answer = await installation.org.call("POST", f"/automations/{made['id']}/test", body, key)
    [pushed] = await installation.inbox(MY_WALLET)
    assert pushed.title.startswith(title)
    assert answer["messages"][0]["title"].startswith(title.removeprefix("[Test] "))


async def test_only_authors_may_send_tests(installation: Installation) -> None:
    path, body = f"/automations/{installation.automation_id}/test", {"event": EVENT, "to": {"email": ME}}
    for key in (("workbench", "automations:publish", "events:read"), ("live",)):
        assert (await installation.org.call("POST", path, body, key))[0] == 403
    missing = f"/automations/{'0' * 8}-0000-7000-8000-{'0' * 12}/test"
    assert (await installation.org.call("POST", missing, body))[0] == 404
