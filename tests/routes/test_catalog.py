"""`GET /api/v1/events/catalog` (docs/contract.md 4.3), and the description of one event."""

from datetime import datetime
from typing import Any

import pytest

from tests.routes.conftest import Org


async def send(org: Org, **counts: int) -> None:
    """Store this number of events of each name."""
    wanted = [{"event": name, "contact": {"externalId": "u"}} for name, number in counts.items() for _ in range(number)]
    for start in range(0, len(wanted), 100):
        await org.post_batch(*wanted[start : start + 100])


async def names(org: Org, query: str = "") -> list[str]:
    return [event["event"] for event in (await org.get(f"/events/catalog{query}"))[1]["events"]]


async def test_names_have_counts_most_frequent_first_ties_by_name(acme: Org) -> None:
    await send(acme, b=2, c=1, A=2, d=3)
    counts = {"d": 3, "a": 2, "b": 2, "c": 1}
    expected = {"events": [{"event": name, "count": count} for name, count in counts.items()], "windowDays": 30}
    assert await acme.get("/events/catalog") == (200, expected)


async def test_a_catalog_without_events_is_empty(acme: Org) -> None:
    assert await acme.get("/events/catalog") == (200, {"events": [], "windowDays": 30})


async def test_only_the_own_organizations_live_events_of_30_days_are_counted(acme: Org, globex: Org) -> None:
    await send(acme, mine=2, old=1)
    await send(globex, theirs=1)
    await acme.post({"event": "dry", "contact": {"externalId": "u"}, "test": True})
    await acme.post({"event": "dry", "contact": {"externalId": "u"}}, "test")
    await age(acme, "old", "30 days 1 second")
    assert (await acme.get("/events/catalog"))[1]["events"] == [{"event": "mine", "count": 2}]
    assert await names(globex) == ["theirs"]


async def test_the_catalog_stops_at_200_names(acme: Org) -> None:
    await send(acme, **{f"name{n:03}": 1 for n in range(205)}, often=2)
    assert await names(acme) == ["often", *(f"name{n:03}" for n in range(199))]


async def test_days_limit_and_prefix_narrow_it(acme: Org) -> None:
    await send(acme, app_a=2, app_b=1, web_a=3, app_old=1)
    await age(acme, "app_old", "2 days")
    queries = {
        "?limit=1": ["web_a"],
        "?prefix=APP_": ["app_a", "app_b", "app_old"],
        "?prefix=app%5F&days=1": ["app_a", "app_b"],
        "?prefix=app.": [],
        "?prefix=%25": [],
        "?days=30&limit=200&prefix=": ["web_a", "app_a", "app_b", "app_old"],
    }
    assert {query: await names(acme, query) for query in queries} == queries
    assert (await acme.get("/events/catalog?days=7"))[1]["windowDays"] == 7


@pytest.mark.parametrize(
    ("query", "field"),
    [
        (f"{name}={value}", name)
        for name in ("days", "limit")
        for value in ("0", "-1", "1e1", "x", "+1", "%D9%A3", "9" * 30)
    ]
    + [("detail=1", "detail"), ("days=31", "days"), ("limit=201", "limit"), ("prefix=%00", "prefix")],
)
async def test_an_invalid_catalog_parameter_is_refused_by_its_name(acme: Org, query: str, field: str) -> None:
    status, body = await acme.get(f"/events/catalog?{query}")
    assert (status, body["field"]) == (400, field)
    assert body["error"].startswith(f"{field}: ")


@pytest.mark.parametrize("kind", ["live", "test", "workbench"])
async def test_any_secret_or_workbench_key_may_read_the_catalog(acme: Org, kind: str) -> None:
    await send(acme, a=1)
    assert (await acme.get("/events/catalog", kind))[0] == (await acme.get("/events/catalog/a", kind))[0] == 200


async def test_one_event_is_described_by_its_properties(acme: Org) -> None:
    payloads: list[dict[str, Any]] = [{"usd": 5, "to": {"chain": "base"}}, {"usd": "5"}, {"usd": None, "tags": ["x"]}]
    for payload in payloads:
        await acme.post({"event": "pay:in", "contact": {"externalId": "u"}, "payload": payload})
    status, body = await acme.get("/events/catalog/PAY%3Ain")
    assert (status, body["event"], body["count"], body["sampled"], body["windowDays"]) == (200, "pay:in", 3, 3, 30)
    assert body["firstSeen"] == body["sampledSince"] < body["lastSeen"]
    assert {path["path"] for path in body["paths"]} >= {"usd", "to.chain"}
    one_day = (await acme.get("/events/catalog/pay:in?days=1"))[1]
    assert (one_day["windowDays"], len(one_day["perDay"]), len(body["perDay"])) == (1, 2, 31)
    assert {name for name in body if one_day[name] != body[name]} == {"windowDays", "days", "perDay", "drift"}


async def test_details_are_counts_by_day_and_when_it_was_seen(acme: Org) -> None:
    await send(acme, today=2, before=3)
    await age(acme, "before", "2 days")
    plain, body = (
        (await acme.get("/events/catalog?days=7"))[1],
        (await acme.get("/events/catalog?days=7&detail=true"))[1],
    )
    assert [{"event": item["event"], "count": item["count"]} for item in body["events"]] == plain["events"]
    assert {item["event"]: item["perDay"] for item in body["events"]} == {
        "before": [0, 0, 0, 0, 0, 3, 0, 0],
        "today": [0, 0, 0, 0, 0, 0, 0, 2],
    }
    assert [body["days"][5], body["days"][7]] == [item["lastSeen"][:10] for item in body["events"]]
    assert all(item["firstSeen"] <= item["lastSeen"] for item in body["events"])


async def test_first_seen_is_the_first_time_ever(acme: Org) -> None:
    await send(acme, early=1)
    await age(acme, "early", "40 days")
    await send(acme, early=1)
    (_, listed), (_, described) = (
        await acme.get("/events/catalog?days=7&prefix=early&detail=true"),
        await acme.get("/events/catalog/early?days=7"),
    )
    (event,) = listed["events"]
    for found in (event, described):
        seen = datetime.fromisoformat(found["lastSeen"]) - datetime.fromisoformat(found["firstSeen"])
        assert (found["count"], seen.days) == (1, 40)


async def test_an_event_is_shown_with_samples_and_with_what_changed_lately(acme: Org) -> None:
    await send(acme, tick=40)
    await age(acme, "tick", "10 days")
    for start in range(0, 60, 20):
        events = [{"event": "tick", "contact": {"externalId": "u"}, "payload": {"n": n, "new": "x"}} for n in range(20)]
        await acme.post_batch(*({**sample, "idempotencyKey": f"{start}-{n}"} for n, sample in enumerate(events)))
    body = (await acme.get("/events/catalog/tick"))[1]
    assert (sum(body["perDay"]), body["perDay"][-1], body["perDay"][-11]) == (100, 60, 40)
    assert [sample["payload"]["new"] for sample in body["samples"]] == ["x"] * 5
    assert body["samples"][0]["createdAt"] == body["lastSeen"]
    drift = body["drift"]
    assert (drift["recent"], drift["before"]) == (60, 20)
    assert [(change["path"], change["what"], change["recent"]) for change in drift["changes"]] == [
        (path, "new", {"count": 60, "of": 60}) for path in ("n", "new")
    ]
    (path,) = [path_view for path_view in body["paths"] if path_view["path"] == "new"]
    assert (path["topValues"], path["missing"], path["shares"]) == ([{"value": "x", "count": 60}], 40, {"string": 1})


async def test_fewer_large_payloads_are_examined(acme: Org) -> None:
    large = {"event": "large", "contact": {"externalId": "u"}, "payload": {f"key{n:04}": "x" for n in range(900)}}
    for start in range(0, 160, 80):
        await acme.post_batch(*(large | {"idempotencyKey": str(start + n)} for n in range(80)))
    body = (await acme.get("/events/catalog/large"))[1]
    assert (body["count"], len(body["paths"]), len(body["samples"])) == (160, 500, 5)
    assert 100 < body["sampled"] < 160


@pytest.mark.parametrize("name", ["nothing", "%00", "%FF", "a%20b", "x" * 65, "%2e%2e", "a%2Fb"])
async def test_an_event_never_received_is_unknown(acme: Org, globex: Org, name: str) -> None:
    await send(globex, nothing=1)
    status, body = await acme.get(f"/events/catalog/{name}")
    assert (status, set(body)) == (404, {"error", "requestId", "doc"})


async def age(org: Org, event: str, by: str) -> None:
    """Move the receipt of all events of a name to an earlier time."""
    await org.service.rows(
        f"UPDATE events SET created_at = (created_at AT TIME ZONE 'UTC' - interval '{by}') AT TIME ZONE 'UTC'"
        f" WHERE org_id = {org.id} AND event = '{event}'"
    )
