"""Who sent this request: the `Authorization` header read strictly, the key looked up by its hash, and remembered briefly.

A valid key is believed for two seconds, so a revocation is felt everywhere within five. A key that does not exist cannot
come into being later (it is 190 bits of chance), so refusals are remembered longer, in a bounded table. Lookups never
pile up: while one statement is under way the next hashes gather and go together in one.
"""

import asyncio
import hmac
import re
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

import msgspec

from api.access.format import Kind, parse
from api.clock import Clock, monotonic_ns
from api.keyring import Keyring
from api.store import access as store
from api.store.access import KeyRow
from api.store.database import ConflictError, Database, UnavailableError

Reason = Literal["missing", "several", "malformed", "wrong_kind", "unknown", "revoked", "expired"]

SECRET_KINDS: frozenset[Kind] = frozenset({"live", "test", "workbench"})
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([!-~]{1,128})", re.ASCII)
_VALID_NS = 2_000_000_000
_INVALID_NS = 60_000_000_000
_TOUCH_NS = 60_000_000_000
_REMEMBERED = 20_000
_LOOKUP_SIZE = 500
_PATIENCE_SECONDS = 1.8


class Principal(msgspec.Struct, frozen=True):
    """Whom a request speaks for; `test` when all it does is a dry run."""

    org_id: int
    org_name: str
    key_id: str
    kind: Kind
    scopes: frozenset[str]
    test: bool


class Unauthorized(msgspec.Struct, frozen=True):
    """A refusal; the reason is for logs and counters, callers all get the same 401."""

    reason: Reason


class _Entry(msgspec.Struct, frozen=True):
    """What is remembered of a key: its row, or None when there is none, until a monotonic moment."""

    row: KeyRow | None
    until_ns: int


class Verifier:
    """Checks the keys of one process's requests. Close it before its database."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._believed: dict[str, tuple[Principal, int]] = {}
        self._asked: dict[bytes, asyncio.Future[KeyRow | None]] = {}
        self._lookup: asyncio.Task[None] | None = None
        self._touched_ns: OrderedDict[str, int] = OrderedDict()
        self._touches: set[asyncio.Task[None]] = set()

    async def principal(
        self, header_values: Sequence[str], kinds: frozenset[Kind] = SECRET_KINDS
    ) -> Principal | Unauthorized:
        """Return whom the `Authorization` headers speak for; raise UnavailableError when the database must be asked and is away."""
        key = _bearer(header_values)
        if isinstance(key, Unauthorized):
            return key
        kind = parse(key)
        if kind is None:
            return Unauthorized("malformed")
        if kind not in kinds:
            return Unauthorized("wrong_kind")
        row, key_hash = await self._found(key)
        if row is None or not hmac.compare_digest(row.key_hash, key_hash):
            return Unauthorized("unknown")
        ends = row.revoked_at is not None or row.expires_at is not None
        if ends and (refusal := _ended(row, self._clock.now())) is not None:
            return refusal
        self._touch(row)
        principal = _principal(row, kind)
        if not ends:
            self._believe(header_values[0], principal, key_hash)
        return principal

    def believed(self, header_value: str) -> Principal | None:
        """Return whom a secret key's header speaks for, if that was found out within the last two seconds."""
        principal, until_ns = self._believed.get(header_value, (None, 0))
        return principal if monotonic_ns() < until_ns else None

    def _believe(self, header_value: str, principal: Principal, key_hash: bytes) -> None:
        if len(self._believed) >= _REMEMBERED:
            self._believed.clear()
        entry = self._entries.get(key_hash)
        if entry is not None and principal.kind in SECRET_KINDS:
            self._believed[header_value] = principal, entry.until_ns

    async def close(self) -> None:
        """Wait for what still writes."""
        pending = [task for task in (self._lookup, *self._touches) if task is not None]
        await asyncio.gather(*pending, return_exceptions=True)

    async def _found(self, key: str) -> tuple[KeyRow | None, bytes]:
        """Return the row of a key, and the hash that it was found by, or the last one tried."""
        row, key_hash = None, b""
        for key_hash in self._keyring.api_key_hashes(key):
            if (row := await self._row(key_hash)) is not None:
                break
        return row, key_hash

    async def _row(self, key_hash: bytes) -> KeyRow | None:
        entry = self._entries.get(key_hash)
        if entry is not None and monotonic_ns() < entry.until_ns:
            return entry.row
        answer = self._asked.get(key_hash)
        if answer is None:
            answer = self._asked[key_hash] = asyncio.get_running_loop().create_future()
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.create_task(self._answer())
        try:
            return await asyncio.wait_for(
                asyncio.shield(answer), _PATIENCE_SECONDS
            )  # others may wait for the same answer
        except TimeoutError:
            raise UnavailableError("the database takes too long") from None

    async def _answer(self) -> None:
        """Look up all that was asked, one statement at a time, until nothing is."""
        while self._asked:
            hashes = list(self._asked)[:_LOOKUP_SIZE]
            try:
                async with self._database.transaction() as tx:
                    found = {row.key_hash: row for row in await store.find_keys(tx, hashes)}
            except BaseException as error:
                self._give_up(hashes, error)
                if not isinstance(error, UnavailableError):
                    raise
                continue
            for key_hash in hashes:
                self._remember(key_hash, found.get(key_hash))
                _settle(self._asked.pop(key_hash), found.get(key_hash))

    def _give_up(self, hashes: list[bytes], error: BaseException) -> None:
        for key_hash in hashes:
            answer = self._asked.pop(key_hash)
            if not answer.done():
                answer.set_exception(
                    error if isinstance(error, Exception) else UnavailableError("the server is stopping")
                )
                answer.exception()  # who asked may be gone; then nobody needs to hear of it

    def _remember(self, key_hash: bytes, row: KeyRow | None) -> None:
        span = _INVALID_NS if row is None or row.revoked_at is not None else _VALID_NS
        self._entries.pop(key_hash, None)
        self._entries[key_hash] = _Entry(row, monotonic_ns() + span)
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)

    def _touch(self, row: KeyRow) -> None:
        last_ns = self._touched_ns.get(row.id)
        if last_ns is not None and monotonic_ns() - last_ns < _TOUCH_NS:
            return
        self._touched_ns.pop(row.id, None)
        self._touched_ns[row.id] = monotonic_ns()
        if len(self._touched_ns) > _REMEMBERED:
            self._touched_ns.popitem(last=False)
        task = asyncio.create_task(self._write_touch(row, self._clock.now()))
        self._touches.add(task)
        task.add_done_callback(self._touches.discard)

    async def _write_touch(self, row: KeyRow, now: datetime) -> None:
        try:
            async with self._database.transaction() as tx:
                await store.touch_key(tx, row.org_id, row.id, now)
        except (UnavailableError, ConflictError):
            self._touched_ns.pop(row.id, None)  # the next use tries again


def _bearer(header_values: Sequence[str]) -> str | Unauthorized:
    if not header_values:
        return Unauthorized("missing")
    if len(header_values) > 1:
        return Unauthorized("several")
    match = _BEARER.fullmatch(header_values[0])
    return match[1] if match is not None else Unauthorized("malformed")


def _ended(row: KeyRow, now: datetime) -> Unauthorized | None:
    if row.revoked_at is not None:
        return Unauthorized("revoked")
    if row.expires_at is not None and row.expires_at <= now:
        return Unauthorized("expired")
    return None


def _principal(row: KeyRow, kind: Kind) -> Principal:
    return Principal(row.org_id, row.org_name, row.id, kind, frozenset(row.scopes), test=kind == "test")


def _settle(answer: asyncio.Future[KeyRow | None], row: KeyRow | None) -> None:
    if not answer.done():
        answer.set_result(row)
