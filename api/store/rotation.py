"""Steps of a rotation of the secret, each short and in a transaction of its caller's: the statements of `sql/queries/rotation.sql`.

A step takes a page of rows after an id or index, and returns the last one of it, None when there was nothing left. One that was done
already changes nothing, so a rotation that broke off begins anew.
"""

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from api.keyring import OrgKeys
from api.language.codec import decode, encode
from api.store.database import NAME, Transaction
from api.store.statements import load

_SQL = load("rotation")

Indexed = Literal["identities", "suppressions", "endpoints"]
Sealed = Literal["contacts", "events", "messages"]

KINDS: tuple[tuple[Indexed, int | str], ...] = (
    ("identities", 1),
    ("identities", 2),
    ("identities", 3),
    ("suppressions", "email"),
    ("endpoints", "webhook"),
)
"""Tables that are looked up by blind index, and the kinds of what is in them."""

SEALED: tuple[Sealed, ...] = ("contacts", "events", "messages")
FIRST = "00000000-0000-0000-0000-000000000000"
_MOST = 500  # rows of a step


class Org(msgspec.Struct, frozen=True):
    """An organization, and its keys."""

    id: int
    keys: OrgKeys


async def organizations(tx: Transaction) -> list[int]:
    """Return the ids of all organizations."""
    return [row[0] for row in await (await tx.execute(_SQL["list_organizations"])).fetchall()]


async def others(tx: Transaction, mark: str) -> int:
    """Return how many connections are of processes that hold the secrets in another way than those with `mark`."""
    row = await (await tx.execute(_SQL["other_generations"], {"name": NAME, "mark": mark})).fetchone()
    assert row is not None
    return int(row[0])


async def raise_indexes(
    tx: Transaction, after: str, *, org: Org, table: tuple[Indexed, int | str], number: int, drop: bool
) -> str | None:
    """Add to the next indexes of generation `number`, which lead, those of the one after it; with `drop`, those lead, and the former go."""
    name, kind = table
    scope = {"org_id": org.id, "kind": kind}
    page = scope | {"after": after, "end": _begin(number + 1), "most": _MOST}
    rows = await (await tx.execute(_SQL[f"find_{name}"], page)).fetchall()
    digests: list[str] = [row[0].replace("-", "") for row in rows]
    if not digests:
        return None
    risen = [org.keys.risen(each) for each in digests]
    await tx.execute(_SQL[f"raise_{name}"], scope | {"digests": digests, "risen": risen, "leads": not drop})
    if drop:
        await tx.execute(_SQL[f"drop_{name}"], scope | {"digests": digests})
    return digests[-1]


async def raise_conflicts(tx: Transaction, after: str, *, org: Org, number: int) -> str | None:
    """Give the next conflicts with indexes up to generation `number` those of the one after it."""
    page = {"org_id": org.id, "after": after, "end": _begin(number + 1), "most": _MOST}
    rows = await (await tx.execute(_SQL["find_conflicts"], page)).fetchall()
    if not rows:
        return None
    ids, new = [row[0] for row in rows], [org.keys.risen(row[1].replace("-", "")) for row in rows]
    await tx.execute(_SQL["change_conflicts"], {"org_id": org.id, "ids": ids, "new": new})
    return str(ids[-1])


async def seal_anew(tx: Transaction, after: str, *, org: Org, table: Sealed) -> str | None:
    """Seal the next emails of a table with the secret in use."""
    page = {"org_id": org.id, "after": after, "prefix": org.keys.email_prefix, "most": _MOST}
    rows = await (await tx.execute(_SQL[f"find_{table}"], page)).fetchall()
    if not rows:
        return None
    ids, old = zip(*rows, strict=True)
    new = [org.keys.resealed(each) for each in old]
    await tx.execute(_SQL[f"change_{table}"], {"org_id": org.id, "ids": [*ids], "old": [*old], "new": new})
    return str(ids[-1])


async def change_merges(
    tx: Transaction, after: str, *, org: Org, indexes: Callable[[str], Iterable[str]]
) -> str | None:
    """Seal anew what the next merges gained; `indexes` gives those to be kept of the index of an identifier that moved."""
    rows = await (await tx.execute(_SQL["find_merges"], {"org_id": org.id, "after": after, "most": _MOST})).fetchall()
    for merge_id, gained, identities in rows:
        moved = dict.fromkeys((kind, each) for kind, digest in decode(identities) for each in indexes(digest))
        changed = {"gained": org.keys.resealed(gained.decode()), "identities": encode(list(map(list, moved))).decode()}
        await tx.execute(_SQL["change_merge"], {"org_id": org.id, "id": merge_id, **changed})
    return str(rows[-1][0]) if rows else None


async def change_rest(tx: Transaction, org: Org, risen: Callable[[bytes], bytes | None]) -> None:
    """Seal the values of segments and the webhook secret anew; `risen` gives the later hash of an API key, None when it has it."""
    for segment_id, params in await (await tx.execute(_SQL["find_segments"], {"org_id": org.id})).fetchall():
        changed = org.keys.resealed(params.decode())
        await tx.execute(_SQL["change_segment"], {"org_id": org.id, "id": segment_id, "params": changed})
    for sealed in await (await tx.execute(_SQL["find_webhook_secrets"], {"org_id": org.id})).fetchall():
        secret, previous = [
            None if each is None else org.keys.seal_webhook_secret(org.keys.open_webhook_secret(each))
            for each in sealed
        ]
        values = {"org_id": org.id, "secret": secret, "previous": previous}
        await tx.execute(_SQL["change_webhook_secrets"], values)
    for key_id, key_hash in await (await tx.execute(_SQL["find_key_hashes"], {"org_id": org.id})).fetchall():
        if (later := risen(key_hash)) is not None:
            await tx.execute(_SQL["change_key_hash"], {"org_id": org.id, "id": key_id, "key_hash": later})


def _begin(number: int) -> str:
    """Return what no index of a generation before `number` reaches; those of the last one end with the last uuid."""
    return f"{number:x}{FIRST[1:]}" if number < 16 else FIRST.replace("0", "f")
