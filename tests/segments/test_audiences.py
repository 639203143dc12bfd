"""Audiences: the contacts of a frame, whole or in parts."""

from typing import Any

import pytest

from api.clock import uuid7
from tests.segments.conftest import Team


async def two_contacts(team: Team) -> list[str]:
    return [await team.contact(name) for name in ("ann", "ben")]


async def test_an_audience_stores_its_contacts_and_their_origin(acme: Team) -> None:
    ann, ben = await two_contacts(acme)
    origin = {"sql": "SELECT :a", "params": {"a": "ann@acme.example"}, "queryHash": "abc", "watermark": "w", "odd": 1}
    body = {"name": "invited", "contactIds": [ann.upper(), ben, ben, uuid7(1)], "provenance": origin}
    made = await acme.expect_success("POST", "", body)
    assert (made["kind"], made["size"], made["found"]) == (
        *("audience", 2),
        {"size": 2, "rows": 4, "nulls": 0, "unknown": 1},
    )
    assert made["provenance"] == {
        "sql": "SELECT :a",
        "params": {"a": "a•••@acme.example"},
        "queryHash": "abc",
        "watermark": "w",
        "rows": 4,
        "unknown": 1,
    }
    assert await acme.members("invited") == {ann, ben}
    assert await acme.expect_refusal("PUT", "/invited", {"revision": 1, "sql": "SELECT 1"}) == (
        400,
        "an audience has no query to edit; replace its contacts instead",
    )


async def test_an_audience_is_replaced_with_its_revision(acme: Team) -> None:
    ann, ben = await two_contacts(acme)
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann]})
    again = {"name": "invited", "contactIds": [ben]}
    assert (await acme.expect_refusal("POST", "", again))[0] == 409
    assert (await acme.expect_refusal("POST", "", again | {"revision": 2}))[0] == 409
    replaced = await acme.expect_success("POST", "", again | {"revision": 1})
    assert (replaced["revision"], replaced["change"]) == (2, {"entered": 1, "departed": 1})
    assert await acme.members("invited") == {ben}
    await acme.expect_success("POST", "", {"name": "asked", "sql": "SELECT id AS contact_id FROM contacts"})
    problem = "name: the segment 'asked' is defined by a query"
    assert await acme.expect_refusal("POST", "", again | {"name": "asked", "revision": 1}) == (409, problem)


async def test_a_large_frame_arrives_in_parts_and_takes_effect_with_the_last(acme: Team) -> None:
    ann, ben = await two_contacts(acme)
    first = await acme.expect_success("POST", "", {"name": "big", "contactIds": [ann, uuid7(1)], "more": True})
    assert (first["size"], first["refreshedAt"], first["revision"]) == (0, None, 1)
    assert await acme.expect_refusal("POST", "/big/refresh") == (
        409,
        "the audience is incomplete: further parts must be sent first",
    )
    assert (await acme.expect_refusal("POST", "/big/contacts", {"contactIds": [ann]}))[0] == 400
    part = {"contactIds": [ann], "revision": 1, "more": True}
    await acme.expect_success("POST", "/big/contacts", part)
    assert await acme.members("big") == set()
    last = await acme.expect_success("POST", "/big/contacts", {"contactIds": [ben], "revision": 1})
    assert (last["size"], last["change"]) == (2, {"entered": 2, "departed": 0})
    assert last["provenance"] == {"rows": 4, "unknown": 1}
    assert await acme.members("big") == {ann, ben}
    assert (await acme.expect_refusal("POST", "/big/contacts", part))[0] == 409
    assert await acme.rows("SELECT size, entered FROM segment_sizes WHERE org_id = %s", acme.id) == [(2, 2)]
    actions = await acme.rows("SELECT action FROM audit_log WHERE org_id = %s", acme.id)
    assert actions == [("segment.freeze",)]
    assert await acme.rows("SELECT * FROM audience_parts WHERE org_id = %s", acme.id) == []


async def test_contacts_in_both_audiences_keep_their_membership_while_parts_arrive(acme: Team) -> None:
    ann, ben = await two_contacts(acme)
    eve = await acme.contact("eve")
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann, ben]})
    since = await acme.rows("SELECT entered_at FROM segment_members WHERE contact_id = %s", ben)
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [eve], "revision": 1, "more": True})
    assert await acme.members("invited") == {ann, ben}
    last = await acme.expect_success("POST", "/invited/contacts", {"contactIds": [ben], "revision": 2})
    assert (last["size"], last["change"]) == (2, {"entered": 1, "departed": 1})
    assert await acme.members("invited") == {ben, eve}
    assert await acme.rows("SELECT entered_at FROM segment_members WHERE contact_id = %s", ben) == since


async def test_parts_of_two_frames_do_not_mix(acme: Team) -> None:
    ann, ben = await two_contacts(acme)
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ann], "more": True})
    await acme.expect_success("POST", "", {"name": "invited", "contactIds": [ben], "revision": 1, "more": True})
    problem = "revision: another upload has begun, at revision 2; this one began at 1"
    assert await acme.expect_refusal("POST", "/invited/contacts", {"contactIds": [ann], "revision": 1}) == (
        409,
        problem,
    )
    await acme.expect_success("POST", "/invited/contacts", {"contactIds": [], "revision": 2})
    assert await acme.members("invited") == {ben}


@pytest.mark.parametrize("ids", [5, ["x"], [None], ["00000000-0000-0000-0000-00000000000z"], [{}]])
async def test_contact_ids_that_are_not_a_list_of_ids_are_refused(acme: Team, ids: Any) -> None:
    assert (await acme.expect_refusal("POST", "", {"name": "a", "contactIds": ids}))[0] == 400


async def test_a_hundred_thousand_contacts_fit_into_one_request(acme: Team) -> None:
    await acme.rows(
        "INSERT INTO contacts (org_id, id, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), now(), now() FROM generate_series(1, 100000) RETURNING 1",
        acme.id,
    )
    ids = [contact_id for (contact_id,) in await acme.rows("SELECT id FROM contacts WHERE org_id = %s", acme.id)]
    made = await acme.expect_success("POST", "", {"name": "many", "contactIds": ids})
    assert (made["size"], made["found"]["unknown"]) == (100_000, 0)
    again = await acme.expect_success("POST", "", {"name": "many", "contactIds": ids[1:], "revision": 1})
    assert again["change"] == {"entered": 0, "departed": 1}
