"""Wallets that nobody knows: which of them automations make contacts of, and how often that was refused.

An automation makes contacts only where it says so, and only so many an hour: a token has more holders than an organization has users.
The zero address stands for nobody: tokens are minted from it and burned to it. A contact that was erased does not come back with a
log: those of before are about nobody, and those of later find only who was made known again by an event.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime

import msgspec

from api.chain.sightings import Sighting
from api.chain.watching import Watch
from api.ingest.arrival import Arrival
from api.ingest.matching import Active
from api.language.identity import Key
from api.language.onchain import NOBODY
from api.store.calls import Call, run
from api.store.database import Transaction
from api.store.strangers import What, add_strangers, count_created

MOST_AN_HOUR = 10_000  # contacts that one automation makes

_Wallet = tuple[int, tuple[Key, ...]]


class Match(msgspec.Struct, gc=False):
    """A log that an automation may enter, and who arrives with it."""

    sighting: Sighting
    watch: Watch
    active: Active
    arrival: Arrival


def wallets(arrivals: Sequence[Arrival]) -> list[tuple[int, str]]:
    """Return the (organization, digest)s of the wallets that arrive."""
    return [(each.org_id, each.keys[0][1]) for each in arrivals]


class Strangers:
    """Who may not become a contact on one page, and what is counted of it."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._barred: dict[_Wallet, What] = {}
        self._counts: Counter[tuple[int, str, What]] = Counter()

    def bar(self, arrival: Arrival, seconds: int, erased_until: float | None) -> None:
        """Look at who arrives with a log of a moment (since the epoch); `erased_until`: when the contact of the wallet was erased."""
        if arrival.event.identifiers.wallet == NOBODY:
            self._barred[_wallet(arrival)] = "zero_address"
            arrival.contact_id = ""
        elif erased_until is not None:
            self._barred[_wallet(arrival)] = "erased"
            if seconds <= erased_until:
                arrival.contact_id = ""

    async def chosen(
        self, tx: Transaction, due: Sequence[Match], takes: Callable[[Match], bool], at: datetime
    ) -> set[_Wallet]:
        """Return of whom contacts are made: wallets of logs that automations would take, as many as they may."""
        wanted: list[Match] = []
        for match in due:
            if not match.arrival.contact_id and takes(match):
                reason = self._barred.get(_wallet(match.arrival)) or (
                    None if match.watch.creates_contacts else "unknown"
                )
                if reason is None:
                    wanted.append(match)
                else:
                    self._count(match, reason)
        return await self._as_many(tx, wanted, at) if wanted else set()

    def counted(self, at: datetime) -> list[Call[None]]:
        """Return what writes the counts."""
        return [add_strangers(self._counts, at)] if self._counts else []

    async def _as_many(self, tx: Transaction, wanted: list[Match], at: datetime) -> set[_Wallet]:
        (made,) = await run(tx, count_created(sorted({_automation(each) for each in wanted}), at))
        chosen: set[_Wallet] = set()
        for match in wanted:
            automation_id, wallet = match.active.automation_id, _wallet(match.arrival)
            if wallet not in chosen and made.get(automation_id, 0) < self._most:
                made[automation_id] = made.get(automation_id, 0) + 1
                chosen.add(wallet)
                self._count(match, "created")
        for match in wanted:
            if _wallet(match.arrival) not in chosen:
                self._count(match, "limit")
        return chosen

    def _count(self, match: Match, what: What) -> None:
        self._counts[(*_automation(match), what)] += 1


def _wallet(arrival: Arrival) -> _Wallet:
    return arrival.org_id, arrival.keys


def _automation(match: Match) -> tuple[int, str]:
    return match.arrival.org_id, match.active.automation_id
