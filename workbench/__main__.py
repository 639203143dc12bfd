"""`python -m workbench automations pull|plan|apply [DIR]`, which is also `workbench automations …`: automations as files in git.

It speaks to the server at WORKBENCH_URL with WORKBENCH_KEY, and needs nothing of the server's own packages.
Exit codes: 0 all is as it should be; 1 something went wrong, or stands in the way; 2 (of `plan`) there are differences.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench import environment
from workbench.connection import Connection
from workbench.errors import WorkbenchError
from workbench.git import apply
from workbench.git.apply import apply as __main___apply
from workbench.git.apply import compare
from workbench.git.files import pull

_DIFFERENCES = 2
_FOLDER = Path("automations")


def main(arguments: Sequence[str] | None = None, prog: str = "python -m workbench") -> int:
    """Run one command and return its exit code; what a user can mend is said in plain words on stderr."""
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
    pulling = _action(actions.add_parser("pull", help="write a file for each automation of the server"), _pull)
    pulling.add_argument(
        "--name", action="append", default=[], help="only the automation of this name; may be repeated"
    )
    pulling.add_argument("--overwrite", action="store_true", help="also over files that were edited here")
    _action(actions.add_parser("plan", help="say what apply would change; exit code 2 when it is something"), _plan)
    applying = _action(actions.add_parser("apply", help="create, update and publish what the files say"), _apply)
    applying.add_argument("--overwrite", action="store_true", help="also over what was changed on the server")
    applying.add_argument("--archive-missing", action="store_true", help="put automations away whose file is gone")
    return parser


def _action(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace, Connection], int]
) -> argparse.ArgumentParser:
    parser.add_argument("folder", metavar="DIR", nargs="?", type=Path, default=_FOLDER, help=f"default: {_FOLDER}")
    parser.add_argument("--json", action="store_true", help="for programs: one JSON object")
    parser.set_defaults(run=run)
    return parser


def _pull(args: argparse.Namespace, connection: Connection) -> int:
    found = pull(args.folder, connection, names=args.name, overwrite=args.overwrite)
    _say([apply.as_json(found)] if args.json else apply.pulled(found))
    return int(any(each.deed == "conflict" for each in found))


def _plan(args: argparse.Namespace, connection: Connection) -> int:
    found = compare(args.folder, connection)
    differs = apply.differs(found)
    _say([apply.as_json(found.items, differences=differs)] if args.json else apply.planned(found))
    if found.of("broken"):
        return 1
    return _DIFFERENCES if differs else 0


def _apply(args: argparse.Namespace, connection: Connection) -> int:
    found = compare(args.folder, connection)
    done = __main___apply(found, connection, overwrite=args.overwrite, archive_missing=args.archive_missing)
    _say([apply.as_json(done)] if args.json else apply.applied(done))
    return 0


def _say(lines: Sequence[str]) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
