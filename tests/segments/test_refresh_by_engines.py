"""Real engine processes: one is killed while it changes members, two others take over."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from api.automations.automations import Author
from api.clock import Clock, uuid7
from api.crypto import Keyring
from api.embedded import Server
from api.query.gateway import Gateway
from api.query.limits import QuerySlots
from api.segments import segments
from api.segments.candidates import SegmentServices
from api.segments.definition import SegmentBody
from api.segments.segments import SegmentResult
from api.store.database import Database, libpq_dsn
from tests.installation import SECRET, Installation, until
from tests.servers import connect_as, count_lock_waits

ALL = SegmentBody("all", "SELECT id AS contact_id FROM contacts")
ADD = "INSERT INTO contacts (org_id, id, created_at, updated_at) VALUES (%s, %s, now(), now())"
JOIN = "INSERT INTO segment_members VALUES (%s, 'all', %s, now())"
MEMBERS = "SELECT contact_id::text FROM segment_members ORDER BY 1"


@pytest.fixture
def installation(database_url: str, tmp_path: Path) -> Iterator[Installation]:
    built = Installation(database_url, tmp_path)
    yield built
    built.stop()


async def define(installation: Installation, org_id: int) -> None:
    database = Database(installation.dsn)
    await database.open()
    clock, keyring = Clock(), Keyring(SECRET)
    await database.calibrate(clock)
    services = SegmentServices(database, Gateway(database, keyring), keyring, 10.0, QuerySlots())
    made = await segments.create(services, Author(org_id, uuid7(1), clock.now_us()), ALL)
    assert isinstance(made, SegmentResult)
    await database.close()


async def test_a_refresh_that_is_killed_leaves_the_members_and_others_do_it_once(
    installation: Installation, postgres: Server
) -> None:
    await installation.organization()

    def query(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect_as(libpq_dsn(installation.dsn)) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    ((org_id,),) = query("SELECT id FROM organizations")
    people = [uuid7(number) for number in range(3)]
    query(ADD, org_id, people[0])
    await define(installation, org_id)
    for person in people[1:]:
        query(ADD, org_id, person)
    with connect_as(libpq_dsn(installation.dsn)) as blocker:
        blocker.execute(JOIN, (org_id, people[2]))  # the refresh adds one, then waits for this one
        query("UPDATE segments SET due_at = now(), watermark = NULL")  # contacts by hand are not seen otherwise
        engine = installation.start_engine()
        until(lambda: count_lock_waits(postgres, installation.dsn) > 0, "the refresh waits")
        engine.kill()
        engine.wait()
        until(lambda: count_lock_waits(postgres, installation.dsn) == 0, "its connection ends")
        blocker.rollback()
    assert query(MEMBERS) == [(people[0],)]
    query("UPDATE segments SET lease_until = now()")
    for _ in range(2):
        installation.start_engine()
    until(lambda: len(query(MEMBERS)) == 3, "another engine refreshes it")
    assert query("SELECT size, entered FROM segment_sizes ORDER BY at") == [(1, 1), (3, 2)]
    assert query("SELECT lease_token, lease_until FROM segments") == [(4, None)]  # defined, claimed twice, refreshed
