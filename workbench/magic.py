"""`%load_ext workbench`: SQL as a cell of its own, `%%events`, and as a line, `%events`."""

import contextlib
import keyword
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from IPython.core.completer import CompletionContext, SimpleCompletion, SimpleMatcherResult, context_matcher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import no_var_expand

from workbench.completion import choices
from workbench.errors import DraftError, WorkbenchError
from workbench.query import Question, sql
from workbench.values import names, unboxed
from workbench.workbench import Workbench

if TYPE_CHECKING:
    from workbench.result import Result

_MATCHER = "workbench.events"


def load(shell: InteractiveShell) -> None:
    """Add the magic and its completion to a shell."""
    unload(shell)
    events = Events(shell)
    shell.magics_manager.register_function(events.ask, magic_kind="line_cell", magic_name="events")
    shell.Completer.custom_matchers.append(events.complete)


def unload(shell: InteractiveShell) -> None:
    """Take both away again."""
    for magics in shell.magics_manager.magics.values():
        magics.pop("events", None)
    matchers = shell.Completer.custom_matchers
    matchers[:] = [each for each in matchers if getattr(each, "matcher_identifier", None) != _MATCHER]


class Events:
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
            raise DraftError(f"{name!r} is no name for a frame: write %%events df, and the query below it")
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
        variables, asked = self._shell.user_ns, names(query)
        if missing := next((name for name in asked if name not in variables), None):
            raise DraftError(f":{missing} has no value: there is no variable {missing} in this notebook")
        given = {name: unboxed(variables[name]) for name in asked}
        return sql(_current(variables)._connection, Question(query, given))

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
