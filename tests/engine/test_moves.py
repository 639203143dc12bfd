"""Entries that wait on an earlier version continue on the new one, each as it was predicted."""

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from api.automations import automations, entries, moves
from api.automations.automations import Refusal
from api.automations.moves import CompiledVersions
from api.clock import uuid7
from api.contacts.merge import Pair, merge
from api.crypto import EmailDisplay
from api.store import moves as store
from api.store.automations import FIRST_ID, LAST_ID, GoalEntries, list_goal_entries
from tests.engine.conftest import EngineBench, written_graph
from tests.engine.moving import author, edit, move_back, plan_move, publish, services
from tests.inapp.wallet import evm_wallet
from workbench.language.problem import Problem
from workbench.language.responses import EntryHistoryView, MergeView, MoveView

DAY = 86_400


def node(node_id: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"id": node_id, "type": kind, "data": data}


def path(*nodes: dict[str, Any]) -> tuple[list[dict[str, Any]], list[tuple[str, ...]]]:
    """Return the nodes of a graph after its trigger, one after the other, with their edges."""
    all_nodes = [node("t", "app_event", event="deposit"), *nodes]
    ids = [item["id"] for item in all_nodes]
    return all_nodes, list(pairwise(ids))


DELAY = node("pause", "delay", seconds=3 * DAY)
SEND = node("thanks", "send_inapp", title="Thanks", body="old text", recipientMode="triggering_profile")
TAG, OTHER_TAG = node("tag", "add_tag", tag="old"), node("other", "add_tag", tag="new")
BEFORE = path(DELAY, TAG)


async def start(bench: EngineBench, nodes: Any, edges: Any, entries: int = 1, **settings: Any) -> str:
    """Publish an automation and start entries of different contacts, which then wait."""
    automation_id = await bench.automation(nodes, edges, **settings)
    for number in range(entries):
        await bench.send(f"k{number}", {"walletAddress": evm_wallet(f"{number:x}")})
    await bench.drive()
    return automation_id


async def places(bench: EngineBench) -> list[tuple[Any, ...]]:
    return await bench.entries("automation_version, started_version, state, node_id")


def numbers(move: MoveView) -> tuple[int, int, int]:
    return move.entries, move.moved, move.moved_back


async def outcomes(bench: EngineBench) -> list[tuple[str, str]]:
    return await bench.fetch("SELECT node_id, outcome FROM entry_steps ORDER BY entry_id, claim, step")


async def test_an_entry_continues_on_the_new_version_from_when_its_wait_began(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    ((since, due_at),) = await bench.entries("since, due_at")
    bench.clock.ahead += timedelta(days=1)
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    assert (numbers(move), move.state, move.reasons) == ((1, 1, 0), "done", {})
    (moved,) = move.sample
    assert (moved.from_version, moved.from_node_id, moved.node_id) == (1, "pause", "pause")
    assert (moved.until, moved.outcome, moved.next_node_id, moved.ends) == (due_at, "waited", "other", None)
    assert await bench.entries("since, due_at") == [(since, due_at)]
    assert await places(bench) == [(2, 1, "waiting", "pause")]
    bench.clock.ahead += timedelta(days=2, minutes=1)
    await bench.drive()
    assert await outcomes(bench) == [
        ("t", "entered"), ("pause", "waiting"), ("pause", "waited"), ("other", "tagged")
    ]  # fmt: skip
    assert await bench.entries("state, outcome") == [("completed", "completed")]


async def test_a_step_that_waits_differently_is_not_safe_and_can_be_mapped(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    ((since,),) = await bench.entries("since")
    longer = path(node("pause", "delay", seconds=5 * DAY), TAG)
    move = await publish(bench, automation_id, *longer)
    assert (numbers(move), move.reasons) == ((1, 0, 0), {"the step 'pause' differs in version 2": 1})
    assert move.refused[0].reason == "the step 'pause' differs in version 2"
    assert await places(bench) == [(1, None, "waiting", "pause")]
    # The live version again, with a mapping.
    again = await publish(bench, automation_id, *longer, {"pause": "pause"})
    assert (again.to_version, numbers(again), again.sample[0].until) == (2, (1, 1, 0), since + timedelta(days=5))
    assert await bench.entries("due_at") == [(since + timedelta(days=5),)]


async def test_a_wait_that_is_over_on_the_new_version_ends_at_the_moment_of_the_move(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    bench.clock.ahead += timedelta(days=2)
    move = await publish(
        bench, automation_id, *path(node("short", "delay", seconds=DAY), OTHER_TAG), {"pause": "short"}
    )
    (moved,) = move.sample
    assert (moved.outcome, moved.next_node_id) == ("waited", "other")
    assert await bench.entries("state, due_at") == [("waiting", moved.until)]
    await bench.drive()
    steps = await bench.fetch("SELECT node_id, at FROM entry_steps WHERE node_id IN ('short', 'other')")
    assert steps == [("short", moved.until), ("other", moved.until)]


async def test_events_since_the_wait_began_count_for_the_step_that_it_is_moved_to(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    bench.clock.ahead += timedelta(hours=1)
    await bench.ingest(
        {"event": "order", "contact": {"walletAddress": evm_wallet("0")}, "payload": {}, "idempotencyKey": "o1"}
    )
    nodes, _ = path(node("order", "wait_for_event", event="order", timeoutSeconds=2 * DAY), TAG, OTHER_TAG)
    edges = [("t", "order"), ("order", "tag", "matched"), ("order", "other", "timeout")]
    move = await publish(bench, automation_id, nodes, edges, {"pause": "order"})
    assert [(moved.outcome, moved.next_node_id) for moved in move.sample] == [
        ("matched", "tag"),
        ("timed_out", "other"),
    ]
    # An event after the move wakes the other entry.
    await bench.ingest(
        {"event": "order", "contact": {"walletAddress": evm_wallet("1")}, "payload": {}, "idempotencyKey": "o2"}
    )
    await bench.drive()
    assert [step for step in await outcomes(bench) if step[0] in ("order", "tag")] == [
        ("order", "matched"), ("tag", "tagged"), ("order", "matched"), ("tag", "tagged")
    ]  # fmt: skip


async def test_a_moved_entry_continues_to_collect_events_and_so_does_a_returned_one(bench: EngineBench) -> None:
    def version(text: str) -> Any:
        return path(node("c", "collect", seconds=DAY, max=4), node("m", "send_inapp", title="Hi", body=text))

    async def send_another(key: str) -> None:
        await bench.send(key, {"walletAddress": evm_wallet("0")})
        await bench.drive()

    automation_id = await start(bench, *version("{{ events | length }} old"))
    await send_another("before")
    move = await publish(bench, automation_id, *version("{{ events | length }} new"))
    assert (numbers(move), move.sample[0].outcome) == ((1, 1, 0), "collected")
    await send_another("after")
    assert await bench.entries() == [("waiting", None), ("cancelled", "joined"), ("cancelled", "joined")]
    assert (await move_back(bench, automation_id, move)).moved_back == 1
    await send_another("the last one, which wakes it")
    assert await bench.fetch("SELECT body FROM messages") == [("4 old",)]


async def test_a_step_is_not_taken_twice(bench: EngineBench) -> None:
    automation_id = await start(bench, *path(TAG, DELAY))
    move = await publish(bench, automation_id, *path(DELAY, TAG, OTHER_TAG))
    assert move.reasons == {"it would take the step 'tag' again": 1}
    assert await places(bench) == [(1, None, "waiting", "pause")]


async def test_an_entry_that_took_many_steps_does_not_run_into_the_loop_guard(bench: EngineBench) -> None:
    tags = [node(f"tag{number}", "add_tag", tag=f"t{number}") for number in range(6)]
    automation_id = await start(bench, *path(*tags, DELAY, TAG))
    move = await publish(bench, automation_id, *path(DELAY, TAG))
    assert numbers(move) == (1, 1, 0)
    bench.clock.ahead += timedelta(days=3, minutes=1)
    await bench.drive()
    assert await bench.entries("state, outcome") == [("completed", "completed")]


async def test_a_move_is_undone_for_entries_that_have_not_gone_on(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    before = await bench.entries("automation_version, state, node_id, step, since, due_at, started_version")
    longer = node("longer", "delay", seconds=5 * DAY)
    move = await publish(bench, automation_id, *path(longer, OTHER_TAG), {"pause": "longer"})
    await bench.execute("UPDATE entries SET node_id = 'other' WHERE id = %s", move.sample[1].entry_id)
    undone = await move_back(bench, automation_id, move)
    assert (undone.state, numbers(undone)) == ("undone", (2, 2, 1))
    assert undone.reasons == {"it has gone on since it was moved": 1}
    after = await bench.entries("automation_version, state, node_id, step, since, due_at, started_version")
    assert after[0] == before[0]
    assert after[1][:3] == (2, "waiting", "other")
    assert await move_back(bench, automation_id, move) == undone
    audit = await bench.fetch("SELECT action, detail ->> 'moved_back' FROM audit_log ORDER BY created_at, id")
    assert audit == [
        ("automation.update", None), ("automation.publish", None), ("automation.move", "0"),
        ("automation.move_back", None), ("automation.move", "1"),
    ]  # fmt: skip


async def test_an_entry_that_was_moved_on_stays_when_an_earlier_move_is_undone(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    first = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    second = await publish(bench, automation_id, *path(DELAY))
    assert (first.moved, second.moved) == (1, 1)
    assert (await move_back(bench, automation_id, first)).reasons == {"it has gone on since it was moved": 1}
    assert await places(bench) == [(3, 1, "waiting", "pause")]
    assert (await move_back(bench, automation_id, second)).moved_back == 1
    assert await places(bench) == [(2, 1, "waiting", "pause")]


async def test_an_entry_that_ends_in_between_is_refused_with_its_outcome(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    move_id = await plan_move(bench, automation_id, "safe")
    assert isinstance(move_id, str)
    versions = CompiledVersions(bench.org_id, automation_id)
    assert await moves.move_page(services(bench), move_id, versions) == 0.0  # fixes the entries
    ((first_id,), _) = await bench.entries("id::text")
    await bench.execute("UPDATE entries SET state = 'exited', outcome = 'goal' WHERE id = %s", first_id)
    move = await moves.complete(services(bench), bench.org_id, automation_id, move_id)
    assert (numbers(move), move.reasons) == ((2, 1, 0), {"it has ended (goal)": 1})


async def test_an_entry_that_an_engine_works_on_is_moved_when_it_waits(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    (first_id,), _ = await bench.entries("id::text")
    await bench.execute(
        "UPDATE entries SET state = 'running', lease_until = now() + interval '1 hour' WHERE id = %s", first_id
    )
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    move_id = await plan_move(bench, automation_id, "safe")
    assert isinstance(move_id, str)
    moving = asyncio.create_task(moves.complete(services(bench), bench.org_id, automation_id, move_id))
    moved = "SELECT count(*) FROM entries WHERE automation_version = 2"
    while await bench.fetch(moved) != [(1,)]:
        pass
    await bench.execute("UPDATE entries SET state = 'waiting', lease_until = NULL WHERE id = %s", first_id)
    assert numbers(await moving) == (2, 2, 0)


async def test_a_move_does_not_wait_for_ever_for_an_engine(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    await bench.execute("UPDATE entries SET state = 'running', lease_until = now() + interval '1 hour'")
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    move_id = await plan_move(bench, automation_id, "safe", timedelta())
    assert isinstance(move_id, str)
    move = await moves.complete(services(bench), bench.org_id, automation_id, move_id)
    assert move.reasons == {"an engine is working on it": 1}


async def test_a_later_publication_stops_a_move(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    move_id = await plan_move(bench, automation_id, "safe")
    await edit(bench, automation_id, written_graph(*path(DELAY), {}))
    published = await automations.publish(bench.database, author(bench), automation_id, None)
    assert not isinstance(published, Refusal)
    assert isinstance(move_id, str)
    stopped = await moves.complete(services(bench), bench.org_id, automation_id, move_id)
    assert (stopped.state, stopped.moved) == ("stopped", 0)
    assert await places(bench) == [(1, None, "waiting", "pause")]


async def test_a_paused_automation_is_moved_and_continues_when_it_is_resumed(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    await automations.pause(bench.database, author(bench), automation_id)
    bench.clock.ahead += timedelta(days=3, minutes=1)
    await bench.drive()
    assert [row[2] for row in await places(bench)] == ["paused", "paused"]
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    assert [(moved.until, moved.next_node_id) for moved in move.sample] == [(None, "other")] * 2
    await automations.resume(bench.database, author(bench), automation_id, cancel_overdue=False)
    await bench.drive()
    assert await bench.entries("automation_version, state") == [(2, "completed")] * 2
    assert ("other", "tagged") in await outcomes(bench)


async def test_a_mapping_names_steps_that_exist(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    refused = await plan_move(bench, automation_id, {"paus": "pause", "pause": "nowhere", "tag": "t"})
    assert isinstance(refused, Refusal)
    assert refused.problems == (
        Problem("move.paus", "no earlier version with entries has this step"),
        Problem("move.pause", "the new version has no step 'nowhere'"),
        Problem("move.tag", "'t' is the trigger, at which no entry can wait"),
    )
    assert await bench.fetch("SELECT published_version FROM automations") == [(1,)]


async def test_a_preview_says_what_the_move_does(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE, entries=3)
    ((first_id,), *_) = await bench.entries("id::text")
    await bench.execute("UPDATE entries SET state = 'retrying' WHERE id = %s", first_id)
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    previewed = await moves.preview(services(bench), author(bench), automation_id, "safe")
    assert isinstance(previewed, MoveView), previewed
    assert previewed.state == "planned"
    assert await places(bench) == [(1, None, "retrying", "pause"), *[(1, None, "waiting", "pause")] * 2]
    move_id = await plan_move(bench, automation_id, "safe")
    assert isinstance(move_id, str)
    move = await moves.complete(services(bench), bench.org_id, automation_id, move_id)
    for name in ("to_version", "move", "entries", "moved", "refused", "reasons", "sample"):
        assert getattr(move, name) == getattr(previewed, name), name
    assert move.reasons == {"it is retrying a step": 1}


async def test_an_entry_of_a_merged_contact_is_moved_and_one_of_an_erased_contact_is_refused(
    bench: EngineBench,
) -> None:
    automation_id = await start(bench, *BEFORE, entries=3)
    contacts = [contact_id for (contact_id,) in await bench.entries("contact_id::text")]
    merged = await merge(bench.database, author(bench), Pair(contacts[0], contacts[1]), str)
    assert isinstance(merged, MergeView)
    await bench.execute("UPDATE contacts SET erased_at = now() WHERE id = %s", contacts[2])
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    assert (numbers(move), move.reasons) == ((3, 2, 0), {"it would fail: contact_erased": 1})
    bench.clock.ahead += timedelta(days=3, minutes=1)
    await bench.drive()
    ended = await bench.fetch("SELECT automation_version, outcome FROM entries ORDER BY 1 DESC, 2")
    assert ended == [(2, "completed"), (2, "completed"), (1, "contact_erased")]


async def test_a_merge_between_the_lists_and_the_locks_of_a_page_repeats_the_page(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await start(bench, *BEFORE, entries=2)
    kept, absorbed = [contact_id for (contact_id,) in await bench.entries("contact_id::text")]
    lock_moving_entries = store.lock_moving_entries
    pages = []

    async def merge_first(*arguments: Any) -> Any:
        pages.append(arguments)
        entries = await lock_moving_entries(*arguments)
        # As if the entries had moved to another contact just before they were locked.
        return [replace(entry, contact_id=uuid7(1)) for entry in entries] if len(pages) == 1 else entries

    monkeypatch.setattr(store, "lock_moving_entries", merge_first)
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    assert (numbers(move), len(pages), kept != absorbed) == ((2, 2, 0), 2, True)


async def test_pages_are_small_and_cover_all_entries(bench: EngineBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moves, "PAGE_ENTRIES", 2)
    automation_id = await start(bench, *BEFORE, entries=5)
    await edit(bench, automation_id, written_graph(*path(DELAY, OTHER_TAG), {}))
    move_id = await plan_move(bench, automation_id, "safe")
    assert isinstance(move_id, str)
    keyed = services(bench), move_id, CompiledVersions(bench.org_id, automation_id)
    for moved in (0, 2):  # the process ends after a page
        assert await moves.move_page(*keyed) == 0.0
        assert await bench.fetch("SELECT count(*) FROM entries WHERE automation_version = 2") == [(moved,)]
    await asyncio.gather(*(moves.complete_moves(services(bench)) for _ in range(3)))
    assert await bench.fetch("SELECT DISTINCT automation_version FROM entries") == [(2,)]
    assert await bench.fetch("SELECT count(*), count(moved_at) FROM entry_moves") == [(5, 5)]


async def test_the_goal_of_the_new_version_applies_from_the_start_of_the_entry(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    bench.clock.ahead += timedelta(hours=1)
    await bench.ingest({"event": "order", "contact": {"walletAddress": evm_wallet("0")}, "idempotencyKey": "o"})
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG), goal={"event": "order"})
    assert (move.sample[0].outcome, move.sample[0].ends) == ("goal", "goal")
    await bench.drive()
    assert await bench.entries("state, outcome") == [("exited", "goal")]


async def test_a_wait_until_a_date_follows_the_date_after_the_move(bench: EngineBench) -> None:
    await bench.ingest(
        {"event": "hello", "contact": {"walletAddress": evm_wallet("0")}, "attributes": {"renewsAt": "2030-01-01"}}
    )
    automation_id = await start(bench, *path(DELAY, TAG))
    tomorrow = (bench.clock.now() + timedelta(days=1)).replace(microsecond=0)
    nodes, _ = path(node("date", "wait_until", attribute="renewsAt"), OTHER_TAG)
    edges = [("t", "date"), ("date", "other", "reached")]
    move = await publish(bench, automation_id, nodes, edges, {"pause": "date"})
    assert move.sample[0].outcome == "missed"  # later than a year
    await move_back(bench, automation_id, move)
    written = tomorrow.isoformat()
    await bench.ingest(
        {"event": "hello", "contact": {"walletAddress": evm_wallet("0")}, "attributes": {"renewsAt": written}}
    )
    again = await publish(bench, automation_id, nodes, edges, {"pause": "date"})
    assert (again.sample[0].until, again.sample[0].next_node_id) == (tomorrow, "other")
    later = tomorrow + timedelta(hours=1)
    await bench.ingest(
        {"event": "hello", "contact": {"walletAddress": evm_wallet("0")}, "attributes": {"renewsAt": later.isoformat()}}
    )
    await bench.drive()
    assert await bench.entries("due_at") == [(later,)]


async def test_without_quiet_hours_alike_a_message_that_waits_for_their_end_is_not_safe(bench: EngineBench) -> None:
    night = {"from": "00:00", "to": "23:59"}
    automation_id = await start(bench, *path(SEND), quietHours=night)
    new_text = {**SEND, "data": {**SEND["data"], "body": "new text"}}
    refused = await publish(bench, automation_id, *path(new_text), quietHours={"from": "01:00", "to": "23:59"})
    assert refused.reasons == {"the step 'thanks' differs in version 2": 1}
    move = await publish(bench, automation_id, *path(new_text), quietHours=night)
    assert (numbers(move), move.sample[0].outcome) == ((1, 1, 0), "sent")
    assert move.sample[0].until is not None
    bench.clock.ahead += move.sample[0].until - bench.clock.now()
    await bench.drive()
    assert await bench.fetch("SELECT body FROM messages") == [("new text",)]


async def test_entries_of_another_log_are_not_moved(bench: EngineBench) -> None:
    spec = {
        "type": "onchain_event", "chainId": 1, "contract": "0x" + "a" * 40,
        "signature": "Transfer(address,address,uint256)", "walletArg": "to", "confirmations": 0,
    }  # fmt: skip
    nodes, edges = path(DELAY, TAG)
    nodes[0] = node("t", "onchain_event")
    automation_id = await bench.automation(nodes, edges, trigger=spec)
    await bench.execute(
        "INSERT INTO entries (org_id, id, automation_id, automation_version, event_id, event_created_at, contact_id,"
        " state, node_id, step, due_at, since, created_at, updated_at) SELECT %s, %s, %s, 1, %s, now(), %s,"
        " 'waiting', 'pause', 1, now() + interval '1 day', now(), now(), now()",
        bench.org_id,
        uuid7(1),
        automation_id,
        uuid7(2),
        uuid7(3),
    )
    await edit(bench, automation_id, written_graph(nodes, edges, {}), spec | {"walletArg": "from"})
    move_id = await plan_move(bench, automation_id, "safe")
    assert isinstance(move_id, str), move_id
    move = await moves.complete(services(bench), bench.org_id, automation_id, move_id)
    assert move.reasons == {"the trigger of version 2 reads another log": 1}


async def test_a_masked_message_of_an_earlier_version_stays_masked_after_the_move(bench: EngineBench) -> None:
    body = "{{ contact.email }} {{ amount }}"
    mail = node("mail", "send_inapp", title="x", body=body, recipientMode="triggering_profile")
    automation_id = await bench.automation(*path(mail, DELAY))
    await bench.send("k", {"walletAddress": evm_wallet("a"), "email": "ann@example.com"}, amount=5)
    await bench.drive()
    plain = {**mail, "data": {**mail["data"], "body": "{{ amount }}"}}
    move = await publish(bench, automation_id, *path(plain, DELAY, OTHER_TAG))
    assert move.moved == 1
    shown = EmailDisplay(bench.keyring.of(bench.org_id), clear=False)
    history = await entries.read_history(bench.database, bench.org_id, move.sample[0].entry_id, shown)
    assert isinstance(history, EntryHistoryView)
    assert history.messages[0].body == body
    assert [(row.from_version, row.to_version, row.next_node_id) for row in history.moves] == [(1, 2, "other")]


async def test_goal_rates_count_an_entry_for_the_version_that_it_started_with(bench: EngineBench) -> None:
    automation_id = await start(bench, *BEFORE)
    await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    await publish(bench, automation_id, *path(DELAY))
    assert await places(bench) == [(3, 1, "waiting", "pause")]
    selection = GoalEntries(bench.org_id, automation_id, FIRST_ID, 1)
    async with bench.database.transaction() as tx:
        rows = await list_goal_entries(tx, selection, LAST_ID, 10)
    assert [row.version for row in rows] == [1]


async def test_a_bug_that_one_entry_triggers_does_not_stop_the_others(
    bench: EngineBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation_id = await start(bench, *BEFORE, entries=3)
    predicted: list[str] = []
    predict = moves.predict

    def predict_with_a_bug(graph: Any, run: Any, *rest: Any) -> Any:
        predicted.append(run.entry_id)
        return predict(graph, run, *rest) if len(predicted) != 2 else 1 / 0

    monkeypatch.setattr(moves, "predict", predict_with_a_bug)
    move = await publish(bench, automation_id, *path(DELAY, OTHER_TAG))
    assert (numbers(move), move.reasons) == ((3, 2, 0), {"it would fail: internal_error: ZeroDivisionError": 1})
