"""A backup: a folder with a dump of Postgres's own making and a manifest that says what is in it."""

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

from api.commands import CommandError
from api.settings import Settings, child_environment
from api.store.archive import apart

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
    address, password = apart(dsn)
    known = {"PGOPTIONS": "-c workbench.org=*"} | ({} if password is None else {"PGPASSWORD": password})
    return _done(program, [_program(settings, program), *arguments, f"--dbname={address}"], known)


def _program(settings: Settings, name: str) -> Path:
    from api.embedded.account import own_account
    from api.embedded.binaries import locate

    return locate(settings.postgres_bin, own_account()).folder / name


def _done(name: str, command: list[str | Path], environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, env=child_environment(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise CommandError(f"{name} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout
