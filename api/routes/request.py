"""The inputs of every route: the services of the process, the caller's key, and the body.

Authentication errors are exceptions, because every route treats them alike: 401 without a valid key, 403 without the
scope or the kind of key. `api.app` shapes the response.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from sanic import Request

from api.auth.verify import Principal, Unauthorized, Verifier
from api.automations.automations import Author
from api.catalog.tail import Followers
from api.clock import Clock
from api.crypto import Keyring
from api.engine.deliver import Transports
from api.inapp.feed import Feed
from api.inapp.sessions import Sessions
from api.ingest.pipeline import Pipeline
from api.ingest.rejected import Notices
from api.query.gateway import Gateway
from api.routes.access_log import AccessLog
from api.routes.responses import RequestRefusedError
from api.segments.candidates import SegmentServices
from api.settings import Settings
from api.store.database import Database, DatabaseUnavailableError
from api.store.query import TenantDatabase, act_for
from workbench.language.codec import MalformedJsonError, decode
from workbench.language.event import mask_email

PRIVATE = {"cache-control": "no-store"}  # answers with personal data or secrets

# Scopes of automations and their entries: one of each tuple is enough.
READ = ("automations:write", "automations:publish", "events:read")
WRITE = ("automations:write",)
PUBLISH = ("automations:publish",)
SWITCH = ("automations:write", "automations:publish")

KEY_CHECK_INTERVAL_S = 2.0  # a revoked key ends everywhere within 5 s: 2 s here, 2 s in the verifier's cache


class Services(msgspec.Struct, frozen=True):
    """The long-lived objects of one API process, in `app.ctx.services`.

    `database` restricts every statement to the organization of the request; `system_database` sees all organizations.
    """

    settings: Settings
    database: TenantDatabase
    system_database: Database
    keyring: Keyring
    clock: Clock
    verifier: Verifier
    pipeline: Pipeline
    notices: Notices
    followers: Followers
    gateway: Gateway
    sessions: Sessions
    feed: Feed
    segments: SegmentServices
    transports: Transports
    access_log: AccessLog


def services(request: Request) -> Services:
    return request.app.ctx.services  # type: ignore[no-any-return]


async def identify(request: Request) -> Principal:
    """Return the principal of the request's key; 401 without a valid one."""
    principal = await services(request).verifier.principal(request.headers.getall("authorization", []))
    if isinstance(principal, Unauthorized):
        raise RequestRefusedError(401, "the secret key is missing, invalid or revoked")
    request.ctx.principal = principal
    act_for(principal.org_id)
    return principal


async def require(request: Request, *scopes: str) -> Principal:
    """Return the principal if its key has one of `scopes`; 403 otherwise."""
    principal = await identify(request)
    if principal.scopes.isdisjoint(scopes):
        raise RequestRefusedError(403, f"this key lacks the scope {' or '.join(scopes)}")
    return principal


async def require_workbench_key(request: Request, scopes: tuple[str, ...], subject: str = "automations") -> Principal:
    """Return the principal of a workbench key with one of `scopes`; 403 for any other kind, whatever scopes it has."""
    principal = await require(request, *scopes)
    if principal.kind != "workbench":
        raise RequestRefusedError(403, f"{subject} require a workbench key (wb_…)")
    return principal


async def require_contact_access(request: Request, scopes: tuple[str, ...]) -> Principal:
    """Return the principal of a live or workbench key with one of `scopes`; 403 for test keys."""
    principal = await require(request, *scopes)
    if principal.test:
        raise RequestRefusedError(403, "test keys cannot read or change contacts")
    return principal


async def require_author(request: Request, scopes: tuple[str, ...]) -> Author:
    """Return the author of a change, if it is a workbench key with one of `scopes`."""
    return author_of(request, await require_workbench_key(request, scopes))


def author_of(request: Request, principal: Principal) -> Author:
    """Return the author of a change that this request makes now."""
    return Author(principal.org_id, principal.key_id, services(request).clock.unique_now_us())


def email_display(request: Request, principal: Principal) -> Callable[[str], str]:
    """Return how the principal sees a sealed email address: in clear with `pii:read`, masked without it."""
    keys = services(request).keyring.of(principal.org_id)
    if "pii:read" in principal.scopes:
        return keys.open_email
    return lambda sealed: mask_email(keys.open_email(sealed))


def json_body(request: Request) -> dict[str, Any]:
    """Return the decoded body; 415 unless it is declared as JSON, 400 unless it is an object."""
    expect_json(request)
    try:
        body = decode(request.body)
    except MalformedJsonError as error:
        raise RequestRefusedError(400, f"malformed JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestRefusedError(400, "the body must be a JSON object")
    return body


def expect_json(request: Request) -> None:
    """Refuse with 415 a body that is declared as anything but uncompressed JSON in UTF-8."""
    declared = request.headers.get("content-type")
    if declared is not None and len(request.headers.getall("content-type")) > 1:
        raise RequestRefusedError(415, "Content-Type must be sent once")
    if declared is not None and declared != "application/json":  # the common case skips the parsing
        media, _, parameters = declared.lower().partition(";")
        charset = parameters.replace(" ", "").replace('"', "")
        if media.strip() != "application/json" or charset not in ("", "charset=utf-8"):
            raise RequestRefusedError(415, "Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RequestRefusedError(415, "Content-Encoding is not supported")


async def is_still_allowed(request: Request, *scopes: str) -> bool:
    """Return whether the key of a long request still has its scope."""
    try:
        await require(request, *scopes)
    except RequestRefusedError:
        return False
    except DatabaseUnavailableError:
        return True  # the key cannot be checked now, but neither can any data be read
    return True


@asynccontextmanager
async def cancel_when_key_ends(request: Request, *scopes: str) -> AsyncIterator[None]:
    """Cancel the block when the key is revoked or expires.

    The client gets 401, or a closed connection if the response has begun.
    """
    task, key_ended = asyncio.current_task(), asyncio.Event()
    assert task is not None

    async def watch_key() -> None:
        allowed = True
        while allowed:
            await asyncio.sleep(KEY_CHECK_INTERVAL_S)
            allowed = await is_still_allowed(request, *scopes)
        key_ended.set()
        task.cancel()

    watcher = asyncio.create_task(watch_key())
    try:
        yield
    except asyncio.CancelledError:
        if not key_ended.is_set():
            raise  # cancelled for another reason: the client is gone, or the server stops
        task.uncancel()
        if request.responded:
            request.transport.abort()  # type: ignore[attr-defined]
        raise RequestRefusedError(401, "the key was revoked or has expired") from None
    finally:
        watcher.cancel()
