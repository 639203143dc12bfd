"""Argument types, error messages, signals and output of the subcommands.

`explain` turns an error that a user can cause into one sentence; any other error is a bug and keeps its traceback. It
recognises errors by the full name of their class, so that a command does not import modules that it does not use.

Results go to stdout (`say`), everything else to stderr (`note`), without control characters.
"""

import argparse
import errno
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

if TYPE_CHECKING:  # argparse names this type only for type checkers
    from api.settings import Settings

    Actions: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
    Run: TypeAlias = Callable[[argparse.Namespace, Settings], int | None]
else:
    Actions = Run = object
from workbench.language.codec import printable
from workbench.language.problem import nearest_name, suggestion

USER_ERRORS = {  # their message is the sentence; tests/cli/test_errors.py finds a name that is out of date
    "api.auth.AccessError",
    "api.cli.CommandError",
    "api.crypto.ChainError",
    "api.embedded.paths.EmbeddedError",
    "api.imports.errors.UnwritableError",
    "api.imports.importer.UnknownOrganizationError",
    "api.imports.row.UnreadableFileError",
    "api.private_files.PrivateFileError",
    "api.settings.SettingsError",
    "api.store.backup.IncompleteDumpError",
    "api.store.migrate.MigrationError",
    "api.store.migrate.UnfitServerError",
}
_FOLDER_ERRORS = (errno.EACCES, errno.EDQUOT, errno.ENOSPC, errno.EROFS)  # of the folder or disk, not of our code
_NOT_MIGRATED = "the database has not been migrated to this version; run: workbench migrate"
MESSAGES = {  # the first class that matches wins, so subclasses come before psycopg.Error
    "psycopg.errors.UndefinedTable": _NOT_MIGRATED,
    "psycopg.errors.InvalidSchemaName": _NOT_MIGRATED,
    "api.store.database.DatabaseUnavailableError": "the database cannot be reached: {}",
    "api.store.database.TransactionConflictError": "timed out waiting for a database lock: {}",
    "psycopg.OperationalError": "the database cannot be reached: {}",
    "psycopg.Error": "the database reported an error: {}",
    "sqlalchemy.exc.ArgumentError": "DATABASE_URL is not a valid URL; use one like postgresql://user:password@host/name",
}
PACKAGES = {  # by the distribution that installs them
    "event-workbench-server": (
        *(
            "cryptography",
            "eth_keys",
            "numpy",
            "prometheus_client",
            "psutil",
            "psycopg",
            "psycopg_pool",
            "pyarrow",
            "rich",
        ),
        *("sanic", "sqlalchemy", "websockets"),
    ),
    "event-workbench-server[otel]": ("opentelemetry",),
    "event-workbench[notebook]": ("anywidget", "ipywidgets", "polars"),
    "event-workbench[lab]": ("jupyterlab", "jupyter_server"),
}


Option: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]


class Parser(argparse.ArgumentParser):
    """A parser that suggests the command, action, option or value that a user may have meant."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self._words = sys.argv[1:] if args is None else list(args)
        # argparse would report an unknown option of a command by the parser of all commands, which does not have any.
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._advice(unknown)}")
        return parsed, unknown

    def _advice(self, words: Iterable[str]) -> str:
        names = (nearest_name(word.partition("=")[0], self._option_string_actions, 0.7) for word in words)
        return "".join(f"; did you mean {name!r}?" for name in names if name is not None)

    def error(self, message: str) -> NoReturn:
        if "arguments are required" in message:  # the required option may be there, but misspelt
            options = [word.partition("=")[0] for word in self._words if word.startswith("--")]
            message += self._advice(name for name in options if name not in self._option_string_actions)
        if (match := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message)) is not None:
            advice = suggestion(match[1], re.findall(r"[^\s,']+", match[2]))  # newer Pythons leave out the quotes
            message = message.replace(match[0], f"{match[1]!r} is unknown{advice}") if advice else message
        super().error(message)


def option(*names: str, **settings: Any) -> Option:
    """Return an argument of `add_argument`, for the actions that take it."""
    return names, settings


ORG = option("--org", required=True, metavar="NAME")


def add_actions(parser: argparse.ArgumentParser) -> Actions:
    """Make a command require one of its actions, which `add_action` adds."""
    return parser.add_subparsers(required=True, metavar="ACTION")


def add_action(actions: Actions, name: str, run: Run, description: str, *options: Option) -> None:
    action = actions.add_parser(name, help=description)
    add_data_dir(action)
    add_database(action)
    for names, settings in options:
        action.add_argument(*names, **settings)
    action.set_defaults(run=run)


def port(text: str) -> int:
    """Parse a port number; an argparse type."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use a number from 1 to 65535")
    return int(text)


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, help="folder with the data and the logs (default .workbench)")


def add_database(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that use the database without being a process of the installation."""
    parser.add_argument(
        "--url",
        dest="database_url",
        help="URL of the database (default: DATABASE_URL, which keeps a password from `ps`)",
    )


def add_leash(parser: argparse.ArgumentParser) -> None:
    """Add the hidden flag with which `workbench up` starts a process that ends when its parent does."""
    parser.add_argument("--leash", action="store_true", help=argparse.SUPPRESS)


def explain(error: BaseException) -> str | None:
    """Return one sentence for an error that a user can cause, or None for a bug."""
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "").split(".")[0]
        for distribution, packages in PACKAGES.items():
            if missing in packages:
                return f"the package {missing} is missing; install it with: pip install '{distribution}'"
        return None
    if isinstance(error, OSError) and error.errno in _FOLDER_ERRORS and error.filename is not None:
        return f"{error.filename} cannot be read or written: {error.strerror}"
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
    if not USER_ERRORS.isdisjoint(names):
        return str(error)
    lines = str(error).strip().splitlines()
    summary = lines[0] if lines else type(error).__name__
    return next((message.format(summary) for name, message in MESSAGES.items() if name in names), None)


class Interrupted(BaseException):
    """The process received a signal to stop."""


class Signals:
    """Raises Interrupted in the main thread for the first signal; later signals do not disturb the shutdown."""

    def __init__(self) -> None:
        self._received = False
        self._raised = False
        self._deferring = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP within the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        previous = [signal.signal(number, self._handle) for number in numbers]
        try:
            yield
        finally:
            for number, handler in zip(numbers, previous, strict=True):
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Delay an interruption until the block is done, for steps that must not be separated."""
        self._deferring = True
        try:
            yield
        finally:
            self._deferring = False
        self._raise_if_received()

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True
        if not self._deferring:
            self._raise_if_received()

    def _raise_if_received(self) -> None:
        if self._received and not self._raised:
            self._raised = True
            raise Interrupted


def say(text: str = "") -> None:
    """Write a line of the result to stdout and flush it."""
    sys.stdout.write(printable(text) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line about progress or a problem to stderr and flush it."""
    with suppress(OSError):  # stderr may be a file on a full disk; the process continues
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
