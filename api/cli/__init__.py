"""The `workbench` command: one module per subcommand, each with `add_parser(subparsers)` and `run(args, settings) -> int`.

What a user can cause is said in one sentence on stderr, with exit code 1 (2 for usage). Heavy imports happen inside
`run`, so that `workbench --help` answers at once.
"""


class CommandError(Exception):
    """A command cannot do what it was asked; the text is the sentence for the user."""
