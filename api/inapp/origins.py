"""Origins: which pages may ask in a browser for an organization's in-app messages.

A page on the developer's own machine always may: nobody else can serve one there.
"""

import re
from urllib.parse import urlsplit

from api.access import AccessError, orgs
from api.access.session import session
from api.store import inbox as store

_ORIGIN = re.compile(r"https?://(?:[a-z0-9_-]+(?:\.[a-z0-9_-]+)*|\[[0-9a-f:]+\])(?::[0-9]{1,5})?", re.ASCII)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_origin(text: str) -> str | None:
    """Return an origin as browsers send it, or None when the text is none; a slash at its end is forgiven."""
    origin = text.lower().removesuffix("/")
    if not _ORIGIN.fullmatch(origin) or len(origin) > 255:
        return None
    return origin.removesuffix(_DEFAULT_PORTS[origin.partition(":")[0]])


def is_loopback(origin: str) -> bool:
    """Return whether the page is served on the machine it is seen on."""
    return urlsplit(origin).hostname in _LOOPBACK


def may_ask(origin: str, allowed: tuple[str, ...]) -> bool:
    """Return whether a page of this origin may ask, when these are the organization's."""
    return origin in allowed or is_loopback(origin)


def domain(origin: str) -> str:
    """Return the host and port of an origin: what a wallet shows."""
    return origin.partition("://")[2]


async def list_origins(dsn: str, org_name: str) -> tuple[str, ...]:
    """Return the pages that may ask; raise AccessError when there is no such organization."""
    async with session(dsn) as (tx, _):
        return await store.list_origins(tx, await orgs.known(tx, org_name))


async def add_origin(dsn: str, org_name: str, text: str) -> str:
    """Let a page ask; return its origin in the form that counts. Raise AccessError."""
    origin = _given(text)
    async with session(dsn) as (tx, _):
        await store.add_origin(tx, await orgs.known(tx, org_name), origin)
    return origin


async def remove_origin(dsn: str, org_name: str, text: str) -> None:
    """Let a page ask no longer; its sockets end within 5 s. Raise AccessError when it could not ask."""
    origin = _given(text)
    async with session(dsn) as (tx, _):
        if not await store.remove_origin(tx, await orgs.known(tx, org_name), origin):
            raise AccessError(f"{origin} is not among the origins of {org_name}; see: workbench origins list")


def _given(text: str) -> str:
    origin = read_origin(text)
    if origin is None:
        raise AccessError(f"{text!r} is not an origin; one looks like https://app.example.com")
    return origin
