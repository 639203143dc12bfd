"""Reads the rows at the end of a run, and the service's own counts."""

from collections.abc import AsyncIterator, Collection
from typing import Any, TypeVar

import httpx
import psycopg
from psycopg.rows import class_row

from api.crypto import Keyring, OrgKeys
from tests.torture.accounts import Account
from tests.torture.analysts import SEGMENT
from tests.torture.journeys import ORG as JOURNEYS
from tests.torture.log import Identifier, IdentifierKind, SentEvent
from tests.torture.remnants import remnants
from tests.torture.rows import (
    ConflictRow,
    ContactRow,
    DryRow,
    EntryRow,
    ErasureRow,
    EventRow,
    KeyRow,
    LeaseRow,
    MessageRow,
    OwnerRow,
    RevokedRow,
    ServiceCounts,
    StepRow,
    StoredRows,
    SwitchRow,
    VersionRow,
)

_US = "(extract(epoch FROM {}) * 1000000)::bigint"
_COMMITTED = _US.format("coalesce(pg_xact_commit_timestamp(t.xmin), clock_timestamp())")
_OF_ORG = f"JOIN workbench.organizations o ON o.id = t.org_id AND o.name <> '{JOURNEYS}'"
_NOT_JOURNEYS = f"t.org_id <> (SELECT id FROM workbench.organizations WHERE name = '{JOURNEYS}')"
_IS_ERASED = (
    "EXISTS (SELECT FROM workbench.contacts c WHERE c.org_id = t.org_id AND c.id = {} AND c.erased_at IS NOT NULL)"
)
_ERASED = _IS_ERASED.format("t.contact_id")
_FIRST_COMMITTED = _US.format("coalesce(pg_xact_commit_timestamp(w.xmin), clock_timestamp())")
_EVENTS = f"""
    SELECT o.name AS org, t.id::text, t.contact_id::text, event, occurred_at, n.payload, n.idempotency_key AS key,
           n.wallet_address AS wallet, n.email, n.external_id, {_US.format("t.created_at")} AS received,
           coalesce(w.xmin, t.xmin)::text::bigint AS transaction, {_FIRST_COMMITTED} AS committed
    FROM workbench.events t {_OF_ORG}
    LEFT JOIN torture.events w ON w.org_id = t.org_id AND w.id = t.id
    CROSS JOIN LATERAL (
        SELECT w.payload, w.idempotency_key, w.wallet_address, w.email, w.external_id WHERE {_ERASED}
        UNION ALL
        SELECT t.payload, t.idempotency_key, t.wallet_address, t.email, t.external_id WHERE NOT {_ERASED}) n
    ORDER BY committed, transaction, t.id"""
_KEYS = f"SELECT o.name AS org, event_id::text FROM workbench.idempotency_keys t {_OF_ORG}"
_DRY_RUNS = f"""
    SELECT o.name AS org, t.id::text, CASE WHEN {_ERASED} THEN w.idempotency_key ELSE t.idempotency_key END AS key,
           CASE WHEN {_ERASED} THEN w.payload ELSE t.payload END AS payload
    FROM workbench.dry_runs t {_OF_ORG}
    LEFT JOIN torture.dry_runs w ON w.org_id = t.org_id AND w.id = t.id"""
_CONTACTS = f"""
    SELECT o.name AS org, t.id::text, wallet_address AS wallet, email, external_id, attributes, tags
    FROM workbench.contacts t {_OF_ORG}"""
_KIND = "(ARRAY['wallet', 'email', 'external_id'])[kind] AS kind"
_OWNERS = f"""
    SELECT o.name AS org, {_KIND}, value_digest::text AS value, contact_id::text
    FROM workbench.identities t {_OF_ORG}"""
_CONFLICTS = f"""
    SELECT event_id::text, {_KIND}, outcome FROM workbench.identity_conflicts t WHERE {_NOT_JOURNEYS}
    UNION
    SELECT event_id::text, {_KIND}, outcome FROM torture.identity_conflicts t
    WHERE {_ERASED} OR {_IS_ERASED.format("t.other_contact_id")}"""
_ENTRIES = f"""
    SELECT o.name AS org, t.id::text, automation_id::text, automation_version AS version,
           event_id::text, contact_id::text,
           state, outcome, node_id, attempts, last_error, (
               SELECT count(*) FROM workbench.entry_transitions r
               WHERE r.org_id = t.org_id AND r.entry_id = t.id AND r.from_state = 'dead') AS replays
    FROM workbench.entries t {_OF_ORG}"""
_STEPS = f"""
    SELECT t.entry_id::text, t.claim, t.step, attempt, node_id, kind, outcome, handle,
           CASE WHEN t.detail = '{{}}' THEN coalesce(w.detail, t.detail) ELSE t.detail END AS detail,
           {_US.format("at")} AS at,
           {_FIRST_COMMITTED} AS committed
    FROM workbench.entry_steps t
    LEFT JOIN torture.entry_steps w
      ON w.org_id = t.org_id AND w.entry_id = t.entry_id AND w.claim = t.claim AND w.step = t.step
    WHERE {_NOT_JOURNEYS}
    ORDER BY entry_id, step, claim"""
_LEASES = f"""
    SELECT entry_id::text, token, {_US.format("until")} AS until, {_COMMITTED} AS committed
    FROM torture.leases t
    WHERE entry_id NOT IN (SELECT t.id FROM workbench.entries t WHERE NOT {_NOT_JOURNEYS})
    ORDER BY seq"""
_MESSAGES = f"""
    SELECT o.name AS org, t.id::text, entry_id::text, node_id, channel, status, n.wallet_address AS wallet, n.recipient,
           n.subject, n.body, {_US.format("t.created_at")} AS created, {_FIRST_COMMITTED} AS committed,
           {_US.format("t.delivered_at")} AS delivered, t.contact_id::text
    FROM workbench.messages t {_OF_ORG}
    LEFT JOIN torture.messages w ON w.org_id = t.org_id AND w.id = t.id
    CROSS JOIN LATERAL (
        SELECT w.wallet_address, w.recipient, w.subject, w.body WHERE {_ERASED}
        UNION ALL
        SELECT t.wallet_address, t.recipient, t.subject, t.body WHERE NOT {_ERASED}) n"""
_VERSIONS = f"""
    SELECT automation_id::text, version, graph, {_COMMITTED} AS committed
    FROM workbench.automation_versions t
    WHERE {_NOT_JOURNEYS}
    ORDER BY automation_id, version"""
_SWITCHES = f"""
    SELECT o.name AS org, subject_id::text AS automation_id, action = 'automation.activate' AS active,
           {_COMMITTED} AS committed
    FROM workbench.audit_log t {_OF_ORG}
    WHERE action IN ('automation.activate', 'automation.deactivate', 'automation.archive')
    ORDER BY committed"""
_REVOKED = f"""
    SELECT subject_id::text AS key_id, {_COMMITTED} AS committed
    FROM workbench.audit_log t WHERE action = 'key.revoke' AND {_NOT_JOURNEYS}"""
_ERASURES = f"""
    SELECT o.name AS org, contact_id::text, t.xmin::text::bigint AS transaction, {_COMMITTED} AS committed
    FROM torture.erasures t {_OF_ORG}
    ORDER BY committed, transaction"""
_WAITING = f"""
    SELECT DISTINCT o.name, wallet_address FROM workbench.messages t {_OF_ORG}
    WHERE channel = 'inapp' AND status = 'sent' AND delivered_at IS NULL AND wallet_address LIKE '0x%'"""
_COUNTED = "SELECT event, count(*) FROM app_events GROUP BY event"
_MEMBERS = f"SELECT contact_id FROM segment_members WHERE segment = '{SEGMENT}'"
_OPEN = "SELECT count(*) FROM workbench.entries WHERE state NOT IN ('completed', 'exited', 'cancelled', 'dead')"
_LEFT = """
    SELECT 'advisory lock held by ' || pid FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT pid || ' is ' || state FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'"""

Connection = psycopg.AsyncConnection[Any]
Row = TypeVar("Row")


async def read(connection: Connection, keyring: Keyring, sent: Collection[SentEvent]) -> StoredRows:
    """Read all rows through a superuser's `connection`.

    Digests of identifiers are resolved with the events in `sent`.
    """
    cursor = await connection.execute("SELECT name, id FROM workbench.organizations")
    orgs = {name: _Org(keyring.of(org_id)) for name, org_id in await cursor.fetchall()}
    for event in sent:
        orgs[event.org].add_values(event.identifiers())
    return StoredRows(
        [row.opened(orgs[row.org].email) async for row in _rows(connection, EventRow, _EVENTS)],
        [row async for row in _rows(connection, KeyRow, _KEYS)],
        [row async for row in _rows(connection, DryRow, _DRY_RUNS)],
        [row.opened(orgs[row.org].email) async for row in _rows(connection, ContactRow, _CONTACTS)],
        [row.opened(orgs[row.org].value) async for row in _rows(connection, OwnerRow, _OWNERS)],
        [row async for row in _rows(connection, ConflictRow, _CONFLICTS)],
        [row async for row in _rows(connection, EntryRow, _ENTRIES)],
        [row async for row in _rows(connection, SwitchRow, _SWITCHES)],
        [row async for row in _rows(connection, StepRow, _STEPS)],
        [row async for row in _rows(connection, LeaseRow, _LEASES)],
        [row.opened(orgs[row.org].email) async for row in _rows(connection, MessageRow, _MESSAGES)],
        [row async for row in _rows(connection, VersionRow, _VERSIONS)],
        [row async for row in _rows(connection, RevokedRow, _REVOKED)],
        [row async for row in _rows(connection, ErasureRow, _ERASURES)],
        await remnants(connection),
    )


async def open_entries(connection: Connection) -> int:
    """Return the number of entries that have not ended."""
    row = await (await connection.execute(_OPEN)).fetchone()
    return int(row[0]) if row else 0


async def waiting(connection: Connection) -> list[tuple[str, str]]:
    """Return the inboxes with unacknowledged messages: organizations and wallets."""
    return [(str(org), str(wallet)) for org, wallet in await (await connection.execute(_WAITING)).fetchall()]


async def left_open(connection: Connection) -> list[str]:
    """Return the advisory locks and idle transactions at this moment."""
    return [str(text) for (text,) in await (await connection.execute(_LEFT)).fetchall()]


async def request_counts(url: str, accounts: Collection[Account]) -> ServiceCounts:
    """Return an API process's counts of the stored events."""
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=60) as client:
        return ServiceCounts(
            {account.org: await _catalog(client, account.keys["live"]) for account in accounts},
            {account.org: dict(await _sql(client, account.keys["workbench"], _COUNTED)) for account in accounts},
            {
                account.org: [row[0] for row in await _sql(client, account.keys["workbench"], _MEMBERS)]
                for account in accounts
            },
        )


async def _catalog(client: httpx.AsyncClient, key: str) -> dict[str, int]:
    response = await client.get("/events/catalog", headers={"authorization": f"Bearer {key}"})
    return {event["event"]: event["count"] for event in response.raise_for_status().json()["events"]}


async def _sql(client: httpx.AsyncClient, key: str, text: str) -> list[list[Any]]:
    response = await client.post("/sql", json={"sql": text}, headers={"authorization": f"Bearer {key}"})
    rows: list[list[Any]] = response.raise_for_status().json()["rows"]
    return rows


async def _rows(connection: Connection, kind: type[Row], statement: str) -> AsyncIterator[Row]:
    async with connection.cursor(row_factory=class_row(kind)) as cursor:
        await cursor.execute(statement)
        async for row in cursor:
            yield row


class _Org:
    """Decrypts and resolves the emails and digests of one organization."""

    def __init__(self, keys: OrgKeys) -> None:
        self._keys = keys
        self._values: dict[str, str] = {}
        self._emails: dict[str, str] = {}

    def add_values(self, identifiers: list[Identifier]) -> None:
        for kind, value in identifiers:
            self._values[f"{kind} {self._keys.digest(kind, value)}"] = value

    def value(self, kind: IdentifierKind, digest: str) -> str:
        return self._values.get(f"{kind} {digest.replace('-', '')}", digest)

    def email(self, sealed: str | None) -> str | None:
        if sealed is None:
            return None
        if sealed not in self._emails:
            self._emails[sealed] = self._keys.open_email(sealed)
        return self._emails[sealed]
