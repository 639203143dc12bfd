"""The rules of docs/contract.md 4.5 select the contact of an event."""

import asyncio
import os
from random import Random
from typing import Any

import pytest

from api.ingest.identity import lock_identifiers
from api.ingest.parse import AcceptedEvent
from tests.imports.test_history import POOLS, Fold
from tests.ingest.conftest import Intake, Org, event
from workbench.language.contact import ContactState, IdentifierKind, apply_event, identifier_values
from workbench.language.event import Identifiers

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


async def test_h2_an_email_that_returns_is_stored_again(acme: Org) -> None:
    for emails in ((A, B, A), (B, A)):  # one by one, and within a batch
        await acme.send(*[event(wallet="0xA", email=email) for email in emails])
        assert await acme.contacts() == [{"wallet": "0xa", "email": A}]
    await acme.send(event(wallet="0xA", email=B))
    await acme.send(event(email=A))  # without the wallet, it only leads to the contact
    assert await acme.contacts() == [{"wallet": "0xa", "email": B}]
    assert await conflicts(acme) == [(2, "replaced", False)] * 5


async def test_an_email_that_was_replaced_fills_in_for_one_that_moved_away(acme: Org) -> None:
    for email in (A, B):
        await acme.send(event(wallet="0xA", email=email))
    await acme.send(event(wallet="0xB"), event(wallet="0xB", email=B))
    assert await acme.contacts() == [{"wallet": "0xa"}, {"wallet": "0xb", "email": B}]
    await acme.send(event(email=A))
    assert await acme.contacts() == [{"wallet": "0xa", "email": A}, {"wallet": "0xb", "email": B}]


async def test_h3_an_external_id_is_not_overwritten(acme: Org) -> None:
    await acme.send(event("1", email=A, external_id="u1"))
    await acme.send(event("2", email=A, external_id="u2"))
    assert await acme.contacts() == [{"email": A, "external_id": "u1"}]
    assert await conflicts(acme) == [(3, "kept", False)]


async def test_h4_one_identifier_makes_a_contact_and_missing_ones_are_added(acme: Org) -> None:
    await acme.send(event("1", wallet="0xA"))
    assert await acme.contacts() == [{"wallet": "0xa"}]
    await acme.send(event("2", wallet="0xA", external_id="u1"))
    await acme.send(event("3", external_id="u1", email=A))
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]
    assert await conflicts(acme) == []


async def test_a_batch_is_resolved_in_the_order_of_its_ids(acme: Org) -> None:
    await acme.send(event(wallet="0xA"), event(email=A))
    earlier, later = acme.arrival(event("1", email=A)), acme.arrival(event("2", wallet="0xA", email=A))
    await acme.intake.write(later, earlier)  # requests that were read at the same time, queued in another order
    owners = dict(await acme.rows("idempotency_key, contact_id", "events"))
    assert owners["1"] != owners["2"]


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
    # They are sealed and indexed with different keys.
    for column, table in (("email", "contacts"), ("value_digest", "identities")):
        assert not {*await acme.rows(column, table)} & {*await globex.rows(column, table)}


async def test_c8_a_new_contact_in_a_hundred_requests_at_once_is_one_contact(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), wallet="0xA", email=A, external_id="u1") for n in range(100)])
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]
    assert (await acme.traces())["events"] == 100


async def test_c8_concurrent_events_with_different_identifiers_create_one_contact(acme: Org) -> None:
    pairs: list[dict[str, Any]] = [
        {"wallet": "0xA", "email": A},
        {"email": A, "external_id": "u1"},
        {"wallet": "0xA", "external_id": "u1"},
    ]
    await acme.send(event("all", wallet="0xA", email=A))
    await acme.send_at_once(*[event(str(n), **pairs[n % 3]) for n in range(60)])
    assert await acme.contacts() == [{"wallet": "0xa", "email": A, "external_id": "u1"}]


async def test_c11_attributes_of_many_writers_are_all_there(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), attributes={f"k{n}": n}) for n in range(1_000)])
    assert await acme.rows("attributes", "contacts") == [({f"k{n}": n for n in range(1_000)},)]


async def test_c12_the_last_write_wins_key_by_key(acme: Org) -> None:
    await acme.send(event("1", attributes={"a": 1, "b": 1, "c": 1}))
    await acme.send(event("2", attributes={"a": 2}), event("3", attributes={"b": 3}), event("4", attributes={"a": "4"}))
    await acme.send(event("4", attributes={"a": "not again"}))
    assert await acme.contacts() == [{"external_id": "u1", "attributes": {"a": "4", "b": 3, "c": 1}}]


async def test_c12_attributes_of_two_writers_are_never_torn(acme: Org) -> None:
    await acme.send_at_once(*[event(str(n), attributes=dict.fromkeys("abcdef", n)) for n in range(100)])
    ((attributes,),) = await acme.rows("attributes", "contacts")
    assert len(set(attributes.values())) == 1


async def test_c13_one_of_two_external_ids_for_a_contact_is_stored(acme: Org) -> None:
    await acme.send(event("0", email=A))
    outcomes = await acme.send_at_once(*[event(f"{n}", email=A, external_id=f"u{n}") for n in range(1, 41)])
    assert all(isinstance(outcome, AcceptedEvent) for outcome in outcomes)
    (contact,) = await acme.contacts()
    assert contact["external_id"] in {f"u{n}" for n in range(1, 41)}
    assert await conflicts(acme) == [(3, "kept", False)] * 39


@pytest.mark.parametrize("seed", range(4))
async def test_batches_of_any_size_give_the_contacts_that_events_one_by_one_give(acme: Org, seed: int) -> None:
    chance = Random(seed)
    events = [event_of_random_identifiers(chance, number) for number in range(250)]
    expected = Fold(acme)  # type: ignore[arg-type]
    for sent in events:
        expected.apply_event(sent)
    while events:
        size = chance.choice((1, 2, 7, 60))
        await acme.send(*events[:size])
        del events[:size]
    assert await stored_contacts(acme) == expected.contacts()


async def test_sequences_of_identifiers_give_the_contacts_of_the_model(acme: Org) -> None:
    """`IDENTITY_SEQUENCES=10000` runs as many; each has identifiers of its own, and eight events."""
    chance, model = Random(17), Fold(acme)  # type: ignore[arg-type]
    sequences = [
        [of_sequence(event_of_random_identifiers(chance, 8 * number + n), number) for n in range(8)]
        for number in range(int(os.environ.get("IDENTITY_SEQUENCES", "150")))
    ]
    for start in range(0, len(sequences), 50):
        events = [event for step in zip(*sequences[start : start + 50], strict=True) for event in step]
        while events:
            size = chance.choice((1, 7, 60, 100))
            await acme.send(*events[:size])
            for sent in events[:size]:
                simulate_and_apply(model, sent)
            del events[:size]
    assert await stored_contacts(acme) == model.contacts()


def of_sequence(sent: dict[str, Any], number: int) -> dict[str, Any]:
    """Return the event with identifiers that only this sequence has."""
    return {**sent, "contact": {name: f"{number}-{value}" for name, value in sent["contact"].items()}}


def simulate_and_apply(model: Fold, sent: dict[str, Any]) -> None:
    """Apply an event to the model; a simulation of it must show the same contact."""
    identifiers = Identifiers(*map(sent["contact"].get, ("walletAddress", "email", "externalId")))
    owners = {key: model.owners[key] for key in identifier_values(identifiers) if key in model.owners}
    columns = {contact_id: dict(model.columns[contact_id]) for contact_id in owners.values()}
    contact_id = model.apply_event(sent)
    before, after = (
        ContactState(contact_id, Identifiers(*map(contact.get, IdentifierKind)))
        for contact in (columns.get(contact_id, {}), model.columns[contact_id])
    )
    assert apply_event(before, identifiers, {}, owners) == after, sent


@pytest.mark.parametrize("seed", range(3))
async def test_v7_contacts_own_the_identifiers_that_lead_to_them_in_any_order(
    acme: Org, intake: Intake, seed: int
) -> None:
    chance = Random(seed)
    other = Intake(intake.dsn)
    await other.start()
    batches = [[event_of_random_identifiers(chance, batch * 10 + n) for n in range(10)] for batch in range(30)]
    pipelines = [process.pipeline for process in (intake, other)]
    await asyncio.gather(*[acme.send(*batch, through=pipelines[n % 2]) for n, batch in enumerate(batches)])
    await other.stop()
    assert (await acme.traces())["events"] == 300
    assert await intake.rows(ASTRAY, org_id=acme.id) == []


async def test_v7_an_email_that_moves_while_its_contact_is_locked_is_moved_back_and_recorded(
    acme: Org, intake: Intake
) -> None:
    await acme.send(event("0", wallet="0xB"), event("1", wallet="0xA", email=A))
    other = Intake(intake.dsn)
    await other.start()
    async with intake.database.transaction() as tx:
        await lock_identifiers(tx, [acme.arrival(event(email=B))])
        # The batch recognises the first event, and waits for the lock of the second one's email.
        batch = asyncio.create_task(
            acme.send(event("2", wallet="0xA", email=A), event("3", wallet="0xA", email=B), through=other.pipeline)
        )
        await until_a_writer_waits(intake)
        (outcome,) = await acme.send(event("4", wallet="0xB", email=A))
    outcomes = [outcome, *await batch]
    assert all(isinstance(outcome, AcceptedEvent) for outcome in outcomes), outcomes
    await other.stop()
    assert await acme.contacts() == [{"wallet": "0xa", "email": B}, {"wallet": "0xb"}]
    assert sorted(await conflicts(acme)) == [(2, "moved", True), (2, "moved", True), (2, "replaced", False)]


async def until_a_writer_waits(intake: Intake) -> None:
    while not await intake.rows("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
        pass


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


def event_of_random_identifiers(chance: Random, number: int) -> dict[str, Any]:
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
