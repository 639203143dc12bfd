"""`workbench chain`: follow EVM nodes. Actions keep logs that no automation uses, and show the state of each chain."""

import argparse
import asyncio

from api import process
from api.cli import CommandError, network
from api.cli.database import database, require_fit_database
from api.cli.errors import Subparsers, add_leash, note, say
from api.cli.secret import root_secret
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("chain", help="follow EVM nodes (WORKBENCH_EVM_RPC): logs start automations")
    add_leash(parser)
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(metavar="ACTION")
    watch = actions.add_parser("watch", help="keep the logs of a contract's event, even if no automation uses them")
    unwatch = actions.add_parser("unwatch", help="stop keeping them; logs that are stored stay")
    status = actions.add_parser("status", help="show how far each chain has been read, and what prevents reading")
    dead = actions.add_parser("dead", help="list logs that could not be stored")
    watched = actions.add_parser("watched", help="list the events that are watched")
    for action, command in (
        (watch, add_watch),
        (unwatch, remove_watch),
        (watched, list_watches),
        (status, show_status),
        (dead, list_dead_logs),
    ):
        action.set_defaults(run=command)
    for action in (watch, unwatch, watched):
        action.add_argument("--org", required=True, metavar="NAME")
    for action in (watch, unwatch):
        action.add_argument("--chain", required=True, type=int, metavar="ID", help="chain id, like 1 or 8453")
        action.add_argument("--contract", required=True, metavar="ADDRESS")
        action.add_argument("--event", required=True, metavar="SIGNATURE", help='"Transfer(address,address,uint256)"')
    watch.add_argument("--wallet", metavar="PARAMETER", help="the parameter that contains the wallet of the contact")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Follow the chains until stopped."""
    from api.chain.follow import follow

    if not settings.evm_rpc:
        raise CommandError("WORKBENCH_EVM_RPC is not set; set it to the URLs of EVM nodes, separated by commas")
    secret = root_secret(settings)
    with database(settings) as urls:
        process.install_logging()
        require_fit_database(urls)
        if args.leash:
            network.follow_parent()
        follow(settings.evm_rpc, urls.dsn, secret, settings.chain_contacts)
    return 0


def show_status(args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per chain; return 1 if something prevents one from being read."""
    from api.chain import follow

    with database(settings) as urls:
        chains = asyncio.run(follow.list_chains(urls.dsn))
    for chain in chains:
        read_at = "never" if chain.read_at is None else chain.read_at.isoformat(timespec="seconds")
        position = f"read up to {chain.block_number}\thead {chain.head}\tlast new {read_at}"
        say(f"{chain.chain_id}\t{position}\t{chain.trouble or 'ok'}")
    return int(any(chain.trouble for chain in chains))


def list_dead_logs(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import follow

    with database(settings) as urls:
        for log in asyncio.run(follow.list_dead_logs(urls.dsn)):
            position = f"{log.chain_id}\t{log.block_number}\t{log.tx_hash}:{log.log_index}"
            say(f"{log.organization}\t{position}\t{log.contract}\t{log.signature}\t{log.reason}")
    return 0


def add_watch(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import watch

    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event, "walletArg": args.wallet}
    with database(settings) as urls:
        added = asyncio.run(watch.add_watch(urls.dsn, args.org, spec))
    note(f"logs of {added.signature} of {added.contract} on chain {added.chain_id} are kept from now on")
    return 0


def remove_watch(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import watch

    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event}
    with database(settings) as urls:
        asyncio.run(watch.remove_watch(urls.dsn, args.org, spec))
    note("new logs are not kept, unless an automation starts from them")
    return 0


def list_watches(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import watch

    with database(settings) as urls:
        for row in asyncio.run(watch.list_watches(urls.dsn, args.org)):
            say(f"{row.chain_id}\t{row.contract}\t{row.signature}\t{row.wallet_arg or ''}".rstrip())
    return 0
