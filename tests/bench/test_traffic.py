from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from bench import traffic
from workbench.language.event import Event, read_event

NOW_US = 1_763_700_000_000_000


def events(bodies: Iterator[bytes], count: int) -> list[dict[str, Any]]:
    return [event for body in islice(bodies, count) for event in msgspec.json.decode(body).get("events", [])]


def test_every_event_is_valid() -> None:
    for body in islice(traffic.bodies(1, new_every=2), 4):
        assert isinstance(read_event(body, NOW_US), Event)


def test_every_nth_event_is_the_first_of_a_new_contact() -> None:
    sent = events(traffic.bodies(100, new_every=50), 10)
    names = [event["event"] for event in sent]
    new_contacts = {event["contact"]["externalId"] for event in sent if event["event"] == traffic.AUTOMATION_EVENT}
    assert (names.count("first_deposit"), names.count("deposit"), len(new_contacts)) == (20, 980, 20)


def test_no_key_occurs_twice() -> None:
    keys = [event["idempotencyKey"] for event in events(traffic.bodies(100, new_every=0), 20)]
    assert len(set(keys)) == 2_000


def test_every_returning_contact_is_created_once() -> None:
    introduced = {event["contact"]["email"] for event in events(traffic.introductions(), 1_000)}
    returning = {event["contact"]["email"] for event in events(traffic.bodies(100, new_every=0), 300)}
    assert returning == introduced
    assert len(introduced) == traffic.CONTACTS
