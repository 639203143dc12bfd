"""Events of hours without network are kept, sent when it is back, and stored once, with their moments.

`OFFLINE_HOURS=24` is a day, with about 5,760 attempts.
"""

import asyncio
import json
import os
from datetime import datetime
from pathlib import Path

from tests.clients.conftest import Start
from tests.installation import Installation
from tests.promises.conftest import query
from tests.running import free_port

HOURS = int(os.environ.setdefault("OFFLINE_HOURS", "2"))


async def test_events_wait_for_hours_without_network(installation: Installation, start: Start, tmp_path: Path) -> None:
    keys = await installation.organization()
    port = free_port()
    with start("day", f"http://127.0.0.1:{port}", keys["live"]) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "a day later\n"
        # Attempts write nothing: the folder has an event of 200 bytes for each hour.
        assert (
            sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*") if path.is_file()) < HOURS * 400 + 400
        )
        installation.start_api(port=port)
        output, errors = await asyncio.to_thread(process.communicate, timeout=120)
    assert process.returncode == 0, errors
    day = json.loads(output)
    rows = await query(installation.dsn, "SELECT payload->'hour', occurred_at FROM events ORDER BY occurred_at")
    assert rows == [(hour, datetime.fromisoformat(moment)) for hour, moment in enumerate(day["moments"])]
    assert (day["waiting"], day["rejected"]) == (0, 0)
    # Pauses are random, up to 30 s.
    assert 28 < day["longestPauseS"] < 30
    assert HOURS * 200 < day["attempts"] < HOURS * 280 + 20
    assert errors.count("events wait in") == 1
