"""Connections over the API: what is refused, what never leaves, and which automations they fit."""

from typing import Any

import httpx
import pytest

from tests.automations.conftest import Org
from tests.automations.test_routes import EVENT, GRAPH, SPEC
from tests.servers import connect_as

KEY = "xoxb-canary-7f3a"
CHAT = {
    "url": "https://chat.example/{{ fields.room | default('all') }}",
    "headers": {"Authorization": "Bearer {{ secrets.key }}"},
    "body": {"text": "{{ fields.text }}"},
    "secrets": {"key": KEY},
    "success": {"status": ["2xx"], "where": "answer.ok"},
    "permanent": {"status": [404]},
    "rate": 2,
}
SEND = {"id": "s1", "type": "send_via", "data": {"connection": "chat", "fields": {"text": "n={{ n }}"}}}


def draft(**data: Any) -> dict[str, Any]:
    node = SEND | {"data": {"connection": "chat", "fields": {"text": "n={{ n }}"}} | data}
    return {"name": "n", "triggerSpec": SPEC, "graph": GRAPH | {"nodes": [GRAPH["nodes"][0], node], "edges": EDGES}}


EDGES = [{"id": "e", "source": GRAPH["nodes"][0]["id"], "target": "s1"}]


async def put(org: Org, name: str = "chat", **changes: Any) -> tuple[int, Any]:
    body = {key: value for key, value in (CHAT | changes).items() if value is not None}
    return await org.call("PUT", f"/connections/{name}", body)


async def publish(org: Org, **data: Any) -> tuple[int, Any]:
    _, made = await org.call("POST", "/automations", draft(**data))
    status, answer = await org.call("POST", f"/automations/{made['id']}/publish")
    return status, answer if status != 200 else made["id"]


async def test_a_connection_is_saved_and_its_secrets_never_come_back(acme: Org, dsn: str) -> None:
    status, saved = await put(acme)
    assert status == 200
    expected = {key: value for key, value in CHAT.items() if key != "secrets"}
    assert {key: saved[key] for key in expected} == expected | {
        "success": {"status": ["2xx"], "where": "answer.ok"},
        "permanent": {"status": [404], "where": None},
    }
    assert saved["secrets"] == ["key"]
    assert saved["fields"] == [{"name": "room", "required": False}, {"name": "text", "required": True}]
    _, audit = await acme.call("GET", "/audit", key=("workbench", "keys:admin"))
    saves = [change["detail"] for change in audit["changes"] if change["action"] == "connection.save"]
    assert saves == [{"name": "chat", "secrets": ["key"]}]
    answers = [saved, audit, *[(await acme.call("GET", path))[1] for path in ("/connections", "/connections/chat")]]
    with connect_as(dsn) as connection:
        rows = connection.execute("SELECT c::text FROM connections c").fetchall()
    assert len(rows) == 1
    assert KEY not in str((answers, rows))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://chat.example"}, "url"),
        ({"url": "https://{{ fields.host }}/x"}, "url"),
        ({"url": "https://chat.example/{{ contact.id }}"}, "url"),
        ({"method": "GET"}, "method"),
        ({"headers": {"Host": "x"}}, "headers.Host"),
        ({"headers": {"X-A": "{{ x"}}, "headers.X-A"),
        ({"headers": {"Content-Type": "text/plain"}}, "headers.content-type"),
        ({"body": "text"}, "body"),
        ({"body": {"text": "{% include 'x' %}"}}, "body"),
        ({"body": {"text": "{{ fields }}"}}, "body"),
        ({"success": {}}, "success"),
        ({"success": {"status": ["6xx"]}}, "success.status"),
        ({"success": {"where": "ok"}}, "success.where"),
        ({"permanent": {"where": "answer.ok =="}}, "permanent.where"),
        ({"rate": 0}, "rate"),
        ({"secrets": None}, "secrets.key"),
        ({"secrets": {"key": KEY, "other": "x"}}, "secrets.other"),
        ({"secrets": {"key": f"{KEY}\r\nx: y"}}, "secrets.key"),
        ({"body": {"text": "{{ secrets.tokn }}"}}, "secrets.tokn"),
    ],
)
async def test_what_cannot_be_sent_is_refused_naming_the_field(acme: Org, changes: dict[str, Any], field: str) -> None:
    status, answer = await put(acme, **changes)
    assert (status, answer["field"]) == (400, field)
    assert KEY not in str(answer)
    assert (await put(acme, "Chat"))[0] == 400


async def test_secrets_stay_with_the_request_that_they_were_written_for(acme: Org) -> None:
    await put(acme)
    assert (await put(acme, secrets=None, rate=5, success={"status": [200]}))[0] == 200
    for changes in (
        {"url": "https://evil.example"},
        {"body": {"text": "{{ secrets.key }}"}},
        {"headers": {"X": "{{ secrets.key }}"}},
    ):
        status, answer = await put(acme, secrets=None, **changes)
        assert (status, answer["field"]) == (400, "secrets.key")
        assert "must be sent again" in answer["error"]
    assert (await put(acme, url="https://other.example"))[0] == 200


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ({"connection": "chatt"}, "connection: unknown connection 'chatt'; did you mean 'chat'?"),
        ({"fields": {}}, "fields.text: is missing: the connection 'chat' needs it"),
        (
            {"fields": {"text": "a", "romm": "b"}},
            "fields.romm: the connection 'chat' has no such field; did you mean 'room'?",
        ),
        ({"fields": {"text": "{{ x"}}, "data.fields.text: line 1: unexpected end of template"),
        ({"connection": "silent"}, "connection: the connection 'silent' has no success rule"),
    ],
)
async def test_publication_is_refused_naming_node_and_field(acme: Org, data: dict[str, Any], error: str) -> None:
    await put(acme)
    await put(acme, "silent", success=None)
    status, answer = await publish(acme, **data)
    assert status == 400
    assert answer["error"].startswith(f"node s1: {error}")


async def test_a_change_that_a_live_version_does_not_fit_is_refused(acme: Org) -> None:
    await put(acme)
    status, automation_id = await publish(acme)
    assert status == 200
    use = {"automationId": automation_id, "name": "n", "draft": True, "version": 1}
    assert (await acme.call("GET", "/connections/chat"))[1]["usedBy"] == [use]
    for changes in ({"body": {"t": "{{ fields.text }} {{ fields.more }}"}}, {"body": {"t": "x"}}, {"success": None}):
        status, answer = await put(acme, **changes)
        assert status == 409
        assert answer["error"].startswith("the live version of 'n' does not fit: node s1: ")
    status, answer = await acme.call("DELETE", "/connections/chat")
    assert (status, answer["error"]) == (409, "the connection is used by 'n': publish them without it first")
    assert (await put(acme, secrets={"key": "new"}))[0] == 200
    await acme.call("POST", f"/automations/{automation_id}/archive")
    assert (await acme.call("DELETE", "/connections/chat"))[0] == 200
    assert (await acme.call("DELETE", "/connections/chat"))[0] == 404
    assert (await acme.call("GET", "/connections"))[1] == {"connections": []}


async def test_simulations_show_the_fields_and_no_secret(acme: Org) -> None:
    await put(acme)
    _, automation_id = await publish(acme)
    _, trace = await acme.call("POST", f"/automations/{automation_id}/simulate", {"event": EVENT})
    (message,) = trace["messages"]
    assert {key: message[key] for key in ("channel", "connection", "body")} == {
        "channel": "connection",
        "connection": "chat",
        "body": '{"text":"n=1"}',
    }
    assert KEY not in str(trace)


async def test_a_test_goes_only_to_a_connection_that_the_operator_allows(acme: Org) -> None:
    await put(acme)
    body = {key: value for key, value in draft().items() if key != "name"}
    status, answer = await acme.call("POST", "/test", body | {"event": EVENT, "to": {"connection": "chat"}})
    assert (status, answer["field"]) == (400, "to.connection")
    assert "must be allowed by name" in answer["error"]


async def test_another_organization_sees_nothing(acme: Org, client: httpx.AsyncClient, dsn: str) -> None:
    await put(acme)
    globex = await Org.create(client, dsn, "globex")
    assert (await globex.call("GET", "/connections"))[1] == {"connections": []}
    assert (await globex.call("GET", "/connections/chat"))[0] == 404
    assert (await globex.call("DELETE", "/connections/chat"))[0] == 404
