"""The documentation names all metrics, and the dashboard uses metrics that exist."""

import json
import re
from pathlib import Path

import pytest

from api.channels.outgoing import open_transports
from api.clock import Clock
from api.crypto import Keyring
from api.engine.drive import Driver
from api.engine.loop import Engine
from api.metrics import collect
from api.metrics.collect import Lag, ProcessMetrics
from api.settings import read
from api.store.database import Database
from api.store.engines import Listener
from tests.routes.conftest import serving
from workbench.language.channel import DEFAULT_POLICY

DOCS = Path(__file__).parents[2] / "docs"
NAME = re.compile(r"workbench_[a-z_]+")
NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.fixture(scope="module")
async def names() -> set[str]:
    """Return the names of all metrics of the project."""
    keyring, database, clock = Keyring("a secret"), Database(NOWHERE), Clock()
    transports = open_transports(read({}))
    engine = Engine(database, Driver(database, keyring, clock, DEFAULT_POLICY, transports), clock, Listener(NOWHERE))
    async with serving(NOWHERE) as service:
        lag = Lag(service.services.system_database, clock)
        api = ProcessMetrics("api", lambda: collect.collect_api(service.services, lag)).text()
    text = api + ProcessMetrics("engine", lambda: collect.collect_engine(engine, {"engine": database})).text()
    await transports.close()
    return {line.split()[2] for line in text.decode().splitlines() if line.startswith("# TYPE workbench_")}


def test_the_page_describes_every_metric(names: set[str]) -> None:
    table = [
        line.split("|")[1]
        for line in (DOCS / "operations.md").read_text().splitlines()
        if line.startswith("| `workbench_")
    ]
    assert set(NAME.findall("".join(table))) == names


def test_the_dashboard_uses_existing_metrics(names: set[str]) -> None:
    panels = json.loads((DOCS / "observe" / "grafana.json").read_text())["panels"]
    used = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    assert {name.removesuffix("_bucket") for name in used} <= names
    assert len(used) > 15
