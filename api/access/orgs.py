"""Organizations: created by the operator, found by their name."""

import re

from api.access import AccessError
from api.access.session import session
from api.store import access as store
from api.store.database import Transaction

_NAME = re.compile(r"[a-z0-9-]{1,40}", re.ASCII)


async def create(dsn: str, name: str) -> int:
    """Create an organization and return its id; raise AccessError for a bad or taken name."""
    if not _NAME.fullmatch(name):
        raise AccessError(f"{name!r} is not an organization name; use 1 to 40 of a-z, 0-9 and -")
    async with session(dsn) as (tx, now):
        org_id = await store.insert_organization(tx, name, now)
    if org_id is None:
        raise AccessError(f"the organization {name} exists already")
    return org_id


async def find(dsn: str, name: str) -> int | None:
    """Return the id of an organization, or None."""
    async with session(dsn) as (tx, _):
        return await store.find_organization(tx, name)


async def known(tx: Transaction, name: str) -> int:
    """Return the id of an organization; raise AccessError when there is none."""
    org_id = await store.find_organization(tx, name)
    if org_id is None:
        raise AccessError(f"there is no organization {name}; create it with: workbench org create {name}")
    return org_id
