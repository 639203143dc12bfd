"""The `workbench` command. The table in `api/__main__.py` names the function that declares the options of a command.

It sets `run(args, settings)`, which returns the exit code, or None for 0. An error that a user can cause is one
sentence on stderr, with exit code 1 (2 for wrong usage).
"""


class CommandError(Exception):
    """A command cannot do what the user asked for; the message is a sentence for the user."""
