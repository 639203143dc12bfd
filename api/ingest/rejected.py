"""Notices: a record of events that are not stored (rejected ones and duplicates), so that customers can find them.
Misspelt fields of accepted events are counted by key, in the same way.

Best effort by design: no response waits for a notice and no event depends on one. `note_*` appends to a buffer of this
process; twice a second the buffer is redacted and written with one statement, on the ordinary connections of the
database. Each organization has a share of the buffer, so a flood of one pushes out only its own notices. While the
database is down, the newest notices wait. Notices that do not fit are dropped and counted; those of a killed process
are lost.

A rejected event may have any value anywhere, so only keys and JSON types of its body are stored. Name, idempotency key,
`occurredAt` and `test` stay readable, because developers search by them; email addresses in them are masked, and long
texts cut.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter, deque
from typing import Any, TypeAlias

import msgspec

from api.clock import Clock, monotonic_ns, uuid7
from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, Outcome, ParsedEvent, Rejected
from api.process import Tally
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError
from api.store.events import add_notices, count_misspelt
from workbench.language.codec import Json, MalformedJsonError, decode, encode, replace_lone_surrogates, truncate_depth
from workbench.language.problem import Problem, Problems

ORG_SHARE = 100  # notices of one organization in the buffer, and in one flush
MAX_NOTICES = 2_000
MAX_BODY_BYTES = 32_768  # twice a valid payload; of a larger body only the reason is kept
MAX_BUFFERED_BYTES = 8_388_608
FLUSH_INTERVAL_S = 0.5
RETRY_INTERVAL_S = 5.0
LOG_INTERVAL_S = 60
_YIELD_AFTER_NOTICES = 16  # redacting 16 takes a few milliseconds at most

MAX_EXCERPT_BYTES = 2_048  # in the form in which Postgres writes jsonb
_MAX_TEXT_CHARACTERS = 128
_MAX_ARRAY_ITEMS = 3
_READABLE_FIELDS = frozenset({"event", "idempotencyKey", "occurredAt", "test"})
_WHITESPACE = re.compile(r"(\s+)")
_ELLIPSIS = "…"
_CONTAINER_BYTES = len('{"...": "1234567 more"}, ')
_MEMBER_BYTES = len(': "boolean", ')

_CONTRACT_FIELDS = frozenset(
    {"event", "contact", "contact.email", "contact.walletAddress", "contact.externalId", "attributes", "payload"}
    | {"occurredAt", "idempotencyKey", "test", "events"}
)

_log = logging.getLogger("workbench.notices")


class Excerpt(msgspec.Struct, frozen=True):
    """The part of a body that may be stored, as text and JSON text; all None if the body is not JSON."""

    event: str | None = None
    idempotency_key: str | None = None
    body: str | None = None


class _Notice(msgspec.Struct, frozen=True):
    """A rejected event (`problem` is set) or a duplicate: its excerpt, or the raw body to take one from."""

    received_us: int
    problem: Problem | None
    excerpt: Excerpt = Excerpt()
    raw: bytes = b""


_Shares: TypeAlias = dict[int, deque[_Notice]]


class Notices:
    """The notices of one API process. `dropped` counts those that were lost, `refused` the rejected events by field."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self.dropped = 0
        self.refused = Tally("field")
        self._database = database
        self._clock = clock
        self._shares: _Shares = {}
        self._misspelt: dict[int, Counter[tuple[str, str]]] = {}  # by organization: key id and field
        self._waiting = 0
        self._bytes = 0
        self._stopped = asyncio.Event()
        self._flusher: asyncio.Task[None] | None = None
        self._dropped_logged = 0
        self._next_log_ns = 0

    async def start(self) -> None:
        self._flusher = asyncio.create_task(self._flush_until_stopped())

    async def stop(self) -> None:
        """Write what is buffered, then stop."""
        self._stopped.set()
        if self._flusher is not None:
            await self._flusher

    def note_rejected(self, org_id: int, raw: bytes, problems: Problems) -> None:
        """Note that a body was rejected. Only the first problem is kept."""
        fits = len(raw) <= MAX_BODY_BYTES and self._bytes + len(raw) <= MAX_BUFFERED_BYTES
        self._note(org_id, _Notice(self._clock.now_us(), problems[0], raw=raw if fits else b""))

    def note_outcome(self, event: ParsedEvent, outcome: Outcome, key_id: str | None) -> None:
        """Note a valid event that is a duplicate, or that the database rejected; count misspelt fields of a new one."""
        match outcome:
            case Duplicate() | DryRun(deduplicated=True):
                problem = None
            case Rejected(problems=problems):
                problem = problems[0]
            case AcceptedEvent() | DryRun() if key_id is not None:
                self.note_misspelt(event.org_id, key_id, event.body.warnings)
                return
            case _:
                return
        excerpt = Excerpt(event.body.name, event.idempotency_key)
        self._note(event.org_id, _Notice(self._clock.now_us(), problem, excerpt))

    def note_misspelt(self, org_id: int, key_id: str, warnings: Problems) -> None:
        """Count misspelt fields of an accepted event."""
        counts = self._misspelt.setdefault(org_id, Counter())
        for warning in warnings:
            pair = key_id, readable(warning.field)
            if pair in counts or len(counts) < ORG_SHARE:
                counts[pair] += 1
            else:
                self.dropped += 1

    def _note(self, org_id: int, notice: _Notice) -> None:
        if notice.problem is not None:
            # A path may contain a key that the sender chose, and labels of a metric must be few.
            field = notice.problem.field
            fields = (field, field.partition(".")[0])
            self.refused.add(next((field for field in fields if field in _CONTRACT_FIELDS), "body"))
        self._buffer(org_id, notice)

    def _buffer(self, org_id: int, notice: _Notice) -> None:
        share = self._shares.get(org_id)
        if share is None:
            share = self._shares[org_id] = deque()
        share.append(notice)
        self._waiting += 1
        self._bytes += len(notice.raw)
        if len(share) > ORG_SHARE or self._waiting > MAX_NOTICES:
            self._waiting -= 1
            self._bytes -= len(share.popleft().raw)
            self.dropped += 1

    async def _flush_until_stopped(self) -> None:
        failure: str | None = None
        stopped = False
        while not stopped:
            with contextlib.suppress(TimeoutError):
                interval_s = FLUSH_INTERVAL_S if failure is None else RETRY_INTERVAL_S
                await asyncio.wait_for(self._stopped.wait(), interval_s)
            stopped = self._stopped.is_set()
            failure = await self._flush()
            newly_dropped = self.dropped - self._dropped_logged
            if (newly_dropped or failure) and monotonic_ns() >= self._next_log_ns:
                extra = {"dropped": newly_dropped, "waiting": self._waiting, "reason": failure}
                _log.warning("notices_behind", extra=extra)
                self._dropped_logged = self.dropped
                self._next_log_ns = monotonic_ns() + LOG_INTERVAL_S * 1_000_000_000

    async def _flush(self) -> str | None:
        """Write the buffer; return the reason if it could not be written and is retained."""
        shares, waiting = self._take_all()
        misspelt, self._misspelt = self._misspelt, {}
        try:
            rows = await self._redact(shares)
            # Sorted, so that two processes never wait for each other.
            counts = sorted((org_id, *pair, count) for org_id, own in misspelt.items() for pair, count in own.items())
            if rows or counts:
                async with self._database.transaction() as tx:
                    if rows:
                        await add_notices(tx, *zip(*rows, strict=True))
                    if counts:
                        await count_misspelt(tx, self._clock.now(), *zip(*counts, strict=True))
        except (DatabaseUnavailableError, TransactionConflictError) as error:
            newer, _ = self._take_all()
            for retained in (shares, newer):  # in this order: if they do not all fit, the oldest are dropped
                for org_id, share in retained.items():
                    for notice in share:
                        self._buffer(org_id, notice)
            for org_id, own in misspelt.items():
                self._misspelt.setdefault(org_id, Counter()).update(own)
            return str(error)
        except Exception:  # noqa: BLE001  a bug may lose these notices, but not later ones
            _log.exception("notices_failed", extra={"notices": waiting})
            self.dropped += waiting
        return None

    def _take_all(self) -> tuple[_Shares, int]:
        taken = self._shares, self._waiting
        self._shares, self._waiting, self._bytes = {}, 0, 0
        return taken

    async def _redact(self, shares: _Shares) -> list[tuple[Any, ...]]:
        """Return the rows to store, with the columns of `add_notices`."""
        rows: list[tuple[Any, ...]] = []
        for org_id, share in shares.items():
            for notice in share:
                if len(rows) % _YIELD_AFTER_NOTICES == 0:
                    await asyncio.sleep(0)
                fields, problem = excerpt(notice.raw) if notice.raw else notice.excerpt, notice.problem
                outcome, field, reason = "deduplicated", None, None
                if problem is not None:
                    outcome, field, reason = "rejected", readable(problem.field) or None, problem.reason
                identity = org_id, uuid7(self._clock.unique_now_us()), outcome, fields.event, fields.idempotency_key
                rows.append((*identity, field, reason, fields.body, notice.received_us))
        return rows


Shape: TypeAlias = "dict[str, Shape] | list[Shape] | str | bool"  # JSON with types in place of scalars


def excerpt(raw: bytes) -> Excerpt:
    """Return the part of an event's JSON text that may be stored."""
    text = replace_lone_surrogates(raw)
    try:
        value: Json = decode(text)
    except MalformedJsonError:
        try:
            value = decode(truncate_depth(text))
        except MalformedJsonError:
            return Excerpt()
    room = _Room(MAX_EXCERPT_BYTES - _CONTAINER_BYTES)
    if not isinstance(value, dict):
        return Excerpt(body=encode(_shape(value, room)).decode())
    body = encode(_object(value, room, _READABLE_FIELDS)).decode()
    name, key = value.get("event"), value.get("idempotencyKey")
    return Excerpt(
        readable(name) if isinstance(name, str) else None, readable(key) if isinstance(key, str) else None, body
    )


def readable(text: str) -> str:
    """Return a text without U+0000, with words that contain an `@` masked, cut after 128 characters."""
    clean = text.replace("\0", "\ufffd")
    if "@" in clean:
        clean = "".join("•••" if "@" in word else word for word in _WHITESPACE.split(clean))
    return clean if len(clean) <= _MAX_TEXT_CHARACTERS else clean[:_MAX_TEXT_CHARACTERS] + _ELLIPSIS


class _Room:
    """The number of bytes that an excerpt may still take."""

    def __init__(self, left: int) -> None:
        self._left = left

    def take(self, size: int) -> bool:
        if size > self._left:
            return False
        self._left -= size
        return True


def _shape(value: Json, room: _Room) -> Shape:
    match value:
        case dict():
            return _object(value, room) if room.take(_CONTAINER_BYTES) else "object"
        case list():
            if not room.take(_CONTAINER_BYTES):
                return "array"
            elements: list[Shape] = []
            for position, element in enumerate(value):
                if position == _MAX_ARRAY_ITEMS or not room.take(_MEMBER_BYTES):
                    return [*elements, f"{len(value) - position} more"]
                elements.append(_shape(element, room))
            return elements
        case str():
            return "string"
        case bool():
            return "boolean"
        case None:
            return "null"
        case _:
            return "number"


def _object(members: dict[str, Json], room: _Room, readable_fields: frozenset[str] = frozenset()) -> Shape:
    shape: dict[str, Shape] = {}
    for position, (key, value) in enumerate(members.items()):
        name = readable(key)
        if not room.take(len(encode(name)) + _MEMBER_BYTES):
            shape[_ELLIPSIS] = f"{len(members) - position} more"
            break
        if key in readable_fields and isinstance(value, bool):
            shape[name] = value
        elif key in readable_fields and isinstance(value, str) and room.take(len(encode(text := readable(value)))):
            shape[name] = text
        else:
            shape[name] = _shape(value, room)
    return shape
