"""Two organizations with a row in every table, and the real API in front of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import psycopg
import pytest

from api.app import App, create_app
from api.auth import keys
from api.clock import token
from api.crypto import Keyring
from api.embedded import Server
from api.settings import Settings
from api.store.database import Database
from tests.conftest import clone
from tests.in_process import served
from tests.servers import connect_as, database_dsn

SECRET = "a secret of the query tests"
ARROW = "application/vnd.apache.arrow.stream"

_ROWS = """
INSERT INTO workbench.contacts (org_id, id, email, email_domain, wallet_address, external_id, attributes, tags,
    created_at, updated_at)
VALUES (%(org)s, %(id)s, %(email)s, 'example.com', %(canary)s, %(canary)s, '{"tier": "gold"}',
    ARRAY['vip', 'a "b", c'], %(at)s, %(at)s);
INSERT INTO workbench.contacts (org_id, id, email, email_domain, external_id, merged_into, created_at, updated_at)
VALUES (%(org)s, gen_random_uuid(), %(email)s, 'example.com', %(canary)s, %(id)s, %(at)s, %(at)s);
INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, payload, idempotency_key, email)
VALUES (%(org)s, %(id)s, %(id)s, %(canary)s, %(at)s, %(at)s, '{"amountUsd": 12345678901234567890.10, "ok": true}',
    %(canary)s, %(email)s);
INSERT INTO workbench.automations (org_id, id, name, trigger_spec, graph, active, revision, created_at, updated_at)
VALUES (%(org)s, %(id)s, %(canary)s, '{}', '{}', true, 1, %(at)s, %(at)s);
INSERT INTO workbench.entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state, outcome,
    due_at, created_at, updated_at)
VALUES (%(org)s, %(id)s, %(id)s, %(id)s, %(at)s, %(id)s, 'dead', %(canary)s, %(at)s, %(at)s, %(at)s);
INSERT INTO workbench.entry_steps (org_id, entry_id, claim, step, attempt, node_id, kind, outcome, at)
VALUES (%(org)s, %(id)s, 1, 1, 1, 'n', 'exit', %(canary)s, %(at)s);
INSERT INTO workbench.moves (org_id, id, automation_id, version, mode, state, patient_until, created_at)
VALUES (%(org)s, %(id)s, %(id)s, 1, '"safe"', 'done', %(at)s, %(at)s);
INSERT INTO workbench.entry_moves (org_id, move_id, entry_id, from_version, node_id, moved_at)
VALUES (%(org)s, %(id)s, %(id)s, 1, %(canary)s, %(at)s);
INSERT INTO workbench.messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,
    subject, body, created_at)
VALUES (%(org)s, %(id)s, %(id)s, %(id)s, %(id)s, %(canary)s, 1, 'inapp', 'sent', 'hi', %(canary)s, %(at)s);
INSERT INTO workbench.message_outcomes (org_id, at, message_id, outcome, channel, reason)
VALUES (%(org)s, %(at)s, %(id)s, 'sent', 'inapp', %(canary)s);
INSERT INTO workbench.segments (org_id, id, name, kind, size, revision, created_at, created_by, updated_at, updated_by)
VALUES (%(org)s, %(id)s, %(canary)s, 'audience', 1, 1, %(at)s, %(id)s, %(at)s, %(id)s);
INSERT INTO workbench.segment_sizes (org_id, segment_id, at, size, entered, departed)
VALUES (%(org)s, %(id)s, %(at)s, 1, 1, 0);
INSERT INTO workbench.segment_members (org_id, segment, contact_id, entered_at)
VALUES (%(org)s, %(canary)s, %(id)s, %(at)s);
INSERT INTO workbench.broadcasts (org_id, id, automation_id, segment, at, state, contacts, watermark, created_at)
VALUES (%(org)s, %(id)s, %(id)s, %(canary)s, %(at)s, 'done', 1, %(at)s, %(at)s);
INSERT INTO workbench.contact_changes (org_id, contact_id, changed_at, field, old, new, cause, stored_in)
VALUES (%(org)s, %(id)s, %(at)s, %(canary)s, '1', '2', 'event', 1);
INSERT INTO workbench.onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index,
    digest, block_number, block_hash, block_time, created_at)
VALUES (%(org)s, %(id)s, %(id)s, 1, %(canary)s, 'Transfer', '', %(canary)s, 0, %(id)s, 1, '', %(at)s, %(at)s);
INSERT INTO workbench.topics (org_id, name, label, opt_in, created_at, updated_at)
VALUES (%(org)s, %(canary)s, 'News', 'none', %(at)s, %(at)s);
INSERT INTO workbench.consents (org_id, id, contact_id, topic, granted, source, at)
VALUES (%(org)s, %(id)s, %(id)s, %(canary)s, false, 'api', %(at)s);
INSERT INTO workbench.identities (org_id, kind, value_digest, contact_id, created_at)
SELECT %(org)s, kind, digest::uuid, %(id)s, %(at)s
FROM (VALUES (1, %(id)s), (2, 'aaaaaaaa-0000-0000-0000-000000000001'), (2, 'bbbbbbbb-0000-0000-0000-000000000001'))
    AS i (kind, digest);  -- the email has two indexes, as during the rotation of a secret
INSERT INTO workbench.suppressions (org_id, channel, address_digest, reason, cause, created_at)
SELECT %(org)s, 'email', value_digest, 'opted_out', %(canary)s, %(at)s FROM workbench.identities WHERE org_id = %(org)s;
INSERT INTO workbench.event_notices (org_id, id, outcome, event, received_at)
VALUES (%(org)s, 'ffffffff-ffff-7000-8000-000000000001', 'rejected', %(canary)s, %(at)s),
       (%(org)s, 'ffffffff-ffff-7000-8000-000000000002', 'deduplicated', 'again', %(at)s);  -- ids too young for upkeep
"""


class Analyst(msgspec.Struct, frozen=True):
    """An analyst of one organization, over HTTP."""

    org_id: int
    key: str
    client: httpx.AsyncClient

    async def post(self, text: str, params: Any = None, accept: str = "application/json") -> httpx.Response:
        body = {"sql": text} if params is None else {"sql": text, "params": params}
        headers = {"Authorization": f"Bearer {self.key}", "Accept": accept}
        return await self.client.post("/api/v1/sql", json=body, headers=headers)

    async def rows(self, text: str, params: Any = None) -> list[list[Any]]:
        response = await self.post(text, params)
        assert response.status_code == 200, response.text
        return response.json()["rows"]


class SqlService(msgspec.Struct, frozen=True):
    """A served database: `ann` of organization a, `ben` of b, `pia` of a, with `pii:read`."""

    dsn: str
    app: App
    ann: Analyst
    ben: Analyst
    pia: Analyst


@pytest.fixture(scope="module")
def module_database(postgres: Server, template: str) -> Iterator[str]:
    """A migrated database for the tests of one file, which only read."""
    with clone(postgres, template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def keyring() -> Keyring:
    return Keyring(SECRET)


@pytest.fixture(scope="module")
async def org_ids(module_database: str, keyring: Keyring) -> dict[str, int]:
    """Organizations a and b, each with one row in every table; their ids by name."""
    ids = {name: await keys.create_org(module_database, name) for name in ("a", "b")}
    with connect_as(module_database, cursor_factory=psycopg.ClientCursor) as connection:
        for name, org_id in ids.items():
            email = keyring.of(org_id).seal_email(f"{name}nn@example.com")
            values = {"org": org_id, "canary": f"canary_{name}", "email": email, "at": "2026-01-02 03:04:05.060+00"}
            connection.execute(_ROWS, values | {"id": f"00000000-0000-0000-0000-00000000000{org_id}"})
    return ids


@pytest.fixture(scope="module")
async def database(module_database: str) -> AsyncIterator[Database]:
    opened = Database(module_database)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture(scope="module")
async def service(module_database: str, org_ids: dict[str, int], keyring: Keyring) -> AsyncIterator[SqlService]:
    """The API over the database with both organizations."""
    app = create_app(Settings(), module_database, SECRET, name=f"query-{token(4).hex()}")
    plain = ["sql:read", "events:read"]

    async def new_analyst(org: str, scopes: list[str]) -> Analyst:
        return Analyst(org_ids[org], await keys.create(module_database, keyring, org, "workbench", scopes), client)

    async with served(app) as port, httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
        yield SqlService(
            module_database,
            app,
            await new_analyst("a", plain),
            await new_analyst("b", plain),
            await new_analyst("a", [*plain, "pii:read"]),
        )


_RUNNING_QUERIES = """
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'workbench sql'
        AND query LIKE 'FETCH %' AND state = 'active' AND clock_timestamp() - query_start > interval '0.3 s'"""


async def wait_for_running_query(postgres: Server, database_url: str) -> None:
    """Wait until an analyst's query has worked on a batch of rows for 0.3 seconds."""
    admin_dsn = database_dsn(postgres.admin_dsn, urlsplit(database_url).path[1:])
    async with asyncio.timeout(20), await psycopg.AsyncConnection.connect(admin_dsn, autocommit=True) as admin:
        while not (await admin.execute(_RUNNING_QUERIES)).rowcount:  # noqa: ASYNC110 - another server has no event for us
            await asyncio.sleep(0.05)
