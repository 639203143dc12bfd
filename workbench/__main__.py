"""The commands `python -m workbench automations pull|plan|apply [DIR]`, automations as files in git, and `… mcp`, the
tools of an agent.

The server's command line offers them as `workbench automations …` and `workbench mcp`. They connect to WORKBENCH_URL
with WORKBENCH_KEY and do not need the server's packages. Exit codes: 0 success; 1 an error, wrong usage or a conflict;
2 `plan` has differences.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from workbench import environment
from workbench.connection import Connection
from workbench.errors import MissingDependencyError, WorkbenchError
from workbench.git import apply
from workbench.git.files import pull
from workbench.language.check import Consent
from workbench.language.codec import printable

if TYPE_CHECKING:
    from workbench.backtest.run import Against

_DIFFERENCES = 2  # the exit code of `plan`
_FOLDER = Path("automations")


def main(arguments: Sequence[str] | None = None, parser: argparse.ArgumentParser | None = None) -> int:
    """Run one command and return its exit code. Errors of the server and of files go to stderr, without a traceback.

    `parser`: the one of the server's command line, with its name and suggestions for misspelt words.
    """
    parser = parser or argparse.ArgumentParser(
        prog="python -m workbench", description="Automations as files in git, and tools for agents."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    automations = commands.add_parser("automations", help="automations as files in git")
    actions = automations.add_subparsers(required=True, metavar="ACTION", dest="action")
    pulling = actions.add_parser("pull", help="write a file for each automation on the server")
    planning = actions.add_parser("plan", help="show what apply would change; exit code 2 if anything would")
    applying = actions.add_parser("apply", help="create, update and publish automations")
    for action in (pulling, planning, applying):
        action.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=_FOLDER, help=f"default: {_FOLDER}")
        action.add_argument("--json", action="store_true", help="print one JSON object")
    pulling.add_argument("--name", action="append", default=[], help="only this automation; may be repeated")
    pulling.add_argument("--overwrite", action="store_true", help="also replace files that were edited here")
    for action in (planning, applying):
        action.add_argument(
            "--accept-dropped",
            action="store_true",
            help="drop unknown operators of filters, and an unknown kind of the first step",
        )
        action.add_argument("--every-event", action="store_true", help="an empty event name means every event")
    planning.add_argument(
        "--backtest",
        metavar="DAYS",
        type=int,
        default=0,
        help="also show what new and changed automations would have done (needs event-workbench[notebook])",
    )
    applying.add_argument("--overwrite", action="store_true", help="also replace changes made on the server")
    applying.add_argument("--archive-missing", action="store_true", help="archive automations without a file")
    applying.add_argument(
        "--move", choices=("none", "safe"), default="none", help="safe: move waiting entries to the new versions"
    )
    commands.add_parser("mcp", help="tools for an agent, over the Model Context Protocol on stdin and stdout")
    try:
        args = parser.parse_args(arguments)
    except SystemExit as end:  # argparse ends with 2 after wrong usage, which would look like differences
        return int(bool(end.code))
    try:
        url = environment.variable("WORKBENCH_URL") or environment.DEFAULT_URL
        connection = Connection(url, environment.variable("WORKBENCH_KEY"))
        return _run(args, connection) if "action" in args else _serve_agent(connection)
    except (WorkbenchError, OSError) as error:
        sys.stderr.write(f"workbench: {printable(str(error))}\n")
        return 1


def _serve_agent(connection: Connection) -> int:
    try:
        from workbench.agents import server
    except ModuleNotFoundError as error:
        if error.name != "mcp":
            raise
        raise MissingDependencyError('mcp is not installed: pip install "event-workbench[mcp]"') from None
    server(connection).run("stdio")
    return 0


def _run(args: argparse.Namespace, connection: Connection) -> int:
    if args.action == "pull":
        results = pull(args.folder, connection, names=args.name, overwrite=args.overwrite)
        _print([apply.as_json(results)] if args.json else apply.describe_pull(results))
        return int(any(result.action == "conflict" for result in results))
    agreed = [consent for consent in get_args(Consent) if getattr(args, consent)]
    comparison = apply.compare(args.folder, connection, agreed)
    if args.action == "apply":
        options: dict[str, Any] = {name: getattr(args, name) for name in ("overwrite", "archive_missing", "move")}
        items = apply.apply(comparison, connection, **options)
        _print([apply.as_json(items)] if args.json else apply.describe_apply(items))
        return 0
    if args.backtest:
        comparison = _with_backtests(comparison, connection, args.backtest)
    differs = comparison.differs
    _print([apply.as_json(comparison.items, differences=differs)] if args.json else apply.describe_plan(comparison))
    if comparison.of("broken"):
        return 1
    return _DIFFERENCES if differs else 0


def _with_backtests(comparison: apply.Comparison, connection: Connection, days: int) -> apply.Comparison:
    """Return a comparison with the backtest of each automation that would be created or changed and takes entries."""
    try:
        from workbench.backtest.run import BacktestRequest, backtested
    except ImportError:
        raise MissingDependencyError('--backtest needs polars: pip install "event-workbench[notebook]"') from None
    request = BacktestRequest({"days": days})

    def backtest(item: apply.Item) -> str:
        if item.content is None or item.content.state == "off" or item.action not in ("create", "update", "conflict"):
            return ""
        record = None if item.current is None else item.current.record
        against: Against | None = "published" if record is not None and record.published_version is not None else None
        try:
            return str(backtested(connection, item.content.draft(), record, against, request))
        except WorkbenchError as error:
            return f"no backtest: {error}"

    items = [msgspec.structs.replace(item, backtest=backtest(item)) for item in comparison.items]
    return msgspec.structs.replace(comparison, items=tuple(items))


def _print(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{printable(line)}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
