"""No text of a customer or an author reaches a terminal with control or format characters.

The rules hold for all displays, so one that is added later cannot be forgotten: `__repr__` and `__str__` of the
notebook package are made printable, and commands write to a terminal only through functions that do the same.
"""

import ast
import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

import api
import workbench
from api.cli.errors import note, say
from workbench.display.frame import ShownFrame
from workbench.display.html import plain, table_columns
from workbench.errors import WorkbenchError
from workbench.frames import Result, frame_of
from workbench.git.files import AutomationFile
from workbench.language.body import Body, Name, read_body
from workbench.language.codec import decode, printable

TITLE = "\x1b]0;owned\x07"
HOSTILE = f"{TITLE}\x9b2J\x7f\r\u202e\u200b\ufeff\ud800\u2028\U000e0041"
PACKAGES = [Path(package.__file__ or "").parent for package in (api, workbench)]
WRITERS = {  # the functions that may write to stdout or stderr
    "api/cli/errors.py": {"say", "note"},
    "workbench/__main__.py": {"main", "_print"},
    # these write a `repr`, which is printable
    "workbench/stats.py": {"_ipython_display_"},
    "workbench/tail.py": {"_ipython_display_"},
    "workbench/workbench.py": {"_ipython_display_"},
    "workbench/catalog.py": {"_show"},
}


def functions() -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield all functions of both packages with the path of their module."""
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef):
                    yield path.relative_to(package.parent).as_posix(), node


def is_safe(display: ast.FunctionDef) -> bool:
    """Return whether a display is decorated, calls `printable` last, or is a constant text."""
    if any(
        isinstance(decorator, ast.Name) and decorator.id == "printable_text" for decorator in display.decorator_list
    ):
        return True
    last = display.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    match value:
        case ast.Constant() | ast.Call(func=ast.Name(id="printable")):
            return True
        case ast.JoinedStr(values=parts):  # Python's own `repr` of a text has no control characters
            return all(isinstance(part, ast.Constant) or getattr(part, "conversion", 0) == ord("r") for part in parts)
    return False


def test_every_display_of_the_notebook_is_printable() -> None:
    displays = [
        (path, display)
        for path, display in functions()
        if display.name in ("__repr__", "__str__") and path.startswith("workbench/")
        if not path.startswith("workbench/language/")  # values and problems: shown by the displays and commands
    ]
    assert len(displays) > 30
    assert [f"{path}:{display.lineno}" for path, display in displays if not is_safe(display)] == []


def test_commands_write_to_the_terminal_in_one_place() -> None:
    writers: dict[str, set[str]] = {}
    for path, function in functions():
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("print", "sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"),
            ):
                writers.setdefault(path, set()).add(function.name)
    assert writers == WRITERS


def is_printable(text: str) -> bool:
    return all(unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in text)


def test_every_control_and_format_character_is_escaped() -> None:
    for number in range(0x110000):
        character = chr(number)
        shown = printable(character, kept="")
        assert is_printable(shown)
        if shown != character:
            assert unicodedata.category(character) == "Cs" or decode(f'"{shown}"'.encode()) == character
    assert printable("é 🎉\n\tok \u00a0") == "é 🎉\n\tok \u00a0"
    assert printable(TITLE) == r"\u001b]0;owned\u0007"


def test_tables_and_frames_are_printable() -> None:
    text = plain(table_columns("note"), [(HOSTILE.replace("\ud800", "") + "\nforged row\t",)])
    assert is_printable(text.replace("\n", "", 1))  # one line end: that of the header
    rows = frame_of([(TITLE,), ("\u202eowned",)], note=str)
    for frame in (rows, ShownFrame(rows), Result(rows), Result(rows).head(1)):
        assert is_printable(str(frame).replace("\n", ""))
        assert repr(frame) == str(frame)


def test_errors_are_printable() -> None:
    error = WorkbenchError(f"no contact {HOSTILE}")
    assert all(is_printable(text) for text in (str(error), *error._render_traceback_()))


def test_commands_and_pulled_files_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    say(f"stored {HOSTILE}")
    note(f"refused {HOSTILE}")
    assert all(is_printable(text.removesuffix("\n")) for text in capsys.readouterr())
    hostile = HOSTILE.replace("\ud800", "")
    file = AutomationFile(hostile, "draft", {}, {"nodes": [], "edges": []})
    assert is_printable(file.text().replace("\n", ""))
    assert decode(file.text().encode())["name"] == hostile


class NamedBody(Body, frozen=True):
    name: Name


@pytest.mark.parametrize("name", ["a\x1bb", "a\nb", "a\u202eb", "a\u200bb", "a\x7f", "a\x85"])
def test_names_have_no_control_or_format_characters(name: str) -> None:
    (problem,) = read_body(NamedBody, json.dumps({"name": name}).encode())  # type: ignore[misc]
    assert str(problem).startswith("name: contains control or format characters")
    assert read_body(NamedBody, b'{"name": "Danke \xc3\xa9 \xf0\x9f\x8e\x89"}') == NamedBody("Danke é 🎉")
