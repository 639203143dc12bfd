"""What a route's description adds to the route."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from api.access.format import Kind

Media = Literal["text/html", "text/javascript", "text/event-stream"]


class Access(msgspec.Struct, frozen=True):
    """Whose keys may call, with one of these scopes. No kinds: nobody needs a key."""

    kinds: tuple[Kind, ...] = ()
    scopes: tuple[str, ...] = ()


PUBLIC = Access()


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One route. `answer` None: nothing; `media`: another form than JSON. `instead`: other answers by their status."""

    access: Access = PUBLIC
    query: type | None = None
    body: type | None = None
    body_required: bool = True
    answer: Any = None
    media: Media | None = None
    status: int = 200
    instead: Mapping[int, Any] = {}


class FieldError(msgspec.Struct, frozen=True):
    """One of several problems."""

    error: str
    field: str


class Error(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A refusal. `error` is a sentence; `field` says where; `errors` lists all problems where there are several.

    `requestId` finds the request in the server's log.
    """

    error: str
    request_id: str
    field: str | msgspec.UnsetType = msgspec.UNSET
    code: Literal["RATE_LIMITED", "INGEST_UNAVAILABLE"] | msgspec.UnsetType = msgspec.UNSET
    errors: tuple[FieldError, ...] | msgspec.UnsetType = msgspec.UNSET


@cache
def holding(name: str, kind: Any) -> type:
    """Return the type of an object that holds one thing: `{"entries": [...]}`."""
    return msgspec.defstruct(f"{name[0].upper()}{name[1:]}", [(name, kind)], frozen=True)
