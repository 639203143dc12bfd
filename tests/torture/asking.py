"""Requests of all but the senders of events: to any API process, at any moment, each answer noted and listened to."""

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import httpx

from tests.torture.accounts import PATIENCE, Account
from tests.torture.log import Log, Reply, now_us

_UNAVAILABLE = 503
_REFUSED = 400


class Caller:
    """Asks as one organization. An answer is `good` by its status; 503 and no answer are nobody's fault, anything else is strange."""

    def __init__(self, urls: Sequence[str], account: Account, chance: Random, log: Log, patience: float) -> None:
        self.account = account
        self.chance = chance
        self.log = log
        self._urls = urls
        self._http = httpx.AsyncClient(timeout=patience)

    async def close(self) -> None:
        """Let go of all connections."""
        await self._http.aclose()

    @property
    def org(self) -> str:
        """Who asks."""
        return self.account.org

    async def ask(
        self,
        method: str,
        path: str,
        way: str,
        *,
        key: str = "workbench",
        good: Collection[int] = (200,),
        api: int | None = None,
        **sent: Any,
    ) -> httpx.Response | None:
        """Return the answer of an API process (`api`, or any) if it is good; `key`: a kind of the organization's, or a key."""
        place = self.chance.randrange(len(self._urls)) if api is None else api
        headers = {"authorization": f"Bearer {self.account.keys.get(key, key)}", **sent.pop("headers", {})}
        began = now_us()
        try:
            response = await self._http.request(method, f"{self._urls[place]}/api/v1{path}", headers=headers, **sent)
        except httpx.TransportError:
            self.log.replies.append(Reply(self.org, way, began, now_us(), 0))
            return None
        text, status = response.content.decode(errors="replace"), response.status_code
        if status < _REFUSED or way == "SQL":  # who asks SQL is told which value could not be read
            self.log.ears.listen(self.org, way, text)
        else:
            self.log.ears.listen_to_refusal(self.org, way, text)
        strange = "" if status in good or status == _UNAVAILABLE else f"{method} {path}: {status} {text[:300]}"
        self.log.replies.append(Reply(self.org, way, began, now_us(), status, strange))
        return response if status in good else None


class Callers:
    """Makes callers of any organization, each with chances of its own by the seed, and closes them all."""

    def __init__(self, urls: Sequence[str], accounts: Sequence[Account], seed: int, log: Log) -> None:
        self.urls = urls
        self._accounts = {account.org: account for account in accounts}
        self._seed = seed
        self._log = log
        self._made: list[Caller] = []

    @property
    def orgs(self) -> list[str]:
        """Return all organizations."""
        return list(self._accounts)

    def caller(self, org: str, task: str, patience: float = PATIENCE) -> Caller:
        """Return a new one, for a task; it waits so many seconds for answers."""
        chance = Random(f"{self._seed}/{org}/{task}")
        self._made.append(Caller(self.urls, self._accounts[org], chance, self._log, patience))
        return self._made[-1]

    async def close(self) -> None:
        """Let go of all connections."""
        for each in self._made:
            await each.close()
