"""All users of the installation during a run: clients that send events, analysts, authors, wallets and operators."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx

from tests.torture.accounts import PATIENT_TIMEOUT_S
from tests.torture.analysts import KnownIds, analyse, define_segment, explode, send_every_bomb, send_every_query
from tests.torture.automations import Author, Automation
from tests.torture.callers import Callers
from tests.torture.clients import Load
from tests.torture.erasing import erase_some
from tests.torture.holders import Holders
from tests.torture.installation import Installation
from tests.torture.journeys import Marketer
from tests.torture.log import PROBE, Log, Reply, now_us
from tests.torture.nemesis import RunSpec
from tests.torture.operators import Operators
from tests.torture.secret_search import SearchedPlace, in_text
from tests.torture.temporary_keys import TemporaryKeys
from tests.torture.terminals import look, look_at_everything

ENOUGH = 10  # pushes of an organization
_READ_EVERY = 2.0  # seconds
_PROBED_EVERY = 0.3  # seconds
_LAST_TIMEOUT_S = 60.0  # seconds; after the faults every request must get an answer


class Users:
    """Starts all users. `read` holds the metrics pages, searched for secrets."""

    def __init__(self, installation: Installation, spec: RunSpec) -> None:
        urls, accounts = installation.urls, installation.accounts
        self.spec = spec
        self.read: list[SearchedPlace] = []
        self._temporary_keys = TemporaryKeys()
        self.load = Load(urls, accounts, spec.seed, spec.clients, self._temporary_keys)
        self._callers = Callers(urls, accounts, spec.seed, self.load.log)
        self.holders = Holders(self._callers, self._temporary_keys)
        self._known_ids = KnownIds()
        self._metrics = installation.metrics
        self._backends = installation.postgres.pids
        self._operators = Operators(installation, spec.seed, self.load.log)
        sinks, marketer = installation.sinks, installation.marketer
        assert marketer is not None, "the installation runs"
        sink = f"http://127.0.0.1:{sinks.webhook_port}"
        self.marketer = Marketer(urls, marketer, sink, sinks.arrivals, spec.seed)

    @property
    def log(self) -> Log:
        """The requests of all users and their answers."""
        return self.load.log

    @property
    def has_seen_enough(self) -> bool:
        """Whether every organization got pushes, also with temporary keys: without them V16 would have nothing to
        check.
        """
        own = [self.log.leak_detector.seen[org, "socket"].own for org in self._callers.orgs]
        by_temporary_key = any(visit.key and visit.pushes for visit in self.log.visits)
        return min(own) >= ENOUGH and by_temporary_key and any(len(visit.pushes) > 1 for visit in self.log.visits)

    async def prepare(self) -> None:
        """Define each organization's segment and create its direct login, before the faults begin."""
        for org in self._callers.orgs:
            await define_segment(self._callers.caller(org, "segment"))
        await self._operators.create_logins()
        await self.marketer.prepare()

    def other_coroutines(self, automations: list[Automation]) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines of all users that send no events. They run until cancelled."""
        author = Author(self._callers, self.log)
        doing = [do for automation in automations for do in author.coroutines(automation, self.spec.seconds / 2)]
        for org in self._callers.orgs:
            doing += [
                self._temporary_keys.run(self._callers.caller(org, "temporary keys")),
                erase_some(self._callers.caller(org, "eraser"), self.load.answered),
                analyse(self._callers.caller(org, "analyst"), self._known_ids),
                look(self._callers.caller(org, "reader")),
                explode(self._callers.caller(org, "bomber", _LAST_TIMEOUT_S), self._backends),
            ]
        doing.append(self._operators.work())
        probes = [self._probe(api, url) for api, url in enumerate(self._callers.urls)]
        return [*doing, *self.holders.coroutines(self.load.people), self._read_metrics(), *probes]

    async def do_everything(self) -> None:
        """Let the analysts and operators do everything once, after the faults."""
        async with asyncio.TaskGroup() as group:
            for org in self._callers.orgs:
                analyst, reader = (
                    self._callers.caller(org, f"last {task}", _LAST_TIMEOUT_S) for task in ("look", "read")
                )
                group.create_task(send_every_query(analyst, self._known_ids))
                group.create_task(look_at_everything(reader))
            bomber = self._callers.caller(self._callers.orgs[0], "last bombs", _LAST_TIMEOUT_S)
            group.create_task(send_every_bomb(bomber, self._backends))
            group.create_task(self._operators.do_everything())

    async def close(self) -> None:
        await self._callers.close()
        await self.marketer.close()

    async def _read_metrics(self) -> None:
        async with httpx.AsyncClient() as client:
            while True:
                await asyncio.sleep(_READ_EVERY)
                try:
                    text = (await client.get(self._metrics)).text
                except httpx.TransportError:
                    continue
                self.read.append(in_text("metrics", text))

    async def _probe(self, api: int, url: str) -> None:
        """Ask an API process again and again whether it is ready, as a load balancer does."""
        async with httpx.AsyncClient(timeout=PATIENT_TIMEOUT_S) as client:
            while True:
                await asyncio.sleep(_PROBED_EVERY)
                began = now_us()
                try:
                    status = (await client.get(f"{url}/readyz")).status_code
                except httpx.TransportError:
                    status = 0
                strange = "" if status in (0, 200, 503) else f"/readyz: {status}"
                self.log.replies.append(Reply("", PROBE, began, now_us(), status, strange, api))
