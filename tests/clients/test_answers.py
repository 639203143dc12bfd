"""Each client does the same after the same answers of a server (`answers.json`)."""

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import PRODUCERS, Start
from tests.running import free_port
from workbench import Client

CASES = json.loads(Path(__file__).with_name("answers.json").read_text())
ME = {"organization": "demo", "key": {"kind": "live"}}


class _Answers:
    """What a server answers to batches, and the sizes and the times of these."""

    def __init__(self, answers: list[dict[str, Any]]) -> None:
        self.answers = answers
        self.requests: list[list[dict[str, Any]]] = []
        self.times: list[float] = []


@contextmanager
def serving(answers: _Answers) -> Iterator[str]:
    """Serve `/me`, and the answers to batches in their order; yield the URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(200, {}, json.dumps(ME))

        def do_POST(self) -> None:
            events = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["events"]
            answers.requests.append(events)
            answers.times.append(time.monotonic())
            answer = answers.answers[len(answers.requests) - 1]
            if "closes" in answer:
                self.close_connection = True
                return
            body = answer.get("body")
            if "results" in answer:
                body = {"results": [_result(*pair) for pair in zip(answer["results"], events, strict=False)]}
            text = answer.get("text", json.dumps(body))
            self._answer(answer.get("status", 202), answer.get("headers", {}), text)

        def _answer(self, status: int, headers: dict[str, str], text: str) -> None:
            kind = "application/json" if text.startswith("{") else "text/html"
            self.send_response(status)
            for name, value in {**headers, "Content-Type": kind, "Content-Length": len(text.encode())}.items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def _result(outcome: str, event: dict[str, Any]) -> dict[str, Any]:
    if outcome not in ("accepted", "deduplicated"):
        return {"accepted": False, "deduplicated": False, "error": outcome}
    key = event["idempotencyKey"]
    return {"accepted": True, "deduplicated": outcome == "deduplicated", "idempotencyKey": key}


@pytest.mark.parametrize("name", CASES)
def test_an_answer_has_the_same_consequence_for_each_client(start: Start, name: str) -> None:
    case = CASES[name]
    answers = _Answers(case["answers"])
    with serving(answers) as url, start("three", url, "sk_live_x") as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    result = json.loads(output)
    assert [len(events) for events in answers.requests] == case["requests"]
    assert {name: result[name] for name in ("waiting", "failure", "rejected")} == {
        "waiting": 0,
        "failure": None,
        "rejected": case.get("rejected", []),
    }
    assert answers.times[-1] - answers.times[0] >= case.get("leastSeconds", 0)
    sent = {event["idempotencyKey"]: event["payload"] for events in answers.requests for event in events}
    assert sent == {key: {"n": number, "text": "ä"} for number, key in enumerate(result["keys"])}


def test_business_keys_are_the_same_in_all_clients(start: Start) -> None:
    with serving(_Answers([{"results": ["accepted"] * 3}])) as url, start("three", url, "sk_live_x") as process:
        output, _ = process.communicate(timeout=60)
    assert json.loads(output)["keys"][1] == "order:2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd"


@pytest.mark.node
def test_a_python_client_leaves_the_events_of_a_node_client_in_the_same_folder(tmp_path: Path) -> None:
    arguments = ["endless", f"http://127.0.0.1:{free_port()}", "sk_live_x", str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*PRODUCERS["node"], *arguments], text=True, **pipes) as node:
        assert node.stdout is not None
        for _ in range(9):  # one event of each contact
            node.stdout.readline()
        node.kill()
    before = {path.name: path.read_bytes() for path in tmp_path.glob("*.lane?")}
    Client(*arguments[1:3], spool=tmp_path).close(timeout_s=0)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.lane?")} == before
    assert len(before) == 4
