"""What may follow in a statement that is being written: tables, their columns, and event names inside quotes.

`%load_ext workbench`: SQL as a cell of its own, `%%events`, and as a line, `%events`.
"""

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
from workbench.workbench import Workbench

if TYPE_CHECKING:
    from workbench.frames import Result


TABLES = {
    "app_events": "id contact_id event occurred_at created_at payload idempotency_key sent_wallet_address sent_email sent_external_id",
    "contacts": "id email wallet_address external_id metadata tags created_at updated_at email_domain opted_out erased_at",
    "messages": "id contact_id automation_id entry_id node_id channel status subject body created_at sent_at delivered_at",
    "message_outcomes": "message_id channel outcome reason at",
    "automations": "id name active published_version created_at updated_at archived_at",
    "automation_entries": "id automation_id automation_version contact_id event_id state outcome node_id attempts last_error "
    "created_at updated_at",
    "dead_letters": "entry_id automation_id automation automation_version contact_id event_id node_id cause last_error attempts died_at",
    "onchain_events": "id contact_id chain_id contract event tx_hash log_index block_number block_time args removed signature block_hash created_at",
    "segment_members": "segment contact_id entered_at",
    "segments": "name kind size refreshed_at last_error failing_since created_at updated_at",
    "segment_sizes": "segment at size entered departed",
    "rejected_events": "id event field reason body idempotency_key received_at",
}

_WORD = re.compile(r"(?:(\w+)\.)?(\w*)$")
_PLACE_OF_A_TABLE = re.compile(r"\b(?:from|join)\s+\w*$", re.IGNORECASE)


class Choice(msgspec.Struct, frozen=True):
    """What could stand in place of `fragment`, the end of what was written."""

    fragment: str
    kind: str
    words: tuple[str, ...]


def choices(before: str, after: str, event_names: Callable[[str], Iterable[str]]) -> list[Choice]:
    """Return what may stand at the cursor between two parts of a statement. `event_names` gives those that begin with a text."""
    if before.count("'") % 2:
        fragment = before.rpartition("'")[2]
        return [_choice(fragment, "event", event_names(fragment))]
    found = _WORD.search(before)
    qualifier, fragment = found.groups() if found is not None else (None, "")
    named = _named(before + after)
    if qualifier is not None:
        return [_choice(fragment, "column", _columns(named.get(qualifier.lower(), "")))]
    tables = _choice(fragment, "table", TABLES)
    if _PLACE_OF_A_TABLE.search(before):
        return [tables]
    seen = dict.fromkeys(column for table in (named.values() or TABLES) for column in _columns(table))
    return [_choice(fragment, "column", seen), tables]


def _choice(fragment: str, kind: str, words: Iterable[str]) -> Choice:
    begun = fragment.lower()
    return Choice(fragment, kind, tuple(word for word in words if word.startswith(begun)))


def _columns(table: str) -> list[str]:
    return TABLES.get(table, "").split()


def _named(text: str) -> dict[str, str]:
    """Return the tables of a statement by their names and aliases; what follows a table counts as one."""
    words = [token.text.lower() for token in tokenize(text)]
    named = {}
    for table, *following in zip(words, [*words[1:], ""], [*words[2:], "", ""], strict=True):
        if table in TABLES:
            named[table] = table
            named[following[1] if following[0] == "as" else following[0]] = table
    return named


_MATCHER = "workbench.events"


def load(shell: InteractiveShell) -> None:
    """Add the magic and its completion to a shell."""
    unload(shell)
    events = EventsMagic(shell)
    shell.magics_manager.register_function(events.ask, magic_kind="line_cell", magic_name="events")
    shell.Completer.custom_matchers.append(events.complete)


def unload(shell: InteractiveShell) -> None:
    """Take both away again."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("events", None)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [each for each in matchers if getattr(each, "matcher_identifier", None) != _MATCHER]


class EventsMagic:
    """The magic of one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    @no_var_expand
    def ask(self, line: str, cell: str | None = None) -> "Result | None":
        """Ask one read-only query, like `wb.sql`: `%events select …` in a line, or in a cell of its own.

        `%%events` shows the frame; `%%events df` calls it df. `:name` takes the value of the notebook's variable `name`.
        It asks the notebook's `wb`, or the Workbench that was made last.
        """
        if cell is None:
            return self._answer(line)
        name = line.strip()
        if name and (not name.isidentifier() or keyword.iskeyword(name)):
            raise InvalidArgumentError(f"{name!r} is no name for a frame: write %%events df, and the query below it")
        answer = self._answer(cell)
        if not name:
            return answer
        self._shell.user_ns[name] = answer
        return None

    @context_matcher(identifier=_MATCHER)  # type: ignore[untyped-decorator]
    def complete(self, context: CompletionContext) -> SimpleMatcherResult:
        """Complete the SQL of the magic; say nothing anywhere else."""
        written = _written(context)
        found = choices(*written, self._event_names) if written is not None else []
        completions = [SimpleCompletion(word, type=choice.kind) for choice in found for word in choice.words]
        result = SimpleMatcherResult(completions=completions, suppress=written is not None)
        if found:
            result["matched_fragment"] = found[0].fragment
        return result

    def _answer(self, query: str) -> "Result":
        variables, asked = self._shell.user_ns, parameter_names(query)
        if missing := next((name for name in asked if name not in variables), None):
            raise InvalidArgumentError(f":{missing} has no value: there is no variable {missing} in this notebook")
        given = {name: plain_value(variables[name]) for name in asked}
        return sql(_current(variables)._connection, SqlQuery(query, given))

    def _event_names(self, fragment: str) -> Iterable[str]:
        with contextlib.suppress(WorkbenchError):
            return _current(self._shell.user_ns).catalog.beginning(fragment)
        return ()


def _current(variables: Mapping[str, Any]) -> Workbench:
    """Return `wb`, or the Workbench that was named last, or one as the environment has it."""
    named = [value for name, value in variables.items() if isinstance(value, Workbench) and not name.startswith("_")]
    wb = variables.get("wb")
    if isinstance(wb, Workbench):
        return wb
    return named[-1] if named else Workbench()


def _written(context: CompletionContext) -> tuple[str, str] | None:
    """Return the statement before and after the cursor, None when the cursor is in none."""
    lines = context.full_text.split("\n")
    row, column = context.cursor_line, context.cursor_position
    command = lines[0].split(maxsplit=1)
    if command[:1] == ["%%events"]:
        if row == 0:
            return None
        return "\n".join([*lines[1:row], lines[row][:column]]), "\n".join([lines[row][column:], *lines[row + 1 :]])
    start = "%events "
    offset = len(lines[row]) - len(lines[row].lstrip()) + len(start)
    if not lines[row].lstrip().startswith(start) or column < offset:
        return None
    return lines[row][offset:column], lines[row][column:]
