"""`workbench doctor`: check everything this installation needs, and advise what to do about each problem.

No check starts or changes anything. A check returns findings; an error that a user can cause is a finding, too.
"""

import argparse
import asyncio
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from api.cli import CommandError, database, network
from api.cli.errors import Subparsers, explain, port, say
from api.crypto import ChainError, read_chain
from api.settings import Settings

if TYPE_CHECKING:
    from api.store.chain import ChainRow
    from api.store.database import MigrationStatus
    from api.store.migrate import ServerFacts


_MIN_PYTHON = (3, 11)
_ENGINE_SILENCE_S = 30.0  # an engine reports itself every few seconds
_PACKAGES = {
    "event-workbench-server": (
        "sanic",
        "psycopg",
        "psycopg_pool",
        "sqlalchemy",
        "pyarrow",
        "cryptography",
        "websockets",
    ),
    "event-workbench[notebook]": ("anywidget", "ipywidgets", "polars"),
    "event-workbench[lab]": ("jupyterlab",),
}


def add_parser(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser("doctor", help="explain what is wrong with this installation")
    parser.add_argument("--port", type=port, default=8000, help="port of the API (default %(default)s)")
    parser.add_argument("--lab-port", type=port, default=8888, help="port of JupyterLab (default %(default)s)")
    parser.add_argument("--data-dir", type=Path, help="folder of data and logs (default .workbench)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per check; return 1 when one failed."""
    failed = False
    for finding in every_check(settings, args.port, args.lab_port):
        failed = failed or finding.verdict == "fail"
        say(f"{finding.verdict:<4}  {finding.message}" + (f"\n      {finding.advice}" if finding.advice else ""))
    return 1 if failed else 0


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, with advice if it is not "ok"."""

    verdict: Literal["ok", "warn", "fail"]
    message: str
    advice: str = ""


def every_check(settings: Settings, port: int, lab_port: int) -> Iterator[Finding]:
    """Yield the findings; a check comes after the checks that it depends on."""
    yield _python()
    yield from _extras()
    yield _data_dir(settings)
    yield _secret(settings)
    yield from _database(settings)
    yield from _processes(port, lab_port)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _MIN_PYTHON:
        return Finding("fail", f"Python {version}", "use Python 3.11 or newer")
    return Finding("ok", f"Python {version}")


def _extras() -> Iterator[Finding]:
    for distribution, packages in _PACKAGES.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if not missing:
            yield Finding("ok", f"{distribution} is installed")
            continue
        message = f"{distribution} is not completely installed (missing: {', '.join(missing)})"
        yield Finding("fail" if "server" in distribution else "warn", message, f"pip install '{distribution}'")


def _data_dir(settings: Settings) -> Finding:
    folder = settings.data_dir
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK):
            return Finding("ok", f"data folder {folder} does not exist yet; it can be created")
        return Finding("fail", f"data folder {folder} cannot be created", "choose another with WORKBENCH_DATA_DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("fail", f"data folder {folder} is not writable", "choose another with WORKBENCH_DATA_DIR")
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return Finding("warn", f"data folder {folder} is accessible to other users", f"chmod 700 {folder}")
    return Finding("ok", f"data folder {folder} has private permissions")


def _secret(settings: Settings) -> Finding:
    if settings.secret is not None:
        return _rotation(settings.secret) or Finding("ok", "the secret comes from WORKBENCH_SECRET")
    file = settings.data_dir / "secret"
    try:
        secret = database.read(file)
    except CommandError as error:
        return Finding("fail", str(error))
    if secret is None:
        return Finding("ok", "no secret yet; the first command creates one in the data folder")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        return Finding("fail", f"the secret {file} is readable by other users", f"chmod 600 {file}")
    return _rotation(secret.strip()) or Finding(
        "ok", f"the secret is in {file}; keep a copy: without it, stored emails cannot be decrypted"
    )


def _rotation(secret: str) -> Finding | None:
    """Return a finding for an invalid secret or an unfinished rotation, otherwise None."""
    try:
        part = read_chain(secret).part
    except ChainError as error:
        return Finding("fail", str(error))
    if part == "settled":
        return None
    return Finding(
        "warn",
        "a rotation of the secret is not finished",
        "continue with: workbench secret rotate; see docs/security.md",
    )


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        dsn = settings.database_url
        if dsn is None:
            findings, dsn = _embedded(settings)
            yield from findings
        if dsn is not None:
            yield from asyncio.run(_server(dsn))
            if settings.read_url is not None:
                yield asyncio.run(_replica(dsn, settings.read_url))
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        yield Finding(
            "fail", message, "check DATABASE_URL, and that Postgres is running" if settings.database_url else ""
        )


def _embedded(settings: Settings) -> tuple[list[Finding], str | None]:
    """Return findings about the embedded server, and its DSN if it is running."""
    from api import embedded
    from api.embedded import cluster
    from api.embedded.places import own_account

    server = embedded.find(settings.data_dir)
    if server is not None:
        return [Finding("ok", f"embedded Postgres {server.version} is running")], server.dsn
    binaries = cluster.locate(settings.postgres_bin, own_account())
    return [
        Finding("ok", f"Postgres {binaries.version} found in {binaries.folder}"),
        Finding("warn", "embedded Postgres is not running", "start everything with: workbench up"),
    ], None


async def _server(dsn: str) -> list[Finding]:
    from api.auth.keys import session
    from api.store.chain import list_chains
    from api.store.migrate import read_migration_status, read_server, seconds_since_engine

    async with session(dsn) as (tx, _):
        facts = await read_server(tx)
    findings = [_version(facts), _durability(facts), _server_log(facts.logs_errors), *_roles(facts)]
    migrations = await read_migration_status(dsn)
    findings.extend(_schema(migrations))
    if migrations.missing:  # the tables of the checks below may not exist
        return findings
    async with session(dsn) as (tx, now):
        return [*findings, _engine(await seconds_since_engine(tx)), *map(_chain, await list_chains(tx, now))]


async def _replica(dsn: str, read_url: str) -> Finding:
    from api.store.analyst import QuerySource, ReplicaError
    from api.store.database import Database

    primary, standby = Database(dsn, size=1), Database(read_url, size=1)
    await primary.open()
    await standby.open()
    try:
        await QuerySource(primary, standby).current()
    except ReplicaError as error:
        return Finding("fail", str(error), "check WORKBENCH_READ_URL, and pg_stat_replication on the primary")
    finally:
        await standby.close()
        await primary.close()
    return Finding("ok", "the read replica is up to date")


def _schema(migrations: "MigrationStatus") -> Iterator[Finding]:
    if migrations.missing:
        yield Finding("fail", f"migrations missing: {', '.join(migrations.missing)}", "run: workbench migrate")
    elif migrations.beyond:
        message = f"the database is newer than this version of the code ({', '.join(migrations.beyond)})"
        yield Finding("fail", message, "install the version that migrated it, or a newer one")
    else:
        yield Finding("ok", "the database is up to date")
    if migrations.contracts:
        message = f"objects that only older versions use still exist ({', '.join(migrations.contracts)})"
        yield Finding("warn", message, "once no older version is running: workbench migrate --contract")


def _version(facts: "ServerFacts") -> Finding:
    major, minor = divmod(facts.version, 10_000)
    if facts.too_old is not None:
        return Finding("fail", f"the database is Postgres {major}", facts.too_old)
    return Finding("ok", f"the database is reachable; Postgres {major}.{minor}")


def _durability(facts: "ServerFacts") -> Finding:
    if off := facts.switched_off:
        message = f"{' and '.join(off)} off: an accepted event may be lost when the machine fails"
        return Finding("fail", message, "turn on in postgresql.conf: " + ", ".join(off))
    return Finding("ok", "commits are flushed to disk (fsync, synchronous_commit, full_page_writes)")


def _server_log(logs_errors: bool) -> Finding:
    if not logs_errors:
        return Finding("ok", "the Postgres log does not contain event data")
    advice = "log_min_messages = log, log_min_error_statement = panic; see docs/operations.md"
    return Finding("warn", "the Postgres log records errors, and their texts can contain event data", advice)


def _roles(facts: "ServerFacts") -> Iterator[Finding]:
    if facts.may_create_roles:
        yield Finding("ok", "the application role can create the login roles of analysts")
    else:
        message = "the application role cannot create roles, which SQL access for analysts requires"
        yield Finding("fail", message, "ALTER ROLE … CREATEROLE")
    if facts.bypasses_rls:
        message = "row-level security does not apply to the application role, so only application code separates organizations"
        yield Finding("warn", message, "ALTER ROLE … NOSUPERUSER NOBYPASSRLS")


def _engine(silent_seconds: float | None) -> Finding:
    if silent_seconds is None:
        return Finding(
            "warn", "no engine has run on this database yet", "start one: workbench engine, or everything: workbench up"
        )
    if silent_seconds > _ENGINE_SILENCE_S:
        return Finding(
            "warn",
            f"no engine has run for {silent_seconds:.0f} s; automations are not processed",
            "start one: workbench engine",
        )
    return Finding("ok", "an engine is running")


def _chain(chain: "ChainRow") -> Finding:
    if chain.trouble is not None:
        return Finding("warn", f"chain {chain.chain_id}: {chain.trouble}", "see: workbench chain status")
    return Finding("ok", f"chain {chain.chain_id} has been read up to block {chain.block_number}")


def _processes(port: int, lab_port: int) -> Iterator[Finding]:
    ready = network.status(port, "/readyz")
    if ready == 200:
        yield Finding("ok", f"the API is ready on port {port}")
    elif ready is not None:
        yield Finding("fail", f"/readyz on port {port} returned {ready}", "see the logs in the data folder")
    elif network.is_free("127.0.0.1", port):
        yield Finding("warn", f"the API is not running; port {port} is free", "start everything with: workbench up")
    else:
        yield Finding("fail", f"port {port} is used by another program", "stop it, or use: workbench up --port N")
    if network.status(lab_port, "/api") == 200:
        yield Finding("ok", f"JupyterLab is running on port {lab_port}")
    elif network.is_free("127.0.0.1", lab_port):
        yield Finding(
            "warn", f"JupyterLab is not running; port {lab_port} is free", "start everything with: workbench up"
        )
    else:
        yield Finding(
            "fail", f"port {lab_port} is used by another program", "stop it, or use: workbench up --lab-port N"
        )
