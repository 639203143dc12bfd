"""`workbench up` runs real processes on free ports, with an embedded Postgres."""

import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import httpx
import pytest

from api.__main__ import main
from api.cli import network
from api.embedded import find, postmaster
from api.embedded.paths import find_paths
from tests.installation import until
from tests.running import free_port


class Running:
    """One `workbench up` and its output."""

    def __init__(self, data_dir: Path, port: int, stdout: int | IO[str] = subprocess.PIPE) -> None:
        self.data_dir, self.port = data_dir, port
        self.output = ""
        self.environment = {
            name: value for name, value in os.environ.items() if name not in ("DATABASE_URL", "PGOPTIONS")
        }
        command = [
            Path(sys.executable).with_name("workbench"),
            "up",
            "--no-lab",
            "--no-demo",
            "--port",
            str(port),
            "--data-dir",
            data_dir,
        ]
        self.process = subprocess.Popen(
            command, env=self.environment, stdout=stdout, stderr=subprocess.STDOUT, text=True, cwd=data_dir.parent
        )

    def kill_child(self, word: str) -> None:
        """Kill the child whose command line contains this word."""
        (child,) = [pid for pid, command in self.children().items() if word in command]
        os.kill(child, signal.SIGKILL)

    def children(self) -> dict[int, list[str]]:
        """Return the command of each child by its pid."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        commands = {}
        for pid in " ".join(task.read_text() for task in tasks).split():
            with suppress(FileNotFoundError):  # it has just ended
                commands[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        return commands

    def until(self, words: str) -> str:
        """Return all output up to the line that contains `words`."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.output += line
            if words in line:
                return self.output
        raise AssertionError(self.output)

    def end(self, *signals: signal.Signals) -> tuple[int, str]:
        """Send the signals; return the exit code and the remaining output."""
        for number in signals:
            self.process.send_signal(number)
        last = self.process.communicate(timeout=60)[0]
        return self.process.returncode, last


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    yield folder
    remove_cluster(folder)


def remove_cluster(data_dir: Path) -> None:
    if (cluster := find_paths(data_dir)) is not None:
        for pid in postmaster.list_processes(cluster.data):
            os.kill(pid, signal.SIGQUIT)
        shutil.rmtree(cluster.state, ignore_errors=True)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An `up` for the tests that it survives. It ends as usual after all of them."""
    data_dir = tmp_path_factory.mktemp("up") / "data"
    try:
        up = Running(data_dir, free_port())
        up.until("Ctrl-C stops everything.")
        yield up
        assert up.end(signal.SIGTERM)[0] == 0
    finally:
        remove_cluster(data_dir)


def test_up_starts_everything_and_stops_it_once_for_two_interruptions(data_dir: Path, port: int) -> None:
    for package in ("api", "workbench"):  # in the working directory, where they must not shadow ours
        folder = data_dir.parent / package
        folder.mkdir()
        (folder / "__init__.py").write_text("raise RuntimeError('imported from the working directory')\n")
    up = Running(data_dir, port)
    summary = up.until("Ctrl-C stops everything.")
    assert f"http://127.0.0.1:{port}/api/v1" in summary
    assert "imported from the working directory" not in summary
    assert network.status(port, "/readyz") == 200
    cluster = find_paths(data_dir)
    assert cluster is not None
    code, last = up.end(signal.SIGINT, signal.SIGINT)
    assert (code, last.split("\n")[:4]) == (0, ["stopped engine", "stopped api", "stopped Postgres", "stopped"])
    assert postmaster.list_processes(cluster.data) == []
    assert network.status(port, "/healthz") is None


def test_a_command_finds_the_running_up_by_its_data_folder_and_starts_no_second_one(
    shared: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_dir, port = shared.data_dir, shared.port
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PGOPTIONS", "WORKBENCH_DATA_DIR"):
        monkeypatch.delenv(name, raising=False)

    def workbench(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        return code, *capsys.readouterr()

    code, _, stderr = workbench("org", "create", "acme")
    assert (code, str(data_dir) in stderr, list(tmp_path.iterdir())) == (1, True, [])
    there = ("--data-dir", str(data_dir))
    assert workbench("org", "create", "acme", *there)[0] == 0
    key = workbench("key", "create", "--org", "acme", "--kind", "workbench", *there)[1].strip()
    catalog = f"http://127.0.0.1:{port}/api/v1/events/catalog"
    assert httpx.get(catalog, headers={"authorization": f"Bearer {key}"}).status_code == 200
    assert f"the API is ready on port {port}\n" in workbench("doctor", *there)[1]
    assert "API ready" in workbench("top", "--once", *there)[1]
    assert str(data_dir) in workbench("top", "--once")[2]
    assert "http://127.0.0.1:9/metrics cannot be read" in workbench("top", "--url", "http://127.0.0.1:9/metrics")[2]


def test_other_programs_with_such_words_are_no_running_up(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    for words in (["/srv/workbench", "update"], ["--project", "/srv/workbench", "up"]):
        process = subprocess.Popen([*sleep, *words], cwd=tmp_path)
        assert not [up for up in network.running_ups() if up.data_dir.is_relative_to(tmp_path)]
        process.kill()
        process.wait()


def test_up_outlives_the_loss_of_its_log_folder(shared: Running) -> None:
    shutil.rmtree(shared.data_dir / "logs")
    (shared.data_dir / "logs").write_text("in the way of the folder")
    shared.kill_child("engine")
    shared.until("engine writes to this terminal, because its log cannot be opened")
    assert network.status(shared.port, "/readyz") == 200


def test_up_outlives_a_full_disk_for_its_output(data_dir: Path, port: int) -> None:
    with Path("/dev/full").open("w") as full:
        up = Running(data_dir, port, full)
    until(lambda: network.status(port, "/readyz") == 200, "the API is ready", 60)
    before = up.children()
    up.kill_child("engine")
    until(lambda: any("engine" in words and pid not in before for pid, words in up.children().items()), "it runs", 60)
    assert network.status(port, "/readyz") == 200
    assert up.end(signal.SIGTERM)[0] == 0


@pytest.mark.parametrize("free", [0, 1, 2])
def test_up_outlives_a_lack_of_file_descriptors(
    data_dir: Path, port: int, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SECRET", "a secret of these tests")  # it can be compared without opening a file
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    pid = up.process.pid
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    few = [number for number in range(max(used) + free + 2) if number not in used][free]
    usual = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, usual[1]))
    up.kill_child("engine")
    up.until("engine cannot be started: ")
    assert network.status(port, "/readyz") == 200
    resource.prlimit(pid, resource.RLIMIT_NOFILE, usual)
    until(lambda: any("engine" in command for command in up.children().values()), "the engine runs", 60)
    code, last = up.end(signal.SIGTERM)
    assert (code, "Postgres stopped" in up.output + last) == (0, False)


def test_up_restarts_a_killed_postgres_and_tries_until_it_succeeds(shared: Running) -> None:
    cluster = find_paths(shared.data_dir)
    assert cluster is not None

    def kill_postgres() -> None:
        lock = postmaster.read_pid_file(cluster.data)
        assert lock is not None
        os.kill(lock.pid, signal.SIGKILL)

    kill_postgres()
    shared.until("Postgres stopped; restarting it")
    until(lambda: network.status(shared.port, "/readyz") == 200, "the API is ready", 60)
    cluster.log.unlink()
    cluster.log.mkdir()  # in the way of the log, as a disk that became read-only would be
    kill_postgres()
    *_, seconds, _ = shared.until("; trying again in ").split()
    assert "Postgres cannot be started: " in shared.until(f"; trying again in {2 * int(seconds)} s")
    assert network.status(shared.port, "/healthz") == 200
    cluster.log.rmdir()
    until(lambda: network.status(shared.port, "/readyz") == 200, "the API is ready", 60)


def test_up_ends_when_a_child_could_only_start_with_a_foreign_secret(data_dir: Path, port: int) -> None:
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    subprocess.run(
        [Path(sys.executable).with_name("workbench"), "org", "create", "acme"],
        env={**up.environment, "WORKBENCH_DATA_DIR": str(data_dir)},
        check=True,
    )
    (data_dir / "secret").write_text("another secret of these tests")
    up.kill_child("engine")
    code, last = up.end()
    assert (code, "this is not the secret of this database" in last, "stopped Postgres" in last) == (1, True, True)


def test_up_outlives_a_secret_that_is_being_restored(data_dir: Path, port: int) -> None:
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    (data_dir / "secret").write_text("")
    up.kill_child("engine")
    for _ in range(2):
        up.until("engine stopped (exit code 1)")
    assert network.status(port, "/readyz") == 200
    assert up.end(signal.SIGTERM)[0] == 0


def test_children_end_with_a_killed_up_and_the_next_up_adopts_postgres(data_dir: Path, port: int) -> None:
    killed = Running(data_dir, port)
    killed.until("Ctrl-C stops everything.")
    killed.end(signal.SIGKILL)
    assert find(data_dir) is not None
    up = Running(data_dir, port)
    up.until("Ctrl-C stops everything.")
    assert up.end(signal.SIGTERM)[0] == 0
    assert find(data_dir) is None


def test_a_port_in_use_is_reported_with_its_flag(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = int(taken.getsockname()[1])
        code, output = Running(data_dir, port).end()
    assert code == 1
    assert (
        output
        == f"workbench: port {port} is already in use; stop the program that uses it, or choose another with --port\n"
    )
