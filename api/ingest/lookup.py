"""Asking the store who owns the identifiers of a batch: mostly one per event, for contacts that come back as they were."""

from collections.abc import Collection, Sequence

from api.ingest.arrival import Arrival
from api.ingest.directory import Directory
from api.language.identity import Key
from api.store.calls import Call, run
from api.store.database import Transaction
from api.store.ingest import Owner, find_owners
from api.store.locks import hold_contacts, hold_identifiers


def ask(arrivals: list[Arrival]) -> Call[list[Owner]]:
    """Ask who owns the leading identifier of each arrival, and whether they have its attributes already."""
    leading = [each.keys[0] for each in arrivals]
    return find_owners(
        [each.org_id for each in arrivals],
        [key[0] for key in leading],
        [key[1] for key in leading],
        [each.attributes for each in arrivals],
    )


def ask_for(keys: list[tuple[int, Key]]) -> Call[list[Owner]]:
    """Ask who owns (organization, identifier)s."""
    org_ids, kinds, digests = [org_id for org_id, _ in keys], [key[0] for _, key in keys], [key[1] for _, key in keys]
    return find_owners(org_ids, kinds, digests, [""] * len(keys))


async def look_up(tx: Transaction, arrivals: list[Arrival]) -> Directory:
    """Return what the store knows of the identifiers of `arrivals`."""
    directory = Directory(arrivals)
    leading = list(dict.fromkeys((each.org_id, each.keys[0]) for each in arrivals))
    directory.learn(await _owners(tx, leading), leading)
    if unclear := directory.unclear(arrivals):
        directory.learn(await _owners(tx, unclear), unclear)
    return directory


async def _owners(tx: Transaction, keys: list[tuple[int, Key]]) -> list[Owner]:
    (owners,) = await run(tx, ask_for(keys))
    return owners


def all_keys(arrivals: Sequence[Arrival]) -> list[tuple[int, Key]]:
    """Return (organization, key) of every identifier of `arrivals`, once each."""
    return list(dict.fromkeys((each.org_id, key) for each in arrivals for key in each.keys))


async def place_strangers(
    tx: Transaction,
    directory: Directory,
    fresh: Sequence[Arrival],
    strangers: Sequence[Arrival],
    written: Collection[str],
    at_us: int,
) -> None:
    """Give the strangers among `fresh` their contacts under locks: new ones, and contacts that gain or lose identifiers.

    `written`: the contacts that will be written besides. Their locks are taken at once with those of the owners.
    """
    await learn_owners(tx, directory, strangers, written)
    directory.place(directory.involved(fresh), at_us)


async def learn_owners(
    tx: Transaction, directory: Directory, strangers: Sequence[Arrival], written: Collection[str]
) -> None:
    """Let the directory know who owns what strangers sent, under the locks of that, of the owners and of `written`."""
    keys = all_keys(strangers)
    _, owners = await run(tx, hold_identifiers(keys), ask_for(keys))
    if owners:
        _, owners = await run(tx, hold_contacts({*written, *(each.contact_id for each in owners)}), ask_for(keys))
    directory.learn(owners, keys)
