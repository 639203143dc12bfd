"""Schedules: broadcasts that the engine plans at the times of an automation."""

from datetime import timedelta
from typing import Any

import pytest

from api.segments.broadcasts import plan_runs, send_due, start_due
from tests.segments.conftest import LateClock, Team
from tests.segments.test_broadcasts import call, entered
from tests.segments.test_starts import VIP, automate, tag

HOURLY = {"type": "schedule", "cron": "0 * * * *", "timezone": "Asia/Kolkata"}
HOUR = timedelta(hours=1)


@pytest.fixture
async def vip(acme: Team) -> str:
    """A contact in the segment `vip`, and one that is not."""
    contact_id = await acme.contact("ann")
    await acme.contact("ben")
    await tag(acme, contact_id, "vip")
    await acme.expect_success("POST", "", VIP)
    return contact_id


async def run_engines(team: Team, clock: LateClock) -> None:
    for _ in range(2):
        await plan_runs(team.services.database, clock)
    await start_due(team.services.database, clock)
    await send_due(team.services.database, clock)


async def runs(team: Team) -> list[tuple[Any, ...]]:
    """Return state, minute and segment of the runs, oldest first."""
    shown = (await call(team, "GET", "/broadcasts")).json()["broadcasts"]
    return [(run["state"], run["at"][14:16], run["segment"]) for run in reversed(shown) if run["scheduled"]]


async def test_each_run_starts_the_members_of_that_moment_once(acme: Team, vip: str, clock: LateClock) -> None:
    await automate(acme, **HOURLY)
    await run_engines(acme, clock)
    assert await runs(acme) == []  # what was before the publication is not made
    for _ in range(2):
        clock.ahead += HOUR
        await run_engines(acme, clock)
    assert await runs(acme) == [("done", "30", "vip")] * 2
    assert await entered(acme) == [vip, vip]
    events = await acme.rows("SELECT DISTINCT event FROM starts WHERE org_id = %s", acme.id)
    assert events == [("schedule",)]


async def test_runs_that_were_missed_are_made_once_or_skipped(acme: Team, vip: str, clock: LateClock) -> None:
    await automate(acme, **HOURLY)
    await automate(acme, **HOURLY | {"segment": None, "missed": "skip"})
    now = clock.now()
    clock.ahead = 10 * HOUR + now.replace(minute=50) - now  # 20 minutes after a run
    await run_engines(acme, clock)
    assert await runs(acme) == [("done", "30", "vip")]
    clock.ahead += timedelta(minutes=42)  # two minutes after the next one
    await run_engines(acme, clock)
    assert sorted(await runs(acme), key=str) == [
        ("done", "30", "vip"), ("done", "30", "vip"), ("done", "30", None)
    ]  # fmt: skip


async def test_runs_of_a_paused_automation_are_not_made_later(acme: Team, vip: str, clock: LateClock) -> None:
    automation_id = await automate(acme, **HOURLY)
    await call(acme, "POST", f"/automations/{automation_id}/pause")
    clock.ahead = 3 * HOUR
    await run_engines(acme, clock)
    assert await runs(acme) == []
