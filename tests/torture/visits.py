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
from tests.torture.accounts import PATIENCE
from tests.torture.asking import Caller
from tests.torture.lending import Lent
from tests.torture.log import Line, Push, Reply, now_us

SIGN_IN_AGAIN = 4401
_UNAVAILABLE = 503
_LATEST = 50  # recent pushes of all wallets, of which a wallet tries to acknowledge one


class Plan(msgspec.Struct, frozen=True):
    """A visit.

    `habit` is the share of the pushes to acknowledge; it ends after `seconds`, or after `silence` seconds without a
    push.

    With `leaves` the socket is closed properly; otherwise the connection is aborted.
    """

    wallet: Wallet
    lent: Lent | None
    habit: float
    seconds: float
    silence: float
    leaves: bool


class Visits:
    """Keeps the session tokens of wallets, so that most visits need no signature."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = [url.replace("http", "ws") for url in urls]
        self._tokens: dict[tuple[str, str, str], str] = {}
        self._seen: list[str] = []

    @property
    def tokens(self) -> list[str]:
        """All session tokens."""
        return list(self._tokens.values())

    async def visit(self, caller: Caller, plan: Plan) -> None:
        """Open a socket for the duration of the visit."""
        line = Line(caller.org, plan.wallet.address, plan.lent.id if plan.lent else "", now_us())
        place = line.org, line.wallet, line.key
        token = self._tokens.get(place) or await _sign_in(caller, plan)
        connection = None if token is None else await self._connect(caller)
        if token is None or connection is None:
            return
        self._tokens[place] = token
        caller.log.lines.append(line)
        with contextlib.suppress(ConnectionClosed):
            await connection.send(msgspec.json.encode({"type": "AUTH", "token": token}).decode())
            await self._have(caller, connection, line, plan)
        await _end(connection, plan)
        line.ended, line.code = now_us(), connection.close_code
        if line.code == SIGN_IN_AGAIN:
            self._tokens.pop(place, None)

    async def _have(self, caller: Caller, connection: ClientConnection, line: Line, plan: Plan) -> None:
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
                caller.log.ears.listen(line.org, "socket", text)
                line.pushes.append(Push(frame["id"], frame["title"], frame["body"], now_us()))
                self._seen.append(frame["id"])
                await self._answer(caller, connection, line, plan)

    async def _answer(self, caller: Caller, connection: ClientConnection, line: Line, plan: Plan) -> None:
        """Acknowledge the last push, or one of another wallet."""
        chance, last_id = caller.chance, line.pushes[-1].id
        taken = last_id if chance.random() < plan.habit else chance.choice(self._seen[-_LATEST:])
        if taken != last_id or plan.habit:
            line.acknowledged.append((taken, now_us()))
            await connection.send(msgspec.json.encode({"type": "ACK", "id": taken}).decode())

    async def _connect(self, caller: Caller) -> ClientConnection | None:
        url, began = f"{caller.chance.choice(self._urls)}/api/v1/inapp/socket", now_us()
        try:
            return await connect(url, open_timeout=PATIENCE, close_timeout=1, proxy=None)
        except InvalidStatus as error:
            status = error.response.status_code
            strange = "" if status == _UNAVAILABLE else f"the handshake of a socket was answered {status}"
            caller.log.replies.append(Reply(caller.org, "socket", began, now_us(), status, strange))
        except (OSError, TimeoutError, InvalidHandshake):
            caller.log.replies.append(Reply(caller.org, "socket", began, now_us(), 0))
        return None


async def _sign_in(caller: Caller, plan: Plan) -> str | None:
    """Return a session token; None without an answer or with a revoked key."""
    key, good = (plan.lent.secret, (200, 401)) if plan.lent else ("publishable", (200,))
    address = {"walletAddress": plan.wallet.address}
    challenge = await caller.ask("POST", "/inapp/challenge", "sign-in", key=key, good=good, json=address)
    if challenge is None or challenge.status_code != 200:
        return None
    message = challenge.json()["message"]
    signed = {"message": message, "signature": plan.wallet.sign(message)}
    # 401: the contact was erased meanwhile, and its sign-in challenge with it
    session = await caller.ask("POST", "/inapp/session", "sign-in", key=key, good=(200, 401), json=signed)
    return None if session is None or session.status_code != 200 else str(session.json()["token"])


async def _end(connection: ClientConnection, plan: Plan) -> None:
    if plan.leaves:
        await connection.close()
    else:
        connection.transport.abort()
        await connection.wait_closed()
