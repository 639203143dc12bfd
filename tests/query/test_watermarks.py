"""A result has a watermark, and a query at that watermark returns the same result after later changes."""

from typing import Any

import httpx
import psycopg
import pytest

pytestmark = pytest.mark.plain

NAMES = "SELECT event FROM app_events WHERE event LIKE 'late%' ORDER BY event"
_EVENT = """
    INSERT INTO workbench.events (org_id, id, contact_id, event, occurred_at, created_at, idempotency_key, stored_in)
    VALUES (%s, gen_random_uuid(), gen_random_uuid(), %s, %s, %s, %s, pg_current_xact_id()::text::bigint)
"""


def add(connection: psycopg.Connection[Any], org_id: int, event: str, at: str = "2026-01-02") -> None:
    connection.execute(_EVENT, (org_id, event, at, at, event))


async def ask(analyst: Any, text: str, params: Any = None, as_of: Any = None) -> httpx.Response:
    body = {"sql": text, "params": params, "asOf": as_of}
    return await analyst.client.post("/api/v1/sql", json=body, headers={"Authorization": f"Bearer {analyst.key}"})


async def watermark(analyst: Any) -> str:
    return (await analyst.post("SELECT 1")).headers["Watermark"]


def problem(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]


async def test_the_same_query_has_the_same_hash(service):
    text = "SELECT :a ::int + :b ::int"
    one, same, other = [
        await ask(service.ann, text, params) for params in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 3})
    ]
    assert one.headers["Query-Hash"] == same.headers["Query-Hash"] != other.headers["Query-Hash"]
    assert len(one.headers["Query-Hash"]) == 32


async def test_a_result_is_repeated_despite_later_writes(service):
    with psycopg.connect(service.dsn) as open_then, psycopg.connect(service.dsn, autocommit=True) as ended:
        add(ended, service.ann.org_id, "late:before")
        add(open_then, service.ann.org_id, "late:still open")
        first = await ask(service.ann, NAMES)
        open_then.commit()
        add(ended, service.ann.org_id, "late:after", at="2999-01-01")
        add(ended, service.ann.org_id, "late:imported", at="2020-01-01")
    as_of = first.headers["Watermark"]
    again = await ask(service.ann, NAMES, as_of=as_of)
    assert first.json()["rows"] == [["late:before"]]
    assert again.json() == first.json()
    assert again.headers["Watermark"] == as_of
    assert again.headers["Query-Hash"] == first.headers["Query-Hash"]
    now = [["late:after"], ["late:before"], ["late:imported"], ["late:still open"]]
    assert await service.ann.rows(NAMES) == now
    assert (await ask(service.ann, NAMES, as_of=await watermark(service.ann))).json()["rows"] == now


async def test_the_past_shows_no_other_organizations_events(service):
    for analyst, canary in ((service.ann, "canary_a"), (service.ben, "canary_b")):
        response = await ask(
            analyst, "SELECT event FROM app_events WHERE event LIKE 'canary%'", as_of=await watermark(analyst)
        )
        assert response.json()["rows"] == [[canary]]


async def test_a_watermark_begins_with_its_moment_and_hides_the_rest(service):
    moment, _, sealed = (await watermark(service.ann)).partition("~")
    assert moment.endswith("Z")
    ((at,),) = await service.ann.rows(
        "SELECT :at ::timestamptz BETWEEN now() - interval '1 minute' AND now()", {"at": moment}
    )
    assert at is True
    assert ":" not in sealed


@pytest.mark.parametrize("table", ["contacts", "messages", "automation_entries", "segment_members", "rejected_events"])
async def test_tables_without_a_past_are_refused(service, table):
    response = await ask(service.ann, f"SELECT * FROM app_events, {table}", as_of=await watermark(service.ann))
    assert problem(response) == (400, f'sql: relation "{table}" does not exist')
    assert response.json()["hint"] == "asOf covers only app_events: the other tables keep no history"


async def test_a_query_of_the_past_cannot_read_the_current_tables_by_schema(service):
    for name in ("analyst.contacts", '"analyst".contacts', "Analyst . contacts"):
        response = await ask(service.ann, f"SELECT * FROM {name}", as_of=await watermark(service.ann))
        assert problem(response) == (400, "sql: with asOf, name tables without their schema")


async def test_a_table_may_be_called_analyst_in_a_query(service):
    text = "SELECT analyst.event FROM app_events analyst WHERE analyst.event = 'canary_a'"
    response = await ask(service.ann, text, as_of=await watermark(service.ann))
    assert response.json()["rows"] == [["canary_a"]]


async def test_only_a_watermark_of_the_own_organization_is_accepted(service):
    own, others = await watermark(service.ann), await watermark(service.ben)
    moment, _, sealed = own.partition("~")
    for wrong in (others, f"2026-01-01T00:00:00.000000Z~{sealed}", moment, "", "~", "é~é", f"{moment}~{sealed[:-4]}"):
        response = await ask(service.ann, "SELECT 1", as_of=wrong)
        assert problem(response) == (400, "asOf: is not the watermark of a result of this organization"), wrong
    assert problem(await ask(service.ann, "SELECT 1", as_of=5)) == (400, "asOf: must be a string")


async def test_a_watermark_hides_the_transaction_numbers(service):
    for statement in (
        "SELECT stored_in FROM app_events",
        "SELECT workbench.past_end()",
        "SELECT current_setting('workbench.past_end')",
        "SELECT pg_current_snapshot()",
        "SELECT * FROM analyst_past.app_events",
    ):
        assert (await service.ann.post(statement)).status_code == 400, statement
