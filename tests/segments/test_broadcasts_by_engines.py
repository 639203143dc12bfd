"""Real engine and API processes are killed while a broadcast is made."""

import os
import random
from typing import Any

from api.store.database import libpq_dsn
from api.store.locks import STARTING
from tests.installation import Installation, until
from tests.servers import connect_as

KILLS = int(os.environ.get("BROADCAST_KILLS", "3"))
CONTACTS = max(25_000, KILLS * 2_500)
AUTOMATION = {
    "name": "announcement",
    "triggerSpec": {"type": "broadcast"},
    "graph": {
        "nodes": [{"id": "t", "type": "broadcast", "data": {}}, {"id": "x", "type": "exit", "data": {}}],
        "edges": [{"id": "e", "source": "t", "target": "x"}],
    },
}


async def test_engines_that_are_killed_start_every_contact_once(installation: Installation) -> None:
    keys, chance = await installation.organization(), random.Random()

    def query(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with connect_as(libpq_dsn(installation.dsn)) as connection:
            cursor = connection.execute(statement, values)
            return cursor.fetchall() if cursor.description else []

    query(
        "INSERT INTO contacts (org_id, id, created_at, updated_at)"
        " SELECT o.id, gen_random_uuid(), now(), now() FROM organizations o, generate_series(1, %s)",
        CONTACTS,
    )
    api = installation.start_api()
    with api.client(keys["workbench"]) as client:
        automation_id = client.post("/automations", json=AUTOMATION).json()["id"]
        assert client.post(f"/automations/{automation_id}/publish", json={}).status_code == 200
        assert client.post(f"/automations/{automation_id}/broadcasts", json={"all": True}).status_code == 201

    def progress() -> tuple[str, int]:
        ((state, entries),) = query("SELECT state, entries FROM broadcasts")
        return state, entries

    def is_starting() -> bool:
        return query("SELECT EXISTS (SELECT FROM pg_locks WHERE classid = %s)", STARTING) == [(True,)]

    killed_at = []
    for kill in range(KILLS):
        engine = installation.start_engine()
        if kill == 0:
            until(is_starting, "the recipients are being stored", 60)
        else:
            least = killed_at[-1][1] + chance.randrange(2_000)
            until(lambda least=least: progress()[1] > least, "a page is made", 60)  # type: ignore[misc]
        for process in (engine, api.process) if kill % 5 == 0 else (engine,):
            process.kill()
            process.wait()
        killed_at.append(progress())
        if api.process.poll() is not None:
            api = installation.start_api()
    assert (killed_at[0], killed_at[-1][0]) == (("planned", 0), "running")
    for _ in range(2):
        installation.start_engine()
    until(lambda: progress()[0] == "done", "the rest is made", 90)
    assert progress() == ("done", CONTACTS)
    assert query("SELECT count(*), count(DISTINCT contact_id) FROM entries") == [(CONTACTS, CONTACTS)]
