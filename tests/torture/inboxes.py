"""Invariants of inboxes: pushes, acknowledgements, and the messages that remain at the end."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.torture.effects import CLOCK_US
from tests.torture.evidence import NEVER, Evidence, Findings
from tests.torture.inbox_visits import SIGN_IN_AGAIN
from tests.torture.log import Push, SocketVisit
from tests.torture.rows import MessageRow

_EXPECTED_CODES = frozenset({None, 1000, 1001, 1005, 1006, 1012, 1013})
Inboxes = Mapping[tuple[str, str], list[MessageRow]]


def inboxes_are_complete(run: Evidence) -> Findings:
    """a socket gets only its wallet's messages, each once, as stored, in order and without a gap; a delivered message
    was acknowledged and is not pushed again; at the end no message remains
    """
    by_id = {message.id: message for message in run.stored.messages if message.channel == "inapp"}
    inboxes = _inboxes(by_id.values())
    acknowledged = _acknowledged(run, by_id)
    for visit in run.log.visits:
        yield _wrong_close(visit)
        received = set[str]()
        for push in visit.pushes:
            row = by_id.get(push.id)
            if row is None or (row.org, row.wallet) != (visit.org, visit.wallet):
                yield f"push {push.id} reached the wallet {visit.wallet} of {visit.org}, but was for another"
            else:
                yield _wrong_push(visit, push, row, received) or _gap(run, push, inboxes, row, received, acknowledged)
            received.add(push.id)
    yield from _remaining(run, acknowledged)


def _inboxes(messages: Iterable[MessageRow]) -> Inboxes:
    inboxes: dict[tuple[str, str], list[MessageRow]] = defaultdict(list)
    for message in sorted(messages, key=_place):
        inboxes[message.org, message.wallet or ""].append(message)
    return inboxes


def _place(message: MessageRow) -> tuple[int, str]:
    return message.created, message.id


def _acknowledged(run: Evidence, by_id: Mapping[str, MessageRow]) -> Mapping[str, int]:
    """Return when each message was first acknowledged by its own wallet.

    Acknowledgements of other wallets do not count.
    """
    first: dict[str, int] = {}
    own = [
        (visit, acknowledgement, by_id.get(acknowledgement[0]))
        for visit in run.log.visits
        for acknowledgement in visit.acknowledged
    ]
    for visit, (message_id, at), row in own:
        if row is not None and (row.org, row.wallet) == (visit.org, visit.wallet):
            first[message_id] = min(at, first.get(message_id, NEVER))
    return first


def _wrong_close(visit: SocketVisit) -> str | None:
    fine = visit.code in _EXPECTED_CODES or (visit.code == SIGN_IN_AGAIN and visit.key)
    return None if fine else f"a socket of {visit.org} {visit.wallet} was closed with {visit.code}"


def _wrong_push(visit: SocketVisit, push: Push, row: MessageRow, received: set[str]) -> str | None:
    name = f"push {push.id} to {visit.org} {visit.wallet}"
    if push.id in received:
        return f"doubled: {name} was pushed twice over one socket"
    if (push.title, push.body) != (row.subject, row.body):
        return f"{name} is not what is stored"
    if push.at + CLOCK_US < row.committed:
        return f"{name} was pushed before it was stored"
    if row.delivered is not None and row.delivered + CLOCK_US < visit.opened:
        return f"{name} was pushed again, although it had been acknowledged"
    return None


def _gap(
    run: Evidence, push: Push, inboxes: Inboxes, row: MessageRow, received: set[str], acknowledged: Mapping[str, int]
) -> str | None:
    """Report a push that arrived before an earlier message of the same inbox."""
    inbox = inboxes[row.org, row.wallet or ""]
    for earlier in inbox[: bisect_left(inbox, _place(row), key=_place)]:
        visible = earlier.committed + CLOCK_US < row.committed and run.erased.get(earlier.contact_id, NEVER) > push.at
        waits = earlier.id not in received and acknowledged.get(earlier.id, NEVER) > push.at
        if visible and waits and not run.postgres_was_hit((earlier.committed, push.at)):
            return f"push {push.id} was sent before {earlier.id}, which precedes it in the inbox"
    return None


def _remaining(run: Evidence, acknowledged: Mapping[str, int]) -> Findings:
    holders = {(visit.org, visit.wallet) for visit in run.log.visits}
    for message in run.stored.messages:
        if message.channel == "inapp" and message.contact_id not in run.erased:
            yield _misplaced(message, acknowledged, is_held=(message.org, message.wallet) in holders)


def _misplaced(message: MessageRow, acknowledged: Mapping[str, int], *, is_held: bool) -> str | None:
    if (message.delivered is not None) != (message.status == "delivered"):
        return f"message {message.id} is {message.status}, and delivered at {message.delivered}"
    if message.delivered is not None and message.id not in acknowledged:
        return f"message {message.id} is delivered, but was not acknowledged"
    waits = message.delivered is None and message.status == "sent" and is_held
    return f"lost: message {message.id} waits, although {message.wallet} acknowledged every push" if waits else None
