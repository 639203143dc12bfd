"""The measured processes and their references, each with a database that holds the returning contacts."""

import contextlib
import http.client
from collections.abc import Iterator
from typing import Any

import msgspec
from psycopg import sql

from bench.filling import fill_fastapi
from bench.load import LoadSpec
from bench.postgres import SECRET, Database, Postgres, create, execute
from bench.processes import Service, running
from bench.sending import send
from bench.traffic import AUTOMATION_EVENT, BATCH

SINGLES, BATCHES, AUTOMATIONS = "/api/v1/events", "/api/v1/events/batch", "/api/v1/automations"
FASTAPI_POOL = 32  # connections to Postgres

_AUTOMATION = {
    "name": "welcome",
    "triggerSpec": {
        "type": "app_event",
        "event": AUTOMATION_EVENT,
        "filters": [{"path": "asset", "operator": "eq", "value": "USDC"}],
    },
    "graph": {
        "nodes": [
            {"id": "t", "type": "app_event", "data": {"actionType": "app_event", "event": AUTOMATION_EVENT}},
            {"id": "tag", "type": "add_tag", "data": {"actionType": "add_tag", "tag": "depositor"}},
        ],
        "edges": [{"id": "e", "source": "t", "target": "tag"}],
    },
}


@contextlib.contextmanager
def apis(server: Postgres, database: Database, count: int) -> Iterator[tuple[Service, ...]]:
    """Run API processes on a database with the returning contacts and a published automation."""
    with bare_apis(server, database, count) as services:
        _furnish(server, database, services[0])
        yield services


@contextlib.contextmanager
def bare_apis(server: Postgres, database: Database, count: int, fast_path: str = "on") -> Iterator[tuple[Service, ...]]:
    """Run API processes on a database as it is."""
    environment = {"DATABASE_URL": database.dsn, "WORKBENCH_SECRET": SECRET, "WORKBENCH_INGEST_RATE": "0"}
    environment["WORKBENCH_FAST_PATH"] = fast_path
    serve = ("-m", "api", "serve", "--port", "{port}")
    with contextlib.ExitStack() as stack:
        log = server.home / "api.log"
        yield tuple(stack.enter_context(running(*serve, log=log, environment=environment)) for _ in range(count))


@contextlib.contextmanager
def noop(server: Postgres) -> Iterator[Service]:
    """Run the bare route."""
    with running("-m", "bench.noop", "{port}", log=server.home / "noop.log") as service:
        yield service


@contextlib.contextmanager
def fastapi(server: Postgres, key: str) -> Iterator[Service]:
    """Run the FastAPI endpoint on a separate database with the same contacts and the same key."""
    dsn = create(server, "fastapi")
    environment = {"DATABASE_URL": dsn, "BENCH_KEY": key, "BENCH_POOL": str(FASTAPI_POOL)}
    command = ("-m", "bench.fastapi_endpoint", "{port}")
    with running(*command, log=server.home / "fastapi.log", environment=environment) as service:
        fill_fastapi(dsn)
        yield service


def publish(service: Service, database: Database, automation: dict[str, Any]) -> str:
    """Create and publish an automation; return its id."""
    created: str = ask(service, database, AUTOMATIONS, automation)["id"]
    ask(service, database, f"{AUTOMATIONS}/{created}/publish", {})
    return created


def _furnish(server: Postgres, database: Database, service: Service) -> None:
    publish(service, database, _AUTOMATION)
    everybody = LoadSpec(
        path=BATCHES, key=database.live_key, connections=4, seconds=60.0, events_per_request=BATCH, introduce=True
    )
    send(server, everybody, service)
    execute(database.dsn, sql.SQL("VACUUM ANALYZE"))


def ask(service: Service, database: Database, path: str, body: dict[str, Any], timeout_s: float = 10.0) -> Any:
    """Post with the workbench key; return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {database.workbench_key}", "Content-Type": "application/json"}
    try:
        connection.request("POST", path, msgspec.json.encode(body), headers)
        response = connection.getresponse()
        answer = msgspec.json.decode(response.read())
    finally:
        connection.close()
    if response.status >= 300:
        raise RuntimeError(f"{path}: {response.status} {answer}")
    return answer
