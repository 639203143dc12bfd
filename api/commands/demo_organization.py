"""The organization `demo` that `workbench up` prepares: its keys, kept in a private file, and its history.

The file is believed only as far as the database knows its keys, so a new database under an old data folder gets new ones.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from api.access import keys, orgs
from api.access.format import KINDS, Kind
from api.access.session import session
from api.commands import demo, private
from api.ingest.files.sources import How, find_sources
from api.ingest.history import import_history
from api.ingest.rejects import Rejects, beside
from api.keyring import Keyring
from api.settings import Settings
from api.store.checkup import has_events

NAME = "demo"


class DemoKeys(msgspec.Struct, frozen=True):
    """One key of each kind."""

    live: str
    test: str
    publishable: str
    workbench: str


def prepare(dsn: str, keyring: Keyring, settings: Settings, report: Callable[[str], None]) -> DemoKeys:
    """Make sure that the demo organization, its keys and its history are there; return the keys."""
    return asyncio.run(_prepare(dsn, keyring, settings.data_dir, report))


async def _prepare(dsn: str, keyring: Keyring, data_dir: Path, report: Callable[[str], None]) -> DemoKeys:
    org_id = await orgs.find(dsn, NAME)
    if org_id is None:
        org_id = await orgs.create(dsn, NAME)
    known = _read(data_dir / "demo-keys.json")
    made = DemoKeys(**{kind: await _usable(dsn, keyring, kind, known.get(kind)) for kind in KINDS})
    private.write(data_dir / "demo-keys.json", msgspec.json.encode(made).decode())
    await _import_history(dsn, keyring, org_id, data_dir, report)
    return made


def _read(path: Path) -> dict[str, str]:
    try:
        return msgspec.json.decode(private.read(path) or "{}", type=dict[str, str])
    except msgspec.DecodeError:
        return {}


async def _usable(dsn: str, keyring: Keyring, kind: Kind, key: str | None) -> str:
    row = await keys.find(dsn, keyring, key) if key is not None else None
    if key is not None and row is not None and row.revoked_at is None and row.expires_at is None and row.kind == kind:
        return key
    return await keys.create(dsn, keyring, NAME, kind, None, "workbench up")


async def _import_history(
    dsn: str, keyring: Keyring, org_id: int, data_dir: Path, report: Callable[[str], None]
) -> None:
    """Import the demo history into an organization without events; one that was broken off is begun again."""
    unfinished = data_dir / "demo-history.ndjson"
    async with session(dsn) as (tx, now):
        empty = not await has_events(tx, org_id)
    if not empty and not unfinished.exists():
        return
    report("importing 60 days of demo history …")
    demo.write_history(unfinished, now)
    sources, _ = find_sources([unfinished], How())
    with Rejects(beside(unfinished)) as rejects:
        await import_history(dsn, keyring, NAME, sources, rejects)
    unfinished.unlink()
