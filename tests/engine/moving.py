"""Publishing a second version of an automation whose entries wait, and moving them to it."""

from datetime import timedelta
from typing import Any

from api.automations import automations, moves
from api.automations.automations import Author, NewMove, Refusal
from api.automations.body import AutomationEdit
from api.automations.moves import MoveServices
from api.clock import uuid7
from tests.engine.conftest import EngineBench, written_graph
from workbench.language.codec import encode
from workbench.language.moves import MoveMode
from workbench.language.responses import MoveView

KEY = "00000000-0000-7000-8000-000000000001"


def author(bench: EngineBench) -> Author:
    return Author(bench.org_id, KEY, bench.clock.now_us())


def services(bench: EngineBench) -> MoveServices:
    return MoveServices(bench.database, bench.keyring, bench.clock, bench.retries)


async def edit(bench: EngineBench, automation_id: str, graph: dict[str, Any], trigger: Any = None) -> None:
    async with bench.database.transaction() as tx:
        row = await automations.store.find_automation(tx, bench.org_id, automation_id)
    assert row is not None
    spec = None if trigger is None else encode(trigger)
    changed = AutomationEdit(row.revision, None, spec, encode(graph), None)
    edited = await automations.update(bench.database, author(bench), automation_id, changed)
    assert not isinstance(edited, Refusal), edited


async def plan_move(
    bench: EngineBench, automation_id: str, mode: MoveMode, patience: timedelta = moves.MAX_BUSY_TIME
) -> str | Refusal:
    """Publish the draft with a move that nothing has applied; return the move."""
    move = NewMove(uuid7(bench.clock.now_us()), mode, patience)
    published = await automations.publish(bench.database, author(bench), automation_id, None, move)
    return published if isinstance(published, Refusal) else move.id


async def publish(
    bench: EngineBench,
    automation_id: str,
    nodes: list[dict[str, Any]],
    edges: list[tuple[str, ...]],
    mode: MoveMode = "safe",
    **settings: Any,
) -> MoveView:
    """Publish another version and move the entries to it; return the move."""
    await edit(bench, automation_id, written_graph(nodes, edges, settings))
    planned = await plan_move(bench, automation_id, mode)
    assert isinstance(planned, str), planned
    return await moves.complete(services(bench), bench.org_id, automation_id, planned)


async def move_back(bench: EngineBench, automation_id: str, move: MoveView) -> MoveView:
    assert move.id is not None
    undone = await moves.undo(services(bench), author(bench), automation_id, move.id)
    assert isinstance(undone, MoveView), undone
    return undone
