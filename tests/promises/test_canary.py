"""docs/trust.md O1, O2, V19: secrets and personal data stay where they belong, whatever goes wrong.

Real processes on a Postgres of their own; secrets, addresses and values of payloads are sent every way there is, the
wrong ones included. Then all that was said and written is searched: logs of ours and of Postgres, answers, metrics, and
for secrets and addresses the files of the database, too. Values of payloads are in the database by design, in the
columns that are named here.
"""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from api.auth import keys
from api.auth.key_format import WORKBENCH
from api.embedded import EmbeddedPostgres
from api.store.migrate import migrate
from tests.acceptance.conftest import SECRET, Api, House, until
from tests.canaries import PAYLOAD_COLUMNS
from tests.running import free_port

EMAIL = "canary.mail.3b1f@example.com"
VALUE = "canary-value-8c2e"


class Spied:
    """An installation, and everything that callers were told."""

    def __init__(self, house: House, embedded: EmbeddedPostgres, admin_dsn: str, logs: Path) -> None:
        self.house, self.embedded, self.admin_dsn, self.logs = house, embedded, admin_dsn, logs
        self.answers: list[str] = []
        self.keys: dict[str, str] = {}
        self.api: Api
        self.port = free_port()

    def ask(self, method: str, path: str, kind: str = "live", **sent: Any) -> httpx.Response:
        headers = {"authorization": f"Bearer {self.keys.get(kind, kind)}", **sent.pop("headers", {})}
        answer = httpx.request(method, f"{self.api.url}{path}", headers=headers, timeout=20, **sent)
        if answer.status_code >= 400 and not path.endswith("/sql"):  # an SQL error may repeat the value of the query
            self.answers.append(f"{answer.headers} {answer.text}")
        return answer

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.admin_dsn, autocommit=True) as connection:
            connection.execute("SET search_path = workbench, public")
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedPostgres]:
    made = EmbeddedPostgres(tmp_path / "postgres", settings={"shared_preload_libraries": "pg_stat_statements"})
    try:
        yield made
    finally:
        shutil.rmtree(made.data.parent, ignore_errors=True)


@pytest.fixture
async def spied(embedded: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Spied]:
    logs = tmp_path / "logs"
    logs.mkdir()
    with embedded as server:
        await migrate(server.dsn, admin_dsn=server.admin_dsn)
        house = House(server.dsn, logs)
        spied = Spied(house, embedded, server.admin_dsn, logs)
        spied.sql("CREATE EXTENSION pg_stat_statements")
        spied.keys = await house.organization()
        spied.keys["workbench"] = await keys.create(server.dsn, house.keyring, "demo", "workbench", WORKBENCH)
        spied.keys["blind"] = await keys.create(server.dsn, house.keyring, "demo", "workbench", ["sql:read"])
        spied.keys["publishable"] = await keys.create(server.dsn, house.keyring, "demo", "publishable")
        metrics = {
            "WORKBENCH_METRICS": str(spied.port),
            "WORKBENCH_LOG_REQUESTS": "all",
            "WORKBENCH_RETRY_DELAYS": "60",
        }
        spied.api = house.start_api(**metrics)
        house.start_engine(**metrics)
        try:
            yield spied
        finally:
            house.stop()


EVENT = {"event": "deposit", "contact": {"email": EMAIL, "walletAddress": "0xA"}, "payload": {"secret": VALUE}}
GRAPH = {
    "nodes": [
        {"id": "t", "type": "app_event"},
        {
            "id": "c",
            "type": "condition",
            "data": {"filters": [{"path": "secret", "operator": "contains", "value": "canary"}]},
        },
        {
            "id": "i",
            "type": "send_inapp",
            "data": {"recipientMode": "triggering_profile", "title": "{{ secret }}", "body": "x"},
        },
        {"id": "e", "type": "send_email", "data": {"subject": "{{ secret }}", "body": "{{ secret }}"}},
        {
            "id": "w",
            "type": "send_webhook",
            "data": {"url": "https://nowhere.invalid/{{ secret }}", "body": "{{ secret }}"},
        },
    ],
    "edges": [
        {"source": "t", "target": "c"},
        {"source": "c", "target": "i", "sourceHandle": "true"},
        {"source": "i", "target": "e"},
        {"source": "e", "target": "w"},
    ],
}  # fmt: skip


def send_every_way(spied: Spied) -> None:
    """Send events well and badly."""
    ask, live = spied.ask, spied.keys["live"]
    bad: list[Any] = [EVENT | {"contact": {"email": f"{EMAIL} {VALUE}"}}, EVENT | {"event": f"no name {EMAIL}"}]
    bad += [EVENT | {"occurredAt": EMAIL}, EVENT | {"payload": VALUE}, EVENT | {"attributes": {"a": [VALUE]}}]
    for number, event in enumerate((EVENT, EVENT, EVENT | {"test": True}, *bad)):
        ask("POST", "/api/v1/events", json={"idempotencyKey": f"k{number}", **event})
        ask("POST", "/api/v1/events/batch", json={"events": [{"idempotencyKey": f"b{number}", **event}]})
    raw = f'{{"event": "{VALUE}", "contact": {{"email": "{EMAIL}"'.encode()
    for content in (raw, raw * 40_000, b"\xff" + raw):
        ask("POST", "/api/v1/events", content=content, headers={"content-type": "application/json"})
    ask(
        "POST", "/api/v1/events", content=raw, headers={"content-type": VALUE, "x-request-id": live, "user-agent": live}
    )
    for key in (live[:-1], f"{live}x", f"Basic {live}"):
        ask("POST", f"/api/v1/events?key={live}&email={EMAIL}", kind=key, json=EVENT)
    ask("GET", f"/{VALUE}/{live}?{EMAIL}")


def look_every_way(spied: Spied) -> None:
    """Ask about people, in SQL and otherwise, well and badly."""
    ask = spied.ask
    for kind in ("workbench", "blind"):
        for sql in (
            f"SELECT * FROM contacts WHERE email = '{EMAIL}'",
            f"SELECT '{VALUE}'::int",
            "SELECT (payload ->> 'secret')::int FROM app_events",
            f"SELECT {VALUE} FROM",
        ):
            ask("POST", "/api/v1/sql", kind, json={"sql": sql})
        ask("POST", "/api/v1/sql", kind, json={"sql": "SELECT :a", "params": {"a": EMAIL, "b": VALUE}})
    named = {"sql": "SELECT id AS contact_id FROM contacts WHERE email = :e", "params": {"e": EMAIL}}
    ask("POST", "/api/v1/segments", "workbench", json={"name": "canaries", **named})
    ask("GET", f"/api/v1/contacts?email={EMAIL}", "workbench")
    ask("GET", f"/api/v1/contacts?email={EMAIL}x&x={VALUE}", "workbench")
    ask("POST", "/api/v1/contacts/find", "workbench", json={"contact": {"email": EMAIL + "x", "externalId": VALUE}})
    ask("GET", f"/api/v1/unsubscribe?token={VALUE}")
    secret = ask("GET", "/api/v1/webhooks/secret").json()["secret"]
    spied.keys["webhook"] = secret
    spied.keys["webhook rolled"] = ask("POST", "/api/v1/webhooks/secret/roll").json()["secret"]
    made = ask("POST", "/api/v1/keys", "workbench", json={"kind": "live", "name": "short"}).json()
    spied.keys["made"] = made["secret"]
    spied.keys["rolled"] = ask("POST", f"/api/v1/keys/{made['key']['id']}/roll", "workbench", json={}).json()["secret"]
    ask("POST", "/api/v1/inapp/session", "publishable", json={"message": VALUE, "signature": EMAIL})


def break_things(spied: Spied) -> None:
    """Provoke refusals by Postgres and internal errors with requests that contain canaries."""
    spied.sql(
        "ALTER TABLE events ADD CONSTRAINT none CHECK (payload ->> 'secret' IS NULL OR event <> 'refused') NOT VALID"
    )
    spied.ask("POST", "/api/v1/events", json=EVENT | {"event": "refused"})
    spied.sql("ALTER TABLE events RENAME COLUMN payload TO renamed")
    spied.ask("POST", "/api/v1/events", json=EVENT | {"event": "broken"})
    spied.ask("GET", "/api/v1/events/catalog/deposit", "workbench")
    spied.ask("POST", "/api/v1/contacts/find", "workbench", json={"contact": {"email": EMAIL}})
    spied.sql("ALTER TABLE events RENAME COLUMN renamed TO payload")
    spied.sql("ALTER TABLE contacts RENAME COLUMN attributes TO renamed")
    spied.ask("POST", "/api/v1/events", json=EVENT | {"event": "broken", "contact": {"email": f"new.{EMAIL}"}})
    spied.ask("GET", f"/api/v1/contacts?email={EMAIL}", "workbench")
    spied.sql("ALTER TABLE contacts RENAME COLUMN renamed TO attributes")


def texts_of(spied: Spied) -> Iterator[tuple[str, str, str]]:
    """Give table, column and all text of every column of ours."""
    columns = spied.sql(
        "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t"
        " USING (table_schema, table_name) WHERE table_schema = 'workbench' AND table_type = 'BASE TABLE'"
        " AND table_name !~ '^events_'"
    )
    for table, column in columns:
        ((text,),) = spied.sql(f"SELECT string_agg({column}::text, ' ') FROM {table}")
        yield table, column, text or ""


def test_no_canary_sings(spied: Spied) -> None:
    created = spied.ask(
        "POST", "/api/v1/automations", "workbench",
        json={"name": "a", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": GRAPH, "active": True},
    )  # fmt: skip
    published = spied.ask("POST", f"/api/v1/automations/{created.json()['id']}/publish", "workbench", json={})
    assert published.status_code == 200, published.text
    send_every_way(spied)
    look_every_way(spied)
    done = "SELECT count(*) FROM entries WHERE state IN ('pending', 'running')"
    until(lambda: spied.sql(done) == [(0,)], "the engine has tried everything")
    break_things(spied)
    numbers = httpx.get(f"http://127.0.0.1:{spied.port}/metrics").text
    statements = str(spied.sql("SELECT query FROM pg_stat_statements UNION ALL SELECT query FROM pg_stat_activity"))
    texts = list(texts_of(spied))
    spied.house.stop()
    spied.sql("CHECKPOINT")
    outputs = {file.name: file.read_text() for file in spied.logs.glob("*.log")}
    assert {"request_failed", "write_failed"} <= set(re.findall(r'"word": "(\w+)"', str(outputs)))
    outputs |= {"postgres.log": next(spied.logs.parent.rglob("postgres.log")).read_text(), "metrics": numbers}
    outputs |= {"pg_stat_statements": statements, "answers": str(spied.answers)}
    secrets = {SECRET, *spied.keys.values()}
    for name, text in outputs.items():
        leaked = [canary for canary in (*secrets, EMAIL, VALUE) if canary in text]
        assert not leaked, f"{leaked} in {name}: {_around(text, leaked[0])}"
    for table, column, text in texts:
        assert not [canary for canary in (*secrets, EMAIL) if canary in text], f"{table}.{column}"
    assert {(table, column) for table, column, text in texts if VALUE in text} <= PAYLOAD_COLUMNS
    for file in spied.embedded.data.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [canary for canary in (*secrets, EMAIL) if canary.encode() in content], file


def _around(text: str, canary: str) -> str:
    place = text.index(canary)
    return text[max(place - 300, 0) : place + 300]
