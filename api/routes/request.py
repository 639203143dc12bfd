"""The inputs and the response of a route, stated once: applied to every request, and shown in the OpenAPI document.

`@Operation(access)` checks the key, and reads the ids in the path, the query and the body before the handler runs.
Their types are those in the handler's signature, and what the handler returns is encoded as the response:

    @blueprint.put("/automations/<automation_id:str>")
    @Operation(WRITE)
    async def update(request: Request, automation_id: str, body: AutomationEdit) -> AutomationView | Refusal:

Authentication errors are exceptions, because every route treats them alike: 401 without a valid key, 403 without the
scope or the kind of key. `api.app` shapes the response.
"""

import asyncio
import base64
import functools
import operator
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from sanic import HTTPResponse, Request

from api.auth.key_format import Kind, prefix
from api.auth.verify import Principal, Unauthorized, Verifier
from api.automations.automations import Author, Reason, Refusal
from api.catalog.tail import Followers
from api.channels.outgoing import Transports
from api.clock import Clock
from api.crypto import EmailDisplay, Keyring
from api.inapp.feed import Feed
from api.inapp.sessions import Sessions
from api.ingest.clicks import Clicks
from api.ingest.pipeline import Pipeline
from api.ingest.rejected import Notices
from api.parts.lake import LakeSource
from api.parts.reports import ReportCounter
from api.query.gateway import Gateway
from api.routes.access_log import AccessLog
from api.routes.responses import RequestRefusedError, answer
from api.segments.candidates import SegmentServices
from api.settings import Settings
from api.store.database import CitusWorkers, Database, DatabaseUnavailableError
from api.store.query import TenantDatabase, act_for
from workbench.language.body import Body, is_id, read_body, read_query
from workbench.language.problem import Problems

PRIVATE = {"cache-control": "no-store"}  # responses with personal data or secrets
READ_IN_THREAD_BYTES = 512  # reading compiles templates: 2 KB of expressions take up to 25 ms, 64 KB 1.7 s

Media = Literal["text/html", "text/javascript", "text/event-stream", "application/octet-stream"]
Handler = Callable[..., Awaitable[Any]]

_STATUS: dict[Reason, int] = {"unknown": 404, "conflict": 409, "invalid": 400, "limited": 429}
_T = TypeVar("_T")
_Body = TypeVar("_Body", bound=Body)


class Access(msgspec.Struct, frozen=True):
    """The kinds of keys that may call a route, and the scopes of which they need one.

    No kinds: public. No scopes: any key of these kinds.
    """

    kinds: tuple[Kind, ...] = ()
    scopes: tuple[str, ...] = ()


PUBLIC = Access()
READ_EVENTS = Access(("live", "test", "workbench"), ("events:read",))
# Automations and their entries
READ = Access(("workbench",), ("automations:write", "automations:publish", "events:read"))
WRITE = Access(("workbench",), ("automations:write",))
DRAFT = Access(("workbench",), ("automations:write", "automations:propose"))
PUBLISH = Access(("workbench",), ("automations:publish",))
PROPOSE = Access(("workbench",), ("automations:publish", "automations:propose"))
SWITCH = Access(("workbench",), ("automations:write", "automations:publish"))

TRACKING_PREFIX = "/v1/"  # Segment's libraries put the key in HTTP Basic
KEY_REFUSED = "missing (send `Authorization: Bearer <key>`), invalid or revoked"
KEY_CHECK_INTERVAL_S = 2.0  # a revoked key ends everywhere within 5 s: 2 s here, 2 s in the verifier's cache


class Services(msgspec.Struct, frozen=True):
    """The long-lived objects of one API process, in `app.ctx.services`.

    `database` restricts every statement to the organization of the request; `system_database` sees all organizations.
    """

    settings: Settings
    database: TenantDatabase
    system_database: Database
    citus_workers: CitusWorkers
    keyring: Keyring
    clock: Clock
    verifier: Verifier
    pipeline: Pipeline
    clicks: Clicks
    notices: Notices
    followers: Followers
    gateway: Gateway
    reports: ReportCounter
    lake: LakeSource
    sessions: Sessions
    feed: Feed
    segments: SegmentServices
    transports: Transports
    access_log: AccessLog


def services(request: Request) -> Services:
    return request.app.ctx.services  # type: ignore[no-any-return]


async def identify(request: Request) -> Principal:
    """Return the principal of the request's key; 401 without a valid one."""
    headers = request.headers.getall("authorization", [])
    if request.path.startswith(TRACKING_PREFIX):
        headers = [*map(_bearer_of, headers)]
    principal = await services(request).verifier.principal(headers)
    if isinstance(principal, Unauthorized):
        raise RequestRefusedError(401, f"the secret key is {KEY_REFUSED}")
    request.ctx.principal = principal
    act_for(principal.org_id)
    return principal


def _bearer_of(header: str) -> str:
    """Return the header of a secret key that Segment's libraries send as the name of a user without a password."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode("ascii").partition(":")
    except ValueError:  # includes binascii.Error and UnicodeDecodeError
        return header
    return header if password else f"Bearer {name}"


async def require(request: Request, access: Access) -> Principal:
    """Return the principal of a key that may call the route; 403 for other kinds of keys, and without the scopes."""
    principal = await identify(request)
    if access.scopes and principal.scopes.isdisjoint(access.scopes):
        raise RequestRefusedError(403, f"this key lacks the scope {' or '.join(access.scopes)}")
    if principal.kind not in access.kinds:
        kinds = " or ".join(f"{kind} ({prefix(kind, principal.org_name)}…)" for kind in access.kinds)
        raise RequestRefusedError(403, f"this route requires a {kinds} key")
    return principal


def require_scope(request: Request, scope: str, use: str = "") -> None:
    """Refuse with 403 a key without a scope that the route needs for some requests only. `use`: what needs it."""
    if scope not in principal_of(request).scopes:
        raise RequestRefusedError(403, f"this key lacks the scope {scope}{f', which {use} needs' if use else ''}")


def principal_of(request: Request) -> Principal:
    """Return the principal. `require` has checked the key of the request."""
    return request.ctx.principal  # type: ignore[no-any-return]


def author_of(request: Request) -> Author:
    """Return the author of a change that this request makes now."""
    principal = principal_of(request)
    return Author(principal.org_id, principal.key_id, services(request).clock.unique_now_us())


def email_display(request: Request) -> EmailDisplay:
    principal = principal_of(request)
    return EmailDisplay(services(request).keyring.of(principal.org_id), "pii:read" in principal.scopes)


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
    if (request.headers.get("content-encoding") or "identity").lower() != "identity":
        raise RequestRefusedError(415, "Content-Encoding is not supported")


async def is_still_allowed(request: Request, access: Access) -> bool:
    """Return whether the key of a long request still has its scope."""
    try:
        await require(request, access)
    except RequestRefusedError:
        return False
    except DatabaseUnavailableError:
        return True  # the key cannot be checked now, but neither can any data be read
    return True


@asynccontextmanager
async def cancel_when_key_ends(request: Request, access: Access) -> AsyncIterator[None]:
    """Cancel the block when the key is revoked or expires.

    The client gets 401, or a closed connection if the response has begun.
    """
    task, key_ended = asyncio.current_task(), asyncio.Event()
    assert task is not None

    async def watch_key() -> None:
        allowed = True
        while allowed:
            await asyncio.sleep(KEY_CHECK_INTERVAL_S)
            allowed = await is_still_allowed(request, access)
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


# --- Operations


class Operation(msgspec.Struct, frozen=True):
    """One route. As a decorator of the handler, it does what is common to all handlers.

    `answer`: the type of the JSON answer, or of its only field, `field`. `query`, `body` and `answer` are read from the
    signature of the handler, except those that it reads and writes by itself. `media` is another form of the answer.
    `private`: the answer has personal data or secrets. `other_answers` are by status.
    """

    access: Access = PUBLIC
    field: str | None = None
    private: bool = False
    query: type[Body] | None = None
    body: type[msgspec.Struct] | None = None
    answer: Any = None
    media: Media | None = None
    status: int = 200
    other_answers: Mapping[int, Any] = {}

    def __call__(self, handler: Handler) -> Handler:
        access, field, hints = self.access, self.field, get_type_hints(handler)
        query, body, result_type = hints.get("query"), hints.get("body"), self.answer
        if result_type is None:
            hint = hints["return"]
            members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
            encoded = [member for member in members if member not in (Refusal, HTTPResponse, types.NoneType)]
            result_type = functools.reduce(operator.or_, encoded) if encoded else None

        @functools.wraps(handler)
        async def respond(request: Request, *arguments: Any, **path: Any) -> HTTPResponse | None:
            if access.kinds and "publishable" not in access.kinds:  # which `inapp` checks, together with the origin
                await require(request, access)
            for name, text in path.items():
                if name.endswith("_id"):
                    path[name] = path_id(text, name.removesuffix("_id"))
            if query is not None:
                path["query"] = valid(read_query(query, dict(request.args)))
            if body is not None:
                path["body"] = await body_of(request, body)
            result = await handler(request, *arguments, **path)
            if result is None or isinstance(result, HTTPResponse):
                return result
            value = unwrap(result)
            return answer(value if field is None else {field: value}, self.status, PRIVATE if self.private else None)

        respond.operation = msgspec.structs.replace(  # type: ignore[attr-defined]
            self, query=query, body=body or self.body, answer=result_type
        )
        return respond


async def body_of(request: Request, kind: type[_Body]) -> _Body:
    """Return the body, which may be empty. If it is not valid, refuse with 415, or with 400 and all its problems."""
    if request.body:
        expect_json(request)
    if len(request.body) > READ_IN_THREAD_BYTES:
        return valid(await asyncio.to_thread(read_body, kind, request.body))
    return valid(read_body(kind, request.body))


def path_id(text: str, resource: str) -> str:
    """Return an id from the path in lower case; 404 `<resource> not found` for a text that is not a UUID."""
    if not is_id(text):
        raise RequestRefusedError(404, f"{resource} not found")
    return text.lower()


def valid(value: _T | Problems) -> _T:
    """Return a parsed value; raise its problems as 400."""
    if isinstance(value, tuple):
        raise RequestRefusedError(400, value)
    return value


def unwrap(value: _T | Refusal) -> _T:
    """Return the value of a use case; raise its refusal as 404, 409, 400 or 429."""
    if isinstance(value, Refusal):
        raise RequestRefusedError(
            _STATUS[value.reason], value.problems, "RATE_LIMITED" if value.reason == "limited" else None
        )
    return value
