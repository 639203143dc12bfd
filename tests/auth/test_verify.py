import asyncio
import functools
import string
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from random import Random

import psycopg
import pytest

from api.auth import keys, verify
from api.auth.key_format import RANDOM_BYTES, make
from api.auth.verify import Principal, Unauthorized, Verifier
from api.clock import Clock, token
from api.crypto import Keyring
from api.store.database import Database, DatabaseUnavailableError, Transaction

DIGITS = string.digits + string.ascii_uppercase + string.ascii_lowercase


class MovableClock(Clock):
    """The clock, moved ahead by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = timedelta()

    def now(self) -> datetime:
        return super().now() + self.ahead


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


class CountingDatabase(Database):
    """The database, with a count of its transactions."""

    begun = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        self.begun += 1
        async with super().transaction() as tx:
            yield tx


@pytest.fixture
async def counting(database_url: str) -> AsyncIterator[CountingDatabase]:
    database = CountingDatabase(database_url, size=2)
    await database.open()
    yield database
    await database.close()


@pytest.fixture
async def verifier(counting: CountingDatabase, keyring: Keyring, clock: MovableClock) -> AsyncIterator[Verifier]:
    made = Verifier(counting, keyring, clock)
    yield made
    await made.close()


async def test_a_live_key_authenticates_its_organization(
    verifier: Verifier, database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    [row] = await keys.list_keys(database_url, org)
    scopes = frozenset({"ingest", "events:read"})
    expected = Principal(row.org_id, "acme", row.id, "live", scopes, test=False)
    assert await verifier.principal([f"Bearer {key}"]) == expected
    assert await verifier.principal([f"bEARER {key}"]) == expected


async def test_a_test_key_is_marked_as_one(verifier: Verifier, database_url: str, keyring: Keyring, org: str) -> None:
    key = await keys.create(database_url, keyring, org, "test")
    principal = await verifier.principal([f"Bearer {key}"])
    assert isinstance(principal, Principal)
    assert principal.test


KEY = make("live", "", bytes(RANDOM_BYTES))


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ([], "missing"),
        ([f"Bearer {KEY}", f"Bearer {KEY}"], "several"),
        ([""], "malformed"),
        (["Bearer"], "malformed"),
        (["Bearer "], "malformed"),
        ([KEY], "malformed"),
        ([f"Token {KEY}"], "malformed"),
        ([f"Basic {KEY}"], "malformed"),
        ([f"Bearer  {KEY}"], "malformed"),
        ([f"Bearer {KEY} "], "malformed"),
        ([f" Bearer {KEY}"], "malformed"),
        ([f"Bearer {KEY},Bearer {KEY}"], "malformed"),
        ([f"Bearer {KEY[:-1]}{'a' if KEY[-1] != 'a' else 'b'}"], "malformed"),
        ([f"Bearer {make('publishable', 'acme', bytes(RANDOM_BYTES))}"], "wrong_kind"),
    ],
)
async def test_an_invalid_bearer_header_is_refused_without_the_database(
    headers: list[str], reason: str, keyring: Keyring
) -> None:
    nowhere = Verifier(Database("postgresql://nobody@/nowhere?host=/nonexistent"), keyring, Clock())
    assert await nowhere.principal(headers) == Unauthorized(reason)  # type: ignore[arg-type]


async def test_a_publishable_key_is_accepted_only_where_it_is_required(
    verifier: Verifier, database_url: str, keyring: Keyring, org: str
) -> None:
    header = [f"Bearer {await keys.create(database_url, keyring, org, 'publishable')}"]
    assert await verifier.principal(header) == Unauthorized("wrong_kind")
    principal = await verifier.principal(header, kinds=frozenset({"publishable"}))
    assert isinstance(principal, Principal)
    assert principal.scopes == frozenset()


async def test_a_repeated_bad_key_is_looked_up_once(verifier: Verifier, counting: CountingDatabase) -> None:
    header = [f"Bearer {make('live', '', token(RANDOM_BYTES))}"]
    for _ in range(50):
        assert await verifier.principal(header) == Unauthorized("unknown")
    assert counting.begun == 1


async def test_a_storm_of_different_keys_shares_its_lookups(verifier: Verifier, counting: CountingDatabase) -> None:
    storm = [verifier.principal([f"Bearer {make('live', '', token(RANDOM_BYTES))}"]) for _ in range(10_000)]
    assert set(await asyncio.gather(*storm)) == {Unauthorized("unknown")}
    assert counting.begun <= 40


async def test_a_revoked_key_is_refused_after_its_two_seconds_in_the_cache(
    verifier: Verifier, database_url: str, keyring: Keyring, org: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    assert isinstance(await verifier.principal([f"Bearer {key}"]), Principal)
    await keys.revoke(database_url, keyring, key)
    now = verify.monotonic_ns()
    monkeypatch.setattr(verify, "monotonic_ns", lambda: now + 2_000_000_001)
    assert await verifier.principal([f"Bearer {key}"]) == Unauthorized("revoked")


async def test_a_rolled_key_works_until_its_overlap_ends_even_from_the_cache(
    verifier: Verifier, clock: MovableClock, database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    await keys.roll(database_url, keyring, key, overlap=timedelta(minutes=1))
    assert isinstance(await verifier.principal([f"Bearer {key}"]), Principal)
    clock.ahead = timedelta(minutes=1, seconds=1)
    assert await verifier.principal([f"Bearer {key}"]) == Unauthorized("expired")


async def test_use_is_recorded_once_a_minute_outside_the_request(
    verifier: Verifier, counting: CountingDatabase, database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    for _ in range(20):
        await verifier.principal([f"Bearer {key}"])
    await verifier.close()
    [row] = await keys.list_keys(database_url, org)
    assert row.last_used_at is not None
    assert counting.begun == 2  # one lookup, one write of the last use


async def test_a_use_that_could_not_be_recorded_is_recorded_the_next_time(
    database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    database = Database(database_url, size=1, lock_ms=50)
    verifier = Verifier(database, keyring, Clock())
    await database.open()
    with psycopg.connect(database_url) as connection:
        connection.execute("SELECT FROM workbench.api_keys FOR UPDATE")
        await verifier.principal([f"Bearer {key}"])
        await verifier.close()
    await verifier.principal([f"Bearer {key}"])
    await verifier.close()
    await database.close()
    [row] = await keys.list_keys(database_url, org)
    assert row.last_used_at is not None


async def test_a_key_that_cannot_be_looked_up_is_neither_accepted_nor_refused_and_not_remembered(
    database_url: str, keyring: Keyring, org: str
) -> None:
    key = await keys.create(database_url, keyring, org, "live")
    database = Database(database_url, size=1)
    verifier = Verifier(database, keyring, Clock())
    await database.open()
    with psycopg.connect(database_url) as connection:
        connection.execute("ALTER TABLE workbench.api_keys RENAME TO hidden")  # holds its lock until the end
        with pytest.raises(DatabaseUnavailableError):
            await verifier.principal([f"Bearer {key}"])
        connection.rollback()
    assert isinstance(await verifier.principal([f"Bearer {key}"]), Principal)
    await verifier.close()
    await database.close()


async def test_f10_a_key_that_is_nearly_right_takes_no_longer_than_any_other(
    verifier: Verifier, database_url: str, keyring: Keyring, org: str
) -> None:
    """In pairs in random order, each key is slower about half the time; noise favours neither side."""
    right = await keys.create(database_url, keyring, org, "live")
    number = functools.reduce(lambda sum_, digit: sum_ * 62 + DIGITS.index(digit), right[8:-6], 0)
    chance, near_was_slower, pairs = Random(0), 0, 1_000
    for step in range(1, pairs + 1):
        wrong = {"near": (number ^ step).to_bytes(RANDOM_BYTES), "far": token(RANDOM_BYTES)}
        took = {}
        for name in chance.sample(sorted(wrong), 2):
            header = f"Bearer {make('live', org, wrong[name])}"
            since = time.perf_counter_ns()
            assert isinstance(await verifier.principal([header]), Unauthorized)
            took[name] = time.perf_counter_ns() - since
        near_was_slower += took["near"] > took["far"]
    assert 0.4 < near_was_slower / pairs < 0.6  # six standard deviations
