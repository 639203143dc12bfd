"""The checks of `workbench doctor`; each returns findings and raises nothing. Nothing is started or changed."""

import asyncio
import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from api.commands import CommandError, http, ports, private
from api.commands.explain import explain
from api.keychain import ChainError, read_chain
from api.settings import Settings

if TYPE_CHECKING:
    from api.store.checkup import ServerFacts
    from api.store.logs import ChainRow
    from api.store.migrations import Standing

_OLDEST_PYTHON = (3, 11)
_ENGINE_SILENT_SECONDS = 30.0
_EXTRAS = {
    "server": ("sanic", "psycopg", "psycopg_pool", "sqlalchemy", "pyarrow", "cryptography", "websockets"),
    "lab": ("jupyterlab",),
}


class Finding(msgspec.Struct, frozen=True):
    """What was found, and what to do about it."""

    verdict: Literal["ok", "warn", "fail"]
    what: str
    advice: str = ""


def every_check(settings: Settings, port: int, lab_port: int) -> Iterator[Finding]:
    """Give the findings one by one, the ground first."""
    yield _python()
    yield from _extras()
    yield _data_dir(settings)
    yield _secret(settings)
    yield from _database(settings)
    yield from _processes(port, lab_port)


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < _OLDEST_PYTHON:
        return Finding("fail", f"Python {version}", "use Python 3.11 or newer")
    return Finding("ok", f"Python {version}")


def _extras() -> Iterator[Finding]:
    for extra, packages in _EXTRAS.items():
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if not missing:
            yield Finding("ok", f"extra {extra} is installed")
            continue
        what = f"extra {extra} is not installed (missing: {', '.join(missing)})"
        yield Finding("fail" if extra == "server" else "warn", what, f"pip install 'event-workbench[{extra}]'")


def _data_dir(settings: Settings) -> Finding:
    folder = settings.data_dir
    if not folder.exists():
        parent = next(path for path in folder.parents if path.exists())
        if os.access(parent, os.W_OK):
            return Finding("ok", f"data folder {folder} does not exist yet and can be made")
        return Finding("fail", f"data folder {folder} cannot be made", "choose another with WORKBENCH_DATA_DIR")
    if not os.access(folder, os.W_OK | os.X_OK):
        return Finding("fail", f"data folder {folder} cannot be written", "choose another with WORKBENCH_DATA_DIR")
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        return Finding("warn", f"data folder {folder} can be entered by other users", f"chmod 700 {folder}")
    return Finding("ok", f"data folder {folder} is ours alone")


def _secret(settings: Settings) -> Finding:
    if settings.secret is not None:
        return _rotated(settings.secret) or Finding("ok", "the secret comes from WORKBENCH_SECRET")
    file = settings.data_dir / "secret"
    try:
        known = private.read(file)
    except CommandError as error:
        return Finding("fail", str(error))
    if known is None:
        return Finding("ok", "no secret yet; the first command makes one in the data folder")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        return Finding("fail", f"the secret {file} can be read by other users", f"chmod 600 {file}")
    kept = Finding("ok", f"the secret is in {file}; keep a copy, without it emails cannot be read again")
    return _rotated(known.strip()) or kept


def _rotated(secret: str) -> Finding | None:
    """Return what is to say of a secret that is being replaced."""
    try:
        part = read_chain(secret).part
    except ChainError as error:
        return Finding("fail", str(error))
    if part == "settled":
        return None
    return Finding("warn", "the secret is being replaced", "go on with: workbench secret rotate; see docs/security.md")


def _database(settings: Settings) -> Iterator[Finding]:
    try:
        dsn = settings.database_url
        if dsn is None:
            found = list(_embedded(settings))
            yield from (finding for finding, _ in found)
            dsn = found[-1][1]
        if dsn is not None:
            yield from asyncio.run(_ask(dsn))
            if settings.read_url is not None:
                yield asyncio.run(_replica(dsn, settings.read_url))
    except Exception as error:
        sentence = explain(error)
        if sentence is None:
            raise
        yield Finding("fail", sentence, "check DATABASE_URL and that Postgres runs" if settings.database_url else "")


def _embedded(settings: Settings) -> Iterator[tuple[Finding, str | None]]:
    from api import embedded
    from api.embedded import binaries
    from api.embedded.account import own_account

    server = embedded.find(settings.data_dir)
    if server is not None:
        yield Finding("ok", f"embedded Postgres {server.version} is running"), server.dsn
        return
    found = binaries.locate(settings.postgres_bin, own_account())
    yield Finding("ok", f"Postgres {found.version} found in {found.folder}"), None
    yield Finding("warn", "embedded Postgres is not running", "start everything with: workbench up"), None


async def _ask(dsn: str) -> list[Finding]:
    from api.access.session import session
    from api.store.checkup import engine_seen, read_server
    from api.store.logs import list_chains
    from api.store.migrate import stand

    async with session(dsn) as (tx, _):
        facts = await read_server(tx)
    findings = [_version(facts), _durability(facts), _server_log(facts.logs_errors), *_roles(facts)]
    found = await stand(dsn)
    findings.extend(_schema(found))
    if found.missing:
        return findings
    async with session(dsn) as (tx, now):
        return [*findings, _engine(await engine_seen(tx)), *map(_chain, await list_chains(tx, now))]


async def _replica(dsn: str, read_url: str) -> Finding:
    from api.store.database import Database
    from api.store.replica import ReplicaError, Source

    primary, standby = Database(dsn, size=1), Database(read_url, size=1)
    await primary.open()
    await standby.open()
    try:
        await Source(primary, standby).current()
    except ReplicaError as error:
        return Finding("fail", str(error), "check WORKBENCH_READ_URL, and pg_stat_replication on the primary")
    finally:
        await standby.close()
        await primary.close()
    return Finding("ok", "the read replica follows")


def _schema(found: "Standing") -> Iterator[Finding]:
    if found.missing:
        yield Finding("fail", f"migrations missing: {', '.join(found.missing)}", "run: workbench migrate")
    elif found.beyond:
        what = f"the database is newer than this code ({', '.join(found.beyond)})"
        yield Finding("fail", what, "install the version that migrated it, or a newer one")
    else:
        yield Finding("ok", "the database is up to date")
    if found.contracts:
        what = f"what only older versions use is still there ({', '.join(found.contracts)})"
        yield Finding("warn", what, "when none of them runs any more: workbench migrate --contract")


def _version(facts: "ServerFacts") -> Finding:
    major, minor = divmod(facts.version, 10_000)
    if facts.too_old is not None:
        return Finding("fail", f"the database is Postgres {major}", facts.too_old)
    return Finding("ok", f"the database answers; Postgres {major}.{minor}")


def _durability(facts: "ServerFacts") -> Finding:
    if off := facts.switched_off:
        what = f"{' and '.join(off)} off: an accepted event may be lost when the machine fails"
        return Finding("fail", what, "switch on in postgresql.conf: " + ", ".join(off))
    return Finding("ok", "what is committed is on disk (fsync, synchronous_commit, full_page_writes)")


def _server_log(logs_errors: bool) -> Finding:
    if not logs_errors:
        return Finding("ok", "the server's log keeps no values of events")
    advice = "log_min_messages = log, log_min_error_statement = panic; see docs/operations.md"
    return Finding("warn", "the server's log names errors, whose texts hold values of events", advice)


def _roles(facts: "ServerFacts") -> Iterator[Finding]:
    if facts.may_create_roles:
        yield Finding("ok", "our role may create the analysts' login roles")
    else:
        yield Finding(
            "fail", "our role may not create roles, so SQL for analysts cannot work", "ALTER ROLE … CREATEROLE"
        )
    if facts.passes_walls:
        what = (
            "row-level security does not hold for our role, so nothing stands behind our own code between organizations"
        )
        yield Finding("warn", what, "ALTER ROLE … NOSUPERUSER NOBYPASSRLS")


def _engine(silent_seconds: float | None) -> Finding:
    if silent_seconds is None:
        return Finding(
            "warn", "no engine has ever run here", "start one: workbench engine, or everything: workbench up"
        )
    if silent_seconds > _ENGINE_SILENT_SECONDS:
        return Finding("warn", f"no engine for {silent_seconds:.0f} s; automations wait", "start one: workbench engine")
    return Finding("ok", "an engine is running")


def _chain(chain: "ChainRow") -> Finding:
    if chain.trouble is not None:
        return Finding("warn", f"chain {chain.chain_id}: {chain.trouble}", "see: workbench chain status")
    return Finding("ok", f"chain {chain.chain_id} is read up to block {chain.block_number}")


def _processes(port: int, lab_port: int) -> Iterator[Finding]:
    ready = http.status(port, "/readyz")
    if ready == 200:
        yield Finding("ok", f"the API is ready on port {port}")
    elif ready is not None:
        yield Finding("fail", f"/readyz on port {port} answers {ready}", "see the logs in the data folder")
    elif ports.is_free("127.0.0.1", port):
        yield Finding("warn", f"the API is not running; port {port} is free", "start everything with: workbench up")
    else:
        yield Finding("fail", f"port {port} is taken by something else", "stop it, or use: workbench up --port N")
    if http.status(lab_port, "/api") == 200:
        yield Finding("ok", f"JupyterLab is running on port {lab_port}")
    elif ports.is_free("127.0.0.1", lab_port):
        yield Finding(
            "warn", f"JupyterLab is not running; port {lab_port} is free", "start everything with: workbench up"
        )
    else:
        yield Finding(
            "fail", f"port {lab_port} is taken by something else", "stop it, or use: workbench up --lab-port N"
        )
