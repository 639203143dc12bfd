"""The automations of a run: what each matches, once as a trigger for the service and once as a rule for the checker."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import msgspec

from tests.torture.clients import PATIENCE
from tests.torture.log import Log, Sent, Switched, now_us


class Rule(msgspec.Struct, frozen=True):
    """An automation by name: its trigger, and which events it wants. `switched`: it is switched on and off all the time."""

    name: str
    trigger: dict[str, Any]
    wants: Callable[[Sent], bool]
    switched: bool = False


class Automation(msgspec.Struct, frozen=True):
    """A rule as it was published for an organization."""

    org: str
    id: str
    rule: Rule


def _payload(sent: Sent) -> dict[str, Any]:
    return sent.body["payload"]  # type: ignore[no-any-return]


def _named(sent: Sent, *names: str) -> bool:
    return sent.body["event"].lower() in names


RULES = (
    Rule("everything", {}, lambda sent: True),
    Rule(
        "euros",
        {
            "eventNames": ["Deposit", "withdrawal"],
            "filters": [{"path": "currency", "operator": "eq", "value": "EUR"}],
        },
        lambda sent: _named(sent, "deposit", "withdrawal") and _payload(sent)["currency"] == "EUR",
    ),
    Rule(
        "noted",
        {
            "filters": [
                {"path": "note", "operator": "contains", "value": "grüße"},
                {"path": "lines", "operator": "exists"},
            ]
        },
        lambda sent: "note" in _payload(sent) and "lines" in _payload(sent),
    ),
    Rule("switched", {"event": "signup"}, lambda sent: _named(sent, "signup"), switched=True),
)


async def publish(url: str, org: str, key: str) -> list[Automation]:
    """Publish every rule for an organization; each tags the contact with its name."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=30) as client:
        return [Automation(org, await _publish(client, rule), rule) for rule in RULES]


async def _publish(client: httpx.AsyncClient, rule: Rule) -> str:
    nodes = [{"id": "t", "type": "app_event", "data": {}}, {"id": "x", "type": "add_tag", "data": {"tag": rule.name}}]
    graph = {"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "x"}]}
    body = {"name": rule.name, "triggerSpec": {"type": "app_event", **rule.trigger}, "graph": graph}
    made = (await client.post("/automations", json=body)).raise_for_status().json()
    (await client.post(f"/automations/{made['id']}/publish", json={})).raise_for_status()
    return str(made["id"])


async def switch(urls: list[str], key: str, automation: Automation, chance: Random, log: Log) -> None:
    """Switch an automation off and on until cancelled, through any API; note what was answered with success."""
    async with httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE) as client:
        for active in itertools.cycle((False, True)):
            await asyncio.sleep(chance.uniform(1, 3))
            url, verb = chance.choice(urls), "activate" if active else "deactivate"
            began = now_us()
            with contextlib.suppress(httpx.TransportError, httpx.HTTPStatusError):
                response = await client.post(f"{url}/api/v1/automations/{automation.id}/{verb}", json={})
                response.raise_for_status()
                log.switched.append(Switched(automation.id, active, began, now_us()))
