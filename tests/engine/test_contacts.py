"""Effects change the tags and attributes of contacts within their bounds, and later entries see the changes."""

from typing import Any

from api.engine.progress import advance_slice
from api.engine.record import RecordedBatch
from tests.engine.conftest import EngineBench
from tests.inapp.wallet import evm_wallet

TRIGGER = {"id": "t", "type": "app_event", "data": {}}


def add(tag: str, node_id: str = "a") -> dict[str, Any]:
    return {"id": node_id, "type": "add_tag", "data": {"tag": tag}}


def remove(tag: str) -> dict[str, Any]:
    return {"id": "r", "type": "remove_tag", "data": {"tag": tag}}


def update(**attributes: Any) -> dict[str, Any]:
    return {"id": "u", "type": "update_contact", "data": {"attributes": attributes}}


async def test_a_tag_can_be_removed(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, add("new"), add("vip", "b"), remove("new")], [("t", "a"), ("a", "b"), ("b", "r")])
    await bench.send("k")
    await bench.drive()
    assert await bench.fetch("SELECT tags FROM contacts") == [(["vip"],)]
    assert await bench.steps() == ["entered", "tagged", "tagged", "untagged"]


async def test_a_tag_that_is_added_again_is_last(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, remove("a"), add("a")], [("t", "r"), ("r", "a")])
    await bench.send("k")
    await bench.execute("UPDATE contacts SET tags = '{a,b}' WHERE org_id = %s", bench.org_id)
    await bench.drive()
    assert await bench.fetch("SELECT tags FROM contacts") == [(["b", "a"],)]


async def test_attributes_are_merged_with_values_of_the_event(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, update(last="{{ amountUsd }}", plan="pro")], [("t", "u")])
    await bench.ingest({"event": "deposit", "attributes": {"plan": "free", "age": 7}, "payload": {"amountUsd": 5}})
    await bench.drive()
    ((attributes,),) = await bench.fetch("SELECT attributes::text FROM contacts")
    assert attributes == '{"age": 7, "last": 5, "plan": "pro"}'


async def test_a_step_is_the_cause_of_what_it_changes(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, update(plan="pro"), add("vip")], [("t", "u"), ("u", "a")])
    await bench.send("k")
    await bench.drive()
    (entry,) = await bench.fetch("SELECT id FROM entries")
    changes = "SELECT field, old::text, new::text, cause FROM contact_changes ORDER BY field"
    assert await bench.fetch(changes) == [("attributes.plan", None, '"pro"', "step"), ("tags", "[]", '["vip"]', "step")]
    assert await bench.fetch("SELECT DISTINCT cause_id FROM contact_changes") == [entry]


async def test_entries_of_one_batch_see_the_effects_of_earlier_ones(bench: EngineBench) -> None:
    tagged = {"path": "contact.tags", "operator": "contains", "value": "vip"}
    branch = {"id": "c", "type": "condition", "data": {"filters": [tagged]}}
    await bench.automation(
        [TRIGGER, branch, add("again"), add("vip", "b")], [("t", "c"), ("c", "a", "true"), ("c", "b", "false")]
    )
    await bench.send("k1")
    await bench.send("k2")
    assert await bench.driver.drive(bench.org_id, "ready", 10) == 2
    assert await bench.fetch("SELECT tags FROM contacts") == [(["vip", "again"],)]


async def fill(bench: EngineBench, attributes: int) -> None:
    await bench.execute(
        "UPDATE contacts SET attributes = (SELECT jsonb_object_agg('a' || n, n) FROM generate_series(1, %s) AS n)"
        " WHERE org_id = %s AND wallet_address = %s",
        attributes,
        bench.org_id,
        evm_wallet("a"),
    )


async def test_an_update_past_the_bounds_of_a_contact_is_dead(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, add("seen"), update(one=1)], [("t", "a"), ("a", "u")])
    await bench.send("k1")
    await bench.send("k2", {"walletAddress": evm_wallet("B")})
    await fill(bench, 1_000)
    await bench.drive()
    assert await bench.entries() == [("dead", "invalid_attribute"), ("completed", "completed")]
    assert await bench.steps() == ["entered", "tagged", "failed", "entered", "tagged", "updated"]


async def test_an_update_that_became_too_large_meanwhile_affects_only_its_entry(bench: EngineBench) -> None:
    await bench.automation([TRIGGER, update(one=1)], [("t", "u")])
    await bench.send("k1")
    await bench.send("k2", {"walletAddress": evm_wallet("B")})
    driver = bench.new_driver()
    claims = await driver._claims.take(bench.org_id, "ready", 10)
    await driver._graphs.load(bench.org_id, claims)
    facts = await driver._read_facts(bench.org_id, claims)
    batch = advance_slice(bench.org_id, claims, driver._graphs, facts)
    await fill(bench, 1_000)
    assert await driver._record(bench.org_id, batch, facts) is None
    for progress in batch:
        assert await driver._record(bench.org_id, [progress], facts) == RecordedBatch()
    assert await bench.entries() == [("dead", "invalid_attribute"), ("completed", "completed")]
