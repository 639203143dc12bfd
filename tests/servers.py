"""The server that `DATABASE_URL` names, by a superuser's address: a plain Postgres, or the coordinator of a Citus cluster.

The application gets a role of its own there, as in the embedded server. On Citus a database is made on every node, under one name,
and joined as the given one is; a clone of it takes along what its nodes hold and know of each other.
"""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql

from api.clock import token
from api.embedded import Server
from api.embedded.cluster import make_application
from api.store.database import ALL_ORGANIZATIONS

_WAITING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
        AND backend_type = 'client backend'    -- autovacuum waits for locked tables, too
"""


@contextlib.contextmanager
def given(admin_dsn: str) -> Iterator[Server]:
    """Give the server with a role for the application, which is dropped afterwards."""
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
    """Make an empty database of the application's."""
    owner = urlsplit(server.dsn).username or ""
    everywhere(server, "CREATE DATABASE {} OWNER {}", name, owner)
    others = nodes(server.admin_dsn)[1:]
    if not others:
        return
    for node in nodes(server.admin_dsn):
        with _session(at(node, name)) as connection:
            connection.execute("CREATE EXTENSION citus")
    with _session(at(server.admin_dsn, name)) as connection:
        connection.execute("SELECT citus_set_coordinator_host(%s, %s)", _place(server.admin_dsn))
        for node in others:
            connection.execute("SELECT citus_add_node(%s, %s)", _place(node))
        # Citus takes note of a role that was there before with the first function that it owns, and asks for a superuser then.
        connection.execute("CREATE FUNCTION public.own() RETURNS integer LANGUAGE sql RETURN 1")
        connection.execute(sql.SQL("ALTER FUNCTION public.own() OWNER TO {}").format(sql.Identifier(owner)))
        connection.execute("DROP FUNCTION public.own()")


def copy_database(server: Server, name: str, template: str) -> None:
    """Make a database like the template, which nobody may be connected to.

    Measured, create + drop: wal_log 200 + 11 ms, file_copy 130 + 400 ms (it forces checkpoints).
    """
    _close(server, template)
    owner = urlsplit(server.dsn).username or ""
    everywhere(server, "CREATE DATABASE {} TEMPLATE {} STRATEGY wal_log OWNER {}", name, template, owner)


def drop_database(server: Server, name: str) -> None:
    """Drop a database, whoever is connected."""
    _close(server, name)
    everywhere(server, "DROP DATABASE {} WITH (FORCE)", name)


def _close(server: Server, name: str) -> None:
    """Let nobody into a database of Citus, whose nodes keep talking to each other."""
    if len(nodes(server.admin_dsn)) > 1:
        everywhere(server, "ALTER DATABASE {} ALLOW_CONNECTIONS false", name)
        everywhere(
            server, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = {}", sql.Literal(name)
        )


def everywhere(server: Server, statement: str, *names: str | sql.Composable) -> None:
    """Run a statement on every node at once, in the database of the server's address."""
    whole = sql.SQL(statement).format(*(sql.Identifier(each) if isinstance(each, str) else each for each in names))

    def run(node: str) -> None:
        with _session(node) as connection:
            connection.execute(whole)

    with ThreadPoolExecutor() as threads:
        list(threads.map(run, nodes(server.admin_dsn)))


def waiting(server: Server, dsn: str) -> int:
    """Return how many sessions of a database wait for locks, on all its nodes."""
    database = urlsplit(dsn).path.removeprefix("/")
    return sum(_waiting(at(node, database)) for node in nodes(server.admin_dsn))


def _waiting(dsn: str) -> int:
    with _session(dsn) as connection:
        (found,) = connection.execute(_WAITING).fetchone() or (0,)
        return int(found)


def acting(dsn: str, org: str = ALL_ORGANIZATIONS, **options: Any) -> psycopg.Connection[Any]:
    """Return a connection in a transaction that sees an organization's rows, or those of all: on every node of Citus, too."""
    settings = "-c search_path=workbench -c citus.propagate_set_commands=local"
    connection = psycopg.connect(dsn, options=settings, **options)
    connection.execute(sql.SQL("SET LOCAL workbench.org = {}").format(org))
    return connection


def at(dsn: str, database: str) -> str:
    """Return the address of another database of the server."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


@cache
def nodes(admin_dsn: str) -> tuple[str, ...]:
    """Return the addresses of a superuser on the server, and on the workers that it distributes to."""
    with _session(admin_dsn) as connection:
        if connection.execute("SELECT FROM pg_extension WHERE extname = 'citus'").fetchone() is None:
            return (admin_dsn,)
        workers = connection.execute("SELECT nodename, nodeport FROM pg_dist_node WHERE groupid > 0 ORDER BY nodeid")
        user = urlsplit(admin_dsn).netloc.rpartition("@")[0]
        return (
            admin_dsn,
            *(urlsplit(admin_dsn)._replace(netloc=f"{user}@{host}:{port}").geturl() for host, port in workers),
        )


def _place(dsn: str) -> tuple[str, int]:
    address = urlsplit(dsn)
    return address.hostname or "localhost", address.port or 5432


def _session(dsn: str) -> psycopg.Connection:
    return psycopg.connect(dsn, autocommit=True)
