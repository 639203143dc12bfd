"""The routes of automations: required scopes, answers, and refusals in the common shape."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import psycopg
import pytest

from api.store.database import APPLICATION_NAME, libpq_dsn
from tests.automations.conftest import Org
from tests.inapp.wallet import evm_wallet

SPEC = {"type": "app_event", "event": "a"}
GRAPH = {
    "nodes": [
        {"id": "t1", "type": "app_event", "data": {}},
        {"id": "m1", "type": "send_inapp", "data": {"title": "Hi", "body": "{{ n }}"}},
    ],
    "edges": [{"id": "e1", "source": "t1", "target": "m1"}],
}
DRAFT = {"name": "n", "triggerSpec": SPEC, "graph": GRAPH}
EVENT = {"event": "a", "contact": {"walletAddress": evm_wallet("AB")}, "payload": {"n": 1}}
UNKNOWN = "00000000-0000-0000-0000-000000000000"

Caller = Callable[..., Awaitable[httpx.Response]]


async def test_an_automation_from_draft_to_archive(acme: Org) -> None:
    status, made = await acme.call("POST", "/automations", DRAFT)
    assert (status, made["revision"], made["publishedVersion"], made["triggerSpec"], made["graph"]) == (
        *(201, 1, None, SPEC, GRAPH),
    )
    here = f"/automations/{made['id']}"
    assert await acme.call("GET", here.upper().replace("/AUTOMATIONS", "/automations")) == (200, made)
    assert (await acme.call("PUT", here, {"name": "m", "revision": 1}))[1]["revision"] == 2
    assert (await acme.call("POST", f"{here}/publish"))[1]["publishedVersion"] == 1
    assert (await acme.call("POST", f"{here}/rollback", {"version": 1}))[1]["publishedVersion"] == 1
    assert [(await acme.call("POST", f"{here}/{verb}"))[1]["active"] for verb in ("deactivate", "activate")] == [
        False,
        True,
    ]
    [version] = (await acme.call("GET", f"{here}/versions"))[1]["versions"]
    assert set(version) == {"version", "publishedAt", "publishedBy", "triggerSpec", "graph"}
    assert (await acme.call("POST", f"{here}/archive"))[1]["archivedAt"] is not None
    assert (await acme.call("POST", f"{here}/publish"))[0] == 409


async def test_the_state_is_one_word_that_lists_can_be_filtered_by(acme: Org) -> None:
    ids = {}
    for state, verbs in {
        "draft": (),
        "live": ("publish",),
        "paused": ("publish", "pause"),
        "off": ("publish", "deactivate"),
    }.items():
        ids[state] = (await acme.call("POST", "/automations", DRAFT))[1]["id"]
        for verb in verbs:
            await acme.call("POST", f"/automations/{ids[state]}/{verb}")
    for state, automation_id in ids.items():
        [listed] = (await acme.call("GET", f"/automations?state={state}"))[1]["automations"]
        assert (listed["id"], listed["state"]) == (automation_id, state)
        assert (await acme.call("GET", f"/automations/{automation_id}"))[1]["state"] == state
    assert (await acme.call("GET", "/automations?state=active"))[0] == 400


async def test_everything_is_stopped_and_resumed(acme: Org) -> None:
    here = f"/automations/{(await acme.call('POST', '/automations', DRAFT))[1]['id']}"
    await acme.call("POST", f"{here}/publish")
    nothing = {"stoppedAt": None, "automations": 0, "entries": 0, "unsent": 0, "leaving": 0}
    assert await acme.call("POST", "/resume") == (200, nothing)
    assert await acme.call("GET", "/stop", key=("workbench", "events:read")) == (200, nothing | {"automations": 1})
    assert (await acme.call("POST", "/stop", key=("workbench", "events:read")))[0] == 403
    status, stopped = await acme.call("POST", "/stop", key=("workbench", "automations:publish"))
    assert (status, stopped | {"stoppedAt": None}) == (200, nothing | {"automations": 1})
    assert await acme.call("GET", "/stop") == await acme.call("POST", "/stop") == (200, stopped)
    shown = (await acme.call("GET", here))[1]
    assert (shown["state"], shown["pausedAt"]) == ("paused", stopped["stoppedAt"])
    assert "everything is stopped" in (await acme.call("POST", f"{here}/resume"))[1]["error"]
    created = (await acme.call("POST", "/automations", DRAFT))[1]  # it starts entries, too
    assert created["pausedAt"] == stopped["stoppedAt"]
    assert await acme.call("POST", "/resume", {"overdue": "cancel"}) == (200, nothing | {"automations": 2})
    assert (await acme.call("GET", here))[1]["state"] == "live"
    paused = (await acme.call("POST", f"{here}/pause"))[1]
    assert paused["stopped"] == nothing | {"automations": 1, "stoppedAt": paused["pausedAt"]}


@pytest.mark.parametrize(
    ("spec", "step", "settings", "name"),
    [
        (SPEC, {"type": "wait_until", "data": {"time": "09:00"}}, {}, "wait_until"),
        (SPEC, {"type": "collect", "data": {"seconds": 60}}, {}, "collect"),
        (SPEC, {"type": "exit"}, {"timezone": "Europe/Zurich"}, "timezone"),
        (SPEC, {"type": "send_via", "data": {"connection": "chat", "fields": {}}}, {}, "send_via"),
        (SPEC | {"where": "n > 1"}, {"type": "exit"}, {}, "where"),
    ],
)
async def test_a_feature_is_not_published_while_a_process_that_does_not_know_it_is_connected(
    acme: Org, dsn: str, spec: dict[str, Any], step: dict[str, Any], settings: dict[str, Any], name: str
) -> None:
    nodes, edges = [{"id": "t1", "type": "app_event"}, step | {"id": "m1"}], GRAPH["edges"]
    graph = {"nodes": nodes, "edges": edges, "settings": settings}
    _, made = await acme.call("POST", "/automations", {"name": "n", "triggerSpec": spec, "graph": graph})
    with psycopg.connect(libpq_dsn(dsn), application_name=f"{APPLICATION_NAME}0007_former_turn_indexes"):
        status, body = await acme.call("POST", f"/automations/{made['id']}/publish")
    assert (status, body["error"].partition(" while")[0]) == (409, f"`{name}` cannot be published")


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"type": "app_event", "event": "first_deposit"}, "first_deposit"),
        ({"type": "app_event", "eventNames": ["b", "a"]}, "a, b"),
        ({"type": "app_event"}, "Every event"),
        ({"type": "app_event", "eventNames": ["deposit", "\x1b]0;x\x07", " ", "a\u202eb"]}, "deposit"),
        ({"type": "app_event", "event": " \n"}, "Every event"),
    ],
)
async def test_an_automation_is_created_without_a_name_as_in_the_contract(acme: Org, spec: Any, name: str) -> None:
    status, made = await acme.call("POST", "/automations", {"triggerSpec": spec, "graph": GRAPH})
    assert (status, made["name"]) == (201, name)


@pytest.mark.parametrize(
    ("spec", "events"), [({"type": "app_event", "event": "a"}, "events 'a'"), ({"type": "app_event"}, "events")]
)
async def test_publishing_warns_about_wallets_of_recent_events_that_can_never_sign_in(
    acme: Org, spec: Any, events: str
) -> None:
    for number, wallet in enumerate(["vitalik.eth", evm_wallet("ab")]):
        event = EVENT | {"contact": {"walletAddress": wallet}, "idempotencyKey": str(number)}
        await acme.call("POST", "/events", event, key=("live",))
    made = (await acme.call("POST", "/automations", DRAFT | {"triggerSpec": spec}))[1]
    warnings = (await acme.call("POST", f"/automations/{made['id']}/publish"))[1]["warnings"]
    message = f"is undeliverable to the wallets of 1 of the newest 2 {events}: only EVM wallets (0x…) can sign in"
    assert warnings == [*made["warnings"], {"level": "warning", "message": message, "nodeId": "m1"}]


async def test_the_impact_is_available_before_publishing(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    await acme.call("POST", "/events", EVENT, key=("live",))  # nothing is published yet, so it will end at once
    status, answer = await acme.call("GET", f"/automations/{made['id']}/impact")
    entered = {"version": None, "nodeId": None, "state": "pending", "entries": 1, "then": "no_published_version"}
    assert (status, answer) == (200, {"impact": {"entries": 1, "earlier": [entered]}})
    await acme.call("POST", f"/automations/{made['id']}/publish")
    await acme.call("POST", "/events", EVENT, key=("live",))
    _, answer = await acme.call("GET", f"/automations/{made['id']}/impact")
    assert [(entry["version"], entry["then"]) for entry in answer["impact"]["earlier"]] == [
        (1, "finishes"),
        (None, "no_published_version"),
    ]
    assert (await acme.call("GET", f"/automations/{UNKNOWN}/impact"))[0] == 404


async def test_publish_and_rollback_return_their_impact(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    here = f"/automations/{made['id']}"
    await acme.call("POST", "/events", EVENT, ("live",))
    unpublished = {"version": None, "nodeId": None, "state": "pending", "entries": 1, "then": "no_published_version"}
    _, first = await acme.call("POST", f"{here}/publish")
    assert first["impact"] == {"entries": 1, "earlier": [unpublished]}
    await acme.call("POST", "/events", EVENT, ("live",))
    await acme.call("PUT", here, {"triggerSpec": SPEC | {"event": "b"}, "revision": 2})
    of_first = unpublished | {"version": 1, "then": "finishes"}
    _, second = await acme.call("POST", f"{here}/publish")
    assert second["impact"] == {"entries": 2, "earlier": [of_first, unpublished]}
    _, third = await acme.call("POST", f"{here}/rollback", {"version": 1})
    assert (third["publishedVersion"], third["triggerSpec"], third["impact"]) == (3, SPEC, second["impact"])
    assert "impact" not in (await acme.call("GET", here))[1]


async def test_dead_letters_are_answered_by_cause(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    assert await acme.call("GET", "/dead-letters") == (200, {"deadLetters": []})
    assert await acme.call("GET", f"/dead-letters?automationId={made['id']}") == (200, {"deadLetters": []})
    assert (await acme.call("GET", f"/dead-letters?automationId={UNKNOWN}"))[0] == 404
    status, body = await acme.call("GET", "/dead-letters?automationId=x")
    assert (status, body["field"]) == (400, "automationId")


async def test_lists_are_by_name_and_newest_first(acme: Org) -> None:
    first, second = [(await acme.call("POST", "/automations", DRAFT | {"name": name}))[1] for name in ("a", "b")]
    await acme.call("POST", f"/automations/{first['id']}/archive")
    third = (await acme.call("POST", "/automations", DRAFT | {"name": "b"}))[1]
    listed = {
        query: [automation["id"] for automation in (await acme.call("GET", f"/automations{query}"))[1]["automations"]]
        for query in ("", "?name=b", "?name=a", "?archived=true", "?limit=1")
    }
    assert listed == {
        "": [third["id"], second["id"]],
        "?name=b": [third["id"], second["id"]],
        "?name=a": [],
        "?archived=true": [first["id"]],
        "?limit=1": [third["id"]],
    }


async def test_remarks_are_returned_as_warnings(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", {"name": "n", "triggerSpec": {"type": "app_event"}})
    assert [(warning["level"], warning.get("field")) for warning in made["warnings"]] == [
        ("error", None),
        ("warning", "triggerSpec"),
    ]


async def test_refusals_have_the_one_shape(acme: Org) -> None:
    status, body = await acme.call("POST", "/automations", {"name": "", "triggerSpec": {}})
    assert (status, body["field"], [problem["field"] for problem in body["errors"]]) == (
        *(400, "name", ["name", "triggerSpec.type"]),
    )
    _, made = await acme.call("POST", "/automations", {"name": "n", "triggerSpec": SPEC})
    here = f"/automations/{made['id']}"
    status, body = await acme.call("PUT", here, {"name": "m"})
    assert (status, body["field"]) == (400, "revision")
    status, body = await acme.call("PUT", here, {"name": "m", "revision": 7})
    assert (status, body["error"]) == (409, "revision: the automation is at revision 1 now, not 7")
    status, body = await acme.call("POST", f"{here}/publish")
    assert (status, body["error"]) == (400, "graph: the graph is empty: it needs a trigger node and at least one step")
    assert set(body) >= {"error", "requestId"}


async def test_a_bad_query_is_refused_naming_the_parameter(acme: Org) -> None:
    bad = {
        "/automations?limit=0": "limit",
        "/automations?limit=101": "limit",
        "/automations?archived=yes": "archived",
        "/automations?name=%00": "name",
        "/entries?state=odd": "state",
        "/entries?after=x": "after",
        "/entries?eventId=x": "eventId",
        "/entries?event=%00": "event",
    }
    answers = {path: await acme.call("GET", path) for path in bad}
    assert {path: (status, body["field"]) for path, (status, body) in answers.items()} == {
        path: (400, field) for path, field in bad.items()
    }


READING = [("GET", f"/automations/{UNKNOWN}{rest}") for rest in ("", "/versions", "/stats", "/impact", "/entries")]
WRITING = [("POST", f"/automations/{UNKNOWN}/{rest}") for rest in ("deactivate", "archive", "replay")]
EVERY = [
    *(("GET", "/automations"), ("POST", "/automations"), ("PUT", f"/automations/{UNKNOWN}")),
    *(*READING, *WRITING, ("POST", "/simulate"), ("GET", "/entries"), ("GET", f"/entries/{UNKNOWN}")),
    *(("GET", f"/dead-letters?automationId={UNKNOWN}"), ("POST", "/entries/replay")),
    *(("POST", f"/automations/{UNKNOWN}/{rest}") for rest in ("publish", "rollback", "activate", "simulate")),
    *(("POST", f"/automations/{UNKNOWN}/pause"), ("POST", f"/automations/{UNKNOWN}/resume")),
    ("GET", f"/automations/{UNKNOWN}/goal"),
    ("POST", f"/entries/{UNKNOWN}/replay"),
]


@pytest.mark.parametrize("kind", ["live", "test"])
async def test_a_live_key_cannot_write_automations(acme: Org, kind: str) -> None:
    answers = [await acme.call(method, path, {}, (kind,)) for method, path in EVERY]
    assert {status for status, _ in answers} == {403}
    assert "this route requires a workbench (wb_…) key" in [body["error"] for _, body in answers]


async def test_scopes_divide_reading_writing_and_publishing(acme: Org) -> None:
    async def allowed(scope: str) -> set[str]:
        answers = {
            f"{method} {path}": await acme.call(method, path, {}, ("workbench", scope)) for method, path in EVERY
        }
        return {name for name, (status, _) in answers.items() if status != 403}

    reading = {f"{method} {path}" for method, path in EVERY if method == "GET"}
    publishing = {f"POST /automations/{UNKNOWN}/{rest}" for rest in ("publish", "rollback")}
    activating = {f"POST /automations/{UNKNOWN}/{rest}" for rest in ("activate", "pause", "resume")}
    assert await allowed("sql:read") == set()
    assert await allowed("events:read") == reading
    assert await allowed("automations:publish") == reading | publishing | activating
    assert await allowed("automations:write") == {f"{method} {path}" for method, path in EVERY} - publishing


async def test_ids_of_another_organization_are_unknown(acme: Org, client: httpx.AsyncClient, dsn: str) -> None:
    other = await Org.create(client, dsn, "other")
    _, made = await acme.call("POST", "/automations", DRAFT)
    body = {"revision": 1, "version": 1, "event": EVENT}
    of_other_org, unknown = [], []
    for method, path in EVERY:
        if UNKNOWN in path:
            of_other_org.append(await other.call(method, path.replace(UNKNOWN, made["id"]), body))
            unknown.append(await other.call(method, path, body))
    for answers in (of_other_org, unknown):
        assert {status for status, _ in answers} == {404}
    assert [answer["error"] for _, answer in of_other_org] == [answer["error"] for _, answer in unknown]
    assert (await other.call("GET", "/automations/not-an-id"))[0] == 404
    assert await acme.call("GET", f"/automations/{made['id']}") == (200, made)


async def test_simulate_returns_a_trace(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    status, stored = await acme.call("POST", f"/automations/{made['id']}/simulate", {"event": EVENT})
    assert (status, stored["matched"], stored["state"], stored["messages"][0]["body"]) == (200, True, "completed", "1")
    now = {"now": "2030-01-01T00:00:00Z"}
    _, unsaved = await acme.call("POST", "/simulate", DRAFT | now | {"event": EVENT})
    _, again = await acme.call("POST", f"/automations/{made['id']}/simulate", now | {"event": EVENT})
    assert unsaved == again
    status, body = await acme.call("POST", "/simulate", DRAFT | {"event": {"event": "a"}})
    assert (status, body["field"]) == (400, "event.contact")


async def test_the_entry_of_a_posted_event_is_found(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    await acme.call("POST", "/events", EVENT | {"idempotencyKey": "k1"}, ("live",))
    _, body = await acme.call("GET", "/entries?idempotencyKey=k1&event=A")
    [entry] = body["entries"]
    assert (entry["automationId"], entry["state"], entry["event"]) == (made["id"], "pending", "a")
    assert (await acme.call("GET", f"/automations/{made['id']}/entries?state=pending"))[1]["entries"] == [entry]
    _, history = await acme.call("GET", f"/entries/{entry['id']}")
    assert (history["steps"], history["messages"], history["idempotencyKey"]) == ([], [], "k1")
    assert (await acme.call("POST", f"/entries/{entry['id']}/replay"))[0] == 409
    assert await acme.call("POST", f"/automations/{made['id']}/replay", {"cause": "no_wallet"}) == (
        200,
        {"replayed": 0},
    )
    for wish in ({}, {"automationId": made["id"], "cause": "no_wallet"}):
        assert await acme.call("POST", "/entries/replay", wish) == (200, {"replayed": 0})
    assert (await acme.call("POST", "/entries/replay", {"automationId": UNKNOWN}))[0] == 404
    for path in (f"/automations/{made['id']}/replay", "/entries/replay"):
        status, body = await acme.call("POST", path, {"state": "pending"})
        assert (status, body["field"]) == (400, "state")


async def test_changes_and_impact_are_shown(acme: Org) -> None:
    _, made = await acme.call("POST", "/automations", DRAFT)
    here = f"/automations/{made['id']}"
    await acme.call("PUT", here, {"name": "m", "revision": 1})
    await acme.call("POST", f"{here}/publish")
    status, answer = await acme.call("GET", f"{here}/changes?limit=2")
    assert status == 200
    assert [(change["action"], change["detail"]["revision"]) for change in answer["changes"]] == [
        ("automation.publish", 3),
        ("automation.update", 2),
    ]
    assert {change["by"] for change in answer["changes"]} == {answer["changes"][0]["keyId"]}  # a key without a name
    assert await acme.call("GET", f"{here}/impact") == (200, {"impact": {"entries": 0, "earlier": []}})
    for address in ("changes", "impact"):
        assert (await acme.call("GET", f"/automations/{UNKNOWN}/{address}"))[0] == 404


async def test_a_trial_may_be_at_another_time_and_returns_the_sender_of_emails(acme: Org) -> None:
    wait = {"id": "w1", "type": "wait_for_event", "data": {"event": "b", "timeoutSeconds": 3600, "filters": [PRO]}}
    edges = [{"source": "t1", "target": "w1"}, {"source": "w1", "sourceHandle": "matched", "target": "m1"}]
    body = {
        "triggerSpec": SPEC,
        "graph": {"nodes": [*GRAPH["nodes"], wait], "edges": edges},
        "event": EVENT,
        "now": "2026-11-20T10:00:00Z",
        "until": "2026-11-20T10:59:59Z",
        "events": [{"afterSeconds": 60, "event": {"event": "b", "contact": {"walletAddress": evm_wallet("AB")}}}],
    }
    status, tried = await acme.call("POST", "/simulate", body)
    assert (status, tried["state"], [step["outcome"] for step in tried["steps"]]) == (
        200,
        "waiting",
        ["entered", "waiting"],
    )
    assert tried["emailFrom"] == "workbench@localhost"
    [missed] = tried["missed"]
    assert (missed["nodeId"], missed["event"], missed["verdicts"][0]["present"]) == ("w1", "b", False)
    assert (await acme.call("POST", "/simulate", {**body, "until": "soon"}))[0] == 400


PRO = {"path": "plan", "operator": "eq", "value": "pro"}


async def test_automations_are_listed_page_by_page(acme: Org) -> None:
    made = [(await acme.call("POST", "/automations", DRAFT | {"name": name}))[1]["id"] for name in "abc"]
    first = (await acme.call("GET", "/automations?limit=2"))[1]["automations"]
    rest = (await acme.call("GET", f"/automations?limit=2&before={first[-1]['id']}"))[1]["automations"]
    assert [entry["id"] for entry in [*first, *rest]] == made[::-1]
    assert (await acme.call("GET", "/automations?before=x"))[0] == 400
