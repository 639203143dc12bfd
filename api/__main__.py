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

_COMMANDS = (up, serve, engine, chain, database, keys, import_, backup, secret, top, doctor)
# Commands of the package `workbench`. It is imported only to run one of them: a server process never loads it.
_DELEGATED = {"automations": ("workbench.__main__", "automations as files in git: pull, plan, apply")}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. An error that the user can correct is one sentence on stderr."""
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in _DELEGATED:
            module, _ = _DELEGATED[arguments[0]]
            return int(importlib.import_module(module).main(arguments, prog="workbench"))
        parser = argparse.ArgumentParser(
            prog="workbench", description="Events in, automations out, and notebooks to see both."
        )
        subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
        for command in _COMMANDS:
            command.add_parser(subparsers)
        for name, (_, help_text) in _DELEGATED.items():
            subparsers.add_parser(name, help=help_text)
        args = parser.parse_args(arguments)
        options = settings.read()
        if getattr(args, "data_dir", None) is not None:
            options = msgspec.structs.replace(options, data_dir=args.data_dir.absolute())
        return int(args.run(args, options))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT  # what a shell reports for a program that the signal ended
    except BrokenPipeError:
        # The reader of our output has ended, as `| head` does. Python flushes at exit and would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        note(f"workbench: {sentence}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
