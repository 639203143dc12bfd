"""Provides helpers to pause and resume automations with waiting entries."""

from itertools import pairwise
from typing import Any

from api.automations import automations
from api.automations.automations import Author, Refusal
from api.clock import uuid7
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet

TRIGGER = {"id": "t", "type": "app_event", "data": {}}
WAIT = {"id": "d", "type": "delay", "data": {"seconds": 60}}
TAG = {"id": "g", "type": "add_tag", "data": {"tag": "late"}}
AWAIT = {"id": "w", "type": "wait_for_event", "data": {"event": "bought", "timeoutSeconds": 3600}}


def author(bench: EngineBench) -> Author:
    now = bench.clock.now_us()
    return Author(bench.org_id, uuid7(now), now)


async def pause(bench: EngineBench, automation_id: str) -> None:
    row = await automations.pause(bench.database, author(bench), automation_id)
    assert not isinstance(row, Refusal)
    assert row.paused_at is not None


async def resume(bench: EngineBench, automation_id: str, *, cancel_overdue: bool = False) -> None:
    caller = author(bench)
    row = await automations.resume(bench.database, caller, automation_id, cancel_overdue=cancel_overdue)
    assert not isinstance(row, Refusal)
    assert row.paused_at is None


async def start_waiting(bench: EngineBench, *nodes: dict[str, Any], events: int = 1) -> str:
    """Publish an automation, send `events` events, and drive their entries once."""
    steps = [TRIGGER, *nodes]
    edges = [(a["id"], b["id"]) for a, b in pairwise(steps)]
    automation_id = await bench.automation(steps, edges)
    for number in range(events):
        await bench.send(f"k{number}", {"walletAddress": evm_wallet(number)})
    await bench.drive()
    return automation_id
