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
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal

import msgspec

from api.cli import CommandError, network
from api.cli.database import MISMATCH_ADVICE, read_secret
from api.cli.errors import PACKAGES, add_database, explain, port, say
from api.crypto import ChainError, Keyring, read_chain
from api.private_files import PrivateFileError
from api.settings import Settings

if TYPE_CHECKING:
    from api.store.database import Transaction
    from api.store.migrate import ServerFacts


_MIN_PYTHON = (3, 11)
_OLD_TRANSACTION = timedelta(minutes=15)
_ERASURE_TIME = timedelta(minutes=30)  # docs/parts.md
_ENGINE_SILENCE_S = 30.0  # an engine reports itself every few seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    running = "default: that of the running `workbench up`"
    parser.add_argument("--port", type=port, help=f"port of the API ({running})")
    parser.add_argument("--lab-port", type=port, help=f"port of JupyterLab ({running})")
    add_database(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace, settings: Settings) -> int:
    """Print one line per check; return 1 when one failed."""
    failed = False
    api_port, lab_port = network.ports_of(settings.data_dir)
    for finding in run_checks(settings, args.port or api_port, args.lab_port or lab_port):
        failed = failed or finding.verdict == "fail"
        say(f"{finding.verdict:<4}  {finding.message}" + (f"\n      {finding.advice}" if finding.advice else ""))
    return 1 if failed else 0


class Finding(msgspec.Struct, frozen=True):
    """The result of one check, with advice if it is not "ok"."""

    verdict: Literal["ok", "warn", "fail"]
    message: str
    advice: str = ""


def run_checks(settings: Settings, port: int, lab_port: int) -> Iterator[Finding]:
    """Yield the findings of all checks; a check comes after the checks that it depends on."""
    yield from check_packages()
    yield check_data_dir(settings)
    yield check_secret(settings)
    yield from check_database(settings)
    yield from check_processes(port, lab_port)


def check_packages() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _MIN_PYTHON:
        yield Finding("fail", f"Python {version}", "use Python 3.11 or newer")
    else:
        yield Finding("ok", f"Python {version}")
    for distribution, packages in PACKAGES.items():
        if distribution.endswith("[otel]"):  # needed only to send spans
            continue
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            # The server does not run without its packages; notebooks and Lab may run on another machine.
            verdict: Literal["fail", "warn"] = "fail" if "server" in distribution else "warn"
            message = f"{distribution} is not completely installed (missing: {', '.join(missing)})"
            yield Finding(verdict, message, f"pip install '{distribution}'")
        else:
            yield Finding("ok", f"{distribution} is installed")


def check_data_dir(settings: Settings) -> Finding:
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


def check_secret(settings: Settings) -> Finding:
    """Check that the secret is private and valid, and that no rotation is unfinished."""
    file = settings.data_dir / "secret"
    message = "the secret comes from WORKBENCH_SECRET"
    try:
        secret = read_secret(settings)
        if secret is None and settings.database_url is None and (settings.data_dir / "postgres").exists():
            advice = "restore the file from your copy, unless the database has no organization yet"
            return Finding("warn", f"the secret {file} is missing", advice)
        if secret is None:
            return Finding("ok", "no secret yet; one is created in the data folder unless the database has data")
        phase = read_chain(secret).part
    except (PrivateFileError, CommandError, ChainError) as error:
        return Finding("fail", str(error))
    if settings.secret is None:
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            return Finding("fail", f"the secret {file} is readable by other users", f"chmod 600 {file}")
        message = f"the secret is in {file}; keep a copy: without it, stored emails cannot be decrypted"
    if phase != "settled":
        advice = "continue with: workbench secret rotate; see docs/security.md"
        return Finding("warn", "a rotation of the secret is not finished", advice)
    return Finding("ok", message)


def check_database(settings: Settings) -> Iterator[Finding]:
    """Check the server, its migrations, the engine, the chains and the read replica."""
    try:
        dsn = settings.database_url
        if dsn is None:
            from api import embedded
            from api.embedded import cluster, paths

            server = embedded.find(settings.data_dir)
            if server is None:
                binaries = cluster.locate(settings.postgres_bin, paths.own_account())
                yield Finding("ok", f"Postgres {binaries.version} found in {binaries.folder}")
                yield Finding("warn", "embedded Postgres is not running", "start everything with: workbench up")
                return
            yield Finding("ok", f"embedded Postgres {server.version} is running")
            dsn = server.dsn
        yield from asyncio.run(check_server(dsn, settings))
        if settings.read_url is not None:
            yield asyncio.run(check_replica(dsn, settings.read_url))
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        advice = "check DATABASE_URL, and that Postgres is running" if settings.database_url else ""
        yield Finding("fail", message, advice)


async def check_server(dsn: str, settings: Settings) -> list[Finding]:
    from api.auth.keys import operator_transaction
    from api.store.access import find_fingerprints, has_organizations
    from api.store.chain import list_chains
    from api.store.migrate import read_migration_status, read_server, seconds_since_engine

    async with operator_transaction(dsn) as (tx, _):
        findings = [*_describe_server(await read_server(tx))]
    migrations = await read_migration_status(dsn)
    if migrations.missing:
        message = f"migrations missing: {', '.join(migrations.missing)}"
        findings.append(Finding("fail", message, "run: workbench migrate"))
    elif migrations.beyond:
        message = f"the database is newer than this version of the code ({', '.join(migrations.beyond)})"
        findings.append(Finding("fail", message, "install the version that migrated it, or a newer one"))
    else:
        findings.append(Finding("ok", "the database is up to date"))
    if migrations.contracts:
        message = f"objects that only older versions use still exist ({', '.join(migrations.contracts)})"
        findings.append(Finding("warn", message, "once no older version is running: workbench migrate --contract"))
    if migrations.missing:  # the tables of the checks below may not exist
        return findings
    async with operator_transaction(dsn) as (tx, now):
        if await has_organizations(tx):
            findings.append(check_fingerprint(settings, await find_fingerprints(tx)))
        silent_s = await seconds_since_engine(tx)
        if silent_s is None:
            advice = "start one: workbench engine, or everything: workbench up"
            findings.append(Finding("warn", "no engine has run on this database yet", advice))
        elif silent_s > _ENGINE_SILENCE_S:
            message = f"no engine has run for {silent_s:.0f} s; automations are not processed"
            findings.append(Finding("warn", message, "start one: workbench engine"))
        else:
            findings.append(Finding("ok", "an engine is running"))
        for chain in await list_chains(tx, now):
            if chain.problem is not None:
                message = f"chain {chain.chain_id}: {chain.problem}"
                findings.append(Finding("warn", message, "see: workbench chain status"))
            else:
                message = f"chain {chain.chain_id} has been read up to block {chain.block_number}"
                findings.append(Finding("ok", message))
        findings += await check_parts(settings, tx, now)
    return findings


async def check_parts(settings: Settings, tx: "Transaction", now: datetime) -> list[Finding]:
    """Check that parts are built, that no old transaction keeps events out of them, and that erased ones leave them."""
    from api.store.database import is_distributed
    from api.store.parts import find_held_event, find_oldest_open, find_oldest_transaction, find_overdue, list_progress

    progress = await list_progress(tx)
    if await is_distributed(tx):
        return [Finding("ok", "there are no parts on Citus; reports read events from the database")]
    findings = []
    overdue_since = await find_overdue(tx)
    if overdue_since is not None and now - overdue_since > _ERASURE_TIME:
        message = f"files of parts should have been deleted or rewritten since {_seconds(overdue_since)}"
        findings.append(Finding("warn", message, "start an engine where they are; see: workbench parts status"))
    if not settings.parts:
        off = "parts are switched off (WORKBENCH_PARTS); reports read events from the database"
        return findings or [Finding("ok", off)]
    findings += [
        Finding(
            "warn", f"parts of organization {row.org_id} were not built: {row.problem}", "see: workbench parts status"
        )
        for row in progress
        if row.problem is not None
    ]
    if progress:
        oldest, _ = await find_oldest_open(tx)
        held_since = await find_held_event(tx, oldest)
        if held_since is not None and now - held_since > _OLD_TRANSACTION:
            opened_at = await find_oldest_transaction(tx)
            reason = "a transaction is open" if opened_at is None else f"one has been open since {_seconds(opened_at)}"
            message = f"events stored since {_seconds(held_since)} wait for older transactions to end: {reason}"
            findings.append(Finding("warn", message, "end it: it is in pg_stat_activity or pg_prepared_xacts"))
    return findings or [Finding("ok", f"{len(progress)} organizations have parts")]


def _seconds(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds")


def _describe_server(facts: "ServerFacts") -> Iterator[Finding]:
    major, minor = divmod(facts.version, 10_000)
    if facts.too_old is not None:
        yield Finding("fail", f"the database is Postgres {major}", facts.too_old)
    else:
        yield Finding("ok", f"the database is reachable; Postgres {major}.{minor}")
    if off := facts.switched_off:
        message = f"{' and '.join(off)} off: an accepted event may be lost when the machine fails"
        yield Finding("fail", message, "turn on in postgresql.conf: " + ", ".join(off))
    else:
        yield Finding("ok", "commits are flushed to disk (fsync, synchronous_commit, full_page_writes)")
    if facts.logs_errors:
        message = "the Postgres log records errors, and their texts can contain event data"
        advice = "log_min_messages = log, log_min_error_statement = panic; see docs/operations.md"
        yield Finding("warn", message, advice)
    else:
        yield Finding("ok", "the Postgres log does not contain event data")
    if facts.may_create_roles:
        yield Finding("ok", "the application role can create the login roles of analysts")
    else:
        message = "the application role cannot create roles, which SQL access for analysts requires"
        yield Finding("fail", message, "ALTER ROLE … CREATEROLE")
    if facts.bypasses_rls:
        message = "row-level security does not apply to the application role; only code separates organizations"
        yield Finding("warn", message, "ALTER ROLE … NOSUPERUSER NOBYPASSRLS")


def check_fingerprint(settings: Settings, fingerprints: list[str]) -> Finding:
    """Check that the secret is one of those that belong to the database."""
    try:
        secret = read_secret(settings)
        is_own = secret is not None and (not fingerprints or Keyring(secret).fingerprint() in fingerprints)
    except (PrivateFileError, CommandError, ChainError):
        is_own = False
    if not is_own:
        message = "the secret is missing, or it is not the secret of this database"
        return Finding("fail", message, MISMATCH_ADVICE)
    return Finding("ok", "the secret belongs to this database")


async def check_replica(dsn: str, read_url: str) -> Finding:
    from api.store.analyst import QuerySource, ReplicaError
    from api.store.database import Database

    try:
        async with Database(dsn, size=1) as primary, Database(read_url, size=1) as standby:
            await QuerySource(primary, standby).current()
    except ReplicaError as error:
        return Finding("fail", str(error), "check WORKBENCH_READ_URL, and pg_stat_replication on the primary")
    return Finding("ok", "the read replica is up to date")


def check_processes(port: int, lab_port: int) -> Iterator[Finding]:
    start = "start everything with: workbench up"
    ready = network.status(port, "/readyz")
    if ready == 200:
        yield Finding("ok", f"the API is ready on port {port}")
    elif ready is not None:
        yield Finding("fail", f"/readyz on port {port} returned {ready}", "see the logs in the data folder")
    elif network.is_free("127.0.0.1", port):
        yield Finding("warn", f"the API is not running; port {port} is free", start)
    else:
        yield Finding("fail", f"port {port} is used by another program", "stop it, or use: workbench up --port N")
    if network.status(lab_port, "/api") == 200:
        yield Finding("ok", f"JupyterLab is running on port {lab_port}")
    elif network.is_free("127.0.0.1", lab_port):
        yield Finding("warn", f"JupyterLab is not running; port {lab_port} is free", start)
    else:
        yield Finding(
            "fail", f"port {lab_port} is used by another program", "stop it, or use: workbench up --lab-port N"
        )
