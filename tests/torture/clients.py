"""Clients that send events.

Each sends one request at a time to any API process and repeats it until every event is answered.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import httpx
import msgspec

from tests.torture.accounts import CLIENT_TIMEOUT_S, PATIENT_TIMEOUT_S, Account
from tests.torture.log import UNSETTLED, Answer, Attempt, EventKind, Log, SentEvent, now_us
from tests.torture.temporary_keys import TemporaryKeys
from tests.torture.traffic import Traffic

MAX_BATCH_EVENTS = 20
BURST_GAPS_S = (0.0, 0.005, 0.022, 0.057)  # seconds between the events of a burst
SHARE_OF_HALF_CLOSED = 0.05
ENCODINGS: tuple[dict[str, str], ...] = ({}, {}, {}, {"content-encoding": ""}, {"content-encoding": "Identity"})
PAUSES_S = (0.02, 0.15)  # seconds between the requests of a client


class Load:
    """Clients that send until `stop()`, distributed over the organizations."""

    def __init__(
        self, urls: Sequence[str], accounts: Sequence[Account], seed: int, clients: int, temporary_keys: TemporaryKeys
    ) -> None:
        self.log = Log()
        self.temporary_keys = temporary_keys
        self._stopping = asyncio.Event()
        traffic = [Traffic(account.org, datetime.now(UTC)) for account in accounts]
        self._traffic = {of_org.org: of_org for of_org in traffic}
        self._clients = [
            _Client(
                urls,
                accounts[number % len(accounts)],
                traffic[number % len(accounts)],
                Random(f"{seed}/{number}"),
                self,
            )
            for number in range(clients)
        ]
        self.answered: dict[str, list[SentEvent]] = defaultdict(list)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def people(self, org: str) -> range:
        """Return the numbers of the people that an organization's events are about at this moment."""
        return self._traffic[org].people

    @property
    def all_people(self) -> range:
        """The numbers of all people that any event was about."""
        return range(max(of_org.people.stop for of_org in self._traffic.values()))

    def stop(self) -> None:
        """Send no new events; unanswered ones are still repeated."""
        self._stopping.set()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for client in self._clients:
                group.create_task(client.run())


class _Client:
    def __init__(self, urls: Sequence[str], account: Account, traffic: Traffic, chance: Random, load: Load) -> None:
        self._urls = urls
        self._keys = account.keys
        self._traffic = traffic
        self._chance = chance
        self._load = load
        self._http = httpx.AsyncClient()

    async def run(self) -> None:
        weights = {
            self._single: 36,
            self._batch: 30,
            self._send_again: 14,
            self._race: 6,
            self._send_dry_runs: 5,
            self._burst: 5,
            self._send_misspelt: 2,
            self._overfill: 2,
            self._send_hostile: 2,
        }
        async with self._http:
            await self._burst()  # also in a short run
            await self._send_hostile()
            while not self._load.stopping:
                (action,) = self._chance.choices(list(weights), list(weights.values()))
                await action()
                await asyncio.sleep(self._chance.uniform(*PAUSES_S))

    async def _single(self) -> None:
        await self._deliver([self._traffic.any(self._chance)])

    async def _batch(self) -> None:
        events = [self._traffic.any(self._chance) for _ in range(self._chance.randint(2, MAX_BATCH_EVENTS))]
        if self._chance.random() < 0.1 and events[0].once:
            events.append(events[0])
        await self._deliver(events)

    async def _send_again(self) -> None:
        """Repeat an event that was answered long ago, or send another event with its key."""
        events = self._load.answered[self._traffic.org]
        if events:
            old = self._chance.choice(events)
            other = old.key is not None and self._chance.random() < 0.5
            await self._deliver([self._traffic.repeat(self._chance, old) if other else old])

    async def _race(self) -> None:
        """Send one event several times concurrently, alone and in batches."""
        event = self._traffic.live(self._chance)
        other = self._traffic.live(self._chance)
        if event.once:
            await asyncio.gather(self._deliver([event]), self._deliver([other, event]), self._deliver([event]))

    async def _send_dry_runs(self) -> None:
        events = [self._traffic.dry_run(self._chance) for _ in range(self._chance.randint(1, 4))]
        await self._deliver(events, "test")

    async def _burst(self) -> None:
        """Send a few events of one contact, each a moment after the other and without waiting for its answer."""
        gap_s = self._chance.choice(BURST_GAPS_S)
        async with asyncio.TaskGroup() as group:
            for event in self._traffic.burst():
                group.create_task(self._deliver([event]))
                await asyncio.sleep(gap_s)

    async def _send_misspelt(self) -> None:
        await self._deliver([self._traffic.misspelt(self._chance)], "strict")

    async def _send_hostile(self) -> None:
        await self._deliver([self._traffic.hostile(self._chance)])

    async def _overfill(self) -> None:
        await self._deliver(self._traffic.overfull())

    async def _deliver(self, events: list[SentEvent], kind: str = "live") -> None:
        """Send events until each has a final answer. The rejection of a revoked key is a final answer."""
        for event in events:
            self._load.log.sent[event.org, event.number] = event
        temporary_key = self._load.temporary_keys.pick(self._chance, self._traffic.org, kind)
        key, temporary_key_id = (temporary_key.secret, temporary_key.id) if temporary_key else (self._keys[kind], "")
        pending = events
        while pending:
            answers = await self._send(pending, key, temporary_key_id)
            if Answer.REVOKED in answers:
                return
            pending = [event for event, answer in zip(pending, answers, strict=True) if answer in UNSETTLED]
            if pending:
                await asyncio.sleep(self._chance.uniform(0.05, 0.4))
        self._load.answered[self._traffic.org] += [
            event for event in events if event.kind is EventKind.LIVE and event.once
        ]

    async def _send(self, events: list[SentEvent], key: str, temporary_key: str) -> list[Answer]:
        """Send one request of one or more events and log the answer to each."""
        api = self._chance.randrange(len(self._urls))
        path, body = ("/events", events[0].body) if len(events) == 1 else ("/events/batch", _batch(events))
        request = self._http.build_request(
            "POST",
            f"{self._urls[api]}/api/v1{path}",
            json=body,
            headers={"authorization": f"Bearer {key}", **self._chance.choice(ENCODINGS)},
            timeout=self._chance.choice((CLIENT_TIMEOUT_S, PATIENT_TIMEOUT_S)),
        )
        half_closed, began = self._chance.random() < SHARE_OF_HALF_CLOSED, now_us()
        try:
            response = await (_send_half_closed(request) if half_closed else self._http.send(request))
        except httpx.TransportError as error:
            items = [(_without_answer(error), dict[str, Any]())] * len(events)
        else:
            self._load.log.leak_detector.check_rejection(self._traffic.org, "events", response.text)
            items = _read(response, events, temporary_key)
        ended = now_us()
        for event, (answer, item) in zip(events, items, strict=True):
            attempt = _attempt(event, api, (began, ended), answer, item, temporary_key)
            self._load.log.attempts.append(msgspec.structs.replace(attempt, half_closed=half_closed))
        return [answer for answer, _ in items]


async def _send_half_closed(request: httpx.Request) -> httpx.Response:
    """Send a request over a connection of its own and end our side of it; then read until the service ends its side."""
    head = {**request.headers, "connection": "close"}
    lines = [f"POST {request.url.path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    try:
        async with asyncio.timeout(PATIENT_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(request.url.host, request.url.port)
            with contextlib.closing(writer):
                writer.write("\r\n".join([*lines, "", ""]).encode() + request.content)
                writer.write_eof()
                received = await reader.read()
    except TimeoutError as error:
        raise httpx.ReadTimeout("no answer") from error
    except ConnectionRefusedError as error:
        raise httpx.ConnectError("not reached") from error
    except OSError as error:
        raise httpx.ReadError("broken") from error
    answer, _, body = received.partition(b"\r\n\r\n")
    while answer.startswith(b"HTTP/1.1 100"):
        answer, _, body = body.partition(b"\r\n\r\n")
    status_line, *fields = answer.decode().split("\r\n")
    headers = {name: value for name, _, value in (field.lower().partition(": ") for field in fields)}
    if len(body) != int(headers.get("content-length", -1)):
        raise httpx.RemoteProtocolError("ended without a whole answer")
    return httpx.Response(int(status_line.split()[1]), content=body)


def _batch(events: list[SentEvent]) -> dict[str, Any]:
    return {"events": [event.body for event in events]}


def _without_answer(error: httpx.TransportError) -> Answer:
    match error:
        case httpx.ConnectError() | httpx.ConnectTimeout() | httpx.PoolTimeout():
            return Answer.UNSENT
        case httpx.TimeoutException():
            return Answer.TIMED_OUT
        case _:
            return Answer.BROKEN


def _read(response: httpx.Response, events: list[SentEvent], temporary_key: str) -> list[tuple[Answer, dict[str, Any]]]:
    """Return the answer to each event with its response."""
    try:
        body = response.json()
        items = body.get("results", [body])
    except (ValueError, AttributeError):
        return [(Answer.STRANGE, {"status": response.status_code, "text": response.text})] * len(events)
    match response.status_code:
        case 202 if len(items) == len(events):
            return [(_answer(event, item), item) for event, item in zip(events, items, strict=True)]
        case 400 if len(events) == 1:
            return [(Answer.REJECTED, body)]
        case 401 if temporary_key:
            return [(Answer.REVOKED, body)] * len(events)
        case 503 if body.get("code") == "INGEST_UNAVAILABLE":
            return [(Answer.UNAVAILABLE, body)] * len(events)
        case status:
            return [(Answer.STRANGE, body | {"status": status})] * len(events)


def _answer(event: SentEvent, item: dict[str, Any]) -> Answer:
    if not item["accepted"]:
        return Answer.UNAVAILABLE if item["error"].startswith("INGEST_UNAVAILABLE") else Answer.REJECTED
    own_key = event.key is None or item["idempotencyKey"] == event.key
    if not own_key or ("dryRun" in item) is not (event.kind is EventKind.DRY):
        return Answer.STRANGE
    return Answer.DUPLICATE if item["deduplicated"] else Answer.NEW


def _attempt(
    event: SentEvent, api: int, span: tuple[int, int], answer: Answer, item: dict[str, Any], temporary_key: str
) -> Attempt:
    detail = str(item) if answer is Answer.STRANGE else item.get("error", "")
    key, matched = item.get("idempotencyKey"), item.get("matchedAutomations")
    warnings = tuple(item.get("warnings", ()))
    return Attempt(event.org, event.number, api, *span, answer, key, matched, detail, temporary_key, warnings)
