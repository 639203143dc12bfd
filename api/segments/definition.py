"""What authors send: a new segment, an edit of one, a query to try, the contacts of a frame.

A name is written in conditions, SQL and addresses, and compared letter by letter; so it is one of a few plain characters, and stays.
Addresses among the values of a query are sealed before they are stored, like those of contacts. One inside an object cannot be: the
object is compared with payloads, where addresses are clear text; so it is refused. Values that are only kept to be shown are sealed whole.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from api.authoring.fields import Fields, read_fields
from api.keyring import OrgKeys, is_sealed
from api.language.codec import Json, decode, encode
from api.language.email import normal_email
from api.language.problem import Problems
from api.query.run import MOST_CHARACTERS, Question
from api.store.segments import SegmentRow

MOST_IDS = 200_000
HOUR = 3_600
WEEK = 604_800

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_RESERVED = ("preview",)  # an address
_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_TEXTS = ("queryHash", "watermark")
_MOST_TEXT = 1_000


class Asked(msgspec.Struct, frozen=True):
    """A query and its values, a list or an object."""

    sql: str
    params: Json = None


class Draft(msgspec.Struct, frozen=True):
    """A new segment that a query defines."""

    name: str
    asked: Asked
    every_seconds: int


class Edit(msgspec.Struct, frozen=True):
    """Changes to a segment as it was at `revision`; None leaves a part as it is. A new query brings its values along."""

    revision: int
    asked: Asked | None
    every_seconds: int | None


class Frame(msgspec.Struct, frozen=True):
    """Contacts of a frame. `revision`: of the audience they replace. `more`: other parts of the frame follow."""

    name: str
    contact_ids: list[str]
    provenance: dict[str, Any]
    revision: int | None
    more: bool


class Part(msgspec.Struct, frozen=True):
    """The next contacts of a frame. `revision`: of the audience, as its first part made it. `more`: others follow."""

    contact_ids: list[str]
    revision: int
    more: bool


class Trial(msgspec.Struct, frozen=True):
    """A query to try, and the segment it would change, if any."""

    asked: Asked
    name: str | None


def read_new(body: bytes) -> Draft | Frame | Problems:
    """Return the segment in a body, by its query or by its contacts, or everything that is wrong with it."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("name")
    name = _name(fields)
    if fields.raw("contactIds") is not None:
        return _frame(fields, name)
    fields.require("sql")
    asked, every = _asked(fields), _every(fields)
    if fields.problems or asked is None or name is None:
        return tuple(fields.problems)
    return Draft(name, asked, every or HOUR)


def read_edit(body: bytes) -> Edit | Problems:
    """Return the edit in a body, or everything that is wrong with it."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the one your edit started from")
    edit = Edit(fields.number("revision") or 1, _asked(fields), _every(fields))
    if edit.asked is None and fields.raw("params") is not None:
        fields.refuse("params", "come with the sql that they are values of")
    return tuple(fields.problems) or edit


def read_trial(body: bytes) -> Trial | Problems:
    """Return the query in a body, or everything that is wrong with it."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("sql")
    asked, name = _asked(fields), _name(fields)
    if fields.problems or asked is None:
        return tuple(fields.problems)
    return Trial(asked, name)


def read_part(body: bytes) -> Part | Problems:
    """Return the next contacts of a frame, or everything that is wrong with them."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the one that the first part of the frame made")
    part = Part(_contact_ids(fields), fields.number("revision") or 1, fields.flag("more") is True)
    return tuple(fields.problems) or part


def is_name(text: str) -> bool:
    """Return whether a segment can be called that."""
    return _NAME.fullmatch(text) is not None and text not in _RESERVED


def question(org_id: int, asked: Asked) -> Question:
    """Return the question that finds the contacts; whatever else it returns is not looked at."""
    return Question(org_id, asked.sql, asked.params, clear_emails=False)


def asked_by(row: SegmentRow) -> Asked:
    """Return the query of a stored segment; addresses among its values are sealed already, and are sent so."""
    assert row.sql is not None
    return Asked(row.sql, None if row.params is None else decode(row.params))


def sealed(params: Json, keys: OrgKeys) -> Json:
    """Return values with their addresses sealed; which texts count as addresses is the rule of `api.query.parameters`."""
    return _texts(params, lambda text: text if (address := normal_email(text)) is None else keys.seal_email(address))


def opened(params: Json, shown: Callable[[str], str]) -> Json:
    """Return stored values with their addresses as a reader may see them."""
    return _texts(params, lambda text: shown(text) if is_sealed(text) else text)


def written(params: Json) -> str | None:
    """Return values as JSON text, None when there are none."""
    return None if params is None else encode(params).decode()


def _texts(value: Json, change: Callable[[str], str]) -> Json:
    """Return a value with every text in it changed."""
    match value:
        case dict():
            return {change(name): _texts(each, change) for name, each in value.items()}
        case list():
            return [_texts(each, change) for each in value]
        case str():
            return change(value)
        case _:
            return value


def _hides_address(value: Json) -> bool:
    """Return whether there is an address inside an object."""
    match value:
        case dict():
            return _has_address(value)
        case list():
            return any(map(_hides_address, value))
        case _:
            return False


def _has_address(value: Json) -> bool:
    match value:
        case dict():
            return any(_has_address(each) for pair in value.items() for each in pair)
        case list():
            return any(map(_has_address, value))
        case _:
            return isinstance(value, str) and normal_email(value) is not None


def _name(fields: Fields) -> str | None:
    name = fields.text("name", 1_000)
    if name is None or not name.strip() or is_name(name):
        return name
    if name in _RESERVED:
        fields.refuse("name", f"{name!r} is taken by the service")
    else:
        near = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64]
        example = near if _NAME.fullmatch(near) else "big-spenders"
        fields.refuse("name", f"must be 1 to 64 characters of a-z, 0-9, _ and -, such as {example!r}")
    return None


def _asked(fields: Fields) -> Asked | None:
    sql, params = fields.text("sql", MOST_CHARACTERS), fields.value("params")
    for field, value in _named(params).items():
        if _hides_address(value):
            fields.refuse(field, "holds an email address inside an object: give the address as a value of its own")
    return None if sql is None else Asked(sql, params)


def _named(params: Json) -> dict[str, Json]:
    match params:
        case dict():
            return {f"params.{name}": value for name, value in params.items()}
        case list():
            return {f"params[{number}]": value for number, value in enumerate(params)}
        case _:
            return {}


def _every(fields: Fields) -> int | None:
    every = fields.number("everySeconds")
    if every is not None and not 60 <= every <= WEEK:
        fields.refuse("everySeconds", f"must be from 60 to {WEEK}: a minute to a week")
    return every


def _frame(fields: Fields, name: str | None) -> Frame | Problems:
    for other in ("sql", "params", "everySeconds"):
        if fields.raw(other) is not None:
            fields.refuse(other, "defines a segment by a query: give it or contactIds")
    contact_ids, provenance = _contact_ids(fields), _provenance(fields)
    frame = Frame(name or "", contact_ids, provenance, fields.number("revision"), fields.flag("more") is True)
    return tuple(fields.problems) or frame


def _contact_ids(fields: Fields) -> list[str]:
    ids = fields.value("contactIds")
    if not isinstance(ids, list) or len(ids) > MOST_IDS:
        fields.refuse("contactIds", f"must be an array of at most {MOST_IDS} ids of contacts")
        return []
    strange = next((at for at, each in enumerate(ids) if not (isinstance(each, str) and _ID.fullmatch(each))), None)
    if strange is not None:
        fields.refuse(f"contactIds[{strange}]", "must be the id of a contact")
    return ids


def _provenance(fields: Fields) -> dict[str, Any]:
    """Return what is known of a frame's origin; what we do not know of is dropped."""
    given = fields.value("provenance")
    if given is None:
        return {}
    if not isinstance(given, dict):
        fields.refuse("provenance", "must be an object")
        return {}
    kept = {name: given[name] for name in _TEXTS if isinstance(given.get(name), str)}
    if any(len(text) > _MOST_TEXT for text in kept.values()):
        fields.refuse("provenance", f"must have texts of at most {_MOST_TEXT} characters")
    if isinstance(given.get("sql"), str) and len(given["sql"]) <= MOST_CHARACTERS:
        kept |= {"sql": given["sql"], "params": given.get("params")}
    return kept
