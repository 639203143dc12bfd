"""Starts one JupyterLab and one Chromium per session. Pages may send requests only to this machine."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, Route, expect, sync_playwright

from tests.notebooks.execution import NOTEBOOKS, without_outputs
from tests.running import Running, free_port

expect.set_options(timeout=30_000)  # milliseconds: an answer takes 5 s on a machine that runs ten things at a time
CHROMIUM = "/usr/bin/chromium"
# Notebook 7.6 throws this error in its own code for every page that it opens.
_NOTEBOOK_BUNDLE = "/static/notebook/notebook_core"
_NOTEBOOK_ERROR = "Cannot read properties of undefined (reading 'schema')"
CHROMIUM_ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class Lab(msgspec.Struct, frozen=True):
    """A running JupyterLab: its URL, its token, and the folder of its notebooks."""

    url: str
    token: str
    folder: Path


@pytest.fixture(scope="session")
def lab(running: Running) -> Iterator[Lab]:
    """JupyterLab on a copy of the notebooks without their outputs, with credentials in its environment."""
    with jupyter(running, "jupyterlab", *_LAB_OPTIONS) as lab:
        for notebook in NOTEBOOKS.glob("*.ipynb"):
            (lab.folder / notebook.name).write_text(without_outputs(notebook.read_text()))
        yield lab


@contextmanager
def jupyter(running: Running, module: str, *options: str) -> Iterator[Lab]:
    """Run JupyterLab or Jupyter Notebook on an empty folder."""
    folder = running.folder / module
    folder.mkdir()
    port, token = free_port(), "for-this-test-only"
    command = [sys.executable, "-m", module, *_JUPYTER_OPTIONS, *options]
    command += [f"--ServerApp.port={port}", f"--ServerApp.root_dir={folder}", f"--IdentityProvider.token={token}"]
    log = (running.folder / f"{module}.log").open("w")
    with log, subprocess.Popen(command, env=_environment(running), cwd=folder, stdout=log, stderr=log) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/api/status?token={token}")
            yield Lab(f"http://127.0.0.1:{port}", token, folder)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=30)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(CHROMIUM_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    """A page that can reach only this machine; errors on its console and requests to other hosts fail the test."""
    context = chromium.new_context(viewport={"width": 1360, "height": 900}, device_scale_factor=1)
    page = context.new_page()
    errors: list[str] = []

    def record(message: ConsoleMessage) -> None:
        if message.type == "error":
            errors.append(f"{message.text} ({message.location})")

    def abort_external(route: Route) -> None:
        address = urlsplit(route.request.url)
        host = address.hostname or ""
        if address.scheme in ("data", "blob") or host == "127.0.0.1" or host.endswith(".localhost"):
            route.continue_()
            return
        errors.append(f"request to {route.request.url}")
        route.abort()

    page.on("console", record)

    def record_error(error: Error) -> None:
        if not (error.message == _NOTEBOOK_ERROR and _NOTEBOOK_BUNDLE in (error.stack or "")):
            errors.append(str(error))

    page.on("pageerror", record_error)
    page.route("**/*", abort_external)
    yield page
    context.close()
    assert errors == []


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the screenshots; `WORKBENCH_PICTURES` keeps them."""
    path = os.environ.get("WORKBENCH_PICTURES")
    folder = Path(path) if path else tmp_path_factory.mktemp("pictures")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_notebook(lab: Lab, name: str, sources: Sequence[str]) -> None:
    """Write a notebook with these code cells into the folder of the lab."""
    cells = [
        {"cell_type": "code", "id": f"c{n}", "source": source, "metadata": {}, "outputs": [], "execution_count": None}
        for n, source in enumerate(sources)
    ]
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    (lab.folder / name).write_text(json.dumps(notebook))


_JUPYTER_OPTIONS = ("--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1", "--ServerApp.port_retries=0")
_LAB_OPTIONS = (
    "--LabApp.expose_app_in_browser=True",
    "--LabApp.extension_manager=readonly",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.news_url=",
)


def _environment(running: Running) -> dict[str, str]:
    # Separate folders, so that settings and extensions of the developer's Jupyter have no effect.
    folders = {name: running.folder / "lab-own" / name.lower() for name in _FOLDERS}
    news = folders["JUPYTERLAB_SETTINGS_DIR"] / "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    news.parent.mkdir(parents=True, exist_ok=True)
    news.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    return running.environment() | {name: str(path) for name, path in folders.items()}


_FOLDERS = (
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
    "JUPYTERLAB_SETTINGS_DIR",
    "JUPYTERLAB_WORKSPACES_DIR",
    "IPYTHONDIR",
)


def wait_for(url: str) -> None:
    deadline = time.monotonic() + 180  # Jupyter loads for a minute on a machine that runs ten things at a time
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"no answer from {url}")
