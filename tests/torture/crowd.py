"""Everybody who uses the installation while it is tortured: who sends events, and all others beside them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx

from tests.torture.analysts import Gossip, analyse, ask_everything, define_segment
from tests.torture.asking import Callers
from tests.torture.automations import Author, Automation
from tests.torture.clients import Load
from tests.torture.erasing import erase_some
from tests.torture.holders import Holders
from tests.torture.installation import Installation
from tests.torture.lending import Lender
from tests.torture.log import Log
from tests.torture.nemesis import Wish
from tests.torture.searching import Searched, in_text

ENOUGH = 10  # pushes of an organization
_READ_EVERY = 2.0  # seconds
_PATIENT = 60.0  # seconds; who asks while nothing is wrong waits for every answer


class Crowd:
    """All of them. `read`: what metrics said, searched for secrets."""

    def __init__(self, installation: Installation, wish: Wish) -> None:
        urls, accounts = installation.urls, installation.accounts
        self.wish = wish
        self.read: list[Searched] = []
        self._lender = Lender()
        self.load = Load(urls, accounts, wish.seed, wish.clients, self._lender)
        self._callers = Callers(urls, accounts, wish.seed, self.load.log)
        self.holders = Holders(self._callers, self._lender)
        self._gossip = Gossip()
        self._metrics = installation.metrics

    @property
    def log(self) -> Log:
        """What all of them did and heard."""
        return self.load.log

    @property
    def has_seen_enough(self) -> bool:
        """Whether every organization had pushes, by keys of its own and by lent ones: what came over sockets can be judged."""
        heard = [self.log.ears.heard[org, "socket"].own for org in self._callers.orgs]
        by_lent_key = any(line.key and line.pushes for line in self.log.lines)
        return min(heard) >= ENOUGH and by_lent_key and any(len(line.pushes) > 1 for line in self.log.lines)

    async def define_segments(self) -> None:
        """Let every organization have its segment, before anything is wrong."""
        for org in self._callers.orgs:
            await define_segment(self._callers.caller(org, "segment"))

    def beside(self, automations: list[Automation]) -> list[Coroutine[Any, Any, None]]:
        """Return what everybody does who sends no events, until cancelled."""
        author = Author(self._callers, self.log)
        doing = [do for automation in automations for do in author.busy_with(automation, self.wish.seconds / 2)]
        for org in self._callers.orgs:
            doing += [
                self._lender.run(self._callers.caller(org, "lender")),
                erase_some(self._callers.caller(org, "eraser"), self.load.answered),
                analyse(self._callers.caller(org, "analyst"), self._gossip),
            ]
        return [*doing, *self.holders.busy_with(self.load.people), self._read_metrics()]

    async def ask_everything(self) -> None:
        """Let the analysts of all organizations ask all they can, now that everything works."""
        for org in self._callers.orgs:
            await ask_everything(self._callers.caller(org, "analyst in the end", _PATIENT), self._gossip)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._callers.close()

    async def _read_metrics(self) -> None:
        async with httpx.AsyncClient() as client:
            while True:
                await asyncio.sleep(_READ_EVERY)
                try:
                    text = (await client.get(self._metrics)).text
                except httpx.TransportError:
                    continue
                self.read.append(in_text("metrics", text))
