"""The time zone of an organization: what versions keep of it, and what simulations and the API show."""

from typing import Any

import psycopg
import pytest

from api.store.database import APPLICATION_NAME, libpq_dsn
from tests.automations.conftest import Org
from tests.automations.test_routes import EVENT, GRAPH, SPEC

COLLECT = {"id": "c", "type": "collect", "data": {"until": "09:00"}}


def draft(**settings: Any) -> dict[str, Any]:
    edges = [{"source": GRAPH["nodes"][0]["id"], "target": "c"}]
    return {
        "name": "n",
        "triggerSpec": SPEC,
        "graph": {"nodes": [GRAPH["nodes"][0], COLLECT], "edges": edges, "settings": settings},
    }


async def ends_at(org: Org, here: str, version: str) -> str:
    """Return the UTC time at which the simulation of a version collects until 09:00."""
    body = {"event": EVENT, "version": version, "now": "2026-11-27T12:00:00Z"}
    _, trace = await org.call("POST", f"{here}/simulate", body)
    return next(str(step["at"]) for step in trace["steps"] if step["outcome"] == "collected")[11:16]


async def create(org: Org, **settings: Any) -> str:
    status, made = await org.call("POST", "/automations", draft(**settings))
    assert status == 201, made
    return f"/automations/{made['id']}"


async def set_zone(org: Org, zone: str | None) -> tuple[int, Any]:
    return await org.call("PUT", "/organization", {"timezone": zone})


async def test_it_is_utc_until_it_is_set_and_the_change_is_audited(acme: Org) -> None:
    assert await acme.call("GET", "/organization") == (200, {"timezone": None, "approvals": False})
    for zone in ("Asia/Tokyo", "Asia/Tokyo", None):
        assert await set_zone(acme, zone) == (200, {"timezone": zone, "approvals": False})
        assert await acme.call("GET", "/organization") == (200, {"timezone": zone, "approvals": False})
    _, audit = await acme.call("GET", "/audit?action=organization.timezone")
    changes = [change["detail"] for change in audit["changes"]]
    assert changes == [{"from": "Asia/Tokyo", "to": None}, {"from": None, "to": "Asia/Tokyo"}]


@pytest.mark.parametrize("zone", ["Mars/Base", "", "../etc/passwd", 5])
async def test_an_unknown_zone_is_refused(acme: Org, zone: Any) -> None:
    status, answer = await set_zone(acme, zone)
    assert (status, answer["field"]) == (400, "timezone")


async def test_a_version_keeps_the_zone_of_its_publication_and_drafts_have_the_present_one(acme: Org) -> None:
    await set_zone(acme, "Asia/Tokyo")
    here = await create(acme)
    _, published = await acme.call("POST", f"{here}/publish")
    assert "timezone" not in published["graph"]
    await set_zone(acme, "America/New_York")
    assert [await ends_at(acme, here, version) for version in ("published", "draft")] == ["00:00", "14:00"]
    _, again = await acme.call("POST", f"{here}/publish")
    assert again["publishedVersion"] == 2
    assert await ends_at(acme, here, "published") == "14:00"
    _, versions = await acme.call("GET", f"{here}/versions")
    assert [version["graph"].get("timezone") for version in versions["versions"]] == ["America/New_York", "Asia/Tokyo"]
    _, back = await acme.call("POST", f"{here}/rollback", {"version": 1})
    assert back["graph"] == published["graph"]
    assert await ends_at(acme, here, "published") == "00:00"


async def test_the_zone_of_the_automation_comes_first(acme: Org) -> None:
    await set_zone(acme, "Asia/Tokyo")
    here = await create(acme, timezone="America/New_York")
    await acme.call("POST", f"{here}/publish")
    assert await ends_at(acme, here, "published") == "14:00"


async def test_it_is_not_published_while_a_process_that_does_not_know_it_is_connected(acme: Org, dsn: str) -> None:
    await set_zone(acme, "Asia/Tokyo")
    here = await create(acme)
    with psycopg.connect(libpq_dsn(dsn), application_name=f"{APPLICATION_NAME}0016_bounces"):
        status, answer = await acme.call("POST", f"{here}/publish")
    assert (status, answer["error"].partition(" while")[0]) == (
        409,
        "`the time zone of the organization` cannot be published",
    )


async def test_publishing_again_changes_only_automations_that_follow_the_clock(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", {"name": "n", "triggerSpec": SPEC, "graph": GRAPH})
    here = f"/automations/{made['id']}"
    await acme.call("POST", f"{here}/publish")
    await set_zone(acme, "Asia/Tokyo")
    assert (await acme.call("POST", f"{here}/publish"))[1]["publishedVersion"] == 1
