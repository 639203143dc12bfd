"""Bodies of the requests on segments: a new segment, an edit, a query to preview, the contacts of an audience.

A segment's name is written in conditions, SQL and URLs and compared byte by byte, so it is limited to a few plain
characters and never changes.

Email addresses among the values of a query are sealed before they are stored, like those of contacts. An address
inside an object is refused: the object is compared with payloads, in which addresses are clear text, so it cannot be
sealed. In values that are only stored for display (the provenance of an audience) every address is sealed.

The text of a query is stored as it is, and Postgres may log it, so an address in it is refused: it can be a value. In
the text of a provenance it is replaced.
"""

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from api.crypto import EmailDisplay, OrgKeys, is_sealed
from api.query.gateway import MAX_SQL_CHARACTERS, Sql
from api.store.segments import SegmentRow
from workbench.language.body import SLUG, SLUG_CHARACTERS, Body, Number, is_id
from workbench.language.codec import Json, decode
from workbench.language.event import normalize_email
from workbench.language.problem import Problem, Problems

MAX_IDS_PER_REQUEST = 200_000

DEFAULT_INTERVAL_S = 3_600
_WEEK_S = 604_800
_RESERVED_NAMES = ("preview",)  # /segments/preview is a route
# Local parts have nearly all characters, and a quote is doubled in SQL; `%` alone before the @ is a wildcard of LIKE.
_ADDRESS = re.compile(
    r"""(?!%{1,64}+[@\uff20])(?:[^\s"'(),:;<>@\uff20\[\\\]]|''){1,64}+[@\uff20][\w-]++(?:[.\u3002\uff0e\uff61][\w-]+)+"""
    r"|\b0x[0-9a-f]{40}\b",
    re.IGNORECASE,
)
_TEXT = r"(?:'(?:[^']|'')+'|\$\$.*?\$\$)"
_WALLET = re.compile(
    rf"(wallet_address[\s)\"]*(?:=|(?:\bNOT\s+)?\bIN\s*\()\s*(?:lower\s*\(\s*)?E?){_TEXT}(?:\s*,\s*{_TEXT})*",
    re.IGNORECASE | re.DOTALL,
)
_PROVENANCE_TEXTS = ("queryHash", "watermark")
_MAX_PROVENANCE_CHARACTERS = 1_000


def is_name(text: str) -> bool:
    return SLUG.fullmatch(text) is not None and text not in _RESERVED_NAMES


def _read_name(name: Any, path: str) -> str | Problems:
    if not isinstance(name, str):
        return (Problem(path, "must be a string"),)
    if is_name(name):
        return name
    if name in _RESERVED_NAMES:
        return (Problem(path, f"{name!r} is reserved; choose another name"),)
    similar = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64]
    example = similar if SLUG.fullmatch(similar) else "big-spenders"
    return (Problem(path, f"must be {SLUG_CHARACTERS}, such as {example!r}"),)


def read_params(params: Json, path: str) -> Json | Problems:
    named: dict[str, Json] = {}
    if isinstance(params, dict):
        named = {f"{path}.{name}": value for name, value in params.items()}
    elif isinstance(params, list):
        named = {f"{path}[{position}]": value for position, value in enumerate(params)}
    reason = "contains an email address inside an object; pass the address as a separate value"
    return tuple(Problem(field, reason) for field, value in named.items() if _hides_address(value)) or params


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
            return isinstance(value, str) and normalize_email(value) is not None


def _read_contact_ids(ids: Any, path: str) -> list[str] | Problems:
    if not isinstance(ids, list) or len(ids) > MAX_IDS_PER_REQUEST:
        return (Problem(path, f"must be an array of at most {MAX_IDS_PER_REQUEST} ids of contacts"),)
    for position, contact_id in enumerate(ids):
        if not (isinstance(contact_id, str) and is_id(contact_id)):
            return (Problem(f"{path}[{position}]", "must be the id of a contact"),)
    return ids


def _read_provenance(provenance: Any, path: str) -> dict[str, Any] | Problems:
    """Return the origin of an audience: the query of its frame. Unknown fields are dropped."""
    if not isinstance(provenance, dict):
        return (Problem(path, "must be an object"),)
    stored = {name: provenance[name] for name in _PROVENANCE_TEXTS if isinstance(provenance.get(name), str)}
    if any(len(text) > _MAX_PROVENANCE_CHARACTERS for text in stored.values()):
        return (Problem(path, f"must have texts of at most {_MAX_PROVENANCE_CHARACTERS} characters"),)
    sql = provenance.get("sql")
    if isinstance(sql, str) and len(sql) <= MAX_SQL_CHARACTERS:
        stored |= {"sql": _ADDRESS.sub("…", _WALLET.sub(r"\1…", sql)), "params": provenance.get("params")}
    return stored


def address_problems(sql: str | None) -> Iterator[Problem]:
    if sql is not None and (_ADDRESS.search(sql) or _WALLET.search(sql)):
        reason = "contains an email address or a wallet, which would be stored and logged as it is. "
        yield Problem("sql", f'{reason}Write :address in its place, and params {{"address": ...}}')


_IDS_SCHEMA = {"type": "array", "items": {"type": "string", "format": "uuid"}, "maxItems": MAX_IDS_PER_REQUEST}
SegmentName = Annotated[
    str, Meta(max_length=64, extra={"read": _read_name}, extra_json_schema={"pattern": f"^{SLUG.pattern}$"})
]
Params = Annotated[Json, Meta(extra={"read": read_params})]
Interval = Annotated[
    int, Meta(ge=60, le=_WEEK_S, extra={"reason": f"must be from 60 to {_WEEK_S}: a minute to a week"})
]
ContactIds = Annotated[list[str], Meta(extra={"read": _read_contact_ids, "schema": _IDS_SCHEMA})]
Provenance = Annotated[dict[str, Any], Meta(extra={"read": _read_provenance})]


class SegmentQuery(msgspec.Struct, frozen=True):
    """A query and its values, a list or an object."""

    sql: str
    params: Json = None


class SegmentBody(Body, frozen=True, rename="camel"):
    """A new segment defined by `sql`, or an audience of `contactIds`.

    With `revision`, `contactIds` replace the contacts of an existing audience. `params`: the parameters of the query.
    `everySeconds`: the refresh interval, an hour by default. `provenance`: the query that an audience comes from
    (`sql`, `params`, `queryHash`, `watermark`). `more`: further contacts follow.
    """

    name: SegmentName
    sql: Sql | None = None
    params: Params = None
    every_seconds: Interval | None = None
    contact_ids: ContactIds | None = None
    provenance: Provenance = msgspec.field(default_factory=dict)
    revision: Number | None = None
    more: bool = False

    def conflicts(self) -> Iterator[Problem]:
        yield from address_problems(self.sql)
        if self.contact_ids is None:
            if self.sql is None:
                yield Problem("sql", "is required")
            return
        for field, value in {"sql": self.sql, "params": self.params, "everySeconds": self.every_seconds}.items():
            if value is not None:
                yield Problem(field, "cannot be combined with contactIds: a segment has a query or a list of contacts")

    @property
    def query(self) -> SegmentQuery:
        assert self.sql is not None
        return SegmentQuery(self.sql, self.params)


class SegmentEdit(Body, frozen=True, rename="camel"):
    """Changes to the segment as it was at `revision`. A new query comes with its own parameters."""

    revision: Annotated[Number, Meta(description="the revision that you edited")]
    sql: Sql | None = None
    params: Params = None
    every_seconds: Interval | None = None

    def conflicts(self) -> Iterator[Problem]:
        yield from address_problems(self.sql)
        if self.sql is None and self.params is not None:
            yield Problem("params", "needs sql: these are the values of a query")

    @property
    def query(self) -> SegmentQuery | None:
        return None if self.sql is None else SegmentQuery(self.sql, self.params)


class SegmentPreviewBody(Body, frozen=True):
    """A query to preview; `name`: the segment to compare with."""

    sql: Sql
    params: Params = None
    name: SegmentName | None = None

    def conflicts(self) -> Iterator[Problem]:
        return address_problems(self.sql)

    @property
    def query(self) -> SegmentQuery:
        return SegmentQuery(self.sql, self.params)


class AudiencePart(Body, frozen=True, rename="camel"):
    """The next contacts of an audience; `more`: further contacts follow."""

    contact_ids: ContactIds
    revision: Annotated[Number, Meta(description="the revision that the first part made")]
    more: bool = False


def query_of(row: SegmentRow) -> SegmentQuery:
    assert row.sql is not None
    return SegmentQuery(row.sql, None if row.params is None else decode(row.params))


def seal_params(params: Json, keys: OrgKeys) -> Json:
    """Return values with sealed addresses. The rule for what is an address is that of `api.query.parameters`."""

    def seal(text: str) -> str:
        address = normalize_email(text)
        return text if address is None else keys.seal_email(address)

    return _map_texts(params, seal)


def open_params(params: Json, show: EmailDisplay) -> Json:
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
