"""`/api/v1/keys`: the API keys of the organization, for workbench keys with keys:admin. A secret is shown only once."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta
from sanic import Blueprint, Request

from api.auth import keys
from api.auth.key_format import Kind
from api.auth.keys import ROLL_OVERLAP, NewKeyView
from api.routes.request import Access, Operation, principal_of, services
from workbench.language.body import Body, ShortName
from workbench.language.responses import KeyView

blueprint = Blueprint("keys", url_prefix="/api/v1/keys")

_ADMIN = Access(("workbench",), ("keys:admin",))
_MAX_OVERLAP = timedelta(days=30)


Strict = Annotated[
    bool, Meta(description="Whether the key refuses events with unknown fields; for live and test keys.")
]


class KeyBody(Body, frozen=True):
    """A new key. Without `scopes` it has the default scopes of its kind."""

    kind: Kind
    scopes: list[str] | None = None
    name: ShortName | None = None
    strict: Strict = False


class EditBody(Body, frozen=True):
    """A change of a key."""

    strict: Strict


class RollBody(Body, frozen=True, rename="camel"):
    """How long the old key still works; by default a day."""

    overlap_seconds: Annotated[int, Meta(ge=0, le=_MAX_OVERLAP // timedelta(seconds=1))] | None = None


@blueprint.get("")
@Operation(_ADMIN, field="keys", private=True)
async def list_all(request: Request) -> list[KeyView]:
    """List all keys with their last use, oldest first; the secrets are not stored and cannot be listed."""
    context = services(request)
    return await keys.list_key_views(context.database, principal_of(request), context.clock.unique_now_us())


@blueprint.post("")
@Operation(_ADMIN, status=201, private=True)
async def create(request: Request, body: KeyBody) -> NewKeyView:
    """Create a key. `secret` is shown only in this response."""
    context = services(request)
    return await keys.create_key(
        context.database,
        context.keyring,
        principal_of(request),
        context.clock.unique_now_us(),
        body.kind,
        body.scopes,
        body.name or "",
        body.strict,
    )


@blueprint.post("/<key_id:str>/edit")
@Operation(_ADMIN, private=True)
async def edit(request: Request, key_id: str, body: EditBody) -> KeyView:
    """Change whether a key refuses events with unknown fields; takes effect within five seconds."""
    context = services(request)
    now_us = context.clock.unique_now_us()
    return await keys.edit_key(context.database, principal_of(request), now_us, key_id, body.strict)


@blueprint.post("/<key_id:str>/roll")
@Operation(_ADMIN, status=201, private=True)
async def roll(request: Request, key_id: str, body: RollBody) -> NewKeyView:
    """Replace a key with a new one that has the same rights; the old key keeps working for `overlapSeconds`."""
    context = services(request)
    overlap = ROLL_OVERLAP if body.overlap_seconds is None else timedelta(seconds=body.overlap_seconds)
    now_us = context.clock.unique_now_us()
    return await keys.roll_key(context.database, context.keyring, principal_of(request), now_us, key_id, overlap)


@blueprint.post("/<key_id:str>/revoke")
@Operation(_ADMIN, private=True)
async def revoke(request: Request, key_id: str) -> KeyView:
    """Revoke a key permanently; within five seconds every process refuses it and ends its running requests."""
    context = services(request)
    now_us = context.clock.unique_now_us()
    return await keys.revoke_key(context.database, principal_of(request), now_us, key_id)
