"""Servers for tests: an embedded one, or the one in `DATABASE_URL`.

The latter is a plain Postgres, or the coordinator of a Citus cluster. The application gets its own role there, as in
the embedded server. On Citus a database is created on every node under one name, and the nodes are joined as those of
`DATABASE_URL`. A clone also contains the nodes' data and metadata.
"""

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from api import settings
from api.clock import token
from api.embedded import EmbeddedPostgres, Server
from api.embedded.cluster import make_application
from api.store.database import ALL_ORGANIZATIONS

_COUNT_LOCK_WAITS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND backend_type = 'client backend'    -- autovacuum waits for locked tables, too
"""


@contextlib.contextmanager
def open_server(
    purpose: str, folder: Path | None = None, server_settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Yield the server in `DATABASE_URL`, or an embedded one in a temporary folder below `folder`."""
    configured = settings.read()
    if configured.database_url is not None:
        with external_server(configured.database_url) as server:
            yield server
        return
    home = Path(tempfile.mkdtemp(prefix=f"workbench-{purpose}-", dir=folder))
    embedded = EmbeddedPostgres(home, bin_dir=configured.postgres_bin, settings=server_settings)
    try:
        with embedded as server:
            yield server
    finally:
        shutil.rmtree(embedded.data.parent, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)


@contextlib.contextmanager
def external_server(admin_dsn: str) -> Iterator[Server]:
    """Yield the server with a role for the application, and drop the role at the end."""
    name, password = f"workbench_{token(4).hex()}", token(16).hex()
    for node in nodes(admin_dsn):
        with _session(node) as connection:
            assert connection.info.parameter_status("is_superuser") == "on", "DATABASE_URL must be a superuser's"
            connection.execute("SELECT set_config('citus.enable_ddl_propagation', 'off', false)")
            make_application(connection, name, password)
    address = urlsplit(admin_dsn)
    yield Server(
        address._replace(netloc=f"{name}:{password}@{address.netloc.rpartition('@')[2]}").geturl(),
        admin_dsn,
        "",
        owned=False,
    )
    for node in nodes(admin_dsn):
        with _session(node) as connection:
            connection.execute("SELECT set_config('citus.enable_ddl_propagation', 'off', false)")
            connection.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


def create_database(server: Server, name: str) -> None:
    """Create an empty database that the application owns."""
    owner = urlsplit(server.dsn).username or ""
    execute_on_nodes(server, "CREATE DATABASE {} OWNER {}", name, owner)
    others = nodes(server.admin_dsn)[1:]
    if not others:
        return
    for node in nodes(server.admin_dsn):
        with _session(database_dsn(node, name)) as connection:
            connection.execute("CREATE EXTENSION citus")
    with _session(database_dsn(server.admin_dsn, name)) as connection:
        connection.execute("SELECT citus_set_coordinator_host(%s, %s)", _host_and_port(server.admin_dsn))
        for node in others:
            connection.execute("SELECT citus_add_node(%s, %s)", _host_and_port(node))
        # Citus records an older role with the first function that the role owns, and needs a superuser to do so.
        connection.execute("CREATE FUNCTION public.own() RETURNS integer LANGUAGE sql RETURN 1")
        connection.execute(sql.SQL("ALTER FUNCTION public.own() OWNER TO {}").format(sql.Identifier(owner)))
        connection.execute("DROP FUNCTION public.own()")


def copy_database(server: Server, name: str, template: str) -> None:
    """Clone the template, which must have no connections."""
    _close_on_citus(server, template)
    owner = urlsplit(server.dsn).username or ""
    # Create + drop take 55 ms of CPU time with wal_log, and 40 with file_copy, which on a disk waits for checkpoints.
    is_in_memory = "%2Fdev%2Fshm" in server.dsn  # the folder of its socket
    strategy = "file_copy" if is_in_memory else "wal_log"
    statement = "CREATE DATABASE {} TEMPLATE {} STRATEGY {} OWNER {}"
    execute_on_nodes(server, statement, name, template, sql.SQL(strategy), owner)


def drop_database(server: Server, name: str) -> None:
    """Drop a database and end its connections."""
    _close_on_citus(server, name)
    execute_on_nodes(server, "DROP DATABASE {} WITH (FORCE)", name)


def _close_on_citus(server: Server, name: str) -> None:
    """Refuse connections to a database on Citus, where the nodes keep connecting to each other."""
    if len(nodes(server.admin_dsn)) > 1:
        execute_on_nodes(server, "ALTER DATABASE {} ALLOW_CONNECTIONS false", name)
        execute_on_nodes(
            server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}", sql.Literal(name)
        )


def execute_on_nodes(server: Server, statement: str, *names: str | sql.Composable) -> None:
    """Run a statement on all nodes in parallel, in the database that the address of the server names."""
    composed = sql.SQL(statement).format(*(sql.Identifier(name) if isinstance(name, str) else name for name in names))

    def run(node: str) -> None:
        with _session(node) as connection:
            connection.execute(composed)

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, nodes(server.admin_dsn)))


def count_lock_waits(server: Server, dsn: str) -> int:
    """Return the number of sessions of a database that wait for locks, on all its nodes."""
    database, count = urlsplit(dsn).path.removeprefix("/"), 0
    for node in nodes(server.admin_dsn):
        with _session(database_dsn(node, database)) as connection:
            (node_count,) = connection.execute(_COUNT_LOCK_WAITS).fetchone() or (0,)
            count += int(node_count)
    return count


async def until_lock_waits(server: Server, dsn: str, number: int) -> None:
    """Return when so many sessions of a database wait for locks. Raises TimeoutError after 30 seconds."""
    async with asyncio.timeout(30):
        while count_lock_waits(server, dsn) < number:  # noqa: ASYNC110  sessions of Postgres send no notification
            await asyncio.sleep(0.01)


def connect_as(dsn: str, org: str = ALL_ORGANIZATIONS, **options: Any) -> psycopg.Connection[Any]:
    """Return a connection in a transaction that sees the rows of one organization or of all, on every node of Citus."""
    settings = "-c search_path=workbench -c citus.propagate_set_commands=local"
    connection = psycopg.connect(dsn, options=settings, **options)
    connection.execute(sql.SQL("SET LOCAL workbench.org = {}").format(org))
    return connection


def database_dsn(dsn: str, database: str) -> str:
    """Return the DSN of a database on the same server."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


@cache
def nodes(admin_dsn: str) -> tuple[str, ...]:
    """Return superuser addresses of the server and of its Citus workers."""
    with _session(admin_dsn) as connection:
        if connection.execute("SELECT FROM pg_extension WHERE extname = 'citus'").fetchone() is None:
            return (admin_dsn,)
        workers = connection.execute("SELECT nodename, nodeport FROM pg_dist_node WHERE groupid > 0 ORDER BY nodeid")
        user = urlsplit(admin_dsn).netloc.rpartition("@")[0]
        return (
            admin_dsn,
            *(urlsplit(admin_dsn)._replace(netloc=f"{user}@{host}:{port}").geturl() for host, port in workers),
        )


def _host_and_port(dsn: str) -> tuple[str, int]:
    address = urlsplit(dsn)
    return address.hostname or "localhost", address.port or 5432


def _session(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)
