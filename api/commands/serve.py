"""`workbench serve`: the API, one process or several behind one port."""

import argparse
import os
import signal
import socket

from api import logs
from api.commands import leash, ports
from api.commands.arguments import Subparsers, add_leash, port
from api.commands.database import Addresses, database, must_be_fit
from api.commands.secret import root_secret
from api.settings import Settings, child_environment

_LIMIT = 256
_FEWEST, _MOST = 2, 8  # by itself: so that one serves while another starts; Postgres needs processors, too


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("serve", help="run the API")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=port, default=8000, help="port to listen on (default %(default)s)")
    parser.add_argument(
        "--workers",
        type=_workers,
        default=1,
        metavar="N",
        help="number of processes (default %(default)s), or auto: one for each processor, from 2 to 8; SIGHUP renews several",
    )
    parser.add_argument("--inherited", type=int, nargs="+", help=argparse.SUPPRESS)  # rates, own socket, others
    add_leash(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Serve until stopped."""
    if args.inherited is not None:
        return _work(settings, *args.inherited)
    ports.must_be_free(args.host, args.port, "--port")
    secret = root_secret(settings)
    with database(settings) as addresses:
        logs.install()
        must_be_fit(addresses)
        sockets = ports.listen(args.host, args.port, args.workers)
        if args.leash:
            leash.follow_parent()
        if args.workers > 1:
            from api.commands import workers

            shared = {"DATABASE_URL": addresses.dsn, "WORKBENCH_DATA_DIR": str(settings.data_dir)}
            workers.run(sockets, child_environment(shared))
        else:
            from api.app import create_app
            from api.serving import serve

            serve(create_app(settings, addresses.dsn, secret), sockets)
    return 0


def _work(settings: Settings, rates: int, *sockets: int) -> int:
    """Be one of several processes, with the files it inherited."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # for our parent, also where a terminal tells the whole group
    leash.follow_parent()
    from api.app import create_app
    from api.serving import serve

    assert settings.database_url is not None
    logs.install()
    must_be_fit(Addresses(settings.database_url, None))
    app = create_app(settings, settings.database_url, root_secret(settings), rates=rates)
    serve(app, [socket.socket(fileno=each) for each in sockets], leash.tell_parent)
    return 0


def _workers(text: str) -> int:
    if text == "auto":
        return min(max(os.cpu_count() or 1, _FEWEST), _MOST)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _LIMIT:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of workers; use 1 to {_LIMIT}, or auto")
    return int(text)
