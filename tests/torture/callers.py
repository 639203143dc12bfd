"""Requests other than events: to any API process at any moment. Every answer is logged and searched for canaries."""

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

import httpx

from tests.torture.accounts import PATIENT_TIMEOUT_S, Account
from tests.torture.log import Log, Reply, now_us

_UNAVAILABLE = 503
_REFUSED = 400


class Caller:
    """Sends requests of one organization.

    Statuses in `good`, 503 and a lost connection are expected; any other answer is a finding.
    """

    def __init__(self, urls: Sequence[str], account: Account, chance: Random, log: Log, patience: float) -> None:
        self.account = account
        self.chance = chance
        self.log = log
        self._urls = urls
        self._http = httpx.AsyncClient(timeout=patience)

    async def close(self) -> None:
        await self._http.aclose()

    @property
    def org(self) -> str:
        return self.account.org

    @property
    def any_url(self) -> str:
        return self.chance.choice(self._urls)

    async def request(
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
        """Return the response of an API process (number `api`, or a random one) if its status is in `good`.

        `key` is a kind of key or a key.
        """
        place = self.chance.randrange(len(self._urls)) if api is None else api
        headers = {"authorization": f"Bearer {self.account.keys.get(key, key)}", **sent.pop("headers", {})}
        began = now_us()
        try:
            response = await self._http.request(method, f"{self._urls[place]}/api/v1{path}", headers=headers, **sent)
        except httpx.TransportError:
            self.log.replies.append(Reply(self.org, way, began, now_us(), 0, api=place))
            return None
        text, status = response.content.decode(errors="replace"), response.status_code
        if status < _REFUSED or way == "SQL":  # an SQL error may repeat the value that the query contained
            self.log.leak_detector.check_response(self.org, way, text)
        else:
            self.log.leak_detector.check_rejection(self.org, way, text)
        strange = "" if status in good or status == _UNAVAILABLE else f"{method} {path}: {status} {text[:300]}"
        self.log.replies.append(Reply(self.org, way, began, now_us(), status, strange, place))
        return response if status in good else None


class Callers:
    """Creates callers with random generators derived from the seed, and closes them all."""

    def __init__(self, urls: Sequence[str], accounts: Sequence[Account], seed: int, log: Log) -> None:
        self.urls = urls
        self._accounts = {account.org: account for account in accounts}
        self._seed = seed
        self._log = log
        self._made: list[Caller] = []

    @property
    def orgs(self) -> list[str]:
        return list(self._accounts)

    def caller(self, org: str, task: str, patience: float = PATIENT_TIMEOUT_S) -> Caller:
        """Create a caller for a task. `patience` is its timeout in seconds."""
        chance = Random(f"{self._seed}/{org}/{task}")
        self._made.append(Caller(self.urls, self._accounts[org], chance, self._log, patience))
        return self._made[-1]

    async def close(self) -> None:
        for caller in self._made:
            await caller.close()
