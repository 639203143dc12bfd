"""An entry collects events: late, many at once, again, around merges, pauses and erasures."""

from datetime import timedelta
from typing import Any

import pytest

from api.automations import automations
from api.automations.automations import Refusal
from api.contacts.merge import SETTLE_DELAY, UndoneView, settle_due, undo
from api.engine import drive
from api.engine.claims import LEASE
from api.engine.facts import BatchFacts
from api.engine.progress import advance_slice
from api.engine.record import StaleFacts
from tests.engine.conftest import EngineBench
from tests.engine.pausing import author, pause, resume
from tests.engine.test_erasure import erase_contact, find_contact_id, finish_erasures
from tests.engine.test_merging import APP, merge_contacts, send_event
from tests.engine.test_merging import author as merging_author
from tests.inapp.wallet import evm_wallet

TEXT = "{{ events | length }}: {% for e in events %}{{ e.amount }} {% endfor %}= {{ events | sum('amount') }}"
NODES = [
    {"id": "t", "type": "app_event", "data": {}},
    {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": TEXT}},
]
WEB = {"walletAddress": evm_wallet("d")}
HOUR = timedelta(hours=1)


async def publish(
    bench: EngineBench, *, seconds: int = 3_600, settings: dict[str, Any] | None = None, **data: Any
) -> str:
    node = {"id": "c", "type": "collect", "data": {"seconds": seconds, **data}}
    return await bench.automation([*NODES, node], [("t", "c"), ("c", "m")], **settings or {})


async def digests(bench: EngineBench) -> list[str]:
    return [
        row[0]
        for row in await bench.fetch("SELECT body FROM messages WHERE status <> 'skipped' ORDER BY created_at, id")
    ]


async def outcomes(bench: EngineBench) -> list[str]:
    return [outcome or state for state, outcome in await bench.entries()]


async def pass_time(bench: EngineBench, time: timedelta) -> None:
    bench.clock.ahead += time
    await bench.drive()


async def test_later_events_join_and_the_next_one_starts_again(bench: EngineBench) -> None:
    await publish(bench)
    for amount in (1, 2, 3):
        await bench.send(f"k{amount}", amount=amount)
        await pass_time(bench, timedelta(minutes=5))
    await bench.send("k3", amount=3)  # a duplicate
    await bench.ingest({"event": "trade", "payload": {"amount": 9}})
    await bench.send("other", {"walletAddress": evm_wallet("b")}, amount=7)
    assert await outcomes(bench) == ["pending" if n == 3 else ("joined" if n else "waiting") for n in range(4)]
    await pass_time(bench, HOUR)
    assert sorted(await digests(bench)) == ["1: 7 = 7", "3: 1 2 3 = 6"]
    await bench.send("k4", amount=4)
    await pass_time(bench, timedelta())
    assert await outcomes(bench) == ["completed", "joined", "joined", "completed", "waiting"]
    ((first,), *_) = await bench.entries("id::text")
    assert await bench.fetch("SELECT detail ->> 'entryId' FROM entry_steps WHERE outcome = 'joined'") == [(first,)] * 2


async def test_a_late_engine_takes_the_events_of_the_time_and_no_other(bench: EngineBench) -> None:
    await publish(bench)
    for amount in range(1, 8):  # at 0, 10 … 60 minutes
        await bench.send(f"k{amount}", amount=amount)
        bench.clock.ahead += timedelta(minutes=10)
    await pass_time(bench, 3 * HOUR)
    assert await digests(bench) == ["6: 1 2 3 4 5 6 = 21", "1: 7 = 7"]


async def test_the_most_events_end_it_at_the_moment_of_the_last(bench: EngineBench) -> None:
    await publish(bench, max=3)
    await bench.ingest(*({"event": "deposit", "payload": {"amount": amount}} for amount in (1, 2, 3, 4)))
    await bench.drive()
    assert await digests(bench) == ["3: 1 2 3 = 6"]
    ((ended, last),) = await bench.fetch(
        "SELECT s.at, (SELECT max(created_at) FROM events) FROM entry_steps s WHERE outcome = 'collected'"
    )
    assert ended == last
    await pass_time(bench, HOUR)
    assert await digests(bench) == ["3: 1 2 3 = 6", "1: 4 = 4"]


async def test_values_of_the_key_have_entries_of_their_own(bench: EngineBench) -> None:
    await publish(bench, key="order")
    for number, order in enumerate(("a", "b", "a", None, 1, True, "b")):
        await bench.send(f"k{number}", amount=number, order=order)
    await bench.drive()
    await pass_time(bench, HOUR)
    assert sorted(await digests(bench)) == ["1: 3 = 3", "1: 4 = 4", "1: 5 = 5", "2: 0 2 = 2", "2: 1 6 = 7"]


async def test_many_engines_put_every_event_into_one_list(bench: EngineBench) -> None:
    await publish(bench)
    for batch in range(5):
        events = [(number, wallet) for number in range(batch * 10, batch * 10 + 10) for wallet in "abc"]
        await bench.ingest(
            *(
                {"event": "deposit", "contact": {"walletAddress": evm_wallet(wallet)}, "payload": {"amount": number}}
                for number, wallet in events
            )
        )
        await bench.drive_together()
    bench.clock.ahead += HOUR
    await bench.drive_together()
    assert await digests(bench) == [f"50: {' '.join(map(str, range(50)))} = {sum(range(50))}"] * 3


async def test_a_worker_that_died_with_a_joining_entry_loses_and_repeats_nothing(bench: EngineBench) -> None:
    await publish(bench)
    await bench.send("a", amount=1)
    await bench.drive()
    await bench.send("b", amount=2)
    (claim,) = await bench.driver._claims.take(bench.org_id, "ready", 1)  # and then it dies
    assert claim.node_id is None
    bench.clock.ahead += HOUR + LEASE
    await bench.drive()
    assert await digests(bench) == []  # the list is not closed before the event has joined
    await bench.driver.rescue(bench.org_id, 10)
    await bench.drive()
    assert await digests(bench) == ["2: 1 2 = 3"]


async def test_entries_of_merged_contacts_become_one(bench: EngineBench) -> None:
    await publish(bench)
    web = await send_event(bench, WEB, payload={"amount": 1})
    app = await send_event(bench, APP, payload={"amount": 2})
    await send_event(bench, APP, payload={"amount": 3})
    await bench.drive()
    assert await outcomes(bench) == ["waiting", "waiting", "joined"]
    await merge_contacts(bench, web, app)
    await bench.drive()
    assert await outcomes(bench) == ["waiting", "joined", "joined"]
    await send_event(bench, APP, payload={"amount": 4})
    await pass_time(bench, HOUR)
    assert await digests(bench) == ["4: 1 2 3 4 = 10"]
    assert [end for end in await outcomes(bench) if end == "completed"] == ["completed"]


async def test_an_undone_merge_takes_the_list_away_from_an_event_that_is_about_to_join_it(bench: EngineBench) -> None:
    await publish(bench)
    app = await send_event(bench, APP, payload={"amount": 1})
    web = await send_event(bench, WEB, "visit")
    await bench.drive()
    merge_id = await merge_contacts(bench, web, app)
    await bench.drive()
    await send_event(bench, WEB, payload={"amount": 2})
    claims = await bench.driver._claims.take(bench.org_id, "ready", 1)
    await bench.driver._graphs.load(bench.org_id, claims)
    facts = await bench.driver._read_facts(bench.org_id, claims)
    batch = advance_slice(bench.org_id, claims, bench.driver._graphs, facts)
    assert batch[0].run.outcome == "joined"
    assert isinstance(await undo(bench.database, merging_author(bench), merge_id), UndoneView)
    assert await bench.driver._record(bench.org_id, batch, facts) == StaleFacts()
    await bench.driver._process(bench.org_id, claims)
    assert await outcomes(bench) == ["waiting", "waiting"]


async def test_joined_events_are_no_entries_for_reentry_and_caps_count_messages(bench: EngineBench) -> None:
    settings = {"reentry": {"policy": "not_while_running"}, "frequencyCap": {"messages": 1, "seconds": 86_400}}
    await publish(bench, settings=settings)
    for amount in (1, 2):
        await bench.send(f"a{amount}", amount=amount)
    await pass_time(bench, HOUR)
    await bench.send("b", amount=3)
    await pass_time(bench, HOUR)
    assert await digests(bench) == ["2: 1 2 = 3"]
    assert await bench.steps() == [
        "entered",
        "waiting",
        "collected",
        "sent",
        "joined",
        "entered",
        "waiting",
        "collected",
        "skipped",
    ]


async def test_events_in_a_pause_do_not_join_and_the_list_is_closed_after_it(bench: EngineBench) -> None:
    automation_id = await publish(bench)
    await bench.send("a", amount=1)
    await bench.send("b", amount=2)
    await bench.drive()
    await pause(bench, automation_id)
    await bench.send("c", amount=3)
    await pass_time(bench, 2 * HOUR)
    await resume(bench, automation_id)
    await bench.send("d", amount=4)
    await bench.drive()
    assert await digests(bench) == ["2: 1 2 = 3"]
    assert await outcomes(bench) == ["completed", "joined", "waiting"]


async def test_an_event_after_a_switch_off_joins_no_cancelled_entry(bench: EngineBench) -> None:
    automation_id = await publish(bench)
    await bench.send("a", amount=1)
    await bench.drive()
    for change in (automations.deactivate, automations.activate):
        assert not isinstance(await change(bench.database, author(bench), automation_id), Refusal)
    await bench.send("b", amount=2)
    await pass_time(bench, HOUR)
    assert await digests(bench) == ["1: 2 = 2"]
    assert await outcomes(bench) == ["automation_inactive", "completed"]


async def test_an_erased_contact_leaves_no_list(bench: EngineBench) -> None:
    await publish(bench)
    for amount in (41_999_001, 41_999_002):
        await bench.send(f"k{amount}", amount=amount)
    await bench.drive()
    await erase_contact(bench, await find_contact_id(bench))
    await pass_time(bench, HOUR)
    await finish_erasures(bench)
    assert await digests(bench) == []
    assert await outcomes(bench) == ["contact_erased", "joined"]
    for table in ("entries", "entry_steps", "events", "messages"):
        assert await bench.fetch(f"SELECT 1 FROM {table} t WHERE t::text LIKE '%%41999%%'") == []


async def test_an_erasure_after_an_undone_merge_takes_the_events_out_of_the_list_of_the_other_contact(
    bench: EngineBench,
) -> None:
    await publish(bench)
    web, app = [await send_event(bench, who, payload={"amount": n}) for n, who in enumerate((WEB, APP), 1)]
    await bench.drive()
    merge_id = await merge_contacts(bench, web, app)
    await bench.drive()
    assert await outcomes(bench) == ["waiting", "joined"]
    assert isinstance(await undo(bench.database, merging_author(bench), merge_id), UndoneView)
    await settle_due(bench.database, bench.clock.now() + 2 * SETTLE_DELAY)
    await erase_contact(bench, app)
    await pass_time(bench, HOUR)
    assert await digests(bench) == ["1: 1 = 1"]


async def test_the_list_is_the_same_after_a_later_wait(bench: EngineBench) -> None:
    nodes = [
        *NODES,
        {"id": "c", "type": "collect", "data": {"seconds": 60}},
        {"id": "d", "type": "delay", "data": {"seconds": 60}},
    ]
    await bench.automation(nodes, [("t", "c"), ("c", "d"), ("d", "m")])
    for amount in (1, 2):
        await bench.send(f"k{amount}", amount=amount)
    await bench.drive()
    await pass_time(bench, timedelta(seconds=61))
    await bench.send("k3", amount=3)
    await pass_time(bench, timedelta(seconds=61))
    assert await digests(bench) == ["2: 1 2 = 3"]


async def test_digests_of_many_contacts_are_decided_in_slices_with_a_bounded_number_of_events(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drive, "MAX_JOINED_EVENTS", 4)
    read: list[int] = []
    read_facts = drive.read_facts

    async def counting(*arguments: Any) -> BatchFacts:
        facts = await read_facts(*arguments)
        read.append(sum(len(entry.joined or ()) for entry in facts.facts.values()))
        return facts

    monkeypatch.setattr(drive, "read_facts", counting)
    await publish(bench)
    for number in range(4):
        for amount in range(4):
            await bench.send(f"{number}/{amount}", {"walletAddress": evm_wallet(f"{number}")}, amount=amount)
    await bench.drive()
    read.clear()
    await pass_time(bench, 2 * HOUR)
    assert await digests(bench) == ["4: 0 1 2 3 = 6"] * 4
    assert (sum(read), max(read)) == (12, 3)  # two entries with three events each would exceed four
