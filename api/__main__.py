"""The console script `workbench`, also `python -m api`."""

import gc
import importlib
import os
import pkgutil
import signal
import sys
from importlib.metadata import version

import msgspec

from api import settings
from api.cli.errors import Parser, add_data_dir, explain, note

# Each command with the function that declares its options and `run`, and its line of help. A module is imported only
# for its own command, so that `workbench --help` answers at once.
COMMANDS = {
    "up": ("api.cli.up:add_options", "run everything on this machine: Postgres, API, engine, JupyterLab"),
    "serve": ("api.cli.serve:add_options", "run the API"),
    "engine": ("api.cli.serve:add_engine", "run an engine process"),
    "chain": ("api.cli.chain:add_options", "follow EVM nodes (WORKBENCH_EVM_RPC): logs start automations"),
    "migrate": ("api.cli.database:add_options", "bring the database up to date"),
    "org": ("api.cli.keys:add_org", "organizations"),
    "key": ("api.cli.keys:add_key", "API keys"),
    "reader": ("api.cli.keys:add_reader", "direct read-only logins for tools that connect to Postgres"),
    "origins": ("api.cli.keys:add_origins", "web pages that may show in-app messages"),
    "import": ("api.cli.import_:add_options", "import history from files"),
    "parts": ("api.cli.parts:add_options", "files of events that answer questions about many events"),
    "bounce": ("api.cli.bounce:add_options", "record the report of a mail server about an email, from stdin"),
    "backup": ("api.cli.backup:add_backup", "write everything in the database into a folder"),
    "restore": ("api.cli.backup:add_restore", "load a backup into an empty database"),
    "secret": ("api.cli.keys:add_secret", "the secret of the installation"),
    "top": ("api.cli.top:add_options", "show what all processes do, live"),
    "doctor": ("api.cli.doctor:add_options", "explain what is wrong with this installation"),
}
# Commands of the package `workbench`. It is imported only to run one of them: a server process never loads it.
DELEGATED = {
    "automations": ("workbench.__main__", "automations as files in git: pull, plan, apply"),
    "mcp": ("workbench.__main__", "tools for an agent, over the Model Context Protocol"),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; return its exit code. An error that the user can correct is one sentence on stderr."""
    # Requests and entries leave no cycles that need an early collection, and imports would take a sixth longer.
    gc.set_threshold(20_000, 20, 50)
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        if arguments and arguments[0] in DELEGATED:
            module, description = DELEGATED[arguments[0]]
            parser = Parser(prog="workbench", description=description)
            return int(importlib.import_module(module).main(arguments, parser))
        parser = Parser(prog="workbench", description="Events in, automations out, and notebooks to see both.")
        parser.add_argument("--version", action="version", version=f"%(prog)s {version('event-workbench-server')}")
        subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
        for name, (function, help_text) in (COMMANDS | DELEGATED).items():
            command = subparsers.add_parser(name, help=help_text)
            if arguments[:1] == [name]:
                pkgutil.resolve_name(function)(command)
                if command.get_default("run") is not None:  # otherwise its actions have the option
                    add_data_dir(command)
        args = parser.parse_args(arguments)
        options = settings.read()
        if getattr(args, "database_url", None) is not None:
            options = msgspec.structs.replace(options, database_url=args.database_url)
        if args.data_dir is not None:
            options = msgspec.structs.replace(options, data_dir=args.data_dir.absolute())
        elif arguments[0] != "up" and options.database_url is None and not hasattr(args, "url"):
            pkgutil.resolve_name("api.cli.network:require_own_data_dir")(options.data_dir)
        return int(args.run(args, options) or 0)
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
