"""Upkeep analyzes new tables and deletes expired rows."""

from datetime import timedelta

import pytest

from api.catalog import maintenance
from api.store import events as store
from tests.ingest.conftest import Intake, Org, event


async def analyzed(intake: Intake) -> list[str]:
    async with intake.database.transaction() as tx:
        return await store.analyze_new_tables(tx)


FILL = (
    "INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key)"
    " SELECT %(org_id)s, gen_random_uuid(), gen_random_uuid(), 'e', m, m, n::text"
    " FROM generate_series(1, 3000) n, LATERAL (SELECT clock_timestamp() AS m) t RETURNING 1"
)


@pytest.mark.plain
async def test_new_tables_and_the_parent_of_partitions_are_analyzed_once(acme: Org, intake: Intake) -> None:
    assert "events" not in await analyzed(intake)
    await intake.rows(FILL, org_id=acme.id)
    (month,) = await analyzed(intake)
    assert month.startswith("events_2")
    assert await analyzed(intake) == ["events"]
    assert await analyzed(intake) == []
    ((has_statistics,),) = await intake.rows(
        "SELECT reltuples > 0 FROM pg_class WHERE oid = 'workbench.events'::regclass"
    )
    assert has_statistics


@pytest.mark.plain
async def test_an_emptied_table_is_not_analyzed(acme: Org, intake: Intake) -> None:
    fill = "INSERT INTO audit_log (org_id, id, key_id, action, subject_id, detail, created_at)"
    await intake.rows(
        f"{fill} SELECT"
        " %(org_id)s, gen_random_uuid(), gen_random_uuid(), 'a', gen_random_uuid(), '{}', clock_timestamp()"
        " FROM generate_series(1, 3000) RETURNING 1",
        org_id=acme.id,
    )
    assert "audit_log" in await analyzed(intake)
    await intake.rows("DELETE FROM audit_log")
    await intake.rows("ANALYZE audit_log")
    assert "audit_log" not in await analyzed(intake)


async def test_old_dry_runs_are_deleted_batch_by_batch(
    acme: Org, globex: Org, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DELETE_BATCH_ROWS", 2)
    for org in (acme, globex):
        await org.send(*[event(str(n)) for n in range(5)], test=True)
    await maintenance.delete_expired(intake.database, acme.id, intake.clock.now() + timedelta(days=6))
    assert (await acme.traces(), await globex.traces()) == ({"dry_runs": 5}, {"dry_runs": 5})
    await maintenance.delete_expired(intake.database, acme.id, intake.clock.now() + timedelta(days=8))
    assert (await acme.traces(), await globex.traces()) == ({}, {"dry_runs": 5})


async def test_unsigned_challenges_are_deleted(acme: Org, globex: Org, intake: Intake) -> None:
    for org in (acme, globex):
        await intake.rows(
            "INSERT INTO inapp_challenges"
            " VALUES (%(org_id)s, 'n', '0xa', gen_random_uuid(), 'https://a.example', 1, now())",
            org_id=org.id,
        )
    await maintenance.delete_expired(intake.database, acme.id, intake.clock.now() + timedelta(minutes=1))
    assert await intake.rows("SELECT org_id FROM inapp_challenges") == [(globex.id,)]


async def test_unread_test_messages_are_deleted_within_the_hour_after_a_day(
    acme: Org, globex: Org, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "DELETE_BATCH_ROWS", 2)
    for org, ages in ((acme, (30, 29, 28, 23)), (globex, (25, 1))):
        for hours in ages:
            await intake.rows(
                "INSERT INTO test_pushes VALUES (%(org_id)s, gen_random_uuid(), NULL, '0xa', 't', 'b', '{}',"
                " now() - %(hours)s * interval '1 hour')",
                org_id=org.id,
                hours=hours,
            )
    await maintenance.delete_test_messages(intake.database, intake.clock.now())
    assert sorted(await intake.rows("SELECT org_id FROM test_pushes")) == [(acme.id,), (globex.id,)]
    await maintenance.delete_test_messages(intake.database, intake.clock.now() + timedelta(hours=2))
    assert await intake.rows("SELECT org_id FROM test_pushes") == [(globex.id,)]
    assert timedelta(hours=1).total_seconds() == maintenance.TEST_MESSAGES_INTERVAL_S
