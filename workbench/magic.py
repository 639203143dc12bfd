"""`%load_ext workbench`: SQL as a cell (`%%events`, `%%sql`) or a line (`%events`, `%sql`), with completion."""

import contextlib
import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand

from workbench.errors import InvalidArgumentError, WorkbenchError
from workbench.language.sql import tokenize
from workbench.sql import SqlQuery, parameter_names, plain_value, sql
from workbench.workbench import TABLES, Workbench

if TYPE_CHECKING:
    from workbench.frames import Result

_MATCHER = "workbench.events"
_NAMES = ("events", "sql")  # of the magic
_LINE_MAGIC = re.compile(rf"\s*%(?:{'|'.join(_NAMES)}) ")
_LINE_ASSIGNMENT = re.compile(r"\s*(\w+)\s*<<\s*(.*)", re.DOTALL)  # of JupySQL: `%sql df << select …`
_QUALIFIED_NAME = re.compile(r"(?:(\w+)\.)?(\w*)$")
_AFTER_FROM = re.compile(r"\b(?:from|join)\s+\w*$", re.IGNORECASE)


class SqlCompletion(msgspec.Struct, frozen=True):
    """The words that may replace `fragment`, the unfinished word before the cursor."""

    fragment: str
    kind: str
    words: tuple[str, ...]


def sql_completions(before: str, after: str, event_names: Callable[[str], Iterable[str]]) -> list[SqlCompletion]:
    """Return the completions of a statement at the cursor between `before` and `after`.

    `event_names` returns the event names that begin with a text; they complete inside quotes.
    """
    if before.count("'") % 2:
        fragment = before.rpartition("'")[2]
        return [_completion(fragment, "event", event_names(fragment))]
    name = _QUALIFIED_NAME.search(before)
    qualifier, fragment = name.groups() if name is not None else (None, "")
    # The tables of the statement by name and alias. Any word after a table counts as an alias, which is harmless here.
    words = [token.text.lower() for token in tokenize(before + after)]
    tables = {}
    for table, *following in zip(words, [*words[1:], ""], [*words[2:], "", ""], strict=True):
        if table in TABLES:
            tables[table] = table
            tables[following[1] if following[0] == "as" else following[0]] = table
    if qualifier is not None:
        return [_completion(fragment, "column", TABLES.get(tables.get(qualifier.lower(), ""), ()))]
    table_names = _completion(fragment, "table", TABLES)
    if _AFTER_FROM.search(before):
        return [table_names]
    columns = dict.fromkeys(column for table in (tables.values() or TABLES) for column in TABLES[table])
    return [_completion(fragment, "column", columns), table_names]


def _completion(fragment: str, kind: str, words: Iterable[str]) -> SqlCompletion:
    prefix = fragment.lower()
    return SqlCompletion(fragment, kind, tuple(word for word in words if word.startswith(prefix)))


def load(shell: InteractiveShell) -> None:
    unload(shell)  # after `%reload_ext` there must be one of each
    magic = EventsMagic(shell)
    for name in _NAMES:
        if name not in shell.magics_manager.magics["line"]:  # `%sql` of JupySQL, if it was loaded before, stays
            shell.magics_manager.register_function(magic.run, magic_kind="line_cell", magic_name=name)
    shell.Completer.custom_matchers.append(magic.complete)


def unload(shell: InteractiveShell) -> None:
    for magics in shell.magics_manager.magics.values():
        for name in _NAMES:
            # After a reload the class is a new one, so the old magic is recognized by the name of its module.
            if getattr(magics.get(name), "__module__", None) == __name__:
                del magics[name]
    matchers = shell.Completer.custom_matchers
    # A reload creates a new matcher object, so the old one is recognized by its name.
    matchers[:] = [matcher for matcher in matchers if getattr(matcher, "matcher_identifier", None) != _MATCHER]


class EventsMagic:
    """`%events` and `%%events` in one shell, also as `%sql` and `%%sql`."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    @no_var_expand  # IPython would replace {name} and $name in the SQL
    def run(self, line: str, cell: str | None = None) -> "Result | None":
        """Run one read-only query, like `wb.sql`: `%sql select …`, or `%%sql` with the query below it.

        `%%sql` displays the frame; `%%sql df` or `%%sql df <<` stores it in the variable df. `:name` takes the value of
        the notebook's variable `name`. The query runs on the notebook's `wb`, or on the Workbench created last.
        """
        name, query = "", line if cell is None else cell
        if cell is not None:
            name = line.strip().removesuffix("<<").strip()
        elif assignment := _LINE_ASSIGNMENT.fullmatch(line):
            name, query = assignment.groups()
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            raise InvalidArgumentError(f"{name!r} is not a variable name: write %%sql df, and the query below it")
        frame = self._query(query)
        if not name:
            return frame
        self._shell.user_ns[name] = frame
        return None

    @context_matcher(identifier=_MATCHER)  # type: ignore[untyped-decorator]
    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """Return the completions inside the magic; none elsewhere."""
        parts = _statement_at_cursor(context)
        completions = sql_completions(*parts, self._event_names) if parts is not None else []
        words = [
            SimpleCompletion(word, type=completion.kind) for completion in completions for word in completion.words
        ]
        # Inside the magic, completions of Python are suppressed, even where SQL has none.
        result = SimpleMatcherResult(completions=words, suppress=parts is not None)
        if completions:
            result["matched_fragment"] = completions[0].fragment
        return result

    def _query(self, query: str) -> "Result":
        variables, names = self._shell.user_ns, parameter_names(query)
        if missing := next((name for name in names if name not in variables), None):
            raise InvalidArgumentError(f":{missing} has no value: define the variable {missing} in this notebook")
        values = {name: plain_value(variables[name]) for name in names}
        return sql(_current_workbench(variables)._connection, SqlQuery(query, values))

    def _event_names(self, prefix: str) -> Iterable[str]:
        with contextlib.suppress(WorkbenchError):  # the editor completes nothing while the server is unavailable
            return _current_workbench(self._shell.user_ns).catalog.names_with_prefix(prefix)
        return ()


def _current_workbench(variables: Mapping[str, Any]) -> Workbench:
    """Return `wb`, else the Workbench that was created last, else a new one from the environment."""
    wb = variables.get("wb")
    if isinstance(wb, Workbench):
        return wb
    # Names with an underscore are IPython's history of results.
    others = [value for name, value in variables.items() if isinstance(value, Workbench) and not name.startswith("_")]
    return others[-1] if others else Workbench()


def _statement_at_cursor(context: CompletionContext) -> tuple[str, str] | None:
    """Return the statement before and after the cursor; None if the cursor is not in the magic's SQL."""
    lines = context.full_text.split("\n")
    row, column = context.cursor_line, context.cursor_position
    command = lines[0].split(maxsplit=1)
    if command and command[0].removeprefix("%%") in _NAMES and command[0].startswith("%%"):
        if row == 0:
            return None
        return "\n".join([*lines[1:row], lines[row][:column]]), "\n".join([lines[row][column:], *lines[row + 1 :]])
    line_magic = _LINE_MAGIC.match(lines[row])
    if line_magic is None or column < line_magic.end():
        return None
    return lines[row][line_magic.end() : column], lines[row][column:]
