"""Trust.md O1: the address of a node may hold its operator's key, in its path, its query or before its host. It is said nowhere.

A real follower process and a node that says the whole address again in every way it can; then everything that was said is searched.
"""

import asyncio
import os
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from api import settings
from api.chain.rpc import EvmNode, NodeError
from tests.chain.scripted import Refusal, ScriptedNode, scripted
from tests.chain.world import World

pytestmark = pytest.mark.chain

HEADER = b64encode(b"canary-user:canary/word").decode()
PLACES = ("canary-user", "canary%2Fword", "canary/word", "canary-path", "canary-query", HEADER)


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(100)) as node:
        host = node.url.split("/")[2]
        node.url = f"http://canary-user:canary%2Fword@{host}/v3/canary-path?key=canary-query&network=canary-query-too"
        yield node


def everything(node: ScriptedNode) -> list[Refusal]:
    """Return answers that say the address again."""
    said = f"{node.url} {quote(node.url)} {' '.join(PLACES)} {' '.join(PLACES).upper()}"
    return [
        Refusal(f"no project {said}", -32000),
        Refusal(f"rate limit of {said}", 429, 429),
        Refusal(f"response size of {said}", -32005),
        Refusal(body=f"<html>{said}</html>".encode(), status=502),
        Refusal(body=f"<html>{said}</html>".encode(), status=301, headers={"Location": node.url}),
        Refusal(body=f'{{"jsonrpc": "2.0", "id": 1, "result": "{node.url}"}}'.encode()),
    ]


def run(environment: dict[str, str], log: Path) -> None:
    """Run a follower process until it has met some troubles."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "api", "chain"], env=environment, stdout=output, stderr=output
        )
        try:
            for _ in range(300):
                if log.read_text().count("node_error") >= 6:
                    break
                time.sleep(0.1)
        finally:
            process.terminate()
            process.wait(20)


async def test_no_log_and_no_table_contains_the_url_of_a_node(world: World, node: ScriptedNode, tmp_path: Path) -> None:
    refusals = everything(node)
    asked = 0

    def again(_method: str, _params: list[Any]) -> Refusal | None:
        nonlocal asked
        asked += 1
        return refusals[asked // 3 % len(refusals)] if asked % 3 else None

    node.says = again
    log = tmp_path / "chain.log"
    environment = os.environ | {
        "DATABASE_URL": world.database.dsn,
        "WORKBENCH_EVM_RPC": f"{node.url},http://canary-user:canary%2Fword@127.0.0.1:9/canary-path",
        "WORKBENCH_SECRET": "engine-test-secret-of-forty-characters-x",
        "WORKBENCH_DATA_DIR": str(tmp_path),
    }
    await asyncio.to_thread(run, environment, log)
    said = log.read_text() + str(await world.fetch("SELECT c::text FROM chains c"))
    assert not [place for place in (*PLACES, *map(str.upper, PLACES)) if place in said]
    assert "no project" in said
    assert said.count("node_error") >= 6


async def test_errors_of_a_node_do_not_contain_its_url(node: ScriptedNode) -> None:
    for refusal in everything(node):
        node.says = lambda _method, _params, refusal=refusal: refusal
        asking = EvmNode(node.url)
        with pytest.raises(NodeError) as caught:
            await asking.head()
        await asking.close()
        assert not [place for place in (*PLACES, *map(str.upper, PLACES)) if place in f"{caught.value!r} {asking.name}"]


@pytest.mark.parametrize("url", ["ftp://canary-user@host/canary-path", "https:///canary-path", "https://[canary-path"])
def test_the_error_for_an_invalid_url_does_not_contain_it(url: str) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.read({"WORKBENCH_EVM_RPC": url})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None
