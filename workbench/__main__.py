"""The command `python -m workbench automations pull|plan|apply [DIR]`: automations as files in git.

The server's command line offers it as `workbench automations …`. It connects to WORKBENCH_URL with WORKBENCH_KEY and
does not need the server's packages. Exit codes: 0 success; 1 an error or a conflict; 2 `plan` has differences.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench import environment
from workbench.connection import Connection
from workbench.errors import WorkbenchError
from workbench.git import apply
from workbench.git.files import pull

_DIFFERENCES = 2  # the exit code of `plan`
_FOLDER = Path("automations")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m workbench") -> int:
    """Run one command and return its exit code. Errors of the server and of files go to stderr, without a traceback."""
    args = _parser(prog).parse_args(arguments)
    run: Callable[[argparse.Namespace, Connection], int] = args.run
    try:
        url = environment.variable("WORKBENCH_URL") or environment.DEFAULT_URL
        return run(args, Connection(url, environment.variable("WORKBENCH_KEY")))
    except (WorkbenchError, OSError) as error:
        sys.stderr.write(f"workbench: {error}\n")
        return 1


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=prog, description="Automations as files in git.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    automations = commands.add_parser("automations", help="automations as files in git")
    actions = automations.add_subparsers(required=True, metavar="ACTION")
    pull_parser = _action(actions.add_parser("pull", help="write a file for each automation on the server"), _pull)
    pull_parser.add_argument("--name", action="append", default=[], help="only this automation; may be repeated")
    pull_parser.add_argument("--overwrite", action="store_true", help="also replace files that were edited here")
    _action(actions.add_parser("plan", help="show what apply would change; exit code 2 if anything would"), _plan)
    apply_parser = _action(actions.add_parser("apply", help="create, update and publish automations"), _apply)
    apply_parser.add_argument("--overwrite", action="store_true", help="also replace changes made on the server")
    apply_parser.add_argument("--archive-missing", action="store_true", help="archive automations without a file")
    return parser


def _action(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Connection], int]
) -> argparse.ArgumentParser:
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=_FOLDER, help=f"default: {_FOLDER}")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=run)
    return parser


def _pull(args: argparse.Namespace, connection: Connection) -> int:
    items = pull(args.folder, connection, names=args.name, overwrite=args.overwrite)
    _print([apply.as_json(items)] if args.json else apply.describe_pull(items))
    return int(any(item.action == "conflict" for item in items))


def _plan(args: argparse.Namespace, connection: Connection) -> int:
    comparison = apply.compare(args.folder, connection)
    differs = comparison.differs
    _print([apply.as_json(comparison.items, differences=differs)] if args.json else apply.describe_plan(comparison))
    if comparison.of("broken"):
        return 1
    return _DIFFERENCES if differs else 0


def _apply(args: argparse.Namespace, connection: Connection) -> int:
    comparison = apply.compare(args.folder, connection)
    items = apply.apply(comparison, connection, overwrite=args.overwrite, archive_missing=args.archive_missing)
    _print([apply.as_json(items)] if args.json else apply.describe_apply(items))
    return 0


def _print(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
