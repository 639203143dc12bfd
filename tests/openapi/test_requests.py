"""Requests made from the document are answered as it says: no 5xx, no status or body that it does not know.

Few examples of each operation, always the same ones, every other one with what is there; `SCHEMATHESIS_EXAMPLES=500` asks for more.
"""

import asyncio
import itertools
import os
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.access.scopes import WORKBENCH
from api.openapi.operations import OPERATIONS
from tests.routes.conftest import Org, Service

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "5"))
CHECKS = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]
UNLIKE = {
    "inapp.socket": "is no request with an answer",
    "openapi.document": "has the schemas of others in its answer",
}
GRAPH = {
    "nodes": [{"id": "t", "type": "app_event"}, {"id": "v", "type": "add_tag", "data": {"tag": "v"}}],
    "edges": [{"source": "t", "target": "v"}],
}
AUTOMATION = {"name": "a", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": GRAPH}
EVENT = {"event": "deposit", "contact": {"externalId": "u1", "email": "a@example.com"}, "payload": {"a": 1.5}}
ASKED = {"name": "everybody", "sql": "SELECT id AS contact_id FROM contacts"}
GOOD: dict[str, dict[str, Any]] = {
    "events.ingest_one": EVENT,
    "automations.create": AUTOMATION,
    "automations.update": AUTOMATION | {"revision": "revision"},
    "automations.publish": {},
    "automations.rollback": {"version": 1},
    "automations.simulate_stored": {"event": EVENT},
    "automations.simulate_given": AUTOMATION | {"event": EVENT},
    "contacts.find": {"contact": {"externalId": "u1"}},
    "contacts.opt_out": {"email": True},
    "contacts.tag": {"add": ["a"]},
    "entries.replay_many": {},
    "explain.explain_events": {"automationId": "automation_id"},
    "merges.merge_two": {"keep": "contact_id", "absorb": "other_id"},
    "segments.create": ASKED | {"name": "all"},
    "segments.extend": {"contactIds": []},
    "segments.preview": ASKED,
    "segments.update": {"revision": 1, "everySeconds": 60},
    "keys.create": {"kind": "live", "name": "backend"},
    "keys.roll": {},
    "test_sends.test": {"event": EVENT, "to": {"email": "me@example.com"}},
    "sql.ask": {"sql": "SELECT event, occurred_at, payload FROM app_events"},
}
"""Bodies that are taken; what names a thing stands for its id."""
NEVER = {
    "entries.replay",
    "inapp.session",
    "merges.take_back",
    "segments.extend",
    "unsubscribe.ask",
    "unsubscribe.unsubscribe",
}
"""What is not answered with a success here: nothing is dead, signed, merged, half filled or unsubscribed."""


async def headers_for(org: Org, name: str) -> dict[str, str]:
    access = OPERATIONS[name].access
    if not access.kinds:
        return {}
    kind = access.kinds[-1]
    scopes = WORKBENCH if kind == "workbench" else ()
    return {"authorization": f"Bearer {await org.key(kind, *scopes)}", "accept": "application/json"}


async def things(org: Org) -> dict[str, Any]:
    """Make one of everything; return the ids by what names them in addresses."""

    async def made(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = await headers_for(org, "automations.create")
        response = await org.service.client.post(path, json=body, headers=headers)
        assert response.is_success, response.text
        found: dict[str, Any] = response.json()
        return found

    automation_id = (await made("/automations", AUTOMATION))["id"]
    published = await made(f"/automations/{automation_id}/publish", {})
    for contact in (EVENT["contact"], {"externalId": "u2"}):
        await org.post(EVENT | {"contact": contact})
    await made("/segments", ASKED)
    first, second = [row[0] for row in await org.rows("id", "contacts")]
    entry_id = (await org.rows("id", "entries"))[0][0]
    return {
        "automation_id": automation_id,
        "revision": published["revision"],
        "contact_id": first,
        "other_id": second,
        "entry_id": entry_id,
        "key_id": (await org.rows("id", "api_keys"))[0][0],
        "name": "everybody",
        "event": "deposit",
    }


@pytest.fixture(scope="module")
async def operations(service: Service) -> dict[str, Any]:
    """What schemathesis makes of the document, by the names of routes."""
    url = f"http://127.0.0.1:{service.port}"
    schema = schemathesis.openapi.from_dict((await service.client.get(f"{url}/openapi.json")).json())
    schema.config.update(base_url=url)
    found = [each.ok() for each in schema.get_all_operations()]
    return {each.definition.raw["operationId"]: each for each in found}


# The service takes chance from `random` in its own thread, for which Hypothesis blames whatever it was making at that moment.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(UNLIKE)))
async def test_requests_from_the_document_are_answered_as_it_says(
    operations: dict[str, Any], acme: Org, name: str
) -> None:
    known, headers = await things(acme), await headers_for(acme, name)
    statuses, turns = set(), itertools.cycle((True, False))

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operations[name].as_strategy())
    def ask(case: Any) -> None:
        if good := next(turns):
            case.path_parameters = {each: known.get(each, it) for each, it in (case.path_parameters or {}).items()}
            case.query = {"externalId": "u1"} if name == "timeline.show" else {}
        if good and name in GOOD:
            case.body = {field: known.get(str(value), value) for field, value in GOOD[name].items()}
        case.query.pop("follow", None)  # a stream has no end
        response = case.call(headers=headers, timeout=20)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    await asyncio.to_thread(ask)
    assert min(statuses) < 300 or name in NEVER
