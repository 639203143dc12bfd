"""Merges, their undo, and erasures: exact at every moment, and the bytes of erased contacts leave the files."""

import asyncio
import random
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from api.contacts import erase as erasing
from api.contacts import merge as merging
from api.contacts.erase import erase
from api.contacts.merge import Pair, merge, settle_due, undo
from api.parts import build, files
from tests.parts.conftest import Parts, send

pytestmark = pytest.mark.plain

LATER = timedelta(minutes=11)


async def contact_ids(parts: Parts) -> list[str]:
    rows = await parts.org.rows("id::text", "contacts", "external_id")
    return [contact_id for (contact_id,) in rows]


async def touched(parts: Parts) -> set[str]:
    return {contact_id for (contact_id,) in await parts.org.rows("contact_id::text", "touched_contacts")}


def contents(parts: Parts) -> bytes:
    """Return all payloads in all files."""
    folder = files.folder(parts.folder, parts.org.id)
    tables = (table for path in folder.iterdir() for table in files.merge([path], ()))
    return b"".join(payload.encode() for table in tables for payload in table["payload"].to_pylist())


async def test_an_erased_contact_leaves_the_files(parts: Parts) -> None:
    await send(parts.org, 40)
    await parts.org.send({"event": "secret", "contact": {"externalId": "c-0"}, "payload": {"canary": "4711"}})
    await parts.build()
    contact_id = (await contact_ids(parts))[0]
    await erase(parts.database, parts.org.author, contact_id)
    assert await touched(parts) == {contact_id}
    await parts.assert_exact()
    assert b"4711" in contents(parts)
    assert (await parts.build(LATER)).rewritten > 0
    assert await touched(parts) == set()
    await parts.assert_exact()
    await parts.build(LATER)
    assert b"4711" not in contents(parts)
    await parts.assert_exact()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET payload = '{}' WHERE org_id = %(org_id)s AND contact_id = %(first)s",
        "UPDATE events_{month} SET contact_id = %(second)s WHERE org_id = %(org_id)s AND contact_id = %(first)s",
        "UPDATE events SET created_at = '2001-01-01' WHERE org_id = %(org_id)s AND contact_id = %(first)s",
        "DELETE FROM events_{month} WHERE org_id = %(org_id)s AND contact_id = %(first)s",
    ],
)
async def test_a_statement_by_hand_is_seen(parts: Parts, statement: str) -> None:
    """So is an older process, whose statements mark nothing."""
    await send(parts.org, 40)
    await parts.build()
    (part,) = await parts.listed()
    first, second, *_ = await contact_ids(parts)
    values = {"org_id": parts.org.id, "first": first, "second": second}
    await parts.org.intake.rows(statement.replace("{month}", part.month), **values)
    assert await touched(parts) == ({first, second} if "SET contact_id" in statement else {first})
    await parts.assert_exact()
    await parts.build(LATER)
    assert await touched(parts) == set()
    await parts.assert_exact()


async def test_rewriting_waits_until_it_pays(parts: Parts) -> None:
    await send(parts.org, 40)
    await parts.build()
    first, second, *_ = await contact_ids(parts)
    await erase(parts.database, parts.org.author, first)
    await parts.build()
    await erase(parts.database, parts.org.author, second)
    await parts.build(timedelta(minutes=9))
    assert await touched(parts) == {second}
    await parts.build(timedelta(minutes=1))
    assert await touched(parts) == set()
    await parts.assert_exact()


async def test_many_events_are_rewritten_less_often_but_not_those_of_erased_contacts(parts: Parts) -> None:
    await send(parts.org, 40)
    await parts.build()
    first, second, *_ = await contact_ids(parts)
    touch = "UPDATE events SET payload = '{}' WHERE org_id = %(org_id)s AND contact_id = %(contact_id)s"
    left = []
    for minutes, contact_id in ((0, first), (11, first), (20, second), (20, first)):
        await parts.org.intake.rows(touch, org_id=parts.org.id, contact_id=contact_id)
        if contact_id == second:
            await erase(parts.database, parts.org.author, second)
        await parts.org.intake.rows("UPDATE parts SET rows = 90000000 WHERE org_id = %(org_id)s", org_id=parts.org.id)
        await parts.build(timedelta(minutes=minutes))
        left.append(await touched(parts))
        await parts.assert_exact()
    assert left == [set(), {first}, set(), {first}]
    await parts.build(timedelta(minutes=20))
    assert await touched(parts) == set()


async def test_a_merge_and_its_undo_are_exact_page_by_page(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PAGE_ROWS", 4)
    monkeypatch.setattr(merging, "PAGES_PER_REQUEST", 1)
    await send(parts.org, 60, contacts=3)
    await parts.build()
    keep, absorbed, _ = await contact_ids(parts)
    merged: Any = await merge(parts.database, parts.org.author, Pair(keep, absorbed), str)
    assert await touched(parts) == {keep, absorbed}
    await parts.assert_exact()
    await parts.build(LATER)  # half of the events have moved
    await parts.assert_exact()
    await settle_due(parts.database, parts.org.intake.clock.now())
    await parts.assert_exact()
    await parts.build(LATER)
    assert await touched(parts) == set()
    await parts.assert_exact()
    await undo(parts.database, parts.org.author, merged.id)
    await parts.assert_exact()
    await settle_due(parts.database, parts.org.intake.clock.now())
    await parts.build(LATER)
    await parts.assert_exact()


async def test_a_contact_that_is_touched_during_a_rewrite_stays_marked(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await send(parts.org, 40)
    await parts.build()
    contact_id = (await contact_ids(parts))[0]
    await erase(parts.database, parts.org.author, contact_id)
    unpatched = files.has_contacts

    def touch_again(*arguments: Any) -> bool:
        with psycopg.connect(parts.org.intake.dsn, options="-c search_path=workbench -c workbench.org=*") as connection:
            connection.execute("UPDATE events SET payload = '{\"late\": 1}' WHERE contact_id = %s", (contact_id,))
        return unpatched(*arguments)

    monkeypatch.setattr(files, "has_contacts", touch_again)
    await parts.build(LATER)
    assert await touched(parts) == {contact_id}
    await parts.assert_exact()
    monkeypatch.undo()
    await parts.build(LATER)
    assert await touched(parts) == set()
    await parts.assert_exact()


@pytest.mark.parametrize("seed", range(3))
async def test_readers_are_exact_while_everything_changes(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(build, "STEP_ROWS", 50)
    monkeypatch.setattr(build, "REWRITE_INTERVAL", timedelta())
    monkeypatch.setattr(merging, "PAGE_ROWS", 5)
    monkeypatch.setattr(merging, "PAGES_PER_REQUEST", 2)
    monkeypatch.setattr(erasing, "_PARTS", ("events",))
    chance = random.Random(seed)
    await send(parts.org, 100, contacts=12)
    ids, merges, is_over = await contact_ids(parts), list[str](), asyncio.Event()

    async def change() -> None:
        for number in range(12):
            keep, absorbed = chance.sample(ids, 2)
            match chance.randrange(4):
                case 0:
                    await erase(parts.database, parts.org.author, keep)
                case 1 if merges:
                    await undo(parts.database, parts.org.author, merges.pop())
                case _:
                    merged: Any = await merge(parts.database, parts.org.author, Pair(keep, absorbed), str)
                    merges.extend([merged.id] if hasattr(merged, "id") else [])
            await send(parts.org, 10, first=100 + 10 * number, contacts=12)
            await settle_due(parts.database, parts.org.intake.clock.now())
        is_over.set()

    async def keep_building() -> None:
        while not is_over.is_set():
            await parts.build(LATER)

    async def keep_reading() -> None:
        while not is_over.is_set():
            await parts.assert_exact()

    monkeypatch.setattr(build, "REMOVED_FILE_S", 10**6)
    async with asyncio.TaskGroup() as group:
        for work in (change(), keep_building(), keep_reading()):
            group.create_task(work)
    await parts.build(LATER)
    assert await touched(parts) == set()
    await parts.assert_exact()
