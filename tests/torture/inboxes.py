"""What must be true of inboxes: of what came over sockets, of what was acknowledged, and of what waits in the end."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping

from tests.torture.effects import CLOCK_US
from tests.torture.evidence import NEVER, Evidence, Findings
from tests.torture.log import Line, Push
from tests.torture.rows import MessageRow
from tests.torture.visits import SIGN_IN_AGAIN

_EXPECTED_CODES = frozenset({None, 1000, 1001, 1005, 1006, 1012, 1013})
Inboxes = Mapping[tuple[str, str], list[MessageRow]]


def inboxes_are_kept(run: Evidence) -> Findings:
    """over a socket come the messages of its wallet alone, each once, as stored, in their order and without a gap; what is delivered was acknowledged, and comes no more; in the end nothing waits"""
    by_id = {message.id: message for message in run.stored.messages if message.channel == "inapp"}
    inboxes = _inboxes(by_id.values())
    acknowledged = _acknowledged(run, by_id)
    for line in run.log.lines:
        yield _badly_ended(line)
        come = set[str]()
        for push in line.pushes:
            row = by_id.get(push.id)
            if row is None or (row.org, row.wallet) != (line.org, line.wallet):
                yield f"push {push.id} came to the wallet {line.wallet} of {line.org}, whose it is not"
            else:
                yield _mistaken(line, push, row, come) or _gap(run, push, inboxes, row, come, acknowledged)
            come.add(push.id)
    yield from _in_the_end(run, acknowledged)


def _inboxes(messages: Iterable[MessageRow]) -> Inboxes:
    found: dict[tuple[str, str], list[MessageRow]] = defaultdict(list)
    for message in sorted(messages, key=_place):
        found[message.org, message.wallet or ""].append(message)
    return found


def _place(message: MessageRow) -> tuple[int, str]:
    return message.created, message.id


def _acknowledged(run: Evidence, by_id: Mapping[str, MessageRow]) -> Mapping[str, int]:
    """Return when each push was first acknowledged by its own wallet; what others said of it does not count."""
    first: dict[str, int] = {}
    own = [(line, each, by_id.get(each[0])) for line in run.log.lines for each in line.acknowledged]
    for line, (message_id, at), row in own:
        if row is not None and (row.org, row.wallet) == (line.org, line.wallet):
            first[message_id] = min(at, first.get(message_id, NEVER))
    return first


def _badly_ended(line: Line) -> str | None:
    fine = line.code in _EXPECTED_CODES or (line.code == SIGN_IN_AGAIN and line.key)
    return None if fine else f"a socket of {line.org} {line.wallet} was closed with {line.code}"


def _mistaken(line: Line, push: Push, row: MessageRow, come: set[str]) -> str | None:
    name = f"push {push.id} to {line.org} {line.wallet}"
    if push.id in come:
        return f"doubled: {name} came twice over one socket"
    if (push.title, push.body) != (row.subject, row.body):
        return f"{name} is not what is stored"
    if push.at + CLOCK_US < row.committed:
        return f"{name} came before it was stored"
    if row.delivered is not None and row.delivered + CLOCK_US < line.opened:
        return f"{name} came again, though it had been acknowledged"
    return None


def _gap(
    run: Evidence, push: Push, inboxes: Inboxes, row: MessageRow, come: set[str], acknowledged: Mapping[str, int]
) -> str | None:
    """Say so when something came before what stands before it in the inbox, and had been there for a while."""
    inbox = inboxes[row.org, row.wallet or ""]
    for earlier in inbox[: bisect_left(inbox, _place(row), key=_place)]:
        there = earlier.committed + CLOCK_US < row.committed and run.erased.get(earlier.contact_id, NEVER) > push.at
        waits = earlier.id not in come and acknowledged.get(earlier.id, NEVER) > push.at
        if there and waits and not run.struck((earlier.committed, push.at)):
            return f"push {push.id} came before {earlier.id}, which stands before it in the inbox"
    return None


def _in_the_end(run: Evidence, acknowledged: Mapping[str, int]) -> Findings:
    holders = {(line.org, line.wallet) for line in run.log.lines}
    for message in run.stored.messages:
        if message.channel == "inapp" and message.contact_id not in run.erased:
            yield _misplaced(message, acknowledged, is_held=(message.org, message.wallet) in holders)


def _misplaced(message: MessageRow, acknowledged: Mapping[str, int], *, is_held: bool) -> str | None:
    if (message.delivered is not None) != (message.status == "delivered"):
        return f"message {message.id} is {message.status}, and delivered at {message.delivered}"
    if message.delivered is not None and message.id not in acknowledged:
        return f"message {message.id} is delivered, and nobody acknowledged it"
    waits = message.delivered is None and message.status == "sent" and is_held
    return f"lost: message {message.id} waits for {message.wallet}, who took all that came" if waits else None
