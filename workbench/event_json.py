"""An event as Python arguments and as JSON, the key to send it with, and the bounds of a request.

This module loads no HTTP library.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias, TypedDict

from workbench import environment
from workbench.errors import AuthenticationError, InvalidArgumentError
from workbench.language.codec import encode, exactness_problem

JsonObject: TypeAlias = dict[str, Any]

BATCH_SIZE = 100  # events in one request; the service accepts no more
RATE_LIMITED, UNAVAILABLE = "RATE_LIMITED", "INGEST_UNAVAILABLE"  # the first word of errors of single events


class EventValues(TypedDict, total=False):
    """The fields of an event, without its name and the object `contact`."""

    email: str | None
    wallet_address: str | None
    external_id: str | None
    payload: Mapping[str, Any] | None
    attributes: Mapping[str, Any] | None
    idempotency_key: str | None
    occurred_at: datetime | str | None
    test: bool


class EventFields(EventValues, total=False):
    """The fields of an event, without its name."""

    contact: Mapping[str, Any] | None


def event_body(event: str | Mapping[str, Any], fields: EventFields) -> JsonObject:
    """Return the event in the JSON format of the API. Raises InvalidArgumentError for an event without a contact."""
    body = describe_event(event, fields)
    refuse_keywords(body)
    if not body.get("contact"):
        raise InvalidArgumentError(
            "the event has no contact: pass email=…, wallet_address=…, external_id=… or contact={…}"
        )
    return body


def describe_event(event: str | Mapping[str, Any] | None, fields: EventFields | EventValues) -> JsonObject:
    """Return an event in the JSON format of the API; it may lack a name and a contact.

    `event`: its name, or the event in that format, of which `fields` override parts.
    """
    match event:
        case None:
            described = {}
        case str():
            described = {"event": event}
        case Mapping():
            described = dict(event)
        case _:
            raise InvalidArgumentError(
                'an event is written by its name, "deposit", or as {"event": "deposit", "contact": {"email": '
                '"ada@example.com"}, "payload": {…}}'
            )
    contact = fields.get("contact") or described.get("contact") or {}
    if not isinstance(contact, Mapping):
        raise InvalidArgumentError('contact must be an object: contact={"email": "ada@example.com"}')
    identifiers = {name: fields.get(keyword) for keyword, name in _IDENTIFIERS.items()}
    contact = dict(contact) | {name: value for name, value in identifiers.items() if value is not None}
    occurred_at = fields.get("occurred_at")
    if isinstance(occurred_at, datetime):
        if occurred_at.tzinfo is None:
            raise InvalidArgumentError("occurred_at needs a time zone: datetime(…, tzinfo=UTC)")
        occurred_at = occurred_at.isoformat()
    body = {
        "contact": contact or None,
        "payload": fields.get("payload"),
        "attributes": fields.get("attributes"),
        "occurredAt": occurred_at,
        "test": fields.get("test"),
        "idempotencyKey": fields.get("idempotency_key"),
    }
    return described | {name: value for name, value in body.items() if value is not None}


def refuse_keywords(event: Mapping[str, Any]) -> None:
    """Raise InvalidArgumentError if an event in the JSON format has a field that is spelt as a keyword is."""
    if _MISPLACED.isdisjoint(event):
        return
    for keyword, name in _IDENTIFIERS.items():
        if misplaced := next((spelling for spelling in (keyword, name) if spelling in event), None):
            raise InvalidArgumentError(
                f'{misplaced} is not a field of an event: put it into "contact": {{"{name}": …}}, or pass {keyword}=…'
            )
    for keyword, name in (("occurred_at", "occurredAt"), ("idempotency_key", "idempotencyKey")):
        if keyword in event:
            raise InvalidArgumentError(f'{keyword} is not a field of an event: write "{name}", or pass {keyword}=…')


_IDENTIFIERS = {"email": "email", "wallet_address": "walletAddress", "external_id": "externalId"}
_MISPLACED = frozenset({*_IDENTIFIERS, *_IDENTIFIERS.values(), "occurred_at", "idempotency_key"})


def with_key(event: Mapping[str, Any]) -> JsonObject:
    """Return the event with a new idempotency key, unless it has one."""
    if not isinstance(event, Mapping):
        raise InvalidArgumentError(
            'an event must be an object: {"event": "deposit", "contact": {"email": "ada@example.com"}}'
        )
    body = dict(event)
    if body.get("idempotencyKey") is None:
        body["idempotencyKey"] = environment.new_uuid()
    return body


def encode_exactly(body: Mapping[str, Any], path: str = "") -> bytes:
    """Return the JSON of a body; raise InvalidArgumentError for a value that JSON lacks or would change.

    The error has the path of the value. `path`: where the body itself is, for example `events[249]`.
    """
    try:
        problem, encoded = exactness_problem(body, path), encode(body)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgumentError(f"{path or 'the request'} cannot be written as JSON: {error}") from None
    if problem is not None:
        raise InvalidArgumentError(problem)
    return encoded


def sending_key(key: str | None, usage: str) -> str:
    """Return the key; raise AuthenticationError if it is missing, or cannot send events."""
    key = (key or "").strip()
    if not key:
        raise AuthenticationError(
            f"A key for sending events is missing: set {environment.EVENTS_KEY_VARIABLE} (`make up` does), or write "
            f'{usage} with "sk_live_…". A workbench key (wb_…) cannot send events'
        )
    if not key.startswith("sk_"):
        raise AuthenticationError(
            f"{key[:3]}… cannot send events: pass a live key (sk_live_…) or a test key (sk_test_…)"
        )
    return key
