"""Events: their fields and limits, and how one is read from JSON (docs/contract.md 2.1, 2.2 and 8).

`read_event` has a fast path and a full path. The fast path decodes a common event (ASCII without escapes, whole-number
attributes) in one typed pass that checks while it decodes. It never refuses: an event that it cannot accept goes to the
full path, which checks field by field and reports every problem, so the rules exist only once. `event_batch` reads many
past events at a time by the same scheme.

Times are microseconds since the epoch. A payload is JSON text, stored as it was sent.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, TypeVar, cast

import msgspec
from msgspec import Meta

from workbench.language.codec import (
    MAX_DEPTH,
    Json,
    MalformedJsonError,
    compact,
    decode,
    replace_lone_surrogates,
    storage_problem,
    text_problem,
    truncate_depth,
)
from workbench.language.problem import Problem, Problems

# The bounds of docs/contract.md 2.1; tests/language/test_contract_bounds.py compares them.
MAX_EVENT_BYTES = 1_048_576  # as sent
MAX_AGE = timedelta(days=7)
MAX_FUTURE = timedelta(minutes=5)
MAX_WALLET, MAX_EXTERNAL_ID, MAX_KEY = 128, 128, 256  # characters
MAX_EMAIL = 320  # characters
MAX_ATTRIBUTES, MAX_ATTRIBUTE_KEY, MAX_ATTRIBUTE_BYTES = 50, 128, 1024
MAX_ATTRIBUTES_BYTES = 524_288  # as sent
MAX_PAYLOAD_BYTES = 16_384  # as compact JSON
MAX_RAW_PAYLOAD_BYTES = 262_144  # as sent

EVENT_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
LOG_NAME = re.compile(r"0x[0-9a-fA-F]{40}:[A-Za-z_$][\w$]{0,127}", re.ASCII)


class Identifiers(msgspec.Struct, frozen=True, gc=False):
    """The identifiers of a contact, normalised. `wallet_raw` is the wallet as it was sent."""

    wallet: str | None = None
    email: str | None = None
    external_id: str | None = None
    wallet_raw: str | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """A valid event. `payload` is the JSON text of an object, as sent.

    `on_chain`: a log of a contract, not a custom event.
    """

    name: str
    identifiers: Identifiers
    attributes: dict[str, Json] = {}
    payload: bytes = b"{}"
    idempotency_key: str | None = None
    occurred_at_us: int | None = None
    test: bool = False
    on_chain: bool = False


def is_awaitable_name(name: str) -> bool:
    """Return whether a wait or a goal can name this event: a custom event, or a contract log such as `0x…:Transfer`."""
    return EVENT_NAME.fullmatch(name) is not None or LOG_NAME.fullmatch(name) is not None


def read_event(raw: bytes, now_us: int, *, history: bool = False) -> Event | Problems:
    """Return the event in the JSON text `raw`, validated at `now_us`, or all its problems (at least one).

    `history` lifts the seven-day bound, for imports.
    """
    if len(raw) > MAX_EVENT_BYTES:
        return (Problem("", f"is larger than {MAX_EVENT_BYTES} bytes"),)
    event = _read_fast(raw, now_us, history)
    if event is not None:
        return event
    try:
        if not raw.isascii():
            raw.decode()  # payloads are stored undecoded, so the whole text must be valid UTF-8
        raw = replace_lone_surrogates(raw)
        try:
            return _read_in_full(raw, now_us, history)
        except RecursionError:
            if len(raw) > MAX_RAW_PAYLOAD_BYTES:
                return (Problem("", "is nested too deeply"),)
            # What is cut is still too deep for its field, so the problem names the field and not the whole body.
            return _read_in_full(truncate_depth(raw), now_us, history)
    except ValueError as error:
        return (Problem("", f"malformed JSON: {str(error).removeprefix('JSON is malformed: ')}"),)


# --- The fast path ---

_NULL = msgspec.Raw(b"null")

_FastAttributes = dict[
    Annotated[str, Meta(min_length=1, max_length=MAX_ATTRIBUTE_KEY)],
    Annotated[str, Meta(max_length=MAX_ATTRIBUTE_BYTES)] | Annotated[int, Meta(ge=-(2**53), le=2**53)] | bool,
]


class FastBody(msgspec.Struct, rename="camel", gc=False):
    """An event decoded from ASCII without escapes: only name, contact, payload and timestamp remain to be checked."""

    event: str
    contact: msgspec.Raw
    attributes: Annotated[_FastAttributes, Meta(max_length=MAX_ATTRIBUTES)] | None = None
    payload: msgspec.Raw = _NULL
    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY)] | None = None
    occurred_at: str | None = None
    test: bool | None = None


class _FastContact(msgspec.Struct, rename="camel", gc=False):
    email: Annotated[str, Meta(min_length=1, max_length=MAX_EMAIL)] | None = None
    wallet_address: Annotated[str, Meta(min_length=1, max_length=MAX_WALLET)] | None = None
    external_id: Annotated[str, Meta(min_length=1, max_length=MAX_EXTERNAL_ID)] | None = None


FAST_BODY = msgspec.json.Decoder(FastBody)
_FAST_CONTACT = msgspec.json.Decoder(_FastContact)


def _read_fast(raw: bytes, now_us: int, history: bool) -> Event | None:
    """Return a valid event, or None if it needs the full path."""
    if b"\\" in raw or not raw.isascii():  # the typed limits count characters, which are bytes only here
        return None
    try:
        body = FAST_BODY.decode(raw)
    except (ValueError, RecursionError):
        return None
    payload = bytes(body.payload)
    if _needs_check(payload):
        return None
    identifiers, name = fast_identifiers(bytes(body.contact)), fast_name(body.event)
    if identifiers is None or name is None:
        return None
    if payload[0] != 123:  # "{"
        if payload != b"null":
            return None
        payload = b"{}"
    occurred_at_us = None
    if body.occurred_at is not None:
        occurred_at_us = parse_timestamp(body.occurred_at)
        if _timestamp_problem(occurred_at_us, now_us, history):
            return None
    attributes: dict[str, Json] = {**body.attributes} if body.attributes else {}
    return Event(name, identifiers, attributes, payload, body.idempotency_key, occurred_at_us, body.test is True)


@lru_cache(maxsize=1_024)
def fast_name(name: str) -> str | None:
    """Return a valid event name as it is stored, or None."""
    return name.lower() if EVENT_NAME.fullmatch(name) else None


# Most events come from contacts that sent one before. A dict, because `all_fast_identifiers` maps `get` over many keys,
# which an lru_cache does not offer.
_MAX_CACHED_CONTACTS = 65_536
_MAX_CACHED_CONTACT_BYTES = 512
_identifiers_cache: dict[bytes, Identifiers | None] = {}


def fast_identifiers(contact: bytes) -> Identifiers | None:
    """Return the identifiers in the JSON text of a contact, or None if it needs the full path."""
    identifiers = _identifiers_cache.get(contact)
    if identifiers is None and len(contact) <= _MAX_CACHED_CONTACT_BYTES:
        with suppress(ValueError):
            sent = _FAST_CONTACT.decode(contact)
            problems: list[Problem] = []
            identifiers = _identifiers(_Contact(sent.email, sent.wallet_address, sent.external_id), problems)
            if problems:
                identifiers = None
        if len(_identifiers_cache) >= _MAX_CACHED_CONTACTS:  # cheaper than to track which entry was used last
            _identifiers_cache.clear()
        _identifiers_cache[contact] = identifiers
    return identifiers


def all_fast_identifiers(contacts: Sequence[bytes]) -> list[Identifiers] | None:
    """Return the identifiers of many contacts, or None if one of them needs the full path."""
    cached = list(map(_identifiers_cache.get, contacts))
    if not all(cached):
        cached = [hit or fast_identifiers(contact) for hit, contact in zip(cached, contacts, strict=True)]
    return cast("list[Identifiers]", cached) if all(cached) else None


# --- The full path ---


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


_BODY = msgspec.json.Decoder(_Body)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

# These replace fields that already have a problem, so that the other fields are still checked.
_VALID_NAME = "x"
_VALID_CONTACT = _Contact(external_id="x")

_Scalar = TypeVar("_Scalar", str, bool)
_TYPE_REASONS: dict[type, str] = {str: "must be a string", bool: "must be true or false"}


def _read_in_full(raw: bytes, now_us: int, history: bool) -> Event | Problems:
    try:
        body, problems = _BODY.decode(raw), list[Problem]()
    except msgspec.ValidationError:
        try:
            fields = _FIELDS.decode(raw)
        except msgspec.ValidationError:
            return (Problem("", "must be a JSON object"),)
        problems = []
        body = _read_fields(fields, problems)

    if not EVENT_NAME.fullmatch(body.event):
        problems.append(Problem("event", "must be 1 to 64 characters of a-z A-Z 0-9 _ . : -"))
    identifiers = _identifiers(body.contact, problems)
    attributes = _read_attributes(bytes(body.attributes), problems)
    payload = _read_payload(bytes(body.payload), problems)
    if body.idempotency_key is not None:
        _check_text("idempotencyKey", body.idempotency_key, MAX_KEY, problems)
    occurred_at_us = None
    if body.occurred_at is not None:
        occurred_at_us = parse_timestamp(body.occurred_at)
        if reason := _timestamp_problem(occurred_at_us, now_us, history):
            problems.append(Problem("occurredAt", reason))
    if problems:
        return tuple(problems)
    name, key, is_test = body.event.lower(), body.idempotency_key, body.test is True
    return Event(name, identifiers, attributes, payload, key, occurred_at_us, is_test)


def _read_fields(fields: dict[str, msgspec.Raw], problems: list[Problem]) -> _Body:
    """Read a body that has a field of a wrong type, one field at a time."""
    # JSON keys may repeat, and the last one counts, so `fields` may have no field of a wrong type after all.
    event = _take(fields, "event", str, problems)
    if event is None and not problems:
        problems.append(Problem("event", "is required"))
    raw_contact, contact = fields.get("contact", _NULL), _VALID_CONTACT
    if bytes(raw_contact)[:1] != b"{":
        problems.append(Problem("contact", "is required" if bytes(raw_contact) == b"null" else "must be an object"))
    else:
        sent, before = _FIELDS.decode(raw_contact), len(problems)
        email = _take(sent, "contact.email", str, problems)
        wallet = _take(sent, "contact.walletAddress", str, problems)
        external_id = _take(sent, "contact.externalId", str, problems)
        if len(problems) == before or email is not None or wallet is not None or external_id is not None:
            contact = _Contact(email, wallet, external_id)
    return _Body(
        event=_VALID_NAME if event is None else event,
        contact=contact,
        attributes=fields.get("attributes", _NULL),
        payload=fields.get("payload", _NULL),
        idempotency_key=_take(fields, "idempotencyKey", str, problems),
        occurred_at=_take(fields, "occurredAt", str, problems),
        test=_take(fields, "test", bool, problems),
    )


def _take(fields: dict[str, msgspec.Raw], path: str, kind: type[_Scalar], problems: list[Problem]) -> _Scalar | None:
    try:
        value = decode(bytes(fields.get(path.rpartition(".")[2], _NULL)))
    except MalformedJsonError:  # too deep, or too large a number: not of this type in either case
        value = ...
    if value is None or isinstance(value, kind):
        return value
    problems.append(Problem(path, _TYPE_REASONS[kind]))
    return None


def _identifiers(contact: _Contact, problems: list[Problem]) -> Identifiers:
    wallet, email, external_id = contact.wallet_address, contact.email, contact.external_id
    if wallet is None and email is None and external_id is None:
        problems.append(Problem("contact", "needs at least one of email, walletAddress, externalId"))
    if wallet is not None:
        _check_text("contact.walletAddress", wallet, MAX_WALLET, problems)
    if external_id is not None:
        _check_text("contact.externalId", external_id, MAX_EXTERNAL_ID, problems)
    normal_email = None if email is None else normalise_email(email)
    if email is not None and normal_email is None:
        too_long = len(email) > MAX_EMAIL
        reason = f"must be at most {MAX_EMAIL} characters" if too_long else "not a valid email address"
        problems.append(Problem("contact.email", reason))
    return Identifiers(None if wallet is None else wallet.lower(), normal_email, external_id, wallet)


def _check_text(field: str, text: str, max_length: int, problems: list[Problem]) -> None:
    if not 0 < len(text) <= max_length:
        problems.append(Problem(field, f"must be 1 to {max_length} characters"))
    elif reason := text_problem(text):
        problems.append(Problem(field, reason))


def _timestamp_problem(occurred_at_us: int | None, now_us: int, history: bool) -> str | None:
    """Return why a timestamp is refused, or None. `occurred_at_us` None: the text is not a timestamp."""
    if occurred_at_us is None:
        return "must be an RFC 3339 date and time with a zone, like 2026-11-20T10:00:00Z"
    if occurred_at_us > now_us + _MAX_FUTURE_US:
        return "is more than 5 minutes in the future"
    if occurred_at_us < now_us - _MAX_AGE_US and not history:
        return "is older than 7 days"
    return None


# --- Attributes ---


def _read_attributes(raw: bytes, problems: list[Problem]) -> dict[str, Json]:
    if raw == b"null":
        return {}
    if len(raw) > MAX_ATTRIBUTES_BYTES:
        problems.append(Problem("attributes", f"is larger than {MAX_ATTRIBUTES_BYTES} bytes"))
        return {}
    try:
        attributes = decode(raw)
    except MalformedJsonError as error:
        problems.append(Problem("attributes", str(error)))
        return {}
    if not isinstance(attributes, dict):
        problems.append(Problem("attributes", "must be an object"))
        return {}
    if len(attributes) > MAX_ATTRIBUTES:
        problems.append(Problem("attributes", f"has {len(attributes)} keys, at most {MAX_ATTRIBUTES} are allowed"))
        return {}
    problems.extend(attribute_problems(attributes))
    return attributes


def attribute_problems(attributes: dict[str, Json]) -> Iterator[Problem]:
    """Yield why attributes cannot be stored, each problem by its path: `attributes.tier`."""
    for key, value in attributes.items():
        if not 0 < len(key) <= MAX_ATTRIBUTE_KEY or text_problem(key):
            yield Problem("attributes", f"keys must be 1 to {MAX_ATTRIBUTE_KEY} characters, without U+0000")
        elif not isinstance(value, str | int | Decimal):
            yield Problem(f"attributes.{key}", "must be a string, number or boolean")
        elif isinstance(value, str) and len(value.encode()) > MAX_ATTRIBUTE_BYTES:
            yield Problem(f"attributes.{key}", f"must be at most {MAX_ATTRIBUTE_BYTES} bytes")
        elif reason := storage_problem(value):
            yield Problem(f"attributes.{key}", reason)


# --- Email addresses ---

_LOCAL = re.compile(r"[a-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[a-z0-9!#$%&'*+/=?^_`{|}~-]+)*")
_DOMAIN = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+(?![0-9]+$)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def mask_email(email: str) -> str:
    """Return an address with all but its first character and its domain hidden: `a•••@example.com`."""
    local, at, domain = email.rpartition("@")
    return f"{local[:1]}•••{at}{domain}"


def normalise_email(email: str) -> str | None:
    """Return the normal form of an address (lower case, NFC, IDNA domain), or None when it is not valid."""
    if len(email) > MAX_EMAIL or not email.isprintable():  # control and invisible characters
        return None
    local, at, domain = email.rpartition("@")
    if email.isascii():
        local, domain = local.lower(), domain.lower()
        ascii_local = local
    else:
        # NFC is not closed under lower-casing, so the result is normalised again.
        local = unicodedata.normalize("NFC", unicodedata.normalize("NFC", local).lower())
        ascii_local = "".join(character if character.isascii() else "x" for character in local)
        try:
            domain = domain.encode("idna").decode().lower()
        except UnicodeError:
            return None
    valid = (
        at and len(local) <= 64 and len(domain) <= 255 and _LOCAL.fullmatch(ascii_local) and _DOMAIN.fullmatch(domain)
    )
    return f"{local}@{domain}" if valid else None


# --- Timestamps ---

_DAY = re.compile(r"\d{4}-\d\d-\d\d[Tt]([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in UTC

_ZERO_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_COMMON_SHAPES = {
    b"0000-00-00T00:00:00%b%b" % (fraction, zone)
    for fraction in (b"", b".000", b".000000")
    for zone in (b"Z", b"+00:00")
}


def parse_timestamp(text: str) -> int | None:
    """Return the microseconds since the epoch of an RFC 3339 timestamp, or None; digits past the sixth are dropped."""
    zone, fraction_us = text[19:26], 0
    if zone[:1] == ".":
        zone = text[-1] if text[-1] in "Zz" else text[-6:]
        fraction = text[20 : len(text) - len(zone)]
        if not (fraction.isdigit() and fraction.isascii()):
            return None
        fraction_us = int(fraction[:6].ljust(6, "0"))
    # Days repeat over many events, so each is parsed once; minutes and seconds are looked up in tables.
    midnight_us = _midnight_us(text[:11] + zone)
    minute_us, second_us = _MINUTES_US.get(text[11:16]), _SECONDS_US.get(text[16:19])
    if midnight_us is None or minute_us is None or second_us is None:
        return None
    timestamp_us = midnight_us + minute_us + second_us + fraction_us
    return timestamp_us if _FIRST_US <= timestamp_us <= _LAST_US else None


def parse_timestamps(texts: Sequence[str | None]) -> list[int | None]:
    """Return `parse_timestamp` of each text; None for None. Twice as fast if all are in UTC and of a common shape."""
    with suppress(TypeError, ValueError):  # a missing text, or an impossible day or hour
        lines = "\n".join(texts)  # type: ignore[arg-type]
        in_utc = lines.count("Z") + lines.count("+00:00")
        if (
            in_utc == len(texts)
            and lines.isascii()
            and _COMMON_SHAPES.issuperset(lines.encode().translate(_ZERO_DIGITS).split(b"\n"))
        ):
            return [(datetime.fromisoformat(text) - _EPOCH) // _MICROSECOND for text in texts if text is not None]
    return [None if text is None else parse_timestamp(text) for text in texts]


@lru_cache(maxsize=16_384)
def _midnight_us(text: str) -> int | None:
    """Return the start of a day in a zone: `2026-11-20T+02:00`."""
    if not _DAY.fullmatch(text):
        return None
    try:
        return to_us(datetime.fromisoformat(f"{text[:10]}T00:00:00{text[11:].upper()}") - _EPOCH)
    except ValueError:  # February 30
        return None


_MINUTES_US = {
    f"{hour:02}:{minute:02}": (hour * 60 + minute) * 60_000_000 for hour in range(24) for minute in range(60)
}
_SECONDS_US = {f":{second:02}": second * 1_000_000 for second in range(60)}


def to_us(span: timedelta) -> int:
    """Return a span in whole microseconds."""
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


_MAX_AGE_US, _MAX_FUTURE_US = to_us(MAX_AGE), to_us(MAX_FUTURE)


# --- Payloads ---

# Maps all digits to 0, E to e and [ to {, so that one search finds long numbers, exponents and levels of nesting.
_SHAPE = bytes.maketrans(b"123456789E[", b"000000000e{")
_ANY = msgspec.json.Decoder()
_SEPARATOR = b"\x1e"  # a control character, which no JSON text contains unescaped
_NO_BRACES = bytes(byte for byte in range(256) if byte not in b"{" + _SEPARATOR)


def _read_payload(raw: bytes, problems: list[Problem]) -> bytes:
    """Return a payload as it is stored: as it was sent, or compact if only that is within the limit."""
    if raw == b"null":
        return b"{}"
    if raw[:1] != b"{":
        problems.append(Problem("payload", "must be an object"))
        return raw
    if len(raw) > MAX_RAW_PAYLOAD_BYTES:
        reason = f"is {len(raw)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed as compact JSON"
        problems.append(Problem("payload", reason))
        return raw
    if not _needs_check(raw):
        return raw
    try:
        problem = storage_problem(decode(raw))
        stored = raw if len(raw) <= MAX_PAYLOAD_BYTES else compact(raw)
    except MalformedJsonError as error:
        problem, stored = str(error), b""
    if problem is None and len(stored) > MAX_PAYLOAD_BYTES:
        problem = f"is {len(stored)} bytes as compact JSON, at most {MAX_PAYLOAD_BYTES} are allowed"
    if problem is not None:
        problems.append(Problem("payload", problem))
    return stored


def _needs_check(raw: bytes) -> bool:
    """Return whether a payload may break a rule, judged by its text. Few payloads do, and only those are decoded."""
    shape = raw.translate(_SHAPE)
    return (
        len(raw) > MAX_PAYLOAD_BYTES
        or shape.count(b"{") > MAX_DEPTH
        or b"\\u" in shape  # an escaped NUL or surrogate
        # A number can leave the allowed range only with an exponent, or with 200 digits in a row.
        or (b"0e" in shape and _has_extreme_exponent(raw))
        or (len(raw) >= 200 and b"0" * 200 in shape)
    )


def none_need_check(payloads: Sequence[bytes]) -> bool:
    """Return whether no payload needs a check, if none has escapes. False can also be a false alarm."""
    shapes = _SEPARATOR.join(payloads).translate(_SHAPE)
    return (
        max(map(len, payloads), default=0) <= MAX_PAYLOAD_BYTES
        and b"0e" not in shapes
        and b"0" * 200 not in shapes
        and b"{" * (MAX_DEPTH + 1) not in shapes.translate(None, _NO_BRACES)
    )


def _has_extreme_exponent(raw: bytes) -> bool:
    # A large exponent overflows a float, which makes the decoder raise; a negative one, or one of zero, does not.
    if b"e-" in raw or b"0e" in raw or b"E-" in raw or b"0E" in raw:
        return True
    try:
        _ANY.decode(raw)
    except (ValueError, RecursionError):
        return True
    return False
