"""`/api/v1/keys`: the API keys of the organization, for workbench keys with keys:admin. A secret is shown only once."""

from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar, get_args

from sanic import Blueprint, HTTPResponse, Request

from api.auth import AccessError, BeyondRightsError, UnknownKeyError, keys
from api.auth.key_format import Kind
from api.auth.keys import ROLL_OVERLAP
from api.auth.verify import Principal
from api.routes.parameters import body_fields, path_id, refuse_problems
from api.routes.request import PRIVATE, require_workbench_key, services
from api.routes.responses import RequestRefusedError, answer

blueprint = Blueprint("keys", url_prefix="/api/v1/keys")

_MAX_OVERLAP = timedelta(days=30)
_MAX_NAME = 100
_T = TypeVar("_T")


@blueprint.get("")
async def list_all(request: Request) -> HTTPResponse:
    """List all keys with their last use, oldest first; the secrets are not stored and cannot be listed."""
    principal, context = await _require_admin(request), services(request)
    views = await keys.list_key_views(context.database, principal, context.clock.unique_now_us())
    return answer({"keys": views}, headers=PRIVATE)


@blueprint.post("")
async def create(request: Request) -> HTTPResponse:
    """Create a key: 201. `secret` is shown only in this response.

    Without `scopes` the key has the default scopes of its kind.
    """
    principal, context, fields = await _require_admin(request), services(request), body_fields(request)
    fields.require("kind")
    kind: Kind = "test"
    match fields.value("kind"):
        case "live" | "test" | "publishable" | "workbench" as valid_kind:
            kind = valid_kind
        case _:
            fields.refuse("kind", f"must be one of {', '.join(get_args(Kind))}")
    scopes = fields.value("scopes")
    if scopes is not None and not (isinstance(scopes, list) and all(isinstance(scope, str) for scope in scopes)):
        fields.refuse("scopes", "must be an array of scopes")
    name = fields.text("name", _MAX_NAME) or ""
    refuse_problems(fields)
    now_us = context.clock.unique_now_us()
    created = keys.create_key(context.database, context.keyring, principal, now_us, kind, scopes, name)
    return answer(await _refuse_errors(created), 201, PRIVATE)


@blueprint.post("/<key_id:str>/roll")
async def roll(request: Request, key_id: str) -> HTTPResponse:
    """Replace a key with a new one of the same rights: 201.

    The old key works for another `overlapSeconds`, by default a day.
    """
    principal, context, fields = await _require_admin(request), services(request), body_fields(request)
    valid_id, overlap = path_id(key_id, "key"), ROLL_OVERLAP
    seconds = fields.value("overlapSeconds")
    if type(seconds) is int and 0 <= seconds <= _MAX_OVERLAP.total_seconds():
        overlap = timedelta(seconds=seconds)
    elif seconds is not None:
        fields.refuse("overlapSeconds", f"must be from 0 to {_MAX_OVERLAP.total_seconds():.0f} (30 days)")
    refuse_problems(fields)
    now_us = context.clock.unique_now_us()
    rolled = keys.roll_key(context.database, context.keyring, principal, now_us, valid_id, overlap)
    return answer(await _refuse_errors(rolled), 201, PRIVATE)


@blueprint.post("/<key_id:str>/revoke")
async def revoke(request: Request, key_id: str) -> HTTPResponse:
    """Revoke a key permanently; within five seconds every process refuses it and ends its running requests."""
    principal, context = await _require_admin(request), services(request)
    valid_id = path_id(key_id, "key")
    revoked = keys.revoke_key(context.database, principal, context.clock.unique_now_us(), valid_id)
    return answer(await _refuse_errors(revoked), headers=PRIVATE)


async def _require_admin(request: Request) -> Principal:
    return await require_workbench_key(request, ("keys:admin",), "keys")


async def _refuse_errors(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except UnknownKeyError as error:
        raise RequestRefusedError(404, str(error)) from None
    except BeyondRightsError as error:
        raise RequestRefusedError(403, str(error)) from None
    except AccessError as error:
        raise RequestRefusedError(400, str(error)) from None
