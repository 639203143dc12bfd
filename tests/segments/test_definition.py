"""Segments that a query defines: from the preview to the archive."""

from typing import Any

import pytest

from tests.segments.conftest import Team
from workbench.language.codec import decode

RICH = "SELECT id AS contact_id FROM contacts WHERE (metadata ->> 'balance')::numeric > :least"
WHALES: dict[str, Any] = {"name": "whales", "sql": RICH, "params": {"least": 100}}


@pytest.mark.parametrize(
    "literal",
    [
        "'ann@acme.example'",
        "$$Ann+1@acme.example$$",
        "'' -- ann@acme.example",
        "'0x5EED5eed5eed5eed5eed5eed5eed5eed5eed5eed'",
        *(f"'a{character}@acme.example'" for character in "!#$%&*/=?^_`{|}~"),
        "'''@acme.example'",
        "'ann\uff20acme.example'",
        "'' OR wallet_address = 'ann.eth'",
        "'' OR lower(wallet_address) IN ('ann.eth', 'ben.eth')",
    ],
)
async def test_an_address_in_the_text_of_a_query_is_refused(acme: Team, literal: str) -> None:
    sql = f"SELECT id AS contact_id FROM contacts WHERE email = {literal}"
    requests = [("POST", "", {"name": "ann"}), ("POST", "/preview", {}), ("PUT", "/whales", {"revision": 1})]
    for method, path, body in requests:
        status, reason = await acme.expect_refusal(method, path, {**body, "sql": sql})
        assert (status, reason.endswith('Write :address in its place, and params {"address": ...}')) == (400, True)
    origin = await acme.expect_success("POST", "", {"name": "some", "contactIds": [], "provenance": {"sql": sql}})
    assert literal.strip("'$- ") not in origin["provenance"]["sql"]
    domains = "SELECT id AS contact_id FROM contacts WHERE email LIKE '%@acme.example' OR metadata @> '{}'"
    domains += " OR wallet_address IN (SELECT sent_wallet_address FROM app_events WHERE event = 'x')"
    await acme.expect_success("POST", "/preview", {"sql": domains})


async def three_contacts(team: Team) -> list[str]:
    return [await team.contact(name, balance=balance) for name, balance in (("ann", 500), ("ben", 50), ("cy", 300))]


async def test_a_segment_holds_what_its_query_finds(acme: Team) -> None:
    ann, ben, cy = await three_contacts(acme)
    made = await acme.expect_success("POST", "", WHALES)
    assert (made["size"], made["revision"], made["everySeconds"], made["params"]) == (2, 1, 3600, {"least": 100})
    assert made["found"] == {"size": 2, "rows": 2, "nulls": 0, "unknown": 0}
    assert made["change"] == {"entered": 2, "departed": 0}
    assert await acme.members("whales") == {ann, cy}
    changed = await acme.expect_success("PUT", "/whales", {"revision": 1, "sql": RICH, "params": {"least": 400}})
    assert (changed["size"], changed["revision"], changed["change"]) == (1, 2, {"entered": 0, "departed": 1})
    shown = await acme.expect_success("GET", "/whales")
    assert [(size["size"], size["entered"], size["departed"]) for size in shown["history"]] == [(1, 0, 1), (2, 2, 0)]
    (listed,) = (await acme.expect_success("GET"))["segments"]
    assert (listed["name"], listed["daily"]) == ("whales", [None] * 29 + [1])
    gone = await acme.expect_success("DELETE", "/whales")
    assert (gone["archivedAt"] is not None, await acme.members("whales")) == (True, set())
    assert await acme.expect_refusal("GET", "/whales") == (404, "segment not found")
    assert (await acme.expect_success("POST", "", WHALES))["size"] == 2
    actions = await acme.rows("SELECT action FROM audit_log WHERE org_id = %s ORDER BY id", acme.id)
    assert [action for (action,) in actions] == [
        "segment.create",
        "segment.update",
        "segment.archive",
        "segment.create",
    ]
    assert ben not in await acme.members("whales")


async def test_members_that_stay_are_not_written_again(acme: Team) -> None:
    await three_contacts(acme)
    await acme.expect_success("POST", "", WHALES)
    before = await acme.rows(
        "SELECT contact_id, xmin::text, entered_at FROM segment_members WHERE org_id = %s", acme.id
    )
    dee = await acme.contact("dee", balance=900)
    refreshed = await acme.expect_success("POST", "/whales/refresh")
    assert (refreshed["size"], refreshed["change"]) == (3, {"entered": 1, "departed": 0})
    after = await acme.rows(
        "SELECT contact_id, xmin::text, entered_at FROM segment_members WHERE org_id = %s AND contact_id <> %s",
        *(acme.id, dee),
    )
    assert sorted(after) == sorted(before)


async def test_a_preview_returns_the_changes_and_writes_nothing(acme: Team) -> None:
    ann, _, cy = await three_contacts(acme)
    trial = {"sql": RICH, "params": {"least": 400}, "name": "whales"}
    preview = await acme.expect_success("POST", "/preview", trial)
    assert preview.pop("seconds") > 0
    counts = {"size": 1, "rows": 1, "nulls": 0, "unknown": 0}
    assert preview == {**counts, "sample": [ann], "change": None, "fullRefreshReason": None}
    await acme.expect_success("POST", "", WHALES)
    assert (await acme.expect_success("POST", "/preview", trial))["change"] == {"entered": 0, "departed": 1}
    assert await acme.members("whales") == {ann, cy}


async def test_rows_without_a_contact_and_unknown_ids_are_counted_and_left_out(acme: Team) -> None:
    ann = await acme.contact("ann")
    sql = (
        f"""SELECT * FROM (VALUES (1, NULL), (2, '{ann}'), (3, '{ann}'), (4, gen_random_uuid())) AS v (n, contact_id)"""
    )
    made = await acme.expect_success("POST", "", {"name": "odd", "sql": sql})
    assert made["found"] == {"size": 1, "rows": 4, "nulls": 1, "unknown": 1}
    assert await acme.members("odd") == {ann}


async def test_a_segment_may_be_empty(acme: Team) -> None:
    made = await acme.expect_success(
        "POST", "", {"name": "empty", "sql": "SELECT id AS contact_id FROM contacts WHERE false"}
    )
    assert (made["size"], made["refreshedAt"] is not None) == (0, True)
    assert len((await acme.expect_success("GET", "/empty"))["history"]) == 1


async def test_a_refused_query_has_the_position_of_the_error(acme: Team) -> None:
    refused = await acme.call("POST", "", {"name": "a", "sql": "SELECT id AS contact_id FROM contcts"})
    body = refused.json()
    assert (refused.status_code, body["field"], body["sqlstate"], body["position"]) == (400, "sql", "42P01", 30)
    misspelt = (await acme.call("POST", "", {"name": "a", "sql": "SELECT contact_idd FROM app_events"})).json()
    assert misspelt["hint"] == 'Perhaps you meant to reference the column "app_events.contact_id".'
    late = "SELECT NULL::uuid AS contact_id, 1 / (n - 500) FROM generate_series(1, 600) n"
    assert (await acme.expect_refusal("POST", "", {"name": "a", "sql": late}))[1] == "sql: division by zero"
    assert (await acme.expect_success("GET"))["segments"] == []


async def test_a_query_must_return_one_contact_id_that_is_a_uuid(acme: Team) -> None:
    for sql, reason in (
        ("SELECT id, email FROM contacts", "must return a column contact_id; its columns are id, email"),
        ("SELECT id::text AS contact_id FROM contacts", "must return contact_id as uuid, not as text"),
        ("SELECT id AS contact_id, id AS contact_id FROM contacts", "must return one column contact_id, not 2"),
    ):
        assert await acme.expect_refusal("POST", "", {"name": "a", "sql": sql}) == (400, f"sql: {reason}")


async def test_a_segment_name_has_only_letters_digits_and_hyphens(acme: Team) -> None:
    for name, example in (("Big Spenders!", "big-spenders"), ("Größte", "gr-te"), ("%", "big-spenders")):
        status, problem = await acme.expect_refusal("POST", "", WHALES | {"name": name})
        assert (status, problem) == (400, f"name: must be 1 to 64 characters of a-z, 0-9, _ and -, such as '{example}'")
    assert (await acme.expect_refusal("POST", "", WHALES | {"name": "preview"}))[0] == 400
    assert await acme.expect_refusal("GET", "/Whales") == (404, "segment not found")


async def test_every_problem_is_named_at_once(acme: Team) -> None:
    refused = await acme.call("POST", "", {"name": "A b", "sql": " ", "everySeconds": 5})
    assert [problem["field"] for problem in refused.json()["errors"]] == ["name", "sql", "everySeconds"]
    assert (await acme.expect_refusal("PUT", "/x", {"params": {}}))[0] == 400
    both = await acme.call("POST", "", WHALES | {"contactIds": []})
    assert [problem["field"] for problem in both.json()["errors"]] == ["sql", "params"]


async def test_a_stale_revision_and_a_name_in_use_are_conflicts(acme: Team) -> None:
    await acme.expect_success("POST", "", WHALES)
    assert await acme.expect_refusal("POST", "", WHALES) == (409, "name: a segment named 'whales' already exists")
    assert (await acme.expect_success("PUT", "/whales", {"revision": 1, "everySeconds": 60}))["revision"] == 2
    for edit in ({"everySeconds": 90}, {"sql": RICH, "params": {"least": 1}}):
        answer = await acme.expect_refusal("PUT", "/whales", edit | {"revision": 1})
        assert answer == (409, "revision: the segment is at revision 2 now, not 1")
    same = await acme.expect_success(
        "PUT", "/whales", {"revision": 2, "sql": RICH, "params": {"least": 100}, "everySeconds": 60}
    )
    assert (same["revision"], same["found"]) == (2, None)


async def test_scopes_of_the_routes(acme: Team) -> None:
    await acme.expect_success("POST", "", WHALES)
    for method, path, body, scopes, status in (
        ("GET", "", None, ("contacts:read",), 200),
        ("GET", "/whales", None, ("sql:read",), 200),
        ("GET", "", None, ("events:read",), 403),
        ("POST", "/preview", {"sql": RICH, "params": {"least": 1}}, ("automations:write",), 403),
        ("POST", "", WHALES | {"name": "b"}, ("automations:write",), 403),
        ("POST", "", WHALES | {"name": "b"}, ("sql:read",), 403),
        ("POST", "", WHALES | {"name": "b"}, ("sql:read", "automations:write"), 201),
        ("PUT", "/b", {"revision": 1, "everySeconds": 90}, ("automations:write",), 200),
        ("POST", "/whales/refresh", None, ("contacts:read",), 403),
        ("DELETE", "/whales", None, ("sql:read",), 403),
    ):
        assert (await acme.call(method, path, body, *scopes)).status_code == status, (method, path, scopes)
    assert (await acme.org.call("GET", "/segments")).status_code == 403  # a live key
    assert await acme.rows("SELECT 1 FROM segments WHERE org_id = %s AND archived_at IS NOT NULL", acme.id) == []


async def test_addresses_among_the_values_are_sealed_and_masked(acme: Team) -> None:
    event = {"event": "signup", "contact": {"email": "ann@acme.example", "externalId": "ann"}}
    assert (await acme.org.post(event))[0] == 202
    sql = "SELECT id AS contact_id FROM contacts WHERE email = :one OR email = ANY(:some)"
    body = {"name": "ann", "sql": sql, "params": {"one": "Ann@acme.example", "some": ["ben@acme.example"]}}
    made = await acme.expect_success("POST", "", body)
    assert made["size"] == 1
    assert made["params"] == {"one": "a•••@acme.example", "some": ["b•••@acme.example"]}
    clear = await acme.call("GET", "/ann", None, "sql:read", "pii:read")
    assert decode(clear.content)["params"] == {"one": "ann@acme.example", "some": ["ben@acme.example"]}
    ((stored,),) = await acme.rows("SELECT params::text FROM segments WHERE org_id = %s", acme.id)
    assert "acme.example" not in stored
    assert (await acme.expect_success("POST", "/ann/refresh"))["size"] == 1


@pytest.mark.parametrize(
    "hidden", [{"to": "ann@acme.example"}, {"ann@acme.example": 1}, [{"to": ["ann@acme.example"]}]]
)
async def test_an_address_inside_an_object_is_refused(acme: Team, hidden: Any) -> None:
    body = {"name": "ann", "sql": "SELECT contact_id FROM app_events WHERE payload = :p", "params": {"p": hidden}}
    problem = "params.p: contains an email address inside an object; pass the address as a separate value"
    assert await acme.expect_refusal("POST", "", body) == (400, problem)
    origin = {"sql": "SELECT 1", "params": {"p": hidden}}
    shown = await acme.expect_success("POST", "", {"name": "invited", "contactIds": [], "provenance": origin})
    assert "ann@" not in str(shown)
    ((stored,),) = await acme.rows("SELECT provenance::text FROM segments WHERE org_id = %s", acme.id)
    assert "acme.example" not in stored


async def test_a_segment_in_use_is_not_archived(acme: Team) -> None:
    await acme.expect_success("POST", "", WHALES)
    sql = "SELECT contact_id FROM segment_members WHERE segment = :of"
    await acme.expect_success("POST", "", {"name": "old-whales", "sql": sql, "params": {"of": "whales"}})
    condition = {"filters": [{"path": "contact.segments", "operator": "contains", "value": "whales"}]}
    graph = {
        "nodes": [
            {"id": "t", "type": "app_event", "data": {}},
            {"id": "c", "type": "condition", "data": condition},
            {"id": "g", "type": "add_tag", "data": {"tag": "big"}},
        ],
        "edges": [
            {"id": "1", "source": "t", "target": "c"},
            {"id": "2", "source": "c", "sourceHandle": "true", "target": "g"},
        ],
    }
    draft = {"name": "Thank whales", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": graph}
    made = decode((await acme.org.call("POST", "/automations", draft, "workbench")).content)
    assert (await acme.expect_refusal("DELETE", "/whales"))[1] == "the segment 'old-whales' uses it"
    await acme.org.call("POST", f"/automations/{made['id']}/publish", {}, "workbench")
    refused = await acme.call("DELETE", "/whales")
    assert refused.status_code == 409
    assert [problem["error"] for problem in refused.json()["errors"]] == [
        "the automation 'Thank whales' uses it",
        "the segment 'old-whales' uses it",
    ]
    await acme.org.call("POST", f"/automations/{made['id']}/archive", {}, "workbench")
    await acme.expect_success("DELETE", "/old-whales")
    await acme.expect_success("DELETE", "/whales")


async def test_analysts_see_segments_and_their_sizes(acme: Team) -> None:
    await three_contacts(acme)
    await acme.expect_success("POST", "", WHALES)
    for sql, rows in (
        ("SELECT name, kind, size, last_error FROM segments", [["whales", "query", 2, None]]),
        ("SELECT segment, size, entered, departed FROM segment_sizes", [["whales", 2, 2, 0]]),
        ("SELECT segment, count(*) FROM segment_members GROUP BY 1", [["whales", 2]]),
    ):
        answer = await acme.org.call("POST", "/sql", {"sql": sql}, "workbench")
        assert decode(answer.content)["rows"] == rows
