"""A served API, and users that sign in with wallets of known keys and open sockets."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect

from api.clock import token, uuid7
from api.store.messages import NewMessage, add_inapp_messages, announce_messages
from api.store.query import run
from tests.inapp.wallet import Wallet
from tests.routes.conftest import Org, Service, service
from workbench.language.codec import decode, encode

__all__ = ["service"]  # a fixture

PAGE = "https://app.example.com"
CONTACT = uuid7(1)


class Person:
    """A user with a wallet, on a page of an organization."""

    def __init__(self, org: Org, wallet: Wallet, page: str | None = PAGE) -> None:
        self.org, self.wallet, self.page = org, wallet, page

    async def post_json(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """Send a POST request as the page does; an empty header is left out."""
        sent = {"authorization": f"Bearer {await self.org.key('publishable')}", "content-type": "application/json"}
        if self.page is not None:
            sent["origin"] = self.page
        sent = {name: value for name, value in (sent | headers).items() if value}
        return await self.org.service.client.post(f"/inapp/{path}", content=encode(body), headers=sent)

    async def challenge(self, **more: Any) -> str:
        response = await self.post_json("challenge", {"walletAddress": self.wallet.address, **more})
        assert response.status_code == 200, response.text
        return str(response.json()["message"])

    async def answer(self, message: str, **headers: str) -> httpx.Response:
        return await self.post_json("session", {"message": message, "signature": self.wallet.sign(message)}, **headers)

    async def token(self) -> str:
        response = await self.answer(await self.challenge())
        assert response.status_code == 200, response.text
        return str(response.json()["token"])

    @asynccontextmanager
    async def socket(self, session: str | None = None, **options: Any) -> AsyncIterator["SocketClient"]:
        """Open a socket and authenticate it."""
        line = await self.dial(self.page, **options)
        try:
            await line.send_frame(type="AUTH", token=session or await self.token())
            yield line
        finally:
            await line.connection.close()

    async def dial(self, page: str | None, **options: Any) -> "SocketClient":
        url = f"ws://127.0.0.1:{self.org.service.port}/api/v1/inapp/socket"
        return SocketClient(await connect(url, origin=page, open_timeout=10, **options))

    async def receive(self, *titles: str, wallet: str | None = None, body: str = "b") -> list[str]:
        """Store messages, as the engine does; return their ids."""
        now = self.org.service.services.clock.unique_now_us
        rows = [
            NewMessage(
                *(uuid7(now()), CONTACT, CONTACT, uuid7(now()), "n", "inapp"),
                wallet_address=wallet or self.wallet.address,
                subject=title,
                body=body,
            )
            for title in titles
        ]
        async with self.org.service.services.system_database.transaction() as tx:
            for row in rows:
                stored = add_inapp_messages(self.org.id, [row], self.org.service.services.clock.now())
                await run(tx, stored, announce_messages(self.org.id, [row.wallet_address or ""]))
        return [row.id for row in rows]

    async def delivered(self) -> list[str]:
        """Return the titles that the wallet has acknowledged."""
        rows = await self.org.service.rows(
            "SELECT subject FROM messages WHERE org_id = %s AND wallet_address = %s AND delivered_at IS NOT NULL"
            " AND status = 'delivered' ORDER BY created_at, id",
            self.org.id,
            self.wallet.address,
        )
        return [row[0] for row in rows]


class SocketClient:
    """The client's end of a socket."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send_frame(self, **frame: Any) -> None:
        await self.connection.send(encode(frame).decode())

    async def receive_frame(self) -> dict[str, Any]:
        frame: dict[str, Any] = decode(await self.connection.recv(decode=False))
        return frame

    async def titles(self, number: int) -> list[str]:
        """Return the titles of the next messages, which are not acknowledged."""
        return [(await self.receive_frame())["title"] for _ in range(number)]

    async def acknowledge(self, number: int) -> list[str]:
        """Acknowledge the next messages; return their titles."""
        titles = []
        for _ in range(number):
            frame = await self.receive_frame()
            titles.append(frame["title"])
            await self.send_frame(type="ACK", id=frame["id"])
        return titles

    async def code(self) -> int | None:
        """Wait until the socket is closed; return the code."""
        await self.connection.wait_closed()
        return self.connection.close_code


async def organization(service: Service) -> Org:
    org = await service.organization()
    await service.rows("UPDATE organizations SET origins = %s WHERE id = %s", [PAGE], org.id)
    return org


@pytest.fixture
async def acme(service: Service) -> Org:
    return await organization(service)


@pytest.fixture
async def ann(acme: Org) -> Person:
    return Person(acme, Wallet(token(32)))


@pytest.fixture
async def bob(acme: Org) -> Person:
    """Another user of the same organization."""
    return Person(acme, Wallet(token(32)))


@pytest.fixture
async def eve(service: Service) -> Person:
    """A user of another organization."""
    return Person(await organization(service), Wallet(token(32)))
