"""`DELETE /contacts/{id}` and `GET /contacts/{id}/export`: everything stored about a contact (docs/trust.md O4)."""

import asyncio
import logging
from typing import Any

import pytest

from api.embedded import Server
from api.process import JsonLines
from api.store.contacts import EXPORT_PAGE
from tests.conftest import clone
from tests.contacts.test_contacts import ANN, CARE, arrived, call, choose, find_contact, is_suppressed
from tests.routes.conftest import Org, serving
from workbench.language.codec import decode

CANARY = "canary-4711"
WORDS = (CANARY, "0xa22", "0xA22", "acme.example", "ann-1", "enc1_")


async def create_contact_with_rows(org: Org) -> str:
    """Return the id of a contact with rows in every table."""
    contact_id = await arrived(
        org, payload={"card": CANARY, "deep": [CANARY]}, attributes={"name": CANARY}, idempotencyKey=CANARY
    )
    await org.post({"event": "signup", "contact": ANN, "idempotencyKey": CANARY, "payload": {"another": CANARY}})
    await org.post({"event": "signup", "contact": {}, "idempotencyKey": CANARY})
    for _ in range(2):
        dry = {"event": "signup", "contact": ANN, "test": True, "payload": {"card": CANARY}}
        await org.post(dry | {"idempotencyKey": f"{CANARY}-dry"})
    await org.post({"event": "signup", "contact": {"externalId": "ann-1", "email": "other@acme.example"}})
    await org.post({"event": "signup", "contact": {"walletAddress": "0xa22", "email": "other@acme.example"}})
    await call(org, "POST", f"/{contact_id}/tags", *CARE, body={"add": [CANARY]})
    await fill(org, contact_id)
    return contact_id


async def fill(org: Org, contact_id: str) -> None:
    """Add the rows that the engine, segments, the chain follower and the sign-in would add."""
    ids = {"org": org.id, "contact": contact_id, "canary": CANARY}
    for statement in (
        "INSERT INTO entries (org_id, id, automation_id, event_id, event_created_at, contact_id, state, outcome,"
        " last_error, due_at, created_at, updated_at) VALUES ({org}, '{contact}', '{contact}', '{contact}', now(),"
        " '{contact}', 'dead', 'refused', 'refused: {canary}', now(), now(), now())",
        "INSERT INTO entry_steps VALUES ({org}, '{contact}', 1, 0, 1, 'n', 'condition', 'branched', 'true',"
        ' \'{{"verdicts": ["{canary}"]}}\', now())',
        "INSERT INTO entry_transitions (org_id, entry_id, from_state, to_state, at, reason)"
        " VALUES ({org}, '{contact}', 'running', 'dead', now(), 'refused: {canary}')",
        "INSERT INTO messages (org_id, id, contact_id, automation_id, entry_id, node_id, visit, channel, status,"
        " wallet_address, recipient, subject, body, extra, created_at, sent_at)"
        " VALUES ({org}, '{contact}', '{contact}', '{contact}', '{contact}', 'n', 1, 'inapp', 'sent', '0xa22',"
        " '{canary}', '{canary}', '{canary}', '{{\"x\": \"{canary}\"}}', now(), now())",
        "INSERT INTO segments (org_id, id, name, kind, size, revision, created_at, created_by, updated_at, updated_by)"
        " VALUES ({org}, '{contact}', 'big-spenders', 'audience', 1, 1, now(), '{contact}', now(), '{contact}')",
        "INSERT INTO segment_members VALUES ({org}, 'big-spenders', '{contact}', now())",
        "INSERT INTO onchain_events (org_id, id, contact_id, chain_id, contract, event, signature, tx_hash, log_index,"
        " digest, block_number, block_hash, block_time, created_at)"
        " VALUES ({org}, '{contact}', '{contact}', 1, 'c', 'Transfer', '', 'h', 0,"
        " gen_random_uuid(), 1, '', now(), now())",
        "INSERT INTO test_pushes VALUES ({org}, '{contact}', '{contact}', '0x3e', '{canary}', '{canary}', '{{}}',"
        " now())",
        "INSERT INTO inapp_challenges VALUES ({org}, 'nonce', '0xa22', '{contact}', 'https://page.example', 1, now())",
    ):
        await org.service.rows(statement.format(**ids).replace("%", "%%"))


async def all_rows(org: Org) -> str:
    """Return all rows of the organization as one text, without its keys and the partitions of events."""
    tables = await org.service.rows(
        "SELECT table_name FROM information_schema.columns WHERE table_schema = 'workbench' AND column_name = 'org_id'"
        " AND table_name <> 'api_keys' AND table_name !~ '^(events|contact_changes)_'"
    )
    texts = []
    for (table,) in tables:
        texts += [row[0] for row in await org.service.rows(f"SELECT t::text FROM {table} t WHERE org_id = {org.id}")]
    return "\n".join(texts)


async def digests(org: Org) -> list[str]:
    """Return the blind indexes of the contact's identifiers."""
    keys = org.service.keyring.of(org.id)
    identifiers = [("wallet", "0xa22"), ("email", "ann@acme.example"), ("external_id", "ann-1")]
    return [keys.digest(kind, value) for kind, value in identifiers]


async def test_o4_an_erasure_leaves_only_numbers(acme: Org) -> None:
    contact_id = await create_contact_with_rows(acme)
    await acme.service.services.notices._flush()
    before = await all_rows(acme)
    assert [word for word in WORDS if word not in before] == []
    counts = await acme.traces()
    response = await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    assert response.status_code == 200
    assert response.json()["id"] == contact_id
    after = await all_rows(acme)
    assert [word for word in WORDS if word in after] == []
    hidden = after.replace("-", "")
    assert [digest for digest in await digests(acme) if digest in hidden] == []
    left = await acme.traces()
    assert {name: left[name] for name in ("events", "contacts", "entries", "dry_runs", "idempotency_keys")} == {
        name: counts[name] for name in ("events", "contacts", "entries", "dry_runs", "idempotency_keys")
    }
    assert await acme.rows("status, sent_at IS NOT NULL", "messages") == [("sent", True)]
    assert (await acme.rows("action, subject_id", "audit_log"))[-1] == ("contact.erase", contact_id)


async def test_o1_an_erasure_logs_no_personal_data(acme: Org, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    contact_id = await create_contact_with_rows(acme)
    await call(acme, "GET", f"/{contact_id}/export", "contacts:read", "pii:read")
    await call(acme, "POST", "/find", *CARE, body={"contact": ANN | {"email": f"{CANARY}@@acme.example"}})
    await call(acme, "POST", f"/{contact_id}/tags", *CARE, body={"add": [CANARY, 7]})
    await call(acme, "PUT", f"/{contact_id}/opt-outs", *CARE, body={"email": CANARY})
    await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    await acme.service.services.notices._flush()
    lines = "\n".join(map(JsonLines().format, caplog.records))
    assert [word for word in WORDS if word in lines] == []


async def test_a_retry_of_an_erased_event_is_a_duplicate(acme: Org) -> None:
    contact_id = await arrived(acme, idempotencyKey="once")
    await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    status, answer = await acme.post({"event": "signup", "contact": ANN, "idempotencyKey": "once"})
    assert (status, answer["deduplicated"]) == (202, True)
    assert (await call(acme, "POST", "/find", *CARE, body={"contact": ANN})).status_code == 404


async def test_a_returning_person_becomes_a_new_contact(acme: Org) -> None:
    contact_id = await arrived(acme, attributes={"plan": "pro"})
    await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    again = await arrived(acme)
    assert again != contact_id
    assert (await find_contact(acme, ANN))["attributes"] == {}


async def test_the_suppression_of_an_address_outlives_the_contact(acme: Org) -> None:
    contact_id = await arrived(acme)
    await choose(acme, contact_id, email=True, inapp=True)
    await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    assert await is_suppressed(acme)
    await arrived(acme)
    assert (await find_contact(acme, ANN))["optedOut"] == ["email"]


async def test_an_erased_contact_is_not_found_and_can_be_erased_again(acme: Org) -> None:
    contact_id = await arrived(acme)
    first = await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    second = await call(acme, "DELETE", f"/{contact_id}", "contacts:erase")
    assert second.json() == first.json()
    assert len(await acme.rows("id", "audit_log")) == 1
    for path in ("", "/export"):
        assert (await call(acme, "GET", f"/{contact_id}{path}", *CARE)).status_code == 404


async def test_another_organizations_contact_cannot_be_erased(acme: Org, globex: Org) -> None:
    contact_id = await arrived(acme)
    assert (await call(globex, "DELETE", f"/{contact_id}", "contacts:erase")).status_code == 404
    assert (await find_contact(acme, ANN))["id"] == contact_id


async def test_an_export_contains_all_stored_data_of_a_contact(acme: Org) -> None:
    contact_id = await arrived(acme, payload={"amount": 5}, idempotencyKey="k1")
    for plan in ("free", "pro"):
        await arrived(acme, attributes={"plan": plan, "tier": "gold"})
    await arrived(acme, {"walletAddress": "0xB0b"}, payload={"secret": "of another contact"})
    await fill(acme, contact_id)
    response = await call(acme, "GET", f"/{contact_id}/export", "contacts:read", "pii:read")
    assert response.status_code == 200
    exported: dict[str, Any] = decode(response.content)
    assert list(exported) == [
        "contact",
        "absorbed",
        "events",
        "entries",
        "messages",
        "onchainEvents",
        "consents",
        "history",
    ]
    assert exported["contact"]["email"] == "ann@acme.example"
    event, *later = exported["events"]
    assert "attributes" not in event
    assert [sent["attributes"] for sent in later] == [{"plan": plan, "tier": "gold"} for plan in ("free", "pro")]
    assert [(change["field"], change["new"]) for change in exported["history"]] == [
        ("attributes.plan", "pro"),
        ("attributes.tier", "gold"),
        ("attributes.plan", "free"),
    ]
    assert {
        name: event[name] for name in ("event", "payload", "idempotencyKey", "walletAddress", "email", "externalId")
    } == {
        "event": "signup",
        "payload": {"amount": 5},
        "idempotencyKey": "k1",
        "walletAddress": "0xa22",
        "email": "ann@acme.example",
        "externalId": "ann-1",
    }
    (entry,) = exported["entries"]
    assert (entry["state"], entry["outcome"]) == ("dead", "refused")
    (step,) = entry["steps"]
    assert step.pop("at") is not None
    assert step == {
        "nodeId": "n",
        "kind": "condition",
        "outcome": "branched",
        "handle": "true",
        "detail": {"verdicts": [CANARY]},
    }
    assert [(message["channel"], message["body"], message["data"]) for message in exported["messages"]] == [
        ("inapp", CANARY, {"x": CANARY})
    ]
    masked = await call(acme, "GET", f"/{contact_id}/export", "contacts:read")
    assert "ann@acme.example" not in masked.text


async def test_an_export_has_every_page(acme: Org) -> None:
    contact_id = await arrived(acme)
    events = [{"event": "step", "contact": ANN, "payload": {"n": number}} for number in range(EXPORT_PAGE + 100)]
    for start in range(0, len(events), 100):
        await acme.post_batch(*events[start : start + 100])
    exported = decode((await call(acme, "GET", f"/{contact_id}/export", "contacts:read")).content)
    steps = [event["payload"]["n"] for event in exported["events"] if event["event"] == "step"]
    assert sorted(steps) == list(range(EXPORT_PAGE + 100))


async def test_a_running_api_repeats_the_erasure(
    postgres: Server, template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.contacts.erase.CHECK_INTERVAL_S", 0.05)
    with clone(postgres, template) as dsn:
        async with serving(dsn) as service:
            org = await service.organization()
            contact_id = await arrived(org)
            await call(org, "DELETE", f"/{contact_id}", "contacts:erase")
            await service.rows("UPDATE events SET payload = '[1]', idempotency_key = 'late'")
            await service.rows("UPDATE erasures SET due_at = now()")
            async with asyncio.timeout(5):
                while await org.rows("contact_id", "erasures", "contact_id"):  # noqa: ASYNC110  the job says nothing
                    await asyncio.sleep(0.05)
            assert await org.rows("payload, idempotency_key", "events") == [({}, "")]
