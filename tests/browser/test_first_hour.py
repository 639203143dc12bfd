"""The first hour of a newcomer: a fresh clone, the commands and the notebook of the README, and examples of its pages.

`FIRST_HOURS=3` repeats it, and `IMPORTED_EVENTS=200000` imports that many events meanwhile.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import Page, expect

from api.embedded import postmaster
from api.embedded.paths import find_paths
from tests.browser.conftest import Lab, write_notebook
from tests.browser.mouse import Mouse
from tests.browser.test_notebooks import STDERR
from tests.installation import until
from tests.notebooks.execution import without_outputs
from tests.running import free_port
from workbench import Workbench

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
IMPORTS, REPORTS = ((ROOT / "docs" / page).read_text() for page in ("import-and-export.md", "reports.md"))
HOURS = range(int(os.environ.get("FIRST_HOURS", "1")))
IMPORTED_EVENTS = int(os.environ.get("IMPORTED_EVENTS", "0"))
TEST_TIMEOUT_S = 280.0  # pytest ends a test after 300 s
NOT_INHERITED = re.compile("WORKBENCH_|MAKE|MFLAGS|DATABASE_URL|PGOPTIONS|PYTHONPATH|VIRTUAL_ENV")


def block(page: str, language: str, words: str) -> str:
    """Return the block of a page that contains these words."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return next(text for text in blocks if words in text)


class Clone:
    """A copy of the tracked files of the repository, in which `make up` runs."""

    def __init__(self, folder: Path) -> None:
        tracked = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
        for name in filter(None, tracked.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        for notebook in (folder / "notebooks").glob("*.ipynb"):  # what a cell shows is then from this run
            notebook.write_text(without_outputs(notebook.read_text()))
        self.folder = folder
        self._started: list[subprocess.Popen[str]] = []
        self.port, self.lab_port = free_port(), free_port()
        self.environment = {name: value for name, value in os.environ.items() if not NOT_INHERITED.match(name)}
        # Compiling packages that are never imported takes a third of the time of the installation.
        self.environment["PIP_NO_COMPILE"] = "1"
        command = shlex.split(block(README, "sh", "make up").splitlines()[0], comments=True)
        command += [f"PYTHON={sys.executable}", f"ARGS=--port {self.port} --lab-port {self.lab_port}"]
        self._log = folder.with_suffix(".log")
        with self._log.open("w") as log:
            self.up = subprocess.Popen(
                command, env=self.environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def output(self) -> str:
        """What `make up` has printed."""
        return self._log.read_text()

    def printed(self, pattern: str) -> str:
        """Return what `make up` has printed in place of the group of a pattern."""
        match = re.search(pattern, self.output, re.MULTILINE)
        assert match is not None, self.output
        return match[1]

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command of a page, with the port and the key that `make up` has printed."""
        command = command.replace("127.0.0.1:8000", f"127.0.0.1:{self.port}")
        command = command.replace("sk_live_…", self.printed(r"^ +live +(\S+)$"))
        command = re.sub("^workbench", ".venv/bin/workbench", command)
        process = subprocess.Popen(
            ["bash", "-c", command], env=self.environment, cwd=self.folder, stdout=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def run(self, command: str) -> str:
        """Run a command of a page; return its output."""
        process = self.start(command)
        output, _ = process.communicate(timeout=120)
        assert process.returncode == 0, output
        return output

    def processes(self) -> list[psutil.Process]:
        """Return the processes that run in this clone."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.folder) in word for word in process.info["cmdline"] or ())
        ]

    def interrupt(self) -> None:
        """Send Ctrl-C as a terminal does, and wait for the end."""
        if self.up.poll() is None:
            os.killpg(self.up.pid, signal.SIGINT)
        self.up.wait(60)

    def remove(self) -> None:
        for started in self._started:
            with started:
                started.kill()
        try:
            self.interrupt()
        finally:
            self.up.kill()
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            if (cluster := find_paths(self.folder / ".workbench")) is not None:
                for pid in postmaster.list_processes(cluster.data):
                    os.kill(pid, signal.SIGQUIT)
                shutil.rmtree(cluster.state, ignore_errors=True)


@pytest.fixture(scope="module", params=HOURS)
def clone() -> Iterator[Clone]:
    folder = Path(tempfile.mkdtemp(prefix="workbench-clone-"))
    folder.chmod(0o755)  # Postgres may run as another user
    clone = Clone(folder / "event-workbench")
    yield clone
    clone.remove()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("words", ["starting Postgres", "Ctrl-C stops everything."])
def test_make_up_installs_and_starts_everything(clone: Clone, words: str) -> None:
    until(lambda: clone.up.poll() is not None or words in clone.output, words, TEST_TIMEOUT_S)
    assert words in clone.output, clone.output


def test_a_newcomer_sends_an_event_imports_asks_automates_and_draws(clone: Clone, page: Page) -> None:
    history = start_history(clone)
    send_first_events(clone)
    import_first_history(clone)
    run_first_notebook(clone, page)
    draw_first_automation(clone, page)
    clone.run(re.findall(r"`(\S*workbench doctor)`", README)[0])
    output, _ = history.communicate(timeout=120)
    assert history.returncode == 0
    assert f"{IMPORTED_EVENTS:,} read: {IMPORTED_EVENTS:,} stored" in output
    page.close()  # it would log that Lab has ended
    clone.interrupt()
    assert "stopped Postgres" in clone.output
    until(lambda: clone.processes() == [], "no process is left")


def start_history(clone: Clone) -> subprocess.Popen[str]:
    """Start to import as many events as IMPORTED_EVENTS says."""
    begin = datetime.now(UTC) - timedelta(days=20)
    with (clone.folder / "history.ndjson").open("w") as file:
        for number in range(IMPORTED_EVENTS):
            event = {"event": "history", "contact": {"externalId": f"history-{number % 20_000}"}}
            file.write(json.dumps(event | {"occurredAt": str(begin + timedelta(seconds=number))}) + "\n")
    return clone.start("workbench import history.ndjson --org demo")


def send_first_events(clone: Clone) -> None:
    """Send the event of the README twice, and see it arrive."""
    event = block(README, "sh", "/api/v1/events \\")
    key = event.splitlines()[0]
    recent = block(README, "sh", "follow=true").strip()
    with clone.start(f"{key}; exec {recent} --silent --max-time 60") as stream:
        assert stream.stdout is not None
        stream.stdout.readline()  # of an earlier event: from now on, the stream has every event
        assert clone.run(event) == re.findall(r"`202 ({.*?})`", README)[0]
        assert re.findall(r"`(\"deduplicated\":true)`", README)[0] in clone.run(event)
        assert any("deposit_991" in line for line in stream.stdout)
        stream.kill()


def import_first_history(clone: Clone) -> None:
    (clone.folder / "events.ndjson").write_text(block(IMPORTS, "json", "occurredAt"))
    command = block(IMPORTS, "sh", "workbench import events.ndjson").replace("acme", "demo")
    assert "2 read: 2 stored" in clone.run(command)


def run_all_cells(page: Page) -> None:
    # Without a kernel, Lab would run no cell and say nothing.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for(timeout=60_000)
    page.get_by_text("Run", exact=True).click()
    page.get_by_text("Run All Cells", exact=True).click()
    page.set_viewport_size({"width": 1240, "height": 16_000})  # Lab draws only the cells in view


def run_first_notebook(clone: Clone, page: Page) -> None:
    """Open the address that `make up` prints, which leads to the notebook that the README names."""
    page.goto(clone.printed(r"^  JupyterLab +(\S+)$"))
    run_all_cells(page)
    expect(page.locator(".jp-CodeCell").last).to_contain_text("completed", timeout=120_000)
    assert page.locator(STDERR).count() == 0


def draw_first_automation(clone: Clone, page: Page) -> None:
    """Run the Python of the README, a funnel and a canvas, and change the automation with the mouse."""
    funnel, canvas = re.findall(r"`(wb\.funnel\(.*?\))`", REPORTS)[0], re.findall(r"`(a\.canvas\(\))`", README)[0]
    cells = [block(README, "python", "import Workbench"), funnel, canvas]
    write_notebook(Lab("", "", clone.folder / "notebooks"), "mine.ipynb", cells)
    page.set_viewport_size({"width": 1360, "height": 900})
    address = clone.printed(r"^  JupyterLab +(\S+)$").replace("/lab/", "/lab/workspaces/mine/")
    page.goto(address.replace("01_first_automation", "mine"))
    run_all_cells(page)
    expect(page.locator(".jp-CodeCell").nth(1)).to_contain_text("signup", timeout=60_000)
    mouse = Mouse(page)
    mouse.click(mouse.canvas.locator(".react-flow__node", has_text="Thank you"))
    mouse.fill("Title", "Thank you so much")
    mouse.press("Publish")
    mouse.click(page.get_by_role("dialog").get_by_role("button", name="Publish"))
    expect(page.get_by_test_id("notice")).to_contain_text("Published", timeout=60_000)
    assert page.locator(STDERR).count() == 0
    key, events_key = clone.printed(r"^ +workbench +(\S+)$"), clone.printed(r"^ +live +(\S+)$")
    wb = Workbench(f"http://127.0.0.1:{clone.port}", key, events_key=events_key)
    deposit = {"amountUsd": 600, "asset": "USDC"}
    receipt = wb.events.send("deposit", wallet_address=f"0x{'c0ffee01':0>40}", payload=deposit)
    entry = wb.automation("Thank big depositors").wait_for_entry(receipt)
    assert "Thank you so much" in repr(entry)
