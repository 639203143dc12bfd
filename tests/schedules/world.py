"""The service in a schedule: two clients, two API processes, two engines, an operator, and what must hold then."""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import msgspec
import psycopg

from api.automations import automations
from api.automations.automations import Author, Refusal
from api.automations.body import AutomationEdit
from api.channels.address_guard import AddressGuard
from api.channels.outcome import Delivery, MayLeave, Outcome, Retry, Unknown, always
from api.channels.outgoing import Transports
from api.channels.webhook import WebhookSender
from api.clock import token, uuid7
from api.crypto import Keyring
from api.engine.drive import Driver
from api.engine.loop import Engine
from api.ingest.parse import AcceptedEvent, Duplicate
from api.ingest.pipeline import Pipeline
from api.ingest.queue import TokenBuckets
from api.ingest.rejected import Notices
from api.store.engines import Listener
from tests.channels.conftest import LOOPBACK, Endpoint, endpoint, status
from tests.schedules.scheduler import Fault, Hub, Process, Schedule, ScheduledClock, ScheduledDatabase, ScheduledLoop
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode, encode
from workbench.language.graph import read_graph
from workbench.language.run import TERMINAL

CLIENT_TIMEOUT_S, CLIENT_PAUSE_S = 2.0, 0.2
WAIT_S = 3_600
TRIGGER = {"id": "t", "type": "app_event", "data": {}}
WAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "bought", "timeoutSeconds": WAIT_S}}
RECEIVED = {"id": "c", "type": "add_tag", "data": {"tag": "received"}}
LATE = {"id": "l", "type": "add_tag", "data": {"tag": "late"}}
COUNT = {"id": "u", "type": "update_contact", "data": {"attributes": {"count": "{{ contact.count | default(0) + 1 }}"}}}
SETS = (("wait",), ("wait",), ("count",), ("hook",), ("wait", "count"))  # the automations of a schedule
HOOK = {"id": "h", "type": "send_webhook", "data": {}}
OPERATIONS = ("none", "none", "none", "pause", "deactivate", "publish")
AUTOMATIONS: dict[str, tuple[list[dict[str, Any]], list[str]]] = {
    "wait": ([TRIGGER, WAIT, RECEIVED, LATE], ["t-w", "w-c-matched", "w-l-timeout"]),
    "count": ([TRIGGER, COUNT], ["t-u"]),
    "hook": ([TRIGGER, COUNT, HOOK], ["t-u", "u-h"]),
}
ONCE = ("tagged", "updated", "sent", "matched", "timeout")  # outcomes that a node has once for an entry

_CREATE = """
    WITH org AS (
        INSERT INTO organizations (name, created_at) VALUES (%(name)s, %(at)s) RETURNING id
    ), made AS (
        SELECT org.id AS org_id, m.* FROM org
        CROSS JOIN unnest(%(ids)s::uuid[], %(names)s::text[], %(graphs)s::jsonb[], %(awaits)s::text[])
            AS m (id, name, graph, awaits)
    ), automation AS (
        INSERT INTO automations (org_id, id, name, trigger_spec, graph, active, published_version, revision,
                                 created_at, updated_at)
        SELECT org_id, id, name, %(trigger)s, graph, true, 1, 1, %(at)s, %(at)s FROM made
    ), version AS (
        INSERT INTO automation_versions (org_id, automation_id, version, trigger_spec, graph, published_at, awaits)
        SELECT org_id, id, 1, %(trigger)s, graph, %(at)s, string_to_array(awaits, ',') FROM made
    ), epoch AS (
        INSERT INTO automation_epochs (org_id, epoch) SELECT id, 1 FROM org
    )
    SELECT id FROM org
"""


class Result(msgspec.Struct, frozen=True):
    """What a schedule did. `violations`: what must hold and did not."""

    seed: int
    trace: tuple[str, ...]
    violations: tuple[str, ...]
    crashes: int
    losses: int
    waits_for_locks: int
    operation: str

    def report(self) -> str:
        """Return the seed, the order of the gates, and how to run the schedule again."""
        order = "\n".join(f"{number:5} {line}" for number, line in enumerate(self.trace, 1))
        return (
            f"schedule {self.seed} breaks:\n"
            + "\n".join(f"  - {violation}" for violation in self.violations)
            + f"\nits gates, in order (operator: {self.operation}):\n{order}\n"
            f"run it again: SCHEDULES=1 SCHEDULE_SEED={self.seed} pytest tests/schedules/test_schedules.py"
        )


class World:
    """A database, an endpoint, and the event loop in which all schedules of a test module run."""

    def __init__(self, loop: ScheduledLoop, dsn: str) -> None:
        self.loop, self.hub = loop, Hub(dsn)
        self.control = psycopg.connect(
            dsn, autocommit=True, options="-c search_path=workbench -c workbench.org=* -c synchronous_commit=off"
        )
        self.keyring = Keyring("a secret of the tests of schedules")
        self.now = self._fetch("SELECT now()")[0][0]
        self._endpoint = endpoint(status(200))
        self._number = 0

    async def start(self) -> None:
        self.endpoint: Endpoint = await self._endpoint.__aenter__()
        self.webhooks = WebhookSender(AddressGuard(LOOPBACK))

    async def stop(self) -> None:
        await self.webhooks.close()
        await self._endpoint.__aexit__(None, None, None)
        await self.hub.end()
        self.control.close()

    def run(self, seed: int) -> Result:
        """Run the schedule of a seed."""
        return self.loop.run_until_complete(self._run(seed))

    async def _run(self, seed: int) -> Result:
        await self.hub.fill()
        self._number += 1
        self.endpoint.requests.clear()
        schedule = Schedule(self.loop, self.control, seed)
        play = _Play(self, schedule, f"{token(4).hex()}-{self._number}")
        play.prepare()
        play.start()
        await schedule.run(play.next_s)
        violations = (*schedule.violations, *play.violations())
        self.control.execute("DELETE FROM automation_epochs WHERE org_id = %s", [play.org_id])
        counts = schedule.crashes, schedule.losses, schedule.waits_for_locks
        return Result(seed, tuple(schedule.trace), violations, *counts, play.operation)

    def _fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.control.execute(query, values).fetchall()


class _Play:
    """One organization and the processes that work for it."""

    def __init__(self, world: World, schedule: Schedule, name: str) -> None:
        self._world, self._schedule, self._name = world, schedule, name
        draw = random.Random(f"{schedule.seed}/play")
        self._names = draw.choice(SETS)
        self.operation = draw.choice(OPERATIONS)
        self._keys = ["d1", "b1"] if "wait" in self._names else ["d1"], draw.choice((["d1"], ["d1", "d2"]))
        self.clock = ScheduledClock(world.loop, int(world.now.timestamp() * 1e6))
        self._database = ScheduledDatabase(world.hub)
        self._pipelines: dict[str, Pipeline] = {}
        self._working = 0  # clients and operators
        self._acknowledged: set[str] = set()
        self.org_id = 0
        self._automations: dict[str, str] = {}  # name -> id

    def prepare(self) -> None:
        """Create the organization and its automations: in one statement, because schedules are short."""
        graphs = [encode(_graph(self._world, nodes, edges)) for nodes, edges in map(AUTOMATIONS.get, self._names)]
        wakes = [sorted(read_graph(decode(graph)).wakes) for graph in graphs]
        values = {
            "name": self._name,
            "at": self.clock.now(),
            "trigger": '{"type": "app_event", "event": "deposit"}',
            "ids": [self._author().key_id for _ in self._names],
            "names": list(self._names),
            "graphs": [graph.decode() for graph in graphs],
            "awaits": [",".join(names) for names in wakes],
        }
        ((self.org_id,),) = self._world.control.execute(_CREATE, values).fetchall()
        self._automations = dict(zip(values["names"], values["ids"], strict=True))

    def _author(self) -> Author:
        now_us = self.clock.unique_now_us()
        return Author(self.org_id, uuid7(now_us), now_us)

    def start(self) -> None:
        """Start the processes. Both clients send the event d1: one of them repeats the request of the other."""
        for name, keys in zip(("api-1", "api-2"), self._keys, strict=True):
            self._schedule.start(name, self._serve, mortal=True)
            self._schedule.start(name.replace("api", "client"), self._client(name, keys))
            self._working += 1
        for name in ("engine-1", "engine-2"):
            self._schedule.start(name, self._drive, mortal=True)
        if self.operation != "none":
            self._schedule.start("operator", self._operate)
            self._working += 1

    def next_s(self) -> float | None:
        """Return in how many seconds an entry is due, or a client or operator may continue; None if all is done."""
        ((due_at,),) = self._fetch(
            "SELECT min(CASE state WHEN 'running' THEN lease_until ELSE due_at END) FROM entries"
            " WHERE org_id = %s AND state <> ALL(%s)",
            [str(state) for state in TERMINAL],
        )
        if due_at is None:
            return 0.0 if self._working else None
        return 0.0 if self._working else (due_at - self.clock.now()).total_seconds()

    # --- Processes

    async def _serve(self, process: Process) -> None:
        notices = Notices(self._database, self.clock)
        pipeline = Pipeline(self._database, self._world.keyring, self.clock, TokenBuckets(0, 1), notices)
        await pipeline.start()
        self._pipelines[process.name.partition("#")[0]] = pipeline
        await asyncio.Event().wait()

    def _client(self, api: str, keys: list[str]) -> Callable[[Process], Any]:
        async def send_all(process: Process) -> None:
            for key in keys:
                await self._send(api, key)
            self._working -= 1

        return send_all

    async def _send(self, api: str, key: str) -> None:
        """Send an event until it is accepted."""
        name = "bought" if key.startswith("b") else "deposit"
        body = encode({"event": name, "contact": {"externalId": "u1"}, "idempotencyKey": key, "payload": {}})
        while True:
            async with self._schedule.effect(f"send {key} to {api}"):
                pass
            try:
                async with asyncio.timeout(CLIENT_TIMEOUT_S):
                    (outcome,) = await self._pipelines[api].ingest(self.org_id, [body], test_key=False)
            except TimeoutError:
                continue
            if isinstance(outcome, AcceptedEvent | Duplicate):
                self._acknowledged.add(key)
                return
            await asyncio.sleep(CLIENT_PAUSE_S)

    async def _drive(self, process: Process) -> None:
        senders = {"webhook": _GatedSender(self._schedule, self._world.webhooks)}
        transports = Transports(senders, "http://localhost:8000")
        retries = RetryPolicy((10.0,) * 8)  # so that no entry dies of crashes
        driver = Driver(self._database, self._world.keyring, self.clock, retries, transports)
        listener = _Listener(self._world.hub.dsn)
        process.wake = listener.wake
        await _EngineLoop(self._database, driver, self.clock, listener).run()

    async def _operate(self, process: Process) -> None:
        for name in sorted(self._automations):
            automation_id = self._automations[name]
            changes = []
            if self.operation == "pause":
                changes = [
                    await automations.pause(self._database, self._author(), automation_id),
                    await automations.resume(self._database, self._author(), automation_id, cancel_overdue=False),
                ]
            elif self.operation == "deactivate":
                changes = [
                    await automations.deactivate(self._database, self._author(), automation_id),
                    await automations.activate(self._database, self._author(), automation_id),
                ]
            else:
                trigger = encode({"type": "app_event", "event": "deposit", "filters": []})
                edit = AutomationEdit(revision=None, name=f"{name} 2", trigger_spec=trigger)
                changes = [
                    await automations.update(self._database, self._author(), automation_id, edit),
                    await automations.publish(self._database, self._author(), automation_id, None),
                ]
            self._schedule.violations += [repr(change) for change in changes if isinstance(change, Refusal)]
        self._working -= 1

    # --- What must hold

    def violations(self) -> Iterator[str]:
        yield from self._of_events()
        yield from self._of_entries()
        yield from self._of_transitions()
        yield from self._of_steps()
        yield from self._of_messages()

    def _of_events(self) -> Iterator[str]:
        keys = Counter(key for (key,) in self._fetch("SELECT idempotency_key FROM events WHERE org_id = %s"))
        yield from (f"event {key} is stored {count} times" for key, count in keys.items() if count > 1)
        yield from (f"event {key} was acknowledged and is lost" for key in self._acknowledged - keys.keys())
        contacts = self._fetch("SELECT id FROM contacts WHERE org_id = %s")
        if len(contacts) != 1:
            yield f"{len(contacts)} contacts have one external id"

    def _of_entries(self) -> Iterator[str]:
        entries = Counter(
            self._fetch(
                "SELECT e.automation_id::text, v.idempotency_key FROM entries e"
                " JOIN events v ON v.org_id = e.org_id AND v.id = e.event_id WHERE e.org_id = %s"
            )
        )
        yield from (
            f"event {key} entered {name!r} {count} times" for (name, key), count in entries.items() if count > 1
        )
        deposits = {key for keys in self._keys for key in keys if key.startswith("d")}
        if self.operation not in ("pause", "deactivate") and len(entries) < len(deposits) * len(self._names):
            yield f"{len(deposits)} deposits made only {len(entries)} entries in {len(self._names)} automations"
        for state, outcome, error in self._fetch("SELECT state, outcome, last_error FROM entries WHERE org_id = %s"):
            if state != "completed" and not (state == "cancelled" and self.operation == "deactivate"):
                yield f"an entry is {state}: {outcome}, {error}"

    def _of_transitions(self) -> Iterator[str]:
        rows = self._fetch(
            "SELECT e.id::text, e.state, array_agg(ARRAY[t.from_state, t.to_state] ORDER BY t.seq)"
            " FROM entries e JOIN entry_transitions t ON t.org_id = e.org_id AND t.entry_id = e.id"
            " WHERE e.org_id = %s GROUP BY e.id, e.state"
        )
        for entry_id, state, moves in rows:
            path = [move[0] for move in moves] + [moves[-1][1]]
            if path[0] != "pending" or path[-1] != state or path[1:] != [move[1] for move in moves]:
                yield f"the transitions of entry {entry_id} are no path to {state}: {moves}"

    def _of_steps(self) -> Iterator[str]:
        """Each node is passed once, under the claim that holds the entry, and a wait ends by the event that came."""
        rows = self._fetch(
            "SELECT e.id::text, e.lease_token, e.state, s.claim, s.node_id, s.outcome FROM entries e"
            " JOIN entry_steps s ON s.org_id = e.org_id AND s.entry_id = e.id WHERE e.org_id = %s"
            " ORDER BY e.id, s.claim, s.step"
        )
        passed = Counter((entry, node, outcome) for entry, _, _, _, node, outcome in rows if outcome in ONCE)
        yield from (f"entry {key[0]} passed node {key[1]} {n} times" for key, n in passed.items() if n > 1)
        last = {entry: (token, claim) for entry, token, state, claim, *_ in rows if state == "completed"}
        for entry, (token_, claim) in last.items():
            if token_ != claim:
                yield f"entry {entry} was completed under claim {claim}, but claim {token_} held it"
        counted = sum(outcome == "updated" for *_, outcome in rows)
        (count,) = self._fetch("SELECT coalesce((max(attributes ->> 'count'))::int, 0) FROM contacts WHERE org_id = %s")
        if count[0] != counted:
            yield f"the counter is {count[0]} after {counted} steps"
        lost = self._fetch(
            "SELECT DISTINCT d.idempotency_key, b.idempotency_key"
            " FROM entries e JOIN events d ON d.org_id = e.org_id AND d.id = e.event_id"
            " JOIN entry_steps w ON w.org_id = e.org_id AND w.entry_id = e.id AND w.node_id = 'w'"
            " AND w.outcome = 'waiting'"
            " JOIN entry_transitions t ON t.org_id = e.org_id AND t.entry_id = e.id AND t.to_state = 'completed'"
            " JOIN events b ON b.org_id = e.org_id AND b.contact_id = e.contact_id AND b.event = 'bought'"
            " WHERE e.org_id = %s AND t.at > b.created_at + make_interval(secs => %s)"
            " AND (b.created_at > w.at OR (b.created_at = e.event_created_at AND b.id > e.event_id))",
            WAIT_S / 2,
        )
        yield from (f"the entry of {started} waited although {awaited} had come" for started, awaited in lost)

    def _of_messages(self) -> Iterator[str]:
        sent = Counter(request.headers["webhook-id"] for request in self._world.endpoint.requests)
        rows = self._fetch(
            "SELECT m.id::text, m.status, count(t) FROM messages m LEFT JOIN entry_transitions t ON t.org_id = m.org_id"
            " AND t.entry_id = m.entry_id AND t.to_state = 'running' WHERE m.org_id = %s GROUP BY m.id, m.status"
        )
        for message_id, state, claims in rows:
            number = sum(count for key, count in sent.items() if message_id.replace("-", "") in key.replace("-", ""))
            if state == "sent" and not number:
                yield f"message {message_id} is recorded as sent and never left"
            if number > claims:
                yield f"message {message_id} left {number} times under {claims} claims"

    def _fetch(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._world.control.execute(query, [self.org_id, *values]).fetchall()


def _graph(world: World, nodes: list[dict[str, Any]], edges: list[str]) -> dict[str, Any]:
    """Return a graph in JSON; an edge is "source-target" or "source-target-handle"."""
    parts = [edge.split("-") for edge in edges]
    return {
        "nodes": [node if node is not HOOK else node | {"data": {"url": world.endpoint.url()}} for node in nodes],
        "edges": [
            {"source": source, "target": target, "sourceHandle": handle[0] if handle else None}
            for source, target, *handle in parts
        ],
        "settings": {},
    }


class _GatedSender:
    """Sends webhooks on real sockets, after a gate."""

    is_local = False

    def __init__(self, schedule: Schedule, sender: WebhookSender) -> None:
        self._schedule, self._sender = schedule, sender

    async def send(self, delivery: Delivery, now: datetime, may_leave: MayLeave = always) -> Outcome:
        outcome: Outcome = Retry("unreachable")
        async with self._schedule.effect("send a webhook") as fault:
            if fault is not Fault.REQUEST_LOST:
                outcome = await self._sender.send(delivery, now, may_leave)
        return Unknown("no_answer") if fault is Fault.ANSWER_LOST else outcome

    async def close(self) -> None:
        """Do nothing: all engines share the sender."""


class _Listener(Listener):
    """Is woken by the schedule, not by a connection."""

    async def listen(self) -> None:
        await asyncio.Event().wait()


class _EngineLoop(Engine):
    """An engine without heartbeats: their round trips would only lengthen a schedule."""

    async def _send_heartbeats(self) -> None:
        await asyncio.Event().wait()
