"""The history of contacts: every change with its cause, and contacts as they were at earlier moments."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from api.channels.signing import Unsubscription, unsubscribe_token
from api.contacts.erase import SECOND_ERASURE_DELAY, erase_again
from api.contacts.merge import settle_due
from tests.contacts.test_contacts import ANN, CARE, arrived, call
from tests.contacts.test_merge import merged, undo
from tests.routes.conftest import Org
from workbench.language.codec import decode

Change = tuple[str, Any, Any, str]


async def history(org: Org, contact_id: str, *scopes: str) -> list[dict[str, Any]]:
    response = await call(org, "GET", f"/{contact_id}/history", "contacts:read", *scopes)
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = decode(response.content)["history"]
    return rows


async def changes(org: Org, contact_id: str) -> list[Change]:
    """Return the changes of a contact, oldest first."""
    return [(row["field"], row["old"], row["new"], row["cause"]) for row in reversed(await history(org, contact_id))]


async def contacts(org: Org, moment: datetime | None = None) -> list[tuple[Any, ...]]:
    """Return the contacts of an organization: those of a moment, or those of now by their rows."""
    if moment is None:
        return await org.service.rows(
            "SELECT id::text, email, wallet_address, external_id, attributes || CASE WHEN external_id IS NULL THEN '{}'"
            "       ELSE jsonb_build_object('externalId', external_id) END, tags,"
            "       ARRAY(SELECT segment FROM segment_members m WHERE m.contact_id = c.id ORDER BY segment),"
            "       ARRAY(SELECT unnest(opted_out) ORDER BY 1) FROM contacts c"
            f" WHERE org_id = {org.id} AND merged_into IS NULL AND erased_at IS NULL ORDER BY id"
        )
    return await org.service.rows(
        "SELECT id::text, email, wallet_address, external_id, metadata, tags, segments,"
        "       ARRAY(SELECT unnest(opted_out) ORDER BY 1) FROM analyst.contacts_at(%s)"
        f" WHERE id IN (SELECT id FROM contacts WHERE org_id = {org.id}) ORDER BY id",
        moment,
    )


def now(org: Org) -> datetime:
    """Return the time of the process that writes; that of Postgres may differ by a few milliseconds."""
    return org.service.services.clock.now()


async def test_each_change_of_an_attribute_is_a_row_with_its_event(acme: Org) -> None:
    contact_id = await arrived(acme, attributes={"plan": "free", "seats": 1})
    assert await history(acme, contact_id) == []
    await arrived(acme, attributes={"plan": "free"})  # changes nothing
    assert await history(acme, contact_id) == []
    await arrived(acme, attributes={"plan": "pro", "seats": 1, "trial": False})
    rows = await history(acme, contact_id)
    assert [(row["field"], row["old"], row["new"]) for row in reversed(rows)] == [
        ("attributes.plan", "free", "pro"),
        ("attributes.trial", None, False),
    ]
    ((event_id, created_at),) = await acme.service.rows(
        f"SELECT id, created_at FROM events WHERE org_id = {acme.id} ORDER BY created_at DESC LIMIT 1"
    )
    assert {(row["cause"], row["causeId"], row["changedAt"]) for row in rows} == {
        ("event", event_id, created_at.isoformat().replace("+00:00", "Z"))
    }
    assert await acme.rows("*", "contact_changes", "1") == []  # the row of the event has them
    assert await acme.rows("attributes IS NULL", "events", "created_at") == [(True,), (True,), (False,)]


async def test_events_of_one_batch_change_a_contact_one_after_the_other(acme: Org) -> None:
    contact_id = await arrived(acme, attributes={"plan": "free"})
    bodies = [{"event": "x", "contact": ANN, "attributes": {"plan": plan}} for plan in ("pro", "pro", "max")]
    new = {"event": "x", "contact": {"externalId": "new"}}
    await acme.post_batch(*bodies, {**new, "attributes": {"n": 1}}, {**new, "attributes": {"n": 2}})
    assert await changes(acme, contact_id) == [
        ("attributes.plan", "free", "pro", "event"),
        ("attributes.plan", "pro", "max", "event"),
    ]
    other = await arrived(acme, {"externalId": "new"})
    assert await changes(acme, other) == [("attributes.n", 1, 2, "event")]


async def test_identifiers_are_in_the_history_and_emails_are_masked(acme: Org) -> None:
    web = await arrived(acme, {"walletAddress": "0xA1", "email": "old@acme.example"})
    await arrived(acme, {"walletAddress": "0xA1", "email": "new@acme.example", "externalId": "u1"})
    assert await changes(acme, web) == [
        ("email", "o•••@acme.example", "n•••@acme.example", "event"),
        ("externalId", None, "u1", "event"),
    ]
    clear = await history(acme, web, "pii:read")
    assert [(row["old"], row["new"]) for row in clear if row["field"] == "email"] == [
        ("old@acme.example", "new@acme.example")
    ]
    stored = await acme.rows("old::text || new::text", "contact_changes", "1")
    assert not any("@" in (text or "") for (text,) in stored)
    other = await arrived(acme, {"walletAddress": "0xA2"})
    await arrived(acme, {"walletAddress": "0xA2", "email": "new@acme.example"})  # the address moves
    assert (await changes(acme, web))[-1] == ("email", "n•••@acme.example", None, "event")
    assert await changes(acme, other) == [("email", None, "n•••@acme.example", "event")]


async def test_people_are_causes_of_tags_and_opt_outs(acme: Org) -> None:
    contact_id = await arrived(acme)
    await call(acme, "POST", f"/{contact_id}/tags", *CARE, body={"add": ["vip"]})
    await call(acme, "POST", f"/{contact_id}/tags", *CARE, body={"add": ["vip"]})  # changes nothing
    await call(acme, "PUT", f"/{contact_id}/opt-outs", *CARE, body={"inapp": True})
    await call(acme, "PUT", f"/{contact_id}/opt-outs", *CARE, body={"inapp": True})
    digests = acme.service.keyring.of(acme.id).digests("email", ANN["email"])
    token = unsubscribe_token(acme.service.keyring, Unsubscription(acme.id, digests))
    for _ in range(2):
        assert (await acme.service.client.post("/unsubscribe", params={"token": token})).status_code == 200
    assert await changes(acme, contact_id) == [
        ("tags", [], ["vip"], "person"),
        ("optedOut", [], ["inapp"], "person"),
        ("optedOut", ["inapp"], ["email", "inapp"], "person"),
    ]
    *_, newest = reversed(await history(acme, contact_id))
    assert newest["causeId"] is None
    (key_id,) = {row["causeId"] for row in (await history(acme, contact_id))[1:]}
    assert (key_id,) in await acme.rows("id::text", "api_keys")


async def test_pages_of_the_history_follow_each_other(acme: Org) -> None:
    contact_id = await arrived(acme)
    for n in range(3):
        await arrived(acme, attributes={f"a{number}": n for number in range(4)})
    whole = await history(acme, contact_id)
    assert len(whole) == 12
    pages, before = [], ""
    while before is not None:
        query = f"?limit=5{before and '&before='}{before.replace('+', '%2B')}"
        page = (await call(acme, "GET", f"/{contact_id}/history{query}", "contacts:read")).json()
        pages += page["history"]
        before = page["next"]
    assert pages == whole
    refused = await call(acme, "GET", f"/{contact_id}/history?before=yesterday", "contacts:read")
    assert (refused.status_code, refused.json()["error"][:21]) == (400, "before: must be a mom")


async def test_the_history_is_in_the_export_and_another_organization_has_none(acme: Org, globex: Org) -> None:
    contact_id = await arrived(acme)
    await arrived(acme, attributes={"plan": "pro"})
    exported = (await call(acme, "GET", f"/{contact_id}/export", "contacts:read")).json()
    assert exported["history"] == await history(acme, contact_id)
    assert (await call(globex, "GET", f"/{contact_id}/history", "contacts:read")).status_code == 404


async def test_an_erasure_deletes_the_history_and_the_contact_of_every_moment(acme: Org) -> None:
    keep, absorbed = await arrived(acme), await arrived(acme, {"externalId": "other"})
    for contact in (ANN, {"externalId": "other"}):
        await arrived(acme, contact, attributes={"plan": "pro"})
    await merged(acme, keep, absorbed)
    earlier = now(acme)
    assert len(await contacts(acme, earlier)) == 1
    response = await call(acme, "DELETE", f"/{keep}", "contacts:erase")
    assert response.status_code == 200, response.text
    assert await acme.rows("*", "contact_changes", "1") == []
    assert await contacts(acme, earlier) == []
    # What was being written during the erasure is deleted by the second one.
    await acme.service.rows(
        "INSERT INTO contact_changes SELECT org_id, id, now(), 'tags', '[]', '[]', 'event', NULL, 1 FROM contacts"
        f" WHERE org_id = {acme.id}"
    )
    later = now(acme) + 2 * SECOND_ERASURE_DELAY
    await settle_due(acme.service.services.system_database, later)
    await erase_again(acme.service.services.system_database, later)
    assert await acme.rows("*", "contact_changes", "1") == []


async def test_an_erasure_after_an_undone_merge_leaves_no_values_in_the_history_of_the_other_contact(acme: Org) -> None:
    keep = await arrived(acme, {"walletAddress": "0xA1"}, attributes={"plan": "pro"})
    absorbed = await arrived(acme, ANN, attributes={"city": "Rome"})
    await arrived(acme, {"walletAddress": "0xA1"}, attributes={"plan": "team"})
    before = now(acme)
    await undo(acme, (await merged(acme, keep, absorbed))["id"])
    assert ("attributes.city", None, "Rome", "merge") in await changes(acme, keep)
    await settle_due(acme.service.services.system_database, now(acme) + 2 * SECOND_ERASURE_DELAY)
    response = await call(acme, "DELETE", f"/{absorbed}", "contacts:erase")
    assert response.status_code == 200, response.text
    assert await changes(acme, keep) == [("attributes.plan", "pro", "team", "event")]
    assert await contacts(acme, before) == await contacts(acme)


async def test_an_erasure_after_an_undone_merge_corrects_what_later_changes_replaced(acme: Org) -> None:
    keep = await arrived(acme, {"walletAddress": "0xA1"}, attributes={"plan": "pro"})
    absorbed = await arrived(acme, ANN, attributes={"city": "Rome", "street": "Via Roma"})
    await call(acme, "POST", f"/{absorbed}/tags", *CARE, body={"add": ["roman"]})
    merge = (await merged(acme, keep, absorbed))["id"]
    own = {"walletAddress": "0xA1"}
    await arrived(acme, own, attributes={"plan": "team", "city": "Oslo"})
    await acme.post_batch(*({"event": "x", "contact": own, "attributes": {"street": name}} for name in ("A", "B")))
    await call(acme, "POST", f"/{keep}/tags", *CARE, body={"add": ["vip"]})
    await undo(acme, merge)
    await settle_due(acme.service.services.system_database, now(acme) + 2 * SECOND_ERASURE_DELAY)
    response = await call(acme, "DELETE", f"/{absorbed}", "contacts:erase")
    assert response.status_code == 200, response.text
    left = [row for row in await changes(acme, keep) if row[3] != "merge"]
    assert left == [
        ("attributes.city", None, "Oslo", "event"),
        ("attributes.plan", "pro", "team", "event"),
        ("attributes.street", None, "A", "event"),
        ("attributes.street", "A", "B", "event"),
        ("tags", [], ["vip"], "person"),
    ]
    for table in ("contacts", "contact_changes", "events"):
        assert not [row for row in await acme.rows(f"{table}::text", table, "1") if "Ro" in row[0] or "roman" in row[0]]


async def test_a_merge_and_its_undo_are_changes_of_both_contacts(acme: Org) -> None:
    keep = await arrived(acme, {"walletAddress": "0xA1"}, attributes={"plan": "pro"})
    absorbed = await arrived(acme, {"externalId": "u1"}, attributes={"plan": "free", "city": "Rome"})
    before = await contacts(acme)
    separate = now(acme)
    merge = await merged(acme, keep, absorbed)
    together, one = now(acme), await contacts(acme)
    assert await changes(acme, keep) == [
        ("attributes.city", None, "Rome", "merge"),
        ("externalId", None, "u1", "merge"),
        ("mergedInto", None, keep, "merge"),
    ]
    await undo(acme, merge["id"])
    assert await contacts(acme, separate) == before == await contacts(acme, now(acme))
    assert await contacts(acme, together) == one
    assert {row["causeId"] for row in await history(acme, keep)} == {merge["id"]}


@pytest.mark.parametrize("seed", range(3))
async def test_contacts_at_a_moment_are_those_that_existed_then(acme: Org, seed: int) -> None:
    """After random changes, each earlier moment shows what was read at that moment."""
    random = Random(seed)
    wallets = [f"0xA{number}" for number in range(4)]
    merges: list[str] = []
    moments: dict[datetime, list[tuple[Any, ...]]] = {}
    for _ in range(40):
        known = [row[0] for row in await contacts(acme)]
        match random.choice(["events"] * 6 + ["tag", "opt_out", "merge", "undo", "segment"]) if known else "events":
            case "events":
                bodies = []
                for _ in range(random.randint(1, 3)):
                    contact = {"walletAddress": random.choice(wallets)} if random.random() < 0.7 else {}
                    if not contact or random.random() < 0.3:
                        contact["externalId"] = f"u{random.randint(0, 3)}"
                    if random.random() < 0.3:
                        contact["email"] = f"p{random.randint(0, 3)}@acme.example"
                    attributes = {random.choice("abc"): random.choice([1, 2, "x", True]) for _ in range(2)}
                    bodies.append({"event": "x", "contact": contact, "attributes": attributes})
                await acme.post_batch(*bodies)
            case "tag":
                body = {random.choice(["add", "remove"]): [random.choice(["vip", "new"])]}
                await call(acme, "POST", f"/{random.choice(known)}/tags", *CARE, body=body)
            case "opt_out":
                body = {random.choice(["email", "inapp"]): random.random() < 0.5}
                await call(acme, "PUT", f"/{random.choice(known)}/opt-outs", *CARE, body=body)
            case "merge" if len(known) > 1:
                merge = await merged(acme, *random.sample(known, 2))
                merges.append(merge["id"])
            case "undo" if merges:
                await call(acme, "POST", f"/merges/{merges.pop()}/undo", *CARE)  # refused after some changes
            case "segment":
                body = {
                    "name": "some",
                    "contactIds": random.sample(known, random.randint(0, len(known))),
                    "provenance": {},
                }
                shown = (await acme.get("/segments/some", "workbench"))[1]
                if "revision" in shown:
                    body["revision"] = shown["revision"]
                response = await acme.call("POST", "/segments", body, "workbench")
                assert response.status_code in (200, 201), response.text
        moments[now(acme)] = await contacts(acme)
    assert moments[max(moments)]
    for moment, expected in moments.items():
        assert await contacts(acme, moment) == expected
    assert await contacts(acme, min(moments) - timedelta(days=1)) == []
    assert await contacts(acme, datetime(2100, 1, 1, tzinfo=UTC)) == await contacts(acme)
