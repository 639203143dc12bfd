"""Contacts that an import caches are trusted until another writer, or the import itself, changes them."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from itertools import count
from typing import NamedTuple

import pytest

from api.clock import to_us
from api.imports.chunk import ContactChangedError, ImportTarget
from api.imports.contact_cache import ContactCache
from api.imports.importer import Partitions
from api.imports.rows import Identity, PastEvents, PastReader
from api.store.database import Database
from api.store.imports import ImportSnapshot
from tests.ingest.conftest import Org, event, store_past
from workbench.language.codec import encode
from workbench.language.problem import Problems

ANN = {"wallet": "w1", "email": "ann@example.com"}
BEN = {"wallet": "w2", "email": "ann@example.com"}  # takes over the address if the wallet belongs to a contact


class Import:
    """An import of an organization, transaction by transaction."""

    def __init__(self, org: Org, database: Database) -> None:
        self._org, self._database = org, database
        self._target = ImportTarget(org.id, ContactCache(org.id), max_locks=1_000)
        self._reader, self._numbers = PastReader(org.id, org.keys), count()
        self.moved = 0  # transactions that had stored an event early under a wrong contact

    async def store(self, **contact: str) -> "Stored":
        """Store one event of a contact in a separate transaction."""
        key = f"k{next(self._numbers)}"
        sent = event(key, occurredAt="2025-03-04T05:06:07Z", **contact)
        events, problems = self._reader.read([encode(sent)], self._org.intake.clock.now_us())
        assert not problems
        at = self._org.intake.clock.now()
        await self._store(events, at)
        source = f"events WHERE idempotency_key = '{key}' AND org_id = {self._org.id}"
        ((contact_id,),) = await self._org.intake.rows(f"SELECT contact_id::text FROM {source}")
        return Stored(events.identities[0], contact_id)

    async def store_together(self, *contacts: dict[str, str]) -> list[Identity]:
        """Store an event of each contact in one transaction; return the cached identities."""
        at = self._org.intake.clock.now()
        events, problems = self._read(*contacts)
        assert not problems
        await self._store(events, at)
        return events.identities

    def read(self, *contacts: dict[str, str]) -> list[Identity]:
        """Read one event of each contact; return the identities."""
        return self._read(*contacts)[0].identities

    def _read(self, *contacts: dict[str, str]) -> tuple[PastEvents, dict[int, Problems]]:
        sent = [event(f"k{next(self._numbers)}", occurredAt="2025-03-04T05:06:07Z", **contact) for contact in contacts]
        return self._reader.read(list(map(encode, sent)), self._org.intake.clock.now_us())

    async def _store(self, events: PastEvents, at: datetime) -> None:
        """Store events early if possible."""
        try:
            async with self._database.transaction() as tx:
                result = await store_past(tx, self._target, events, at, early=True)
        except ContactChangedError:
            self.moved += 1
            async with self._database.transaction() as tx:
                result = await store_past(tx, self._target, events, at)
        self._target.cache.add(result.new, at)

    async def add_month(self, text: str) -> None:
        """Create the partition for the month of a time."""
        ids = await Partitions(self._database).add([to_us(datetime.fromisoformat(text))])
        self._target.cache.note_own(ids)

    async def store_until_cached(self, **contact: str) -> "Stored":
        """Store events of a contact until it is cached."""
        await self.store(**contact)
        return await self.store(**contact)


class Stored(NamedTuple):
    """The identity and the contact of a stored event."""

    identity: Identity
    contact_id: str


@pytest.fixture
async def importing(acme: Org) -> AsyncIterator[Import]:
    database = Database(acme.intake.dsn, size=1, hot=True)
    await database.open()
    yield Import(acme, database)
    await database.close()


async def test_a_new_contact_is_cached_as_it_is_stored(acme: Org, importing: Import) -> None:
    ann = await importing.store(**ANN)
    assert ann.identity.contact_id == ann.contact_id
    await acme.send(event(external_id="unknown"))
    again = await importing.store(**ANN)
    assert again.identity is ann.identity
    assert again.contact_id == ann.contact_id


async def test_events_of_an_apparently_new_contact_are_stored_early_under_its_future_id(importing: Import) -> None:
    identity, *_ = importing.read(ANN)
    expected_id = identity.expected_id
    ann = await importing.store(**ANN)
    assert (ann.contact_id, importing.moved) == (expected_id, 0)
    assert ann.identity.expected_id == ""  # if the contact is erased, no other contact gets its id


async def test_of_two_identities_that_share_an_identifier_only_the_first_seems_new(
    acme: Org, importing: Import
) -> None:
    ann, address = await importing.store_together(ANN, {"email": ANN["email"]})
    assert ann.contact_id
    assert importing.moved == 0
    assert address.expected_id == ""
    assert len(await acme.contacts()) == 1


async def test_after_a_wrong_expectation_no_contact_is_expected_to_be_new(acme: Org, importing: Import) -> None:
    await acme.send(event(**ANN), event(external_id="cleo"))
    await importing.store(**ANN)
    assert importing.moved == 1
    await importing.store(external_id="cleo")
    assert importing.moved == 1
    assert len(await acme.contacts()) == 2


async def test_a_new_contact_that_loses_its_address_is_not_cached_with_it(importing: Import) -> None:
    await importing.store(wallet=BEN["wallet"])
    ann, _ = await importing.store_together(ANN, BEN)
    assert not ann.contact_id


@pytest.mark.plain
async def test_without_other_writers_contacts_are_not_looked_up_again(importing: Import) -> None:
    async def nothing(_: int) -> None:
        """Do nothing."""

    assert await stays_cached(importing, nothing)


async def test_after_another_writer_contacts_are_looked_up_again(acme: Org, importing: Import) -> None:
    checked_in = (await importing.store_until_cached(**ANN)).identity.checked_in
    await acme.send(event(external_id="unknown"))
    assert (await importing.store(**ANN)).identity.checked_in > checked_in


async def test_an_address_that_moved_meanwhile_has_its_new_owner(acme: Org, importing: Import) -> None:
    ann = await importing.store_until_cached(**ANN)
    address = await importing.store_until_cached(email=ANN["email"])
    assert address.contact_id == ann.contact_id
    await acme.send(event(wallet=BEN["wallet"]), event(**BEN))
    assert (await importing.store(email=ANN["email"])).contact_id != ann.contact_id
    assert importing.moved == 1
    assert [contact.get("email") for contact in await acme.contacts()] == [None, ANN["email"]]  # by wallet


async def test_an_address_that_the_import_moved_returns_with_its_wallet(acme: Org, importing: Import) -> None:
    await importing.store(wallet=BEN["wallet"])
    ann = await importing.store_until_cached(**ANN)
    await importing.store(**BEN)
    # Looked up again, and cached without the address.
    assert (await importing.store(wallet=ANN["wallet"])).contact_id == ann.contact_id
    assert (await importing.store(**ANN)).contact_id == ann.contact_id
    assert [contact.get("email") for contact in await acme.contacts()] == [ANN["email"], None]


@pytest.mark.plain
async def test_adding_a_partition_keeps_the_cache_valid(importing: Import) -> None:
    async def add(time: int) -> None:
        await importing.add_month(f"{1995 + time}-05-06T00:00:00+00:00")  # too old to have a partition
        await importing.add_month(f"{2012 + time}-05-06T00:00:00+00:00")
        await importing.add_month(f"{2012 + time}-05-07T00:00:00+00:00")

    assert await stays_cached(importing, add)


@pytest.mark.plain
async def test_reading_keeps_the_cache_valid(acme: Org, importing: Import) -> None:
    async def read(_: int) -> None:
        assert await acme.contacts()

    assert await stays_cached(importing, read)


async def stays_cached(importing: Import, act: Callable[[int], Awaitable[None]]) -> bool:
    """Return whether `act` left a contact cached, in one of five attempts: autovacuum writes, too."""
    for time in range(5):
        contact = {"wallet": f"w{time}"}
        checked_in = (await importing.store_until_cached(**contact)).identity.checked_in
        await act(time)
        if (await importing.store(**contact)).identity.checked_in == checked_in:
            return True
    return False


@pytest.mark.parametrize(
    ("now", "own", "alone"),
    [
        (ImportSnapshot(10, frozenset()), {9}, True),  # only transaction 9 of the import ended since
        (ImportSnapshot(12, frozenset()), {10, 11}, True),
        (ImportSnapshot(12, frozenset()), {10}, False),
        (ImportSnapshot(12, frozenset({11})), {10}, True),  # transaction 11 still runs
        (ImportSnapshot(1_000_000_000, frozenset()), {10}, False),
    ],
)
def test_a_snapshot_shows_the_transactions_that_ended_since_another(
    now: ImportSnapshot, own: set[int], alone: bool
) -> None:
    assert now.only(own, ImportSnapshot(10, frozenset())) is alone


def test_a_transaction_running_in_the_first_snapshot_but_not_in_the_second_has_ended() -> None:
    earlier = ImportSnapshot(10, frozenset({7}))
    assert ImportSnapshot(10, frozenset({7})).only(set(), earlier)
    assert not ImportSnapshot(10, frozenset()).only(set(), earlier)
