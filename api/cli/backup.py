"""`workbench backup FOLDER` and `workbench restore FOLDER`.

A backup is a folder with a dump by pg_dump and a manifest. Both come from one snapshot, and the service keeps running:
the transaction that exports the snapshot for pg_dump also counts the rows for the manifest, so a restore can be
compared exactly. The folder gets its name when the backup is complete.

A restore requires a database without data of organizations. It loads the dump in one transaction, migrates the
database, counts the rows again and checks that the tables are consistent.
"""

import argparse
import asyncio
import subprocess
import tempfile
from pathlib import Path

import msgspec

from api import private_files
from api.cli import CommandError
from api.cli.database import DatabaseUrls, database, migrate, read_secret, root_secret, run_with_keyring
from api.cli.errors import add_database, note, say
from api.crypto import Keyring
from api.embedded.cluster import locate
from api.embedded.paths import own_account
from api.settings import Settings, child_environment
from api.store.backup import check_consistency, drop_schemas, hold_snapshot, is_citus, is_in_use, split_password

DUMP, MANIFEST = "database.dump", "manifest.json"
_FORMAT = 2  # 1: with a fingerprint of the secret that this code cannot compare
_OMITTED = (
    "POLICY ",  # policies name roles of the old server; the service creates roles and policies again
    "EXTENSION - citus",  # a cluster already has it, and a single Postgres does not need it
    "COMMENT - EXTENSION citus",
)
# Citus distributes a table that has rows with COPY, which row-level security refuses; migrations turn it on after that.
_OMITTED_ON_CITUS = "ROW SECURITY "


class Manifest(msgspec.Struct, frozen=True, rename="camel"):
    """The contents of a backup: its time, the fingerprint of the secret, and the number of rows by `org/table`."""

    format: int
    made_at: str
    secret: str
    rows: dict[str, int]


def add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a folder that does not exist yet")
    add_database(parser)
    parser.set_defaults(run=run_backup)


def add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, help="a folder that `workbench backup` has written")
    parser.add_argument("--admin-dsn", metavar="URL", help="URL for a superuser, as for `workbench migrate`")
    add_database(parser)
    parser.set_defaults(run=run_restore)


def run_backup(args: argparse.Namespace, settings: Settings) -> None:
    folder: Path = args.folder
    if folder.exists():
        raise CommandError(f"{folder} already exists; name a new folder")
    part = folder.with_name(f"{folder.name}.part")

    async def write(dsn: str, keyring: Keyring) -> dict[str, int]:
        private_files.make_folder(part)
        (part / DUMP).touch(mode=0o600)  # pg_dump would create it readable by all
        async with hold_snapshot(dsn) as moment:
            await asyncio.to_thread(dump, settings, dsn, moment.snapshot, part / DUMP)
        write_manifest(part, Manifest(_FORMAT, moment.at.isoformat(), keyring.fingerprint(), moment.rows))
        part.rename(folder)
        return moment.rows

    rows = run_with_keyring(settings, write)
    say(f"{sum(rows.values()):,} rows in {folder}")
    note("Emails and keys can be read only with this WORKBENCH_SECRET, which is not in the backup: keep it elsewhere.")


def run_restore(args: argparse.Namespace, settings: Settings) -> int:
    """Load a backup, migrate the database and check it; return 1 if a count differs or the data is not consistent."""
    manifest = read_manifest(args.folder)
    secret = read_secret(settings)
    if secret is None or Keyring(secret).fingerprint() != manifest.secret:
        raise CommandError("the backup was made with another secret; set WORKBENCH_SECRET to that secret")
    with database(settings) as urls:
        if asyncio.run(is_in_use(urls.dsn)):
            raise CommandError("this database contains data of organizations; restore into an empty database")
        asyncio.run(drop_schemas(urls.dsn))
        restore(settings, urls.dsn, args.folder / DUMP, citus=asyncio.run(is_citus(urls.dsn)))
        migrate(DatabaseUrls(urls.dsn, args.admin_dsn or urls.admin_dsn))
        root_secret(settings, urls.dsn)  # a backup of an earlier version has no fingerprint
        rows, contradictions = asyncio.run(check_consistency(urls.dsn))
    expected = manifest.rows
    problems = [
        f"{name}: {rows.get(name, 0)} rows instead of {expected.get(name, 0)}"
        for name in sorted(expected.keys() | rows.keys())
        if rows.get(name, 0) != expected.get(name, 0)
    ]
    problems += contradictions
    for problem in problems:
        note(problem)
    say(f"{sum(rows.values()):,} rows as of {manifest.made_at}; {len(problems) or 'no'} contradictions")
    return 1 if problems else 0


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a backup; raise CommandError if the folder does not contain a valid backup."""
    try:
        manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise CommandError(f"{folder} is not a backup: {error}") from error
    if manifest.format != _FORMAT:
        raise CommandError(
            f"{folder} is a backup of format {manifest.format}, and this version reads format {_FORMAT}; "
            "restore it with the version that made it"
        )
    if not (folder / DUMP).is_file():
        raise CommandError(f"{folder} is not a backup: it has no {DUMP}")
    return manifest


def write_manifest(folder: Path, manifest: Manifest) -> None:
    private_files.write(folder / MANIFEST, msgspec.json.format(msgspec.json.encode(manifest)).decode())


def dump(settings: Settings, dsn: str, snapshot: str, file: Path) -> None:
    """Write everything that is visible in a snapshot into a compressed file."""
    _run(
        settings,
        "pg_dump",
        "--format=custom",
        "--no-owner",
        "--no-acl",
        "--enable-row-security",  # otherwise pg_dump refuses; with workbench.org=* our policies show it all rows
        f"--snapshot={snapshot}",
        f"--file={file}",
        dsn=dsn,
    )


def restore(settings: Settings, dsn: str, file: Path, *, citus: bool) -> None:
    """Load a dump in one transaction; `citus` is True if the tables will be distributed over a cluster."""
    omitted = (*_OMITTED, _OMITTED_ON_CITUS) if citus else _OMITTED
    with tempfile.NamedTemporaryFile("w+", encoding="utf-8") as selection:
        for line in _run(settings, "pg_restore", "--list", file).splitlines():
            entry = "".join(
                line.split(maxsplit=3)[3:]
            )  # after three numbers: the kind of object, its schema and its name
            if not entry.startswith(omitted):
                selection.write(f"{line}\n")
        selection.flush()
        options = ("--no-owner", "--no-acl", "--exit-on-error", "--single-transaction", f"--use-list={selection.name}")
        _run(settings, "pg_restore", *options, file, dsn=dsn)


def _run(settings: Settings, program: str, *arguments: str | Path, dsn: str | None = None) -> str:
    """Run a program of Postgres, on a database if `dsn` is not None; return its output or raise CommandError."""
    command: list[str | Path] = [locate(settings.postgres_bin, own_account()).folder / program, *arguments]
    environment: dict[str, str | None] = {}
    if dsn is not None:
        address, password = split_password(dsn)
        command.append(f"--dbname={address}")
        environment = {"PGOPTIONS": "-c workbench.org=*"}
        if password is not None:
            environment["PGPASSWORD"] = password  # other users can read arguments, but not the environment
    result = subprocess.run(command, env=child_environment(environment), capture_output=True, text=True, check=False)
    if result.returncode:
        raise CommandError(f"{program} failed: {result.stderr.strip() or result.returncode}")
    return result.stdout
