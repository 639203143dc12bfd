"""Entries that wait are moved to a new version, and then do what was predicted for each.

Entries of one automation wait at three steps: a delay, an event, a date of the contact. A publication moves them by a
mapping; the time is that from the request until the move is done. All waits end afterwards, and engines take the steps
that follow. The step, its moment and the next step of each entry are compared with the prediction.
"""

import http.client
import time
from pathlib import Path
from typing import Any

import msgspec

from bench import engines, postgres, site
from bench.effort import Effort, Measurement
from bench.postgres import Database, connect
from bench.processes import Service
from bench.table import at_most, row

ENTRIES = 100_000
_ENDS_IN_S, _SPREAD_S = 150, 60
_TIMEOUT_S = 600.0
_FILL = (Path(__file__).with_name("fill") / "waiting_entries.sql").read_bytes()
_DIFFERENT = b"""
    SELECT count(*), count(*) FILTER (WHERE ended.outcome IS DISTINCT FROM m.outcome
                                      OR ended.at IS DISTINCT FROM m.until
                                      OR following.node_id IS DISTINCT FROM m.next_node_id)
    FROM workbench.entry_moves m
    LEFT JOIN LATERAL (
        SELECT outcome, at, claim, step FROM workbench.entry_steps
        WHERE org_id = 1 AND entry_id = m.entry_id AND node_id = m.node_id AND outcome <> 'waiting'
        ORDER BY claim, step LIMIT 1
    ) AS ended ON true
    LEFT JOIN LATERAL (
        SELECT node_id FROM workbench.entry_steps
        WHERE org_id = 1 AND entry_id = m.entry_id AND (claim, step) > (ended.claim, ended.step)
        ORDER BY claim, step LIMIT 1
    ) AS following ON true
    WHERE m.org_id = 1 AND m.moved_at IS NOT NULL"""


def measure(effort: Effort) -> Measurement:
    """Move the entries once, and compare what they do with the predictions; raise RuntimeError if one differs."""
    count = ENTRIES if effort.rounds > 5 else ENTRIES // 10
    with postgres.running() as server:
        database = postgres.prepared(server, "moving")
        with site.bare_apis(server, database, 1) as (api,):
            automation_id = site.publish(api, database, automation(seconds=3 * 86_400, text="Thank you"))
            with connect(database.dsn) as connection:
                values = {"count": count, "automation_id": automation_id, "ends_in": _ENDS_IN_S, "spread": _SPREAD_S}
                connection.execute(_FILL, values)
                connection.execute(b"ANALYZE")
            seconds = _move(api, database, automation_id, count)
            with engines.engines(server, database, 2):
                _await_end(database)
            with connect(database.dsn) as connection:
                moved, different = connection.execute(_DIFFERENT).fetchone() or (0, 0)
        if (moved, different) != (count, 0):
            raise RuntimeError(f"{moved} of {count} entries were moved, {different} did not do what was predicted")
    name = f"move {count:,} waiting entries, all of them as predicted"
    return Measurement([row(name, "s", [seconds], None, at_most(60))], {})


def automation(seconds: int, text: str) -> dict[str, Any]:
    """Return an automation whose entries wait for a time, an event or a date."""
    ways = [{"handle": "a", "percent": 33}, {"handle": "b", "percent": 33}, {"handle": "c", "percent": 34}]
    message = {"recipientMode": "triggering_profile", "title": text, "body": "{{ amountUsd }} {{ asset }}"}
    nodes = {
        "t": ("app_event", {"event": "deposit"}),
        "way": ("split", {"branches": ways}),
        "pause": ("delay", {"seconds": seconds}),
        "order": ("wait_for_event", {"event": "order", "timeoutSeconds": seconds}),
        "date": ("wait_until", {"attribute": "renewsAt"}),
        "thanks": ("send_inapp", message),
        "late": ("add_tag", {"tag": "late"}),
        "renewed": ("add_tag", {"tag": "renewed"}),
    }
    edges = [
        ("t", None, "way"), ("way", "a", "pause"), ("way", "b", "order"), ("way", "c", "date"),
        ("pause", None, "thanks"), ("order", "matched", "thanks"), ("order", "timeout", "late"),
        ("date", "reached", "renewed"),
    ]  # fmt: skip
    graph = {
        "nodes": [{"id": node_id, "type": kind, "data": data} for node_id, (kind, data) in nodes.items()],
        "edges": [
            {"id": f"{source}-{handle}", "source": source, "sourceHandle": handle, "target": target}
            for source, handle, target in edges
        ],
    }
    return {"name": "waiting", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": graph}


def _move(api: Service, database: Database, automation_id: str, count: int) -> float:
    """Publish the next version with a move; return the seconds until every entry was looked at."""
    path = f"{site.AUTOMATIONS}/{automation_id}"
    edit = automation(seconds=3 * 86_400 - 30, text="Thanks again") | {
        "revision": _get(api, database, path)["revision"]
    }
    _request(api, database, "PUT", path, edit)
    began = time.monotonic()
    mapping = {"pause": "pause", "order": "order", "date": "date"}
    move = _request(api, database, "POST", f"{path}/publish", {"move": mapping})["moves"]
    while move["state"] in ("planned", "running"):
        time.sleep(0.1)
        move = _get(api, database, f"{path}/moves/{move['id']}")
    seconds = time.monotonic() - began
    if (move["state"], move["moved"]) != ("done", count):
        raise RuntimeError(f"{move['moved']} of {count} were moved: {move['reasons']}")
    return seconds


def _get(api: Service, database: Database, path: str) -> dict[str, Any]:
    return _request(api, database, "GET", path, None)


def _request(api: Service, database: Database, method: str, path: str, body: Any) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=60)
    headers = {"authorization": f"Bearer {database.workbench_key}", "content-type": "application/json"}
    connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
    response = connection.getresponse()
    answer = response.read()
    connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{method} {path}: {response.status} {answer[:500]!r}")
    decoded: dict[str, Any] = msgspec.json.decode(answer)
    return decoded


def _await_end(database: Database) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    with connect(database.dsn) as connection:
        while connection.execute(
            b"SELECT EXISTS (SELECT FROM workbench.entries WHERE state IN ('waiting', 'running'))"
        ).fetchone() == (True,):
            if time.monotonic() > deadline:
                raise RuntimeError("entries have not ended")
            time.sleep(0.5)
