"""Contract events that an organization keeps without an automation, named by the operator."""

from collections.abc import Mapping
from typing import Any

from api.access import AccessError, orgs
from api.access.session import session
from api.language.abi import Declared, Word, read_signature
from api.language.keccak import unfit_address
from api.language.onchain import MOST_CHAIN
from api.store import watches as store
from api.store.authoring import raise_epoch
from api.store.watches import Watch


async def add(dsn: str, org_name: str, spec: Mapping[str, Any]) -> Watch:
    """Keep an event from now on; raise AccessError saying what is wrong with it."""
    watch = _read(spec)
    async with session(dsn) as (tx, now):
        org_id = await orgs.known(tx, org_name)
        await store.add_watch(tx, org_id, watch, now)
        await raise_epoch(tx, org_id)
    return watch


async def remove(dsn: str, org_name: str, spec: Mapping[str, Any]) -> None:
    """Keep it no longer; raise AccessError when it was not kept."""
    watch = _read(spec)
    async with session(dsn) as (tx, _):
        org_id = await orgs.known(tx, org_name)
        if not await store.remove_watch(tx, org_id, watch):
            raise AccessError(f"{org_name} does not keep this event; see: workbench chain watched --org {org_name}")
        await raise_epoch(tx, org_id)


async def listed(dsn: str, org_name: str) -> list[Watch]:
    """Return what is kept; raise AccessError when there is no such organization."""
    async with session(dsn) as (tx, _):
        return await store.watches_of(tx, await orgs.known(tx, org_name))


def _read(spec: Mapping[str, Any]) -> Watch:
    if not 1 <= spec["chainId"] <= MOST_CHAIN:
        raise AccessError("the chain id is a positive whole number")
    if reason := unfit_address(spec["contract"]):
        raise AccessError(f"{spec['contract']!r} {reason}")
    declared = read_signature(spec["signature"])
    if isinstance(declared, str):
        raise AccessError(f"the signature {declared}")
    wallet_arg = spec.get("walletArg")
    if wallet_arg is not None and not _is_wallet(declared, wallet_arg):
        raise AccessError(f"{declared.full} has no address called {wallet_arg!r}")
    return Watch(spec["chainId"], spec["contract"].lower(), declared.full, wallet_arg)


def _is_wallet(declared: Declared, name: str) -> bool:
    parameter = declared.parameter(name)
    return parameter is not None and parameter.type == Word("address", 20)
