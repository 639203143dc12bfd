"""Both wheels hold all that their programs read, and nothing else: the notebook's wheel has no top-level `api`."""

import os
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MAX_INSTALLED_BYTES = 15_000_000  # of the notebook's package without extras, with what it needs


def build(project: Path, folder: Path) -> zipfile.ZipFile:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return zipfile.ZipFile(wheel)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(ROOT, tmp_path_factory.mktemp("notebook"))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(ROOT / "packaging" / "server", tmp_path_factory.mktemp("server"))


def files(folder: str, name: str | None = None) -> set[str]:
    """Return the files of a folder under the name that it has in a wheel."""
    return {
        str(Path(name or folder) / path.relative_to(ROOT / folder))
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and "canvas_src" not in path.parts
    }


def packaged(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def test_the_notebook_s_wheel_holds_workbench_and_the_sql_of_reports(notebook: zipfile.ZipFile) -> None:
    assert packaged(notebook) == files("workbench") | files("sql/reports", "workbench/_reports")


def test_the_server_s_wheel_holds_api_sql_and_the_site_if_it_is_built(server: zipfile.ZipFile) -> None:
    assert packaged(server) == files("api") | files("sql", "api/_sql") | files("build/site", "api/_site")


def test_both_wheels_hold_the_licence(notebook: zipfile.ZipFile, server: zipfile.ZipFile) -> None:
    for wheel in (notebook, server):
        (licence,) = [name for name in wheel.namelist() if name.endswith("/licenses/LICENSE")]
        assert wheel.read(licence) == (ROOT / "LICENSE").read_bytes()


def run(folder: Path, *lines: str) -> list[str]:
    """Run lines of Python with the wheels that are unpacked in a folder; return the lines that they print."""
    environment = os.environ | {"PYTHONPATH": str(folder)}  # before the checkout of the editable install
    command = [sys.executable, "-P", "-c", "\n".join(lines)]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_the_notebook_s_wheel_is_imported_without_large_libraries(notebook: zipfile.ZipFile, tmp_path: Path) -> None:
    notebook.extractall(tmp_path)
    place, *loaded = run(tmp_path, "import sys, workbench", "print(workbench.__file__, *sys.modules, sep='\\n')")
    assert Path(place).relative_to(tmp_path) == Path("workbench", "__init__.py")
    assert set(loaded) & {"api", "httpx", "polars", "pyarrow", "altair", "IPython", "sanic", "psycopg"} == set()


def dependencies(name: str) -> dict[str, Distribution]:
    """Return the packages that pip installs with one without extras, by their names."""
    found: dict[str, Distribution] = {}
    names = [name]
    while names:
        package = distribution(names.pop())
        for requirement in map(Requirement, package.requires or ()):
            is_needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if is_needed and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                names.append(requirement.name)
    return found


def test_the_notebook_s_package_is_small_with_all_that_it_needs(notebook: zipfile.ZipFile) -> None:
    needed = dependencies("event-workbench")
    assert {"httpx", "msgspec"} <= set(needed)
    assert {"polars", "pyarrow"} & set(needed) == set()
    files = [Path(str(file.locate())) for package in needed.values() for file in package.files or ()]
    installed = sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())
    assert installed + sum(file.file_size for file in notebook.infolist()) < MAX_INSTALLED_BYTES


def test_unpacked_wheels_work_without_the_checkout(
    notebook: zipfile.ZipFile, server: zipfile.ZipFile, tmp_path: Path
) -> None:
    for wheel in (notebook, server):
        wheel.extractall(tmp_path)
    *places, queries, report = run(
        tmp_path,
        "import api, workbench",
        "from api.store.database import load_numbered, sql_folder",
        "from workbench.sql import statement",
        "print(api.__file__, workbench.__file__, sql_folder(), len(load_numbered('events')) > 0, sep='\\n')",
        "print('segment_sizes' in statement('segment_sizes'))",
    )
    assert [Path(place).relative_to(tmp_path).parts[0] for place in places] == ["api", "workbench", "api"]
    assert (queries, report) == ("True", "True")


def test_the_command_of_the_server_s_wheel_starts(
    notebook: zipfile.ZipFile, server: zipfile.ZipFile, tmp_path: Path
) -> None:
    for wheel in (notebook, server):
        wheel.extractall(tmp_path)
    metadata = next(tmp_path.glob("event_workbench_server-*.dist-info"))
    usage, *_ = run(
        tmp_path,
        "import sys",
        "from importlib.metadata import PathDistribution",
        "from pathlib import Path",
        f"(command,) = PathDistribution(Path({str(metadata)!r})).entry_points.select(group='console_scripts')",
        "sys.argv = [command.name, '--help']",
        "command.load()()",
    )
    assert usage.startswith("usage: workbench")
