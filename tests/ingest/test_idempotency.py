"""Every event is stored once (docs/contract.md 4.6)."""

from datetime import timedelta
from typing import Any

import pytest

from api.ingest.parse import AcceptedEvent, DryRun, Duplicate, Outcome
from tests.ingest.conftest import Intake, Org, event


def kinds(outcomes: list[Outcome]) -> dict[str, int]:
    """Return the number of outcomes by kind."""
    names = [type(outcome).__name__ for outcome in outcomes]
    return {name: names.count(name) for name in names}


async def mismatches(org: Org) -> list[str]:
    """Return the keys that were sent again with a different body."""
    rows = await org.intake.rows(
        "SELECT e.idempotency_key FROM idempotency_mismatches m"
        " JOIN events e ON e.org_id = m.org_id AND e.id = m.event_id"
        " WHERE m.org_id = %(org_id)s ORDER BY m.id",
        org_id=org.id,
    )
    return [key for (key,) in rows]


async def test_c1_a_hundred_concurrent_copies_are_one_event(acme: Org) -> None:
    await acme.automate("deposit")
    assert kinds(await acme.send_at_once(*[event("k")] * 100)) == {"AcceptedEvent": 1, "Duplicate": 99}
    assert await acme.traces() == dict.fromkeys(("events", "idempotency_keys", "contacts", "identities", "entries"), 1)
    assert await mismatches(acme) == []


async def test_c2_the_first_of_several_bodies_with_one_key_is_stored(acme: Org) -> None:
    bodies = [event("k", payload={"n": n}, external_id=f"u{n}", attributes={"n": n}) for n in range(50)]
    outcomes = await acme.send_at_once(*bodies)
    (winner,) = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, AcceptedEvent)]
    assert await acme.rows("payload", "events") == [({"n": winner},)]
    assert await acme.contacts() == [{"external_id": f"u{winner}", "attributes": {"n": winner}}]
    assert await mismatches(acme) == ["k"] * 49


async def test_a_key_sent_again_with_another_body_is_recorded(acme: Org) -> None:
    await acme.send(event("k", payload={"n": 1}), event("k", payload={"n": 2}), event("other"))
    await acme.send(event("k", payload={"n": 1}))
    await acme.send(event("k", payload={"n": 3}), event("other"))
    assert await mismatches(acme) == ["k", "k"]


async def test_c3_c6_keys_of_two_organizations_are_independent(acme: Org, globex: Org) -> None:
    mine, theirs = await acme.send(event("k")), await globex.send(event("k"))
    assert [*mine, *theirs] == [AcceptedEvent("k"), AcceptedEvent("k")]


async def test_c6_every_event_without_key_and_time_is_stored(acme: Org, intake: Intake) -> None:
    bare = event()
    outcomes = await acme.send_at_once(*[bare] * 1_000) + await acme.send(*[bare] * 100)
    assert kinds(outcomes) == {"AcceptedEvent": 1_100}
    assert len({key for (key,) in await acme.rows("idempotency_key", "events")}) == 1_100


async def test_c7_events_without_a_key_but_with_the_same_time_are_one_event(acme: Org) -> None:
    dated = event(occurredAt=(acme.intake.clock.now() - timedelta(hours=1)).isoformat())
    assert kinds(await acme.send_at_once(*[dated] * 60) + await acme.send(*[dated] * 40)) == {
        "AcceptedEvent": 1,
        "Duplicate": 99,
    }


DERIVED_FROM: list[dict[str, Any]] = [
    {"event": "other"},
    {"occurredAt": "2026-01-01T00:00:01Z"},
    {"contact": {"externalId": "u2"}},
    {"contact": {"walletAddress": "u1"}},
    {"contact": {"externalId": "u1", "email": "u1@example.com"}},
]
EQUAL: list[dict[str, Any]] = [
    {"event": "DEPOSIT"},
    {"payload": {"n": 1}, "attributes": {"n": 1}},
    {"contact": {"externalId": "u1", "email": None}},
    {"unknown": True},
]


@pytest.mark.parametrize("change", DERIVED_FROM + EQUAL)
async def test_a_derived_key_depends_on_name_contact_and_time(acme: Org, change: dict[str, Any]) -> None:
    moment = (acme.intake.clock.now() - timedelta(hours=1)).replace(microsecond=0)
    dated = event(occurredAt=moment.isoformat())
    if "occurredAt" in change:
        change = {"occurredAt": (moment + timedelta(microseconds=1)).isoformat()}
    first, second = await acme.send(dated, dated | change)
    assert isinstance(second, Duplicate) == (change in EQUAL)
    assert (first.idempotency_key == second.idempotency_key) == (change in EQUAL)  # type: ignore[union-attr]


async def test_one_moment_in_two_zones_is_one_key(acme: Org) -> None:
    at = (acme.intake.clock.now() - timedelta(hours=1)).replace(microsecond=0, tzinfo=None)
    forms = [f"{at.isoformat()}Z", f"{at.isoformat()}.000+00:00", f"{(at + timedelta(hours=2)).isoformat()}+02:00"]
    assert kinds(await acme.send(*[event(occurredAt=form) for form in forms])) == {"AcceptedEvent": 1, "Duplicate": 2}


async def test_dry_runs_and_live_events_do_not_share_idempotency_keys(acme: Org) -> None:
    dry, live, again = await acme.send(event("k", test=True), event("k"), event("k", test=True))
    assert (dry, live, again) == (DryRun("k", 0, False), AcceptedEvent("k"), DryRun("k", 0, True))
    assert await acme.send(event("k", test=True)) == [DryRun("k", 0, True)]
    assert await acme.send(event("k")) == [Duplicate("k")]
