"""Refreshing segments: each due segment once, by any engine, and without delaying other organizations."""

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from api.query.gateway import Gateway
from api.query.limits import ConcurrencyLimits, QuerySlots
from api.segments.candidates import SegmentServices
from api.segments.refresh import LEASE, RETRY_DELAY, refresh_due
from api.store.analyst import QueryLimits
from api.store.database import Database
from api.store.segments import claim_due_segment
from tests.routes.conftest import Service
from tests.segments.conftest import LateClock, Team

ALL = {"name": "all", "sql": "SELECT id AS contact_id FROM contacts", "everySeconds": 600}
SLOW = "SELECT NULL::uuid AS contact_id FROM (SELECT generate_series(1, {}) AS n) numbers WHERE n < 0"


@pytest.fixture(autouse=True)
async def no_due_segments(service: Service) -> None:
    """Segments of other tests are not due."""
    await service.rows("UPDATE segments SET due_at = NULL")


def with_timeout(team: Team, seconds: float) -> SegmentServices:
    """Return the services with a time limit for queries."""
    limits = QueryLimits(step_seconds=seconds, watch_seconds=seconds + 1)
    gateway = Gateway(team.services.database, team.services.keyring, limits)
    return msgspec.structs.replace(team.services, gateway=gateway)


async def state(team: Team, name: str) -> dict[str, Any]:
    shown = await team.expect_success("GET", f"/{name}")
    return {key: shown[key] for key in ("size", "lastError", "refreshedAt", "failingSince")}


async def wait_for_claim(team: Team) -> None:
    """Wait until an engine has claimed one of the organization's segments."""
    async with asyncio.timeout(10):
        while True:
            if await team.rows("SELECT 1 FROM segments WHERE org_id = %s AND lease_until IS NOT NULL", team.id):
                return
            await asyncio.sleep(0.01)


async def replace_query(team: Team, name: str, sql: str) -> None:
    """Replace a stored query by one that fails or is slow; the API would refuse to define it."""
    await team.rows("UPDATE segments SET sql = %s WHERE org_id = %s AND name = %s", sql, team.id, name)


async def test_a_refresh_says_what_it_looked_at(acme: Team) -> None:
    async def scope(name: str) -> dict[str, Any]:
        result = await acme.expect_success("POST", f"/{name}/refresh")
        return result["refresh"]  # type: ignore[no-any-return]

    for number in range(3):
        await acme.contact(f"c{number}")
    await acme.expect_success("POST", "", ALL)
    await acme.expect_success("POST", "", {"name": "some", "sql": ALL["sql"] + " LIMIT 2"})
    assert await scope("some") == {"contacts": None, "reason": "LIMIT is not supported (character 39)"}
    await acme.rows("CREATE TABLE events_2020_01 PARTITION OF events FOR VALUES FROM ('2020-01-01') TO ('2020-02-01')")
    assert await scope("all") == {"contacts": 3, "reason": None}  # they are younger than five minutes
    await acme.rows("DROP TABLE events_2020_01")
    assert await scope("all") == {"contacts": None, "reason": "a month of events was dropped"}
    assert await scope("all") == {"contacts": 3, "reason": None}


async def test_only_due_segments_are_refreshed(acme: Team, clock: LateClock) -> None:
    ann = await acme.contact("ann")
    await acme.expect_success("POST", "", ALL)
    await acme.expect_success("POST", "", ALL | {"name": "later", "everySeconds": 3600})
    ben = await acme.contact("ben")
    assert await refresh_due(acme.services, clock) == 0
    clock.ahead = timedelta(minutes=11)
    assert await refresh_due(acme.services, clock) == 1
    assert await refresh_due(acme.services, clock) == 0
    assert (await acme.members("all"), await acme.members("later")) == ({ann, ben}, {ann})
    assert [size["size"] for size in (await acme.expect_success("GET", "/all"))["history"]] == [2, 1]


async def test_two_engines_refresh_a_segment_once(acme: Team, clock: LateClock) -> None:
    await acme.contact("ann")
    for number in range(5):
        await acme.expect_success("POST", "", ALL | {"name": f"s{number}"})
    await acme.contact("ben")
    clock.ahead = timedelta(minutes=11)
    done = await asyncio.gather(*[refresh_due(acme.services, clock) for _ in range(2)])
    assert sum(done) == 5
    tokens = await acme.rows("SELECT lease_token, lease_until, size FROM segments WHERE org_id = %s", acme.id)
    assert tokens == [(3, None, 2)] * 5  # defined, claimed, refreshed


async def test_a_failing_segment_keeps_its_members_and_shows_the_reason(acme: Team, clock: LateClock) -> None:
    ann = await acme.contact("ann", balance="much")
    await acme.expect_success("POST", "", ALL)
    before = await state(acme, "all")
    await replace_query(
        acme, "all", "SELECT id AS contact_id FROM contacts WHERE (metadata ->> 'balance')::numeric > 0"
    )
    clock.ahead = timedelta(minutes=11)
    assert await refresh_due(acme.services, clock) == 1
    failed = await state(acme, "all")
    assert failed["lastError"] == "invalid input syntax for type numeric"  # without the value
    assert (failed["size"], failed["refreshedAt"]) == (before["size"], before["refreshedAt"])
    assert await acme.members("all") == {ann}
    assert await refresh_due(acme.services, clock) == 0  # it is retried later
    clock.ahead += timedelta(minutes=11)
    await refresh_due(acme.services, clock)
    assert (await state(acme, "all"))["failingSince"] == failed["failingSince"]
    await replace_query(acme, "all", ALL["sql"])
    clock.ahead += timedelta(minutes=21)
    assert await refresh_due(acme.services, clock) == 1
    assert (await state(acme, "all"))["lastError"] is None


async def test_a_query_that_became_invalid_fails_with_its_position(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    await replace_query(acme, "all", "SELECT id AS contact_idd FROM contacts WHERE plan = 1")
    clock.ahead = timedelta(minutes=11)
    await refresh_due(acme.services, clock)
    assert (await state(acme, "all"))["lastError"] == 'column "plan" does not exist (character 46)'


async def test_a_slow_segment_delays_no_other_organization(acme: Team, globex: Team, clock: LateClock) -> None:
    await acme.contact("ann")
    await acme.expect_success("POST", "", ALL)
    await acme.expect_success("POST", "", ALL | {"name": "other"})
    await replace_query(acme, "all", SLOW.format(10**9))
    await globex.contact("gus")
    await globex.expect_success("POST", "", ALL)
    clock.ahead = timedelta(minutes=11)
    slow = asyncio.create_task(refresh_due(with_timeout(acme, 1.5), clock))
    await wait_for_claim(acme)
    assert await refresh_due(globex.services, clock) == 1  # the segment of globex; that of acme is claimed
    assert await slow == 2  # then the other segment of acme
    assert (await state(acme, "all"))["lastError"] == "the query took longer than 1.5 s"
    assert (await state(acme, "other"))["lastError"] is None


async def test_organizations_take_turns(acme: Team, globex: Team, clock: LateClock) -> None:
    for number in range(3):
        await acme.expect_success("POST", "", ALL | {"name": f"s{number}"})
    await globex.expect_success("POST", "", ALL | {"name": "g"})
    clock.ahead = timedelta(minutes=11)
    await refresh_due(acme.services, clock)
    rows = await acme.rows(
        "SELECT org_id FROM segments WHERE org_id = ANY (%s) ORDER BY attempted_at", [acme.id, globex.id]
    )
    assert rows[1] == (globex.id,)


async def test_a_refresh_does_not_overwrite_a_segment_that_was_changed_meanwhile(acme: Team, clock: LateClock) -> None:
    ann = await acme.contact("ann")
    await acme.expect_success("POST", "", ALL)
    clock.ahead = timedelta(minutes=11)
    await replace_query(acme, "all", SLOW.format(2 * 10**6))
    refreshing = asyncio.create_task(refresh_due(acme.services, clock))
    await wait_for_claim(acme)
    changed = await acme.expect_success("PUT", "/all", {"revision": 1, "sql": ALL["sql"], "everySeconds": 3600})
    assert (await refreshing, changed["revision"]) == (1, 2)
    assert await acme.members("all") == {ann}


async def test_an_engine_that_stops_releases_its_lease(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    await replace_query(acme, "all", SLOW.format(10**9))
    clock.ahead = timedelta(minutes=11)
    refreshing = asyncio.create_task(refresh_due(acme.services, clock))
    await wait_for_claim(acme)
    refreshing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await refreshing
    assert await acme.rows("SELECT lease_until, last_error FROM segments WHERE org_id = %s", acme.id) == [(None, None)]


async def test_an_abandoned_lease_ends(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    clock.ahead = timedelta(minutes=11)
    await acme.rows("UPDATE segments SET lease_until = %s WHERE org_id = %s", clock.now() + LEASE, acme.id)
    assert await refresh_due(acme.services, clock) == 0
    clock.ahead += LEASE + timedelta(seconds=1)
    assert await refresh_due(acme.services, clock) == 1


async def test_an_audience_is_recounted_at_intervals(acme: Team, clock: LateClock) -> None:
    ann = await acme.contact("ann")
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann]})
    await acme.expect_success("POST", "", {"name": "part", "contactIds": [ann], "more": True})
    await acme.rows("DELETE FROM segment_members WHERE org_id = %s", acme.id)
    clock.ahead = timedelta(minutes=61)
    assert await refresh_due(acme.services, clock) == 1
    assert (await state(acme, "invited"))["size"] == 0


async def test_one_segment_of_an_organization_is_refreshed_at_a_time(acme: Team, clock: LateClock) -> None:
    for name in ("one", "two"):
        await acme.expect_success("POST", "", ALL | {"name": name})
    now = clock.now() + timedelta(minutes=11)
    async with acme.services.database.transaction() as tx, acme.services.database.transaction() as other:
        assert await claim_due_segment(tx, acme.id, now, now + LEASE)
        assert await claim_due_segment(other, acme.id, now, now + LEASE) is None  # at the same moment
    async with acme.services.database.transaction() as tx:
        assert await claim_due_segment(tx, acme.id, now, now + LEASE) is None  # and after it


async def test_a_refresh_does_not_overwrite_one_that_began_later(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    clock.ahead = timedelta(minutes=11)
    await replace_query(acme, "all", SLOW.format(10**9))
    failing = asyncio.create_task(refresh_due(with_timeout(acme, 1.0), clock))
    await wait_for_claim(acme)
    await replace_query(acme, "all", ALL["sql"])
    await acme.expect_success("POST", "/all/refresh")
    await failing
    assert (await state(acme, "all"))["lastError"] is None


async def test_a_lost_connection_is_reported_and_retried_soon(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    await replace_query(acme, "all", "SELECT NULL::uuid AS contact_id FROM generate_series(1, 10000000)")
    clock.ahead = timedelta(minutes=11)
    hasty = Database(acme.org.service.dsn, size=2, statement_ms=200)
    await hasty.open()
    assert await refresh_due(msgspec.structs.replace(acme.services, database=hasty), clock) == 1
    await hasty.close()
    assert (await state(acme, "all"))["lastError"] == "the database connection was lost, or the statement timed out"
    await replace_query(acme, "all", ALL["sql"])
    clock.ahead += RETRY_DELAY + timedelta(seconds=1)
    assert await refresh_due(acme.services, clock) == 1
    assert (await state(acme, "all"))["lastError"] is None


async def test_a_late_segment_shows_what_it_waits_for(acme: Team, clock: LateClock) -> None:
    await acme.expect_success("POST", "", ALL)
    slots = QuerySlots(ConcurrencyLimits(per_organization=1, wait_seconds=0.01))
    services = msgspec.structs.replace(acme.services, slots=slots)
    clock.ahead = timedelta(minutes=11)
    async with slots.acquire(acme.id):
        await refresh_due(services, clock)
        assert (await state(acme, "all"))["failingSince"] is None  # not yet late
        clock.ahead = timedelta(minutes=21)
        await refresh_due(services, clock)
    late = await state(acme, "all")
    assert late["lastError"] == "other queries are still running; try again"
    assert late["failingSince"] is not None
    clock.ahead += RETRY_DELAY + timedelta(seconds=1)
    await refresh_due(services, clock)
    assert (await state(acme, "all"))["failingSince"] is None
