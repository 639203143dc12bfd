"""Temporary keys: created through any API process, used by clients and wallets, and revoked while in use."""

import asyncio
from collections import defaultdict
from random import Random

import msgspec

from tests.torture.asking import Caller
from tests.torture.log import Revoked, now_us

_APART = (2.0, 4.0)  # seconds between keys of one kind
_LENT = (2.0, 8.0)  # seconds until one is revoked
_TRIED_ON = 12.0  # seconds of use after the revocation, which must hold after five
_USED_BY = 0.2  # the share of requests that use a temporary key
_KINDS = ("live", "publishable")


class Lent(msgspec.Struct, frozen=True):
    """A key that will be revoked."""

    id: str
    secret: str


class Lender:
    """Creates and revokes temporary keys of organizations."""

    def __init__(self) -> None:
        self._out: dict[tuple[str, str], list[Lent]] = defaultdict(list)

    def pick(self, chance: Random, org: str, kind: str) -> Lent | None:
        """Return a key that is or was recently valid, or None to use the organization's own key."""
        out = self._out[org, kind]
        return chance.choice(out) if out and chance.random() < _USED_BY else None

    async def run(self, caller: Caller) -> None:
        """Create and revoke keys of one organization until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                for kind in _KINDS:
                    group.create_task(self._lend(caller, kind))
                await asyncio.sleep(caller.chance.uniform(*_APART))

    async def _lend(self, caller: Caller, kind: str) -> None:
        made = await caller.ask("POST", "/keys", "keys", key="admin", good=(201,), json={"kind": kind, "name": "lent"})
        if made is None:
            return
        lent, out = Lent(made.json()["key"]["id"], made.json()["secret"]), self._out[caller.org, kind]
        out.append(lent)
        await asyncio.sleep(caller.chance.uniform(*_LENT))
        began = now_us()
        while await caller.ask("POST", f"/keys/{lent.id}/revoke", "keys", key="admin", json={}) is None:
            await asyncio.sleep(0.2)
        caller.log.revoked.append(Revoked(caller.org, lent.id, kind, began, now_us()))
        await asyncio.sleep(_TRIED_ON)
        out.remove(lent)
