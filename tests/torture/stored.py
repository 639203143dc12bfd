"""What the service holds in the end: the rows that the promises speak of, and what its own answers say of them."""

from collections.abc import AsyncIterator, Callable, Collection
from datetime import datetime
from typing import Any, TypeVar

import httpx
import msgspec
import psycopg
from psycopg.rows import class_row

from api.keyring import Keyring, OrgKeys
from tests.torture.clients import Account
from tests.torture.log import Identifier, IdentifierKind, Sent, given


class EventRow(msgspec.Struct, frozen=True):
    """An event; emails are in clear. `received` by the process's clock; `transaction` and `committed`: what stored it, and when."""

    org: str
    id: str
    contact_id: str
    event: str
    occurred_at: datetime
    payload: dict[str, Any]
    key: str
    wallet: str | None
    email: str | None
    external_id: str | None
    received: int
    transaction: int
    committed: int

    def identifiers(self) -> list[Identifier]:
        """Return what was sent, in the order in which it decides."""
        return given(self.wallet, self.email, self.external_id)

    def opened(self, email: Callable[[str | None], str | None]) -> "EventRow":
        return msgspec.structs.replace(self, email=email(self.email))


class KeyRow(msgspec.Struct, frozen=True):
    org: str
    event_id: str


class DryRow(msgspec.Struct, frozen=True):
    org: str
    id: str
    key: str
    payload: dict[str, Any]


class ContactRow(msgspec.Struct, frozen=True):
    org: str
    id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    attributes: dict[str, Any]
    tags: list[str]

    def identifiers(self) -> dict[IdentifierKind, str]:
        return dict(given(self.wallet, self.email, self.external_id))

    def opened(self, email: Callable[[str | None], str | None]) -> "ContactRow":
        return msgspec.structs.replace(self, email=email(self.email))


class OwnerRow(msgspec.Struct, frozen=True):
    """An identifier and its contact; one that nobody sent shows as its digest."""

    org: str
    kind: IdentifierKind
    value: str
    contact_id: str

    def opened(self, value: Callable[[IdentifierKind, str], str]) -> "OwnerRow":
        return msgspec.structs.replace(self, value=value(self.kind, self.value))


class ConflictRow(msgspec.Struct, frozen=True):
    """An identifier of an event pointed elsewhere, and what was done about it."""

    event_id: str
    kind: IdentifierKind
    outcome: str


class EntryRow(msgspec.Struct, frozen=True):
    org: str
    id: str
    automation_id: str
    event_id: str
    contact_id: str
    state: str
    last_error: str | None


class SwitchRow(msgspec.Struct, frozen=True):
    """An automation was switched on or off by a transaction that committed then."""

    org: str
    automation_id: str
    active: bool
    committed: int


class Stored(msgspec.Struct):
    """All of it. Events come in the order of their commits; within one transaction by id, which grows as a process reads."""

    events: list[EventRow]
    keys: list[KeyRow]
    dry_runs: list[DryRow]
    contacts: list[ContactRow]
    owners: list[OwnerRow]
    conflicts: list[ConflictRow]
    entries: list[EntryRow]
    switches: list[SwitchRow]


class Told(msgspec.Struct):
    """Counts by organization and event name, as the catalog and as SQL tell them."""

    catalog: dict[str, dict[str, int]]
    app_events: dict[str, dict[str, int]]


_US = "(extract(epoch FROM {}) * 1000000)::bigint"
_COMMITTED = _US.format("coalesce(pg_xact_commit_timestamp(t.xmin), clock_timestamp())")
_OF_ORG = "JOIN workbench.organizations o ON o.id = t.org_id"
_EVENTS = f"""
    SELECT o.name AS org, t.id::text, contact_id::text, event, occurred_at, payload, idempotency_key AS key, wallet_address AS wallet, email, external_id,
           {_US.format("t.created_at")} AS received, t.xmin::text::bigint AS transaction, {_COMMITTED} AS committed
    FROM workbench.events t {_OF_ORG}
    ORDER BY committed, transaction, t.id"""
_KEYS = f"SELECT o.name AS org, event_id::text FROM workbench.idempotency_keys t {_OF_ORG}"
_DRY_RUNS = f"SELECT o.name AS org, t.id::text, idempotency_key AS key, payload FROM workbench.dry_runs t {_OF_ORG}"
_CONTACTS = f"""
    SELECT o.name AS org, t.id::text, wallet_address AS wallet, email, external_id, attributes, tags
    FROM workbench.contacts t {_OF_ORG}"""
_KIND = "(ARRAY['wallet', 'email', 'external_id'])[kind] AS kind"
_OWNERS = f"""
    SELECT o.name AS org, {_KIND}, value_digest::text AS value, contact_id::text
    FROM workbench.identities t {_OF_ORG}"""
_CONFLICTS = f"SELECT event_id::text, {_KIND}, outcome FROM workbench.identity_conflicts"
_ENTRIES = f"""
    SELECT o.name AS org, t.id::text, automation_id::text, event_id::text, contact_id::text, state, last_error
    FROM workbench.entries t {_OF_ORG}"""
_SWITCHES = f"""
    SELECT o.name AS org, subject_id::text AS automation_id, action = 'automation.activate' AS active,
           {_COMMITTED} AS committed
    FROM workbench.audit_log t {_OF_ORG}
    WHERE action IN ('automation.activate', 'automation.deactivate')
    ORDER BY committed"""
_OPEN = "SELECT count(*) FROM workbench.entries WHERE state NOT IN ('completed', 'exited', 'cancelled', 'dead')"
_LEFT = """
    SELECT 'advisory lock held by ' || pid FROM pg_locks
    WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    UNION ALL
    SELECT pid || ' is ' || state FROM pg_stat_activity
    WHERE datname = current_database() AND state LIKE 'idle in transaction%'"""

Connection = psycopg.AsyncConnection[Any]
Row = TypeVar("Row")


async def read(connection: Connection, keyring: Keyring, sent: Collection[Sent]) -> Stored:
    """Return what is stored as `connection`, a superuser's, sees it; `sent` tells whose digests are which identifiers."""
    cursor = await connection.execute("SELECT name, id FROM workbench.organizations")
    orgs = {name: _Org(keyring.of(org_id)) for name, org_id in await cursor.fetchall()}
    for each in sent:
        orgs[each.org].learn(each.identifiers())
    return Stored(
        [each.opened(orgs[each.org].email) async for each in _rows(connection, EventRow, _EVENTS)],
        [each async for each in _rows(connection, KeyRow, _KEYS)],
        [each async for each in _rows(connection, DryRow, _DRY_RUNS)],
        [each.opened(orgs[each.org].email) async for each in _rows(connection, ContactRow, _CONTACTS)],
        [each.opened(orgs[each.org].value) async for each in _rows(connection, OwnerRow, _OWNERS)],
        [each async for each in _rows(connection, ConflictRow, _CONFLICTS)],
        [each async for each in _rows(connection, EntryRow, _ENTRIES)],
        [each async for each in _rows(connection, SwitchRow, _SWITCHES)],
    )


async def open_entries(connection: Connection) -> int:
    """Return how many entries have not come to their end."""
    row = await (await connection.execute(_OPEN)).fetchone()
    return int(row[0]) if row else 0


async def left_open(connection: Connection) -> list[str]:
    """Return what processes hold at this moment: advisory locks and idle transactions."""
    return [str(text) for (text,) in await (await connection.execute(_LEFT)).fetchall()]


async def ask(url: str, accounts: Collection[Account]) -> Told:
    """Return what an API tells of the stored events."""
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=60) as client:
        return Told(
            {each.org: await _catalog(client, each.keys["live"]) for each in accounts},
            {each.org: await _app_events(client, each.keys["workbench"]) for each in accounts},
        )


async def _catalog(client: httpx.AsyncClient, key: str) -> dict[str, int]:
    response = await client.get("/events/catalog", headers={"authorization": f"Bearer {key}"})
    return {each["event"]: each["count"] for each in response.raise_for_status().json()["events"]}


async def _app_events(client: httpx.AsyncClient, key: str) -> dict[str, int]:
    response = await client.post(
        "/sql",
        json={"sql": "SELECT event, count(*) FROM app_events GROUP BY event"},
        headers={"authorization": f"Bearer {key}"},
    )
    return dict(response.raise_for_status().json()["rows"])


async def _rows(connection: Connection, kind: type[Row], statement: str) -> AsyncIterator[Row]:
    async with connection.cursor(row_factory=class_row(kind)) as cursor:
        await cursor.execute(statement)
        async for row in cursor:
            yield row


class _Org:
    """What is sealed and digested for one organization, told in clear."""

    def __init__(self, keys: OrgKeys) -> None:
        self._keys = keys
        self._values: dict[str, str] = {}
        self._emails: dict[str, str] = {}

    def learn(self, identifiers: list[Identifier]) -> None:
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
