"""The data folder: made once by initdb, refused when another major version made it, and given its first role.

The superuser is for the life cycle and for migrations that harden; the application is `workbench`, who owns the
database `workbench`, may make roles, and is not a superuser.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from api.clock import token
from api.embedded.account import Account
from api.embedded.binaries import Binaries
from api.embedded.errors import HomeUnusableError, StartFailedError, WrongVersionError
from api.embedded.places import PORT, Places

ADMIN = "postgres"
APPLICATION = "workbench"
_BUILTIN_LOCALE = 17  # from here on Postgres brings its own sort order, equal on every machine


def ensure(places: Places, binaries: Binaries, account: Account) -> None:
    """Make the data folder if there is none; refuse one we cannot run."""
    if not (places.data / "PG_VERSION").exists():
        if places.password(APPLICATION) is not None:  # made after initdb: there was data once
            raise HomeUnusableError(
                f"{places.data} is gone; restore it, or remove {places.home} to begin with an empty database"
            )
        _init(places, binaries, account)
    major = int((places.data / "PG_VERSION").read_text().strip().split(".")[0])
    if major != binaries.major:
        raise WrongVersionError(
            f"the data in {places.data} was made by Postgres {major}, but the programs in {binaries.folder} are "
            f"Postgres {binaries.version}; install Postgres {major} again, or dump with {major} and load with {binaries.major}"
        )
    if places.password(ADMIN) is None:
        raise HomeUnusableError(
            f"the superuser's password in {places.home} is gone; restore the file, or start with an empty home"
        )


def dsn(places: Places, run: Path, role: str, database: str) -> str:
    """Return the URL by which `role` reaches `database` through the socket in `run`."""
    password = places.password(role)
    host = quote(str(run), safe="")
    return f"postgresql://{role}:{password}@/{database}?host={host}&port={PORT}"


def give_first_role(places: Places, run: Path) -> None:
    """Create the application's role and database, once; safe to be interrupted anywhere."""
    with psycopg.connect(dsn(places, run, ADMIN, "postgres"), autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (APPLICATION,)).fetchone()
        if known is not None and places.password(APPLICATION) is not None:
            return
        make_application(connection, APPLICATION, places.make_password(APPLICATION))
        if known is None:
            role = sql.Identifier(APPLICATION)
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))


def make_application(connection: psycopg.Connection, name: str, password: str) -> None:
    """Create the application's role, or give it what it has to have."""
    role = sql.Identifier(name)
    with connection.transaction():
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone() is None:
            connection.execute(sql.SQL("CREATE ROLE {}").format(role))
        connection.execute(
            sql.SQL("ALTER ROLE {} LOGIN CREATEROLE CREATEDB NOSUPERUSER PASSWORD {}").format(
                role, sql.Literal(password)
            )
        )
        connection.execute(sql.SQL("GRANT SET ON PARAMETER temp_file_limit TO {}").format(role))
        connection.execute(sql.SQL("GRANT pg_signal_backend TO {}").format(role))


def _init(places: Places, binaries: Binaries, account: Account) -> None:
    """Run initdb beside the final place and move it there: a half-made data folder is never taken for a whole one."""
    if places.data.exists():
        raise HomeUnusableError(f"{places.data} exists but is no Postgres data folder; move it away")
    for half in places.state.glob("new.*"):
        shutil.rmtree(half, ignore_errors=True)
    half = places.state / f"new.{token(4).hex()}"
    try:
        _initdb(half, places, binaries, account)
        half.rename(places.data)
    finally:
        shutil.rmtree(half, ignore_errors=True)


def _initdb(target: Path, places: Places, binaries: Binaries, account: Account) -> None:
    locale = (
        ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8"]
        if binaries.major >= _BUILTIN_LOCALE
        else ["--locale=C"]
    )
    with tempfile.NamedTemporaryFile("w", dir=places.state, prefix="pw.") as file:
        file.write(places.make_password(ADMIN) + "\n")
        file.flush()
        account.own(Path(file.name))
        command: list[str | Path] = [binaries.folder / "initdb", "-D", target, "-U", ADMIN, f"--pwfile={file.name}"]
        command += ["--auth=scram-sha-256", "--encoding=UTF8", "--data-checksums", *locale]
        done = subprocess.run(
            command,
            cwd=places.state,
            env={"LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
            **account.popen(),
        )
    if done.returncode != 0:
        raise StartFailedError(f"initdb failed: {' '.join(done.stderr.split()) or f'exit code {done.returncode}'}")
