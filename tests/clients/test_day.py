"""The events of a day without network are kept, sent when it is back, and stored once, with their moments."""

import asyncio
import json
from datetime import datetime
from pathlib import Path

from tests.clients.conftest import Start
from tests.installation import Installation
from tests.promises.conftest import query
from tests.running import free_port

DAY_S = 86_400


async def test_events_wait_for_a_day_without_network(installation: Installation, start: Start, tmp_path: Path) -> None:
    keys = await installation.organization()
    port = free_port()
    with start("day", f"http://127.0.0.1:{port}", keys["live"]) as process:
        assert process.stdout is not None
        assert await asyncio.to_thread(process.stdout.readline) == "a day later\n"
        # Attempts write nothing: the folder has the 24 events, of 200 bytes each.
        assert sum(path.stat().st_size for path in (tmp_path / "spool").rglob("*") if path.is_file()) < 24 * 400
        installation.start_api(port=port)
        output, errors = await asyncio.to_thread(process.communicate, timeout=120)
    assert process.returncode == 0, errors
    day = json.loads(output)
    rows = await query(installation.dsn, "SELECT payload->'hour', occurred_at FROM events ORDER BY occurred_at")
    assert rows == [(hour, datetime.fromisoformat(moment)) for hour, moment in enumerate(day["moments"])]
    assert (day["waiting"], day["rejected"], day["longestPauseS"]) == (0, 0, 30)
    assert DAY_S / 30 <= day["attempts"] <= DAY_S / 30 + 100
    assert errors.count("events wait in") == 1
