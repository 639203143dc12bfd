"""The main job of the product: an automation is written, published, and started by an event."""

from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from api.clock import token
from api.embedded import Server
from tests.conftest import clone
from tests.inapp.wallet import evm_wallet
from tests.installation import Api, Installation, until

GRAPH: dict[str, Any] = {
    "nodes": [
        {"id": "t", "type": "app_event", "data": {"actionType": "app_event", "event": "deposit"}},
        {
            "id": "big",
            "type": "condition",
            "data": {"filters": [{"path": "contact.plan", "operator": "eq", "value": "pro"}]},
        },
        {"id": "tag", "type": "add_tag", "data": {"tag": "vip"}},
        {
            "id": "m",
            "type": "send_inapp",
            "data": {
                "actionType": "send_inapp",
                "recipientMode": "triggering_profile",
                "title": "Thank you",
                "body": "{{ amountUsd }} {{ asset }} arrived",
            },
        },
    ],
    "edges": [
        {"id": "e1", "source": "t", "target": "big"},
        {"id": "e2", "source": "big", "target": "tag", "sourceHandle": "true"},
        {"id": "e3", "source": "tag", "target": "m"},
        {"id": "e4", "source": "big", "target": "m", "sourceHandle": "false"},
    ],
}
AUTOMATION = {"name": "Welcome", "triggerSpec": {"type": "app_event", "event": "Deposit"}, "graph": GRAPH}


class Service(msgspec.Struct, frozen=True):
    """Two APIs and two engines on one database, for all tests that kill none of them."""

    installation: Installation
    apis: tuple[Api, Api]

    async def organization(self) -> dict[str, str]:
        """Create an organization; return its keys by kind."""
        return await self.installation.organization(f"org-{token(4).hex()}")


@pytest.fixture(scope="module")
def service(postgres: Server, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with clone(postgres, template) as dsn:
        installation = Installation(dsn, tmp_path_factory.mktemp("logs"))
        for _ in range(2):
            installation.start_engine(WORKBENCH_RETRY_DELAYS="0.05,0.05")
        yield Service(installation, (installation.start_api(), installation.start_api()))
        installation.stop()


def deposit(key: str, **contact: str) -> dict[str, Any]:
    return {
        "event": "deposit",
        "contact": contact or {"walletAddress": evm_wallet("ABC"), "email": "ann@example.com"},
        "attributes": {"plan": "pro"},
        "payload": {"amountUsd": 250.50, "asset": "USDC"},
        "idempotencyKey": key,
    }


def published(client: httpx.Client, **changes: Any) -> str:
    made = client.post("/automations", json={**AUTOMATION, **changes})
    assert made.status_code == 201, made.text
    answer = client.post(f"/automations/{made.json()['id']}/publish", json={})
    assert answer.status_code == 200, answer.text
    return str(made.json()["id"])


def finished(client: httpx.Client, automation_id: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait until `count` entries have ended; return them."""
    ended = {"completed", "exited", "cancelled", "dead"}

    def entries() -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = client.get(f"/automations/{automation_id}/entries?limit=200").json()["entries"]
        return [entry for entry in entries if entry["state"] in ended]

    until(lambda: len(entries()) >= count, f"{count} entries end")
    return entries()


async def test_an_event_runs_a_published_automation_as_simulated(service: Service) -> None:
    keys, api = await service.organization(), service.apis[0]
    with api.client(keys["workbench"]) as workbench, api.client(keys["live"]) as backend:
        automation_id = published(workbench)
        simulated = workbench.post(f"/automations/{automation_id}/simulate", json={"event": deposit("d1")}).json()
        sent = backend.post("/events", json=deposit("d1"))
        assert (sent.status_code, sent.json()) == (
            202,
            {"accepted": True, "deduplicated": False, "idempotencyKey": "d1"},
        )
        (entry,) = finished(workbench, automation_id)
        entry = workbench.get(f"/entries/{entry['id']}").json()
    assert [step_summary(step) for step in entry["steps"]] == [step_summary(step) for step in simulated["steps"]]
    assert (
        (entry["state"], entry["outcome"]) == (simulated["state"], simulated["outcome"]) == ("completed", "completed")
    )
    (message,) = entry["messages"]
    assert (message["walletAddress"], message["body"]) == (evm_wallet("abc"), "250.5 USDC arrived")


def step_summary(step: dict[str, Any]) -> tuple[object, ...]:
    return (step["nodeId"], step["kind"], step["outcome"], step.get("handle"), step.get("attempt", 1))


async def test_two_apis_and_two_engines_behave_as_one(service: Service) -> None:
    keys, apis = await service.organization(), service.apis
    with apis[0].client(keys["workbench"]) as workbench:
        automation_id = published(workbench)
        for number in range(60):
            with apis[number % 2].client(keys["live"]) as backend:
                assert backend.post("/events", json=deposit(f"d{number // 2}")).status_code == 202
        entries = finished(workbench, automation_id, 30)
        counted = workbench.post("/sql", json={"sql": "SELECT count(*)::int AS n FROM messages"}).json()["rows"]
    assert {entry["state"] for entry in entries} == {"completed"}
    assert (len(entries), counted) == (30, [[30]])


async def test_an_event_after_the_response_of_publish_uses_the_new_version_on_every_instance(service: Service) -> None:
    keys, (first, second) = await service.organization(), service.apis
    with first.client(keys["workbench"]) as workbench, second.client(keys["live"]) as backend:
        assert backend.post("/events", json=deposit("before")).status_code == 202
        published(workbench)
        dry = backend.post("/events", json={**deposit("after"), "test": True}).json()
        workbench_dry = backend.post("/events", json={**deposit("other"), "event": "other", "test": True}).json()
    assert (dry["matchedAutomations"], workbench_dry["matchedAutomations"]) == (1, 0)


async def test_an_active_automation_without_a_published_version_sends_nothing(service: Service) -> None:
    keys, api = await service.organization(), service.apis[0]
    with api.client(keys["workbench"]) as workbench, api.client(keys["live"]) as backend:
        automation_id = workbench.post("/automations", json={**AUTOMATION, "active": True}).json()["id"]
        backend.post("/events", json=deposit("d1"))
        (entry,) = finished(workbench, automation_id)
    assert (entry["state"], entry["outcome"]) == ("completed", "no_published_version")


async def test_an_entry_without_a_wallet_dies_after_its_attempts_and_a_replay_delivers_later(service: Service) -> None:
    keys, api = await service.organization(), service.apis[0]
    with api.client(keys["workbench"]) as workbench, api.client(keys["live"]) as backend:
        automation_id = published(workbench)
        backend.post("/events", json=deposit("d1", email="bob@example.com"))
        (entry,) = finished(workbench, automation_id)
        assert (entry["state"], entry["outcome"], entry["attempts"]) == ("dead", "no_wallet", 3)
        backend.post(
            "/events",
            json={**deposit("d2", email="bob@example.com", walletAddress=evm_wallet("B0B")), "event": "linked"},
        )
        assert workbench.post(f"/entries/{entry['id']}/replay", json={}).status_code == 200
        until(lambda: workbench.get(f"/entries/{entry['id']}").json()["state"] == "completed", "the replay completes")
        replayed = workbench.get(f"/entries/{entry['id']}").json()
    assert [step["outcome"] for step in replayed["steps"]][-4:] == ["failed", "failed", "failed", "sent"]
    assert [message["walletAddress"] for message in replayed["messages"]] == [evm_wallet("b0b")]


@pytest.mark.parametrize("process", ["api", "engine"])
async def test_a_killed_process_loses_and_repeats_nothing(installation: Installation, process: str) -> None:
    keys = await installation.organization()
    api = installation.start_api()
    engine = installation.start_engine()
    with api.client(keys["workbench"]) as workbench, api.client(keys["live"]) as backend:
        automation_id = published(workbench)
        for number in range(40):
            backend.post("/events", json=deposit(f"d{number}"))
    (api.process if process == "api" else engine).kill()
    again = installation.start_api()
    installation.start_engine()
    with again.client(keys["workbench"]) as workbench, again.client(keys["live"]) as backend:
        answers = [backend.post("/events", json=deposit(f"d{number}")).json() for number in range(50)]
        assert [answer["deduplicated"] for answer in answers] == [True] * 40 + [False] * 10
        entries = finished(workbench, automation_id, 50)
    assert (len(entries), {entry["state"] for entry in entries}) == (50, {"completed"})
