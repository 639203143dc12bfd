"""`POST /contacts/{id}/explain`: why an automation did or did not take events of a contact."""

from typing import Any

from tests.contacts.test_contacts import ANN, arrived, call
from tests.routes.conftest import Org
from workbench.language.advance import LOOP_LIMIT
from workbench.language.codec import decode

AUTHOR = ("contacts:read", "automations:write", "automations:publish")
NODES = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "exit", "data": {}}]
GRAPH = {"nodes": NODES, "edges": [{"source": "t", "target": "x"}]}
WEBHOOK = {"id": "x", "type": "send_webhook", "data": {"url": "https://hooks.acme.example"}}
WEBHOOK_GRAPH = {**GRAPH, "nodes": [NODES[0], WEBHOOK]}


async def author(org: Org, method: str, path: str, body: object = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {await org.key('workbench', *AUTHOR)}"}
    response = await org.service.client.request(method, path, json=body, headers=headers)
    assert response.status_code in (200, 201), response.text
    return decode(response.content)


async def automation(org: Org, *filters: dict[str, Any], publish: bool = True, graph: object = GRAPH) -> str:
    spec = {"type": "app_event", "event": "deposit", "filters": list(filters)}
    made = await author(
        org, "POST", "/automations", {"name": "Thanks", "triggerSpec": spec, "graph": graph, "active": True}
    )
    if publish:
        await author(org, "POST", f"/automations/{made['id']}/publish")
    return str(made["id"])


async def explained(org: Org, contact_id: str, automation_id: str, *scopes: str, **fields: Any) -> list[dict[str, Any]]:
    body = {"automationId": automation_id, **fields}
    response = await call(org, "POST", f"/{contact_id}/explain", *(scopes or AUTHOR), body=body)
    assert response.status_code == 200, response.text
    explanations: list[dict[str, Any]] = decode(response.content)["explanations"]
    return explanations


async def test_each_filter_is_explained_with_its_actual_value(acme: Org) -> None:
    automation_id = await automation(acme, {"path": "amount", "operator": "eq", "value": 100})
    contact_id = await arrived(acme)
    await acme.post({"event": "deposit", "contact": ANN, "payload": {"amount": "100"}})
    await acme.post({"event": "deposit", "contact": ANN, "payload": {"amount": 100}})
    taken, missed, other = await explained(acme, contact_id, automation_id)
    assert (taken["matched"], taken["reasons"], taken["version"], taken["entry"]["state"]) == (True, [], 1, "pending")
    assert (missed["matched"], missed["reasons"], missed["entry"]) == (False, ["filters"], None)
    assert missed["verdicts"] == [
        {"path": "amount", "operator": "eq", "value": 100, "passed": False, "present": True, "actual": "100"}
    ]
    assert (other["event"], other["reasons"], other["wants"]) == ("signup", ["other_event", "filters"], ["deposit"])
    assert await explained(acme, contact_id, automation_id, eventId=missed["eventId"]) == [missed]


async def test_an_event_is_explained_by_the_automation_of_its_time(acme: Org) -> None:
    contact_id = await arrived(acme)
    await acme.post({"event": "deposit", "contact": ANN})
    automation_id = await automation(acme, publish=False)
    await acme.post({"event": "deposit", "contact": ANN})
    await author(acme, "POST", f"/automations/{automation_id}/publish")
    revision = (await author(acme, "POST", f"/automations/{automation_id}/deactivate"))["revision"]
    await acme.post({"event": "deposit", "contact": ANN})
    await author(acme, "PUT", f"/automations/{automation_id}", {"revision": revision, "active": True})
    await acme.post({"event": "deposit", "contact": ANN})
    await author(acme, "POST", f"/automations/{automation_id}/archive")
    await acme.post({"event": "deposit", "contact": ANN})
    explanations = [
        (explanation["matched"], explanation["reasons"], explanation["version"])
        for explanation in await explained(acme, contact_id, automation_id)
    ]
    assert explanations == [
        (False, ["archived"], 1),
        (True, ["archived"], 1),  # its entry was cancelled before an engine took it
        (False, ["inactive"], 1),
        (True, ["inactive"], None),
        (False, ["not_there_yet"], None),
        (False, ["not_there_yet", "other_event"], None),
    ]


async def test_an_automation_that_is_published_while_everything_is_stopped_is_inactive_until_it_is_resumed(
    acme: Org,
) -> None:
    contact_id, automation_id = await arrived(acme), await automation(acme, publish=False)
    await author(acme, "POST", "/stop")
    await author(acme, "POST", f"/automations/{automation_id}/publish")
    await acme.post({"event": "deposit", "contact": ANN})
    await author(acme, "POST", "/resume")
    await acme.post({"event": "deposit", "contact": ANN})
    taken, missed, _ = await explained(acme, contact_id, automation_id)
    assert [(event["matched"], event["reasons"]) for event in (taken, missed)] == [(True, []), (False, ["inactive"])]


async def test_a_dry_run_starts_nothing(acme: Org) -> None:
    automation_id = await automation(acme)
    contact_id = await arrived(acme)
    await acme.post({"event": "deposit", "contact": ANN, "test": True})
    dry, _ = await explained(acme, contact_id, automation_id)
    assert (dry["matched"], dry["reasons"]) == (False, ["dry_run"])


async def test_an_event_that_has_not_happened(acme: Org) -> None:
    automation_id = await automation(acme, {"path": "email", "operator": "contains", "value": "@acme.example"})
    contact_id = await arrived(acme)
    (would,) = await explained(acme, contact_id, automation_id, event={"event": "Deposit", "payload": {"amount": 1}})
    assert (would["eventId"], would["event"], would["matched"], would["reasons"]) == (None, "deposit", True, [])
    assert would["verdicts"][0]["actual"] == "a•••@acme.example"
    (clear,) = await explained(acme, contact_id, automation_id, "contacts:read", "pii:read", event={"event": "deposit"})
    assert clear["verdicts"][0]["actual"] == "ann@acme.example"
    assert (await acme.traces())["events"] == 1


async def test_the_loop_guard_applies_to_an_event_that_has_not_happened_in_explanations_simulations_and_previews(
    acme: Org,
) -> None:
    automation_id, contact_id = await automation(acme, graph=WEBHOOK_GRAPH), await arrived(acme)
    await acme.service.rows(
        "INSERT INTO entries"
        " (org_id, id, automation_id, event_id, event_created_at, contact_id, state, due_at, created_at, updated_at)"
        " SELECT %s, gen_random_uuid(), %s, gen_random_uuid(), now(), %s, 'completed', now(),"
        " now() - interval '1 s' - n * interval '1 ms', now() FROM generate_series(1, %s) AS n RETURNING 1",
        acme.id,
        automation_id,
        contact_id,
        LOOP_LIMIT,
    )
    (would,) = await explained(acme, contact_id, automation_id, event={"event": "deposit"})
    assert (would["matched"], would["reasons"], would["cause"]) == (True, ["loop_guard"], "loop_guard")
    sample = {"event": {"event": "deposit", "contact": ANN}}
    preview = sample | {"triggerSpec": {"type": "app_event"}, "graph": WEBHOOK_GRAPH, "automationId": automation_id}
    for path, body in ((f"/automations/{automation_id}/simulate", sample), ("/simulate", preview)):
        trace = await author(acme, "POST", path, body)
        assert (trace["matched"], trace["state"], trace["outcome"]) == (True, "cancelled", "loop_guard")
        assert [step["detail"] for step in trace["steps"]] == [{"cause": "loop_guard", "entries": LOOP_LIMIT}]


async def test_an_event_that_has_not_happened_would_join_an_entry_that_collects(acme: Org) -> None:
    collect = {"id": "x", "type": "collect", "data": {"seconds": 3_600, "key": "order"}}
    graph = {**GRAPH, "nodes": [NODES[0], collect]}
    automation_id, contact_id = await automation(acme, graph=graph), await arrived(acme)
    await acme.post({"event": "deposit", "contact": ANN, "payload": {"order": 1}})
    ((entry_id,),) = await acme.service.rows(
        "UPDATE entries SET state = 'waiting', node_id = 'x', since = now(), due_at = now() + interval '1 hour',"
        " awaits = ARRAY['+' || id] WHERE automation_id = %s RETURNING id::text",
        automation_id,
    )
    for order, reasons in ((1, ["joined"]), (2, [])):
        event = {"event": "deposit", "payload": {"order": order}}
        (would,) = await explained(acme, contact_id, automation_id, event=event)
        assert (would["matched"], would["reasons"]) == (True, reasons)
    sample = {"event": {"event": "deposit", "contact": ANN, "payload": {"order": 1}}}
    trace = await author(acme, "POST", f"/automations/{automation_id}/simulate", sample)
    (step,) = trace["steps"]
    assert (trace["outcome"], step["outcome"], step["detail"]) == ("joined", "joined", {"entryId": entry_id})


async def test_invalid_requests_for_explanations_are_refused(acme: Org, globex: Org) -> None:
    automation_id, contact_id = await automation(acme), await arrived(acme)
    for body in (
        {},
        {"automationId": automation_id, "event": "deposit"},
        {"automationId": automation_id, "event": {"event": "?"}},
        {"automationId": automation_id, "limit": 101},
    ):
        assert (await call(acme, "POST", f"/{contact_id}/explain", *AUTHOR, body=body)).status_code == 400
    body = {"automationId": automation_id}
    assert (await call(globex, "POST", f"/{contact_id}/explain", *AUTHOR, body=body)).status_code == 404
    assert (await call(acme, "POST", f"/{contact_id}/explain", "events:read", body=body)).status_code == 403
    unknown = {**body, "eventId": contact_id}
    assert (await call(acme, "POST", f"/{contact_id}/explain", *AUTHOR, body=unknown)).status_code == 404


async def test_an_event_is_explained_by_the_identifiers_of_its_time(acme: Org) -> None:
    automation_id = await automation(acme, {"path": "externalId", "operator": "eq", "value": "ann-1"})
    wallet = {"walletAddress": ANN["walletAddress"]}
    contact_id = await arrived(acme, wallet)
    await acme.post({"event": "deposit", "contact": wallet})
    await acme.post({"event": "deposit", "contact": ANN})  # the event itself brings the id
    await acme.post({"event": "deposit", "contact": wallet})
    reasons = [row["reasons"] for row in await explained(acme, contact_id, automation_id)]
    assert reasons == [[], [], ["filters"], ["other_event", "filters"]]
