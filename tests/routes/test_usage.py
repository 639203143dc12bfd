"""`GET /usage`: messages sent in a month, by channel."""

import pytest

from api.store.database import load
from tests.routes.conftest import Org

NOVEMBER = {
    "in october": "2026-10-31T23:59:59.999999Z",
    "first": "2026-11-01T00:00:00Z",
    "last": "2026-11-30T23:59:59.999999Z",
    "in december": "2026-12-01T00:00:00Z",
}


async def store_outcome(org: Org, at: str, channel: str = "email", outcome: str = "sent") -> None:
    """Store the outcome of a message."""
    await org.service.rows(
        "INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel)"
        " VALUES (%s, %s::timestamptz, gen_random_uuid(), %s, %s)",
        org.id,
        at,
        outcome,
        channel,
    )


async def read_usage(org: Org, month: str) -> dict[str, int]:
    status, answer = await org.get(f"/usage?month={month}")
    assert (status, answer["month"]) == (200, month)
    assert answer["total"] == sum(answer["messages"].values())
    messages: dict[str, int] = answer["messages"]
    return messages


async def test_a_month_begins_and_ends_at_midnight_utc(acme: Org) -> None:
    for at in NOVEMBER.values():
        await store_outcome(acme, at)
    assert [(await read_usage(acme, month))["email"] for month in ("2026-10", "2026-11", "2026-12")] == [1, 2, 1]


async def test_a_year_ends_in_december(acme: Org) -> None:
    await store_outcome(acme, "2026-12-31T23:59:59Z")
    await store_outcome(acme, "2027-01-01T00:00:00Z")
    assert [(await read_usage(acme, month))["email"] for month in ("2026-12", "2027-01")] == [1, 1]


async def test_only_sent_messages_are_counted_by_channel(acme: Org, globex: Org) -> None:
    for outcome in ("sent", "delivered", "retrying", "failed", "skipped", "unknown"):
        await store_outcome(acme, "2026-11-20T00:00:00Z", "inapp", outcome)
    await store_outcome(acme, "2026-11-20T00:00:00Z", "webhook")
    await store_outcome(globex, "2026-11-20T00:00:00Z", "email")
    assert await read_usage(acme, "2026-11") == {"inapp": 1, "email": 0, "webhook": 1, "connection": 0}


async def test_events_are_never_metered(acme: Org) -> None:
    await acme.post({"event": "signup", "contact": {"email": "ann@acme.example"}})
    status, answer = await acme.get("/usage")
    assert (status, answer["messages"]) == (200, {"inapp": 0, "email": 0, "webhook": 0, "connection": 0})
    assert answer["month"] == f"{acme.service.services.clock.now():%Y-%m}"


@pytest.mark.parametrize(
    "month", ["2026", "2026-13", "2026-00", "2026-1", "11-2026", "2026-11-01", "٢٠٢٦-11", "%00", "0000-01"]
)
async def test_an_invalid_month_is_refused_by_name(acme: Org, month: str) -> None:
    status, answer = await acme.get(f"/usage?month={month}")
    assert (status, answer["field"]) == (400, "month")


async def test_usage_requires_events_read(acme: Org) -> None:
    for scopes, status in ((("events:read",), 200), (("contacts:read",), 403)):
        headers = {"authorization": f"Bearer {await acme.key('workbench', *scopes)}"}
        assert (await acme.service.client.get("/usage", headers=headers)).status_code == status
    assert (await acme.service.client.get("/usage")).status_code == 401


async def test_a_month_is_one_range_of_the_index(acme: Org) -> None:
    await acme.service.rows(
        "INSERT INTO message_outcomes (org_id, at, message_id, outcome, channel)"
        " SELECT %s, '2026-01-01T00:00:00Z'::timestamptz + n * interval '1 hour', gen_random_uuid(), 'sent', 'inapp'"
        " FROM generate_series(1, 8000) AS n RETURNING 1",
        acme.id,
    )
    await acme.service.rows("ANALYZE message_outcomes")
    values = {"org_id": acme.id, "since": "2026-03-01T00:00:00Z", "until": "2026-04-01T00:00:00Z"}
    async with acme.service.services.system_database.transaction() as tx:
        rows = await (await tx.execute("EXPLAIN " + load("messages")["count_sent"], values)).fetchall()
    plan = "\n".join(row[0] for row in rows)
    assert "message_outcomes_pkey" in plan
    assert "Seq Scan" not in plan
    assert (await read_usage(acme, "2026-03"))["inapp"] == 31 * 24
