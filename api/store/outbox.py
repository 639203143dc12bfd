"""Messages on their way out of the house: the statements of `sql/queries/outbox.sql`, as calls."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Literal, TypeAlias

import msgspec

from api.store.arrays import plain, quoted
from api.store.calls import Call, nothing, statements

_SQL = statements("outbox")

Channel: TypeAlias = Literal["email", "webhook"]
Status: TypeAlias = Literal["queued", "sent", "failed", "skipped", "unknown"]


class Settled(msgspec.Struct, frozen=True):
    """What became of an attempt: the message's status, and the outcome that is kept (None: nothing was attempted).

    Of a message in doubt, what failed or was skipped is `unknown` in both (`settle_outgoing`).
    """

    status: Status
    outcome: Literal["sent", "retrying", "failed", "skipped", "unknown"] | None
    reason: str | None = None


class OutgoingRow(msgspec.Struct, frozen=True):
    """One email or webhook; `recipient` is a sealed address or a url, `token` that of the claim that sends it."""

    id: str
    contact_id: str
    automation_id: str
    entry_id: str
    node_id: str
    token: int
    channel: Channel
    recipient: str
    subject: str | None
    body: str
    html: bool


class Stored(msgspec.Struct, frozen=True):
    """What is sent: the message as it was stored first. `opted_out`: its contact wants none of its channel."""

    id: str
    channel: Channel
    recipient: str
    subject: str | None
    body: str
    html: bool
    created_at: datetime
    opted_out: bool


class WithheldRow(msgspec.Struct, frozen=True):
    """A message that is not sent at all, and why, in one word."""

    id: str
    contact_id: str
    automation_id: str
    entry_id: str
    node_id: str
    channel: str
    cause: str


def add_outgoing(org_id: int, rows: Sequence[OutgoingRow], at: datetime) -> Call[None]:
    """Store messages that are not there yet."""
    return Call(
        _SQL["add_outgoing"],
        nothing,
        org_id=org_id,
        at=at,
        ids=plain(each.id for each in rows),
        contact_ids=plain(each.contact_id for each in rows),
        automation_ids=plain(each.automation_id for each in rows),
        entry_ids=plain(each.entry_id for each in rows),
        node_ids=quoted([each.node_id for each in rows]),
        channels=plain(each.channel for each in rows),
        recipients=quoted([each.recipient for each in rows]),
        subjects=quoted([each.subject for each in rows]),
        bodies=quoted([each.body for each in rows]),
        htmls=plain("t" if each.html else "f" for each in rows),
    )


def take_outgoing(org_id: int, rows: Sequence[OutgoingRow]) -> Call[dict[str, Stored]]:
    """Begin to send messages, by id; those that went out before are missing."""
    return Call(
        _SQL["take_outgoing"],
        lambda found: {row[0]: Stored(*row) for row in found},
        org_id=org_id,
        ids=plain(each.id for each in rows),
        tokens=plain(each.token for each in rows),
    )


def settle_outgoing(org_id: int, message_id: str, token: int, settled: Settled, at: datetime) -> Call[None]:
    """Note how an attempt ended, unless somebody else has taken the message since."""
    values = msgspec.structs.asdict(settled)
    return Call(_SQL["settle_outgoing"], nothing, org_id=org_id, id=message_id, token=token, at=at, **values)


def abandon_outgoing(org_id: int, entry_ids: Collection[str], at: datetime) -> Call[None]:
    """Give up what entries that have ended did not send."""
    return Call(_SQL["abandon_outgoing"], nothing, org_id=org_id, entry_ids=plain(entry_ids), at=at)


def withhold(org_id: int, rows: Sequence[WithheldRow], at: datetime) -> Call[None]:
    """Keep messages that are not sent at all."""
    return Call(
        _SQL["withhold"],
        nothing,
        org_id=org_id,
        at=at,
        ids=plain(each.id for each in rows),
        contact_ids=plain(each.contact_id for each in rows),
        automation_ids=plain(each.automation_id for each in rows),
        entry_ids=plain(each.entry_id for each in rows),
        node_ids=quoted([each.node_id for each in rows]),
        channels=plain(each.channel for each in rows),
        causes=plain(each.cause for each in rows),
    )
