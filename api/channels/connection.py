"""Sending by connections: the request of a connection, made from the fields of a message.

The connection is read just before each attempt, so replaced secrets count at once, also for messages that are retried.
The request goes through the address guard and the limits of webhooks. A connection with a rate takes turns: all engines
move its `next_at` on by one gap for each message, under the lock of its row. A turn in the next moments is waited for;
a message whose turn is later comes back at the end of the queue, with no attempt used up.
"""

import asyncio
from datetime import datetime, timedelta

import httpcore
import msgspec

from api.channels.outcome import (
    TEST_HEADER,
    AddressRule,
    Delivery,
    Failed,
    MayLeave,
    Outcome,
    OutgoingChannel,
    PreparedRequest,
    Retry,
    Sent,
    always,
)
from api.channels.webhook import HttpSender, guard_of, http_request, retry_after_of
from api.clock import Clock
from api.crypto import Keyring
from api.store.connections import list_connections, lock_connection, read_definition, set_turns
from api.store.database import Database, Transaction
from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.channel import CONNECTION
from workbench.language.codec import decode
from workbench.language.connections import compose_request, read_answer, retry_after_in
from workbench.language.template import TemplateError

MAX_TURN_WAIT = timedelta(seconds=2)  # in which a delivery keeps its place among those of the engine


class ConnectionSender(HttpSender):
    """Sends the requests of connections."""

    is_local = False

    async def send(self, delivery: Delivery, now: datetime, may_leave: MayLeave = always) -> Outcome:
        """Send the request once, if `may_leave` still allows it when a network connection is ready."""
        assert delivery.request is not None, "prepared"
        definition, secrets = delivery.request.definition, delivery.request.secrets
        try:
            composed = compose_request(definition, decode(delivery.body.encode()), secrets, delivery.id)
        except TemplateError:  # without its text, which may quote a secret
            return Failed("invalid_request")
        headers = composed.headers | ({TEST_HEADER.lower(): "true"} if delivery.test else {})
        request = http_request(composed.method, composed.url, headers, composed.body)
        if request is None:
            return Failed("invalid_address")

        def read_outcome(response: httpcore.Response, content: bytes | None) -> Outcome | None:
            if content is None and definition.needs_answer:
                return None
            answer, detail = read_answer(content or b""), f"HTTP {response.status}"
            match definition.outcome_of(response.status, answer, now):
                case "sent":
                    return Sent(detail)
                case "permanent":
                    return Failed("refused", detail)
                case "refused":
                    after_s = retry_after_of(response, now)
                    return Retry("refused", retry_after_in(answer) if after_s is None else after_s, detail)

        return await self.send_request(delivery.org_id, request, read_outcome, may_leave)


async def prepare(database: Database, keyring: Keyring, delivery: Delivery, clock: Clock) -> Delivery | Outcome:
    """Return a delivery with the request of its connection, once it is its turn."""
    org_id, name = delivery.org_id, delivery.address
    async with database.transaction() as tx:
        row = next(iter(await list_connections(tx, org_id, [name])), None)
    if row is None:
        return Failed("no_connection")
    definition = await asyncio.to_thread(read_definition, row)  # it may have to compile templates
    if definition.rate is not None:
        async with database.transaction() as tx:
            wait_s = await _take_turn(tx, org_id, name, timedelta(seconds=1 / definition.rate), clock.now())
        if wait_s > MAX_TURN_WAIT.total_seconds():
            return Retry("busy", wait_s)
        await asyncio.sleep(wait_s)
    secrets = decode(keyring.of(org_id).open_connection(row.secrets, name).encode())
    return msgspec.structs.replace(delivery, request=PreparedRequest(definition, secrets))


async def _take_turn(tx: Transaction, org_id: int, name: str, gap: timedelta, now: datetime) -> float:
    """Return the seconds until the turn of a message, or until it is to come back: more than MAX_TURN_WAIT."""
    row = await lock_connection(tx, org_id, name)
    turn = now if row is None or row.next_at is None else max(row.next_at, now)
    if turn <= now + MAX_TURN_WAIT:
        await set_turns(tx, org_id, name, turn + gap, None if row is None else row.queue_end)
        return (turn - now).total_seconds()
    assert row is not None, "it has a next turn"
    # Those that come back are as far apart as turns, so that each finds one.
    back_at = max(turn, row.queue_end or turn) + gap
    await set_turns(tx, org_id, name, turn, back_at)
    return (back_at - now).total_seconds()


async def _find_closed(_: Transaction, __: int, ___: object) -> set[str]:
    return set()


CONNECTIONS = OutgoingChannel(
    channel=CONNECTION,
    address=AddressRule(
        index="connection",
        read=lambda name: name if SLUG.fullmatch(name) else None,
        reason=f"must have {SLUG_CHARACTERS}",
        names=lambda name: (name,),
        identifier=None,
        is_used=None,
        # The receiver of a message is one of its fields, which are those of the contact of the test.
        unknown="must be allowed by name",
    ),
    open=lambda settings: ConnectionSender(guard_of(settings)),
    find_closed=_find_closed,
    closed=Failed("gone"),
    close=None,
    find_secrets=None,
    prepare=prepare,
)
