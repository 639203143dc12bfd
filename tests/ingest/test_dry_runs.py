"""Dry runs report what a live event would do, without doing it (docs/contract.md 4.4)."""

from typing import Any

import pytest

from api.ingest.parse import AcceptedEvent, DryRun, Outcome
from tests.ingest.conftest import Intake, Org, event

IS_ANN = {"path": "email", "operator": "eq", "value": "ann@example.com"}
HAS_ID = {"path": "externalId", "operator": "exists"}


def matched(outcome: Outcome) -> int:
    """Return the number of automations that a dry run would enter, or that a live event entered."""
    match outcome:
        case DryRun(matched=number) | AcceptedEvent(entries=number):
            return number
    raise AssertionError(outcome)


async def test_a_dry_run_counts_what_would_match_and_writes_nothing_else(acme: Org) -> None:
    await acme.automate("deposit")
    await acme.automate()
    await acme.automate("deposit", {"path": "usd", "operator": "eq", "value": 5})
    await acme.automate("other")
    outcomes = await acme.send(event("1", payload={"usd": 5}), event("2"), event("3", external_id="new"), test=True)
    assert [matched(outcome) for outcome in outcomes] == [3, 2, 2]
    assert await acme.traces() == {"dry_runs": 3}
    assert await acme.rows("idempotency_key, matched", "dry_runs") == [("1", 3), ("2", 2), ("3", 2)]


@pytest.mark.parametrize("contact", [{"email": "ann@example.com"}, {"email": "Ann@Example.com", "wallet": "0xB"}])
async def test_a_dry_run_matches_with_the_contact_that_would_be_created(acme: Org, contact: dict[str, Any]) -> None:
    await acme.automate("deposit", IS_ANN)
    dry, live = await acme.send(event("1", test=True, **contact), event("2", **contact))
    assert (matched(dry), matched(live)) == (1, 1)


async def test_a_dry_run_matches_with_identifiers_of_the_stored_contact(acme: Org) -> None:
    await acme.automate("deposit", IS_ANN)
    await acme.automate("deposit", HAS_ID)
    await acme.send(event("0", wallet="0xA", email="ann@example.com", external_id="u1"))
    dry, live = await acme.send(event("1", test=True, wallet="0xA"), event("2", wallet="0xA"))
    assert (matched(dry), matched(live)) == (2, 2)


async def test_a_dry_run_finds_its_contact_in_a_batch_with_live_events_of_new_contacts(acme: Org) -> None:
    await acme.automate("deposit", IS_ANN)
    await acme.send(event("0", wallet="0xA", email="ann@example.com"))
    live, dry = await acme.send(event("1", wallet="0xNew"), event("2", wallet="0xA", test=True))
    assert (live, dry) == (AcceptedEvent("1", 0), DryRun("2", 1, False))


async def test_a_dry_run_sees_the_contacts_of_its_batch(acme: Org) -> None:
    await acme.automate("deposit", IS_ANN)
    live, dry = await acme.send(event("1", wallet="0xA", email="ann@example.com"), event("2", wallet="0xA", test=True))
    assert (matched(live), matched(dry)) == (1, 1)


async def test_dry_runs_and_live_events_of_several_organizations_share_a_micro_batch(
    intake: Intake, acme: Org, globex: Org
) -> None:
    await globex.automate("deposit")
    arrivals = [
        acme.arrival(event("1", wallet="0xA")),
        globex.arrival(event("1", wallet="0xA", test=True)),
        globex.arrival(event("2")),
    ]
    assert await intake.write(*arrivals) == [AcceptedEvent("1", 0), DryRun("1", 1, False), AcceptedEvent("2", 1)]
    assert await acme.traces() == dict.fromkeys(("events", "idempotency_keys", "contacts", "identities"), 1)
    assert (await globex.traces())["dry_runs"] == 1


async def test_a_dry_run_does_not_change_its_contact(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA", attributes={"plan": "free"}))
    before = await acme.rows("*", "contacts"), await acme.rows("*", "identities")
    await acme.send(event("2", wallet="0xA", email="ann@example.com", attributes={"plan": "pro"}, test=True))
    assert (await acme.rows("*", "contacts"), await acme.rows("*", "identities")) == before
    assert "identity_conflicts" not in await acme.traces()


async def test_the_first_of_equal_dry_runs_is_stored(acme: Org) -> None:
    outcomes = await acme.send(event("k", payload={"n": 1}), event("k", payload={"n": 2}), test=True)
    assert outcomes == [DryRun("k", 0, False), DryRun("k", 0, True)]
    assert await acme.rows("payload, event, idempotency_key", "dry_runs") == [({"n": 1}, "deposit", "k")]
