"""The analyst's views as tables of SQLAlchemy Core, and its statements as text with named parameters.

SQLAlchemy is optional (`pip install "event-workbench[engine]"`), and only its compiler is used: the statement runs on
the server, like any text that `wb.sql` is given.
"""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from workbench.errors import InvalidArgumentError, MissingDependencyError

if TYPE_CHECKING:
    from sqlalchemy import ClauseElement
    from sqlalchemy.types import TypeEngine

# Names of columns have one type in all views, except for these.
_JSON_COLUMNS = {("rejected_events", "body")}
_COLUMNS = {
    "uuid": "id contact_id merged_from merged_into cause_id automation_id entry_id message_id event_id",
    "timestamptz": (
        "occurred_at created_at updated_at erased_at changed_at event_at sent_at delivered_at at archived_at died_at "
        "block_time entered_at refreshed_at failing_since started_at ended_at received_at moved_at moved_back_at"
    ),
    "jsonb": "payload metadata old new args",
    "text[]": "tags opted_out segments",
    "boolean": "active removed scheduled granted",
    "bigint": (
        "published_version automation_version attempts step attempt log_index size entered departed claim chain_id "
        "block_number contacts entries from_version to_version"
    ),
}
_TYPE_NAMES = {column: kind for kind, columns in _COLUMNS.items() for column in columns.split()}  # others are text


def column_type(table: str, column: str) -> str:
    """Return the Postgres type of a column; `bigint` also for smaller integers."""
    return "jsonb" if (table, column) in _JSON_COLUMNS else _TYPE_NAMES.get(column, "text")


def tables(columns: Mapping[str, Iterable[str]]) -> SimpleNamespace:
    """Return the views with these columns. Raises MissingDependencyError without SQLAlchemy."""
    try:
        from sqlalchemy import BigInteger, Boolean, DateTime, Text, Uuid, column, table
        from sqlalchemy.dialects.postgresql import ARRAY, JSONB
    except ModuleNotFoundError:
        raise MissingDependencyError("wb.tables needs SQLAlchemy: pip install 'event-workbench[engine]'") from None
    types: dict[str, TypeEngine[Any]] = {
        "uuid": Uuid(as_uuid=False),
        "timestamptz": DateTime(timezone=True),
        "jsonb": JSONB(),
        "text[]": ARRAY(Text),
        "boolean": Boolean(),
        "bigint": BigInteger(),
        "text": Text(),
    }
    return SimpleNamespace(
        **{
            view: table(view, *[column(name, types[column_type(view, name)]) for name in names])
            for view, names in columns.items()
        }
    )


def compile_statement(statement: "ClauseElement", values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text of a statement of SQLAlchemy Core with `:name` parameters, and their values.

    `values` are those of its own `bindparam`s. Raises InvalidArgumentError for a statement that cannot be compiled.
    """
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.sql.compiler import SQLCompiler

    try:
        dialect = postgresql.dialect(paramstyle="named")  # type: ignore[no-untyped-call]
        compiler = statement.compile(dialect=dialect)
        if not isinstance(compiler, SQLCompiler):  # CREATE TABLE and the like
            raise InvalidArgumentError("only a query can be run: wb.sql(select(…))")
        state = compiler.construct_expanded_state(dict(values))  # each item of a list is a parameter
        return state.statement, dict(state.parameters)
    except SQLAlchemyError as error:
        raise InvalidArgumentError(f"this statement cannot be compiled: {error.args[0]}") from None
