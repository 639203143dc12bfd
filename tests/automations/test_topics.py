"""Topics of an organization: saved, listed, deleted, and named by automations that are published."""

import asyncio
from typing import Any

import psycopg
import pytest

from api.automations.topics import MAX_TOPICS
from api.embedded import Server
from api.store.database import APPLICATION_NAME, libpq_dsn
from tests.automations.conftest import Org
from tests.automations.test_routes import GRAPH, SPEC
from tests.servers import connect_as, until_lock_waits


async def save(org: Org, name: str, **topic: Any) -> tuple[int, Any]:
    return await org.call("PUT", f"/topics/{name}", {"label": "News"} | topic)


async def create(org: Org, topic: object, name: str = "n") -> str:
    """Create an automation with a message on a topic; return its path."""
    message = {"id": "m1", "type": "send_inapp", "data": {"title": "Hi", "body": "you", "topic": topic}}
    draft = {"name": name, "triggerSpec": SPEC, "graph": GRAPH | {"nodes": [GRAPH["nodes"][0], message]}}
    _, made = await org.call("POST", "/automations", draft)
    return f"/automations/{made['id']}"


async def test_a_topic_is_saved_changed_listed_and_deleted(acme: Org) -> None:
    status, saved = await save(acme, "news", labels={"de_at": "Neues"}, optIn="double")
    assert (status, saved["labels"], saved["optIn"]) == (200, {"de-AT": "Neues"}, "double")
    assert (await save(acme, "news"))[1]["optIn"] == "none"
    _, listed = await acme.call("GET", "/topics")
    assert [topic["name"] for topic in listed["topics"]] == ["news"]
    assert (await acme.call("GET", "/topics/news"))[1]["usedBy"] == []
    assert (await acme.call("DELETE", "/topics/news"))[0] == 200
    for method in ("GET", "DELETE"):
        assert (await acme.call(method, "/topics/news"))[0] == 404
    assert (await save(acme, "news"))[0] == 200


@pytest.mark.parametrize(
    ("name", "wrong", "field"),
    [
        ("News", {}, ""),
        ("a", {"label": ""}, "label"),
        ("a", {"labels": {"english": "x"}}, "labels.english"),
        ("a", {"labels": {"de": ""}}, "labels.de"),
        ("a", {"labels": {"de-at": "a", "de_AT": "b"}}, "labels.de_AT"),
        ("a", {"labels": 1}, "labels"),
        ("a", {"optIn": "single"}, "optIn"),
    ],
)
async def test_bad_topics_are_refused(acme: Org, name: str, wrong: dict[str, Any], field: str) -> None:
    status, refusal = await save(acme, name, **wrong)
    assert (status, refusal.get("field", "")) == (400, field)


async def test_an_organization_has_a_bounded_number_of_topics(acme: Org) -> None:
    for number in range(MAX_TOPICS):
        assert (await save(acme, f"t{number}"))[0] == 200
    assert (await save(acme, "one-more"))[0] == 400
    assert (await save(acme, "t0", label="Other"))[0] == 200


async def test_an_unknown_topic_is_refused_at_publication_and_a_used_one_cannot_be_deleted(acme: Org) -> None:
    here = await create(acme, "newz")
    await save(acme, "news")
    status, refusal = await acme.call("POST", f"{here}/publish")
    assert (status, refusal["field"]) == (400, "node m1")
    assert "topic: unknown topic 'newz'; did you mean 'news'?" in str(refusal)
    await save(acme, "newz")
    assert (await acme.call("POST", f"{here}/publish"))[0] == 200
    use = {"automationId": here.rpartition("/")[2], "name": "n", "draft": True, "version": 1}
    assert (await acme.call("GET", "/topics/newz"))[1]["usedBy"] == [use]
    status, refusal = await acme.call("DELETE", "/topics/newz")
    assert (status, "is used by 'n'" in str(refusal)) == (409, True)
    await acme.call("POST", f"{here}/archive")
    assert (await acme.call("DELETE", "/topics/newz"))[0] == 200


async def test_a_topic_is_not_deleted_while_an_automation_that_names_it_is_published(
    acme: Org, dsn: str, postgres: Server
) -> None:
    await save(acme, "news")
    async with asyncio.TaskGroup() as tasks:
        with connect_as(dsn) as connection:
            connection.execute("SELECT FROM topics FOR SHARE")
            deleting = tasks.create_task(acme.call("DELETE", "/topics/news"))
            await until_lock_waits(postgres, dsn, 1)
            here = await create(acme, "news")
            publishing = tasks.create_task(acme.call("POST", f"{here}/publish"))
            await until_lock_waits(postgres, dsn, 2)
    assert (deleting.result()[0], publishing.result()[0]) == (409, 200)


async def test_a_topic_is_published_only_while_every_process_knows_topics(acme: Org, dsn: str) -> None:
    await save(acme, "news")
    here = await create(acme, "news")
    with psycopg.connect(libpq_dsn(dsn), application_name=f"{APPLICATION_NAME}0016_bounces engine"):
        status, refusal = await acme.call("POST", f"{here}/publish")
        assert (status, "`topic` cannot be published" in str(refusal)) == (409, True)
    assert (await acme.call("POST", f"{here}/publish"))[0] == 200
