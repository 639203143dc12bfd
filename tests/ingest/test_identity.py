"""The rules of docs/contract.md 4.5 select the contact of an event."""

import asyncio
from random import Random
from typing import Any

import pytest

from api.ingest.parse import AcceptedEvent
from tests.ingest.conftest import Intake, Org, event
from tests.ingest.test_history import POOLS, Fold

A, B = "a@example.com", "b@example.com"


async def conflicts(org: Org) -> list[tuple[int, str, bool]]:
    """Return (kind, outcome, has another contact) of the conflicts, in order."""
    return await org.rows("kind, outcome, other_contact_id IS NOT NULL", "identity_conflicts", "id")


async def test_h1_an_email_sent_with_a_wallet_ends_on_the_wallets_contact(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA"), event("2", email=B, attributes={"of": "b"}))
    await acme.send(event("3", wallet="0xa", email=B))
    await acme.send(event("4", email=B))
    assert await acme.contacts() == [{"wallet": "0xa", "email": B}, {"attributes": {"of": "b"}}]
    assert await conflicts(acme) == [(2, "moved", True)]
    owners = dict(await acme.rows("idempotency_key, contact_id", "events"))
    assert owners["1"] == owners["3"] == owners["4"] != owners["2"]


async def test_h2_an_email_sent_with_a_wallet_replaces_the_contacts_own(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA", email=A))
    await acme.send(event("2", wallet="0xA", email=B))
    await acme.send(event("3", email=A))  # the old one still leads here
    assert await acme.contacts() == [{"wallet": "0xa", "email": B}]
    assert await conflicts(acme) == [(2, "replaced", False)]


async def test_h3_an_external_id_is_not_overwritten(acme: Org) -> None:
    await acme.send(event("1", email=A, external_id="u1"))
    await acme.send(event("2", email=A, external_id="u2"))
    assert await acme.contacts() == [{"email": A, "external_id": "u1"}]
    assert await conflicts(acme) == [(3, "kept", False)]


async def test_h4_one_identifier_is_a_contact_and_missing_ones_are_filled_in(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA"))
    assert await acme.contacts() == [{"wallet": "0xa"}]
    await acme.send(event("2", wallet="0xA", external_id="u1"))
    await acme.send(event("3", external_id="u1", email=A))
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]
    assert await conflicts(acme) == []


async def test_an_identifier_of_another_contact_does_not_move(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA"), event("2", external_id="u2"))
    await acme.send(event("3", wallet="0xA", external_id="u2"))
    assert await acme.contacts() == [{"wallet": "0xa"}, {"external_id": "u2"}]
    assert await conflicts(acme) == [(3, "left", True)]


async def test_emails_are_compared_in_their_normal_form_and_sealed(acme: Org) -> None:
    await acme.send(*[event(str(n), email=form) for n, form in enumerate((A, "A@Example.COM", "a@EXAMPLE.com"))])
    ((email, domain),) = await acme.rows("email, email_domain", "contacts")
    assert (acme.keys.open_email(email), domain) == (A, "example.com")
    everything = await acme.intake.rows("SELECT string_agg(t::text, '') FROM (TABLE contacts) t")
    assert "a@example" not in everything[0][0]


async def test_g1_g5_another_organization_has_its_own_contacts(acme: Org, globex: Org) -> None:
    await acme.send(event("1", wallet="0xA", email=A, external_id="u1", attributes={"plan": "pro"}))
    await globex.send(event("1", wallet="0xA", email=A, external_id="u1"))
    mine, theirs = await acme.rows("*", "contacts"), await globex.rows("*", "contacts")
    assert len(mine) == len(theirs) == 1
    assert await globex.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]
    # Sealed and indexed by different keys
    for column, table in (
        ("email", "contacts"),
        ("value_digest", "identities"),
    ):
        assert not {*await acme.rows(column, table)} & {*await globex.rows(column, table)}


async def test_c8_a_new_contact_in_a_hundred_requests_at_once_is_one_contact(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), wallet="0xA", email=A, external_id="u1") for n in range(100)])
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]
    assert (await acme.traces())["events"] == 100


async def test_c8_a_new_contact_seen_from_every_side_at_once_is_one_contact(acme: Org) -> None:
    pairs: list[dict[str, Any]] = [
        {"wallet": "0xA", "email": A},
        {"email": A, "external_id": "u1"},
        {"wallet": "0xA", "external_id": "u1"},
    ]
    await acme.send(event("all", wallet="0xA", email=A))
    await acme.send_at_once(*[event(str(n), **pairs[n % 3]) for n in range(60)])
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]


async def test_c11_attributes_of_many_writers_are_all_there(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), attributes={f"k{n}": n, "n": n}) for n in range(200)])
    ((attributes,),) = await acme.rows("attributes", "contacts")
    assert attributes.pop("n") in range(200)
    assert attributes == {f"k{n}": n for n in range(200)}


async def test_c12_the_last_write_wins_key_by_key(acme: Org) -> None:
    await acme.send(event("1", attributes={"a": 1, "b": 1, "c": 1}))
    await acme.send(event("2", attributes={"a": 2}), event("3", attributes={"b": 3}), event("4", attributes={"a": "4"}))
    await acme.send(event("4", attributes={"a": "not again"}))
    assert await acme.contacts() == [{"external_id": "u1", "attributes": {"a": "4", "b": 3, "c": 1}}]


async def test_c12_attributes_of_two_writers_are_never_torn(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), attributes=dict.fromkeys("abcdef", n)) for n in range(100)])
    ((attributes,),) = await acme.rows("attributes", "contacts")
    assert len(set(attributes.values())) == 1


async def test_c13_of_two_external_ids_for_one_contact_one_stays(acme: Org) -> None:
    await acme.send(event("0", email=A))
    outcomes = await acme.send_at_once(*[event(f"{n}", email=A, external_id=f"u{n}") for n in range(1, 41)])
    assert all(isinstance(outcome, AcceptedEvent) for outcome in outcomes)
    (contact,) = await acme.contacts()
    assert contact["external_id"] in {f"u{n}" for n in range(1, 41)}
    assert await conflicts(acme) == [(3, "kept", False)] * 39


@pytest.mark.parametrize("seed", range(4))
async def test_batches_of_any_size_give_the_contacts_that_events_one_by_one_give(acme: Org, seed: int) -> None:
    chance = Random(seed)
    events = [wanderer(chance, number) for number in range(250)]
    expected = Fold(acme)  # type: ignore[arg-type]
    for sent in events:
        expected.take(sent)
    while events:
        size = chance.choice((1, 2, 7, 60))
        await acme.send(*events[:size])
        del events[:size]
    assert await stored_contacts(acme) == expected.contacts()


@pytest.mark.parametrize("seed", range(3))
async def test_v7_contacts_own_the_identifiers_that_lead_to_them_in_any_order(
    acme: Org, intake: Intake, seed: int
) -> None:
    chance = Random(seed)
    other = Intake(intake.dsn)
    await other.start()
    batches = [[wanderer(chance, batch * 10 + n) for n in range(10)] for batch in range(30)]
    pipelines = [process.pipeline for process in (intake, other)]
    await asyncio.gather(*[acme.send(*batch, through=pipelines[n % 2]) for n, batch in enumerate(batches)])
    await other.stop()
    assert (await acme.traces())["events"] == 300
    assert await intake.rows(ASTRAY, org_id=acme.id) == []


ASTRAY = """
    WITH owned AS (SELECT contact_id, kind FROM identities WHERE org_id = %(org_id)s)
    SELECT c.id FROM contacts c
    WHERE c.org_id = %(org_id)s AND (
        (c.wallet_address IS NOT NULL) <> ((c.id, 1) IN (TABLE owned))
        OR (c.email IS NOT NULL AND (c.id, 2) NOT IN (TABLE owned))
        OR (c.external_id IS NOT NULL) <> ((c.id, 3) IN (TABLE owned))
        OR NOT EXISTS (SELECT 1 FROM events e WHERE e.org_id = c.org_id AND e.contact_id = c.id))
    UNION ALL
    SELECT min(id::text)::uuid FROM contacts WHERE org_id = %(org_id)s AND wallet_address IS NOT NULL
    GROUP BY wallet_address HAVING count(*) > 1
    UNION ALL
    SELECT min(id::text)::uuid FROM contacts WHERE org_id = %(org_id)s AND email IS NOT NULL
    GROUP BY email HAVING count(*) > 1"""


def wanderer(chance: Random, number: int) -> dict[str, Any]:
    """Return an event of a contact that uses different combinations of its identifiers."""
    while True:
        wallet, email, external_id = (chance.choice((None, None, *pool)) for pool in POOLS)
        contact = {"walletAddress": wallet, "email": email, "externalId": external_id}
        if any(contact.values()):
            return {
                "event": "deposit",
                "contact": {k: v for k, v in contact.items() if v},
                "idempotencyKey": str(number),
            }


async def stored_contacts(org: Org) -> set[tuple[Any, ...]]:
    rows = await org.rows(
        """wallet_address, email, external_id,
           ARRAY(SELECT kind || ':' || replace(value_digest::text, '-', '') FROM identities i
                 WHERE i.org_id = c.org_id AND i.contact_id = c.id),
           ARRAY(SELECT idempotency_key FROM events e WHERE e.org_id = c.org_id AND e.contact_id = c.id)""",
        "contacts c",
    )
    return {
        (
            wallet,
            None if email is None else org.keys.open_email(email),
            external_id,
            frozenset((int(kind), digest) for kind, _, digest in (identity.partition(":") for identity in identities)),
            frozenset(events),
        )
        for wallet, email, external_id, identities, events in rows
    }
