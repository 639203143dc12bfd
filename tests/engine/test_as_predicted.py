"""For random pairs of versions, an entry that is moved between them does what was predicted for it."""

from datetime import timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from api.automations import automations, moves
from api.channels.outgoing import OUTGOING, Transports
from api.clock import from_us, uuid7
from tests.engine.conftest import AcceptingTransport, EngineBench, ManualClock, MovedClock, compared_cases
from tests.engine.moving import author, edit, plan_move, services
from tests.inapp.wallet import evm_wallet
from tests.language.strategies import EVENTS, SINCE, SIX_DAYS_AGO, SNIPPETS, STEPS, nodes, sound_graphs, ways_of
from tests.language.strategies import settings as graph_settings
from workbench.language.run import TERMINAL

BODIES = st.fixed_dictionaries(
    {
        "event": st.sampled_from(EVENTS),
        "payload": st.dictionaries(
            st.sampled_from(["size", "plan", "é", "since"]),
            st.sampled_from(
                ["pro", 1, 2.5, None, Decimal("1E+2"), Decimal("-0.0"), {"bb": 1, "a": [Decimal("2E+1")]}, SIX_DAYS_AGO]
            ),
        ),
        "attributes": st.dictionaries(st.sampled_from(["plan", "locale"]), st.sampled_from(["pro", "free", "de-at"]))
        | SINCE,
    }
)
WAITING = st.sampled_from(["delay", "delay", "wait_for_event", "wait_until", "collect", "send_inapp"]).flatmap(
    lambda kind: STEPS[kind].map(lambda data: {"type": kind, "data": data})
)


@st.composite
def waiting_paths(draw: st.DrawFn) -> dict[str, Any]:
    """Return a graph whose entries wait early: one path, on which every way of a step leads to the next one."""
    steps = [
        draw(steps) for steps in (WAITING, WAITING, *draw(st.lists(st.sampled_from([nodes, WAITING]), max_size=3)))
    ]
    numbered = [{**step, "id": str(number)} for number, step in enumerate(steps, 1)]
    return on_a_path(numbered) | {"settings": draw(graph_settings), "snippets": SNIPPETS}


def on_a_path(steps: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a graph with these steps one after the other."""
    written = [{"id": "0", "type": "app_event", "data": {}}]
    for step in steps:
        written.append(step)
        if step["type"] == "exit":
            break
    if len(ways_of(written[-1])) > 1:  # a step that branches needs an edge
        written.append({"id": "end", "type": "exit", "data": {}})
    edges = [
        {"source": source["id"], "sourceHandle": way, "target": target["id"]}
        for source, target in pairwise(written)
        for way in ways_of(source)
    ]
    return {"nodes": written, "edges": edges}


@st.composite
def next_versions(draw: st.DrawFn, written: dict[str, Any]) -> dict[str, Any]:
    """Return another version of a graph: with some changed steps, or with steps removed, added and in another order."""

    def changed(step: dict[str, Any]) -> dict[str, Any]:
        if draw(st.integers(0, 3)) or step["type"] not in STEPS or len(ways_of(step)) > 1:
            return step
        return {**step, "data": draw(STEPS[step["type"]])}

    settings = draw(st.just(written["settings"]) | graph_settings)
    if draw(st.booleans()):
        changes = {node["id"]: changed(node) for node in written["nodes"]}
        if all(ways_of(changes[node["id"]]) == ways_of(node) for node in written["nodes"]):
            return written | {"nodes": list(changes.values()), "settings": settings}
    old = [node for node in written["nodes"][1:] if node["type"] != "exit"]
    kept = draw(st.permutations(old)) if draw(st.booleans()) else old
    new = [{**node, "id": f"new{number}"} for number, node in enumerate(draw(st.lists(nodes | WAITING, max_size=2)))]
    steps = [changed(node) for node in kept if draw(st.integers(0, 4))] + new
    return on_a_path(steps or [{"id": "end", "type": "exit", "data": {}}]) | {"settings": settings}


PAIRS = (sound_graphs() | waiting_paths() | waiting_paths()).flatmap(
    lambda written: st.tuples(st.just(written), next_versions(written))
)


@compared_cases(60)
@given(
    versions=PAIRS,
    body=BODIES,
    later=st.lists(BODIES, max_size=2),
    moved_after=st.sampled_from([1, 60, 3_599, 90_001]),
    target=st.none() | st.integers(0, 9),
    pauses=st.sampled_from([False, False, True]),
)
async def test_a_moved_entry_does_what_was_predicted(
    bench: EngineBench,
    versions: tuple[dict[str, Any], dict[str, Any]],
    body: dict[str, Any],
    later: list[dict[str, Any]],
    moved_after: int,
    target: int | None,
    pauses: bool,
) -> None:
    """`target`: the step that entries are mapped to; None: the move is safe. `pauses`: while it is paused."""
    old, new = versions
    clock = ManualClock()
    clock.ahead = timedelta(microseconds=MovedClock().now_us())
    bench.clock = clock
    transport: Any = AcceptingTransport()
    bench.transports = Transports(dict.fromkeys(OUTGOING, transport), "http://localhost")
    bench.driver = bench.new_driver()
    for table in ("entry_moves", "moves", "entries", "entry_steps", "messages", "events", "identities", "contacts"):
        await bench.execute(f"DELETE FROM {table} WHERE org_id = %s", bench.org_id)
    await bench.execute("UPDATE automations SET active = false WHERE org_id = %s", bench.org_id)
    for name, snippet in SNIPPETS.items():
        values = bench.org_id, name, snippet["version"], snippet["body"], uuid7(1)
        await bench.execute("INSERT INTO snippets VALUES (%s, %s, %s, %s, now(), %s) ON CONFLICT DO NOTHING", *values)
    edges = [(edge["source"], edge["target"], edge["sourceHandle"]) for edge in old["edges"]]
    automation_id = await bench.automation(old["nodes"], edges, snippets=old["snippets"], **old["settings"])
    contact = {"walletAddress": evm_wallet("a"), "email": "ann@b.co"}
    await bench.ingest(body | {"event": "deposit", "contact": contact})
    await bench.drive()
    for further in later:
        clock.ahead += timedelta(seconds=moved_after / 2)
        await bench.ingest(further | {"contact": contact})
        await bench.drive()
    if pauses:
        await automations.pause(bench.database, author(bench), automation_id)
    clock.ahead += timedelta(seconds=moved_after)  # the engine is late: what has come due is moved, too
    if pauses:
        await bench.drive()  # parks what has come due
    await edit(bench, automation_id, {key: value for key, value in new.items() if key != "snippets"})
    ((state, node_id),) = await bench.entries("state, node_id")
    mapping: Any = "safe"
    if target is not None and node_id is not None:
        steps = [node["id"] for node in new["nodes"][1:]]
        mapping = {node_id: steps[target % len(steps)]} if steps else "safe"
    planned = await plan_move(bench, automation_id, mapping)
    if not isinstance(planned, str):
        event(f"refused: {planned.problems[0].reason[:60]}")
        return
    move = await moves.complete(services(bench), bench.org_id, automation_id, planned)
    if pauses:
        await automations.resume(bench.database, author(bench), automation_id, cancel_overdue=False)
    event(f"{state}: moved {move.moved} {'safely' if mapping == 'safe' else 'by a mapping'}")
    if not move.sample:
        assert (await bench.entries("automation_version"))[0] == (1,)
        return
    (moved,) = move.sample
    until = moved.until or clock.now()  # at the resume
    before = await bench.fetch("SELECT count(*) FROM entry_steps")
    for _ in range(20):
        ((state, due_at),) = await bench.entries("state, due_at")
        steps = await _steps_since(bench, before)
        left = [step for step in steps if step[1] != "waiting"]
        if left or state in TERMINAL:
            break
        clock.ahead = max(clock.ahead, due_at - from_us(0))
        await bench.drive()
    if moved.ends == "goal":
        assert (steps[-1][:2], steps[-1][2]) == ((moved.node_id, "goal"), until)
        return
    first = next(step for step in steps if step[1] != "waiting")
    predicted = moved.node_id, moved.outcome, until
    assert first == predicted
    following = [step[0] for step in steps[steps.index(first) + 1 :]]
    assert following[:1] == ([] if moved.next_node_id is None else [moved.next_node_id])
    if moved.next_node_id is None:
        assert await bench.entries("outcome") == [(moved.ends,)]


async def _steps_since(bench: EngineBench, before: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    steps = await bench.fetch("SELECT node_id, outcome, at FROM entry_steps ORDER BY claim, step")
    return steps[before[0][0] :]
