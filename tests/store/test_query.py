"""Every declared statement (`api.store.query`) returns the columns that its function declares."""

import importlib
import pkgutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, get_args, get_origin
from uuid import UUID

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import connect
from psycopg.pq import ExecStatus

import api.store
from api.store.database import RefusedDataError
from api.store.query import (
    BINARY,
    DECLARATIONS,
    Json,
    JsonTexts,
    RowCount,
    Uuid,
    element_type,
    encoder,
    is_json,
    without_none,
)

TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["null", "NULL", "", "a,b", '"', "\\", "{}", " "]), st.text()))
NOW = datetime(2026, 11, 23, 10, 0, 0, 123, tzinfo=UTC)
OPTIONS = "-c search_path=workbench -c client_min_messages=error -c citus.propagate_set_commands=local"


def test_results_have_the_columns_that_are_declared(database_url: str) -> None:
    for module in pkgutil.iter_modules(api.store.__path__):
        importlib.import_module(f"api.store.{module.name}")
    with connect(database_url, autocommit=True, options=OPTIONS) as connection:
        connection.execute("CREATE TEMPORARY TABLE candidates (contact_id uuid)")
        connection.execute("CREATE TEMPORARY TABLE wanted (contact_id uuid)")
        problems = {}
        for declaration in DECLARATIONS:
            name = declaration.statement.name
            prepared = connection.pgconn.prepare(name, declaration.statement.text)
            assert prepared.status == ExecStatus.COMMAND_OK, (name, prepared.error_message)
            described = connection.pgconn.describe_prepared(name)
            columns = [((described.fname(i) or b"").decode(), described.ftype(i)) for i in range(described.nfields)]
            problems[name] = columns_problem(declaration.returns, columns)
    assert {name: problem for name, problem in problems.items() if problem} == {}


# By the name of a Python type, the Postgres types that psycopg loads as it.
LOADED_FROM = {
    "str": {"text", "uuid", "varchar", "name"},
    "int": {"int2", "int4", "int8"},
    "bool": {"bool"},
    "datetime": {"timestamptz"},
    "bytes": {"bytea", "jsonb"},
    "float": {"float8"},
    "list": {"_text", "_uuid", "_int2", "_int4", "_int8", "_timestamptz"},
}


def columns_problem(returns: Any, columns: list[tuple[str, int]]) -> str:
    """Return what is wrong with the columns of a statement whose rows are read as `returns`, or an empty text."""
    if returns is None or returns == RowCount:
        return ""
    returns, _ = without_none(returns)
    if get_origin(returns) is dict:
        _, returns = get_args(returns)
        columns = columns[1:]
    if get_origin(returns) in (list, set, frozenset):
        returns = element_type(returns)
    if isinstance(returns, type) and issubclass(returns, msgspec.Struct):
        fields = {field.name: field for field in msgspec.structs.fields(returns)}
        names = [name for name, _ in columns]
        if unknown := [name for name in names if name not in fields]:
            return f"no fields for {unknown}"
        if missing := [name for name, field in fields.items() if field.required and name not in names]:
            return f"no columns for {missing}"
        hints = [fields[name].type for name in names]
    elif get_origin(returns) is tuple and get_args(returns)[-1] is not Ellipsis:
        hints = list(get_args(returns))
    else:
        hints = [returns]
    if len(hints) != len(columns):
        return f"{len(columns)} columns for {len(hints)} values"
    wrong = [f"{hint} from {name}" for hint, (name, oid) in zip(hints, columns, strict=True) if not loads(hint, oid)]
    return ", ".join(wrong)


def loads(hint: Any, oid: int) -> bool:
    hint, _ = without_none(hint)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal or hint is msgspec.Raw:
        hint = str if get_origin(hint) is Literal else bytes
    if is_json(hint) or hint is Any:
        hint = bytes
    if get_origin(hint) in (list, tuple):
        hint = list
    loaded = psycopg.adapters.types.get(oid)
    bases = [base.__name__ for base in hint.__mro__]
    name = next(name for name in ("bool", "int", "str", "datetime", "bytes", "float", "list") if name in bases)
    array = loaded is not None and oid == loaded.array_oid
    return loaded is not None and ("_" * array + loaded.name) in LOADED_FROM[name]


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS.map(lambda texts: [text and text.replace("\0", "") for text in texts]))
def test_any_texts_are_passed_unchanged(database_url: str, texts: list[str | None]) -> None:
    utf8 = [text if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    with connect(database_url) as connection:
        assert received(connection, Sequence[str | None], "text[]", utf8) == utf8


@pytest.mark.parametrize(
    ("hint", "type_", "value"),
    [
        (bool, "boolean", True),
        (int, "bigint", -3),
        (datetime, "timestamptz", NOW),
        (timedelta, "interval", timedelta(days=3, microseconds=1)),
        (bytes, "bytea", b"\0\\x"),
        (Uuid, "uuid", UUID(int=7)),
        (list[int | None], "bigint[]", [1, None, -3]),
        (list[bool], "boolean[]", [True, False]),
        (list[datetime | None], "timestamptz[]", [NOW, None]),
        (list[bytes], "bytea[]", [b"\0\\x", b""]),
        (list[Uuid], "uuid[]", [UUID(int=1), UUID(int=2)]),
        (list[Uuid], "uuid[]", []),
        (list[Uuid | None], "uuid[]", [UUID(int=1), None]),
        (dict[str, Any], "jsonb", {"a": [1, None]}),
        (tuple[tuple[int, str], ...], "jsonb", [[1, "a"]]),
    ],
)
def test_values_are_passed_unchanged(database_url: str, hint: Any, type_: str, value: Any) -> None:
    ids = [item and str(item) for item in value] if "uuid[]" in type_ else value
    with connect(database_url, options="-c timezone=UTC") as connection:
        assert received(connection, hint, type_, str(value) if type_ == "uuid" else ids) == value


def test_ids_may_lack_hyphens(database_url: str) -> None:
    sent = [str(UUID(int=1)), UUID(int=2).hex]
    with connect(database_url) as connection:
        assert received(connection, list[Uuid], "uuid[]", sent) == [UUID(int=1), UUID(int=2)]


def test_json_texts_are_passed_unchanged(database_url: str) -> None:
    objects = ['{"a": "b,c\\n\\u001e"}', "{}", '{"x": [1, 2]}']
    with connect(database_url) as connection:
        sent = encoder(JsonTexts)(objects).decode()
        assert connection.execute("SELECT string_to_array(%s, chr(30))", (sent,)).fetchone() == (objects,)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "a\0b"),
        (list[str], ["a", "b\0"]),
        (JsonTexts, ['{"a": "\x1e"}']),
        (list[Uuid], ["0" * 30, "0" * 34]),  # together as many digits as two ids
        (list[Uuid], [f"{'0' * 31} "]),
        (list[Uuid], [f"{'0' * 30}  "]),  # spaces between two digits are skipped
        (list[Uuid], ["\ud800" * 32]),
        (list[Uuid], ["},{"]),
    ],
)
def test_a_value_that_postgres_would_read_as_another_is_refused(hint: Any, value: Any) -> None:
    with pytest.raises(RefusedDataError):
        encoder(hint)(value)


def test_a_list_of_json_values_is_declared_as_texts() -> None:
    with pytest.raises(TypeError, match="JsonTexts"):
        encoder(list[Json])


def received(connection: psycopg.Connection, hint: Any, type_: str, value: Any) -> Any:
    """Return a value as Postgres received it."""
    encode = encoder(hint)
    result = connection.pgconn.exec_params(
        f"SELECT $1::{type_}".encode(), [encode(value)], param_formats=[encode in BINARY]
    )
    assert result.status == ExecStatus.TUPLES_OK, result.error_message
    loader = psycopg.adapt.Transformer(connection)
    loader.set_pgresult(result)
    return loader.load_rows(0, 1, tuple)[0][0]
