"""Bodies of the requests on segments: a new segment, an edit, a query to preview, the contacts of an audience.

A segment's name is written in conditions, SQL and URLs and compared byte by byte, so it is limited to a few plain
characters and never changes.

Email addresses among the values of a query are sealed before they are stored, like those of contacts. An address
inside an object is refused: the object is compared with payloads, in which addresses are clear text, so it cannot be
sealed. In values that are only stored for display (the provenance of an audience) every address is sealed.
"""

import re
from collections.abc import Callable
from typing import Any

import msgspec

from api.automations.body import Fields, read_fields
from api.crypto import OrgKeys, is_sealed
from api.query.gateway import MAX_SQL_CHARACTERS
from api.store.segments import SegmentRow
from workbench.language.codec import Json, decode
from workbench.language.event import normalise_email
from workbench.language.problem import Problems

MAX_IDS_PER_REQUEST = 200_000

_HOUR_S = 3_600
_WEEK_S = 604_800
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_RESERVED_NAMES = ("preview",)  # /segments/preview is a route
_CONTACT_ID = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_PROVENANCE_TEXTS = ("queryHash", "watermark")
_MAX_PROVENANCE_CHARACTERS = 1_000


class SegmentQuery(msgspec.Struct, frozen=True):
    """A query and its values, a list or an object."""

    sql: str
    params: Json = None


class SegmentDraft(msgspec.Struct, frozen=True):
    """A new segment that a query defines."""

    name: str
    query: SegmentQuery
    every_seconds: int


class SegmentEdit(msgspec.Struct, frozen=True):
    """Changes to a segment at `revision`; None leaves a part as it is. A new query comes with its own values."""

    revision: int
    query: SegmentQuery | None
    every_seconds: int | None


class AudienceDraft(msgspec.Struct, frozen=True):
    """Contacts of a new audience, or of the one at `revision`, which they replace. `more`: further parts follow."""

    name: str
    contact_ids: list[str]
    provenance: dict[str, Any]
    revision: int | None
    more: bool


class AudiencePart(msgspec.Struct, frozen=True):
    """The next contacts of an audience. `revision`: the one that its first part made. `more`: further parts follow."""

    contact_ids: list[str]
    revision: int
    more: bool


class PreviewRequest(msgspec.Struct, frozen=True):
    """A query to try, and the name of the segment that it is meant for, if any."""

    query: SegmentQuery
    name: str | None


def read_new(body: bytes) -> SegmentDraft | AudienceDraft | Problems:
    """Return the segment in a body, by its query or by its contacts, or every problem of it."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("name")
    name = _read_name(fields)
    if fields.raw("contactIds") is not None:
        for field in ("sql", "params", "everySeconds"):
            if fields.raw(field) is not None:
                fields.refuse(field, "cannot be combined with contactIds: a segment has a query or a list of contacts")
        contact_ids, provenance = _read_contact_ids(fields), _read_provenance(fields)
        revision, more = fields.number("revision"), fields.flag("more") is True
        return tuple(fields.problems) or AudienceDraft(name or "", contact_ids, provenance, revision, more)
    fields.require("sql")
    query, every_seconds = _read_query(fields), _read_interval(fields)
    if fields.problems or query is None or name is None:
        return tuple(fields.problems)
    return SegmentDraft(name, query, every_seconds or _HOUR_S)


def read_edit(body: bytes) -> SegmentEdit | Problems:
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the revision that you edited")
    edit = SegmentEdit(fields.number("revision") or 1, _read_query(fields), _read_interval(fields))
    if edit.query is None and fields.raw("params") is not None:
        fields.refuse("params", "needs sql: these are the values of a query")
    return tuple(fields.problems) or edit


def read_preview(body: bytes) -> PreviewRequest | Problems:
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("sql")
    query, name = _read_query(fields), _read_name(fields)
    if fields.problems or query is None:
        return tuple(fields.problems)
    return PreviewRequest(query, name)


def read_part(body: bytes) -> AudiencePart | Problems:
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the revision that the first part made")
    part = AudiencePart(_read_contact_ids(fields), fields.number("revision") or 1, fields.flag("more") is True)
    return tuple(fields.problems) or part


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None and text not in _RESERVED_NAMES


def query_of(row: SegmentRow) -> SegmentQuery:
    assert row.sql is not None
    return SegmentQuery(row.sql, None if row.params is None else decode(row.params))


def seal_params(params: Json, keys: OrgKeys) -> Json:
    """Return values with sealed addresses. The rule for what is an address is that of `api.query.parameters`."""

    def seal(text: str) -> str:
        address = normalise_email(text)
        return text if address is None else keys.seal_email(address)

    return _map_texts(params, seal)


def open_params(params: Json, show: Callable[[str], str]) -> Json:
    """Return stored values with `show(sealed address)` in place of every address."""
    return _map_texts(params, lambda text: show(text) if is_sealed(text) else text)


def _map_texts(value: Json, change: Callable[[str], str]) -> Json:
    match value:
        case dict():
            return {change(name): _map_texts(item, change) for name, item in value.items()}
        case list():
            return [_map_texts(item, change) for item in value]
        case str():
            return change(value)
        case _:
            return value


def _read_name(fields: Fields) -> str | None:
    name = fields.text("name", 1_000)
    if name is None or not name.strip() or is_name(name):
        return name
    if name in _RESERVED_NAMES:
        fields.refuse("name", f"{name!r} is reserved; choose another name")
    else:
        similar = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64]
        example = similar if _NAME.fullmatch(similar) else "big-spenders"
        fields.refuse("name", f"must be 1 to 64 characters of a-z, 0-9, _ and -, such as {example!r}")
    return None


def _read_query(fields: Fields) -> SegmentQuery | None:
    sql, params = fields.text("sql", MAX_SQL_CHARACTERS), fields.value("params")
    named: dict[str, Json] = {}
    if isinstance(params, dict):
        named = {f"params.{name}": value for name, value in params.items()}
    elif isinstance(params, list):
        named = {f"params[{position}]": value for position, value in enumerate(params)}
    for field, value in named.items():
        if _hides_address(value):
            fields.refuse(field, "contains an email address inside an object; pass the address as a separate value")
    return None if sql is None else SegmentQuery(sql, params)


def _hides_address(value: Json) -> bool:
    match value:
        case dict():
            return _contains_address(value)
        case list():  # sent as an array, so each element is a value of its own
            return any(map(_hides_address, value))
        case _:
            return False


def _contains_address(value: Json) -> bool:
    match value:
        case dict():
            return any(_contains_address(item) for pair in value.items() for item in pair)
        case list():
            return any(map(_contains_address, value))
        case _:
            return isinstance(value, str) and normalise_email(value) is not None


def _read_interval(fields: Fields) -> int | None:
    every_seconds = fields.number("everySeconds")
    if every_seconds is not None and not 60 <= every_seconds <= _WEEK_S:
        fields.refuse("everySeconds", f"must be from 60 to {_WEEK_S}: a minute to a week")
    return every_seconds


def _read_contact_ids(fields: Fields) -> list[str]:
    ids = fields.value("contactIds")
    if not isinstance(ids, list) or len(ids) > MAX_IDS_PER_REQUEST:
        fields.refuse("contactIds", f"must be an array of at most {MAX_IDS_PER_REQUEST} ids of contacts")
        return []
    for position, contact_id in enumerate(ids):
        if not (isinstance(contact_id, str) and _CONTACT_ID.fullmatch(contact_id)):
            fields.refuse(f"contactIds[{position}]", "must be the id of a contact")
            break
    return ids


def _read_provenance(fields: Fields) -> dict[str, Any]:
    """Return the origin of an audience: the query of its frame. Unknown fields are dropped."""
    provenance = fields.value("provenance")
    if provenance is None:
        return {}
    if not isinstance(provenance, dict):
        fields.refuse("provenance", "must be an object")
        return {}
    stored = {name: provenance[name] for name in _PROVENANCE_TEXTS if isinstance(provenance.get(name), str)}
    if any(len(text) > _MAX_PROVENANCE_CHARACTERS for text in stored.values()):
        fields.refuse("provenance", f"must have texts of at most {_MAX_PROVENANCE_CHARACTERS} characters")
    sql = provenance.get("sql")
    if isinstance(sql, str) and len(sql) <= MAX_SQL_CHARACTERS:
        stored |= {"sql": sql, "params": provenance.get("params")}
    return stored
