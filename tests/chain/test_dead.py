"""A log that the database refuses is stored as dead, with the reason, and everything else continues."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from api.auth import keys
from tests.chain.organization import ChainOrg
from tests.chain.scripted import ScriptedNode, scripted
from tests.chain.test_nodes import publish, publish_and_follow

BLOCKS = 100


@pytest.fixture
def node() -> Iterator[ScriptedNode]:
    with scripted(ScriptedNode(BLOCKS)) as node:
        yield node


def operator(dsn: str, action: str) -> str:
    """Return the output of `workbench chain`."""
    command = [sys.executable, "-m", "api", "chain", action]
    return subprocess.run(
        command, check=False, env=os.environ | {"DATABASE_URL": dsn}, capture_output=True, text=True
    ).stdout


async def test_only_the_refused_log_is_left_out(
    org: ChainOrg, node: ScriptedNode, caplog: pytest.LogCaptureFixture
) -> None:
    other = ChainOrg(org.database, await keys.create_org(org.database.dsn, "other"), org.transports)
    await org.execute(
        "ALTER TABLE onchain_events ADD CONSTRAINT unlucky"
        " CHECK (args ->> 'value' NOT IN ('13', '90') OR args ->> 'value' = '13' AND org_id > 1)"
    )
    with caplog.at_level(logging.INFO):
        await publish(other, node)
        await publish_and_follow(org, node)
        await org.until("SELECT block_number FROM chains", (BLOCKS,))
    counts = await org.fetch("SELECT org_id, count(*) FROM onchain_events GROUP BY 1 ORDER BY 1")
    assert counts == [(org.org_id, BLOCKS - 2), (other.org_id, BLOCKS - 1)]
    assert await org.fetch("SELECT org_id, block_number, reason FROM chain_dead_logs ORDER BY 1, 2") == [
        (org.org_id, 13, "CheckViolation onchain_events unlucky"),
        (org.org_id, 90, "CheckViolation onchain_events unlucky"),
        (other.org_id, 90, "CheckViolation onchain_events unlucky"),
    ]
    output = await asyncio.to_thread(operator, org.database.dsn, "dead")
    assert sorted(line.split("\t")[:3] for line in output.splitlines()) == [
        ["chain", "5", "13"],
        ["chain", "5", "90"],
        ["other", "5", "90"],
    ]
    assert all(line.endswith("CheckViolation onchain_events unlucky") for line in output.splitlines())
    assert f"5\tread up to {BLOCKS}\thead {BLOCKS}\t" in await asyncio.to_thread(operator, org.database.dsn, "status")
    assert [record.message for record in caplog.records].count("log_dead") == 3
    await org.until("SELECT problem FROM chains", (None,))


async def test_a_page_refused_for_another_reason_is_retried(org: ChainOrg, node: ScriptedNode) -> None:
    await org.execute("ALTER TABLE chain_blocks ADD CONSTRAINT unlucky CHECK (number <> 100)")
    await publish_and_follow(org, node, BLOCKS - 5)
    await org.until(
        "SELECT problem FROM chains", ("the database refuses the blocks: CheckViolation chain_blocks unlucky",)
    )
    assert await org.fetch("SELECT count(*) FROM chain_dead_logs") == [(0,)]
    assert await org.fetch("SELECT count(*) FROM onchain_events") == [(0,)]
