"""Publications by keys that may only propose them: receipts, what makes them stale, and approvals."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from api.automations.receipts import KINDS
from api.catalog.maintenance import delete_expired
from tests.routes.conftest import Org, Service
from tests.routes.test_chain import CANONICAL, CONTRACT, create_contact, logged
from workbench.language.codec import decode

AGENT = ("events:read", "sql:read", "automations:propose")
PERSON = ("events:read", "automations:write", "automations:publish")
SPEC = {"type": "app_event", "event": "deposit"}
TEXT = {"id": "m", "type": "send_inapp", "data": {"title": "Hi", "body": "n={{ n }}"}}


def graph(body: str = "n={{ n }}") -> dict[str, Any]:
    message = TEXT | {"data": {"title": "Hi", "body": body}}
    return {"nodes": [{"id": "t", "type": "app_event"}, message], "edges": [{"source": "t", "target": "m"}]}


DRAFT = {"name": "a", "triggerSpec": SPEC, "graph": graph()}


class Team:
    """An organization with a person and an agent, each with a key."""

    def __init__(self, org: Org) -> None:
        self.org = org

    async def call(self, scopes: tuple[str, ...], method: str, path: str, body: Any = None) -> tuple[int, Any]:
        key = await self.org.key("workbench", *scopes)
        answer = await self.org.call(method, path, {} if body is None else body, authorization=f"Bearer {key}")
        return answer.status_code, decode(answer.content)

    async def agent(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.call(AGENT, method, path, body)

    async def person(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return await self.call(PERSON, method, path, body)

    async def draft(self, **fields: Any) -> tuple[str, int]:
        status, made = await self.agent("POST", "/automations", DRAFT | fields)
        assert status == 201, made
        return f"/automations/{made['id']}", made["revision"]

    async def receipts(self, path: str, *kinds: str) -> list[dict[str, Any]]:
        made = [await self.agent("POST", f"{path}/receipts", {"kind": kind}) for kind in kinds or KINDS]
        assert {status for status, _ in made} == {200}, made
        return [receipt for _, receipt in made]


@pytest.fixture
async def team(service: Service) -> Team:
    return Team(await service.organization())


async def test_an_agent_publishes_with_receipts_of_the_draft_and_of_nothing_else(team: Team) -> None:
    for number in (1, 2, 3):
        event = {"event": "deposit", "contact": {"walletAddress": f"0x{number:040x}"}, "payload": {"n": 1}}
        assert (await team.org.post(event))[0] == 202
    path, _ = await team.draft()
    for count in range(3):
        if count:
            await team.receipts(path, KINDS[count - 1])
        status, answer = await team.agent("POST", f"{path}/publish")
        assert (status, ", ".join(KINDS[count:]) in answer["error"]) == (409, True)
    check, backtest, impact = await team.receipts(path)
    assert len({receipt["contentHash"] for receipt in (check, backtest, impact)}) == 1
    assert backtest["result"] == {
        "sampled": 3, "entered": 3, "refused": 0, "messages": {"inapp": 3}, "ends": {"completed": 3}
    }  # fmt: skip
    assert (impact["result"]["entries"], impact["result"]["active"]) == (0, True)
    status, published = await team.agent("POST", f"{path}/publish")
    assert (status, published["publishedVersion"]) == (200, 1)
    await team.agent("PUT", path, {"revision": published["revision"], "graph": graph("other")})
    assert (await team.agent("POST", f"{path}/publish"))[0] == 409
    await team.receipts(path)
    assert (await team.agent("POST", f"{path}/publish"))[1]["publishedVersion"] == 2


async def test_a_change_of_the_draft_a_snippet_or_the_live_version_makes_receipts_stale(team: Team) -> None:
    assert (await team.person("PUT", "/snippets/footer", {"body": "one"}))[0] == 200
    path, revision = await team.draft(graph=graph("{% include 'footer' %}"))
    await team.receipts(path)
    assert (await team.person("PUT", "/snippets/footer", {"body": "two"}))[0] == 200
    assert (await team.agent("POST", f"{path}/publish"))[0] == 409
    await team.receipts(path)
    assert (await team.person("PUT", "/snippets/footer", {"body": "one"}))[0] == 200
    assert (await team.agent("POST", f"{path}/publish"))[0] == 409  # the text of the first receipts, in another version
    plain, revision = await team.draft()
    await team.receipts(plain)
    _, edited = await team.agent("PUT", plain, {"revision": revision, "graph": graph("x")})
    assert (await team.agent("POST", f"{plain}/publish"))[0] == 409
    assert (await team.person("POST", f"{plain}/publish"))[0] == 200
    await team.agent("PUT", plain, {"revision": edited["revision"] + 1, "graph": graph()})
    assert (await team.agent("POST", f"{plain}/publish"))[
        0
    ] == 409  # about the first version, and this would be the second


async def test_receipts_expire_and_belong_to_one_key(team: Team) -> None:
    path, _ = await team.draft()
    await team.receipts(path)
    other = (*AGENT, "contacts:read")
    assert (await team.call(other, "POST", f"{path}/publish"))[0] == 409
    await team.org.service.rows("UPDATE receipts SET issued_at = issued_at - interval '61 minutes'")
    assert (await team.agent("POST", f"{path}/publish"))[0] == 409
    await team.receipts(path)
    assert (await team.agent("POST", f"{path}/publish"))[0] == 200


@pytest.mark.parametrize(("creates_contacts", "sampled"), [(False, 2), (True, 3)])
async def test_a_backtest_of_a_trigger_by_logs_plays_stored_logs_of_its_contract_and_event(
    team: Team, creates_contacts: bool, sampled: int
) -> None:
    contact = await create_contact(team.org)
    for block, owner, event in ((7, contact, "Transfer"), (8, contact, "Transfer"), (9, None, "Transfer")):
        await logged(team.org, owner, event, block, CANONICAL)
    await logged(team.org, contact, "Approval", 10, "Approval(address,address,uint256)")
    spec = {
        "type": "onchain_event",
        "chainId": 1,
        "contract": CONTRACT,
        "walletArg": "to",
        "signature": "Transfer(address indexed from, address indexed to, uint256 value)",
        "createContacts": creates_contacts,
        "filters": [{"path": "value", "operator": "greater_than", "value": 5}],
    }
    nodes = [{"id": "t", "type": "onchain_event"}, TEXT | {"data": {"title": "Hi", "body": "{{ value }}"}}]
    path, _ = await team.draft(triggerSpec=spec, graph={"nodes": nodes, "edges": [{"source": "t", "target": "m"}]})
    _, backtest, _ = await team.receipts(path)
    counts = [backtest["result"][name] for name in ("sampled", "entered", "refused")]
    assert (counts, backtest["result"]["messages"]) == ([sampled, sampled, 0], {"inapp": sampled})
    assert (await team.agent("POST", f"{path}/publish"))[1]["publishedVersion"] == 1


async def test_old_receipts_and_approvals_are_deleted(team: Team) -> None:
    assert (await team.person("PUT", "/organization", {"approvals": True}))[0] == 200
    path, _ = await team.draft()
    await team.receipts(path)
    assert (await team.agent("POST", f"{path}/publish"))[0] == 409
    database, now = team.org.service.services.system_database, team.org.service.services.clock.now()
    counts = []
    for days in (6, 8, 89, 91):
        await delete_expired(database, team.org.id, now + timedelta(days=days))
        counts.append([len(await team.org.rows("1", table, "1")) for table in ("receipts", "approvals")])
    assert counts == [[3, 1], [0, 1], [0, 1], [0, 0]]


async def test_a_draft_with_errors_gets_no_receipt(team: Team) -> None:
    path, _ = await team.draft(graph=graph("{% include 'nope' %}"))
    for kind in KINDS:
        assert (await team.agent("POST", f"{path}/receipts", {"kind": kind}))[0] == 400
    other = Team(await team.org.service.organization())
    assert (await other.agent("POST", f"{path}/receipts", {"kind": "check"}))[0] == 404


async def test_another_person_approves_exactly_what_was_proposed(team: Team) -> None:
    assert (await team.person("PUT", "/organization", {"approvals": True}))[1] == {"timezone": None, "approvals": True}
    path, revision = await team.draft()
    await team.receipts(path)
    for _ in range(2):
        status, answer = await team.agent("POST", f"{path}/publish")
        assert (status, "approval of another person" in answer["error"]) == (409, True)
    (approval,) = (await team.person("GET", "/approvals"))[1]["approvals"]
    assert (approval["automation"], approval["state"], len(approval["receipts"])) == ("a", "waiting", 3)
    here = f"/approvals/{approval['id']}"
    assert (await team.agent("POST", f"{here}/approve"))[0] == 403
    both = (*AGENT, *PERSON)
    await team.agent("PUT", path, {"revision": revision, "graph": graph("x")})
    assert (await team.person("POST", f"{here}/approve"))[0] == 409  # the draft was changed
    _, back = await team.call(both, "PUT", path, {"revision": revision + 1, "graph": graph()})
    assert (await team.call(both, "POST", f"{here}/approve"))[0] == 409  # this key wrote the draft
    assert (await team.person("POST", f"{here}/approve"))[1]["state"] == "approved"
    assert (await team.agent("POST", f"{path}/publish"))[1]["publishedVersion"] == 1
    assert (await team.person("POST", f"{here}/reject"))[0] == 409  # it is published
    await team.agent("PUT", path, {"revision": back["revision"] + 1, "graph": graph("y")})
    await team.receipts(path)
    await team.agent("POST", f"{path}/publish")
    waiting = (await team.person("GET", "/approvals"))[1]["approvals"][0]
    assert (await team.person("POST", f"/approvals/{waiting['id']}/reject"))[1]["state"] == "rejected"
    assert "rejected" in (await team.agent("POST", f"{path}/publish"))[1]["error"]


HANDLES = {"condition": "true", "wait_for_event": "matched"}


def drawn(kind: str, data: dict[str, Any]) -> dict[str, Any]:
    """Return a graph of one step, or of one that decides and adds a tag."""
    nodes = [{"id": "t", "type": "app_event"}, {"id": "s", "type": kind, "data": data}]
    edges = [{"source": "t", "target": "s"}]
    if kind in HANDLES:
        nodes.append({"id": "yes", "type": "add_tag", "data": {"tag": "yes"}})
        edges.append({"source": "s", "target": "yes", "sourceHandle": HANDLES[kind]})
    return {"nodes": nodes, "edges": edges}


@pytest.mark.parametrize(
    ("kind", "data", "reason"),
    [
        ("update_contact", {"attributes": {"seen": "{{ contact.email }}"}}, "step s prints the email address"),
        ("send_webhook", {"url": "https://new.example/x", "body": {"n": 1}}, "sends to a host that no published"),
        ("send_webhook", {"url": "https://new.example/x"}, "step s prints the email address; step s sends to a host"),
        ("send_email", {"subject": "Hi", "body": "<img src='https://x.example/{{ email }}'>"}, "prints the email"),
        ("condition", {"where": "contact.email == 'a@example.com'"}, "step s compares the email address"),
        ("wait_for_event", {"event": "x", "timeoutSeconds": 60, "where": "email > 'm'"}, "step s compares the email"),
    ],
)
async def test_a_draft_that_may_carry_addresses_out_always_needs_an_approval_which_can_be_withdrawn(
    team: Team, kind: str, data: dict[str, Any], reason: str
) -> None:
    path, _ = await team.draft(graph=drawn(kind, data))
    await team.receipts(path)
    status, answer = await team.agent("POST", f"{path}/publish")
    assert (status, reason in answer["error"]) == (409, True), answer
    (approval,) = (await team.person("GET", "/approvals"))[1]["approvals"]
    here = f"/approvals/{approval['id']}"
    assert (await team.person("POST", f"{here}/approve"))[1]["state"] == "approved"
    assert (await team.person("POST", f"{here}/reject"))[1]["state"] == "rejected"
    assert "rejected" in (await team.agent("POST", f"{path}/publish"))[1]["error"]
    actions = [action for (action,) in await team.org.rows("action", "audit_log")]
    assert actions == ["automation.create", "automation.propose", "automation.approved", "automation.rejected"]


async def test_a_trigger_and_a_goal_that_compare_addresses_need_an_approval_and_a_test_for_one_does_not(
    team: Team,
) -> None:
    compares, exists = (
        {"path": "email", "operator": operator, "value": "a@example.com"} for operator in ("equals", "exists")
    )
    goal = {"settings": {"goal": {"event": "x", "filters": [compares]}}}
    answers = []
    for filter_, settings in ((compares, {}), (exists, goal), (exists, {})):
        path, _ = await team.draft(triggerSpec=SPEC | {"filters": [filter_]}, graph=graph() | settings)
        await team.receipts(path)
        status, answer = await team.agent("POST", f"{path}/publish")
        answers.append((status, answer.get("error", "").rpartition("because ")[2]))
    assert answers == [
        (409, "the trigger compares the email address"),
        (409, "the goal compares the email address"),
        (200, ""),
    ]


async def test_what_an_agent_creates_starts_nothing_before_it_is_published(team: Team) -> None:
    assert (await team.agent("POST", "/automations", DRAFT | {"active": True}))[0] == 403
    path, revision = await team.draft()
    assert (await team.agent("GET", path))[1]["active"] is False
    assert (await team.agent("PUT", path, {"revision": revision, "triggerSpec": SPEC | {"event": "x"}}))[0] == 200
    await team.receipts(path)
    published = (await team.agent("POST", f"{path}/publish"))[1]
    assert (published["active"], published["publishedVersion"]) == (True, 1)
    made = (await team.person("POST", "/automations", DRAFT))[1]
    edit = {"revision": made["revision"], "triggerSpec": SPEC | {"event": "x"}}
    assert (await team.agent("PUT", f"/automations/{made['id']}", edit))[0] == 409  # its trigger is live
    assert (await team.agent("PUT", f"/automations/{made['id']}", edit | {"triggerSpec": None}))[0] == 200


async def test_a_key_that_reads_no_contacts_gets_no_backtest(team: Team) -> None:
    path, _ = await team.draft()
    statuses = [
        (await team.call(scopes, "POST", f"{path}/receipts", {"kind": "backtest"}))[0]
        for scopes in (AGENT, ("events:read", "automations:propose"))
    ]
    assert statuses == [200, 409]


async def test_an_edit_that_races_with_a_publication_is_not_published_without_receipts(team: Team) -> None:
    for number in range(5):
        path, revision = await team.draft()
        await team.receipts(path)
        edit = {"revision": revision, "graph": graph(f"unseen {number}")}
        await asyncio.gather(
            team.agent("POST", f"{path}/publish"), team.agent("PUT", path, edit), team.agent("POST", f"{path}/publish")
        )
    rows = await team.org.rows("graph::text", "automation_versions", "automation_id")
    assert [text for (text,) in rows if "unseen" in str(text)] == []


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "{here}/publish", {"move": "safe"}),
        ("POST", "{here}/rollback", {"version": 1}),
        ("POST", "{here}/activate", {}),
        ("POST", "{here}/deactivate", {}),
        ("POST", "{here}/archive", {}),
        ("POST", "{here}/broadcasts", {"all": True}),
        ("POST", "{here}/test", {"event": {"event": "deposit"}, "to": {"email": "a@example.com"}}),
        ("PUT", "{here}", {"revision": 1, "active": True}),
        ("PUT", "/snippets/footer", {"body": "x"}),
        ("PUT", "/organization", {"approvals": False}),
        ("POST", "/segments", {"name": "s", "sql": "SELECT id AS contact_id FROM contacts"}),
        ("POST", "/keys", {"kind": "workbench", "scopes": ["automations:publish"]}),
        ("POST", "/stop", {}),
        ("POST", "/resume", {}),
    ],
)
async def test_an_agent_does_nothing_else_that_takes_effect(team: Team, method: str, path: str, body: Any) -> None:
    here, _ = await team.draft()
    assert (await team.agent(method, path.format(here=here), body))[0] == 403
