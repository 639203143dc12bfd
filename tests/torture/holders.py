"""Wallet holders open their inboxes at any API process, acknowledge some messages, disconnect, and reconnect elsewhere.

At the end every wallet with unacknowledged messages collects them.
"""

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from tests.torture.callers import Caller, Callers
from tests.torture.inbox_visits import InboxVisits, VisitPlan
from tests.torture.temporary_keys import TemporaryKeys
from tests.torture.wallets import has_wallet, wallet_of

HOLDERS = 8
_PAST = 12  # people without new events who still open their inbox
_STAYS = (0.3, 5.0)  # seconds
_STAYS_WITH_TEMPORARY_KEY = (4.0, 14.0)  # with a key that is revoked during the visit
_HABITS = (1.0, 0.6, 0.0)  # the share of the messages that a holder acknowledges
_PAUSES_S = (0.0, 0.3)  # seconds
_COLLECTORS = 12  # at once
_COLLECTING = (30.0, 1.5)  # seconds: the longest visit, and the silence that ends one

CurrentPeople = Callable[[str], range]
"""Returns the numbers of the people that an organization's events are about at this moment."""


class Holders:
    """All wallet holders. Each belongs to one organization and uses any of its wallets."""

    def __init__(self, callers: Callers, temporary_keys: TemporaryKeys) -> None:
        self.visits = InboxVisits(callers.urls)
        self._temporary_keys = temporary_keys
        orgs = callers.orgs
        self._callers = [callers.caller(orgs[number % len(orgs)], f"holder {number}") for number in range(HOLDERS)]

    def coroutines(self, people: CurrentPeople) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines of the holders; they run until cancelled."""
        return [self._hold(caller, people) for caller in self._callers]

    async def collect(self, waiting: Collection[tuple[str, str]], people: range) -> None:
        """Open every inbox in `waiting` (organization and wallet) and acknowledge its messages.

        `people` are the numbers of all people of the run.
        """
        wallets = {wallet_of(person).address: wallet_of(person) for person in people if has_wallet(person)}
        room = asyncio.Semaphore(_COLLECTORS)

        async def collect_inbox(caller: Caller, address: str) -> None:
            async with room:
                await self.visits.visit(caller, VisitPlan(wallets[address], None, 1.0, *_COLLECTING, leaves=True))

        by_org = {caller.org: caller for caller in self._callers}
        await asyncio.gather(*(collect_inbox(by_org[org], address) for org, address in waiting if address in wallets))

    async def _hold(self, caller: Caller, people: CurrentPeople) -> None:
        chance = caller.chance
        while True:
            now = people(caller.org)
            wallet = wallet_of(chance.choice([person for person in _visiting(now) if has_wallet(person)]))
            temporary_key = self._temporary_keys.pick(chance, caller.org, "publishable")
            stays = chance.uniform(*(_STAYS_WITH_TEMPORARY_KEY if temporary_key else _STAYS))
            plan = VisitPlan(wallet, temporary_key, chance.choice(_HABITS), stays, stays, leaves=chance.random() < 0.5)
            await self.visits.visit(caller, plan)
            await asyncio.sleep(chance.uniform(*_PAUSES_S))


def _visiting(people: range) -> range:
    return range(max(people.start - _PAST, 0), people.stop)
