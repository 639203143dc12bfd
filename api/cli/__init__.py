"""The `workbench` command. Each module of a subcommand has `add_parser(subparsers)` and `run(args, settings) -> int`.

An error that a user can cause is one sentence on stderr, with exit code 1 (2 for wrong usage). Modules that take long
to import are imported inside `run`, so that `workbench --help` answers at once.
"""


class CommandError(Exception):
    """A command cannot do what the user asked for; the message is a sentence for the user."""
