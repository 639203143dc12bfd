"""Sending webhooks: one signed POST per attempt, without redirects, to an address that the guard permits.

An endpoint can cost at most `DEADLINE_S` seconds and `MAX_BODY_BYTES` bytes, and only its own slots. Only the status of
its response counts; the rest is not kept. 2xx: sent. 410: gone for good. After any other status the delivery is
repeated. A failure after the request has started to leave is an unknown outcome; the delivery is then repeated under
the same `webhook-id`.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import httpcore
import httpx
import msgspec

from api.channels import signing
from api.channels.address_guard import AddressGuard, ForbiddenAddressError, GuardedNetwork
from api.channels.outcome import (
    TEST_HEADER,
    AddressRule,
    Delivery,
    Failed,
    MayLeave,
    Outcome,
    OutgoingChannel,
    Retry,
    Sent,
    Unknown,
    always,
    parse_retry_after,
)
from api.settings import Settings
from api.store.database import Transaction
from api.store.messages import close_endpoint, find_closed_endpoints, find_published_urls
from workbench.language.actions import is_webhook_url
from workbench.language.channel import WEBHOOK

USER_AGENT = "event-workbench"
DEADLINE_S = 30.0  # for a whole attempt
MAX_BODY_BYTES = 65_536  # read from a response
BODY_TIMEOUT_S = 1.0  # if a body is read only so that the connection can be reused
MAX_CONNECTIONS = 512  # in total; reached when all endpoints of eight organizations hang
MAX_IDLE_CONNECTIONS = 64
MAX_IDLE_S = 15.0
STALL_TIMEOUT_S = 3.0  # a healthy endpoint finishes at least one delivery in this time

_log = logging.getLogger("workbench.delivery")


class NoSlotError(Exception):
    """No slot was free, and none became free in time."""


class DeliveryLimits(msgspec.Struct, frozen=True):
    """Concurrent deliveries to one endpoint and of one organization, and how many more may wait for each."""

    per_endpoint: int
    per_organization: int
    waiting: int


# An engine has up to 256 deliveries of an organization under way: 16 + 176 leave some of them for its other endpoints.
LIMITS = DeliveryLimits(per_endpoint=16, per_organization=64, waiting=176)


class _Slots:
    def __init__(self, number: int, limit: int) -> None:
        self.free = asyncio.Semaphore(number)
        self.limit = limit  # maximum number of deliveries in a slot or waiting for one
        self.deliveries = 0
        self.moved_at = asyncio.get_running_loop().time()  # when a delivery last took or released a slot

    async def acquire(self, stall_timeout_s: float) -> None:
        if self.deliveries > self.limit:
            raise NoSlotError
        while True:
            moved_at = self.moved_at
            try:
                async with asyncio.timeout_at(moved_at + stall_timeout_s):
                    await self.free.acquire()
                    return
            except TimeoutError:
                if self.moved_at == moved_at:
                    raise NoSlotError from None


class DeliveryLimiter:
    """Slots for deliveries, kept only while a delivery uses or waits for them.

    A delivery takes a slot of its endpoint and one of its organization, so that an endpoint that hangs delays no other.
    It waits for a free slot as long as other deliveries start and finish. It gives up once nothing has moved for the
    stall timeout, and immediately if too many are waiting.
    """

    def __init__(self, limits: DeliveryLimits, stall_timeout_s: float) -> None:
        self._limits, self._stall_timeout_s = limits, stall_timeout_s
        self._slots: dict[tuple[int, str], _Slots] = {}

    @contextlib.asynccontextmanager
    async def slot(self, org_id: int, endpoint: str) -> AsyncIterator[None]:
        """Hold a slot for a block; raise NoSlotError."""
        limits = self._limits
        async with (
            self._take((org_id, endpoint), limits.per_endpoint),
            self._take((org_id, ""), limits.per_organization),
        ):
            yield

    @contextlib.asynccontextmanager
    async def _take(self, key: tuple[int, str], number: int) -> AsyncIterator[None]:
        slots = self._slots.setdefault(key, _Slots(number, number + self._limits.waiting))
        slots.deliveries += 1  # before the wait, so that these slots are not dropped during it
        try:
            await slots.acquire(self._stall_timeout_s)
            slots.moved_at = asyncio.get_running_loop().time()
            try:
                yield
            finally:
                slots.moved_at = asyncio.get_running_loop().time()
                slots.free.release()
        finally:
            slots.deliveries -= 1
            if not slots.deliveries:
                del self._slots[key]


OutcomeReader: TypeAlias = Callable[[httpcore.Response, bytes | None], Outcome | None]
"""Returns the outcome of a response: called without its body, then with it, if it could be read.

None: without the body, the outcome is unknown.
"""


class HttpSender:
    """The transport for webhooks and the requests of connections.

    `tls`: the trusted certificates; by default those of the system.
    """

    def __init__(
        self,
        guard: AddressGuard,
        tls: ssl.SSLContext | None = None,
        *,
        deadline_s: float = DEADLINE_S,
        stall_timeout_s: float = STALL_TIMEOUT_S,
    ) -> None:
        self._network = GuardedNetwork(guard)
        self._deadline_s = deadline_s
        self._limiter = DeliveryLimiter(LIMITS, stall_timeout_s)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls or ssl.create_default_context(),
            max_connections=MAX_CONNECTIONS,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=MAX_IDLE_S,
            network_backend=self._network,
        )

    async def send_request(
        self, org_id: int, request: httpcore.Request, read_outcome: OutcomeReader, may_leave: MayLeave
    ) -> Outcome:
        """Send a request once, if `may_leave` still allows it when a connection is ready."""
        # Slots are by host and port, without the path: it is the server that hangs.
        endpoint = f"{request.url.host.decode()}:{request.url.port}"
        try:
            async with self._limiter.slot(org_id, endpoint):
                return await self._attempt(request, read_outcome, may_leave)
        except NoSlotError:
            return Retry("busy")

    async def close(self) -> None:
        await self._pool.aclose()
        self._network.close()

    async def _attempt(self, request: httpcore.Request, read_outcome: OutcomeReader, may_leave: MayLeave) -> Outcome:
        trace = _Trace(may_leave)
        # Each wait before the request is sent (pool, connect, TLS) has its own timeout; together they end before the
        # deadline. If the deadline cancelled a handshake, httpcore would leak the socket.
        timeouts = dict.fromkeys(("pool", "connect"), self._deadline_s / 4)
        request.extensions.update(trace=trace.on_event, timeout=timeouts)
        try:
            async with asyncio.timeout(self._deadline_s):
                response = await self._pool.handle_async_request(request)
                try:
                    trace.outcome = read_outcome(response, None)
                    # Without an outcome the body is needed: it may take as long as the attempt.
                    body = await _read_body(response, self._deadline_s if trace.outcome is None else BODY_TIMEOUT_S)
                    if body is not None:
                        trace.outcome = read_outcome(response, body)
                finally:
                    await response.aclose()
        except (httpcore.PoolTimeout, _MayNotLeaveError):
            return Retry("busy")
        except (OSError, httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            if not isinstance(error, ForbiddenAddressError):  # logged by the guard
                _log.info("webhook_connection_failed", extra={"stage": trace.stage, "error": type(error).__name__})
        if trace.outcome is not None:  # a response counts, even if its body broke off
            return trace.outcome
        # Forbidden, closed, silent and unknown addresses all give "unreachable": distinct outcomes would let a tenant
        # scan our network (docs/decisions/0022).
        match trace.stage:
            case "connect":
                return Retry("unreachable")
            case "tls":
                return Retry("tls_failed")
            case "request":
                return Unknown("no_answer")


class WebhookSender(HttpSender):
    """Sends webhooks."""

    is_local = False

    async def send(self, delivery: Delivery, now: datetime, may_leave: MayLeave = always) -> Outcome:
        """Deliver once, signed as of `now`, if `may_leave` still allows it when a connection is ready."""
        request = _request(delivery, now)
        if request is None:
            return Failed("invalid_address")
        return await self.send_request(
            delivery.org_id, request, lambda response, _: _outcome_of(response, now), may_leave
        )


def open_webhook_sender(settings: Settings) -> WebhookSender:
    """Return the sender that the settings describe; the caller closes it."""
    return WebhookSender(guard_of(settings))


def guard_of(settings: Settings) -> AddressGuard:
    own_host = urlsplit(settings.public_url or "").hostname
    return AddressGuard(settings.webhook_allow, [own_host] if own_host else [])


class _MayNotLeaveError(Exception):
    """`may_leave` was False when the request was about to be sent."""


class _Trace:
    """Follows an attempt through the trace events of httpcore."""

    def __init__(self, may_leave: MayLeave) -> None:
        self._may_leave = may_leave
        self.stage: Literal["connect", "tls", "request"] = "connect"
        self.outcome: Outcome | None = None  # set by the status

    async def on_event(self, event: str, _: Mapping[str, object]) -> None:
        if event == "connection.start_tls.started":
            self.stage = "tls"
        elif event == "http11.send_request_headers.started":
            if not self._may_leave():
                raise _MayNotLeaveError
            self.stage = "request"


def _request(delivery: Delivery, now: datetime) -> httpcore.Request | None:
    body = delivery.body.encode()
    headers = {"content-type": "application/json"} | ({TEST_HEADER.lower(): "true"} if delivery.test else {})
    signatures = signing.headers(delivery.secrets, delivery.id, int(now.timestamp()), body)
    return http_request("POST", delivery.address, headers | signatures, body)


def http_request(method: str, address: str, headers: Mapping[str, str], body: bytes) -> httpcore.Request | None:
    """Return a request with the headers that frame it, or None if the URL is not one that a webhook may have."""
    if not is_webhook_url(address):
        return None
    try:
        url = httpx.URL(address)
    except httpx.InvalidURL:
        return None
    if url.port is not None and not 0 < url.port < 65_536:
        return None
    return httpcore.Request(
        method,
        httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=[
            ("host", url.netloc.decode()),
            ("user-agent", USER_AGENT),
            ("content-length", str(len(body))),
            *headers.items(),
        ],
        content=body,
    )


def _outcome_of(response: httpcore.Response, now: datetime) -> Outcome:
    detail = f"HTTP {response.status}"
    match response.status:
        case status if 200 <= status < 300:
            return Sent(detail)
        case 410:
            return Failed("gone", detail)
        case 429 | 503:
            return Retry("refused", retry_after_of(response, now), detail)
        case _:
            return Retry("refused", detail=detail)


def retry_after_of(response: httpcore.Response, now: datetime) -> float | None:
    header = next((value for name, value in response.headers if name.lower() == b"retry-after"), None)
    return None if header is None else parse_retry_after(header.decode("latin-1"), now)


async def _read_body(response: httpcore.Response, timeout_s: float) -> bytes | None:
    """Return a short body, undecoded; give up on a long or slow one, and on its connection."""
    body = bytearray()
    with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError):
        async with asyncio.timeout(timeout_s):
            async for chunk in response.aiter_stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    return None
            return bytes(body)
    return None


def host_of(url: str) -> str:
    """Return the host of a URL; empty if it has none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


async def _is_host_published(tx: Transaction, org_id: int, url: str) -> bool:
    return host_of(url) in {host_of(published) for published in await find_published_urls(tx, org_id)}


WEBHOOKS = OutgoingChannel(
    channel=WEBHOOK,
    address=AddressRule(
        index="url",
        read=lambda url: url if is_webhook_url(url) else None,
        reason="must be an http or https URL",
        names=lambda url: (host_of(url),),
        identifier=None,
        is_used=_is_host_published,
        unknown="no published automation sends to this host",
    ),
    open=open_webhook_sender,
    find_closed=find_closed_endpoints,
    closed=Failed("gone", "it answered 410 to an earlier delivery"),
    close=lambda org_id, digests, url, at: close_endpoint(org_id, digests, host_of(url), at),
    find_secrets=signing.find_secrets,
    prepare=None,
)
