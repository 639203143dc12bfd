"""The audit log: the time, the key and the versions of each change, and the scopes that may read it."""

import re
from typing import Any

import httpx
import pytest

from api.routes.account import visible_kinds
from tests.automations.conftest import Org
from tests.automations.test_routes import DRAFT


async def create_and_change(acme: Org) -> str:
    _, row = await acme.call("POST", "/automations", DRAFT)
    for verb, body in (("publish", {}), ("pause", {}), ("resume", {}), ("publish", {})):
        assert (await acme.call("POST", f"/automations/{row['id']}/{verb}", body))[0] == 200
    edit = {"revision": 4, "graph": {**DRAFT["graph"], "settings": {"reentry": {"policy": "once"}}}}
    assert (await acme.call("PUT", f"/automations/{row['id']}", edit))[0] == 200
    assert (await acme.call("POST", f"/automations/{row['id']}/publish", {}))[0] == 200
    assert (await acme.call("POST", f"/automations/{row['id']}/rollback", {"version": 1}))[0] == 200
    return str(row["id"])


async def test_every_change_has_its_key_action_and_versions(acme: Org) -> None:
    automation_id = await create_and_change(acme)
    status, answer = await acme.call("GET", f"/audit?subjectId={automation_id}")
    assert status == 200
    assert [(change["action"], change["fromVersion"], change["toVersion"]) for change in answer["changes"]] == [
        ("automation.rollback", 2, 3),
        ("automation.publish", 1, 2),
        ("automation.update", None, None),
        ("automation.resume", None, None),
        ("automation.pause", None, None),
        ("automation.publish", None, 1),
        ("automation.create", None, None),
    ]
    newest = answer["changes"][0]
    assert (newest["subject"], newest["detail"]["from"]) == ("n", 1)
    assert re.fullmatch(r"wb_\w*…\w{4}", newest["key"])
    page = await acme.call("GET", f"/audit?limit=2&before={newest['id']}&action=automation.publish")
    assert [change["toVersion"] for change in page[1]["changes"]] == [2, 1]


async def test_a_key_sees_the_changes_of_what_it_may_read(acme: Org, client: httpx.AsyncClient) -> None:
    await create_and_change(acme)

    async def count_visible(*scopes: str) -> Any:
        status, answer = await acme.call("GET", "/audit", key=("workbench", *scopes))
        return status if status != 200 else len(answer["changes"])

    assert await count_visible("events:read") == 7
    assert await count_visible("keys:admin") > 7  # the keys as well
    assert await count_visible("contacts:read") == 0
    assert await count_visible("contacts:erase") == 403
    assert (await acme.call("GET", "/audit", key=("live",)))[0] == 403
    assert (await acme.call("GET", "/audit?before=x"))[0] == 400


@pytest.mark.parametrize(
    ("scopes", "kinds"),
    [
        (("keys:admin", "events:read"), None),
        (("events:read",), ["automation", "entry", "snippet", "connection", "topic", "organization"]),
        (("sql:read",), ["segment", "page_schedule"]),
        (("contacts:read",), ["segment", "contact"]),
        (("pii:read",), []),
    ],
)
def test_scopes_are_kinds_of_things(scopes: tuple[str, ...], kinds: list[str] | None) -> None:
    assert visible_kinds(scopes) == kinds
