"""A backup: a folder with a dump of Postgres's own making and a manifest that says what is in it.

`workbench backup FOLDER`: everything in the database as of one moment, while everything goes on.

`workbench restore FOLDER`: a backup into a database in which nobody's data is.
"""

import argparse
import asyncio
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from api.cli import CommandError
from api.cli.database import DatabaseUrls, database, migrate, root_secret
from api.cli.errors import Subparsers, note, say
from api.settings import Settings, child_environment
from api.store.backup import split_password

DUMP, MANIFEST = "database.dump", "manifest.json"
_LEFT_OUT = (
    "POLICY ",  # name roles of the old server; the service makes them and their policies anew
    "EXTENSION - citus",  # a cluster has it already, and one Postgres does not need it
    "COMMENT - EXTENSION citus",
)
_SPREAD_FIRST = "ROW SECURITY "  # Citus spreads a table that holds rows by COPY, which row-level security refuses; it is forced after that


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """What a backup holds: since when, under which secret (only a fingerprint), and how many rows (`org/table`)."""

    format: int
    made_at: str
    secret: str
    rows: dict[str, int]


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup; raise CommandError when the folder is none."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise CommandError(f"{folder} is no backup: {error}") from error
    if manifest.format != 1 or not (folder / DUMP).is_file():
        raise CommandError(f"{folder} is no backup that this version knows")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest beside its dump."""
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest)))


def dump(settings: Settings, dsn: str, snapshot: str, file: Path) -> None:
    """Write everything that a snapshot shows into a file, compressed."""
    _run(
        settings,
        dsn,
        "pg_dump",
        "--format=custom",
        "--no-owner",
        "--no-acl",
        "--enable-row-security",  # which shows everything to who asks for it so
        f"--snapshot={snapshot}",
        f"--file={file}",
    )


def restore(settings: Settings, dsn: str, file: Path, *, spread: bool) -> None:
    """Bring back what is in a file, all or nothing; `spread`: Citus will spread it over a cluster."""
    left_out = (*_LEFT_OUT, _SPREAD_FIRST) if spread else _LEFT_OUT
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as chosen:
        contents = _list(settings, file)
        chosen.writelines(f"{line}\n" for line in contents if not _what(line).startswith(left_out))
        chosen.flush()
        ways = ("--no-owner", "--no-acl", "--exit-on-error", "--single-transaction", f"--use-list={chosen.name}")
        _run(settings, dsn, "pg_restore", *ways, str(file))


def _what(line: str) -> str:
    """Return what a line of the list says after its three numbers: the kind of thing, its schema and its name."""
    return "".join(line.split(maxsplit=3)[3:])


def _list(settings: Settings, file: Path) -> list[str]:
    return _done("pg_restore", [_program(settings, "pg_restore"), "--list", file], {}).splitlines()


def _run(settings: Settings, dsn: str, program: str, *arguments: str) -> str:
    """Run a program of Postgres on a database; the password goes by the environment, where no other user reads it."""
    address, password = split_password(dsn)
    known = {"PGOPTIONS": "-c workbench.org=*"} | ({} if password is None else {"PGPASSWORD": password})
    return _done(program, [_program(settings, program), *arguments, f"--dbname={address}"], known)


def _program(settings: Settings, name: str) -> Path:
    from api.embedded.cluster import locate
    from api.embedded.places import own_account

    return locate(settings.postgres_bin, own_account()).folder / name


def _done(name: str, command: list[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=child_environment(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{name} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def add_parser(subparsers: Subparsers) -> None:
    """Add `backup` and `restore`."""
    add_backup_parser(subparsers)
    add_restore_parser(subparsers)


def add_backup_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("backup", help="write everything in the database into a folder")
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    parser.set_defaults(run=run_backup)


def run_backup(args: argparse.Namespace, settings: Settings) -> int:
    """Write a backup; it is there when it is whole."""
    from api.crypto import Keyring

    folder: Path = args.folder
    if folder.exists():
        raise CommandError(f"{folder} exists already; name a new folder")
    secret = Keyring(root_secret(settings)).fingerprint()
    with database(settings) as addresses:
        rows = asyncio.run(_write(settings, addresses.dsn, secret, folder))
    say(f"{sum(rows.values()):,} rows in {folder}")
    note("Emails and keys open with the same WORKBENCH_SECRET alone, which is not in the backup: keep it elsewhere.")
    return 0


async def _write(settings: Settings, dsn: str, secret: str, folder: Path) -> dict[str, int]:
    from api.cli import database
    from api.store.backup import hold_snapshot

    part = database.make_folder(folder.with_name(f"{folder.name}.part"))
    async with hold_snapshot(dsn) as moment:
        await asyncio.to_thread(dump, settings, dsn, moment.snapshot, part / DUMP)
    write_manifest(part, Manifest(1, moment.at.isoformat(), secret, moment.rows))
    part.rename(folder)
    return moment.rows


def add_restore_parser(subparsers: Subparsers) -> None:
    """Describe the arguments."""
    parser = subparsers.add_parser("restore", help="bring a backup back, into an empty database")
    parser.add_argument("folder", type=Path, help="what `workbench backup` has written")
    parser.add_argument("--admin-dsn", metavar="URL", help="a superuser's address, as for `workbench migrate`")
    parser.set_defaults(run=run_restore)


def run_restore(args: argparse.Namespace, settings: Settings) -> int:
    """Restore, bring up to date, and count again; 1 when anything differs or contradicts itself."""
    from api.crypto import Keyring
    from api.store.backup import check_consistency, drop_schemas, is_citus, is_in_use

    manifest = read_manifest(args.folder)
    if not Keyring(root_secret(settings)).knows(manifest.secret):
        raise CommandError("the backup was made under another secret; set WORKBENCH_SECRET to that one")
    with database(settings) as addresses:
        if asyncio.run(is_in_use(addresses.dsn)):
            raise CommandError("there is data of organizations in this database; restore into an empty one")
        asyncio.run(drop_schemas(addresses.dsn))
        spread = asyncio.run(is_citus(addresses.dsn))
        restore(settings, addresses.dsn, args.folder / DUMP, spread=spread)
        migrate(DatabaseUrls(addresses.dsn, args.admin_dsn or addresses.admin_dsn))
        rows, contradictions = asyncio.run(check_consistency(addresses.dsn))
    wrong = [*_differences(manifest.rows, rows), *contradictions]
    for each in wrong:
        note(each)
    say(f"{sum(rows.values()):,} rows as of {manifest.made_at}; {len(wrong) or 'no'} contradictions")
    return 1 if wrong else 0


def _differences(wanted: dict[str, int], found: dict[str, int]) -> list[str]:
    names = sorted(wanted.keys() | found.keys())
    return [
        f"{name}: {found.get(name, 0)} rows instead of {wanted.get(name, 0)}"
        for name in names
        if found.get(name, 0) != wanted.get(name, 0)
    ]
