"""The document has every route and names the keys that may call it; the page shows the same."""

import json
import re
from itertools import product
from typing import Any, get_args

import pytest

from api.auth.key_format import WORKBENCH, Kind
from api.openapi.document import documented_routes
from tests.openapi.conftest import OPERATIONS
from tests.routes.conftest import Org, Service
from workbench.language.responses import UnknownWalletOutcome

UNKNOWN_ID = "00000000-0000-7000-8000-000000000000"


async def document(service: Service) -> dict[str, Any]:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}/openapi.json")
    assert answer.status_code == 200
    parsed: dict[str, Any] = answer.json()
    return parsed


async def test_the_document_has_every_route(service: Service) -> None:
    routes = documented_routes(service.app.router.routes)
    assert sorted(routes) == sorted(OPERATIONS)
    parsed = await document(service)
    operations = [operation for methods in parsed["paths"].values() for operation in methods.values()]
    assert sorted(operation["operationId"] for operation in operations) == sorted(routes)
    assert all(re.match(r"[A-Z].*[.:]$|[A-Z].*", operation["summary"]) for operation in operations)
    assert len(parsed["paths"]) == len({route.path for route, _ in routes.values()})


async def test_every_reference_can_be_resolved(service: Service) -> None:
    parsed = await document(service)
    for reference in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(parsed))):
        target: Any = parsed
        for step in reference.split("/"):
            target = target[step]
        assert target


async def test_a_body_is_required_where_an_empty_one_is_refused(acme: Org) -> None:
    paths = (await document(acme.service))["paths"]
    operation = paths["/api/v1/contacts/{contact_id}/opt-outs"]["put"]
    assert operation["requestBody"]["required"]
    empty = await acme.call("PUT", f"/contacts/{UNKNOWN_ID}/opt-outs", kind="workbench")
    assert empty.status_code == 400
    assert not paths["/api/v1/automations/{automation_id}/publish"]["post"]["requestBody"]["required"]


async def test_components_are_named_after_what_users_see(service: Service) -> None:
    names = (await document(service))["components"]["schemas"]
    assert {"Automation", "Contact", "Entry", "EventResponse", "Key"} <= set(names)
    assert [name for name in names if name.endswith(("View", "Row", "Schema"))] == []


async def test_every_description_speaks_of_json(service: Service) -> None:
    parsed = await document(service)
    operations = {
        operation["operationId"]: operation for path in parsed["paths"].values() for operation in path.values()
    }
    texts = {
        name: f"{operation['summary']} {operation.get('description', '')}" for name, operation in operations.items()
    }
    texts |= {name: schema["description"] for name, schema in parsed["components"]["schemas"].items()}
    assert [name for name, text in texts.items() if not text.strip()] == []
    # Python's constants, names with an underscore that no value has, and lines that Markdown would show as code
    python = re.compile(r"\b(None|True|False)\b|`[a-z]+_[a-z_]+`|^ {4}", re.MULTILINE)
    assert {name: text for name, text in texts.items() if python.search(text)} == {}


async def test_an_event_of_a_trial_may_be_a_log_or_a_start_without_a_contact(acme: Org) -> None:
    schemas = (await document(acme.service))["components"]["schemas"]
    _, *samples = schemas["TrialBody"]["properties"]["event"]["anyOf"]
    for sample in samples:
        trial = {"event": {field: sample["properties"][field].get("enum", [{}])[0] for field in sample["required"]}}
        answer = await acme.call("POST", f"/automations/{UNKNOWN_ID}/simulate", trial, kind="workbench")
        assert answer.status_code == 404, "the body is valid; the automation does not exist"


async def test_the_values_of_outcomes_for_unknown_wallets_are_documented(service: Service) -> None:
    schemas = (await document(service))["components"]["schemas"]
    assert set(schemas["UnknownWallet"]["properties"]["what"]["enum"]) == {*get_args(UnknownWalletOutcome)}


async def test_what_an_answer_always_has_is_required(service: Service) -> None:
    schemas = (await document(service))["components"]["schemas"]
    assert set(schemas["EntryHistory"]["required"]) == set(schemas["EntryHistory"]["properties"])
    assert set(schemas["Segment"]["properties"]) - set(schemas["Segment"]["required"]) == {
        *("daily", "history", "found", "change", "refresh")
    }


async def test_every_time_is_described_as_one(service: Service) -> None:
    schemas = (await document(service))["components"]["schemas"]
    times = {
        f"{name}.{field}": json.dumps(schema)
        for name, component in schemas.items()
        for field, schema in component.get("properties", {}).items()
        if re.search(r"^at$|[a-z]At$", field)
        if not name.startswith("Tracking")  # Segment's: what is no time is ignored
    }
    assert len(times) > 40
    assert [name for name, schema in times.items() if '"format": "date-time"' not in schema] == []


PROTECTED = sorted(name for name, operation in OPERATIONS.items() if operation.access.kinds)


@pytest.mark.parametrize("name", PROTECTED)
async def test_a_route_accepts_exactly_the_keys_that_the_document_names(acme: Org, name: str) -> None:
    (route, _), access = documented_routes(acme.service.app.router.routes)[name], OPERATIONS[name].access
    (method,) = route.methods
    path = "/" + re.sub(r"<\w+:\w+>", UNKNOWN_ID, route.path)

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
            assert allowed == (not access.scopes or scope in access.scopes), scope
    url = f"http://127.0.0.1:{acme.service.port}{path}"
    assert (await acme.service.client.request(method, url)).status_code == 401


async def test_the_page_shows_every_route_and_loads_no_external_resource(service: Service) -> None:
    answer = await service.client.get(f"http://127.0.0.1:{service.port}/docs")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert not re.findall(r"<script|<link|@import|(?:src|href)=\"(?!#|/openapi|/help/)", answer.text)
    for name in OPERATIONS:
        assert f'id="{name}"' in answer.text
    for anchor in re.findall(r'href="#([^"]+)"', answer.text):
        assert f'id="{anchor}"' in answer.text


async def test_every_refusal_links_to_a_section_of_the_page_and_names_what_works(acme: Org) -> None:
    root, client = f"http://127.0.0.1:{acme.service.port}", acme.service.client
    page = (await client.get(f"{root}/docs")).text
    allowed: dict[str, set[str]] = {"/api/v1/nothing-like-it": set()}
    for route in acme.service.app.router.routes:
        allowed.setdefault("/" + re.sub(r"<\w+:\w+>", UNKNOWN_ID, route.path), set()).update(route.methods)
    keys: list[dict[str, str]] = [{}, {"authorization": f"Bearer {await acme.key('workbench')}"}]
    statuses: set[int] = set()
    for path, method, key in product(allowed, ("DELETE", "GET", "PATCH", "POST", "PUT"), keys):
        answer = await client.request(method, root + path, content=b"[", headers=key)
        if answer.status_code < 400:
            continue
        statuses.add(answer.status_code)
        if answer.headers["content-type"].startswith("text/html"):  # a page for people, which says it in a sentence
            assert path.startswith(("/help/", "/preferences/"))
            continue
        error = answer.json()
        assert re.fullmatch(r"/docs(#[\w.]+)?", error["doc"]), (method, path)
        assert f'id="{error["doc"].partition("#")[2] or "top"}"' in page, (method, path)
        if allowed[path] and method not in allowed[path]:
            assert (answer.status_code, answer.headers["allow"]) == (405, ", ".join(sorted(allowed[path]))), path
            assert error["error"] == f"Method not allowed: use {answer.headers['allow']}"
        if answer.status_code == 401:
            assert "send `Authorization: Bearer <key>`" in error["error"]
    assert statuses == {400, 401, 403, 404, 405}
