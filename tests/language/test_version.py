"""A server supports a range of versions of the notebook package, and explains a mismatch."""

import tomllib
from pathlib import Path

import pytest

from workbench.language import version
from workbench.language.version import OLDEST_SERVED, VERSION, incompatibility, supported_range


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a server of version 0.12.3 that supports notebooks from 0.9 on."""
    monkeypatch.setattr(version, "VERSION", "0.12.3")
    monkeypatch.setattr(version, "OLDEST_SERVED", "0.9")


def test_the_code_has_the_version_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    assert incompatibility(VERSION) is incompatibility(OLDEST_SERVED) is None


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize("notebook", ["0.9", "0.9.0", "0.10.4", "0.12", "0.12.99", "0.12.0.dev1+g12", "0.12rc1"])
def test_a_server_supports_its_own_version_and_the_promised_older_ones(notebook: str) -> None:
    assert (supported_range(), incompatibility(notebook)) == (("0.9", "0.12"), None)


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("notebook", "problem"),
    [
        ("0.8.7", "too old for the server (0.12.3): pip install 'event-workbench==0.12.*' and restart the kernel"),
        (
            "0.13.0",
            "newer than the server (0.12.3): upgrade the server first, or pip install 'event-workbench==0.12.*'",
        ),
        ("1.0.0", "newer than the server"),
        ("nightly", "not a version: this server supports event-workbench 0.9 to 0.12"),
        ("", "not a version"),
        ("\u0660.\u0661", "not a version"),
        ("9999999.1", "not a version"),
    ],
)
def test_other_versions_get_instructions(notebook: str, problem: str) -> None:
    assert problem in (incompatibility(notebook) or "")
