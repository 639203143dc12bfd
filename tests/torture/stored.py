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
    """An entry. `version`: the pinned one; `attempts`: claims of the step it stands at; `replays`: lives after a death."""

    org: str
    id: str
    automation_id: str
    version: int | None
    event_id: str
    contact_id: str
    state: str
    outcome: str | None
    node_id: str | None
    attempts: int
    last_error: str | None
    replays: int


class StepRow(msgspec.Struct, frozen=True):
    """What happened at a node under a claim, `at` which moment of the engine's clock, and when that was committed."""

    entry_id: str
    claim: int
    step: int
    attempt: int
    node_id: str
    kind: str
    outcome: str
    handle: str | None
    detail: dict[str, Any]
    at: int
    committed: int


class LeaseRow(msgspec.Struct, frozen=True):
    """A lease was given or renewed until then, or (None) ended, as the witness saw it."""

    entry_id: str
    token: int
    until: int | None
    committed: int


class MessageRow(msgspec.Struct, frozen=True):
    """A message. `recipient` of a webhook: the url; of an email: the address, in clear."""

    org: str
    id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    recipient: str | None
    subject: str | None
    body: str | None
    created: int

    def opened(self, email: Callable[[str | None], str | None]) -> "MessageRow":
        return msgspec.structs.replace(self, recipient=email(self.recipient)) if self.channel == "email" else self


class VersionRow(msgspec.Struct, frozen=True):
    """A published version of an automation."""

    automation_id: str
    version: int
    graph: dict[str, Any]
    committed: int


class SwitchRow(msgspec.Struct, frozen=True):
    """An automation was switched on or off by a transaction that committed then."""

    org: str
    automation_id: str
    active: bool
    committed: int


class Stored(msgspec.Struct):
    """All of it. Events come in the order of their commits; within one transaction by id, which grows as a process reads.

    The steps of an entry come as it took them, failed ones included; its leases as they were given.
    """

    events: list[EventRow]
    keys: list[KeyRow]
    dry_runs: list[DryRow]
    contacts: list[ContactRow]
    owners: list[OwnerRow]
    conflicts: list[ConflictRow]
    entries: list[EntryRow]
    switches: list[SwitchRow]
    steps: list[StepRow]
    leases: list[LeaseRow]
    messages: list[MessageRow]
    versions: list[VersionRow]


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
    SELECT o.name AS org, t.id::text, automation_id::text, automation_version AS version, event_id::text, contact_id::text,
           state, outcome, node_id, attempts, last_error, (
               SELECT count(*) FROM workbench.entry_transitions r
               WHERE r.org_id = t.org_id AND r.entry_id = t.id AND r.from_state = 'dead') AS replays
    FROM workbench.entries t {_OF_ORG}"""
_STEPS = f"""
    SELECT entry_id::text, claim, step, attempt, node_id, kind, outcome, handle, detail, {_US.format("at")} AS at,
           {_COMMITTED} AS committed
    FROM workbench.entry_steps t
    ORDER BY entry_id, step, claim"""
_LEASES = f"""
    SELECT entry_id::text, token, {_US.format("until")} AS until, {_COMMITTED} AS committed
    FROM torture.leases t
    ORDER BY seq"""
_MESSAGES = f"""
    SELECT o.name AS org, t.id::text, entry_id::text, node_id, channel, status, recipient, subject, body,
           {_US.format("t.created_at")} AS created
    FROM workbench.messages t {_OF_ORG}"""
_VERSIONS = f"""
    SELECT automation_id::text, version, graph, {_COMMITTED} AS committed
    FROM workbench.automation_versions t
    ORDER BY automation_id, version"""
_SWITCHES = f"""
    SELECT o.name AS org, subject_id::text AS automation_id, action = 'automation.activate' AS active,
           {_COMMITTED} AS committed
    FROM workbench.audit_log t {_OF_ORG}
    WHERE action IN ('automation.activate', 'automation.deactivate', 'automation.archive')
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
        [each async for each in _rows(connection, StepRow, _STEPS)],
        [each async for each in _rows(connection, LeaseRow, _LEASES)],
        [each.opened(orgs[each.org].email) async for each in _rows(connection, MessageRow, _MESSAGES)],
        [each async for each in _rows(connection, VersionRow, _VERSIONS)],
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
