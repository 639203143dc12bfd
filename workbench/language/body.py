"""Bodies and queries of requests: one struct per body, which validates it and writes its schema.

The annotations of the struct have the types and bounds. A rule that msgspec cannot express is a function in
`Meta(extra={"read": ...})`: it gets the decoded value and the path of the field, and returns the value of the field or
its problems. A field of the type `bytes` keeps its JSON text, so every number is stored as it was written.
`Meta(extra={"schema": ...})` replaces the schema that would be made from the type.

All problems of a body are collected. null counts as absent, and unknown fields are ignored.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta, inspect

from workbench.language.codec import (
    MalformedJsonError,
    decode,
    malformed_json,
    printable,
    replace_lone_surrogates,
    storage_problem,
)
from workbench.language.event import NOT_A_TIMESTAMP, parse_timestamp
from workbench.language.problem import Problem, Problems

SLUG = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)  # names of segments, snippets, connections and topics
SLUG_CHARACTERS = "1 to 64 characters of a-z, 0-9, _ and -"

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_UUID = re.compile(r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_NOT_BLANK = r"\S"
_MAX_QUERY_DIGITS = 16  # int() is slow for long texts
_T = TypeVar("_T")
_Body = TypeVar("_Body", bound="Body")


class Body(msgspec.Struct, frozen=True, rename="camel"):
    """The fields of a request."""

    def conflicts(self) -> Iterable[Problem]:
        """Return the problems of fields that are valid alone, but not together."""
        return ()


def is_id(text: str) -> bool:
    return _UUID.fullmatch(text) is not None


def _read_id(value: Any, path: str) -> str | Problems:
    return value.lower() if isinstance(value, str) and is_id(value) else (Problem(path, "must be an id"),)


def _read_moment(value: Any, path: str) -> datetime | Problems:
    moment_us = parse_timestamp(value) if isinstance(value, str) else None
    return (Problem(path, NOT_A_TIMESTAMP),) if moment_us is None else _EPOCH + timedelta(microseconds=moment_us)


Id = Annotated[str, Meta(extra={"read": _read_id}, extra_json_schema={"format": "uuid"})]
LastId = Annotated[Id, Meta(description="The last id of the previous page.")]
Moment = Annotated[datetime, Meta(extra={"read": _read_moment}, extra_json_schema={"format": "date-time"})]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Phrase = Annotated[str, Meta(min_length=1, max_length=200, pattern=_NOT_BLANK)]
Name = Annotated[Phrase, Meta(extra={"printable": True})]
ShortName = Annotated[str, Meta(min_length=1, max_length=100, pattern=_NOT_BLANK)]


def read_body(kind: type[_Body], body: bytes) -> _Body | Problems:
    """Return the struct in the JSON text of a request (an empty text is an empty object), or all its problems."""
    fields: dict[str, msgspec.Raw] = {}
    if body.strip(b" \t\r\n"):
        try:
            body.decode()  # the decoder does not check the UTF-8 of raw fields
            fields = _OBJECT.decode(replace_lone_surrogates(body))
        except msgspec.ValidationError:
            return (Problem("", "the body must be one JSON object"),)
        except (ValueError, RecursionError) as error:  # includes UnicodeDecodeError and msgspec.DecodeError
            return (Problem("", malformed_json(error)),)
    return _read(kind, fields, "")


def read_query(kind: type[_Body], parameters: Mapping[str, Sequence[str]]) -> _Body | Problems:
    """Return the struct in the parameters of a URL, or all their problems. An empty text counts as absent.

    An array may be sent as several parameters of one name, or separated by commas. Otherwise the first one counts.
    """
    fields: dict[str, Any] = {}
    for field in _fields(kind):
        texts = parameters.get(field.name, ())
        if not texts or (texts[0] == "" and not isinstance(field.type, inspect.IntType)):
            continue
        value: Any = texts[0]
        match field.type:
            case inspect.IntType() if re.fullmatch(rf"[0-9]{{1,{_MAX_QUERY_DIGITS}}}", value):
                value = int(value)
            case inspect.BoolType():
                value = {"true": True, "false": False}.get(value, value)
            case inspect.ListType():
                value = [part for text in texts for part in text.split(",")]
            case _:
                pass
        fields[field.name] = value
    return _read(kind, fields, "")


def read_value(kind: type[_Body], value: Any, path: str) -> _Body | Problems:
    """Return the struct in a decoded value at `path`, or all its problems."""
    return _read(kind, value, f"{path}.") if isinstance(value, Mapping) else (Problem(path, "must be an object"),)


def schema_overrides(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the schemas that replace those of the fields' types, by the names of the fields in JSON."""
    return {
        field.name: field.metadata["schema"]
        | ({} if field.required else {"type": [field.metadata["schema"]["type"], "null"]})
        for field in _fields(kind)
        if "schema" in field.metadata
    }


class _Field(msgspec.Struct, frozen=True):
    """A field of a struct. `type` is without null and metadata; `annotation` is what msgspec converts to."""

    attribute: str
    name: str
    required: bool
    annotation: Any
    type: inspect.Type
    metadata: dict[str, Any]
    description: str | None


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[_Field, ...]:
    fields = []
    for field in msgspec.structs.fields(kind):
        kind_info, metadata, schema = inspect.type_info(field.type), {}, {}
        if isinstance(kind_info, inspect.UnionType):
            others = [member for member in kind_info.types if not isinstance(member, inspect.NoneType)]
            kind_info = others[0] if len(others) == 1 else kind_info
        if isinstance(kind_info, inspect.Metadata):
            metadata, schema, kind_info = kind_info.extra or {}, kind_info.extra_json_schema or {}, kind_info.type
        parts = (field.type, kind_info, metadata, schema.get("description"))
        fields.append(_Field(field.name, field.encode_name, field.required, *parts))
    return tuple(fields)


def _read(kind: type[_Body], fields: Mapping[str, Any], prefix: str) -> _Body | Problems:
    problems: list[Problem] = []
    result = _read_struct(kind, fields, prefix, problems)
    return tuple(problems) if result is None else tuple(result.conflicts()) or result


def _read_struct(kind: type[_T], fields: Mapping[str, Any], prefix: str, problems: list[Problem]) -> _T | None:
    """Return the struct, or None after adding its problems. A field is JSON text (`Raw`), or decoded."""
    before = len(problems)
    values = {}
    for field in _fields(kind):  # type: ignore[arg-type]  # a struct, as the caller knows
        value, path = fields.get(field.name), prefix + field.name
        if isinstance(value, msgspec.Raw):
            value = None if bytes(value) == b"null" else bytes(value)
        if value is not None:
            values[field.attribute] = _read_field(field, value, path, problems)
        elif field.required:
            problems.append(Problem(path, "is required" + (f": {field.description}" if field.description else "")))
    return kind(**values) if len(problems) == before else None


def _read_field(field: _Field, value: Any, path: str, problems: list[Problem]) -> Any:
    """Return the value of a field, given as JSON text (bytes) or decoded; None after adding its problems."""
    raw = value if isinstance(value, bytes) else b""
    match field.type:
        case inspect.StructType(cls=kind) if "read" not in field.metadata:
            try:
                fields = _OBJECT.decode(raw) if raw else value
            except ValueError:
                fields = None
            if isinstance(fields, Mapping):
                return _read_struct(kind, fields, f"{path}.", problems)
            problems.append(Problem(path, "must be an object"))
            return None
        case inspect.BytesType(max_length=limit) if limit is not None and len(raw) > limit:
            problems.append(Problem(path, f"is {len(raw)} bytes, at most {limit} are allowed"))
            return None
        case inspect.BytesType() if "read" not in field.metadata:
            return raw
    try:
        decoded = decode(raw) if raw else value
    except MalformedJsonError as error:
        problems.append(Problem(path, str(error)))
        return None
    converted = _convert(field, decoded, path, problems)
    return raw if isinstance(field.type, inspect.BytesType) else converted


def _convert(field: _Field, value: Any, path: str, problems: list[Problem]) -> Any:
    reason = storage_problem(value)
    if reason is None and (read := field.metadata.get("read")):
        result = read(value, path)
        if isinstance(result, tuple):
            problems += result
        return result
    if reason is None:
        try:
            converted = msgspec.convert(value, field.annotation)
            if "printable" not in field.metadata or printable(value, kept="") == value:
                return converted
            reason = "contains control or format characters, such as a line break or a mark of direction"
        except msgspec.ValidationError:
            reason = field.metadata.get("reason") or f"must be {_describe(field, field.type, value)}"
    problems.append(Problem(path, reason))
    return None


def _describe(field: _Field, kind: inspect.Type, value: Any = None) -> str:
    match kind:
        case inspect.Metadata(type=inner):
            return _describe(field, inner)
        case inspect.StrType(min_length=shortest, max_length=longest, pattern=pattern):
            if longest is None:
                return "a string"
            characters = f"{shortest or 0} to {longest} characters"
            if not isinstance(value, str):
                return "a string" if value is not None else f"a string of {characters}"
            return characters + (", not all blank" if pattern == _NOT_BLANK else "")
        case inspect.IntType(ge=lowest, le=highest):
            if isinstance(value, int) and not isinstance(value, bool) and highest is None:
                return f"at least {lowest}"
            return "a whole number" if highest is None else f"a whole number from {lowest} to {highest}"
        case inspect.BoolType():
            return "true or false"
        case inspect.LiteralType():
            values = _literal_values(field.annotation)  # in the order of the annotation, which msgspec does not keep
            return " or ".join(values) if len(values) < 3 else f"one of {', '.join(values)}"
        case inspect.EnumType(cls=members):
            return f"one of {', '.join(str(member.value) for member in members)}"
        case (
            inspect.ListType(max_length=longest, item_type=item)
            | inspect.VarTupleType(max_length=longest, item_type=item)
        ):
            if longest is None:
                return f"an array of {_describe(field, item).removeprefix('a ').removeprefix('an ')}s"
            return f"an array of at most {longest} items, each {_describe(field, item)}"
        case inspect.UnionType(types=types):
            return " or ".join(_describe(field, member) for member in types if not isinstance(member, inspect.NoneType))
        case inspect.DictType() | inspect.StructType():
            return "an object"
        case _:
            return "of another type"


def _literal_values(annotation: Any) -> tuple[str, ...]:
    if get_origin(annotation) is Literal:
        return tuple(map(str, get_args(annotation)))
    return next(filter(None, map(_literal_values, get_args(annotation))), ())
