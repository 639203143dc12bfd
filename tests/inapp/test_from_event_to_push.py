"""End to end: an event posted to one API process is pushed over a socket of another; an engine sends it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close
from websockets.sync.client import ClientConnection, connect

from api.auth import keys
from api.clock import token
from tests.inapp.wallet import Wallet
from tests.installation import Api, Installation
from workbench.language.codec import decode, encode

WALLET = Wallet(token(32))
GRAPH = {
    "nodes": [
        {"id": "t", "type": "app_event", "data": {}},
        {
            "id": "n",
            "type": "send_inapp",
            "data": {
                "actionType": "send_inapp",
                "recipientMode": "triggering_profile",
                "title": "Deposit of {{ amountUsd }}",
                "body": "Thank you.",
            },
        },
    ],
    "edges": [{"id": "e", "source": "t", "target": "n"}],
}


@pytest.fixture
def installation(database_url: str, tmp_path: Path) -> Iterator[Installation]:
    built = Installation(database_url, tmp_path)
    yield built
    built.stop()


async def test_an_event_becomes_a_push_through_other_processes(installation: Installation) -> None:
    by_kind = await installation.organization("acme")
    publishable = await keys.create(installation.dsn, installation.keyring, "acme", "publishable", None, "")
    first, second = installation.start_api(), installation.start_api()
    installation.start_engine()
    _publish(first, by_kind["workbench"])
    with _signed_in(second, publishable) as line:
        for amount in (1, 2, 3):
            _deposit(first, by_kind["live"], amount)
            frame = decode(line.recv(20, decode=False))
            assert frame["title"] == f"Deposit of {amount}"
        line.send(encode({"type": "ACK", "id": frame["id"]}).decode())
    with _signed_in(first, publishable) as line:
        assert [decode(line.recv(20, decode=False))["title"] for _ in range(2)] == ["Deposit of 1", "Deposit of 2"]


async def test_a_stopping_process_closes_its_sockets(installation: Installation) -> None:
    await installation.organization("acme")
    publishable = await keys.create(installation.dsn, installation.keyring, "acme", "publishable", None, "")
    api = installation.start_api()
    with _signed_in(api, publishable) as line:
        api.process.terminate()
        with pytest.raises(ConnectionClosed) as closed:
            line.recv(20)
    assert closed.value.rcvd == Close(1012, "the server restarts; retry-after=1.0")
    assert api.process.wait(20) == 0


def _publish(api: Api, key: str) -> None:
    body = {"name": "thanks", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": GRAPH}
    with api.client(key) as client:
        made = client.post("/automations", json=body)
        assert made.status_code == 201, made.text
        assert client.post(f"/automations/{made.json()['id']}/publish", json={}).status_code == 200


def _deposit(api: Api, key: str, amount: int) -> None:
    event = {"event": "deposit", "contact": {"walletAddress": WALLET.address}, "payload": {"amountUsd": amount}}
    with api.client(key) as client:
        assert client.post("/events", json=event).status_code == 202


@contextmanager
def _signed_in(api: Api, key: str) -> Iterator[ClientConnection]:
    with api.client(key) as client:
        message = _answer(client.post("/inapp/challenge", json={"walletAddress": WALLET.address}))["message"]
        signed = {"message": message, "signature": WALLET.sign(message)}
        session = _answer(client.post("/inapp/session", json=signed))
    with connect(f"{api.url.replace('http', 'ws')}/api/v1/inapp/socket") as line:
        line.send(encode({"type": "AUTH", "token": session["token"]}).decode())
        yield line


def _answer(response: httpx.Response) -> dict[str, str]:
    assert response.status_code == 200, response.text
    answer: dict[str, str] = response.json()
    return answer
