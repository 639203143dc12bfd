"""Arguments that several subcommands share."""

import argparse
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:  # argparse names this type only for type checkers
    Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
else:
    Subparsers = object


def port(text: str) -> int:
    """Return a port number; raise argparse's error otherwise."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 65_535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use a number from 1 to 65535")
    return int(text)


def add_leash(parser: argparse.ArgumentParser) -> None:
    """Let `workbench up` tie this process to itself."""
    parser.add_argument("--leash", action="store_true", help=argparse.SUPPRESS)
