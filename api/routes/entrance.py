"""What every route needs before it starts: who asks, whether they may, and the body as JSON."""

from typing import Any

import msgspec
from sanic import Request

from api.access.verify import Principal, Unauthorized, Verifier
from api.clock import Clock
from api.engine.outside import Transports
from api.inapp.feed import Feed
from api.inapp.sessions import Sessions
from api.ingest.notices import Notices
from api.ingest.pipeline import Pipeline
from api.ingest.recent import Followers
from api.keyring import Keyring
from api.language.codec import MalformedJsonError, decode
from api.query.run import Gateway
from api.routes.answers import RefusedError
from api.routes.edge import Edge
from api.segments.finding import Desk
from api.settings import Settings
from api.store.database import Database
from api.store.tenancy import TenantDatabase, act_for


class Parts(msgspec.Struct, frozen=True):
    """The long-lived parts of one API process; routes find them in `request.app.ctx.parts`.

    `database` shows a request the rows of the organization that asks, `service` those of all.
    """

    settings: Settings
    database: TenantDatabase
    service: Database
    keyring: Keyring
    clock: Clock
    verifier: Verifier
    pipeline: Pipeline
    notices: Notices
    followers: Followers
    gateway: Gateway
    sessions: Sessions
    feed: Feed
    segments: Desk
    ways: Transports
    edge: Edge


def parts(request: Request) -> Parts:
    """Return the parts of the process that serves this request."""
    return request.app.ctx.parts  # type: ignore[no-any-return]


async def identify(request: Request) -> Principal:
    """Return who asks; refuse with 401 when nobody valid does."""
    found = await parts(request).verifier.principal(request.headers.getall("authorization", []))
    if isinstance(found, Unauthorized):
        raise RefusedError(401, "the secret key is missing, invalid or revoked")
    request.ctx.principal = found
    act_for(found.org_id)
    return found


async def require(request: Request, *scopes: str) -> Principal:
    """Return who asks; refuse with 401 when nobody valid does, with 403 when the key has none of `scopes`."""
    found = await identify(request)
    if found.scopes.isdisjoint(scopes):
        raise RefusedError(403, f"this key lacks the scope {' or '.join(scopes)}")
    return found


def json_body(request: Request) -> Any:
    """Return the decoded body; refuse with 415 or 400."""
    expect_json(request)
    try:
        return decode(request.body)
    except MalformedJsonError as error:
        raise RefusedError(400, f"malformed JSON: {error}") from None


def expect_json(request: Request) -> None:
    """Refuse with 415 a body that is declared as something else than JSON in UTF-8, or as compressed."""
    declared = request.headers.get("content-type")
    if declared is not None and len(request.headers.getall("content-type")) > 1:
        raise RefusedError(415, "there must be one Content-Type")
    if declared is not None and declared != "application/json":
        media, _, parameters = declared.lower().partition(";")
        charset = parameters.replace(" ", "").replace('"', "")
        if media.strip() != "application/json" or charset not in ("", "charset=utf-8"):
            raise RefusedError(415, "Content-Type must be application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(415, "Content-Encoding is not supported")
