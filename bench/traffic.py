"""The events of a product with mostly returning users.

Each event carries three identifiers, two attributes and a small payload, 390 bytes. All but one of `new_every` are
deposits of a returning contact without new attributes or identifiers, except new values of `changing` attributes. The
remaining one is the first deposit of a new contact and starts the bench's automation. Numbers grow with the clock, so
no idempotency key repeats.
"""

import itertools
import time
from collections.abc import Iterator

CONTACTS = 20_000  # returning contacts; with three identifiers each they fit into the caches of an API process
BATCH = 100
AUTOMATION_EVENT = "first_deposit"

_STRIDE = 7919  # a prime: events that follow each other are not adjacent in the index


def bodies(events_per_request: int, new_every: int, changing: int = 0) -> Iterator[bytes]:
    """Yield bodies without end: single events, or batches of `events_per_request`."""
    numbers = itertools.count(time.time_ns())
    while True:
        yield _body([_event(next(numbers), new_every, changing) for _ in range(events_per_request)])


def introductions() -> Iterator[bytes]:
    """Yield batches with one event of every returning contact, which make the contacts known."""
    first = time.time_ns()
    for start in range(0, CONTACTS, BATCH):
        ids = range(start, min(start + BATCH, CONTACTS))
        yield _body([_of_contact(first + id_, id_, b"deposit") for id_ in ids], batch=True)


def _body(events: list[bytes], *, batch: bool = False) -> bytes:
    return b'{"events":[' + b",".join(events) + b"]}" if batch or len(events) > 1 else events[0]


def _event(number: int, new_every: int, changing: int) -> bytes:
    if new_every and number % new_every == 0:
        return _of_contact(number, number, AUTOMATION_EVENT.encode())
    return _of_contact(number, number * _STRIDE % CONTACTS, b"deposit", changing)


def _of_contact(number: int, who: int, name: bytes, changing: int = 0) -> bytes:
    changes = b"".join(b',"last%d":"%d"' % (position, number % 1_000_000) for position in range(changing))
    return (
        b'{"event":"%b","contact":{"email":"user%d@example.com","walletAddress":"0x%040x","externalId":"user_%d"},'
        b'"attributes":{"plan":"pro","country":"DE"%b},"payload":{"amountUsd":%d.50,"asset":"USDC","method":"card",'
        b'"txHash":"0x%064x"},"idempotencyKey":"bench_%d"}'
    ) % (name, who, who, who, changes, number % 1000, number, number)
