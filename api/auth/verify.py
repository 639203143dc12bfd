"""Authentication of requests: the `Authorization` header is parsed strictly, and the key looked up by its hash and
cached.

A valid key is cached for two seconds, so that a revocation takes effect everywhere within five. A key that does not
exist cannot come into existence later (it has 190 random bits), so misses are cached for a minute, in a bounded table.
Lookups are batched: hashes that arrive while one statement runs go into the next one.
"""

import asyncio
import hmac
import re
from collections import OrderedDict
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, TypeVar

import msgspec

from api.auth.key_format import Kind, parse
from api.clock import Clock, monotonic_ns
from api.crypto import Keyring
from api.store import access as store
from api.store.access import KeyRow
from api.store.database import Database, DatabaseUnavailableError, TransactionConflictError

Reason = Literal["missing", "several", "malformed", "wrong_kind", "unknown", "revoked", "expired"]

SECRET_KINDS: frozenset[Kind] = frozenset({"live", "test", "workbench"})
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] ([!-~]{1,128})", re.ASCII)
_VALID_NS = 2_000_000_000  # a revocation must take effect within 5 s
_INVALID_NS = 60_000_000_000
_TOUCH_INTERVAL_NS = 60_000_000_000  # `last_used_at` of a key is written at most once a minute
_MAX_CACHED = 20_000  # keys, so that made-up keys with a valid checksum cannot fill the memory
_LOOKUP_BATCH = 500  # hashes in one statement
_LOOKUP_TIMEOUT_S = 1.8  # a request is answered within two seconds
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Principal(msgspec.Struct, frozen=True):
    """The organization and the rights of an authenticated request.

    `test`: everything it does is a dry run. `strict`: an event with unknown fields is not valid. `key_name`: as its
    owner named the key, for display.
    """

    org_id: int
    org_name: str
    key_id: str
    kind: Kind
    scopes: frozenset[str]
    test: bool
    strict: bool = False
    key_name: str = ""


class Unauthorized(msgspec.Struct, frozen=True):
    """A refused key. The reason is for logs and counters; every client gets the same 401."""

    reason: Reason


class _CacheEntry(msgspec.Struct, frozen=True):
    """The row of a key, None if it does not exist; valid until a monotonic time."""

    row: KeyRow | None
    until_ns: int


class Verifier:
    """Authenticates the requests of one process. Close it before its database."""

    def __init__(self, database: Database, keyring: Keyring, clock: Clock) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._entries: OrderedDict[bytes, _CacheEntry] = OrderedDict()
        self._principals: dict[str, tuple[Principal, int]] = {}
        self._pending: dict[bytes, asyncio.Future[KeyRow | None]] = {}
        self._lookup: asyncio.Task[None] | None = None
        self._touched_ns: OrderedDict[str, int] = OrderedDict()
        self._touches: set[asyncio.Task[None]] = set()

    async def principal(
        self, header_values: Sequence[str], kinds: frozenset[Kind] = SECRET_KINDS
    ) -> Principal | Unauthorized:
        """Return the principal of the `Authorization` header; raise DatabaseUnavailableError if a lookup fails."""
        if not header_values:
            return Unauthorized("missing")
        if len(header_values) > 1:
            return Unauthorized("several")
        bearer = _BEARER.fullmatch(header_values[0])
        if bearer is None or (kind := parse(bearer[1])) is None:
            return Unauthorized("malformed")
        if kind not in kinds:
            return Unauthorized("wrong_kind")
        row, key_hash = None, b""
        for key_hash in self._keyring.api_key_hashes(bearer[1]):  # several during a rotation of the secret
            if (row := await self._find(key_hash)) is not None:
                break
        # The row was found by an index on the hash; this comparison does not stop at the first byte that differs.
        if row is None or not hmac.compare_digest(row.key_hash, key_hash):
            return Unauthorized("unknown")
        if row.revoked_at is not None:
            return Unauthorized("revoked")
        if row.expires_at is not None and row.expires_at <= self._clock.now():
            return Unauthorized("expired")
        self._touch(row)
        scopes = frozenset(row.scopes)
        principal = Principal(
            row.org_id, row.org_name, row.id, kind, scopes, test=kind == "test", strict=row.strict, key_name=row.name
        )
        entry = self._entries.get(key_hash)
        # A key that expires is checked on every request: its cache entry could outlive it.
        if row.expires_at is None and entry is not None and kind in SECRET_KINDS:
            if len(self._principals) >= _MAX_CACHED:
                self._principals.clear()
            self._principals[header_values[0]] = principal, entry.until_ns
        return principal

    def cached_principal(self, header_value: str) -> Principal | None:
        """Return the principal of a secret key's header if it was verified within the last two seconds."""
        principal, until_ns = self._principals.get(header_value, (None, 0))
        return principal if monotonic_ns() < until_ns else None

    async def close(self) -> None:
        """Wait for lookups and writes that are under way."""
        pending = [task for task in (self._lookup, *self._touches) if task is not None]
        await asyncio.gather(*pending, return_exceptions=True)

    async def _find(self, key_hash: bytes) -> KeyRow | None:
        entry = self._entries.get(key_hash)
        if entry is not None and monotonic_ns() < entry.until_ns:
            return entry.row
        lookup = self._pending.get(key_hash)
        if lookup is None:
            lookup = self._pending[key_hash] = asyncio.get_running_loop().create_future()
            if self._lookup is None or self._lookup.done():
                self._lookup = asyncio.create_task(self._look_up())
        try:
            # Shielded: other requests may wait for the same lookup.
            return await asyncio.wait_for(asyncio.shield(lookup), _LOOKUP_TIMEOUT_S)
        except TimeoutError:
            raise DatabaseUnavailableError("the lookup of a key takes too long") from None

    async def _look_up(self) -> None:
        """Look up pending hashes, one statement at a time, until none is left."""
        while self._pending:
            hashes = list(self._pending)[:_LOOKUP_BATCH]
            try:
                async with self._database.transaction() as tx:
                    rows = {row.key_hash: row for row in await store.find_keys(tx, hashes)}
            except BaseException as error:
                is_stopping = not isinstance(error, Exception)
                failure = DatabaseUnavailableError("the server is stopping") if is_stopping else error
                for key_hash in hashes:
                    lookup = self._pending.pop(key_hash)
                    if not lookup.done():
                        lookup.set_exception(failure)
                        lookup.exception()  # marks it as retrieved: the request that waited for it may be gone
                if not isinstance(error, DatabaseUnavailableError):
                    raise
                continue
            for key_hash in hashes:
                row = rows.get(key_hash)
                span_ns = _INVALID_NS if row is None or row.revoked_at is not None else _VALID_NS
                _store_bounded(self._entries, key_hash, _CacheEntry(row, monotonic_ns() + span_ns))
                lookup = self._pending.pop(key_hash)
                if not lookup.done():
                    lookup.set_result(row)

    def _touch(self, row: KeyRow) -> None:
        last_ns = self._touched_ns.get(row.id)
        if last_ns is not None and monotonic_ns() - last_ns < _TOUCH_INTERVAL_NS:
            return
        _store_bounded(self._touched_ns, row.id, monotonic_ns())
        # The write runs in the background, so the request does not wait for it.
        task = asyncio.create_task(self._write_touch(row, self._clock.now()))
        self._touches.add(task)
        task.add_done_callback(self._touches.discard)

    async def _write_touch(self, row: KeyRow, now: datetime) -> None:
        try:
            async with self._database.transaction() as tx:
                await store.touch_key(tx, row.org_id, row.id, now)
        except (DatabaseUnavailableError, TransactionConflictError):
            self._touched_ns.pop(row.id, None)  # the next use tries again


def _store_bounded(cache: OrderedDict[_Key, _Value], key: _Key, value: _Value) -> None:
    """Store a value; the oldest one is dropped from a full cache."""
    cache[key] = value
    cache.move_to_end(key)
    if len(cache) > _MAX_CACHED:
        cache.popitem(last=False)
