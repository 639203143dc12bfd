"""The GitHub Action `actions/plan`, run step by step against the service and a server with GitHub's comments."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.running import Running, free_port
from tests.test_packages import ROOT, build
from workbench.git.files import AutomationFile

ACTION = ROOT / "actions" / "plan"
STEPS = yaml.safe_load((ACTION / "action.yml").read_text())
TOKEN = "ghs_token"


class GitHub:
    """The comments of pull request 7, as GitHub's REST API serves them."""

    def __init__(self) -> None:
        self.comments: dict[int, dict[str, Any]] = {}
        self.before_post: Callable[[], object] = lambda: None
        self.url = ""

    def add(self, body: str, kind: str = "Bot") -> dict[str, Any]:
        comment = {"id": len(self.comments) + 1, "body": body, "user": {"login": "x", "type": kind}}
        self.comments[len(self.comments) + 1] = comment
        return comment

    @property
    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.comments.values()]


@pytest.fixture
def github() -> Iterator[GitHub]:
    hub = GitHub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            size, page = min(int(query["per_page"][0]), 100), int(query["page"][0])
            self._answer(200, list(hub.comments.values())[size * (page - 1) : size * page])

        def do_POST(self) -> None:
            assert self.path == "/repos/acme/shop/issues/7/comments"
            hub.before_post()
            self._answer(201, hub.add(self._body()))

        def do_PATCH(self) -> None:
            comment = hub.comments[self._id()]
            comment["body"] = self._body()
            self._answer(200, comment)

        def do_DELETE(self) -> None:
            self._answer(204 if hub.comments.pop(self._id(), None) else 404, None)

        def _id(self) -> int:
            found = re.fullmatch(r"/repos/acme/shop/issues/comments/(\d+)", self.path)
            assert found is not None
            return int(found[1])

        def _body(self) -> str:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
            assert 0 < len(body) <= 65_536
            return str(body)

        def _answer(self, status: int, value: Any) -> None:
            if self.headers["Authorization"] != f"Bearer {TOKEN}":
                status, value = 403, {"message": "Resource not accessible by integration"}
            content = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub.url = f"http://127.0.0.1:{server.server_address[1]}"
        yield hub
        server.shutdown()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build(ROOT, tmp_path_factory.mktemp("wheel")).filename)


Run = Callable[..., tuple[bool, dict[str, str], str]]


@pytest.fixture
def run(running: Running, github: GitHub, wheel: str, tmp_path: Path) -> Run:
    """Run the action in a folder with `automations`; return whether it succeeded, its outputs, and its log."""
    (tmp_path / "automations").mkdir()
    key = running.workbench_with("events:read,sql:read")._connection._key or ""

    def run(**given: str) -> tuple[bool, dict[str, str], str]:
        values = {"github.action_path": str(ACTION), "github.token": TOKEN, "github.event.pull_request.number": "7"}

        def expand(text: str) -> str:
            return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: values.get(found[1], ""), text)

        inputs = {name: expand(declared.get("default", "")) for name, declared in STEPS["inputs"].items()}
        inputs |= {"url": running.url, "key": key, "package": wheel} | given
        values |= {f"inputs.{name}": value for name, value in inputs.items()}
        log = ""
        for step in STEPS["runs"]["steps"]:
            conditions = re.findall(r"(\S+) (==|!=) ''", step["if"])
            assert " && ".join(f"{name} {operator} ''" for name, operator in conditions) == step["if"]
            if any((values[name] == "") != (operator == "==") for name, operator in conditions):
                continue
            script, output = tmp_path / "step.sh", tmp_path / "output"
            script.write_text(step["run"])
            output.write_text("")
            environment = {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "RUNNER_TEMP": str(tmp_path),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_API_URL": github.url,
                "GITHUB_REPOSITORY": "acme/shop",
                "PIP_NO_INDEX": "1",  # the packages that it needs are taken from this environment
                "PIP_NO_DEPS": "1",
                **{name: expand(value) for name, value in step.get("env", {}).items()},
            }
            command = [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", str(script)]
            done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
            log += done.stdout + done.stderr
            if done.returncode:
                return False, {}, log
            lines = [line.partition("=") for line in output.read_text().splitlines()]
            values |= {f"steps.{step.get('id')}.outputs.{name}": value for name, _, value in lines}
        return True, {name: expand(declared["value"]) for name, declared in STEPS["outputs"].items()}, log

    return run


@pytest.fixture
def write(running: Running, tmp_path: Path) -> Callable[[str], None]:
    """Write the file of an automation, with a text in it."""

    def write(text: str) -> None:
        draft = running.workbench().automation("Planned").on("deposit").send_inapp("Thanks", text)
        payload = draft.to_json()
        content = AutomationFile("Planned", "live", payload["triggerSpec"], payload["graph"])
        (tmp_path / "automations" / "planned.json").write_text(content.text())

    return write


def test_one_comment_has_the_newest_plan_and_backtest(
    run: Run, write: Callable[[str], None], github: GitHub, running: Running
) -> None:
    for number in range(150):  # on an earlier page, and of a person who forges a plan
        github.add(f"<!-- event-workbench plan: automations -->\n{number}", "User")
    write("Text with ``` and @everyone")
    assert run()[:2] == (True, {"changes": "true"})
    assert len(github.comments) == 151
    comment = github.bodies[-1]
    assert comment.startswith(
        "<!-- event-workbench plan: automations -->\n### What `apply` would change in automations"
    )
    assert "````text\n+ planned.json (Planned): new\n" in comment
    assert "Would have started" in comment
    assert "wb_" not in comment
    assert running.url not in comment
    write("Another text")
    assert run()[0]
    assert len(github.comments) == 151
    assert "Another text" in github.bodies[-1]
    assert "everyone" not in github.bodies[-1]


def test_a_plan_without_changes_makes_no_comment_but_updates_one(
    run: Run, write: Callable[[str], None], github: GitHub, tmp_path: Path
) -> None:
    assert run(**{"backtest-days": "0"})[:2] == (True, {"changes": "false"})
    assert github.bodies == []
    write("Text")
    run(**{"backtest-days": "0"})
    (tmp_path / "automations" / "planned.json").unlink()
    run(**{"backtest-days": "0"})
    (comment,) = github.bodies
    assert "### `apply` would change nothing in automations" in comment


def test_what_cannot_be_applied_fails_with_a_comment(run: Run, github: GitHub, tmp_path: Path) -> None:
    (tmp_path / "automations" / "planned.json").write_text("{")
    assert not run()[0]
    (comment,) = github.bodies
    assert "### The plan of automations failed\n" in comment
    assert "planned.json: cannot be applied" in comment


def test_a_wrong_input_fails_with_a_comment(run: Run, github: GitHub) -> None:
    assert not run(**{"backtest-days": "x"})[0]
    (comment,) = github.bodies
    assert "### The plan of automations failed\n" in comment
    assert "invalid int value: 'x'" in comment


def test_an_empty_url_fails_before_anything_is_done(run: Run, github: GitHub) -> None:
    assert (run(url=""), github.bodies) == ((False, {}, "::error::The input url is empty.\n"), [])


@pytest.mark.parametrize("end", ["", "/"])
def test_a_failure_names_neither_url_nor_key(run: Run, github: GitHub, end: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert not run(url=url + end)[0]
    (comment,) = github.bodies
    assert "no response from ***" in comment
    assert url not in comment


def test_a_line_of_a_file_is_not_a_command_for_the_runner(run: Run, write: Callable[[str], None]) -> None:
    write("Text\n::error::forged")
    _, _, log = run(**{"backtest-days": "0"})
    match = re.search(r"::stop-commands::(\w{64})\n(.*)\n::(\w{64})::\n", log, re.DOTALL)
    assert match is not None
    assert match[1] == match[3]
    assert "planned.json (Planned): new" in match[2]
    assert log.replace(match[0], "").count("::") == 0


def test_a_pull_request_of_a_fork_has_no_key_and_gets_a_notice(run: Run, github: GitHub) -> None:
    succeeded, outputs, log = run(key="")
    assert (succeeded, outputs, github.bodies) == (True, {"changes": ""}, [])
    assert log.startswith("::notice::")


def test_two_runs_at_the_same_time_leave_one_comment(run: Run, write: Callable[[str], None], github: GitHub) -> None:
    write("Text")
    github.before_post = lambda: github.add("<!-- event-workbench plan: automations -->\nolder")
    assert run(**{"backtest-days": "0"})[0]
    (comment,) = github.bodies
    assert "planned.json (Planned): new" in comment


def test_a_token_that_may_not_comment_is_explained(run: Run, write: Callable[[str], None], github: GitHub) -> None:
    write("Text")
    succeeded, _, log = run(token="other", **{"backtest-days": "0"})
    assert not succeeded
    assert "Does the workflow have `permissions: pull-requests: write`?" in log
