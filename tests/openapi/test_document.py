"""The document has every route, and says the truth about whose keys may call it."""

import json
import re
from typing import Any, get_args

import pytest

from api.access.format import Kind
from api.access.scopes import WORKBENCH
from api.openapi.document import described
from api.openapi.operations import OPERATIONS
from tests.routes.conftest import Org, Service

NOWHERE = "00000000-0000-7000-8000-000000000000"


async def document(service: Service) -> dict[str, Any]:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


async def test_every_route_is_there_and_described(service: Service) -> None:
    routes = described(service.app.router.routes)
    assert sorted(routes) == sorted(OPERATIONS), "describe the routes that are missing in api/openapi/operations.py"
    found = await document(service)
    operations = [each for methods in found["paths"].values() for each in methods.values()]
    assert sorted(each["operationId"] for each in operations) == sorted(routes)
    assert all(re.match(r"[A-Z].*[.:]$|[A-Z].*", each["summary"]) for each in operations)
    assert len(found["paths"]) == len({route.path for route in routes.values()})


async def test_every_reference_leads_somewhere(service: Service) -> None:
    found = await document(service)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(found))):
        place: Any = found
        for step in reference.split("/"):
            place = place[step]
        assert place


PROTECTED = sorted(name for name, operation in OPERATIONS.items() if operation.access.kinds)


@pytest.mark.parametrize("name", PROTECTED)
async def test_a_route_lets_in_those_whom_the_document_names(acme: Org, name: str) -> None:
    route, access = described(acme.service.app.router.routes)[name], OPERATIONS[name].access
    (method,) = route.methods
    path = "/" + re.sub(r"<\w+:\w+>", NOWHERE, route.path)

    async def status(kind: Kind, *scopes: str) -> int:
        headers = {"authorization": f"Bearer {await acme.key(kind, *scopes)}", "accept": "application/json"}
        url = f"http://127.0.0.1:{acme.service.port}{path}"
        return (await acme.service.client.request(method, url, headers=headers)).status_code

    for kind in get_args(Kind):
        if kind == "workbench" or (kind in access.kinds) == (kind == "publishable"):
            continue
        assert (await status(kind) not in (401, 403)) == (kind in access.kinds), kind
    if "workbench" in access.kinds:
        for scope in WORKBENCH:
            allowed = await status("workbench", scope) not in (401, 403)
            assert allowed == (scope in access.scopes), scope
    url = f"http://127.0.0.1:{acme.service.port}{path}"
    assert (await acme.service.client.request(method, url)).status_code == 401


async def test_the_page_shows_every_route_and_needs_nothing_from_elsewhere(service: Service) -> None:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"<script|<link|@import|(?:src|href)=\"(?!#|/openapi)", answer.text)
    for name in OPERATIONS:
        assert f'id="{name}"' in answer.text
    for anchor in re.findall(r'href="#([^"]+)"', answer.text):
        assert f'id="{anchor}"' in answer.text
