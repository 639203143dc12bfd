"""Webhooks: one signed POST per attempt, never redirected, to an address that the guard has judged.

Whatever the endpoint does costs at most `DEADLINE` seconds and `MOST_READ` bytes, and only its own lane. Of its answer the
status counts and nothing is kept. 2xx: sent. 410: gone for good. Anything else may be better the next time. After the request has
begun to leave, a failure is an unknown outcome: the same delivery comes again under the same `webhook-id`.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping
from datetime import datetime
from typing import Literal
from urllib.parse import urlsplit

import httpcore
import httpx
import msgspec

from api.delivery import signing
from api.delivery.guard import ForbiddenError, Guard, GuardedNetwork
from api.delivery.lanes import Bounds, FullError, Lanes
from api.delivery.outcome import TEST_HEADER, Failed, MayLeave, Outcome, Retry, Sent, Unknown, always
from api.delivery.retry_after import retry_after
from api.language.action import is_address
from api.settings import Settings

DEADLINE = 30.0  # seconds for everything
MOST_READ = 65_536  # bytes of an answer's body
MOST_CONNECTIONS = 512  # of all organizations: eight on whose roads nothing moves have them all
IDLE_CONNECTIONS = 64
IDLE = 15.0  # seconds a connection is kept for the next delivery
BOUNDS = Bounds(
    lane=16, road=64, waiting=176
)  # an engine has 256 of an organization under way: some are left for others
PATIENCE = 3.0  # seconds in which an endpoint that is well answers somebody
AGENT = "event-workbench"

_DRAIN = 1.0  # seconds to read what follows a status, so that the connection can be used again

_log = logging.getLogger("workbench.delivery")


class Hook(msgspec.Struct, frozen=True):
    """A delivery: whose, the text that is sent, and the secrets it is signed with, the newest first. `test`: a header says so."""

    org_id: int
    id: str
    url: str
    body: str
    secrets: tuple[str, ...]
    test: bool = False


class Webhooks:
    """The transport. `tls`: whose certificates are believed; default: the machine's. `deadline`, `patience`: seconds."""

    def __init__(
        self,
        guard: Guard,
        tls: ssl.SSLContext | None = None,
        *,
        deadline: float = DEADLINE,
        patience: float = PATIENCE,
    ) -> None:
        self._network = GuardedNetwork(guard)
        self._deadline = deadline
        self._lanes = Lanes(BOUNDS, patience)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=MOST_CONNECTIONS,
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE,
            network_backend=self._network,
        )

    async def send(self, hook: Hook, now: datetime, may_leave: MayLeave = always) -> Outcome:
        """Deliver once, signed as of `now`, if it still may leave when a connection is ready for it."""
        request = _request(hook, now)
        if request is None:
            return Failed("invalid_address")
        try:
            async with self._lanes.enter(hook.org_id, _endpoint(request.url)):
                return await self._deliver(request, now, may_leave)
        except FullError:
            return Retry("busy")

    async def close(self) -> None:
        """End every connection."""
        await self._pool.aclose()
        self._network.close()

    async def _deliver(self, request: httpcore.Request, now: datetime, may_leave: MayLeave) -> Outcome:
        progress = _Progress(may_leave)
        # The three ways to wait before the request leaves end by themselves, all together within the deadline:
        # cancelled in a handshake, the library would forget the socket.
        waits = dict.fromkeys(("pool", "connect"), self._deadline / 4)
        request.extensions.update(trace=progress.note, timeout=waits)
        try:
            async with asyncio.timeout(self._deadline):
                response = await self._pool.handle_async_request(request)
                try:
                    progress.outcome = _judged(response, now)
                    await _drain(response)
                finally:
                    await response.aclose()
        except (httpcore.PoolTimeout, _TooLateError):
            return Retry("busy")
        except (OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            if not isinstance(error, ForbiddenError):
                _log.info("webhook_broken", extra={"stage": progress.stage, "error": type(error).__name__})
        return progress.outcome or progress.failure()


class _TooLateError(Exception):
    """It may not leave any more."""


class _Progress:
    """How far an attempt came."""

    def __init__(self, may_leave: MayLeave) -> None:
        self._may_leave = may_leave
        self.stage: Literal["connect", "tls", "request"] = "connect"
        self.outcome: Outcome | None = None  # once there was a status

    async def note(self, event: str, _: Mapping[str, object]) -> None:
        """Hear from the HTTP library what begins; raise _TooLateError instead of letting a request leave that may not."""
        if event == "connection.start_tls.started":
            self.stage = "tls"
        elif event == "http11.send_request_headers.started":
            if not self._may_leave():
                raise _TooLateError
            self.stage = "request"

    def failure(self) -> Outcome:
        """Return what a failure at this stage means.

        Closed, silent, unknown and forbidden addresses have one answer: who asks must not map our network.
        """
        match self.stage:
            case "connect":
                return Retry("unreachable")
            case "tls":
                return Retry("tls_failed")
            case "request":
                return Unknown("no_answer")


def webhooks(settings: Settings) -> Webhooks:
    """Return the way webhooks leave this installation; the caller closes it."""
    own_host = urlsplit(settings.public_url or "").hostname
    return Webhooks(Guard(settings.webhook_allow, [own_host] if own_host else []))


def _request(hook: Hook, now: datetime) -> httpcore.Request | None:
    """Return the request; None for an address that cannot be one of a webhook, whatever was saved."""
    if not is_address(hook.url):
        return None
    try:
        url = httpx.URL(hook.url)
    except httpx.InvalidURL:
        return None
    if url.port is not None and not 0 < url.port < 65_536:
        return None
    body = hook.body.encode()
    return httpcore.Request(
        "POST",
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=[
            ("host", url.netloc.decode()),
            ("user-agent", AGENT),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
            *([(TEST_HEADER.lower(), "true")] if hook.test else []),
            *signing.headers(hook.secrets, hook.id, int(now.timestamp()), body).items(),
        ],
        content=body,
    )


def _endpoint(url: httpcore.URL) -> str:
    return f"{url.host.decode()}:{url.port}"


def _judged(response: httpcore.Response, now: datetime) -> Outcome:
    detail = f"HTTP {response.status}"
    match response.status:
        case status if 200 <= status < 300:
            return Sent(detail)
        case 410:
            return Failed("gone", detail)
        case 429 | 503:
            return Retry("refused", _asked_pause(response, now), detail)
        case _:
            return Retry("refused", detail=detail)


def _asked_pause(response: httpcore.Response, now: datetime) -> float | None:
    text = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
    return None if text is None else retry_after(text.decode("latin-1"), now)


async def _drain(response: httpcore.Response) -> None:
    """Read a short body to its end, undecoded; leave a long or slow one, and with it the connection."""
    read = 0
    with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(_DRAIN):
            async for piece in response.aiter_stream():
                read += len(piece)
                if read > MOST_READ:
                    return
