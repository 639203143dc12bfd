"""What decisions look at, read for a batch of one organization: `sql/queries/facts.sql`, as calls."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from api.store.arrays import moments, plain, quoted, uuids
from api.store.calls import Call, Rows, Value, statements
from api.store.engine import Claim

MOST_ARRIVALS = 1_000
MOST_ENTERED = 1_000

_SQL = statements("facts")


class AutomationNow(msgspec.Struct, frozen=True):
    """Which stint an automation is in; `stopped`: why it no longer runs, `paused`: whether it stands still."""

    stint: int
    stopped: str | None
    paused: bool


class EventRow(msgspec.Struct, frozen=True):
    """An event as stored; `email` is sealed, `payload` JSON text."""

    id: str
    name: str
    payload: bytes
    wallet: str | None
    email: str | None
    external_id: str | None


class LogRow(msgspec.Struct, frozen=True):
    """The log that started an entry; `args` is JSON text, `place` where it happened (`language.onchain.PLACE`).

    `signature`: of the version that the entry runs, None when it runs none.
    """

    name: str
    args: bytes
    wallet: str | None
    place: tuple[int, str, str, int, int]
    signature: str | None


class ContactRow(msgspec.Struct, frozen=True):
    """A contact as stored; `email` is sealed, `attributes` JSON text."""

    id: str
    wallet: str | None
    email: str | None
    external_id: str | None
    attributes: bytes
    tags: list[str]
    segments: list[str]
    opted_out: list[str]


class ArrivalRow(msgspec.Struct, frozen=True):
    """An event that came later; `email` is sealed, `payload` JSON text."""

    at: datetime
    name: str
    wallet: str | None
    email: str | None
    external_id: str | None
    payload: bytes
    id: str


class Entered(msgspec.Struct, frozen=True):
    """The other entries of a contact in an automation: when the latest was created, and whether one of them has not ended."""

    at: datetime
    running: bool


def load_events(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, EventRow]]:
    """Ask for the claimed entries' events, by id."""
    return Call(
        _SQL["load_events"],
        lambda rows: {row[0]: EventRow(*row) for row in rows},
        org_id=org_id,
        ids=uuids([claim.event_id for claim in claims]),
        created=moments(claim.event_created_at for claim in claims),
    )


def load_logs(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, LogRow]]:
    """Ask for the logs that started claimed entries, by the entry's id."""
    return Call(
        _SQL["load_logs"],
        lambda rows: {row[0]: LogRow(row[1], row[2], row[3], row[4:9], row[9]) for row in rows},
        org_id=org_id,
        ids=uuids([claim.entry_id for claim in claims]),
        event_ids=uuids([claim.event_id for claim in claims]),
        automation_ids=uuids([claim.automation_id for claim in claims]),
        versions=plain(claim.version for claim in claims),
    )


def load_contacts(org_id: int, ids: Sequence[str]) -> Call[dict[str, ContactRow]]:
    """Ask for contacts, by id."""
    return Call(
        _SQL["load_contacts"],
        lambda rows: {row[0]: ContactRow(*row) for row in rows},
        org_id=org_id,
        ids=uuids(ids),
    )


def unsubscribed(org_id: int, ids: Sequence[str]) -> Call[set[str]]:
    """Ask which of the contacts unsubscribed one of their addresses."""
    return Call(_SQL["unsubscribed"], lambda rows: {row[0] for row in rows}, org_id=org_id, ids=uuids(ids))


def automations_now(org_id: int, ids: Sequence[str]) -> Call[dict[str, AutomationNow]]:
    """Ask how automations stand, by id."""
    return Call(
        _SQL["automations_now"],
        lambda rows: {row[0]: AutomationNow(*row[1:]) for row in rows},
        org_id=org_id,
        ids=plain(ids),
    )


def load_graph(org_id: int, automation_id: str, version: int) -> Call[bytes | None]:
    """Ask for the JSON text of a published graph."""
    return Call(
        _SQL["load_graph"],
        lambda rows: rows[0][0] if rows else None,
        org_id=org_id,
        automation_id=automation_id,
        version=version,
    )


def read_entered(org_id: int, claims: Sequence[Claim]) -> Call[dict[str, Entered]]:
    """Ask for the other entries of the same contact and automation, by entry id; there may be none."""
    values = _columns(org_id, claims)
    return Call(
        _SQL["read_entered"], lambda rows: {row[0]: Entered(*row[1:]) for row in rows}, most=MOST_ENTERED, **values
    )


def count_recent(org_id: int, claims: Sequence[Claim], within: timedelta, most: int) -> Call[dict[str, int]]:
    """Ask how many entries of the same contact and automation were created within so long before, at most `most`."""
    values = _columns(org_id, claims)
    return Call(_SQL["count_recent"], _pairs, seconds=int(within.total_seconds()), most=most, **values)


def read_messages_at(org_id: int, asked: Sequence[tuple[Claim, datetime]]) -> Call[dict[str, tuple[datetime, ...]]]:
    """Ask when messages went to the contacts since a moment, by entry id."""
    claims = [claim for claim, _ in asked]
    return Call(
        _SQL["read_messages_at"],
        lambda rows: {entry_id: tuple(at for at, *_ in found) for entry_id, found in _grouped(rows).items()},
        org_id=org_id,
        ids=plain(claim.entry_id for claim in claims),
        contact_ids=plain(claim.contact_id for claim in claims),
        node_ids=quoted([claim.node_id for claim in claims]),
        since=moments(since for _, since in asked),
    )


def read_arrivals(
    org_id: int, asked: Sequence[tuple[Claim, frozenset[str], datetime | None]]
) -> Call[dict[str, tuple[ArrivalRow, ...]]]:
    """Ask for the newest events of some names that came after a moment, by entry id and in their order."""
    return Call(
        _SQL["read_arrivals"],
        lambda rows: {entry_id: tuple(ArrivalRow(*row) for row in found) for entry_id, found in _grouped(rows).items()},
        org_id=org_id,
        ids=plain(claim.entry_id for claim, _, _ in asked),
        contact_ids=plain(claim.contact_id for claim, _, _ in asked),
        event_ids=plain(claim.event_id for claim, _, _ in asked),
        created=moments(claim.event_created_at for claim, _, _ in asked),
        since=moments(since for _, _, since in asked),
        names=quoted([joined_names(names) for _, names, _ in asked]),
        most=MOST_ARRIVALS,
    )


def joined_names(names: frozenset[str]) -> str:
    """Return names of events as one text: they contain no commas."""
    return ",".join(sorted(names))


def _columns(org_id: int, claims: Sequence[Claim]) -> dict[str, Value]:
    return {
        "org_id": org_id,
        "ids": plain(claim.entry_id for claim in claims),
        "automation_ids": plain(claim.automation_id for claim in claims),
        "contact_ids": plain(claim.contact_id for claim in claims),
        "created": moments(claim.event_created_at for claim in claims),
    }


def _pairs(rows: Rows) -> dict[str, Any]:
    return dict(rows)


def _grouped(rows: Rows) -> dict[str, Rows]:
    groups: dict[str, Rows] = {}
    for entry_id, *row in rows:
        groups.setdefault(entry_id, []).append(tuple(row))
    return groups
