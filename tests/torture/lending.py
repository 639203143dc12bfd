"""Keys that are lent: made through any API, used by whoever sends events or opens sockets, and revoked while they are in use."""

import asyncio
from collections import defaultdict
from random import Random

import msgspec

from tests.torture.asking import Caller
from tests.torture.log import Revoked, now_us

_APART = (2.0, 4.0)  # seconds between keys of one kind
_LENT = (2.0, 8.0)  # seconds until one is revoked
_TRIED_ON = 12.0  # seconds for which it is used after that; five are promised
_USED_BY = 0.2  # of those who have the choice
_KINDS = ("live", "publishable")


class Lent(msgspec.Struct, frozen=True):
    """A key that will be revoked."""

    id: str
    secret: str


class Lender:
    """Lends the keys of organizations."""

    def __init__(self) -> None:
        self._out: dict[tuple[str, str], list[Lent]] = defaultdict(list)

    def pick(self, chance: Random, org: str, kind: str) -> Lent | None:
        """Return a key that is lent, or was a moment ago; None: use your own."""
        out = self._out[org, kind]
        return chance.choice(out) if out and chance.random() < _USED_BY else None

    async def run(self, caller: Caller) -> None:
        """Lend and revoke keys of one organization, until cancelled."""
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
