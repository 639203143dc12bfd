"""Every accepted live event enters every matching automation that is active at that moment, once."""

import asyncio
from typing import Any

import pytest

from api.automations import automations
from api.clock import from_us
from api.ingest.identity import ContactIdentifiers
from api.ingest.match import Triggers
from api.ingest.parse import AcceptedEvent
from tests.ingest.conftest import Intake, Org, event


async def entered(org: Org) -> set[tuple[str, str]]:
    """Return (automation, key of the event) of every entry; each pair must occur once."""
    rows = await org.intake.rows(
        "SELECT n.automation_id, e.idempotency_key FROM entries n"
        " JOIN events e ON e.org_id = n.org_id AND e.id = n.event_id"
        " AND e.created_at = n.event_created_at AND e.contact_id = n.contact_id WHERE n.org_id = %(org_id)s",
        org_id=org.id,
    )
    assert len(rows) == len(set(rows)) == (await org.traces()).get("entries", 0)
    return set(rows)  # type: ignore[arg-type]


async def test_an_event_enters_automations_that_name_it_and_every_wildcard(acme: Org, globex: Org) -> None:
    named, everything, _ = await acme.automate("Deposit"), await acme.automate(), await acme.automate("other")
    await globex.automate()
    assert await acme.send(event("1"), event("2", event="withdrawal")) == [AcceptedEvent("1", 2), AcceptedEvent("2", 1)]
    assert await entered(acme) == {(named, "1"), (everything, "1"), (everything, "2")}
    assert await entered(globex) == set()


async def test_an_event_enters_an_automation_only_if_its_expression_holds(acme: Org) -> None:
    big = await acme.automate("deposit", where="amountUsd > 500 and asset in ['USDC', 'DAI']")
    known = await acme.automate("deposit", where="email is defined")
    new = await acme.automate("deposit", where="since | days_since < 30")
    await acme.send(event("0", event="signup", email="ann@b.co", external_id="ann"))
    payloads: dict[str, dict[str, Any]] = {
        "1": {"amountUsd": 500.01, "asset": "DAI"},
        "2": {"amountUsd": 500, "asset": "DAI"},
        "3": {"amountUsd": "600", "asset": "DAI"},
        "4": {"asset": "DAI", "since": "2020-01-01T00:00:00Z"},
        "5": {"amountUsd": 10**40, "asset": "USDC", "since": "2999-01-01"},
        "6": {},
    }
    await acme.send(*[event(key, payload=payload) for key, payload in payloads.items()])
    await acme.send(event("7", external_id="ann"))
    assert await entered(acme) == {(big, "1"), (big, "5"), (new, "5"), (known, "7")}


async def test_ids_of_entries_follow_the_order_of_events_and_the_age_of_automations(acme: Org) -> None:
    automation_ids = [await acme.automate(name) for name in ("", "deposit", "", "deposit")]
    await acme.send(*[event(str(number)) for number in range(5)])
    rows = await acme.intake.rows(
        "SELECT e.idempotency_key, n.automation_id FROM entries n JOIN events e ON e.id = n.event_id"
        " WHERE n.org_id = %(org_id)s ORDER BY n.id",
        org_id=acme.id,
    )
    assert rows == [(str(number), automation_id) for number in range(5) for automation_id in automation_ids]


async def test_an_event_enters_no_automation_that_starts_from_logs(acme: Org) -> None:
    on_chain = await acme.automate("Deposit")
    spec = '{"type": "onchain_event", "chainId": 1, "signature": "Deposit(address who)", "walletArg": "who"}'
    change = "trigger_spec = %(spec)s::jsonb || jsonb_build_object('contract', '0x' || repeat('c0', 20))"
    for table, key in (("automations", "id"), ("automation_versions", "automation_id")):
        await acme.intake.rows(f"UPDATE {table} SET {change} WHERE {key} = %(id)s RETURNING 1", spec=spec, id=on_chain)
    assert await acme.send(event("1")) == [AcceptedEvent("1", 0)]
    assert await entered(acme) == set()


async def test_an_entry_waits_for_the_engine_at_its_version(acme: Org) -> None:
    await acme.automate("deposit")
    await acme.automate("deposit", publish=False)
    await acme.send(event("1"))
    assert await acme.rows("state, automation_version, step, attempts", "entries", "2 NULLS LAST") == [
        ("pending", 1, 0, 0),
        ("pending", None, 0, 0),
    ]


FILTERS: list[tuple[dict[str, Any], bool]] = [
    ({"path": "usd", "operator": "eq", "value": 250.50}, True),
    ({"path": "usd", "operator": "eq", "value": "250.5"}, False),
    ({"path": "asset.symbol", "operator": "in", "value": ["USDC", "ETH"]}, True),
    ({"path": "tags", "operator": "contains", "value": "new"}, True),
    ({"path": "missing", "operator": "neq", "value": 1}, True),
    ({"path": "missing", "operator": "exists"}, False),
    ({"path": "walletAddress", "operator": "eq", "value": "0xa"}, True),
    ({"path": "email", "operator": "eq", "value": "ann@example.com"}, True),
    ({"path": "event", "operator": "eq", "value": "overridden"}, True),
    ({"path": "contactId", "operator": "exists"}, True),
]


@pytest.mark.parametrize(("condition", "holds"), FILTERS)
async def test_filters_decide_on_payload_and_identifiers(acme: Org, condition: dict[str, Any], holds: bool) -> None:
    await acme.send(event("0", wallet="0xA", email="ann@example.com"))
    automation_id = await acme.automate("deposit", condition)
    payload = {"usd": 250.5, "asset": {"symbol": "USDC"}, "tags": ["new", None], "event": "overridden"}
    await acme.send(event("1", wallet="0xA", payload=payload))
    assert await entered(acme) == ({(automation_id, "1")} if holds else set())


async def test_a_change_of_automations_is_seen_by_the_next_event_of_every_process(acme: Org, intake: Intake) -> None:
    other = Intake(intake.dsn)
    await other.start()
    for pipeline in (intake.pipeline, other.pipeline):
        assert await acme.send(event(), through=pipeline) != []  # both have cached that no automation matches
    automation_id = await acme.automate("deposit")
    outcomes = [
        await acme.send(event(str(n)), through=pipeline) for n, pipeline in enumerate((intake.pipeline, other.pipeline))
    ]
    assert outcomes == [[AcceptedEvent("0", 1)], [AcceptedEvent("1", 1)]]
    assert not isinstance(await automations.deactivate(intake.database, acme.author, automation_id), tuple)
    assert await acme.send(event("2"), through=other.pipeline) == [AcceptedEvent("2", 0)]
    await other.stop()


async def test_a_batch_keeps_the_triggers_it_read_whatever_other_writers_read_meanwhile(
    acme: Org, intake: Intake
) -> None:
    triggers = Triggers(intake.keyring)
    automation_id = await acme.automate("deposit")
    ((epoch,),) = await acme.rows("epoch", "automation_epochs")
    arrival = acme.arrival(event("1"))
    async with intake.database.transaction() as tx:
        before = await triggers.matcher(tx, {acme.id: epoch})
    await automations.deactivate(intake.database, acme.author, automation_id)
    async with intake.database.transaction() as tx:
        after = await triggers.matcher(tx, {acme.id: epoch + 1})
        await triggers.matcher(tx, {acme.id: epoch})  # a slower writer, which read the epoch earlier
    assert [len(matcher.matches(arrival, "", ContactIdentifiers(), from_us(0))) for matcher in (before, after)] == [
        1,
        0,
    ]


async def test_events_during_changes_of_automations_have_each_entry_once(acme: Org) -> None:
    async def change() -> list[str]:
        return [await acme.automate("deposit") for _ in range(5)]

    outcomes, made = await asyncio.gather(acme.send_at_once(*[event(str(n)) for n in range(200)]), change())
    pairs = await entered(acme)
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, AcceptedEvent)
        assert len([1 for automation_id in made if (automation_id, str(number)) in pairs]) == outcome.entries


async def test_an_event_that_fails_leaves_no_entry_and_a_duplicate_makes_none(acme: Org) -> None:
    automation_id = await acme.automate()
    await acme.send(event("1"), event("1"), {"event": "deposit"}, event("?" * 300))
    await acme.send(event("1"))
    assert await entered(acme) == {(automation_id, "1")}
