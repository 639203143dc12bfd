"""A marketer beside the load, in an organization of its own: broadcasts, schedules, segments, digests, connections,
topics, bounces, clicks, stops, and moves of entries, while processes are killed.

The events of this organization are few and simple, so each invariant counts what every single one led to.
"""

import asyncio
import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from functools import cached_property
from html import unescape
from random import Random
from typing import Any, NamedTuple

import httpx
import msgspec
import psycopg
from psycopg.rows import class_row

from tests.torture.accounts import Account
from tests.torture.log import now_us
from tests.torture.sinks import CONNECTION_PATH, Delivery

ORG = "journeys"
DOMAIN = "journeys.example"
TOPIC, CONNECTION, SEGMENT = "news", "chat", "active"
PEOPLE = 20  # at the beginning; some more arrive during the run
LETTER, SEGMENT_JOINED, MINUTELY, DIGEST, CHAT, PATIENT = "letter", "entered", "minutely", "digest", "chat", "patient"
_NOTES_PER_TURN = 6
_PAUSE_S = (0.1, 0.6)
_STOPPED_S = 1.0
_RETRY_S = 0.2
_REQUEST_TIMEOUT_S = 20.0
_UNAVAILABLE = 503
_CLOCK_US = 1_000_000  # the clocks of a process and a receiver may differ by this much
_BROADCASTS_WITHIN_US = 60_000_000
_LINK = re.compile(rb"https?://[^\s\"<>]+/api/v1/click/?[^\s\"<>]*")


class Notice(NamedTuple):
    """Something that was acknowledged about a contact: between `began` and `ended`."""

    contact_id: str
    began: int
    ended: int


class StopSpan(NamedTuple):
    """A stop of everything: from its answer until the request that resumed it."""

    stopped: int
    resumed: int


class JourneyLog(msgspec.Struct):
    """What the marketer did, with the answers. `notes`, `chats`: the numbers of accepted events."""

    notes: set[int] = set()
    chats: set[int] = set()
    bounced: list[Notice] = []
    declined: list[Notice] = []
    stops: list[StopSpan] = []
    clicked: int = 0
    moved: int = 0
    strange: list[str] = []


class JourneyEntry(msgspec.Struct, frozen=True):
    id: str
    automation: str
    event_id: str
    contact_id: str
    state: str
    outcome: str | None
    joined_entry: str | None


class JourneyStart(msgspec.Struct, frozen=True):
    """A start; `automation` None: any automation that starts from the change of its segment."""

    id: str
    contact_id: str
    event: str
    automation: str | None


class JourneyBroadcast(msgspec.Struct, frozen=True):
    id: str
    automation: str
    state: str
    recipients: int
    entries: int
    scheduled: bool
    at: int


class JourneyEvent(msgspec.Struct, frozen=True):
    id: str
    event: str
    contact_id: str
    payload: dict[str, Any]


class JourneyMessage(msgspec.Struct, frozen=True):
    id: str
    automation: str
    entry_id: str
    contact_id: str
    channel: str
    status: str
    body: str | None


class JourneyStep(msgspec.Struct, frozen=True):
    """A step, with the commit of the claim under which it was taken, and its own."""

    entry_id: str
    node_id: str
    kind: str
    outcome: str
    claimed: int
    committed: int


class JourneyClaim(msgspec.Struct, frozen=True):
    entry_id: str
    claimed: int


class JourneyEvidence(msgspec.Struct, dict=True):
    log: JourneyLog
    entries: list[JourneyEntry]
    starts: list[JourneyStart]
    broadcasts: list[JourneyBroadcast]
    events: list[JourneyEvent]
    messages: list[JourneyMessage]
    steps: list[JourneyStep]
    claims: list[JourneyClaim]
    arrivals: list[Delivery]

    @cached_property
    def claimed(self) -> dict[str, list[int]]:
        """When the claims of each entry began."""
        claimed: dict[str, list[int]] = defaultdict(list)
        for claim in self.claims:
            claimed[claim.entry_id].append(claim.claimed)
        return claimed


def belongs_here(arrival: Delivery) -> bool:
    """Return whether a delivery is of this organization."""
    return arrival.target.startswith(f"/{ORG}/") or arrival.target.endswith(f"@{DOMAIN}")


# --- What the marketer does


class Marketer:
    """Does one thing after another until cancelled, each until it is acknowledged. `log` has what was."""

    def __init__(self, urls: list[str], account: Account, sink: str, arrivals: list[Delivery], seed: int) -> None:
        self.log = JourneyLog()
        self._urls, self._keys, self._sink, self._arrivals = urls, account.keys, f"{sink}/{ORG}", arrivals
        self._chance = Random(f"{seed}/{ORG}")
        self._http = httpx.AsyncClient(timeout=_REQUEST_TIMEOUT_S)
        self._numbers = itertools.count()
        self._contacts: dict[int, str] = {}
        self._automations: dict[str, str] = {}

    async def prepare(self) -> None:
        """Create contacts, topic, connection, segment and automations, before the faults begin."""
        await asyncio.gather(*(self._arrive(number) for number in range(PEOPLE)))
        await self._ask("PUT", f"/topics/{TOPIC}", {"label": "News"})
        await self._ask(
            "PUT",
            f"/connections/{CONNECTION}",
            {
                "url": f"{self._sink}{CONNECTION_PATH}",
                "headers": {"webhook-id": "{{ messageId }}"},
                "body": {"n": "{{ fields.n }}"},
                "success": {"status": ["2xx"]},
                "permanent": {"status": [410]},
                "rate": 20,
            },
        )
        sql = "SELECT DISTINCT contact_id FROM app_events WHERE event = 'note'"
        await self._ask("POST", "/segments", {"name": SEGMENT, "sql": sql, "everySeconds": 60})
        event = {"type": "app_event"}
        # One path per event, because 410 closes a URL.
        hook = {"url": f"{self._sink}/hook/{{{{ n }}}}", "body": {"n": "{{ n }}"}}
        digest = {
            "url": f"{self._sink}/digest/{{{{ n }}}}",
            "body": {"ns": "{% for e in events %}{{ e.n }} {% endfor %}"},
        }
        mail = {"subject": "News", "body": "Read https://example.com/offer", "topic": TOPIC, "trackClicks": True}
        await self._publish(LETTER, {"type": "broadcast"}, ("send_email", mail | {"onMissing": "skip"}))
        await self._publish(
            SEGMENT_JOINED, {"type": "segment_entered", "segment": SEGMENT}, ("add_tag", {"tag": "active"})
        )
        minutely = {"type": "schedule", "cron": "* * * * *", "timezone": "UTC", "segment": SEGMENT, "missed": "once"}
        await self._publish(MINUTELY, minutely, ("add_tag", {"tag": "minutely"}))
        await self._publish(DIGEST, event | {"event": "note"}, ("collect", {"seconds": 2}), ("send_webhook", digest))
        await self._publish(PATIENT, event | {"event": "note"}, ("delay", {"seconds": 5}), ("send_webhook", hook))
        via = {"connection": CONNECTION, "fields": {"n": "{{ n }}"}}
        await self._publish(CHAT, event | {"event": "chat"}, ("send_via", via))

    async def work(self) -> None:
        """Do everything in turn until cancelled."""
        while True:
            await self.do_everything()

    async def do_everything(self) -> None:
        for turn in (self._write, self._broadcast, self._bounce, self._write, self._decline, self._move, self._stop,
                     self._click, self._refresh):  # fmt: skip
            await turn()
            await asyncio.sleep(self._chance.uniform(*_PAUSE_S))

    async def finish(self) -> None:
        """Do everything once more, without faults, and wait until no further entries begin."""
        await self._ask("POST", "/resume", {})
        await self.do_everything()
        await self._ask("POST", f"/automations/{self._automations[MINUTELY]}/deactivate", {})
        deadline = now_us() + _BROADCASTS_WITHIN_US
        while now_us() < deadline:
            answer = await self._ask("GET", "/broadcasts?limit=100", None)
            if all(broadcast["state"] in ("done", "stopped") for broadcast in answer["broadcasts"]):
                return
            await asyncio.sleep(_RETRY_S)

    async def close(self) -> None:
        await self._http.aclose()

    async def _arrive(self, person: int) -> None:
        await self._send("arrived", person)
        contact = {"externalId": f"p{person}"}
        self._contacts[person] = (await self._ask("POST", "/contacts/find", {"contact": contact}, key="admin"))["id"]

    async def _send(self, event: str, person: int) -> int:
        number = next(self._numbers)
        contact = {"externalId": f"p{person}", "email": f"p{person}@{DOMAIN}"}
        body = {"event": event, "contact": contact, "payload": {"n": number}, "idempotencyKey": f"{event}/{number}"}
        await self._ask("POST", "/events", body, key="live")
        return number

    async def _write(self) -> None:
        """Send events that digests collect, that wait, and that go to a chat; a new contact arrives, too."""
        await self._arrive(len(self._contacts))
        person = self._chance.choice(list(self._contacts))
        for _ in range(_NOTES_PER_TURN):
            self.log.notes.add(await self._send("note", person))
        self.log.chats.add(await self._send("chat", person))

    async def _broadcast(self) -> None:
        await self._ask("POST", f"/automations/{self._automations[LETTER]}/broadcasts", {"all": True})

    async def _bounce(self) -> None:
        person, began = self._chance.choice(list(self._contacts)), now_us()
        await self._ask("POST", "/bounces", {"type": "bounced", "email": f"p{person}@{DOMAIN}"}, key="live")
        self.log.bounced.append(Notice(self._contacts[person], began, now_us()))

    async def _decline(self) -> None:
        contact_id, began = self._chance.choice(list(self._contacts.values())), now_us()
        await self._ask("PUT", f"/contacts/{contact_id}/preferences", {"topics": {TOPIC: False}}, key="admin")
        self.log.declined.append(Notice(contact_id, began, now_us()))

    async def _move(self) -> None:
        """Change the message after a wait, publish it, and move the entries that wait."""
        path = f"/automations/{self._automations[PATIENT]}"
        draft = await self._ask("GET", path, None)
        draft["graph"]["nodes"][-1]["data"]["body"]["version"] = next(self._numbers)  # an unchanged draft moves nothing
        # Without an answer it may be stored: then the revision has grown, and this draft is published.
        await self._ask("PUT", path, {"revision": draft["revision"], "graph": draft["graph"]}, good=(200, 409))
        answer = await self._ask("POST", f"{path}/publish", {"move": "safe"})
        self.log.moved += answer.get("moves", {}).get("moved", 0)

    async def _stop(self) -> None:
        await self._ask("POST", "/stop", {})
        stopped = now_us()
        await self._send("note", 0)  # starts nothing
        await asyncio.sleep(_STOPPED_S)
        resumed = now_us()
        await self._ask("POST", "/resume", {})
        self.log.stops.append(StopSpan(stopped, resumed))

    async def _click(self) -> None:
        """Open a tracked link of an email that arrived."""
        mails = [arrival for arrival in self._arrivals if arrival.target.endswith(f"@{DOMAIN}")]
        links = [link for mail in mails[-20:] for link in _LINK.findall(_unfolded(mail.body))]
        if not links:
            return
        path = unescape(self._chance.choice(links).decode()).partition("/api/v1")[2]
        while (response := await self._request("GET", path, None, "live")) is None or response.status_code >= 500:
            await asyncio.sleep(_RETRY_S)
        self.log.clicked += response.status_code in (302, 303, 307)

    async def _refresh(self) -> None:
        await self._ask("POST", f"/segments/{SEGMENT}/refresh", {}, good=(200, 202, 409, 429))

    async def _publish(self, name: str, trigger: dict[str, Any], *steps: tuple[str, dict[str, Any]]) -> None:
        first = "app_event" if trigger["type"] == "app_event" else trigger["type"]
        nodes = [{"id": "t", "type": first, "data": {}}]
        nodes += [{"id": f"s{place}", "type": kind, "data": data} for place, (kind, data) in enumerate(steps)]
        edges = [
            {"id": f"e{place}", "source": source["id"], "target": target["id"], "sourceHandle": None}
            for place, (source, target) in enumerate(itertools.pairwise(nodes))
        ]
        body = {"name": name, "triggerSpec": trigger, "graph": {"nodes": nodes, "edges": edges}, "active": True}
        made = await self._ask("POST", "/automations", body, good=(201,))
        await self._ask("POST", f"/automations/{made['id']}/publish", {})
        self._automations[name] = made["id"]

    async def _ask(
        self, method: str, path: str, body: Any, *, key: str = "admin", good: Collection[int] = (200, 201, 202)
    ) -> Any:
        """Send a request until it is acknowledged. An answer that is neither good nor 503 is noted."""
        while True:
            response = await self._request(method, path, body, key)
            if response is not None and response.status_code in good:
                return response.json()
            if response is not None and response.status_code != _UNAVAILABLE:
                self.log.strange.append(f"{method} {path}: {response.status_code} {response.text[:300]}")
                return {}
            await asyncio.sleep(_RETRY_S)

    async def _request(self, method: str, path: str, body: Any, key: str) -> httpx.Response | None:
        headers = {"authorization": f"Bearer {self._keys[key]}"}
        try:
            return await self._http.request(
                method, f"{self._chance.choice(self._urls)}/api/v1{path}", json=body, headers=headers
            )
        except httpx.TransportError:
            return None


def _unfolded(body: bytes) -> bytes:
    """Return a quoted-printable text without its soft line breaks."""
    return body.replace(b"=\r\n", b"").replace(b"=3D", b"=")


# --- What is stored

_US = "(extract(epoch FROM {}) * 1000000)::bigint"
_COMMITTED = _US.format("coalesce(pg_xact_commit_timestamp(t.xmin), clock_timestamp())")
_HERE = f"JOIN workbench.organizations o ON o.id = t.org_id AND o.name = '{ORG}'"
_CLAIMED = f"""
    SELECT t.entry_id, t.token, min({_COMMITTED}) AS claimed FROM torture.leases t WHERE t.until IS NOT NULL
    GROUP BY t.entry_id, t.token"""
_QUERIES: dict[str, tuple[type, str]] = {
    "entries": (
        JourneyEntry,
        f"""SELECT t.id::text, a.name AS automation, t.event_id::text, t.contact_id::text, t.state, t.outcome,
                   t.joined_entry::text
            FROM workbench.entries t {_HERE} JOIN workbench.automations a ON a.id = t.automation_id""",
    ),
    "starts": (
        JourneyStart,
        f"""SELECT t.id::text, t.contact_id::text, t.event, a.name AS automation
            FROM workbench.starts t {_HERE} LEFT JOIN workbench.automations a ON a.id = t.automation_id""",
    ),
    "broadcasts": (
        JourneyBroadcast,
        f"""SELECT t.id::text, a.name AS automation, t.state,
                   t.contacts + coalesce(entered - departed, 0) AS recipients, t.entries, t.scheduled,
                   {_US.format("t.at")} AS at
            FROM workbench.broadcasts t {_HERE} JOIN workbench.automations a ON a.id = t.automation_id""",
    ),
    "events": (
        JourneyEvent,
        f"SELECT t.id::text, t.event, t.contact_id::text, t.payload FROM workbench.events t {_HERE}",
    ),
    "messages": (
        JourneyMessage,
        f"""SELECT t.id::text, a.name AS automation, t.entry_id::text, t.contact_id::text, t.channel, t.status, t.body
            FROM workbench.messages t {_HERE} JOIN workbench.automations a ON a.id = t.automation_id""",
    ),
    "steps": (
        JourneyStep,
        f"""SELECT t.entry_id::text, t.node_id, t.kind, t.outcome, c.claimed, {_COMMITTED} AS committed
            FROM workbench.entry_steps t {_HERE}
            JOIN ({_CLAIMED}) c ON c.entry_id = t.entry_id AND c.token = t.claim""",
    ),
    "claims": (
        JourneyClaim,
        f"""SELECT c.entry_id::text, c.claimed FROM ({_CLAIMED}) c
            JOIN workbench.entries t ON t.id = c.entry_id {_HERE} ORDER BY c.claimed""",
    ),
}


async def read(connection: psycopg.AsyncConnection[Any], log: JourneyLog, arrivals: list[Delivery]) -> JourneyEvidence:
    """Read the rows of the organization through a superuser's connection."""
    rows: dict[str, list[Any]] = {}
    for name, (kind, statement) in _QUERIES.items():
        async with connection.cursor(row_factory=class_row(kind)) as cursor:
            await cursor.execute(statement.encode())
            rows[name] = await cursor.fetchall()
    return JourneyEvidence(log, **rows, arrivals=[arrival for arrival in arrivals if belongs_here(arrival)])


# --- What must hold

JourneyFindings = Iterator[str | None]


def starts_have_one_entry(run: JourneyEvidence) -> JourneyFindings:
    """every recipient of a broadcast is started once and has one entry; a contact that entered the segment, too; a
    schedule runs once at each of its times
    """
    entries = Counter((entry.automation, entry.event_id) for entry in run.entries)
    contacts = Counter((start.id[:24], start.contact_id) for start in run.starts if start.automation is not None)
    for (broadcast, contact_id), count in contacts.items():
        yield f"doubled: broadcast {broadcast} has contact {contact_id} {count} times" if count > 1 else None
    for start in run.starts:
        count = entries[start.automation or SEGMENT_JOINED, start.id]
        yield None if count == 1 else f"start {start.id} has {count} entries"
    started = Counter(start.id[:24] for start in run.starts)
    for row in run.broadcasts:
        numbers = row.recipients, started[row.id[:24]], row.entries
        good = row.state == "stopped" or (row.state == "done" and len(set(numbers)) == 1)
        yield None if good else f"broadcast {row.id} is {row.state}: recipients, starts and entries are {numbers}"
    runs = Counter((row.automation, row.at) for row in run.broadcasts if row.scheduled)
    for (automation, at), count in runs.items():
        yield f"doubled: {automation} ran {count} times at {at}" if count > 1 else None


def closed_addresses_get_nothing(run: JourneyEvidence) -> JourneyFindings:
    """no email leaves under a claim after a bounce of its address, or after its contact declined its topic, was
    acknowledged
    """
    closed: dict[str, int] = {}
    for notice in (*run.log.bounced, *run.log.declined):
        closed[notice.contact_id] = min(notice.ended, closed.get(notice.contact_id, notice.ended))
    messages = {message.id: message for message in run.messages}
    for arrival in run.arrivals:
        message = messages.get(arrival.id)
        if message is not None and message.channel == "email":
            ended = closed.get(message.contact_id)
            claimed = _claimed(run, message.entry_id, arrival.at)
            late = ended is not None and claimed > ended
            yield f"email {message.id} left to an address that was closed before" if late else None


def stops_hold(run: JourneyEvidence) -> JourneyFindings:
    """between the answer to a stop and the resume, no step is taken, and no message leaves, under a claim that began
    after that answer, and no step but that of a message that was under way is recorded
    """
    for stop in run.log.stops:
        yield None
        for step in run.steps:
            if stop.stopped < step.committed < stop.resumed:
                under_way = step.claimed < stop.stopped and step.kind.startswith("send_")
                yield None if under_way else f"entry {step.entry_id} {step.outcome} at {step.node_id} during a stop"
    messages = {message.id: message for message in run.messages}
    for arrival in run.arrivals:
        if (message := messages.get(arrival.id)) is not None:
            claimed = _claimed(run, message.entry_id, arrival.at)
            stopped = any(stop.stopped < claimed <= arrival.at < stop.resumed - _CLOCK_US for stop in run.log.stops)
            yield f"message {message.id} left during a stop" if stopped else None


def digests_have_each_event_once(run: JourneyEvidence) -> JourneyFindings:
    """an event that starts or joins a digest is in the message of exactly one"""
    numbers = {event.id: event.payload["n"] for event in run.events if event.event == "note"}
    expected: dict[str, list[int]] = defaultdict(list)
    for entry in run.entries:
        if entry.automation == DIGEST:
            if entry.event_id not in numbers:
                yield f"entry {entry.id} has an event that is not stored"
                continue
            expected[entry.joined_entry or entry.id].append(numbers[entry.event_id])
    bodies: dict[str, list[int]] = {}
    for message in run.messages:
        if message.automation == DIGEST and message.body is not None:
            bodies[message.entry_id] = [int(n) for n in msgspec.json.decode(message.body)["ns"].split()]
    for entry_id, right in expected.items():
        actual = sorted(bodies.get(entry_id, []))
        yield None if actual == sorted(right) else f"digest {entry_id} has {actual}, not {sorted(right)}"
    counts = Counter(itertools.chain.from_iterable(bodies.values()))
    for number in run.log.notes:
        yield None if counts[number] == 1 else f"event {number} is in {counts[number]} digests"


def journeys_reach_receivers(run: JourneyEvidence) -> JourneyFindings:
    """every event has one message by the connection, and one after its wait, whichever version it was moved to; one
    that is sent was taken and left no more, and one that was taken is not failed; a stored click is of an email to its
    contact
    """
    events = {event.id: event.payload["n"] for event in run.events if event.event in ("note", "chat")}
    entries = {entry.id: entry for entry in run.entries}
    messages = Counter(
        (message.automation, events.get(entries[message.entry_id].event_id))
        for message in run.messages
        if message.entry_id in entries
    )
    for automation, numbers in ((CHAT, run.log.chats), (PATIENT, run.log.notes)):
        for number in numbers:
            count = messages[automation, number]
            yield None if count == 1 else f"event {number} has {count} messages of {automation}"
    copies: dict[str, list[Delivery]] = defaultdict(list)
    for arrival in run.arrivals:
        copies[arrival.id].append(arrival)
    sent = {step.entry_id: step.committed for step in run.steps if step.outcome == "sent"}
    for message in run.messages:
        yield _wrong_delivery(message, copies[message.id], sent.get(message.entry_id, 0))
    owners = {message.id: message.contact_id for message in run.messages if message.channel == "email"}
    for event in run.events:
        if event.event == "link.clicked":
            good = owners.get(event.payload["messageId"]) == event.contact_id
            yield None if good else f"click {event.id} is of an email to another contact"


def _wrong_delivery(message: JourneyMessage, copies: list[Delivery], sent_at: int) -> str | None:
    is_taken = any(copy.is_taken for copy in copies)
    if message.status == "sent":
        if not is_taken:
            return f"lost: message {message.id} is sent, and no receiver accepted it"
        return f"doubled: message {message.id} left after it was sent" if copies[-1].at > sent_at else None
    if message.status in ("queued", "sending"):
        return f"message {message.id} is {message.status} in the end"
    good = not is_taken or message.status == "unknown" or message.channel == "email"
    return None if good else f"message {message.id} was taken, and is {message.status}"


def journeys_end(run: JourneyEvidence) -> JourneyFindings:
    """every entry has ended, and every request of the marketer got an answer of its route"""
    for entry in run.entries:
        ended = entry.state in ("completed", "exited", "cancelled", "dead")
        yield None if ended else f"entry {entry.id} of {entry.automation} is {entry.state}"
    yield from run.log.strange


def _claimed(run: JourneyEvidence, entry_id: str, at: int) -> int:
    """Return when the latest claim of an entry before a moment began."""
    return max((claimed for claimed in run.claimed[entry_id] if claimed <= at), default=0)
