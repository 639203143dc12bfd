"""The console script `workbench`, also `python -m api`."""

import argparse
import importlib
import os
import signal
import sys

import msgspec

from api import settings
from api.cli import backup, chain, database, doctor, engine, import_, keys, secret, serve, top, up
from api.cli.errors import explain, note

_ELSEWHERE = {"automations": ("workbench.__main__", "automations as files in git: pull, plan, apply")}
_COMMANDS = (
    up,
    serve,
    engine,
    chain,
    database,
    keys,
    import_,
    backup,
    secret,
    top,
    doctor,
)


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code, with one sentence on stderr for whatever the user can mend."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if given and given[0] in _ELSEWHERE:
            return _elsewhere(given)
        args = _parser().parse_args(given)
        chosen = settings.read()
        if getattr(args, "data_dir", None) is not None:
            chosen = msgspec.structs.replace(chosen, data_dir=args.data_dir.absolute())
        code: int = args.run(args, chosen)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of our output left, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        note(f"workbench: {sentence}")
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench", description="Events in, automations out, and notebooks to see both."
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add_parser(subparsers)
    for name, (_, help_text) in _ELSEWHERE.items():
        subparsers.add_parser(name, help=help_text)
    return parser


def _elsewhere(arguments: list[str]) -> int:
    """Hand a command over to the package it belongs to, which is loaded only then: no process of the server ever holds it."""
    module, _ = _ELSEWHERE[arguments[0]]
    code: int = importlib.import_module(module).main(arguments, prog="workbench")
    return code


if __name__ == "__main__":
    sys.exit(main())
