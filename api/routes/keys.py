"""`/api/v1/keys`: the organization's keys. For workbench keys with keys:admin; a key is shown whole once, when it is made."""

from collections.abc import Awaitable
from datetime import timedelta
from typing import TypeVar, get_args

from sanic import Blueprint, HTTPResponse, Request

from api.access import AccessError, BeyondRightsError, UnknownKeyError, administration
from api.access.format import Kind
from api.access.keys import ROLL_OVERLAP
from api.access.verify import Principal
from api.authoring.fields import Fields
from api.routes.answers import RefusedError, answer
from api.routes.authors import body_fields, known_form, refuse_problems, require_notebook
from api.routes.entrance import parts

blueprint = Blueprint("keys", url_prefix="/api/v1/keys")

_ADMIN = ("keys:admin",)
_LONGEST = timedelta(days=30)
_MOST_NAME = 100
_PRIVATE = {"cache-control": "no-store"}
_T = TypeVar("_T")


@blueprint.get("/")
async def list_all(request: Request) -> HTTPResponse:
    """Answer all keys, oldest first, with their last use; never the keys themselves."""
    who, own = await _admin(request), parts(request)
    keys = await administration.list_keys(own.database, who, own.clock.unique_now_us())
    return answer({"keys": keys}, headers=_PRIVATE)


@blueprint.post("/")
async def create(request: Request) -> HTTPResponse:
    """Make a key: 201. `secret` is shown this once. Its scopes are the usual ones of its kind, or those in `scopes`."""
    who, own, fields = await _admin(request), parts(request), body_fields(request)
    fields.require("kind")
    asked = _kind(fields), _scopes(fields), fields.text("name", _MOST_NAME) or ""
    refuse_problems(fields)
    made = administration.create(own.database, own.keyring, who, own.clock.unique_now_us(), asked)
    return answer(await _allowed(made), 201, _PRIVATE)


@blueprint.post("/<key_id:str>/roll")
async def roll(request: Request, key_id: str) -> HTTPResponse:
    """Make a key like this one: 201. The old one works for `overlapSeconds` from now on, a day unless said otherwise."""
    who, own, fields = await _admin(request), parts(request), body_fields(request)
    known, overlap = known_form(key_id, "key"), _overlap(fields)
    refuse_problems(fields)
    made = administration.roll(own.database, own.keyring, who, own.clock.unique_now_us(), known, overlap)
    return answer(await _allowed(made), 201, _PRIVATE)


@blueprint.post("/<key_id:str>/revoke")
async def revoke(request: Request, key_id: str) -> HTTPResponse:
    """End a key for good; within five seconds nobody takes it any more, and what it asked for is broken off."""
    who, own = await _admin(request), parts(request)
    known = known_form(key_id, "key")
    revoked = administration.revoke(own.database, who, own.clock.unique_now_us(), known)
    return answer(await _allowed(revoked), headers=_PRIVATE)


async def _admin(request: Request) -> Principal:
    return await require_notebook(request, _ADMIN, "keys")


async def _allowed(work: Awaitable[_T]) -> _T:
    try:
        return await work
    except UnknownKeyError as error:
        raise RefusedError(404, str(error)) from None
    except BeyondRightsError as error:
        raise RefusedError(403, str(error)) from None
    except AccessError as error:
        raise RefusedError(400, str(error)) from None


def _kind(fields: Fields) -> Kind:
    given = fields.value("kind")
    for kind in get_args(Kind):
        if given == kind:
            return kind  # type: ignore[no-any-return]
    fields.refuse("kind", f"must be one of {', '.join(get_args(Kind))}")
    return "test"


def _scopes(fields: Fields) -> list[str] | None:
    scopes = fields.value("scopes")
    if scopes is None:
        return None
    if not isinstance(scopes, list) or not all(isinstance(each, str) for each in scopes):
        fields.refuse("scopes", "must be an array of scopes")
        return None
    return scopes


def _overlap(fields: Fields) -> timedelta:
    seconds = fields.value("overlapSeconds")
    if seconds is None:
        return ROLL_OVERLAP
    if type(seconds) is not int or not 0 <= seconds <= _LONGEST.total_seconds():
        fields.refuse("overlapSeconds", f"must be from 0 to {_LONGEST.total_seconds():.0f}: thirty days")
        return ROLL_OVERLAP
    return timedelta(seconds=seconds)
