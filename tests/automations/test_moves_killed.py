"""Real API processes are killed while they move entries to a new version."""

import json
from typing import Any

from api.clock import uuid7
from api.store.database import libpq_dsn
from tests.installation import Installation, until
from tests.servers import connect_as

ENTRIES, KILLS = 10_000, 3
SPEC = json.dumps({"type": "app_event", "event": "deposit"})


def graph(tag: str) -> str:
    nodes = [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "pause", "type": "delay", "data": {"seconds": 86_400}},
        {"id": "tag", "type": "add_tag", "data": {"tag": tag}},
    ]
    return json.dumps(
        {"nodes": nodes, "edges": [{"source": "t", "target": "pause"}, {"source": "pause", "target": "tag"}]}
    )


async def test_a_move_continues_after_the_processes_that_apply_it_are_killed(installation: Installation) -> None:
    keys = await installation.organization()
    automation_id, move_id = uuid7(1), uuid7(2)

    def query(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect_as(libpq_dsn(installation.dsn)) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    ((org_id,),) = query("SELECT id FROM organizations")
    row = "INSERT INTO automations VALUES (%s, %s, 'a', %s, %s, true, 2, 3, NULL, now(), now())"
    query(row, org_id, automation_id, SPEC, graph("new"))
    for version, tag in ((1, "old"), (2, "new")):
        row = "INSERT INTO automation_versions VALUES (%s, %s, %s, %s, %s, now())"
        query(row, org_id, automation_id, version, SPEC, graph(tag))
    query("INSERT INTO automation_epochs VALUES (%s, 1)", org_id)
    query(
        "WITH c AS (INSERT INTO contacts (org_id, id, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), now(), now() FROM generate_series(1, %s) RETURNING org_id, id),"
        " v AS (INSERT INTO events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key)"
        " SELECT org_id, gen_random_uuid(), id, 'deposit', now(), now(), '{}', id::text FROM c"
        " RETURNING org_id, id, contact_id)"
        " INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id,"
        " state, node_id, step, due_at, since, created_at, updated_at)"
        " SELECT org_id, gen_random_uuid(), %s, 1, id, now(), contact_id, 'waiting', 'pause', 1,"
        " now() + interval '1 day', now(), now(), now() FROM v",
        org_id,
        ENTRIES,
        automation_id,
    )
    query(
        "INSERT INTO moves (org_id, id, automation_id, version, mode, state, patient_until, created_at)"
        " VALUES (%s, %s, %s, 2, '\"safe\"', 'planned', now() + interval '30 seconds', now())",
        org_id,
        move_id,
        automation_id,
    )

    def progress() -> tuple[str, int]:
        ((state, moved),) = query("SELECT state, (SELECT count(moved_at) FROM entry_moves) FROM moves")
        return state, moved

    for kill in range(KILLS):
        api = installation.start_api()
        until(lambda least=kill * 1_000: progress()[1] > least, "a page is moved")  # type: ignore[misc]
        api.process.kill()
        api.process.wait()
    assert progress()[0] == "running"
    api = installation.start_api()
    until(lambda: progress()[0] == "done", "the rest is moved", 60)
    assert query("SELECT DISTINCT reason FROM entry_moves") == [(None,)]
    moved = (
        "SELECT count(*) FROM entries e JOIN entry_moves m ON m.entry_id = e.id WHERE e.automation_version = 2"
        " AND e.started_version = 1 AND e.due_at = m.until AND m.next_node_id = 'tag'"
    )
    assert query(moved) == [(ENTRIES,)]
    with api.client(keys["workbench"]) as client:
        path = f"/automations/{automation_id}/moves/{move_id}"
        undone = client.post(f"{path}/undo", json={}, timeout=60).json()
        assert (undone["moved"], undone["refused"]) == (ENTRIES, [])
        until(lambda: client.get(path).json()["state"] == "undone", "it is undone", 60)
    assert query("SELECT DISTINCT automation_version, started_version FROM entries") == [(1, None)]
