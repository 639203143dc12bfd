"""Invariants of confidentiality: an organization sees only its own data, and secrets appear in no output."""

from collections.abc import Iterator
from email import message_from_bytes, policy
from itertools import repeat

from tests.torture.evidence import Evidence, Findings
from tests.torture.leaks import canaries
from tests.torture.sinks import Delivery

_CHANNELS = (
    "SQL",
    "pages",
    "objects",
    "socket",
    "roles",
)  # channels through which an organization gets its own canary, or the names of roles


def data_stays_in_its_organization(run: Evidence) -> Findings:
    """no response, query result, push, webhook or email of an organization holds the canary of another; each gets its
    own
    """
    for seen in run.log.leak_detector.seen.values():
        yield from repeat(None, seen.texts)
    for leak in run.log.leak_detector.foreign:
        yield f"a response of {leak.way} to {leak.org} has {leak.what}"
    yield from _missing_canaries(run)
    orgs = {message.id: message.org for message in run.stored.messages}
    for arrival in run.arrivals:
        present, expected = canaries(_text(arrival)), {_owner_of(arrival, orgs)}
        yield (
            None
            if present == expected
            else f"{arrival.channel} {arrival.id} of {expected} has the canary of {present or 'none'}"
        )


def _missing_canaries(run: Evidence) -> Iterator[str | None]:
    for org in {automation.org for automation in run.automations}:
        for way in _CHANNELS:
            seen = run.log.leak_detector.seen.get((org, way))
            yield (
                None
                if seen and seen.own
                else f"{org} never received its own canary through {way}, so {way} proves nothing"
            )


def _owner_of(arrival: Delivery, orgs: dict[str, str]) -> str | None:
    """Return the organization that a delivery belongs to: of a webhook by its path, of an email by its message."""
    return arrival.target.split("/")[1] if arrival.channel == "webhook" else orgs.get(arrival.id)


def _text(arrival: Delivery) -> str:
    if arrival.channel == "webhook":
        return arrival.body.decode()
    parts = message_from_bytes(arrival.body, policy=policy.default).walk()
    return " ".join(str(part.get_content()) for part in parts if part.get_content_maintype() == "text")


def secrets_do_not_leak(run: Evidence) -> Findings:
    """no log, metric or rejection holds a key, secret, address or event value; the database holds no plain key, secret
    or address
    """
    for searched in run.searched:
        yield None
        for leak in searched.leaks:
            yield f"in {searched.place}: {leak}"
    for leak in run.log.leak_detector.leaked:
        yield f"a response of {leak.way} to {leak.org} has {leak.what}"
