"""What a caller describes for a simulation: a contact, and events that come later. Values are taken as the service would."""

from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec

from api.language.action import MAX_WAIT
from api.language.codec import Json, encode, normalise, unfit_text
from api.language.contact import Contact
from api.language.email import normal_email
from api.language.event import LOG_NAME, Event, Identifiers, read_event
from api.language.problem import Problem, Problems
from api.language.retry import CHANNELS

SIMULATED = "00000000-0000-8000-8000-000000000000"
MAX_LATER = 100

_TEXTS = ("id", "email", "walletAddress", "externalId")


class Later(msgspec.Struct, frozen=True):
    """An event of the same contact that comes so long after the one that starts the entry."""

    after: timedelta
    event: Event


def contact_of(value: Mapping[str, Any] | None) -> Contact:
    """Return the contact a caller described (see `read_contact`); raise ValueError naming what is wrong."""
    contact = read_contact(value)
    if isinstance(contact, Contact):
        return contact
    raise ValueError("; ".join(map(str, contact)))


def read_contact(value: Any, field: str = "contact") -> Contact | Problems:
    """Return a described contact: `id, email, walletAddress, externalId, attributes, tags, segments, optedOut`, all optional.

    Values are taken as the service would store them: the wallet in lower case, the email in its normal form.
    """
    if value is None:
        return Contact(SIMULATED)
    if not isinstance(value, Mapping):
        return (Problem(field, "must be an object"),)
    problems: list[Problem] = []
    texts = {name: _text(value.get(name), f"{field}.{name}", problems) for name in _TEXTS}
    email = texts["email"] and normal_email(texts["email"])
    if texts["email"] and email is None:
        problems.append(Problem(f"{field}.email", "not a valid email address"))
    wallet = texts["walletAddress"]
    contact = Contact(
        texts["id"] or SIMULATED,
        Identifiers(wallet and wallet.lower(), email, texts["externalId"], wallet),
        _attributes(value.get("attributes"), f"{field}.attributes", problems),
        _words(value.get("tags"), f"{field}.tags", problems),
        _words(value.get("segments"), f"{field}.segments", problems),
        _channels(value.get("optedOut"), f"{field}.optedOut", problems),
    )
    return tuple(problems) if problems else contact


def read_later(value: Any, now_us: int, field: str, problems: list[Problem]) -> tuple[Later, ...]:
    """Return the later events in a decoded JSON value, adding what is wrong to `problems`.

    It is an array of `{afterSeconds, event}`; each event is judged at the moment at which it comes.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_LATER:
        problems.append(Problem(field, f"must be an array of at most {MAX_LATER} later events"))
        return ()
    found = [_later(each, now_us, f"{field}[{index}]", problems) for index, each in enumerate(value)]
    return tuple(each for each in found if each is not None)


def _later(value: Any, now_us: int, field: str, problems: list[Problem]) -> Later | None:
    if not isinstance(value, dict) or not isinstance(value.get("event"), dict):
        problems.append(Problem(f"{field}.event", "must be an event"))
        return None
    seconds, most = value.get("afterSeconds"), MAX_WAIT.total_seconds()
    if isinstance(seconds, bool) or not isinstance(seconds, int | Decimal) or not 0 < seconds <= most:
        problems.append(Problem(f"{field}.afterSeconds", f"must be a number of seconds up to {most:,.0f} (366 days)"))
        return None
    after = timedelta(microseconds=int(seconds * 1_000_000))
    event = _log(value["event"]) or read_event(encode(value["event"]), now_us + after // timedelta(microseconds=1))
    if isinstance(event, Event):
        return Later(after, event)
    problems.extend(Problem(f"{field}.event.{each.field}".removesuffix("."), each.reason) for each in event)
    return None


def _log(described: dict[str, Any]) -> Event | None:
    """Return a log by the name that waits have for it, with its parameters as the payload; None for custom events."""
    name, payload = described.get("event"), described.get("payload", {})
    if not isinstance(name, str) or not LOG_NAME.fullmatch(name) or not isinstance(payload, dict):
        return None
    return Event(name.lower(), Identifiers(), payload=encode(payload), on_chain=True)


def _text(value: Any, field: str, problems: list[Problem]) -> str | None:
    if value is not None and not isinstance(value, str):
        problems.append(Problem(field, "must be a string"))
        return None
    if value and (reason := unfit_text(value)):
        problems.append(Problem(field, reason))
    return value or None


def _attributes(value: Any, field: str, problems: list[Problem]) -> dict[str, Json]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.append(Problem(field, "must be an object"))
        return {}
    try:
        attributes: dict[str, Json] = normalise(value)
    except (TypeError, ValueError):
        problems.append(Problem(field, "must hold strings, numbers and booleans"))
        return {}
    return attributes


def _channels(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    channels = _words(value, field, problems)
    if not set(channels) <= set(CHANNELS):
        problems.append(Problem(field, f"must hold some of {', '.join(CHANNELS)}"))
    return channels


def _words(value: Any, field: str, problems: list[Problem]) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return tuple(value)
    problems.append(Problem(field, "must be an array of strings"))
    return ()
