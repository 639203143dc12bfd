"""The pages of the reference that are generated: HTTP, Python, SQL tables, errors, and the command line."""

import argparse
import ast
import contextlib
import functools
import importlib
import io
import json
import pkgutil
import re
from collections.abc import Iterator
from importlib.resources import files as package_files
from pathlib import Path

from sanic import Sanic

import workbench
from api.__main__ import COMMANDS, DELEGATED
from api.app import BLUEPRINTS
from api.cli.errors import MESSAGES, Parser, add_data_dir
from api.openapi.document import build_document
from workbench.language.decision import DELIVERY_ERRORS
from workbench.language.version import VERSION
from workbench.tables import column_type
from workbench.workbench import TABLES

ROOT = Path(__file__).parents[2]


def files() -> dict[str, str | bytes]:
    """Return the content of the generated files by their names in the site."""
    document = _openapi()
    swagger = package_files("mkdocs_swagger_ui_tag") / "swagger-ui"
    return {
        "reference/http.md": _http(document),
        "reference/openapi.js": f"window.openapi = {json.dumps(document, ensure_ascii=False)};\n",
        "reference/swagger-ui.js": (swagger / "javascripts" / "swagger-ui-bundle.js").read_bytes(),
        "reference/swagger-ui.css": (swagger / "stylesheets" / "swagger-ui.css").read_bytes(),
        "reference/python.md": _python(),
        "reference/sql.md": _sql(),
        "reference/errors.md": _errors(),
        "reference/cli.md": _command_line(),
    }


# --- HTTP


def _openapi() -> dict[str, object]:
    app = Sanic("site", configure_logging=False)
    for blueprint in BLUEPRINTS:
        app.blueprint(blueprint)
    return build_document(app.router.routes, VERSION) | {"servers": [{"url": "/", "description": "this service"}]}


def _http(document: dict[str, object]) -> str:
    rows = [
        f"| `{method.upper()}` | `{path}` | {operation['summary']} |"
        for path, methods in document["paths"].items()  # type: ignore[attr-defined]
        for method, operation in methods.items()
    ]
    return "\n".join(
        [_HTTP_HEAD, "## All routes", "", "| method | path | description |", "|---|---|---|", *rows, "", _HTTP_FOOT]
    )


_HTTP_HEAD = """\
# HTTP reference

Generated from the routes of the service, like `/openapi.json` and `/docs`. [HTTP API](../api.md) describes errors,
limits and retries, and [the contract](../contract.md) what an answer promises.

If a running service shows this page (at `/help`), you can send requests to it from here: press **Authorize**, paste a
key, open a route and press **Try it out**. Such a request changes data like any other; an event sent with a test key
(`sk_test_…`) is a dry run.

<div id="swagger-ui" markdown="0">The reference needs JavaScript; all routes are listed below.</div>
"""
_HTTP_FOOT = """\
<link rel="stylesheet" href="swagger-ui.css">
<script src="openapi.js"></script>
<script src="swagger-ui.js"></script>
<script src="../assets/http.js"></script>
"""


# --- Python


def _python() -> str:
    first = ["Workbench", "Automation", "Client"]
    names = [name for name in workbench.__all__ if name != "__version__"]
    errors = [name for name in names if name.endswith("Error")]
    others = [name for name in names if name not in (*first, *errors)]
    lines = ["# Python reference", "", "Everything that `import workbench` offers, from its docstrings.", ""]
    for title, group in (("Entry points", first), ("Results", others), ("Errors", errors)):
        lines += [f"## {title}", ""]
        for name in group:
            lines += [f"::: {getattr(workbench, name).__module__}.{name}", ""]
    return "\n".join(lines)


# --- SQL

_TABLE = re.compile(r"^CREATE TABLE workbench\.(\w+) \((.*?)^\)", re.DOTALL | re.MULTILINE)
_COLUMN = re.compile(r"^    ([a-z]\w*) +((?:[a-z]+\b)(?:\[\])?)[^\n]*?(?:-- (.*))?$", re.MULTILINE)
_VIEW = re.compile(r"^CREATE VIEW analyst\.(\w+) .*? AS\n(.*?);$", re.DOTALL | re.MULTILINE)


def _sql() -> str:
    schema = (ROOT / "sql" / "schema.sql").read_text("utf-8")
    tables = {
        name: {column: (kind, comment) for column, kind, comment in _COLUMN.findall(body)}
        for name, body in _TABLE.findall(schema)
    }
    lines = [_SQL_HEAD]
    for view, statement in _VIEW.findall(schema):
        columns: dict[str, tuple[str, str]] = {}
        for table in reversed(re.findall(r"(?:FROM|JOIN) workbench\.(\w+)", statement)):
            columns |= tables[table]
        renamed = {new: old for old, new in re.findall(r"(\w+) AS (\w+)", statement)}
        lines += [f"## `{view}`", "", "| column | type | description |", "|---|---|---|"]
        for column in TABLES[view]:
            kind, comment = columns.get(renamed.get(column, column), ("", ""))
            lines.append(f"| `{column}` | `{kind or column_type(view, column)}` | {comment.replace('|', '&#124;')} |")
        lines += ["", '??? note "Its definition"', "", "    ```sql", *(f"    {line}" for line in statement.split("\n"))]
        lines += ["    ```", ""]
    return "\n".join(lines)


_SQL_HEAD = """\
# SQL tables

The views that `wb.sql` and `POST /api/v1/sql` read, generated from the schema. Each shows only the rows of your
organization. A column without a type is computed; its definition says how. [SQL](../sql.md) describes queries, types
and limits.
"""


# --- Errors


def _errors() -> str:
    notebook, service = list(_calls("workbench")), list(_calls("api"))
    python = {
        (arguments[0], name) for name, arguments in notebook if name in workbench.__all__ and name.endswith("Error")
    }
    problems = _second_arguments("Problem", notebook + service)
    answers = _second_arguments("RequestRefusedError", service)
    command = {(arguments[0], "1") for name, arguments in service if name == "CommandError"}
    command |= {(message.replace("{}", "…"), "1") for message in MESSAGES.values()}
    deliveries = {(text, code) for code, text in DELIVERY_ERRORS.items()}
    sections = [
        *_messages("In a notebook", "Raised by the package `workbench`, as", python),
        *_messages("A field of a request", "`400`, with the name of the field in `field`:", problems),
        *_messages("A refused request", "The `error` of an answer with the status", answers),
        *_messages("A delivery", "Why a message was not sent, in `message_outcomes` and on the dashboard:", deliveries),
        *_messages("The command line", "Printed by `workbench` on stderr, which ends with", command),
    ]
    return "\n".join([_ERRORS_HEAD, *sections])


def _second_arguments(name: str, calls: list[tuple[str, list[str]]]) -> set[tuple[str, str]]:
    """Return (message, field or status) of the calls of a class that takes them the other way round."""
    return {(arguments[1], arguments[0]) for called, arguments in calls if called == name and len(arguments) > 1}


def _messages(title: str, about: str, rows: set[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of a chapter: a heading for each message, and where it comes from."""
    keys: dict[str, list[str]] = {}
    for message, key in sorted(rows, key=_order):
        keys.setdefault(" ".join(message.split()), []).append(f"`{key}`" if re.search(r"\w", key) else "any")
    yield from (f"## {title}", "")
    for message, names in keys.items():
        if re.search(r"[a-z]{3}", message):
            # A heading, because the search ranks the words of headings first, and so that it can be linked to.
            yield from (f"### {_escaped(message)}", "", f"{about} {', '.join(names)}", "")


def _order(row: tuple[str, str]) -> tuple[str, str]:
    return re.sub(r"^\W+", "", row[0]).lower(), row[1]


def _escaped(text: str) -> str:
    """Return a text as Markdown that shows it."""
    return re.sub(r"([\\`*_\[\]#{}!])", r"\\\1", text).replace("<", "&lt;")


def _calls(package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each call that makes an error; `…` stands for what is filled in."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                texts = [_text(argument) for argument in node.args]
                if texts and any(text != "…" for text in texts):
                    yield node.func.id, texts


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(map(_text, values))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text(left) + _text(right)
        case _:
            return "…"


_ERRORS_HEAD = """\
---
hide: [toc]
---

# Errors by message

Generated from the code. Search for the words of a message; “…” stands for the value that it names. An answer of the API
has a `requestId`, which finds the request in the log ([operations](../operations.md#follow-a-request)).
"""


# --- The command line


def _command_line() -> str:
    lines = ["# Command line", "", "`workbench COMMAND --help` prints the same.", ""]
    for name, (function, description) in COMMANDS.items():
        parser = Parser(prog=f"workbench {name}", description=description[0].upper() + description[1:] + ".")
        pkgutil.resolve_name(function)(parser)
        if parser.get_default("run") is not None:
            add_data_dir(parser)
        lines += _help(parser)
    for name, (module, _) in DELEGATED.items():
        parser = Parser(prog="workbench")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            importlib.import_module(module).main([name, "--help"], parser)
        for command in _subcommands(parser):
            lines += _help(command)
    return "\n".join(lines)


def _help(parser: argparse.ArgumentParser, level: int = 2) -> list[str]:
    parser.formatter_class = functools.partial(argparse.HelpFormatter, width=100)
    lines = [f"{'#' * level} {parser.prog}", "", "```text", parser.format_help().rstrip(), "```", ""]
    return [*lines, *(line for command in _subcommands(parser) for line in _help(command, level + 1))]


def _subcommands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [command for group in groups for command in group.choices.values()]
