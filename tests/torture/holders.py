"""Holders of wallets: they visit their inboxes at any API, acknowledge some of what they get, vanish, and come back elsewhere.

In the end everybody who has something waiting collects it.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from tests.torture.asking import Caller, Callers
from tests.torture.lending import Lender
from tests.torture.visits import Plan, Visits
from tests.torture.wallets import has_wallet, wallet_of

HOLDERS = 8
_PAST = 12  # people who left the window of those that events are of, and still look into their inbox
_STAYS = (0.3, 5.0)  # seconds
_STAYS_LENT = (4.0, 14.0)  # with a key that will be revoked
_HABITS = (1.0, 0.6, 0.0)  # how much of what they get they acknowledge
_PAUSES = (0.0, 0.3)  # seconds
_COLLECTORS = 12  # at once
_COLLECTING = (30.0, 1.5)  # seconds at most, and of silence

People = Callable[[str], range]
"""Whom an organization's events are of at this moment."""


class Holders:
    """All of them; each is with one organization, and with any wallet there."""

    def __init__(self, callers: Callers, lender: Lender) -> None:
        self.visits = Visits(callers.urls)
        self._lender = lender
        orgs = callers.orgs
        self._callers = [callers.caller(orgs[each % len(orgs)], f"holder {each}") for each in range(HOLDERS)]

    def busy_with(self, people: People) -> list[Coroutine[Any, Any, None]]:
        """Return what the holders do, until cancelled."""
        return [self._hold(caller, people) for caller in self._callers]

    async def collect(self, waiting: Collection[tuple[str, str]], everybody: range) -> None:
        """Let everybody (numbers of people) have what waits, by organization and wallet, and acknowledge it."""
        known = {wallet_of(person).address: wallet_of(person) for person in everybody if has_wallet(person)}
        room = asyncio.Semaphore(_COLLECTORS)

        async def have(caller: Caller, address: str) -> None:
            async with room:
                await self.visits.visit(caller, Plan(known[address], None, 1.0, *_COLLECTING, leaves=True))

        by_org = {caller.org: caller for caller in self._callers}
        await asyncio.gather(*(have(by_org[org], address) for org, address in waiting if address in known))

    async def _hold(self, caller: Caller, people: People) -> None:
        chance = caller.chance
        while True:
            now = people(caller.org)
            wallet = wallet_of(chance.choice([each for each in _visiting(now) if has_wallet(each)]))
            lent = self._lender.pick(chance, caller.org, "publishable")
            stays = chance.uniform(*(_STAYS_LENT if lent else _STAYS))
            plan = Plan(wallet, lent, chance.choice(_HABITS), stays, stays, leaves=chance.random() < 0.5)
            await self.visits.visit(caller, plan)
            await asyncio.sleep(chance.uniform(*_PAUSES))


def _visiting(people: range) -> range:
    return range(max(people.start - _PAST, 0), people.stop)
