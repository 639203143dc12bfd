"""Invariants of effects: deliveries, messages, tags, steps, and the leases under which they happened."""

from collections import defaultdict
from itertools import pairwise
from urllib.parse import urlsplit

import msgspec

from tests.torture.evidence import Evidence, Findings, Lease
from tests.torture.log import EventKind
from tests.torture.rows import MessageRow, StepRow
from tests.torture.sinks import Delivery

CLOCK_US = 1_000_000  # the clocks of a process and a receiver may differ by this much
_SETTLED = frozenset({"sent", "failed", "skipped", "unknown", "delivered"})


def effects_happen_once(run: Evidence) -> Findings:
    """a message leaves under one id with one text, and never after it was recorded as sent; it is recorded as sent if
    and only if a receiver accepted it; tags and in-app messages match the steps
    """
    sent = defaultdict(list)
    for step in run.stored.steps:
        if step.outcome == "sent":
            sent[step.entry_id, step.node_id].append(step)
    for message in run.stored.messages:
        steps, copies = sent.pop((message.entry_id, message.node_id), []), run.copies.get(message.id, [])
        yield _miscounted(message, steps, copies) or _wrong_content(run, message, copies)
    for entry_id, node_id in sent:
        yield f"lost: entry {entry_id} sent something at {node_id}, and there is no message"
    yield from _tags_are_those_of_steps(run)


def _miscounted(message: MessageRow, steps: list[StepRow], copies: list[Delivery]) -> str | None:
    name, is_sent = f"message {message.id}", message.status in ("sent", "delivered")
    if message.status not in _SETTLED:
        return f"{name} is {message.status} in the end"
    if len(steps) != is_sent:
        return f"{name} is {message.status}, and {len(steps)} steps say that it was sent"
    return None if message.channel == "inapp" else _wrong_status(message, steps, copies)


def _wrong_status(message: MessageRow, steps: list[StepRow], copies: list[Delivery]) -> str | None:
    name, is_taken = f"message {message.id}", any(copy.is_taken for copy in copies)
    if not steps:
        good = not is_taken or message.status == "unknown"
        return None if good else f"{name} was taken, and is {message.status}"
    if not is_taken:
        return f"lost: {name} is {message.status}, and no receiver accepted it"
    return f"doubled: {name} left again after it was sent" if copies[-1].at > steps[0].committed else None


def _wrong_content(run: Evidence, message: MessageRow, copies: list[Delivery]) -> str | None:
    if len({copy.body for copy in copies}) > 1:
        return f"the copies of message {message.id} differ"
    if message.status == "skipped" and message.wallet is None and message.channel == "inapp":
        return None  # undeliverable, without a text
    number = str(_number(run, message))
    if message.channel != "webhook" and message.subject != f"About {number}":
        return f"message {message.id} is not about {number}"
    if all(_is_what_was_stored(message, copy, number) for copy in copies):
        return None
    return f"message {message.id} did not leave as it is stored"


def _is_what_was_stored(message: MessageRow, copy: Delivery, number: str) -> bool:
    if message.channel == "email":
        return copy.target == message.recipient and f"\r\nSubject: {message.subject}\r\n".encode() in copy.body
    sent_number = str(msgspec.json.decode(copy.body)["n"])
    return (copy.body, copy.target, sent_number) == (
        (message.body or "").encode(),
        urlsplit(message.recipient or "").path,
        number,
    )


def _number(run: Evidence, message: MessageRow) -> int | None:
    entry = run.entry.get(message.entry_id)
    event = None if entry is None else run.event.get(entry.event_id)
    return None if event is None else event.payload["n"]


def _tags_are_those_of_steps(run: Evidence) -> Findings:
    right = defaultdict(set)
    for step in run.stored.steps:
        if step.outcome == "tagged" and step.entry_id in run.entry:
            right[run.entry[step.entry_id].contact_id].add(step.detail["tag"])
    for contact in run.stored.contacts:
        if contact.id in run.erased:
            continue
        good = sorted(contact.tags) == sorted(right[contact.id])
        yield None if good else f"contact {contact.id} has the tags {contact.tags}, not {sorted(right[contact.id])}"


def no_other_effects_happen(run: Evidence) -> Findings:
    """every delivery has a row that was committed before it; every row belongs to a claimed entry of a live event and a
    published automation
    """
    messages = {row.id: row for row in run.stored.messages}
    for arrival in run.arrivals:
        message = messages.get(arrival.id)
        if message is None or message.channel != arrival.channel:
            yield f"{arrival.channel} {arrival.id} arrived, and has no row"
        else:
            early = message.created > arrival.at + CLOCK_US
            yield f"message {message.id} left before its row was made" if early else None
    for message in run.stored.messages:
        yield _unfounded(run, message)


def _unfounded(run: Evidence, message: MessageRow) -> str | None:
    entry = run.entry.get(message.entry_id)
    event = None if entry is None else run.event.get(entry.event_id)
    sent = None if event is None else run.sent_as(event)
    if entry is None or sent is None or sent.kind is not EventKind.LIVE:
        return f"message {message.id} is of no live event"
    if entry.version is None:
        return f"message {message.id} is of an automation that was never published"
    return None if run.leases.get(entry.id) else f"message {message.id} is of an entry that was never claimed"


def foreign_wallets_get_nothing(run: Evidence) -> Findings:
    """an in-app message to a wallet that can never sign in is undeliverable and skipped, and no other one is"""
    wallets = {contact.id: contact.wallet for contact in run.stored.contacts if contact.id not in run.erased}
    statuses = {(message.entry_id, message.node_id): message.status for message in run.stored.messages}
    for step in run.stored.steps:
        entry = run.entry.get(step.entry_id)
        event = None if entry is None else run.event.get(entry.event_id)
        if entry is None or event is None or entry.contact_id not in wallets or step.kind != "send_inapp":
            continue
        wallet = event.wallet or wallets[entry.contact_id] or ""
        can_sign_in, status = wallet.startswith("0x"), statuses.get((step.entry_id, step.node_id))
        if step.outcome == "undeliverable":
            yield _undeliverable(step, wallet, status) if can_sign_in or status != "skipped" else None
        elif step.outcome == "sent":
            yield None if can_sign_in else _undeliverable(step, wallet, status)


def _undeliverable(step: StepRow, wallet: str, status: str | None) -> str:
    return f"the message of entry {step.entry_id} to wallet {wallet} was {step.outcome} and is {status}"


def leases_are_respected(run: Evidence) -> Findings:
    """tokens increase, and a lease begins after the previous one ended; nothing leaves or is recorded outside the lease
    of its claim; each copy has its own claim
    """
    for entry_id, leases in run.leases.items():
        for one, other in pairwise(leases):
            good = one.token < other.token and one.ended <= other.claimed
            yield None if good else f"entry {entry_id} was claimed as {other.token} while {one.token} held it"
    for step in run.stored.steps:
        lease = run.by_token.get((step.entry_id, step.claim))
        good = lease is not None and lease.claimed <= step.committed <= lease.ended
        yield None if good else f"entry {step.entry_id} took step {step.step} outside of lease {step.claim}"
    for message in run.stored.messages:
        yield from _outside_of_leases(run, message)


def _outside_of_leases(run: Evidence, message: MessageRow) -> Findings:
    """Assign each copy the first lease under which it may have left; leases do not overlap."""
    free = list(run.leases.get(message.entry_id, []))
    for copy in run.copies.get(message.id, []):
        under = next((lease for lease in free if covers(run, message, lease, copy.at)), None)
        if under is not None:
            free.remove(under)
        yield None if under else f"message {message.id} left at {copy.at} without a lease of its own"


def covers(run: Evidence, message: MessageRow, lease: Lease, at: int) -> bool:
    """Return whether a message may have left under a lease.

    A worker does not notice that an erasure voided its lease.
    """
    voided = lease.ended == run.erased.get(message.contact_id)
    return lease.claimed <= at < (lease.until if voided else min(lease.until, lease.ended)) + CLOCK_US
