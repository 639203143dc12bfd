"""What an event is, and how one is read from JSON: contract §2.1, §2.2 and §8.

`read_event` reads the usual event in one typed pass that checks as it decodes; what does not pass, and all that is
unusual (escapes, other scripts than ASCII, decimal attributes), takes the slow road, which judges field by field and names every
problem. The usual road never refuses, so there is one judge. `history` has another usual road, for many events at a time.
"""

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, TypeVar, cast

import msgspec
from msgspec import Meta

from api.language.attributes import MAX_ATTRIBUTE_BYTES, MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTES, read_attributes
from api.language.codec import (
    Json,
    MalformedJsonError,
    cut_depth,
    decode,
    mend_surrogates,
    unfit_text,
)
from api.language.email import MAX_EMAIL, normal_email
from api.language.moment import in_us, read_moment
from api.language.payload import MAX_PAYLOAD_TEXT, needs_a_look, read_payload
from api.language.problem import Problem, Problems

MAX_WALLET, MAX_EXTERNAL_ID, MAX_KEY = 128, 128, 256
MAX_EVENT_TEXT = 1_048_576  # bytes as sent
OLDEST = timedelta(days=7)
NEWEST = timedelta(minutes=5)

EVENT_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
LOG_NAME = re.compile(r"0x[0-9a-fA-F]{40}:[A-Za-z_$][\w$]{0,127}", re.ASCII)


class Identifiers(msgspec.Struct, frozen=True, gc=False):
    """Who an event is about, normalised. `wallet_raw` is the wallet as it was sent."""

    wallet: str | None = None
    email: str | None = None
    external_id: str | None = None
    wallet_raw: str | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """A valid event. `payload` is the JSON text of an object, as sent; times are microseconds since the epoch.

    `on_chain`: it is a log of a chain, not a custom event.
    """

    name: str
    identifiers: Identifiers
    attributes: dict[str, Json] = {}
    payload: bytes = b"{}"
    idempotency_key: str | None = None
    occurred_at_us: int | None = None
    test: bool = False
    on_chain: bool = False


def can_be_awaited(name: str) -> bool:
    """Return whether a wait or a goal can ask for it: a custom event, or what a contract logs, `0x…:Transfer`."""
    return EVENT_NAME.fullmatch(name) is not None or LOG_NAME.fullmatch(name) is not None


_Kind = TypeVar("_Kind", str, bool)
_WANTED: dict[type, str] = {str: "must be a string", bool: "must be true or false"}


_NULL = msgspec.Raw(b"null")


class _Contact(msgspec.Struct, rename="camel"):
    email: str | None = None
    wallet_address: str | None = None
    external_id: str | None = None


class _Body(msgspec.Struct, rename="camel"):
    event: str
    contact: _Contact
    attributes: msgspec.Raw = _NULL
    payload: msgspec.Raw = _NULL
    idempotency_key: str | None = None
    occurred_at: str | None = None
    test: bool | None = None


class _UsualContact(msgspec.Struct, rename="camel", gc=False):
    email: Annotated[str, Meta(min_length=1, max_length=MAX_EMAIL)] | None = None
    wallet_address: Annotated[str, Meta(min_length=1, max_length=MAX_WALLET)] | None = None
    external_id: Annotated[str, Meta(min_length=1, max_length=MAX_EXTERNAL_ID)] | None = None


_UsualAttributes = dict[
    Annotated[str, Meta(min_length=1, max_length=MAX_ATTRIBUTE_KEY)],
    Annotated[str, Meta(max_length=MAX_ATTRIBUTE_BYTES)] | Annotated[int, Meta(ge=-(2**53), le=2**53)] | bool,
]


class UsualBody(msgspec.Struct, rename="camel", gc=False):
    """An event in which, read from ASCII without escapes, only name, contact, payload and moment are left to judge."""

    event: str
    contact: msgspec.Raw
    attributes: Annotated[_UsualAttributes, Meta(max_length=MAX_ATTRIBUTES)] | None = None
    payload: msgspec.Raw = _NULL
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None = None
    occurred_at: str | None = None
    test: bool | None = None


USUAL = msgspec.json.Decoder(UsualBody)
_USUAL_CONTACT = msgspec.json.Decoder(_UsualContact)
_BODY = msgspec.json.Decoder(_Body)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SOMEBODY = _Contact(external_id="x")  # these two stand in for fields that have been refused already
_SOME_NAME = "x"


def read_event(raw: bytes, now_us: int, *, history: bool = False) -> Event | Problems:
    """Return the event in the JSON text `raw`, judged at `now_us`, or everything that is wrong with it (never nothing).

    `history` lifts the seven-day bound, for imports.
    """
    if len(raw) > MAX_EVENT_TEXT:
        return (Problem("", f"is larger than {MAX_EVENT_TEXT} bytes"),)
    usual = _read_usual(raw, now_us, history)
    return _read_unusual(raw, now_us, history) if usual is None else usual


def _read_unusual(raw: bytes, now_us: int, history: bool) -> Event | Problems:
    try:
        if not raw.isascii():
            raw.decode()  # what is stored undecoded must be UTF-8 too
        raw = mend_surrogates(raw)
        try:
            return _read(raw, now_us, history)
        except RecursionError:
            if len(raw) > MAX_PAYLOAD_TEXT:
                return (Problem("", "is nested too deeply"),)
            return _read(cut_depth(raw), now_us, history)
    except ValueError as error:
        return (Problem("", f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}"),)


def _read_usual(raw: bytes, now_us: int, history: bool) -> Event | None:
    """Return a valid event, or None for one that needs a judge."""
    body = _usual_body(raw)
    if body is None:
        return None
    payload = bytes(body.payload)
    return None if needs_a_look(payload) else _usual_event(body, payload, now_us, history)


def _usual_body(raw: bytes) -> UsualBody | None:
    """Return the body of a text that is ASCII without escapes, so that characters are bytes."""
    if b"\\" in raw or not raw.isascii() or len(raw) > MAX_EVENT_TEXT:
        return None
    try:
        return USUAL.decode(raw)
    except (ValueError, RecursionError):
        return None


def _usual_event(body: UsualBody, payload: bytes, now_us: int, history: bool) -> Event | None:
    who, name = usual_identifiers(bytes(body.contact)), usual_name(body.event)
    if who is None or name is None:
        return None
    if payload[0] != 123:
        if payload != b"null":
            return None
        payload = b"{}"
    moment_us = None
    if body.occurred_at is not None:
        moment_us = read_moment(body.occurred_at)
        if _misdated(moment_us, now_us, history):
            return None
    attributes: dict[str, Json] = {**body.attributes} if body.attributes else {}
    return Event(name, who, attributes, payload, body.idempotency_key, moment_us, body.test is True)


@lru_cache(maxsize=1_024)
def usual_name(name: str) -> str | None:
    """Return a valid name as it is stored; None for any other."""
    return name.lower() if EVENT_NAME.fullmatch(name) else None


_MOST_CONTACT_TEXT = 512  # bytes of one that is remembered


_MOST_KNOWN = 65_536
_known: dict[bytes, Identifiers | None] = {}  # most events come from contacts that came before


def usual_identifiers(contact: bytes) -> Identifiers | None:
    """Return the identifiers of a valid contact, given its JSON text; None for any other."""
    who = _known.get(contact)
    if who is None and len(contact) <= _MOST_CONTACT_TEXT:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        who = _known[contact] = _read_contact(contact)
    return who


def all_usual_identifiers(contacts: Sequence[bytes]) -> list[Identifiers] | None:
    """Return the identifiers of many contacts, None if one of them is not valid."""
    known = list(map(_known.get, contacts))
    if not all(known):
        known = [who or usual_identifiers(contact) for who, contact in zip(known, contacts, strict=True)]
    return cast("list[Identifiers]", known) if all(known) else None


def _read_contact(contact: bytes) -> Identifiers | None:
    try:
        sent = _USUAL_CONTACT.decode(contact)
    except ValueError:
        return None
    problems: list[Problem] = []
    who = _identifiers(_Contact(sent.email, sent.wallet_address, sent.external_id), problems)
    return None if problems else who


def _read(raw: bytes, now_us: int, history: bool) -> Event | Problems:
    try:
        body = _BODY.decode(raw)
    except msgspec.ValidationError:
        return _diagnose(raw, now_us, history)
    return _judge(body, [], now_us, history)


def _judge(body: _Body, problems: list[Problem], now_us: int, history: bool) -> Event | Problems:
    name = _name(body.event, problems)
    identifiers = _identifiers(body.contact, problems)
    attributes = read_attributes(bytes(body.attributes), problems)
    payload = read_payload(bytes(body.payload), problems)
    if body.idempotency_key is not None:
        _bounded("idempotencyKey", body.idempotency_key, MAX_KEY, problems)
    occurred_at_us = None if body.occurred_at is None else _moment(body.occurred_at, now_us, history, problems)
    if problems:
        return tuple(problems)
    return Event(name, identifiers, attributes, payload, body.idempotency_key, occurred_at_us, body.test is True)


def _diagnose(raw: bytes, now_us: int, history: bool) -> Event | Problems:
    """Judge a body with a field of the wrong type: refused, unless the same key comes again with a right one."""
    try:
        fields = _FIELDS.decode(raw)
    except msgspec.ValidationError:
        return (Problem("", "must be a JSON object"),)
    problems: list[Problem] = []
    event = _take(fields, "event", str, problems)
    if event is None and not problems:
        problems.append(Problem("event", "is required"))
    body = _Body(
        event=_SOME_NAME if event is None else event,
        contact=_take_contact(fields.get("contact", _NULL), problems),
        attributes=fields.get("attributes", _NULL),
        payload=fields.get("payload", _NULL),
        idempotency_key=_take(fields, "idempotencyKey", str, problems),
        occurred_at=_take(fields, "occurredAt", str, problems),
        test=_take(fields, "test", bool, problems),
    )
    return _judge(body, problems, now_us, history)


def _take(fields: dict[str, msgspec.Raw], path: str, kind: type[_Kind], problems: list[Problem]) -> _Kind | None:
    value = _decoded(fields.get(path.rpartition(".")[2], _NULL))
    if value is None or isinstance(value, kind):
        return value
    problems.append(Problem(path, _WANTED[kind]))
    return None


def _take_contact(raw: msgspec.Raw, problems: list[Problem]) -> _Contact:
    if bytes(raw)[:1] != b"{":
        problems.append(Problem("contact", "is required" if bytes(raw) == b"null" else "must be an object"))
        return _SOMEBODY
    fields = _FIELDS.decode(raw)
    before = len(problems)
    email = _take(fields, "contact.email", str, problems)
    wallet = _take(fields, "contact.walletAddress", str, problems)
    external_id = _take(fields, "contact.externalId", str, problems)
    nothing_left = email is None and wallet is None and external_id is None
    return _SOMEBODY if nothing_left and len(problems) > before else _Contact(email, wallet, external_id)


def _decoded(raw: msgspec.Raw) -> Any:
    try:
        return decode(bytes(raw))
    except MalformedJsonError:  # well-formed, but of a depth or size nobody means: whatever it is, of the wrong type
        return ...


def _name(name: str, problems: list[Problem]) -> str:
    if not EVENT_NAME.fullmatch(name):
        problems.append(Problem("event", "must be 1 to 64 characters of a-z A-Z 0-9 _ . : -"))
    return name.lower()


def _identifiers(contact: _Contact, problems: list[Problem]) -> Identifiers:
    wallet, email, external_id = contact.wallet_address, contact.email, contact.external_id
    if wallet is None and email is None and external_id is None:
        problems.append(Problem("contact", "needs at least one of email, walletAddress, externalId"))
    if wallet is not None:
        _bounded("contact.walletAddress", wallet, MAX_WALLET, problems)
    if external_id is not None:
        _bounded("contact.externalId", external_id, MAX_EXTERNAL_ID, problems)
    normal = None if email is None else _email(email, problems)
    return Identifiers(None if wallet is None else wallet.lower(), normal, external_id, wallet)


def _email(email: str, problems: list[Problem]) -> str | None:
    normal = normal_email(email)
    if normal is None:
        long = len(email) > MAX_EMAIL
        reason = f"must be at most {MAX_EMAIL} characters" if long else "not a valid email address"
        problems.append(Problem("contact.email", reason))
    return normal


def _bounded(field: str, text: str, most: int, problems: list[Problem]) -> None:
    if not 0 < len(text) <= most:
        problems.append(Problem(field, f"must be 1 to {most} characters"))
    elif reason := unfit_text(text):
        problems.append(Problem(field, reason))


def _moment(text: str, now_us: int, history: bool, problems: list[Problem]) -> int | None:
    moment_us = read_moment(text)
    if reason := _misdated(moment_us, now_us, history):
        problems.append(Problem("occurredAt", reason))
    return moment_us


def _misdated(moment_us: int | None, now_us: int, history: bool) -> str | None:
    """Say why an event cannot have occurred then (None: no moment), or return None."""
    if moment_us is None:
        return "must be an RFC 3339 date and time with a zone, like 2026-11-20T10:00:00Z"
    if moment_us > now_us + _NEWEST_US:
        return "is more than 5 minutes in the future"
    if moment_us < now_us - _OLDEST_US and not history:
        return "is older than 7 days"
    return None


_OLDEST_US, _NEWEST_US = in_us(OLDEST), in_us(NEWEST)
