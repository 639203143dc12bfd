"""Logs of chains in parts: files of their own, which reports that name a log read, exact after reorganizations."""

from datetime import timedelta

import msgspec
import pytest

from api.parts import build
from api.parts.builders import DueBuilds
from api.parts.count import CountRequest, read
from api.parts.verify import verify
from api.query.gateway import Gateway
from api.store import parts as store
from tests.parts.conftest import Parts, send
from tests.parts.questions import World
from tests.parts.test_touched import LATER, contact_ids, touched
from workbench.language.reports import Funnel, Paths

pytestmark = pytest.mark.plain

CONTRACT = f"0x{7:040x}"

NUMBERED = "pg_current_xact_id()::text::bigint"
# A log of the contact `first`, and one without a contact.
_INSERT = """
    INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index,
                                digest, block_number, block_hash, block_time, args, created_at, stored_in)
    SELECT %(org_id)s, gen_random_uuid(), contact_id, 5, '0x07', 'Transfer', 'Transfer()', gen_random_uuid()::text, 0,
           gen_random_uuid(), 1, '0x01', now(), '{"value": 5}', now(), {stored_in}
    FROM unnest(ARRAY[%(first)s, NULL]::uuid[]) AS c (contact_id)"""


def insert(stored_in: str) -> str:
    return _INSERT.replace("{stored_in}", stored_in).replace("0x07", CONTRACT)


async def with_logs(parts: Parts) -> dict[str, str | int]:
    """Build parts with a log; return the organization and two contacts, of which the log has the first."""
    await send(parts.org, 40)
    first, second, *_ = await contact_ids(parts)
    values: dict[str, str | int] = {"org_id": parts.org.id, "first": first, "second": second}
    await parts.org.intake.rows(insert(NUMBERED), **values)
    await parts.build()
    return values


async def logs(parts: Parts) -> int:
    """Return the number of logs in files, which are exact."""
    assert await verify(parts.database, parts.folder, parts.org.id) == []
    async with parts.database.transaction() as tx:
        progress = await store.find_progress(tx, parts.org.id)
    assert progress is not None
    assert progress.has_logs
    return sum(part.rows for part in await parts.listed() if part.is_logs)


async def test_new_logs_are_added_like_events(parts: Parts) -> None:
    values = await with_logs(parts)
    assert await logs(parts) == 1
    await parts.org.intake.rows(insert(NUMBERED), **values)
    assert await touched(parts) == set()
    await parts.build()
    assert await logs(parts) == 2


async def test_a_report_counts_the_logs_that_it_names_and_no_others(parts: Parts) -> None:
    """In files, and in rows that are not in files yet."""
    values = await with_logs(parts)
    await parts.org.intake.rows(insert(NUMBERED).replace("Transfer", "Approval"), **values)
    org = parts.org
    world = World(org, Gateway(parts.database, org.intake.keyring), parts.folder, 1)
    report = Paths(since=org.intake.clock.now() - timedelta(days=1), start=f"{CONTRACT}:Transfer")
    for _ in range(2):
        answers = await world.ask(report)
        assert answers is not None
        assert answers[0] == answers[1] == f'[[["{CONTRACT}:transfer"],1,1]]'.encode()
        await parts.build()


@pytest.mark.parametrize(
    ("statement", "marked", "left"),
    [
        ("UPDATE onchain_events SET removed = true WHERE org_id = %(org_id)s", {"first"}, 0),
        ("UPDATE onchain_events SET block_time = '2026-01-01' WHERE org_id = %(org_id)s", {"first"}, 1),
        ("UPDATE onchain_events SET contact_id = %(second)s WHERE org_id = %(org_id)s", {"first", "second"}, 2),
        ("DELETE FROM onchain_events WHERE org_id = %(org_id)s", {"first"}, 0),
        (insert("0"), {"first"}, 2),
    ],
    ids=["dropped", "moved", "given to another", "deleted", "stored by an older process"],
)
async def test_contacts_of_logs_that_change_are_marked(
    parts: Parts, statement: str, marked: set[str], left: int
) -> None:
    values = await with_logs(parts)
    await parts.org.intake.rows(statement, **values)
    assert await touched(parts) == {values[name] for name in marked}
    assert await logs(parts) == 1
    await parts.build(LATER)
    assert await touched(parts) == set()
    assert await logs(parts) == left


async def test_a_log_that_returns_under_a_name_that_no_file_has_is_added(parts: Parts) -> None:
    await with_logs(parts)
    await parts.org.intake.rows("UPDATE onchain_events SET removed = true, event = 'Approval'")
    await parts.build(LATER)
    await parts.org.intake.rows("UPDATE onchain_events SET removed = false")
    await parts.build(LATER)
    assert await logs(parts) == 1


async def test_a_report_opens_no_files_of_other_times(parts: Parts) -> None:
    values = await with_logs(parts)
    since = parts.org.intake.clock.now() - timedelta(days=1)
    report = msgspec.to_builtins(Funnel(steps=(f"{CONTRACT}:Transfer",), since=since))
    request = CountRequest(parts.database.dsn, str(parts.folder), parts.org.id, "funnel", report, None)
    assert any(logs for _, logs in (await read(request)).files[0])
    await parts.org.intake.rows(
        "UPDATE onchain_events SET block_time = '2020-01-01' WHERE org_id = %(org_id)s", **values
    )
    await parts.build(LATER)
    assert not any(logs for _, logs in (await read(request)).files[0])


@pytest.mark.parametrize("change", ["problem = NULL", "logs_state = NULL"], ids=["new ones", "all of them"])
async def test_a_step_reads_few_logs(parts: Parts, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    values = await with_logs(parts)
    for _ in range(6):
        await parts.org.intake.rows(insert(NUMBERED), **values)
    await parts.org.intake.rows(f"UPDATE part_progress SET {change} WHERE org_id = %(org_id)s", **values)
    monkeypatch.setattr(build, "STEP_ROWS", 2)
    monkeypatch.setattr(build, "files_to_merge", lambda _: [])
    await parts.build()
    assert await logs(parts) == 7
    assert sorted(part.rows for part in await parts.listed() if part.is_logs) == [1, 2, 2, 2]


async def test_logs_are_added_again_after_a_builder_that_adds_none(parts: Parts) -> None:
    """A builder of a former version leaves out new logs, and loses those of contacts that it reads again."""
    values = await with_logs(parts)
    await parts.org.intake.rows(insert(NUMBERED), **values)
    for change in ("closed = closed + 1000", "rewritten_at = now()"):
        await parts.org.intake.rows(f"UPDATE part_progress SET {change} WHERE org_id = %(org_id)s", **values)
        await parts.org.intake.rows(
            "UPDATE parts SET removed_at = now() WHERE org_id = %(org_id)s AND month = 'logs'", **values
        )
        for _ in range(1_000):
            await parts.org.intake.rows("SELECT pg_current_xact_id()")
        assert await verify(parts.database, parts.folder, parts.org.id) == []
        parts.now += timedelta(hours=2)
        assert parts.org.id in await DueBuilds(parts.database, parts.folder).find_due(parts.now)
        await parts.build()
        assert await logs(parts) == 2
