"""The library of snippets: versions, what publication pins, and which automations use a snippet."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from api.catalog.maintenance import delete_expired
from api.store.database import Database
from tests.automations.conftest import Org
from tests.automations.test_routes import EVENT, GRAPH, SPEC

TEXT = {"id": "m1", "type": "send_inapp", "data": {"title": "Hi", "body": 'n={{ n }} {% include "footer" %}'}}
DRAFT = {"name": "n", "triggerSpec": SPEC, "graph": GRAPH | {"nodes": [GRAPH["nodes"][0], TEXT]}}


async def save(org: Org, name: str, body: str, **more: Any) -> tuple[int, Any]:
    return await org.call("PUT", f"/snippets/{name}", {"body": body} | more)


async def bodies(org: Org, here: str, version: str) -> list[str]:
    _, trace = await org.call("POST", f"{here}/simulate", {"event": EVENT, "version": version})
    return [message["body"] for message in trace["messages"]]


async def test_a_version_keeps_the_texts_it_was_published_with_and_drafts_have_the_newest(acme: Org) -> None:
    assert (await save(acme, "sign", "Ann"))[0] == 200
    assert (await save(acme, "footer", "by {% include 'sign' %}"))[1]["version"] == 1
    _, made = await acme.call("POST", "/automations", DRAFT)
    here = f"/automations/{made['id']}"
    _, published = await acme.call("POST", f"{here}/publish")
    assert (published["publishedVersion"], published["graph"]) == (1, DRAFT["graph"])
    assert (await acme.call("POST", f"{here}/publish"))[1]["revision"] == published["revision"]
    assert (await save(acme, "sign", "Bob"))[1]["version"] == 2
    assert await bodies(acme, here, "published") == ["n=1 by Ann"]
    assert await bodies(acme, here, "draft") == ["n=1 by Bob"]
    _, used = await acme.call("GET", "/snippets/sign")
    use = {"automationId": made["id"], "name": "n", "draft": True, "version": 1, "pinned": 1}
    assert (used["version"], used["body"], used["usedBy"]) == (2, "Bob", [use])
    assert (await acme.call("POST", f"{here}/publish"))[1]["publishedVersion"] == 2
    assert await bodies(acme, here, "published") == ["n=1 by Bob"]
    assert (await acme.call("GET", "/snippets/sign"))[1]["usedBy"] == [use | {"version": 2, "pinned": 2}]
    _, back = await acme.call("POST", f"{here}/rollback", {"version": 1})
    assert (back["publishedVersion"], back["graph"]) == (3, DRAFT["graph"])
    assert await bodies(acme, here, "published") == ["n=1 by Ann"]
    _, answer = await acme.call("GET", f"{here}/versions")
    pinned = {"footer": {"version": 1, "body": "by {% include 'sign' %}"}, "sign": {"version": 1, "body": "Ann"}}
    assert answer["versions"][0]["graph"]["snippets"] == pinned


async def test_versions_that_were_replaced_long_ago_and_are_not_pinned_are_deleted(acme: Org, dsn: str) -> None:
    for body in ("one", "two", "three"):
        assert (await save(acme, "footer", body))[0] == 200
        if body == "two":
            _, made = await acme.call("POST", "/automations", DRAFT)
            assert (await acme.call("POST", f"/automations/{made['id']}/publish"))[0] == 200
    for days, left in ((89, [3, 2, 1]), (91, [3, 2])):
        async with Database(dsn, size=1) as database:
            await delete_expired(database, acme.id, datetime.now(UTC) + timedelta(days=days))
        _, answer = await acme.call("GET", "/snippets/footer/versions")
        assert [version["version"] for version in answer["versions"]] == left
    _, used = await acme.call("GET", "/snippets/footer")
    assert [use["automationId"] for use in used["usedBy"]] == [made["id"]]


async def test_an_unknown_snippet_prevents_publication_naming_node_and_field(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    status, answer = await acme.call("POST", f"/automations/{made['id']}/publish")
    assert (status, answer["error"]) == (400, "node m1: data.body: line 1: unknown snippet 'footer'")
    assert (await acme.call("GET", "/snippets/footer"))[0] == 404
    assert (await acme.call("GET", "/snippets/footer/versions"))[0] == 404


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("{% include 'nope' %}", "body: line 1: unknown snippet 'nope'"),
        ("{% include 'a' %}", "body: line 1: the snippet 'a' includes itself: a → a"),
        ("{% if x %}", "body: line 1: "),
        ("", "body: "),
    ],
)
async def test_a_text_that_no_message_could_include_is_not_saved(acme: Org, body: str, error: str) -> None:
    status, answer = await save(acme, "a", body)
    assert (status, answer["error"][: len(error)]) == (400, error)
    assert (await acme.call("GET", "/snippets"))[1] == {"snippets": []}


async def test_versions_are_listed_and_a_change_names_the_one_that_it_started_from(acme: Org) -> None:
    await save(acme, "a", "one")
    assert (await save(acme, "a", "one"))[1]["version"] == 1
    assert (await save(acme, "a", "two", version=1))[1]["version"] == 2
    assert (await save(acme, "a", "three", version=1))[0] == 409
    assert (await save(acme, "A b", "x"))[0] == 400
    assert (await acme.call("PUT", "/snippets/b", {"body": "x"}, key=("workbench", "events:read")))[0] == 403
    _, answer = await acme.call("GET", "/snippets/a/versions")
    assert [(version["version"], version["body"]) for version in answer["versions"]] == [(2, "two"), (1, "one")]
    saved = await asyncio.gather(*(save(acme, "b", f"{number}") for number in range(4)))
    assert {status for status, _ in saved} <= {200, 409}
    _, answer = await acme.call("GET", "/snippets?names=a,c")
    assert [(snippet["name"], snippet["body"]) for snippet in answer["snippets"]] == [("a", "two")]
    _, answer = await acme.call("GET", "/snippets")
    newest = {snippet["name"]: (snippet["version"], "body" in snippet) for snippet in answer["snippets"]}
    assert newest["a"] == (2, False)
    _, audit = await acme.call("GET", "/audit", key=("workbench", "keys:admin"))
    assert [change["detail"] for change in audit["changes"] if change["action"] == "snippet.save"][-2:] == [
        {"name": "a", "version": 2},
        {"name": "a", "version": 1},
    ]


async def test_snippets_of_another_organization_are_unknown(client: httpx.AsyncClient, acme: Org, dsn: str) -> None:
    await save(acme, "footer", "x")
    globex = await Org.create(client, dsn, "globex")
    assert (await globex.call("GET", "/snippets"))[1] == {"snippets": []}
    _, made = await globex.call("POST", "/automations", DRAFT)
    assert (await globex.call("POST", f"/automations/{made['id']}/publish"))[0] == 400
