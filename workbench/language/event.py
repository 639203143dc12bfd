"""Events: their fields and limits, and how one is read from JSON (docs/contract.md 2.1, 2.2 and 8).

A body is decoded in one typed pass. If a field has a wrong type, it is read again field by field, so that every problem
is reported. Payloads are judged by their text: few can break a rule, and only those are decoded.

Times are microseconds since the epoch. A payload is JSON text, stored as it was sent.
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from typing import Annotated, TypeVar

import idna
import msgspec
from msgspec import Meta

from workbench.language.codec import (
    BACKSLASH,
    MAX_DEPTH,
    Json,
    MalformedJsonError,
    compact,
    decode,
    malformed_json,
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

_MICROSECOND = timedelta(microseconds=1)
MAX_AGE_US, MAX_FUTURE_US = MAX_AGE // _MICROSECOND, MAX_FUTURE // _MICROSECOND

EVENT_NAME = re.compile(r"[a-zA-Z0-9_.:-]{1,64}")
LOG_NAME = re.compile(r"0x[0-9a-fA-F]{40}:[A-Za-z_$][\w$]{0,127}", re.ASCII)


class Identifiers(msgspec.Struct, frozen=True, gc=False):
    """The identifiers of a contact, normalized. `wallet_raw` is the wallet as it was sent."""

    wallet: str | None = None
    email: str | None = None
    external_id: str | None = None
    wallet_raw: str | None = None


class Event(msgspec.Struct, frozen=True, gc=False):
    """A valid event. `payload` is the JSON text of an object, as sent.

    `source`: of a log, the key of its contract event (`LogSource.key`); None: a custom event. `warnings`: its unknown
    fields that look like misspelt ones.
    """

    name: str
    identifiers: Identifiers
    attributes: dict[str, Json] = {}
    payload: bytes = b"{}"
    idempotency_key: str | None = None
    occurred_at_us: int | None = None
    test: bool = False
    source: str | None = None
    warnings: Problems = ()


def attribute_key(name: str) -> str:
    """Return the name under which entries wait for a change of an attribute. No event has it."""
    return f"@{name}"


def is_awaitable_name(name: str) -> bool:
    """Return whether a wait or a goal can name this event: a custom event, or a contract log such as `0x…:Transfer`."""
    return EVENT_NAME.fullmatch(name) is not None or LOG_NAME.fullmatch(name) is not None


def read_event(raw: bytes, now_us: int, *, history: bool = False, strict: bool = False) -> Event | Problems:
    """Return the event in the JSON text `raw`, validated at `now_us`, or all its problems (at least one).

    `history` lifts the seven-day bound, for imports. `strict`: unknown fields are problems.
    """
    if len(raw) > MAX_EVENT_BYTES:
        return (Problem("", f"is larger than {MAX_EVENT_BYTES} bytes"),)
    try:
        if not raw.isascii():
            raw.decode()  # payloads are stored undecoded, so the whole text must be valid UTF-8
        raw = replace_lone_surrogates(raw)
        try:
            return _read_body(raw, now_us, history, strict)
        except RecursionError:
            if len(raw) > MAX_RAW_PAYLOAD_BYTES:
                return (Problem("", "is nested too deeply"),)
            # What is cut is still too deep for its field, so the problem names the field and not the whole body.
            return _read_body(truncate_depth(raw), now_us, history, strict)
    except ValueError as error:
        return (Problem("", malformed_json(error)),)


# --- Bodies; the OpenAPI document states their bounds ---

_NULL = msgspec.Raw(b"null")
_ATTRIBUTE_SCHEMA = {
    "anyOf": [{"type": "string", "maxLength": MAX_ATTRIBUTE_BYTES}, {"type": "number"}, {"type": "boolean"}]
}
_ATTRIBUTES_SCHEMA = {
    "type": ["object", "null"],
    "description": f"Merged into the contact's attributes. A string has at most {MAX_ATTRIBUTE_BYTES:,} bytes.",
    "maxProperties": MAX_ATTRIBUTES,
    "propertyNames": {"minLength": 1, "maxLength": MAX_ATTRIBUTE_KEY},
    "additionalProperties": _ATTRIBUTE_SCHEMA,
}
_PAYLOAD_SCHEMA = {"type": ["object", "null"], "description": f"At most {MAX_PAYLOAD_BYTES:,} bytes as compact JSON."}
_EVENT_NAME_SCHEMA = {"pattern": f"^{EVENT_NAME.pattern}$"}  # not Meta(pattern=...), which is slow to check

IdempotencyKey = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=MAX_KEY,
        description="A repeated key is not stored again. Without a key, one is derived from the event.",
    ),
]


Email = Annotated[str, Meta(min_length=1, max_length=MAX_EMAIL)]
WalletAddress = Annotated[str, Meta(min_length=1, max_length=MAX_WALLET)]
ExternalId = Annotated[str, Meta(min_length=1, max_length=MAX_EXTERNAL_ID)]


class ContactBody(msgspec.Struct, rename="camel", gc=False):
    """The identifiers of a contact; at least one of them."""

    email: Email | None = None
    wallet_address: WalletAddress | None = None
    external_id: ExternalId | None = None


class EventBody(msgspec.Struct, rename="camel"):
    """An event of a contact."""

    event: Annotated[
        str, Meta(description="Stored in lower case.", examples=["deposit"], extra_json_schema=_EVENT_NAME_SCHEMA)
    ]
    contact: Annotated[ContactBody, Meta(examples=[{"externalId": "user_1"}])]
    attributes: Annotated[msgspec.Raw, Meta(extra_json_schema=_ATTRIBUTES_SCHEMA)] = msgspec.field(
        default_factory=lambda: _NULL  # not a default, which msgspec could not write into the schema
    )
    payload: Annotated[msgspec.Raw, Meta(extra_json_schema=_PAYLOAD_SCHEMA)] = msgspec.field(
        default_factory=lambda: _NULL
    )
    idempotency_key: IdempotencyKey | None = None
    occurred_at: (
        Annotated[
            str,
            Meta(
                description=f"From {MAX_AGE.days} days ago to {MAX_FUTURE.seconds // 60} minutes ahead.",
                extra_json_schema={"format": "date-time"},
            ),
        ]
        | None
    ) = None
    test: Annotated[bool, Meta(description="A dry run: evaluated, not stored.")] | None = None


# --- Reading ---


class _ExactContactBody(ContactBody, forbid_unknown_fields=True, gc=False): ...


class _ExactEventBody(EventBody, forbid_unknown_fields=True):
    contact: _ExactContactBody


# Refusing unknown fields costs nothing here, and an event with one is read again, field by field.
_BODY = msgspec.json.Decoder(_ExactEventBody)
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])

# These replace fields that already have a problem, so that the other fields are still checked.
_VALID_NAME = "x"
_VALID_CONTACT = ContactBody(external_id="x")

_Scalar = TypeVar("_Scalar", str, bool)
_TYPE_REASONS: dict[type, str] = {str: "must be a string", bool: "must be true or false"}


def _read_body(raw: bytes, now_us: int, history: bool, strict: bool) -> Event | Problems:
    problems: list[Problem] = []
    unknown: list[Problem] = []
    try:
        body: EventBody = _BODY.decode(raw)
    except msgspec.ValidationError:
        try:
            fields = _FIELDS.decode(raw)
        except msgspec.ValidationError:
            return (Problem("", "must be a JSON object"),)
        body = _read_fields(fields, problems, unknown)
        if not strict:
            unknown = [problem for problem in unknown if problem.reason != UNKNOWN_FIELD]

    name = _stored_name(body.event)
    if name is None:
        problems.append(Problem("event", "must be 1 to 64 characters of a-z A-Z 0-9 _ . : -"))
    identifiers = read_identifiers(body.contact, problems)
    attributes = _read_attributes(bytes(body.attributes), problems)
    payload = _read_payload(bytes(body.payload), problems)
    if body.idempotency_key is not None:
        _check_text("idempotencyKey", body.idempotency_key, MAX_KEY, problems)
    occurred_at_us = None
    if body.occurred_at is not None:
        occurred_at_us = parse_timestamp(body.occurred_at)
        if occurred_at_us is None:
            problems.append(Problem("occurredAt", NOT_A_TIMESTAMP))
        elif occurred_at_us > now_us + MAX_FUTURE_US:
            problems.append(Problem("occurredAt", f"is more than {MAX_FUTURE.seconds // 60} minutes in the future"))
        elif occurred_at_us < now_us - MAX_AGE_US and not history:
            problems.append(Problem("occurredAt", f"is older than {MAX_AGE.days} days"))
    if problems or name is None or (strict and unknown):
        return (*problems, *unknown)
    return Event(
        name,
        identifiers,
        attributes,
        payload,
        body.idempotency_key,
        occurred_at_us,
        body.test is True,
        warnings=tuple(unknown),
    )


@lru_cache(maxsize=1_024)
def _stored_name(name: str) -> str | None:
    """Return a valid event name as it is stored, or None."""
    return name.lower() if EVENT_NAME.fullmatch(name) else None


def _read_fields(fields: dict[str, msgspec.Raw], problems: list[Problem], unknown: list[Problem]) -> EventBody:
    """Read a body that has an unknown field, or a field of a wrong type, one field at a time."""
    unknown += _unknown_fields(fields, EventBody)
    # JSON keys may repeat and the last one counts: if the wrong type was in an earlier one, all `fields` may be valid.
    event = _take(fields, "event", str, problems)
    if event is None and not problems:
        problems.append(Problem("event", "is required"))
    raw_contact, contact = fields.get("contact", _NULL), _VALID_CONTACT
    if bytes(raw_contact)[:1] != b"{":
        problems.append(Problem("contact", "is required" if bytes(raw_contact) == b"null" else "must be an object"))
    else:
        sent, before = _FIELDS.decode(raw_contact), len(problems)
        unknown += _unknown_fields(sent, ContactBody, _CONTACT)
        identifiers = [
            _take(sent, f"contact.{name}", str, problems) for name in ("email", "walletAddress", "externalId")
        ]
        if len(problems) == before or any(text is not None for text in identifiers):
            contact = ContactBody(*identifiers)
    return EventBody(
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


def read_identifiers(contact: ContactBody, problems: list[Problem]) -> Identifiers:
    """Return the identifiers of a contact, normalized; add what is wrong with them to `problems`."""
    wallet, email, external_id = contact.wallet_address, contact.email, contact.external_id
    if wallet is None and email is None and external_id is None:
        problems.append(Problem("contact", "needs at least one of email, walletAddress, externalId"))
    if wallet is not None:
        _check_text("contact.walletAddress", wallet, MAX_WALLET, problems)
    if external_id is not None:
        _check_text("contact.externalId", external_id, MAX_EXTERNAL_ID, problems)
    normal_email = None if email is None else normalize_email(email)
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


# --- Unknown fields ---

UNKNOWN_FIELD = "unknown field"
MAX_UNKNOWN_FIELDS = 20  # of an object; what follows is dropped without a warning
_MAX_FIELD_CHARACTERS = 64  # a longer name is not a misspelling

# What was probably meant, by the field in lower case without separators: this contract's fields, and the words of other
# vendors for them.
_MEANT_FIELDS = {
    **{field.encode_name.lower(): field.encode_name for field in msgspec.structs.fields(EventBody)},
    **{field.encode_name.lower(): f"contact.{field.encode_name}" for field in msgspec.structs.fields(ContactBody)},
    **dict.fromkeys(("eventname", "name"), "event"),
    **dict.fromkeys(("properties", "props", "eventproperties", "data", "metadata", "meta"), "payload"),
    **dict.fromkeys(("traits", "userproperties"), "attributes"),
    **dict.fromkeys(("userid", "anonymousid", "distinctid", "customerid"), "contact.externalId"),
    **dict.fromkeys(("wallet", "address"), "contact.walletAddress"),
    **dict.fromkeys(("messageid", "insertid", "eventid"), "idempotencyKey"),
    **dict.fromkeys(("timestamp", "time", "ts", "sentat", "createdat"), "occurredAt"),
    "dryrun": "test",
}
_CONTACT = "contact."
_MEANT_IN_CONTACT = _MEANT_FIELDS | {
    "id": "contact.externalId",
    **dict.fromkeys(("properties", "data", "metadata", "meta", "name", "createdat"), "attributes"),
}
_SEPARATORS = re.compile(r"[\W_]+")
_MIN_SIMILARITY = 0.8  # of difflib: one letter in five


def _unknown_fields(fields: Iterable[str], body: type[msgspec.Struct], prefix: str = "") -> list[Problem]:
    """Return the first unknown fields of an object. Their reasons say what was probably meant."""
    unknown = (name for name in fields if name not in _field_names(body))
    return [unknown_field(prefix + name) for name in islice(unknown, MAX_UNKNOWN_FIELDS)]


@lru_cache
def _field_names(body: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(body))


def unknown_field(path: str, owner: str = "") -> Problem:
    """Return the problem of an unknown field; the reason says what was probably meant, and of which `owner` it is."""
    if len(path) > _MAX_FIELD_CHARACTERS:
        return Problem(f"{path[:_MAX_FIELD_CHARACTERS]}…", UNKNOWN_FIELD)
    meant = _meant_field(path)
    return Problem(path, UNKNOWN_FIELD if meant is None else f"{UNKNOWN_FIELD}, did you mean {meant}{owner}?")


@lru_cache(maxsize=1_024)
def _meant_field(path: str) -> str | None:
    words = _MEANT_IN_CONTACT if path.startswith(_CONTACT) else _MEANT_FIELDS
    word = _SEPARATORS.sub("", path.removeprefix(_CONTACT)).lower()
    if word not in words:
        word = next(iter(difflib.get_close_matches(word, words, 1, _MIN_SIMILARITY)), "")
    return words.get(word)


# --- Attributes ---


# Attributes of these types, in a text without escapes, break no rule; a character has at most four bytes.
_PLAIN_ATTRIBUTES = msgspec.json.Decoder(
    Annotated[
        dict[
            Annotated[str, Meta(min_length=1, max_length=MAX_ATTRIBUTE_KEY)],
            Annotated[str, Meta(max_length=MAX_ATTRIBUTE_BYTES // 4)]
            | Annotated[int, Meta(ge=-(2**53), le=2**53)]
            | bool,
        ],
        Meta(max_length=MAX_ATTRIBUTES),
    ]
)


def _read_attributes(raw: bytes, problems: list[Problem]) -> dict[str, Json]:
    if raw == b"null":
        return {}
    if BACKSLASH not in raw:
        with suppress(msgspec.ValidationError):
            plain: dict[str, Json] = _PLAIN_ATTRIBUTES.decode(raw)
            return plain
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


MASK = "•••"


def mask_email(email: str) -> str:
    """Return an address with all but its first character and its domain hidden: `a•••@example.com`."""
    local, at, domain = email.rpartition("@")
    return f"{local[:1]}{MASK}{at}{domain}"


def normalize_email(email: str) -> str | None:
    """Return the normal form of an address (lower case, NFC, IDNA 2008 domain), or None when it is not valid."""
    return None if len(email) > MAX_EMAIL else _normal_email(email)


@lru_cache(maxsize=65_536)  # most events come from contacts that sent one before
def _normal_email(email: str) -> str | None:
    if not email.isprintable():  # control and invisible characters
        return None
    local, at, domain = email.rpartition("@")
    if email.isascii():
        local, domain = local.lower(), domain.lower()
        ascii_local = local
    else:
        # NFC is not closed under lower-casing, so the result is normalized again.
        local = unicodedata.normalize("NFC", unicodedata.normalize("NFC", local).lower())
        ascii_local = "".join(character if character.isascii() else "x" for character in local)
        try:  # IDNA 2008: the codec of Python's library maps straße.de to strasse.de, which is another domain
            domain = domain.lower() if domain.isascii() else idna.encode(domain, uts46=True).decode()
        except idna.IDNAError:
            return None
    valid = (
        at and len(local) <= 64 and len(domain) <= 255 and _LOCAL.fullmatch(ascii_local) and _DOMAIN.fullmatch(domain)
    )
    return f"{local}@{domain}" if valid else None


# --- Timestamps ---

NOT_A_TIMESTAMP = "must be an ISO 8601 date and time with a zone, like 2026-11-20T10:00:00Z"

# The form that nearly all senders use. `fromisoformat` also takes any separator and, from Python 3.13 on, the hour 24.
_TIMESTAMP = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]([01]\d|2[0-3]):\d\d:\d\d(\.\d+)?([Zz]|[+-]([01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
_ISO_8601 = re.compile(
    r"(\d{4}-\d\d-\d\d|\d{8}|\d{4}-[Ww]\d\d-\d|\d{4}[Ww]\d{3})[Tt ]"
    r"([01]\d|2[0-3])(:[0-5]\d(:[0-5]\d([.,]\d+)?)?|[0-5]\d([0-5]\d([.,]\d+)?)?)?"
    r"([Zz]|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)",
    re.ASCII,
)
_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in UTC


def parse_timestamp(text: str) -> int | None:
    """Return the microseconds since the epoch of an ISO 8601 date and time with a zone, or None.

    Extended and basic form, a blank in place of the T; minutes and seconds may be missing. Digits past the sixth of a
    fraction are dropped. docs/contract.md 2.1 lists the forms.
    """
    if not _TIMESTAMP.fullmatch(text) and not _ISO_8601.fullmatch(text):
        return None
    try:
        timestamp_us = (datetime.fromisoformat(text.upper()) - _EPOCH) // _MICROSECOND
    except ValueError:  # February 30
        return None
    return timestamp_us if _FIRST_US <= timestamp_us <= _LAST_US else None


# --- Payloads ---

# Maps digits and signs to 0, E to e and [ to {, so that one search finds long numbers, exponents and levels of nesting.
_SHAPE = bytes.maketrans(b"123456789+-E[", b"00000000000e{")


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
        or (BACKSLASH in raw and b"\\u" in raw)  # an escaped NUL or surrogate
        # A number leaves the allowed range only with an exponent of three digits, or with 200 digits in a row.
        or b"0e000" in shape
        or (len(raw) >= 200 and b"0" * 200 in shape)
    )
