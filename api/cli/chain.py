"""`workbench chain`: follow EVM nodes. Its actions watch further events, and show the state of each chain."""

import argparse

from api.chain import follow, watch
from api.cli import CommandError
from api.cli.database import process_database, run_on_database
from api.cli.errors import ORG, add_action, add_leash, note, option, say
from api.settings import Settings


def add_options(parser: argparse.ArgumentParser) -> None:
    add_leash(parser)
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(metavar="ACTION")
    event = (
        ORG,
        option("--chain", required=True, type=int, metavar="ID", help="chain id, like 1 or 8453"),
        option("--contract", required=True, metavar="ADDRESS"),
        option("--event", required=True, metavar="SIGNATURE", help='"Transfer(address,address,uint256)"'),
    )
    wallet = option("--wallet", metavar="PARAMETER", help="the parameter that contains the wallet of the contact")
    description = "keep the logs of a contract's event, even if no automation uses them"
    add_action(actions, "watch", add_watch, description, *event, wallet)
    add_action(actions, "unwatch", remove_watch, "stop keeping them; logs that are stored stay", *event)
    description = "show how far each chain has been read, and what prevents reading"
    add_action(actions, "status", show_status, description)
    add_action(actions, "dead", list_dead_logs, "list logs that could not be stored")
    add_action(actions, "watched", list_watches, "list the events that are watched", ORG)


def run(args: argparse.Namespace, settings: Settings) -> None:
    if not settings.evm_rpc:
        raise CommandError("WORKBENCH_EVM_RPC is not set; set it to the URLs of EVM nodes, separated by commas")
    with process_database(args, settings) as (urls, secret):
        follow.follow(settings.evm_rpc, urls.dsn, secret, settings.chain_contacts)


def show_status(_args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per chain; return 1 if a chain cannot be read."""
    chains = run_on_database(settings, follow.list_chains)
    for chain in chains:
        read_at = "never" if chain.read_at is None else chain.read_at.isoformat(timespec="seconds")
        position = f"read up to {chain.block_number}\thead {chain.head}\tlast new {read_at}"
        say(f"{chain.chain_id}\t{position}\t{chain.problem or 'ok'}")
    return int(any(chain.problem for chain in chains))


def list_dead_logs(_args: argparse.Namespace, settings: Settings) -> None:
    for log in run_on_database(settings, follow.list_dead_logs):
        position = f"{log.chain_id}\t{log.block_number}\t{log.tx_hash}:{log.log_index}"
        say(f"{log.organization}\t{position}\t{log.contract}\t{log.signature}\t{log.reason}")


def add_watch(args: argparse.Namespace, settings: Settings) -> None:
    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event, "walletArg": args.wallet}
    added = run_on_database(settings, watch.add_watch, args.org, spec)
    note(f"logs of {added.signature} of {added.contract} on chain {added.chain_id} are kept from now on")


def remove_watch(args: argparse.Namespace, settings: Settings) -> None:
    spec = {"chainId": args.chain, "contract": args.contract, "signature": args.event}
    run_on_database(settings, watch.remove_watch, args.org, spec)
    note("new logs are not kept, unless an automation starts from them")


def list_watches(args: argparse.Namespace, settings: Settings) -> None:
    for row in run_on_database(settings, watch.list_watches, args.org):
        say(f"{row.chain_id}\t{row.contract}\t{row.signature}\t{row.wallet_arg or ''}".rstrip())
