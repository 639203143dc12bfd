"""Requests generated from the document get answers that it describes: no 5xx, no undocumented status or body.

A few examples per operation, the same in every run; every other one uses ids of existing rows.
`SCHEMATHESIS_EXAMPLES=500` generates more.
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

from api.auth.key_format import WORKBENCH
from tests.openapi.conftest import OPERATIONS
from tests.routes.conftest import Org, Service

EXAMPLES = int(os.environ.get("SCHEMATHESIS_EXAMPLES", "5"))
CHECKS = [
    *(not_a_server_error, status_code_conformance, content_type_conformance),
    *(response_headers_conformance, response_schema_conformance),
]
EXCLUDED = {
    "inapp.socket": "a WebSocket has no answer to check",
    "openapi.serve_document": "its answer contains the schemas of all others",
}
GRAPH = {
    "nodes": [{"id": "t", "type": "app_event"}, {"id": "v", "type": "add_tag", "data": {"tag": "v"}}],
    "edges": [{"source": "t", "target": "v"}],
}
AUTOMATION = {"name": "a", "triggerSpec": {"type": "app_event", "event": "deposit"}, "graph": GRAPH}
EVENT = {"event": "deposit", "contact": {"externalId": "u1", "email": "a@example.com"}, "payload": {"a": 1.5}}
SEGMENT = {"name": "everybody", "sql": "SELECT id AS contact_id FROM contacts"}
PERIOD = {"since": "2026-11-01T00:00:00Z"}
VALID_BODIES: dict[str, dict[str, Any]] = {
    "segments.reach": {"needs": [{"path": "email"}], "all": True},
    "events.ingest_one": EVENT,
    "tracking.track": {"userId": "u1", "event": "deposit"},
    "tracking.track_batch": {"batch": [{"type": "track", "userId": "u1", "event": "deposit"}]},
    "connections.save": {
        "url": "https://chat.example",
        "body": {"text": "{{ fields.text }}"},
        "success": {"status": ["2xx"], "where": "answer.ok"},
        "permanent": {"status": [404], "where": "answer.gone"},
        "rate": 1,
    },
    "automations.create": AUTOMATION,
    "automations.update": AUTOMATION | {"revision": "revision"},
    "automations.publish": {},
    "automations.preview_move": {"move": "safe"},
    "automations.undo_move": {},
    "automations.rollback": {"version": 1},
    "automations.simulate": {"event": EVENT},
    "automations.simulate_unsaved": AUTOMATION | {"event": EVENT},
    "bounces.report": {"type": "bounced", "email": "a@example.com"},
    "contacts.find": {"contact": {"externalId": "u1"}},
    "contacts.opt_out": {"email": True},
    "contacts.set_preferences": {"topics": {"everybody": False}, "channels": {"email": True}},
    "contacts.tag": {"add": ["a"]},
    "topics.save": {"label": "News"},
    "entries.replay_many": {},
    "contacts.explain": {"automationId": "automation_id"},
    "contacts.merge": {"keep": "contact_id", "absorb": "other_id"},
    "broadcasts.create": {"all": True},
    "broadcasts.preview": {"segment": "everybody"},
    "segments.create": SEGMENT | {"name": "all"},
    "segments.extend": {"contactIds": []},
    "segments.preview": SEGMENT,
    "segments.update": {"revision": 1, "everySeconds": 60},
    "keys.create": {"kind": "live", "name": "backend"},
    "keys.edit": {"strict": True},
    "keys.roll": {},
    "automations.send_test_messages": {"event": EVENT, "to": {"email": "me@example.com"}},
    "automations.send_unsaved_test_messages": AUTOMATION | {"event": EVENT, "to": {"email": "me@example.com"}},
    "reports.funnel": PERIOD | {"steps": ["signup", "deposit"]},
    "reports.retention": PERIOD | {"start": "signup"},
    "reports.cohorts": PERIOD | {"start": "signup", "event": "deposit"},
    "reports.active_users": PERIOD,
    "reports.paths": PERIOD,
    "reports.revenue": PERIOD | {"event": "deposit", "value": "amount"},
    "reports.time_to_convert": PERIOD | {"start": "signup", "goal": "deposit"},
    "reports.message_performance": PERIOD,
    "automations.issue_receipt": {"kind": "check"},
    "page_schedules.create": {
        "title": "Monday",
        "sections": [{"title": "Events", "sql": "SELECT event FROM app_events"}],
        "cron": "0 8 * * mon",
        "to": ["boss@example.com"],
    },
    "sql.run_query": {"sql": "SELECT event, occurred_at, payload FROM app_events"},
}
"""Valid bodies; a value that is the name of an id below is replaced by that id."""
NEVER_SUCCESSFUL = {
    "automations.approve",
    "automations.reject",
    "clicks.follow",
    "clicks.head",
    "broadcasts.create",
    "entries.replay",
    "inapp.session",
    "lake.read_file",
    "contacts.undo_merge",
    "documentation.redirect_to_home",
    "documentation.serve_file",
    "openapi.redirect_to_page",
    "preferences.ask",
    "preferences.confirm",
    "preferences.save",
    "preferences.show",
    "segments.extend",
    "unsubscribe.confirm",
    "unsubscribe.unsubscribe",
}
"""Operations without a success here: one redirects; nothing is dead, signed, merged, half filled, to broadcast
or in a part."""


async def headers_for(org: Org, name: str) -> dict[str, str]:
    access = OPERATIONS[name].access
    if not access.kinds:
        return {}
    kind = access.kinds[-1]
    scopes = WORKBENCH if kind == "workbench" else ()
    return {"authorization": f"Bearer {await org.key(kind, *scopes)}", "accept": "application/json"}


async def create_rows(org: Org) -> dict[str, Any]:
    """Create one row of every kind; return the ids by the names of their path parameters."""

    async def create(path: str, body: dict[str, Any]) -> dict[str, Any]:
        headers = await headers_for(org, "automations.create")
        response = await org.service.client.post(path, json=body, headers=headers)
        assert response.is_success, response.text
        row: dict[str, Any] = response.json()
        return row

    automation_id = (await create("/automations", AUTOMATION))["id"]
    published = await create(f"/automations/{automation_id}/publish", {})
    move = (await create(f"/automations/{automation_id}/publish", {"move": "safe"}))["moves"]
    for contact in (EVENT["contact"], {"externalId": "u2"}):
        await org.post(EVENT | {"contact": contact})
    await create("/segments", SEGMENT)
    snippet, headers = {"body": "x"}, await headers_for(org, "automations.create")
    assert (await org.service.client.put("/snippets/everybody", json=snippet, headers=headers)).is_success
    headers = await headers_for(org, "connections.save")
    saved = await org.service.client.put(
        "/connections/everybody", json=VALID_BODIES["connections.save"], headers=headers
    )
    assert saved.is_success
    assert (await org.service.client.put("/topics/everybody", json={"label": "All"}, headers=headers)).is_success
    first, second = [row[0] for row in await org.rows("id", "contacts")]
    sender_id = (await create("/automations", AUTOMATION | {"triggerSpec": {"type": "broadcast"}}))["id"]
    await create(f"/automations/{sender_id}/publish", {})
    broadcast = await create(f"/automations/{sender_id}/broadcasts", {"all": True})
    entry_id = (await org.rows("id", "entries"))[0][0]
    page_schedule = await create("/page-schedules", VALID_BODIES["page_schedules.create"])
    await org.service.rows(
        "INSERT INTO page_runs (org_id, id, schedule_id, at, state, html) VALUES (%s, %s, %s, now(), 'done', 'x')",
        *(org.id, broadcast["id"], page_schedule["id"]),
    )
    return {
        "automation_id": automation_id,
        "revision": published["revision"],
        "contact_id": first,
        "other_id": second,
        "entry_id": entry_id,
        "broadcast_id": broadcast["id"],
        "move_id": move["id"],
        "schedule_id": page_schedule["id"],
        "run_id": broadcast["id"],
        "key_id": (await org.rows("id", "api_keys", "kind, id"))[0][0],  # a live key
        "name": "everybody",
        "event": "deposit",
        "kind": "track",
    }


@pytest.fixture(scope="module")
async def operations(service: Service) -> dict[str, Any]:
    """The operations that schemathesis generates requests for, by route name."""
    url = f"http://127.0.0.1:{service.port}"
    schema = schemathesis.openapi.from_dict((await service.client.get(f"{url}/openapi.json")).json())
    schema.config.update(base_url=url)
    results = [result.ok() for result in schema.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in results}


@pytest.fixture(scope="module")
async def shared(service: Service) -> tuple[Org, dict[str, Any]]:
    """An organization for the operations that change nothing, and the ids of its rows."""
    org = await service.organization()
    return org, await create_rows(org)


# The service uses `random` in its own thread, and Hypothesis blames the strategy that it draws from at that moment.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module:hypothesis.errors.HypothesisDeprecationWarning")
@pytest.mark.parametrize("name", sorted(set(OPERATIONS) - set(EXCLUDED)))
async def test_generated_requests_get_documented_answers(
    operations: dict[str, Any], acme: Org, shared: tuple[Org, dict[str, Any]], name: str
) -> None:
    org, ids = shared if operations[name].method == "get" else (acme, await create_rows(acme))
    headers = await headers_for(org, name)
    statuses, turns = set(), itertools.cycle((True, False))

    @settings(
        max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operations[name].as_strategy())
    def request(case: Any) -> None:
        if uses_rows := next(turns):
            case.path_parameters = {key: ids.get(key, value) for key, value in (case.path_parameters or {}).items()}
            case.query = {"externalId": "u1"} if name == "contacts.find_with_counts" else {}
        if uses_rows and name in VALID_BODIES:
            case.body = {field: ids.get(str(value), value) for field, value in VALID_BODIES[name].items()}
        case.query.pop("follow", None)  # a stream has no end
        if isinstance(case.body, dict) and isinstance(case.body.get("since"), str):
            case.body["since"] = max(case.body["since"], "2000-01-01T00:00:00Z")  # 2,000 years are half a million rows
        response = case.call(headers=headers, timeout=20)
        statuses.add(response.status_code)
        case.validate_response(response, checks=CHECKS)

    await asyncio.to_thread(request)
    assert min(statuses) < 300 or name in NEVER_SUCCESSFUL
