"""Parts and the rows that they leave to the database are together exactly the events of the database."""

from datetime import timedelta
from pathlib import Path

import pytest

from api.parts import build, files
from api.store.database import Database
from tests.parts.conftest import Parts, send

pytestmark = pytest.mark.plain

MINUTES_10 = timedelta(minutes=10)


async def test_parts_have_all_events_of_ended_transactions_in_order(parts: Parts) -> None:
    await send(parts.org, 120)
    assert (await parts.build()).added == 120
    (part,) = await parts.listed()
    rows = parts.table(part).select(["contact", "occurred_at", "id"]).to_pylist()
    assert (part.rows, part.bucket) == (120, 0)
    assert [*map(str, rows)] == [*map(str, sorted(rows, key=lambda row: tuple(row.values())))]
    await parts.assert_exact()
    assert (await parts.build()).added == 0


async def test_an_open_transaction_holds_later_events_back(parts: Parts) -> None:
    await send(parts.org, 10)
    async with Database(parts.org.intake.dsn, size=1) as other, other.transaction() as tx:
        await tx.execute("SELECT pg_current_xact_id()")
        await send(parts.org, 10, first=10)
        assert (await parts.build()).added == 10
        await parts.assert_exact()
    assert (await parts.build()).added == 10
    await parts.assert_exact()


@pytest.mark.parametrize(("rows", "page"), [(30, 10), (1, 1), (1_000, 7)])
async def test_steps_and_pages_of_any_size_give_the_same_events(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, rows: int, page: int
) -> None:
    monkeypatch.setattr(build, "STEP_ROWS", rows)
    monkeypatch.setattr(build, "PAGE_ROWS", page)
    monkeypatch.setattr(build, "FIRST_PAGE_ROWS", page)
    monkeypatch.setattr(build, "MAX_SMALL_FILES", 100)
    await send(parts.org, 100)  # 50 events in a transaction
    assert (await parts.build()).added == 100
    await parts.assert_exact()


async def test_small_files_are_merged_and_deleted_later(parts: Parts) -> None:
    for number in range(6):
        await send(parts.org, 20, first=20 * number)
        await parts.build()
    await parts.assert_exact()
    assert [part.rows for part in await parts.listed()] == [20, 20, 80]
    assert len(parts.paths()) > 3  # a reader may still use the others
    assert (await parts.build(later=timedelta(minutes=11))).deleted > 0
    assert len(parts.paths()) == len(await parts.listed())
    await parts.assert_exact()


async def test_a_bucket_with_too_many_events_is_divided(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    await send(parts.org, 100)
    await parts.build()
    monkeypatch.setattr(build, "BUCKET_ROWS", 30)
    await parts.build()
    assert {part.bucket for part in await parts.listed()} <= {0, 1, 2, 3}
    for part in await parts.listed():
        assert {contact % 4 for contact in parts.table(part)["contact"].to_pylist()} == {part.bucket}
    await parts.assert_exact()
    await send(parts.org, 100, first=100)
    await parts.build()
    await parts.assert_exact()


async def test_contacts_from_before_numbers_get_one(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.org.intake.rows("UPDATE contacts SET number = NULL WHERE org_id = %(id)s", id=parts.org.id)
    await parts.build()
    assert await parts.org.rows("count(number) = count(*)", "contacts") == [(True,)]
    await parts.assert_exact()


async def test_one_builder_at_a_time(parts: Parts) -> None:
    await send(parts.org, 10)
    async with Database(parts.org.intake.dsn, size=1) as other, build._turn(other, parts.org.id):
        with pytest.raises(build.BusyError):
            await parts.build()
    assert (await parts.build()).added == 10


async def test_parts_are_built_from_the_first_event_if_files_or_the_cluster_changed(parts: Parts) -> None:
    await send(parts.org, 10)
    await parts.build()
    for path in (parts.folder / "parts" / str(parts.org.id)).iterdir():
        path.unlink()
    assert (await parts.build(MINUTES_10)).added == 10
    await parts.org.intake.rows("UPDATE part_progress SET system_identifier = 1 WHERE org_id = %(id)s", id=parts.org.id)
    assert (await parts.build()).added == 10
    assert len(parts.paths()) == len(await parts.listed()) == 1
    await parts.assert_exact()


async def test_a_builder_waits_for_new_files_of_another_machine(parts: Parts, tmp_path: Path) -> None:
    """A file of a mounted folder is listed before its upload."""
    await send(parts.org, 10)
    await parts.build()
    (file,) = files.list_files(parts.folder, parts.org.id)
    file.rename(tmp_path / "hidden")
    with pytest.raises(build.BusyError):
        await parts.build(MINUTES_10 - timedelta(seconds=1))
    (tmp_path / "hidden").rename(file)
    assert (await parts.build()).added == 0
    await parts.assert_exact()


async def test_a_month_that_is_made_again_has_no_parts(parts: Parts) -> None:
    await send(parts.org, 20)
    await parts.build()
    (part,) = await parts.listed()
    bounds = part.month.replace("_", "-") + "-01"
    for statement in (
        f"ALTER TABLE events_{part.month} RENAME TO former",
        "ALTER TABLE events DETACH PARTITION former",
        f"CREATE TABLE events_{part.month} PARTITION OF events"
        f" FOR VALUES FROM ('{bounds}') TO (date '{bounds}' + interval '1 month')",
        f"INSERT INTO events_{part.month} SELECT * FROM former WHERE org_id = {parts.org.id} LIMIT 7",
        "DROP TABLE former",
    ):
        await parts.org.intake.rows(statement)
    assert await parts.listed() == []
    await parts.assert_exact()
    await parts.build()
    assert sum(part.rows for part in await parts.listed()) == 7
    await parts.assert_exact()


async def test_a_dropped_month_takes_its_parts_with_it(parts: Parts) -> None:
    await send(parts.org, 10)
    await parts.build()
    (part,) = await parts.listed()
    await parts.org.intake.rows(f"ALTER TABLE events DETACH PARTITION events_{part.month}")
    await parts.org.intake.rows(f"ALTER TABLE events_{part.month} RENAME TO dropped")
    assert await parts.listed() == []
    await parts.assert_exact()
    await parts.build(later=timedelta(minutes=1))
    await parts.build(later=timedelta(minutes=11))
    assert parts.paths() == set()
    await parts.org.intake.rows(f"ALTER TABLE dropped RENAME TO events_{part.month}")
    bounds = part.month.replace("_", "-") + "-01"
    await parts.org.intake.rows(
        f"ALTER TABLE events ATTACH PARTITION events_{part.month}"
        f" FOR VALUES FROM ('{bounds}') TO (date '{bounds}' + interval '1 month')"
    )
