"""docs/trust.md O1, O2, V19: secrets and personal data do not leak, also when requests fail.

Real processes on a separate Postgres get secrets, addresses and values of payloads in every part of requests, valid and
invalid. Then everything that was answered or written is searched: our logs and those of Postgres, answers, metrics, and
for secrets and addresses also the files of the database. Values of payloads are in the database by design, in the
columns of `PAYLOAD_COLUMNS`.
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
from tests.canaries import PAYLOAD_COLUMNS
from tests.inapp.wallet import evm_wallet
from tests.installation import SECRET, Api, Installation, until
from tests.running import free_port

EMAIL = "canary.mail.3b1f@example.com"
VALUE = "canary-value-8c2e"


class WatchedInstallation:
    """An installation, and the answers to its callers."""

    def __init__(self, installation: Installation, embedded: EmbeddedPostgres, admin_dsn: str, logs: Path) -> None:
        self.installation, self.embedded, self.admin_dsn, self.logs = installation, embedded, admin_dsn, logs
        self.answers: list[str] = []
        self.keys: dict[str, str] = {}
        self.api: Api
        self.port = free_port()

    def request(self, method: str, path: str, kind: str = "live", **sent: Any) -> httpx.Response:
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
async def watched(embedded: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[WatchedInstallation]:
    logs = tmp_path / "logs"
    logs.mkdir()
    with embedded as server:
        await migrate(server.dsn, admin_dsn=server.admin_dsn)
        installation = Installation(server.dsn, logs)
        watched = WatchedInstallation(installation, embedded, server.admin_dsn, logs)
        watched.sql("CREATE EXTENSION pg_stat_statements")
        watched.keys = await installation.organization()
        watched.keys["workbench"] = await keys.create(server.dsn, installation.keyring, "demo", "workbench", WORKBENCH)
        watched.keys["blind"] = await keys.create(server.dsn, installation.keyring, "demo", "workbench", ["sql:read"])
        watched.keys["publishable"] = await keys.create(server.dsn, installation.keyring, "demo", "publishable")
        metrics = {
            "WORKBENCH_METRICS": str(watched.port),
            "WORKBENCH_LOG_REQUESTS": "all",
            "WORKBENCH_RETRY_DELAYS": "60",
        }
        watched.api = installation.start_api(**metrics)
        installation.start_engine(**metrics)
        try:
            yield watched
        finally:
            installation.stop()


EVENT = {
    "event": "deposit",
    "contact": {"email": EMAIL, "walletAddress": evm_wallet("A")},
    "payload": {"secret": VALUE},
}
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


def send_events(watched: WatchedInstallation) -> None:
    """Send valid and invalid events."""
    request, live = watched.request, watched.keys["live"]
    bad: list[Any] = [EVENT | {"contact": {"email": f"{EMAIL} {VALUE}"}}, EVENT | {"event": f"no name {EMAIL}"}]
    bad += [EVENT | {"occurredAt": EMAIL}, EVENT | {"payload": VALUE}, EVENT | {"attributes": {"a": [VALUE]}}]
    for number, event in enumerate((EVENT, EVENT, EVENT | {"test": True}, *bad)):
        request("POST", "/api/v1/events", json={"idempotencyKey": f"k{number}", **event})
        request("POST", "/api/v1/events/batch", json={"events": [{"idempotencyKey": f"b{number}", **event}]})
    raw = f'{{"event": "{VALUE}", "contact": {{"email": "{EMAIL}"'.encode()
    for content in (raw, raw * 40_000, b"\xff" + raw):
        request("POST", "/api/v1/events", content=content, headers={"content-type": "application/json"})
    request(
        "POST", "/api/v1/events", content=raw, headers={"content-type": VALUE, "x-request-id": live, "user-agent": live}
    )
    for key in (live[:-1], f"{live}x", f"Basic {live}"):
        request("POST", f"/api/v1/events?key={live}&email={EMAIL}", kind=key, json=EVENT)
    request("GET", f"/{VALUE}/{live}?{EMAIL}")


def send_queries(watched: WatchedInstallation) -> None:
    """Query contacts, in SQL and through other routes, with valid and invalid requests."""
    request = watched.request
    for kind in ("workbench", "blind"):
        for sql in (
            f"SELECT * FROM contacts WHERE email = '{EMAIL}'",
            f"SELECT '{VALUE}'::int",
            "SELECT (payload ->> 'secret')::int FROM app_events",
            f"SELECT {VALUE} FROM",
        ):
            request("POST", "/api/v1/sql", kind, json={"sql": sql})
        request("POST", "/api/v1/sql", kind, json={"sql": "SELECT :a", "params": {"a": EMAIL, "b": VALUE}})
    named = {"sql": "SELECT id AS contact_id FROM contacts WHERE email = :e", "params": {"e": EMAIL}}
    request("POST", "/api/v1/segments", "workbench", json={"name": "canaries", **named})
    request("GET", f"/api/v1/contacts?email={EMAIL}", "workbench")
    request("GET", f"/api/v1/contacts?email={EMAIL}x&x={VALUE}", "workbench")
    request("POST", "/api/v1/contacts/find", "workbench", json={"contact": {"email": EMAIL + "x", "externalId": VALUE}})
    request("GET", f"/api/v1/unsubscribe?token={VALUE}")
    secret = request("GET", "/api/v1/webhooks/secret").json()["secret"]
    watched.keys["webhook"] = secret
    watched.keys["webhook rolled"] = request("POST", "/api/v1/webhooks/secret/roll").json()["secret"]
    made = request("POST", "/api/v1/keys", "workbench", json={"kind": "live", "name": "short"}).json()
    watched.keys["made"] = made["secret"]
    rolled = request("POST", f"/api/v1/keys/{made['key']['id']}/roll", "workbench", json={}).json()
    watched.keys["rolled"] = rolled["secret"]
    request("POST", "/api/v1/inapp/session", "publishable", json={"message": VALUE, "signature": EMAIL})


def provoke_errors(watched: WatchedInstallation) -> None:
    """Provoke refusals by Postgres and internal errors with requests that contain canaries."""
    watched.sql(
        "ALTER TABLE events ADD CONSTRAINT none CHECK (payload ->> 'secret' IS NULL OR event <> 'refused') NOT VALID"
    )
    watched.request("POST", "/api/v1/events", json=EVENT | {"event": "refused"})
    watched.sql("ALTER TABLE events RENAME COLUMN payload TO renamed")
    watched.request("POST", "/api/v1/events", json=EVENT | {"event": "broken"})
    watched.request("GET", "/api/v1/events/catalog/deposit", "workbench")
    watched.request("POST", "/api/v1/contacts/find", "workbench", json={"contact": {"email": EMAIL}})
    watched.sql("ALTER TABLE events RENAME COLUMN renamed TO payload")
    watched.sql("ALTER TABLE contacts RENAME COLUMN attributes TO renamed")
    watched.request("POST", "/api/v1/events", json=EVENT | {"event": "broken", "contact": {"email": f"new.{EMAIL}"}})
    watched.request("GET", f"/api/v1/contacts?email={EMAIL}", "workbench")
    watched.sql("ALTER TABLE contacts RENAME COLUMN renamed TO attributes")


def texts_of(watched: WatchedInstallation) -> Iterator[tuple[str, str, str]]:
    """Yield the table, the name and the text of every column of our tables."""
    columns = watched.sql(
        "SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t"
        " USING (table_schema, table_name) WHERE table_schema = 'workbench' AND table_type = 'BASE TABLE'"
        " AND table_name !~ '^events_'"
    )
    for table, column in columns:
        ((text,),) = watched.sql(f"SELECT string_agg({column}::text, ' ') FROM {table}")
        yield table, column, text or ""


def test_no_secret_appears_in_responses_logs_or_tables(watched: WatchedInstallation) -> None:
    created = watched.request(
        "POST", "/api/v1/automations", "workbench",
        json={"name": "a", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": GRAPH, "active": True},
    )  # fmt: skip
    published = watched.request("POST", f"/api/v1/automations/{created.json()['id']}/publish", "workbench", json={})
    assert published.status_code == 200, published.text
    send_events(watched)
    send_queries(watched)
    done = "SELECT count(*) FROM entries WHERE state IN ('pending', 'running')"
    until(lambda: watched.sql(done) == [(0,)], "the engine has tried everything")
    provoke_errors(watched)
    numbers = httpx.get(f"http://127.0.0.1:{watched.port}/metrics").text
    statements = str(watched.sql("SELECT query FROM pg_stat_statements UNION ALL SELECT query FROM pg_stat_activity"))
    texts = list(texts_of(watched))
    watched.installation.stop()
    watched.sql("CHECKPOINT")
    outputs = {file.name: file.read_text() for file in watched.logs.glob("*.log")}
    assert {"request_failed", "write_failed"} <= set(re.findall(r'"word": "(\w+)"', str(outputs)))
    outputs |= {"postgres.log": next(watched.logs.parent.rglob("postgres.log")).read_text(), "metrics": numbers}
    outputs |= {"pg_stat_statements": statements, "answers": str(watched.answers)}
    secrets = {SECRET, *watched.keys.values()}
    for name, text in outputs.items():
        leaked = [canary for canary in (*secrets, EMAIL, VALUE) if canary in text]
        assert not leaked, f"{leaked} in {name}: {_around(text, leaked[0])}"
    for table, column, text in texts:
        assert not [canary for canary in (*secrets, EMAIL) if canary in text], f"{table}.{column}"
    assert {(table, column) for table, column, text in texts if VALUE in text} <= PAYLOAD_COLUMNS
    for file in watched.embedded.data.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert not [canary for canary in (*secrets, EMAIL) if canary.encode() in content], file


def _around(text: str, canary: str) -> str:
    place = text.index(canary)
    return text[max(place - 300, 0) : place + 300]
