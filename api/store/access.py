"""Organizations, their API keys, and the rows that a rotation of the installation's secret rewrites.

The steps of a rotation are short; each runs in its own transaction. A step takes the next page of rows after an id or
index, and returns the last id or index of the page, None when nothing was left. Doing a page again changes nothing, so
a rotation that was interrupted starts over.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from api.crypto import OrgKeys
from api.store.database import APPLICATION_NAME, Transaction, load
from api.store.query import Uuid, query
from workbench.language.channel import CHANNELS
from workbench.language.codec import decode, encode

_SQL = load("access")


class KeyRow(msgspec.Struct, frozen=True):
    """An API key as stored: only the key's hash, never the key."""

    org_id: int
    org_name: str
    id: Uuid
    kind: str
    key_hash: bytes
    prefix: str
    last4: str
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    strict: bool = False


class StoredIdentifiers(msgspec.Struct, frozen=True):
    """The identifiers of a contact as stored: the email sealed."""

    org_id: int
    id: str
    email: str | None
    wallet_address: str | None
    external_id: str | None


@query
async def insert_organization(tx: Transaction, name: str, created_at: datetime) -> int | None:
    """Create an organization and return its id; None if the name is taken."""


@query
async def find_organization(tx: Transaction, name: str) -> int | None: ...


@query
async def find_timezone(tx: Transaction, org_id: int) -> str | None: ...


@query
async def set_timezone(tx: Transaction, org_id: int, timezone: str | None) -> None: ...


@query
async def list_organizations(tx: Transaction) -> list[int]: ...


@query
async def list_organization_names(tx: Transaction) -> dict[int, str]: ...


@query
async def has_organizations(tx: Transaction) -> bool: ...


@query
async def find_fingerprints(tx: Transaction) -> list[str]:
    """Return the fingerprints of the secrets that belong to this database."""


@query
async def insert_fingerprint(tx: Transaction, fingerprint: str) -> None:
    """Store the first fingerprint, unless another process stored its own first."""


@query
async def sample_contacts(tx: Transaction) -> list[StoredIdentifiers]: ...


@query
async def set_fingerprints(tx: Transaction, fingerprints: Sequence[str]) -> None: ...


@query
async def insert_key(tx: Transaction, key: KeyRow) -> None: ...


@query
async def find_keys(tx: Transaction, key_hashes: Sequence[bytes]) -> list[KeyRow]:
    """Return the keys that have one of the hashes, also expired and revoked ones."""


@query
async def find_key_by_id(tx: Transaction, key_id: Uuid) -> KeyRow | None: ...


@query
async def find_organization_key(tx: Transaction, org_id: int, key_id: Uuid) -> KeyRow | None: ...


@query
async def list_keys(tx: Transaction, org_id: int) -> list[KeyRow]:
    """Return all keys of an organization, oldest first."""


@query
async def expire_key(tx: Transaction, org_id: int, key_id: Uuid, expires_at: datetime) -> None:
    """Let a key expire at `expires_at`, or at its own earlier time."""


@query
async def revoke_key(tx: Transaction, org_id: int, key_id: Uuid, revoked_at: datetime) -> None:
    """Revoke a key; an earlier revocation stays on record."""


@query
async def set_strict(tx: Transaction, org_id: int, key_id: Uuid, strict: bool) -> None:
    """Let a key refuse events with unknown fields, or accept them."""


@query
async def touch_key(tx: Transaction, org_id: int, key_id: Uuid, used_at: datetime) -> None:
    """Record a use of a key, unless one within the last minute is on record."""


# --- Rotation of the secret

IndexedTable = Literal["identities", "suppressions", "endpoints"]
SealedTable = Literal["contacts", "events", "messages"]

INDEXED_TABLES: tuple[tuple[IndexedTable, int | str], ...] = (
    ("identities", 1),
    ("identities", 2),
    ("identities", 3),
    *(("suppressions", name) for name, channel in CHANNELS.items() if channel.unsubscribes),
    ("endpoints", "webhook"),
)
"""Tables that are looked up by blind index, with the kind or channel of their rows. Each pair has its own pages."""

SEALED_TABLES: tuple[SealedTable, ...] = ("contacts", "events", "messages")
FIRST_DIGEST = "00000000-0000-0000-0000-000000000000"
_PAGE = 500  # rows; each page is one short transaction, so that requests do not wait


class Org(msgspec.Struct, frozen=True):
    id: int
    keys: OrgKeys


@query
async def count_other_generations(tx: Transaction, mark: str, name: str = APPLICATION_NAME) -> int:
    """Count the connections of processes with other secrets than those of `mark`."""


async def rotate_indexes(
    tx: Transaction, after: str, *, org: Org, table: tuple[IndexedTable, int | str], number: int, drop: bool
) -> str | None:
    """Add the indexes of generation `number + 1` to the next rows that have one of generation `number`.

    Lookups use generation `number` until `drop`; with `drop` they use the later one, and the earlier indexes are
    removed.
    """
    name, kind = table
    scope = {"org_id": org.id, "kind": kind}
    page = scope | {"after": after, "end": _first_index(number + 1), "limit": _PAGE}
    rows = await (await tx.execute(_SQL[f"find_{name}"], page)).fetchall()
    digests: list[str] = [row[0].replace("-", "") for row in rows]
    if not digests:
        return None
    later = [org.keys.next_digest(digest) for digest in digests]
    # `leads`: until `drop`, lookups use the earlier index, so its owner is right where the two differ.
    await tx.execute(_SQL[f"rotate_{name}"], scope | {"digests": digests, "later": later, "leads": not drop})
    if drop:
        await tx.execute(_SQL[f"drop_{name}"], scope | {"digests": digests})
    return digests[-1]


async def rotate_conflict_indexes(tx: Transaction, after: str, *, org: Org, number: int) -> str | None:
    """Raise the indexes of the next conflicts by one generation, if they are of generation `number` or earlier."""
    page = {"org_id": org.id, "after": after, "end": _first_index(number + 1), "limit": _PAGE}
    rows = await (await tx.execute(_SQL["find_conflicts"], page)).fetchall()
    if not rows:
        return None
    ids, new = [row[0] for row in rows], [org.keys.next_digest(row[1].replace("-", "")) for row in rows]
    await tx.execute(_SQL["change_conflicts"], {"org_id": org.id, "ids": ids, "new": new})
    return str(ids[-1])


async def reseal_emails(tx: Transaction, after: str, *, org: Org, table: SealedTable) -> str | None:
    """Seal the next emails of a table with the current secret."""
    channels = [name for name, channel in CHANNELS.items() if channel.is_sealed]
    page = {"org_id": org.id, "after": after, "prefix": org.keys.email_prefix, "limit": _PAGE, "channels": channels}
    rows = await (await tx.execute(_SQL[f"find_{table}"], page)).fetchall()
    if not rows:
        return None
    ids, old = zip(*rows, strict=True)
    new = [org.keys.reseal(email) for email in old]
    # Requests write emails at the same time: only an email that still has its `old` text is overwritten.
    await tx.execute(_SQL[f"change_{table}"], {"org_id": org.id, "ids": [*ids], "old": [*old], "new": new})
    await tx.execute(_SQL["forget_watermarks"], {"org_id": org.id})
    return str(ids[-1])


async def reseal_changes(tx: Transaction, after: str, *, org: Org) -> str | None:
    """Seal the emails in the history of the next contacts with the current secret."""
    page = {"org_id": org.id, "after": after, "limit": _PAGE}
    rows = await (await tx.execute(_SQL["find_changed_emails"], page)).fetchall()
    if not rows:
        return None
    ids, moments, *values = zip(*rows, strict=True)
    old, new = [[text if text is None else org.keys.reseal(text) for text in column] for column in values]
    changed = {"org_id": org.id, "ids": [*ids], "moments": [*moments], "old": old, "new": new}
    await tx.execute(_SQL["write_changed_emails"], changed)
    return str(ids[-1])


async def reseal_merges(
    tx: Transaction, after: str, *, org: Org, indexes: Callable[[str], Iterable[str]]
) -> str | None:
    """Seal the emails in the next merge records with the current secret.

    `indexes` returns the indexes to keep for one index.
    """
    page = {"org_id": org.id, "after": after, "limit": _PAGE}
    rows = await (await tx.execute(_SQL["find_merges"], page)).fetchall()
    for merge_id, gained, identities in rows:
        moved = dict.fromkeys((kind, index) for kind, digest in decode(identities) for index in indexes(digest))
        changed = {"gained": org.keys.reseal(gained.decode()), "identities": encode(list(map(list, moved))).decode()}
        await tx.execute(_SQL["change_merge"], {"org_id": org.id, "id": merge_id, **changed})
    return str(rows[-1][0]) if rows else None


async def reseal_secrets(tx: Transaction, org: Org, later_hash: Callable[[bytes], bytes | None]) -> None:
    """Seal what is not an email with the current secret, and replace older hashes of API keys.

    `later_hash` returns the hash of the current generation for an older hash, and None for a current one.
    """
    scope = {"org_id": org.id}
    for segment_id, params in await (await tx.execute(_SQL["find_segments"], scope)).fetchall():
        changed = org.keys.reseal(params.decode())
        await tx.execute(_SQL["change_segment"], {"org_id": org.id, "id": segment_id, "params": changed})
    for schedule_id, recipients, sections in await (await tx.execute(_SQL["find_page_schedules"], scope)).fetchall():
        resealed = {"recipients": [*map(org.keys.reseal, recipients)], "sections": org.keys.reseal(sections.decode())}
        await tx.execute(_SQL["change_page_schedule"], {"org_id": org.id, "id": schedule_id, **resealed})
    for sealed_secrets in await (await tx.execute(_SQL["find_webhook_secrets"], {"org_id": org.id})).fetchall():
        secret, previous = [
            None if sealed is None else org.keys.seal_webhook_secret(org.keys.open_webhook_secret(sealed))
            for sealed in sealed_secrets
        ]
        values = {"org_id": org.id, "secret": secret, "previous": previous}
        await tx.execute(_SQL["change_webhook_secrets"], values)
    for name, sealed in await (await tx.execute(_SQL["find_connections"], {"org_id": org.id})).fetchall():
        secrets = org.keys.seal_connection(org.keys.open_connection(sealed, name), name)
        await tx.execute(_SQL["change_connection"], {"org_id": org.id, "name": name, "secrets": secrets})
    for key_id, key_hash in await (await tx.execute(_SQL["find_key_hashes"], {"org_id": org.id})).fetchall():
        if (later := later_hash(key_hash)) is not None:
            await tx.execute(_SQL["change_key_hash"], {"org_id": org.id, "id": key_id, "key_hash": later})


def _first_index(number: int) -> str:
    """Return the smallest index of a generation; for 16, the largest possible index."""
    # The first hexadecimal digit of an index is its generation, so there are generations 0 to 15.
    return f"{number:x}{FIRST_DIGEST[1:]}" if number < 16 else FIRST_DIGEST.replace("0", "f")
