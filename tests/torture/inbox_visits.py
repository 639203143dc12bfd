"""One visit of a wallet to its inbox: it signs in through any API process, opens a socket to another, and logs what it
gets.
"""

import asyncio
import contextlib
from collections.abc import Sequence

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from tests.inapp.wallet import Wallet
from tests.torture.accounts import CLIENT_TIMEOUT_S
from tests.torture.callers import Caller
from tests.torture.log import Push, Reply, SocketVisit, now_us
from tests.torture.temporary_keys import TemporaryKey

SIGN_IN_AGAIN = 4401
_UNAVAILABLE = 503
_LATEST = 50  # recent pushes of all wallets, of which a wallet tries to acknowledge one


class VisitPlan(msgspec.Struct, frozen=True):
    """A visit.

    `habit` is the share of the pushes to acknowledge. The visit ends after `seconds`, or after `silence` seconds
    without a push.

    With `leaves` the socket is closed properly; otherwise the connection is aborted.
    """

    wallet: Wallet
    temporary_key: TemporaryKey | None
    habit: float
    seconds: float
    silence: float
    leaves: bool


class InboxVisits:
    """Keeps the session tokens of wallets, so that most visits need no signature."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.replace("http", "ws") for url in urls]
        self._tokens: dict[tuple[str, str, str], str] = {}
        self._seen: list[str] = []

    @property
    def tokens(self) -> list[str]:
        """All session tokens."""
        return list(self._tokens.values())

    async def visit(self, caller: Caller, plan: VisitPlan) -> None:
        """Open a socket for the duration of the visit."""
        visit = SocketVisit(
            caller.org, plan.wallet.address, plan.temporary_key.id if plan.temporary_key else "", now_us()
        )
        place = visit.org, visit.wallet, visit.key
        token = self._tokens.get(place) or await _sign_in(caller, plan)
        connection = None if token is None else await self._connect(caller)
        if token is None or connection is None:
            return
        self._tokens[place] = token
        caller.log.visits.append(visit)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(msgspec.json.encode({"type": "AUTH", "token": token}).decode())
            await self._receive(caller, connection, visit, plan)
        await _end(connection, plan)
        visit.ended, visit.code = now_us(), connection.close_code
        if visit.code == SIGN_IN_AGAIN:
            self._tokens.pop(place, None)

    async def _receive(self, caller: Caller, connection: ClientConnection, visit: SocketVisit, plan: VisitPlan) -> None:
        """Receive pushes until the visit ends; sometimes acknowledge a push of another wallet."""
        end = asyncio.get_running_loop().time() + plan.seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(min(left, plan.silence)):
                    text = await connection.recv(decode=True)
            except TimeoutError:
                return
            frame = msgspec.json.decode(text)
            if frame["type"] == "PUSH":
                caller.log.leak_detector.check_response(visit.org, "socket", text)
                visit.pushes.append(Push(frame["id"], frame["title"], frame["body"], now_us()))
                self._seen.append(frame["id"])
                await self._answer(caller, connection, visit, plan)

    async def _answer(self, caller: Caller, connection: ClientConnection, visit: SocketVisit, plan: VisitPlan) -> None:
        """Acknowledge the last push, or one of another wallet."""
        chance, last_id = caller.chance, visit.pushes[-1].id
        taken = last_id if chance.random() < plan.habit else chance.choice(self._seen[-_LATEST:])
        if taken != last_id or plan.habit:
            visit.acknowledged.append((taken, now_us()))
            await connection.send(msgspec.json.encode({"type": "ACK", "id": taken}).decode())

    async def _connect(self, caller: Caller) -> ClientConnection | None:
        url, began = f"{caller.chance.choice(self._urls)}/api/v1/inapp/socket", now_us()
        try:
            return await connect(url, open_timeout=CLIENT_TIMEOUT_S, close_timeout=1, proxy=None)
        except InvalidStatus as error:
            status = error.response.status_code
            strange = "" if status == _UNAVAILABLE else f"the handshake of a socket was answered {status}"
            caller.log.replies.append(Reply(caller.org, "socket", began, now_us(), status, strange))
        except (OSError, TimeoutError, InvalidHandshake):
            caller.log.replies.append(Reply(caller.org, "socket", began, now_us(), 0))
        return None


async def _sign_in(caller: Caller, plan: VisitPlan) -> str | None:
    """Return a session token; None without an answer or with a revoked key."""
    key, good = (plan.temporary_key.secret, (200, 401)) if plan.temporary_key else ("publishable", (200,))
    address = {"walletAddress": plan.wallet.address}
    challenge = await caller.request("POST", "/inapp/challenge", "sign-in", key=key, good=good, json=address)
    if challenge is None or challenge.status_code != 200:
        return None
    message = challenge.json()["message"]
    signed = {"message": message, "signature": plan.wallet.sign(message)}
    # 401: the contact was erased meanwhile, and its sign-in challenge with it
    session = await caller.request("POST", "/inapp/session", "sign-in", key=key, good=(200, 401), json=signed)
    return None if session is None or session.status_code != 200 else str(session.json()["token"])


async def _end(connection: ClientConnection, plan: VisitPlan) -> None:
    if plan.leaves:
        await connection.close()
    else:
        connection.transport.abort()
        await connection.wait_closed()
