"""What the routes of contacts share: whose key may look at people, and how it sees their addresses."""

from sanic import Request

from api.access.verify import Principal
from api.authoring.automations import Author
from api.contacts.views import Shown
from api.language.email import mask_email
from api.routes.answers import RefusedError
from api.routes.entrance import parts, require

PRIVATE = {"cache-control": "no-store"}


async def require_person(request: Request, scopes: tuple[str, ...]) -> Principal:
    """Return who asks about contacts; refuse with 401, with 403 without one of `scopes`, and for test keys."""
    who = await require(request, *scopes)
    if who.test:
        raise RefusedError(403, "a test key has nothing to do with contacts")
    return who


def author_of(request: Request, who: Principal) -> Author:
    """Return who asks for a change, and when."""
    return Author(who.org_id, who.key_id, parts(request).clock.unique_now_us())


def shown_to(request: Request, who: Principal) -> Shown:
    """Return how the caller sees a sealed address: in clear only with pii:read."""
    keys = parts(request).keyring.of(who.org_id)
    if "pii:read" in who.scopes:
        return keys.open_email
    return lambda sealed: mask_email(keys.open_email(sealed))
