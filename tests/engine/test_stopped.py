"""After everything is stopped, no step takes effect; a resume starts exactly what the stop stopped."""

import asyncio
from datetime import timedelta

import pytest

from api.automations import automations
from api.automations import stop as stopping
from api.automations.automations import Refusal
from api.automations.entries import recover_entries
from api.engine.facts import Graphs, read_facts
from api.engine.progress import advance_slice
from api.engine.record import StaleFacts, record
from api.store import automations as store
from api.store.locks import share_steps
from api.store.query import run
from tests.channels.conftest import endpoint, status
from tests.engine.conftest import EngineBench
from tests.engine.pausing import TAG, TRIGGER, WAIT, author, pause, resume, start_waiting
from tests.inapp.wallet import evm_wallet
from workbench.language.responses import StoppedView


class _KilledError(Exception):
    """Ends the process that resumes."""


async def stop_all(bench: EngineBench) -> StoppedView:
    await stopping.stop_all(bench.database, author(bench))
    return await stopping.count_stopped(bench.database, bench.org_id)


async def resume_all(bench: EngineBench, *, cancel_overdue: bool = False) -> StoppedView:
    return await stopping.resume_all(bench.database, author(bench), cancel_overdue=cancel_overdue)


async def states(bench: EngineBench) -> list[str]:
    """Return the states of the automations, oldest first."""
    async with bench.database.transaction() as tx:
        rows = await store.list_automations(tx, bench.org_id, None, False, None, None, None, 100)
    return [row.state for row in reversed(rows)]


async def test_no_step_takes_effect_until_everything_is_resumed(bench: EngineBench) -> None:
    await start_waiting(bench, WAIT, TAG, events=2)
    assert (await stop_all(bench)).entries == 2
    bench.clock.ahead += timedelta(minutes=2)
    await bench.send("meanwhile", {"walletAddress": evm_wallet("8")})
    await bench.drive()
    assert await bench.entries("state") == [("paused",)] * 2
    assert await resume_all(bench) == StoppedView(None, 1, 2, 0, 0)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 2


async def test_a_resume_leaves_what_was_paused_or_off_before(bench: EngineBench) -> None:
    live, paused, off, held = [await bench.automation([TRIGGER, TAG], [("t", "g")]) for _ in range(4)]
    await pause(bench, paused)
    await automations.deactivate(bench.database, author(bench), off)
    assert (await stop_all(bench)).automations == 2
    assert await states(bench) == ["paused", "paused", "off", "paused"]
    await pause(bench, held)  # stays paused when everything is resumed
    await resume_all(bench)
    assert await states(bench) == ["live", "paused", "off", "paused"]
    assert await bench.fetch(
        "SELECT action, subject_id::text, detail ->> 'automations' FROM audit_log"
        " WHERE detail ? 'all' OR subject_id IS NULL ORDER BY created_at, action, subject_id"
    ) == [
        *sorted([("automation.pause", live, None), ("automation.pause", held, None)], key=lambda row: row[1]),
        ("automation.stop_all", None, "2"),
        ("automation.resume", live, None),
        ("automation.resume_all", None, "1"),
    ]


async def test_what_is_switched_on_while_everything_is_stopped_waits_with_the_others(bench: EngineBench) -> None:
    stopped, off, paused = [await bench.automation([TRIGGER, TAG], [("t", "g")]) for _ in range(3)]
    await automations.deactivate(bench.database, author(bench), off)
    await pause(bench, paused)
    since = await stop_all(bench)
    assert await stop_all(bench) == since
    refused = await automations.resume(bench.database, author(bench), stopped, cancel_overdue=True)
    assert isinstance(refused, Refusal)
    assert refused.reason == "conflict"
    await automations.activate(bench.database, author(bench), off)
    await automations.resume(bench.database, author(bench), paused, cancel_overdue=False)
    await bench.send("meanwhile")
    assert await states(bench) == ["paused"] * 3
    await resume_all(bench)
    assert await states(bench) == ["live"] * 3
    await bench.drive()
    assert await bench.entries() == []


async def test_overdue_entries_are_cancelled_instead(bench: EngineBench) -> None:
    await start_waiting(bench, WAIT, TAG, events=2)
    await stop_all(bench)
    bench.clock.ahead += timedelta(minutes=2)
    assert await bench.driver.drive(bench.org_id, "ready", 1) == 1
    await resume_all(bench, cancel_overdue=True)
    await bench.drive()
    assert await bench.entries() == [("cancelled", "overdue")] * 2


@pytest.mark.parametrize("of_one", [True, False])
async def test_a_decision_from_before_a_stop_is_not_recorded_after_it(bench: EngineBench, of_one: bool) -> None:
    automation_id = await start_waiting(bench, TAG, events=0)
    await bench.send("k")
    graphs, claims = Graphs(bench.database), await bench.driver._claims.take(bench.org_id, "ready", 10)
    await graphs.load(bench.org_id, claims)
    async with bench.database.transaction() as tx:
        keys, now = bench.keyring.of(bench.org_id), bench.clock.now()
        facts = await read_facts(tx, bench.org_id, keys, claims, graphs, bench.retries, now)
    batch = advance_slice(bench.org_id, claims, graphs, facts)
    await (pause(bench, automation_id) if of_one else stop_all(bench))
    async with bench.database.transaction() as tx:
        assert await record(tx, bench.org_id, bench.keyring, batch, facts) == StaleFacts()
    await bench.driver._process(bench.org_id, claims)
    assert await bench.entries("state, step, attempts") == [("paused", 0, 0)]
    await (resume(bench, automation_id) if of_one else resume_all(bench))
    await bench.drive()
    assert await bench.steps() == ["entered", "tagged"]


async def test_a_stop_waits_for_steps_that_are_being_recorded(bench: EngineBench) -> None:
    async with bench.database.transaction() as tx:
        await run(tx, share_steps(bench.org_id))
        stop = asyncio.create_task(stop_all(bench))
        await asyncio.wait([stop], timeout=0.1)
        assert not stop.done()
    await stop


async def test_a_stop_counts_messages_that_wait_and_messages_that_are_leaving(bench: EngineBench) -> None:
    arrived, stopped = asyncio.Event(), asyncio.Event()

    async def after_stop(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await stopped.wait()
        writer.write(status(200))

    async with endpoint(status(500), after_stop) as server:
        hook = {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}
        await start_waiting(bench, hook, TAG)
        await bench.send("second", {"walletAddress": evm_wallet("9")})
        driving = asyncio.create_task(bench.drive())
        await arrived.wait()
        stop = await stop_all(bench)
        stopped.set()
        await driving
        assert (stop.automations, stop.entries, stop.unsent, stop.leaving) == (1, 2, 1, 1)
        assert await bench.entries("state, node_id") == [("retrying", "h"), ("paused", "g")]
        bench.clock.ahead += timedelta(minutes=1)
        await bench.drive()
        assert await bench.entries("state, node_id") == [("paused", "h"), ("paused", "g")]
        assert len(server.requests) == 2
        assert await resume_all(bench) == StoppedView(None, 1, 2, 1, 0)
        await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 2
    assert len(server.requests) == 3


async def test_a_message_of_a_killed_engine_is_not_counted_as_leaving(bench: EngineBench) -> None:
    arrived, killed = asyncio.Event(), asyncio.Event()

    async def never(_: asyncio.StreamWriter) -> None:
        arrived.set()
        await killed.wait()

    async with endpoint(never) as server:
        await start_waiting(bench, {"id": "h", "type": "send_webhook", "data": {"url": server.url()}}, events=0)
        await bench.send("k")
        driver = bench.new_driver()
        await driver.drive(bench.org_id, "ready", 1)
        await arrived.wait()
        await driver.deliveries.stop(0)
        killed.set()
    stop = await stop_all(bench)
    assert (stop.unsent, stop.leaving) == (0, 1)
    bench.clock.ahead += timedelta(minutes=1)
    await bench.driver.rescue(bench.org_id, 1)
    await bench.drive()
    assert await bench.entries("state") == [("paused",)]
    stop = await stopping.count_stopped(bench.database, bench.org_id)
    assert (stop.unsent, stop.leaving) == (1, 0)


async def test_a_stop_counts_at_most_limit_entries(bench: EngineBench) -> None:
    await start_waiting(bench, WAIT, TAG, events=3)
    await stop_all(bench)
    async with bench.database.transaction() as tx:
        stopped_at = await store.find_stop(tx, bench.org_id)
        assert await store.count_stopped(tx, bench.org_id, stopped_at) == (1, 3, 0, 0)
        assert await store.count_stopped(tx, bench.org_id, stopped_at, limit=2) == (1, 2, 0, 0)


async def test_a_message_that_still_waits_for_a_connection_does_not_leave_after_a_stop(bench: EngineBench) -> None:
    await start_waiting(bench, TAG, events=0)
    await bench.send("k")
    claims = bench.driver._claims
    [claim] = await claims.take(bench.org_id, "ready", 10)
    claims.hold(bench.org_id, [claim])
    assert claims.may_leave(bench.org_id, claim)
    await stop_all(bench)
    await claims._renew(bench.org_id, [claim])
    assert (claims.may_leave(bench.org_id, claim), claims.is_valid(bench.org_id, claim)) == (False, True)
    claims.release(bench.org_id, [claim])


async def test_entries_left_by_an_interrupted_resume_continue(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_waiting(bench, WAIT, TAG, events=2)
    await stop_all(bench)
    bench.clock.ahead += timedelta(minutes=2)
    await bench.drive()

    async def killed(*_: object) -> None:
        raise _KilledError

    with monkeypatch.context() as patched:
        patched.setattr(stopping, "resume_rest", killed)
        with pytest.raises(_KilledError):
            await resume_all(bench)
    assert await states(bench) == ["live"]
    await recover_entries(bench.database, bench.clock)
    await bench.drive()
    assert await bench.entries() == [("completed", "completed")] * 2
