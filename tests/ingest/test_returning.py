"""What an import remembers of people holds until somebody writes: others at any moment, or the import itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from itertools import count
from typing import NamedTuple

import pytest

from api.clock import to_us
from api.ingest.months import Months
from api.ingest.past import MovedError, Past
from api.ingest.past_arrival import PastEvents, PastReader, Person
from api.ingest.returning import Memory
from api.language.codec import encode
from api.language.problem import Problems
from api.store.database import Database
from api.store.history import Snapshot
from tests.ingest.conftest import Org, event, store_past

ANN = {"wallet": "w1", "email": "ann@example.com"}
BEN = {"wallet": "w2", "email": "ann@example.com"}  # takes the address over, once he is known by his wallet


class Import:
    """An import of an organization, transaction by transaction."""

    def __init__(self, org: Org, database: Database) -> None:
        self._org, self._database = org, database
        self._past = Past(org.id, Memory(org.id), most_locks=1_000)
        self._reader, self._numbers = PastReader(org.id, org.keys), count()
        self.moved = 0  # transactions that had stored an event ahead of its turn, with what was no longer its contact

    async def store(self, **who: str) -> "Stored":
        """Store one event of somebody in a transaction of its own."""
        key = f"k{next(self._numbers)}"
        sent = event(key, occurredAt="2025-03-04T05:06:07Z", **who)
        events, problems = self._reader.read([encode(sent)], self._org.intake.clock.now_us())
        assert not problems
        at = self._org.intake.clock.now()
        await self._store(events, at)
        where = f"events WHERE idempotency_key = '{key}' AND org_id = {self._org.id}"
        ((contact_id,),) = await self._org.intake.rows(f"SELECT contact_id::text FROM {where}")
        return Stored(events.people[0], contact_id)

    async def store_together(self, *people: dict[str, str]) -> list[Person]:
        """Store an event of each in one transaction; return what is remembered of them."""
        at = self._org.intake.clock.now()
        events, problems = self._read(*people)
        assert not problems
        await self._store(events, at)
        return events.people

    def read(self, *people: dict[str, str]) -> list[Person]:
        """Read one event of each; return who they are taken for."""
        return self._read(*people)[0].people

    def _read(self, *people: dict[str, str]) -> tuple[PastEvents, dict[int, Problems]]:
        sent = [event(f"k{next(self._numbers)}", occurredAt="2025-03-04T05:06:07Z", **who) for who in people]
        return self._reader.read(list(map(encode, sent)), self._org.intake.clock.now_us())

    async def _store(self, events: PastEvents, at: datetime) -> None:
        """Store events ahead of their turn if that is possible."""
        try:
            async with self._database.transaction() as tx:
                piece = await store_past(tx, self._past, events, at, ahead=True)
        except MovedError:
            self.moved += 1
            async with self._database.transaction() as tx:
                piece = await store_past(tx, self._past, events, at)
        self._past.memory.keep(piece.new, at)

    async def add_month(self, text: str) -> None:
        """Make sure that the month of a moment has its partition."""
        ids = await Months(self._database).add([to_us(datetime.fromisoformat(text))])
        self._past.memory.own(ids)

    async def meet(self, **who: str) -> "Stored":
        """Store events of somebody until they are remembered."""
        await self.store(**who)
        return await self.store(**who)


class Stored(NamedTuple):
    """Whom a stored event is about."""

    person: Person
    contact_id: str


@pytest.fixture
async def importing(acme: Org) -> AsyncIterator[Import]:
    database = Database(acme.intake.dsn, size=1, hot=True)
    await database.open()
    yield Import(acme, database)
    await database.close()


async def test_a_new_contact_is_remembered_as_the_store_has_it(acme: Org, importing: Import) -> None:
    ann = await importing.store(**ANN)
    assert ann.person.contact_id == ann.contact_id
    await acme.send(event(external_id="nobody we know"))
    again = await importing.store(**ANN)
    assert again.person is ann.person
    assert again.contact_id == ann.contact_id


async def test_who_seems_to_be_new_is_stored_ahead_under_the_id_of_the_contact_to_come(importing: Import) -> None:
    person, *_ = importing.read(ANN)
    meant = person.new_id
    ann = await importing.store(**ANN)
    assert (ann.contact_id, importing.moved) == (meant, 0)
    assert ann.person.new_id == ""  # should the contact be erased, nobody gets its id again


async def test_of_two_who_share_an_identifier_only_the_first_seems_to_be_new(acme: Org, importing: Import) -> None:
    ann, address = await importing.store_together(ANN, {"email": ANN["email"]})
    assert ann.contact_id
    assert importing.moved == 0
    assert address.new_id == ""
    assert len(await acme.contacts()) == 1


async def test_once_somebody_who_seemed_to_be_new_is_known_nobody_seems_to_be(acme: Org, importing: Import) -> None:
    await acme.send(event(**ANN), event(external_id="cleo"))
    await importing.store(**ANN)
    assert importing.moved == 1
    await importing.store(external_id="cleo")
    assert importing.moved == 1
    assert len(await acme.contacts()) == 2


async def test_a_new_contact_that_lost_its_address_at_once_is_not_remembered_with_it(importing: Import) -> None:
    await importing.store(wallet=BEN["wallet"])
    ann, _ = await importing.store_together(ANN, BEN)
    assert not ann.contact_id


@pytest.mark.plain
async def test_while_nobody_else_writes_the_store_is_not_asked_again(importing: Import) -> None:
    async def nothing(_: int) -> None:
        """Do nothing."""

    assert await stays_known(importing, nothing)


async def test_when_somebody_else_wrote_the_store_is_asked_again(acme: Org, importing: Import) -> None:
    met = (await importing.meet(**ANN)).person.known_in
    await acme.send(event(external_id="nobody we know"))
    assert (await importing.store(**ANN)).person.known_in > met


async def test_an_address_that_moved_meanwhile_is_found_where_it_is(acme: Org, importing: Import) -> None:
    ann = await importing.meet(**ANN)
    found = await importing.meet(email=ANN["email"])
    assert found.contact_id == ann.contact_id
    await acme.send(event(wallet=BEN["wallet"]), event(**BEN))
    assert (await importing.store(email=ANN["email"])).contact_id != ann.contact_id
    assert importing.moved == 1
    assert [each.get("email") for each in await acme.contacts()] == [None, ANN["email"]]  # by wallet


async def test_an_address_that_the_import_moved_itself_comes_back_with_its_wallet(acme: Org, importing: Import) -> None:
    await importing.store(wallet=BEN["wallet"])
    ann = await importing.meet(**ANN)
    await importing.store(**BEN)
    assert (
        await importing.store(wallet=ANN["wallet"])
    ).contact_id == ann.contact_id  # which is known anew, without the address
    assert (await importing.store(**ANN)).contact_id == ann.contact_id
    assert [each.get("email") for each in await acme.contacts()] == [ANN["email"], None]


@pytest.mark.plain
async def test_a_month_that_the_import_adds_is_no_reason_to_doubt(importing: Import) -> None:
    async def add(time: int) -> None:
        await importing.add_month(f"{1995 + time}-05-06T00:00:00+00:00")  # too old for one of its own
        await importing.add_month(f"{2012 + time}-05-06T00:00:00+00:00")
        await importing.add_month(f"{2012 + time}-05-07T00:00:00+00:00")

    assert await stays_known(importing, add)


@pytest.mark.plain
async def test_whoever_only_reads_is_no_reason_to_doubt(acme: Org, importing: Import) -> None:
    async def read(_: int) -> None:
        assert await acme.contacts()

    assert await stays_known(importing, read)


async def stays_known(importing: Import, act: Callable[[int], Awaitable[None]]) -> bool:
    """Tell whether, in one of five tries, the store was not asked again for whom it met before an act: autovacuum writes, too."""
    for time in range(5):
        who = {"wallet": f"w{time}"}
        met = (await importing.meet(**who)).person.known_in
        await act(time)
        if (await importing.store(**who)).person.known_in == met:
            return True
    return False


@pytest.mark.parametrize(
    ("now", "own", "alone"),
    [
        (Snapshot(10, frozenset()), {9}, True),  # nothing ended since but our own
        (Snapshot(12, frozenset()), {10, 11}, True),
        (Snapshot(12, frozenset()), {10}, False),
        (Snapshot(12, frozenset({11})), {10}, True),  # the other one still runs
        (Snapshot(1_000_000_000, frozenset()), {10}, False),
    ],
)
def test_a_snapshot_tells_who_ended_since_another(now: Snapshot, own: set[int], alone: bool) -> None:
    assert now.only(own, Snapshot(10, frozenset())) is alone


def test_whoever_ran_when_the_first_snapshot_was_taken_and_runs_no_more_has_ended() -> None:
    earlier = Snapshot(10, frozenset({7}))
    assert Snapshot(10, frozenset({7})).only(set(), earlier)
    assert not Snapshot(10, frozenset()).only(set(), earlier)
