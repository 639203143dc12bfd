"""`workbench doctor`: look at everything this installation needs, and say what to do where something is wrong."""

import argparse
from pathlib import Path

from api.commands.arguments import Subparsers, port
from api.commands.terminal import say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("doctor", help="explain what is wrong with this installation")
    parser.add_argument("--port", type=port, default=8000, help="port of the API (default %(default)s)")
    parser.add_argument("--lab-port", type=port, default=8888, help="port of JupyterLab (default %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="where data and logs live (default .workbench)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per check; return 1 when one failed."""
    from api.commands.checks import every_check

    failed = False
    for finding in every_check(settings, args.port, args.lab_port):
        failed = failed or finding.verdict == "fail"
        say(f"{finding.verdict:<4}  {finding.what}" + (f"\n      {finding.advice}" if finding.advice else ""))
    return 1 if failed else 0
