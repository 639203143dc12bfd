"""The backlog of `python -m bench engine` consists of real entries."""

from bench.automations import thanks
from bench.engines import DUE, STEPS
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet


async def test_the_backlog_of_the_bench_runs_to_its_end_with_every_step(bench: EngineBench) -> None:
    graph = thanks()["graph"]
    await bench.send("k1", {"walletAddress": evm_wallet("A")})
    await bench.send("k2", {"walletAddress": evm_wallet("B")})
    automation_id = await bench.automation(graph["nodes"], [(e["source"], e["target"]) for e in graph["edges"]])
    async with bench.database.transaction() as tx:
        await tx.execute(DUE, {"count": 2, "automation_id": automation_id})
    await bench.drive()
    assert await bench.entries() == [("exited", "exit")] * 2
    assert len(await bench.steps()) == 2 * STEPS
    assert await bench.fetch("SELECT status, subject FROM messages") == [("sent", "Thank you")] * 2
