"""Two organizations with segments of one name: queries cannot reach the other's contacts or write."""

import pytest

from tests.query.test_isolation import ESCAPES
from tests.segments.conftest import Team

ALL = {"name": "all", "sql": "SELECT id AS contact_id FROM contacts"}


async def test_segments_of_two_organizations_with_one_name_are_separate(acme: Team, globex: Team) -> None:
    ann, gus = await acme.contact("ann"), await globex.contact("gus")
    for team in (acme, globex):
        assert (await team.expect_success("POST", "", ALL))["size"] == 1
    assert (await acme.members("all"), await globex.members("all")) == ({ann}, {gus})
    await acme.expect_success("PUT", "/all", {"revision": 1, "everySeconds": 60})
    shown = await globex.expect_success("GET", "/all")
    assert (shown["revision"], shown["everySeconds"]) == (1, 3600)
    await acme.expect_success("DELETE", "/all")
    assert await globex.members("all") == {gus}
    answer = await acme.org.call("POST", "/sql", {"sql": "SELECT name FROM segments"}, "workbench")
    assert answer.json()["rows"] == []


async def test_contacts_of_another_organization_are_unknown(acme: Team, globex: Team) -> None:
    gus = await globex.contact("gus")
    made = await acme.expect_success("POST", "", {"name": "theirs", "sql": f"SELECT '{gus}'::uuid AS contact_id"})
    assert (made["size"], made["found"]["unknown"]) == (0, 1)
    frozen = await acme.expect_success("POST", "", {"name": "frozen", "contactIds": [gus]})
    assert (frozen["size"], frozen["found"]["unknown"]) == (0, 1)
    assert await acme.members("frozen") == await globex.members("frozen") == set()


async def test_a_segment_cannot_be_built_on_anothers_segment(acme: Team, globex: Team) -> None:
    await globex.contact("gus")
    await globex.expect_success("POST", "", ALL)
    made = await acme.expect_success(
        "POST", "", {"name": "s", "sql": "SELECT contact_id FROM segment_members WHERE segment = 'all'"}
    )
    assert made["found"] == {"size": 0, "rows": 0, "nulls": 0, "unknown": 0}


ATTEMPTS = [statement for statement in ESCAPES if not statement.startswith("SELECT 1 OPERATOR")]


@pytest.mark.parametrize("attempt", ATTEMPTS[::4])
async def test_a_definition_that_evades_the_rules_is_refused(acme: Team, attempt: str) -> None:
    refused = await acme.call("POST", "", {"name": "x", "sql": attempt})
    assert (refused.status_code, refused.json()["field"]) == (400, "sql")
    assert (await acme.expect_success("GET"))["segments"] == []


@pytest.mark.parametrize(
    "attempt",
    [
        "SELECT id AS contact_id FROM contacts; DELETE FROM contacts",
        "SELECT id AS contact_id FROM workbench.contacts",
        "SELECT contact_id FROM candidates",
        "SELECT contact_id FROM pg_temp.wanted",
        "SELECT contact_id FROM workbench.audience_parts",
        "COPY (SELECT id AS contact_id FROM contacts) TO STDOUT",
        "WITH x AS (INSERT INTO segment_members VALUES ('a', gen_random_uuid(), now()) RETURNING 1)"
        " SELECT id AS contact_id FROM contacts",
    ],
)
async def test_temporary_tables_of_a_refresh_are_not_accessible(acme: Team, attempt: str) -> None:
    assert (await acme.call("POST", "", {"name": "x", "sql": attempt})).status_code == 400
    assert (await acme.call("POST", "/preview", {"sql": attempt})).status_code == 400
