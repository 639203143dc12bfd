"""Trust.md O1: the URL of a node may contain a key of the operator, in its path, its query or its user part.

A real follower process reads a node that repeats the whole URL in every way. Then logs and tables are searched for it.
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
from tests.chain.organization import ChainOrg
from tests.chain.scripted import Refusal, ScriptedNode, scripted

pytestmark = pytest.mark.chain

HEADER = b64encode(b"canary-user:canary/word").decode()
PLACES = ("canary-user", "canary%2Fword", "canary/word", "canary-path", "canary-query", HEADER)


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(100)) as node:
        host = node.url.split("/")[2]
        node.url = f"http://canary-user:canary%2Fword@{host}/v3/canary-path?key=canary-query&network=canary-query-too"
        yield node


def refusals_with_url(node: ScriptedNode) -> list[Refusal]:
    """Return refusals that repeat the URL."""
    text = f"{node.url} {quote(node.url)} {' '.join(PLACES)} {' '.join(PLACES).upper()}"
    return [
        Refusal(f"no project {text}", -32000),
        Refusal(f"rate limit of {text}", 429, 429),
        Refusal(f"response size of {text}", -32005),
        Refusal(body=f"<html>{text}</html>".encode(), status=502),
        Refusal(body=f"<html>{text}</html>".encode(), status=301, headers={"Location": node.url}),
        Refusal(body=f'{{"jsonrpc": "2.0", "id": 1, "result": "{node.url}"}}'.encode()),
    ]


def run(environment: dict[str, str], log: Path) -> None:
    """Run a follower process until it has logged six errors."""
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


async def test_no_log_and_no_table_contains_the_url_of_a_node(
    org: ChainOrg, node: ScriptedNode, tmp_path: Path
) -> None:
    refusals = refusals_with_url(node)
    requests = 0

    def refuse_two_of_three(_method: str, _params: list[Any]) -> Refusal | None:
        nonlocal requests
        requests += 1
        return refusals[requests // 3 % len(refusals)] if requests % 3 else None

    node.refuse = refuse_two_of_three
    log = tmp_path / "chain.log"
    environment = os.environ | {
        "DATABASE_URL": org.database.dsn,
        "WORKBENCH_EVM_RPC": f"{node.url},http://canary-user:canary%2Fword@127.0.0.1:9/canary-path",
        "WORKBENCH_SECRET": "engine-test-secret-of-forty-characters-x",
        "WORKBENCH_DATA_DIR": str(tmp_path),
    }
    await asyncio.to_thread(run, environment, log)
    output = log.read_text() + str(await org.fetch("SELECT c::text FROM chains c"))
    assert not [place for place in (*PLACES, *map(str.upper, PLACES)) if place in output]
    assert "no project" in output
    assert output.count("node_error") >= 6


async def test_errors_of_a_node_do_not_contain_its_url(node: ScriptedNode) -> None:
    for refusal in refusals_with_url(node):
        node.refuse = lambda _method, _params, refusal=refusal: refusal
        evm_node = EvmNode(node.url)
        with pytest.raises(NodeError) as caught:
            await evm_node.head()
        await evm_node.close()
        assert not [
            place for place in (*PLACES, *map(str.upper, PLACES)) if place in f"{caught.value!r} {evm_node.name}"
        ]


@pytest.mark.parametrize("url", ["ftp://canary-user@host/canary-path", "https:///canary-path", "https://[canary-path"])
def test_the_error_for_an_invalid_url_does_not_contain_it(url: str) -> None:
    with pytest.raises(settings.SettingsError) as caught:
        settings.read({"WORKBENCH_EVM_RPC": url})
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None
