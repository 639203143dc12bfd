"""Real engine processes are killed while they make the entries of a broadcast."""

import json
from typing import Any

from api.clock import uuid7
from api.store.database import libpq_dsn
from tests.installation import Installation, until
from tests.servers import connect_as

CONTACTS, KILLS = 25_000, 3
GRAPH = json.dumps({"nodes": [{"id": "t", "type": "broadcast", "data": {}}], "edges": []})
SPEC = json.dumps({"type": "broadcast"})


async def test_engines_that_are_killed_start_every_contact_once(installation: Installation) -> None:
    await installation.organization()
    automation_id, broadcast_id = uuid7(1), uuid7(2)

    def query(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect_as(libpq_dsn(installation.dsn)) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    ((org_id,),) = query("SELECT id FROM organizations")
    query(
        "INSERT INTO contacts (org_id, id, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), now(), now() FROM generate_series(1, %s)",
        org_id,
        CONTACTS,
    )
    row = "INSERT INTO automations VALUES (%s, %s, 'a', %s, %s, true, 1, 1, NULL, now(), now())"
    query(row, org_id, automation_id, SPEC, GRAPH)
    query("INSERT INTO automation_versions VALUES (%s, %s, 1, %s, %s, now())", org_id, automation_id, SPEC, GRAPH)
    query("INSERT INTO automation_epochs VALUES (%s, 1)", org_id)
    query(
        "INSERT INTO broadcasts (org_id, id, automation_id, segment, at, state, contacts, watermark, created_at)"
        " VALUES (%s, %s, %s, '', now(), 'planned', %s, now(), now())",
        org_id,
        broadcast_id,
        automation_id,
        CONTACTS,
    )

    def progress() -> tuple[str, int]:
        ((state, entries),) = query("SELECT state, entries FROM broadcasts")
        return state, entries

    killed_at = []
    for kill in range(KILLS):
        engine = installation.start_engine()
        until(lambda least=kill * 5_000: progress()[1] > least, "a page is made")  # type: ignore[misc]
        engine.kill()
        engine.wait()
        killed_at.append(progress())
    assert killed_at[0][0] == "running"
    for _ in range(2):
        installation.start_engine()
    until(lambda: progress()[0] == "done", "the rest is made")
    assert progress() == ("done", CONTACTS)
    assert query("SELECT count(*), count(DISTINCT contact_id) FROM entries") == [(CONTACTS, CONTACTS)]
