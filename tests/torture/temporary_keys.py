"""Temporary keys: created through any API process, used by clients and wallets, and revoked while in use."""

import asyncio
from collections import defaultdict
from random import Random

import msgspec

from tests.torture.callers import Caller
from tests.torture.log import RevokedKey, now_us

_INTERVAL_S = (2.0, 4.0)  # seconds between keys of one kind
_VALID_S = (2.0, 8.0)  # seconds until one is revoked
_USED_AFTER_REVOCATION_S = 12.0  # seconds of use after the revocation, which must take effect within five
_SHARE_OF_REQUESTS = 0.2  # the share of requests that use a temporary key
_KINDS = ("live", "publishable")


class TemporaryKey(msgspec.Struct, frozen=True):
    """A key that will be revoked."""

    id: str
    secret: str


class TemporaryKeys:
    """Creates and revokes temporary keys of organizations."""

    def __init__(self) -> None:
        self._out: dict[tuple[str, str], list[TemporaryKey]] = defaultdict(list)

    def pick(self, chance: Random, org: str, kind: str) -> TemporaryKey | None:
        """Return a key that is or was recently valid, or None to use the organization's own key."""
        out = self._out[org, kind]
        return chance.choice(out) if out and chance.random() < _SHARE_OF_REQUESTS else None

    async def run(self, caller: Caller) -> None:
        """Create and revoke keys of one organization until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for kind in _KINDS:
                    group.create_task(self._issue_key(caller, kind))
                await asyncio.sleep(caller.chance.uniform(*_INTERVAL_S))

    async def _issue_key(self, caller: Caller, kind: str) -> None:
        made = await caller.request(
            "POST", "/keys", "keys", key="admin", good=(201,), json={"kind": kind, "name": "temporary_key"}
        )
        if made is None:
            return
        temporary_key, out = TemporaryKey(made.json()["key"]["id"], made.json()["secret"]), self._out[caller.org, kind]
        out.append(temporary_key)
        await asyncio.sleep(caller.chance.uniform(*_VALID_S))
        began = now_us()
        while await caller.request("POST", f"/keys/{temporary_key.id}/revoke", "keys", key="admin", json={}) is None:
            await asyncio.sleep(0.2)
        caller.log.revoked.append(RevokedKey(caller.org, temporary_key.id, kind, began, now_us()))
        await asyncio.sleep(_USED_AFTER_REVOCATION_S)
        out.remove(temporary_key)
