"""The rows that the promises speak of, as the checker sees them."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec

from tests.torture.log import Identifier, IdentifierKind, given


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
    """A message, `committed` before it left. `recipient` of a webhook: the url; of an email: the address, in clear."""

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
    """An automation was switched on or off by a transaction that committed then."""

    org: str
    automation_id: str
    active: bool
    committed: int


class RevokedRow(msgspec.Struct, frozen=True):
    """A key was revoked by a transaction that committed then."""

    key_id: str
    committed: int


class ErasureRow(msgspec.Struct, frozen=True):
    """A contact was erased, or what came for it in between, by a transaction that committed then."""

    org: str
    contact_id: str
    transaction: int
    committed: int


class Stored(msgspec.Struct):
    """All of it. Events come in the order of their commits; within one transaction by id, which grows as a process reads.

    The steps of an entry come as it took them, failed ones included; its leases as they were given. What an erasure emptied stands here
    as it was first written; `remnants` says what is left of the erased all the same.
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
    """Counts by organization and event name, as the catalog and as SQL tell them; who is in the segment of each organization."""

    catalog: dict[str, dict[str, int]]
    app_events: dict[str, dict[str, int]]
    members: dict[str, list[str]]
