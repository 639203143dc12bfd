"""One request id leads from the request to its effects, and `workbench top` lists all processes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from api.store.database import libpq_dsn
from tests.inapp.wallet import evm_wallet
from tests.installation import Installation, until
from tests.running import free_port

GRAPH = {
    "nodes": [
        {"id": "t", "type": "app_event"},
        {
            "id": "m",
            "type": "send_inapp",
            "data": {"recipientMode": "triggering_profile", "title": "Hi", "body": "there"},
        },
        {"id": "w", "type": "send_email", "data": {"subject": "Hi", "body": "there"}},
    ],
    "edges": [{"source": "t", "target": "m"}, {"source": "m", "target": "w"}],
}


def run_command(command: list[str], environment: dict[str, str]) -> str:
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=True).stdout


def lines(folder: Path, program: str) -> list[dict[str, Any]]:
    text = "".join(file.read_text() for file in folder.glob(f"{program}-*.log"))
    return [json.loads(line) for line in text.splitlines()]


async def test_a_request_id_leads_from_the_request_to_its_effects(installation: Installation, tmp_path: Path) -> None:
    port = free_port()
    metrics = {"WORKBENCH_METRICS": str(port), "WORKBENCH_LOG_REQUESTS": "all", "WORKBENCH_RETRY_DELAYS": "60"}
    api = installation.start_api("--workers", "2", **metrics)
    installation.start_engine(**metrics)
    keys = await installation.organization()
    with api.client(keys["workbench"]) as author, api.client(keys["live"]) as backend:
        draft = {
            "name": "hello",
            "triggerSpec": {"type": "app_event", "event": "deposit"},
            "graph": GRAPH,
            "active": True,
        }
        created = author.post("/automations", json=draft).json()
        author.post(f"/automations/{created['id']}/publish", json={"revision": created["revision"]}).raise_for_status()
        event = {
            "event": "deposit",
            "contact": {"walletAddress": evm_wallet("A"), "email": "a@example.com"},
            "idempotencyKey": "k1",
        }
        posted = backend.post("/events", json=event, headers={"X-Request-Id": "checkout-4711"})
        assert (posted.status_code, posted.headers["x-request-id"]) == (202, "checkout-4711")
    effects: list[tuple[str, str]] = []

    def has_effects() -> bool:
        logged = [line for line in lines(tmp_path, "engine") if line["word"] == "effects"]
        own = [effect for line in logged for effect in line["effects"] if effect["request_id"] == "checkout-4711"]
        effects[:] = [(effect["kind"], effect["outcome"]) for effect in own]
        return len(effects) == 2

    until(has_effects, "the engine logs its effects")
    assert effects == [("send_inapp", "sent"), ("send_email", "sent")]
    requests = [line for line in lines(tmp_path, "serve") if line.get("request_id") == "checkout-4711"]
    assert [(line["word"], line["route"], line["status"]) for line in requests] == [("request", "/api/v1/events", 202)]

    def text() -> str:
        return httpx.get(f"http://127.0.0.1:{port}/metrics").text

    until(lambda: text().count("workbench_process_info{") == 3, "two APIs and an engine publish metrics")
    until(lambda: 'kind="send_inapp",outcome="sent"' in text(), "the step is counted")
    environment = {**os.environ, "WORKBENCH_DATA_DIR": str(tmp_path), "DATABASE_URL": libpq_dsn(installation.dsn)}
    command = [sys.executable, "-m", "api", "top", "--once", "--port", api.url.rpartition(":")[2]]
    screen = run_command(command, environment)
    assert re.match(r"API ready   oldest due entry \d+ m?s late   0 events wait   0 sockets\n", screen)
    assert screen.count("\napi-") == 2
    assert "\nengine-" in screen
    assert "send_inapp sent" in screen


def test_top_without_processes_explains_the_missing_metrics(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "api", "top", "--once", "--data-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "workbench: no metrics found in this data folder; is the service running? See --data-dir\n"
