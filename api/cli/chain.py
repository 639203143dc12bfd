"""`workbench chain`: follow EVM nodes; its actions name events to keep without an automation, and say how the following goes."""

import argparse
import asyncio

from api import process
from api.cli import CommandError, network
from api.cli.database import database, must_be_fit, root_secret
from api.cli.errors import Subparsers, add_leash, note, say
from api.settings import Settings


def add_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("chain", help="follow EVM nodes (WORKBENCH_EVM_RPC): logs start automations")
    add_leash(parser)
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(metavar="ACTION")
    watch = actions.add_parser("watch", help="keep a contract's event, also without an automation")
    unwatch = actions.add_parser("unwatch", help="keep it no longer; what was kept stays")
    actions.add_parser("status", help="say how far each chain was read, and what hinders that").set_defaults(
        run=_status
    )
    actions.add_parser("dead", help="list logs that could not be stored").set_defaults(run=_dead)
    watched = actions.add_parser("watched", help="list what is kept without an automation")
    for action, command in ((watch, _watch), (unwatch, _unwatch), (watched, _watched)):
        action.add_argument("--org", required=True, metavar="NAME")
        action.set_defaults(run=command)
    for action in (watch, unwatch):
        action.add_argument("--chain", required=True, type=int, metavar="ID", help="chain id, like 1 or 8453")
        action.add_argument("--contract", required=True, metavar="ADDRESS")
        action.add_argument("--event", required=True, metavar="SIGNATURE", help='"Transfer(address,address,uint256)"')
    watch.add_argument("--wallet", metavar="PARAMETER", help="the parameter by whose wallet a contact is found")


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Follow until stopped."""
    from api.chain.follow import follow

    if not settings.evm_rpc:
        raise CommandError("WORKBENCH_EVM_RPC is not set: the addresses of EVM nodes, separated by commas")
    secret = root_secret(settings)
    with database(settings) as addresses:
        process.install_logging()
        must_be_fit(addresses)
        if args.leash:
            network.follow_parent()
        follow(settings.evm_rpc, addresses.dsn, secret, settings.chain_contacts)
    return 0


def _status(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import follow

    with database(settings) as addresses:
        found = asyncio.run(follow.list_chains(addresses.dsn))
    for each in found:
        read = "never" if each.read_at is None else each.read_at.isoformat(timespec="seconds")
        say(
            f"{each.chain_id}\tread up to {each.block_number}\thead {each.head}\tlast new {read}\t{each.trouble or 'ok'}"
        )
    return int(any(each.trouble for each in found))


def _dead(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import follow

    with database(settings) as addresses:
        for each in asyncio.run(follow.list_dead_logs(addresses.dsn)):
            where = f"{each.chain_id}\t{each.block_number}\t{each.tx_hash}:{each.log_index}"
            say(f"{each.organization}\t{where}\t{each.contract}\t{each.signature}\t{each.reason}")
    return 0


def _watch(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain.watch import add_watch

    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event, "walletArg": args.wallet}
    with database(settings) as addresses:
        watch = asyncio.run(add_watch(addresses.dsn, args.org, spec))
    note(f"{watch.signature} of {watch.contract} on chain {watch.chain_id} is kept from now on")
    return 0


def _unwatch(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import watch

    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event}
    with database(settings) as addresses:
        asyncio.run(watch.remove_watch(addresses.dsn, args.org, spec))
    note("it is kept no longer, unless an automation starts from it")
    return 0


def _watched(args: argparse.Namespace, settings: Settings) -> int:
    from api.chain import watch

    with database(settings) as addresses:
        for each in asyncio.run(watch.list_watches(addresses.dsn, args.org)):
            say(f"{each.chain_id}\t{each.contract}\t{each.signature}\t{each.wallet_arg or ''}".rstrip())
    return 0
