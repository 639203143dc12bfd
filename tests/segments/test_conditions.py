"""`contact.segments contains "whales"`: engine, simulation and explanation read the members at that moment."""

from pathlib import Path
from typing import Any

from api import settings
from api.channels.outgoing import open_transports
from api.engine.drive import Driver
from tests.segments.conftest import Team
from workbench.language.channel import RetryPolicy
from workbench.language.codec import decode

WHALES = {
    "name": "whales",
    "sql": "SELECT id AS contact_id FROM contacts WHERE (metadata ->> 'balance')::numeric > 100",
}
ASK = {"filters": [{"path": "contact.segments", "operator": "contains", "value": "whales"}]}
SPEC = {"type": "app_event", "event": "deposit"}
GRAPH = {
    "nodes": [
        {"id": "t", "type": "app_event", "data": {}},
        {"id": "c", "type": "condition", "data": ASK},
        {"id": "yes", "type": "add_tag", "data": {"tag": "whale"}},
        {"id": "no", "type": "add_tag", "data": {"tag": "shrimp"}},
    ],
    "edges": [
        {"id": "1", "source": "t", "target": "c"},
        {"id": "2", "source": "c", "sourceHandle": "true", "target": "yes"},
        {"id": "3", "source": "c", "sourceHandle": "false", "target": "no"},
    ],
}


async def post(team: Team, path: str, body: Any) -> Any:
    response = await team.org.call("POST", path, body, "workbench")
    assert response.status_code < 300, response.text
    return decode(response.content)


async def published(team: Team) -> str:
    made = await post(team, "/automations", {"name": "by size", "triggerSpec": SPEC, "graph": GRAPH})
    await post(team, f"/automations/{made['id']}/publish", {})
    return str(made["id"])


async def drive(team: Team, folder: Path) -> None:
    service = team.org.service
    ways = open_transports(settings.read({"WORKBENCH_DATA_DIR": str(folder)}))
    driver = Driver(service.services.system_database, service.keyring, service.services.clock, RetryPolicy(()), ways)
    await driver.drive(team.id, "ready", 100)
    await ways.close()


async def tags(team: Team, name: str) -> list[str]:
    ((tags,),) = await team.rows("SELECT tags FROM contacts WHERE org_id = %s AND external_id = %s", team.id, name)
    return list(tags)


async def test_the_engine_and_a_simulation_see_the_same_segments(acme: Team, globex: Team, tmp_path: Path) -> None:
    for name, balance in (("ann", 500), ("ben", 5)):
        await acme.contact(name, balance=balance)
    await acme.expect_success("POST", "", WHALES)
    await globex.contact("ben", balance=500)
    await globex.expect_success("POST", "", WHALES)
    automation_id = await published(acme)
    for name, tag in (("ann", "whale"), ("ben", "shrimp")):
        event = {"event": "deposit", "contact": {"externalId": name}}
        trace = await post(acme, f"/automations/{automation_id}/simulate", {"event": event})
        assert trace["steps"][-1]["detail"] == {"tag": tag}
        await acme.contact(name)
        await drive(acme, tmp_path)
        assert await tags(acme, name) == [tag]


async def test_the_members_of_the_moment_count(acme: Team, tmp_path: Path) -> None:
    await acme.contact("ann", balance=5)
    await acme.expect_success("POST", "", WHALES)
    await published(acme)
    await acme.contact("ann", balance=500)  # starts an entry
    await acme.expect_success("POST", "/whales/refresh")
    await drive(acme, tmp_path)
    assert await tags(acme, "ann") == ["whale"]
    await acme.expect_success("PUT", "/whales", {"revision": 1, "sql": WHALES["sql"].replace("100", "1000")})
    await acme.contact("ann")
    await drive(acme, tmp_path)
    assert await tags(acme, "ann") == ["whale", "shrimp"]


async def test_an_explanation_and_a_dry_run_decide_only_the_trigger(acme: Team) -> None:
    ann = await acme.contact("ann", balance=500)
    await acme.expect_success("POST", "", WHALES)
    automation_id = await published(acme)
    body = {"automationId": automation_id, "event": {"event": "deposit"}}
    (why,) = (await post(acme, f"/contacts/{ann}/explain", body))["explanations"]
    assert (why["matched"], why["reasons"]) == (True, [])
    for name in ("ann", "nobody"):
        _, answer = await acme.org.post({"event": "deposit", "contact": {"externalId": name}, "test": True})
        assert answer["matchedAutomations"] == 1
