"""The rows that the checker reads."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from tests.torture.log import Identifier, IdentifierKind, set_identifiers


class EventRow(msgspec.Struct, frozen=True):
    """An event with its email decrypted.

    `received` is by the process's clock; `transaction` and `committed` are those that stored it.
    """

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
        """Return the identifiers that were sent, strongest first."""
        return set_identifiers(self.wallet, self.email, self.external_id)

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
        return dict(set_identifiers(self.wallet, self.email, self.external_id))

    def opened(self, email: Callable[[str | None], str | None]) -> "ContactRow":
        return msgspec.structs.replace(self, email=email(self.email))


class OwnerRow(msgspec.Struct, frozen=True):
    """An identifier and its contact. An identifier that was never sent shows as its digest."""

    org: str
    kind: IdentifierKind
    value: str
    contact_id: str

    def opened(self, value: Callable[[IdentifierKind, str], str]) -> "OwnerRow":
        return msgspec.structs.replace(self, value=value(self.kind, self.value))


class ConflictRow(msgspec.Struct, frozen=True):
    """An identity conflict of an event and its outcome."""

    event_id: str
    kind: IdentifierKind
    outcome: str


class EntryRow(msgspec.Struct, frozen=True):
    """An entry.

    `version` is its pinned version, `attempts` counts the claims of its current step, `replays` its replays.
    """

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
    """A step of an entry under a claim. `at` is by the engine's clock."""

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
    """A lease granted or renewed until `until`, or ended (None), as the triggers of `recorder` recorded it."""

    entry_id: str
    token: int
    until: int | None
    committed: int


class MessageRow(msgspec.Struct, frozen=True):
    """A message. `recipient` is the URL of a webhook or the decrypted address of an email."""

    org: str
    id: str
    entry_id: str
    node_id: str
    channel: str
    status: str
    wallet: str | None
    recipient: str | None
    subject: str | None
    body: str | None
    created: int
    committed: int
    delivered: int | None
    contact_id: str

    def opened(self, email: Callable[[str | None], str | None]) -> "MessageRow":
        return msgspec.structs.replace(self, recipient=email(self.recipient)) if self.channel == "email" else self


class VersionRow(msgspec.Struct, frozen=True):
    """A published version of an automation."""

    automation_id: str
    version: int
    graph: dict[str, Any]
    committed: int


class SwitchRow(msgspec.Struct, frozen=True):
    """The commit of an automation's activation or deactivation."""

    org: str
    automation_id: str
    active: bool
    committed: int


class RevokedRow(msgspec.Struct, frozen=True):
    """The commit of a key's revocation."""

    key_id: str
    committed: int


class ErasureRow(msgspec.Struct, frozen=True):
    """The commit of a contact's erasure, or of the second erasure of what arrived in between."""

    org: str
    contact_id: str
    transaction: int
    committed: int


class StoredRows(msgspec.Struct):
    """All stored rows. Events are ordered by commit, and within one transaction by id.

    Steps and leases of an entry are in order, failed steps included. Rows that an erasure emptied are given as they
    were first written; `remnants` lists the data of erased contacts that still exists.
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
    revoked: list[RevokedRow]
    erasures: list[ErasureRow]
    remnants: list[str]


class ServiceCounts(msgspec.Struct):
    """Event counts by organization and name according to the catalog and to SQL, and the members of each organization's
    segment.
    """

    catalog: dict[str, dict[str, int]]
    app_events: dict[str, dict[str, int]]
    members: dict[str, list[str]]
