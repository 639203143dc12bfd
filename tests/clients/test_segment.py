"""Segment's library for Node works unmodified. That for Python is tested in tests/routes/test_tracking.py."""

import asyncio
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.installation import Installation
from tests.promises.conftest import query

PROGRAM = Path(__file__).parents[2] / "clients" / "node" / "test" / "segment.mjs"


@pytest.mark.node
async def test_the_library_of_segment_for_node_works_unmodified(installation: Installation) -> None:
    keys = await installation.organization()
    command = ["node", str(PROGRAM), installation.start_api().url, keys["live"]]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    names = await query(installation.dsn, "SELECT event FROM events")
    assert Counter(name for (name,) in names) == {"order_completed": 150} | dict.fromkeys(
        ("identify", "page", "screen", "group", "alias"), 1
    )
    numbers = await query(
        installation.dsn,
        "SELECT count(DISTINCT payload->'number') FROM events WHERE event = 'order_completed'"
        " AND occurred_at BETWEEN now() - interval '2 hours' AND now() - interval '30 minutes'",
    )
    assert numbers == [(150,)]
    assert await query(installation.dsn, "SELECT external_id, attributes FROM contacts") == [("u1", {"plan": "pro"})]
