"""The automations of a run.

Each states what it matches twice: as a trigger for the service and as a predicate for the checker.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import httpx
import msgspec

from tests.torture.callers import Caller, Callers
from tests.torture.leaks import FORMULAS, OBEYED
from tests.torture.log import ActivationChange, Log, PublishedVersion, SentEvent, now_us
from tests.torture.traffic import TICK

Graph = dict[str, Any]

GUARDED = ("welcome", "welcome by webhook")
"""The automations that send a message only to a contact without a tag, and then add the tag."""

FORMULA = FORMULAS[0]
"""The name of an automation: names may be formulas, but have no control characters."""

COUNTED, COUNTER = "count", "ticks"
"""The automation that counts its entries in an attribute, and the attribute."""


class Lifecycle(StrEnum):
    """How an automation is changed during the run."""

    STAYS = "stays"
    SWITCHED = "switched"  # repeatedly deactivated and activated
    EDITED = "edited"  # its two graphs are published in turn
    RETIRED = "retired"  # archived halfway through the run
    UNPUBLISHED = "unpublished"  # active, but never published


class Rule(msgspec.Struct, frozen=True):
    """An automation: its trigger, the predicate of matching events, and its graphs.

    Only an edited automation has two graphs.
    """

    name: str
    trigger: dict[str, Any]
    wants: Callable[[SentEvent], bool]
    graphs: tuple[Graph, ...]
    lifecycle: Lifecycle = Lifecycle.STAYS

    @property
    def is_stopped(self) -> bool:
        """Whether the automation is inactive at some time of the run."""
        return self.lifecycle in (Lifecycle.SWITCHED, Lifecycle.RETIRED)


class Automation(msgspec.Struct, frozen=True):
    """A rule published for an organization."""

    org: str
    id: str
    rule: Rule


def _payload(sent: SentEvent) -> dict[str, Any]:
    return sent.body["payload"]  # type: ignore[no-any-return]


def _named(sent: SentEvent, *names: str) -> bool:
    return sent.body["event"].lower() in names


def _has_note(sent: SentEvent, name: str) -> bool:
    return _named(sent, name) and "note" in _payload(sent)


def _has_lines(sent: SentEvent, name: str) -> bool:
    return _named(sent, name) and "lines" in _payload(sent)


def _requires(event: str, path: str) -> dict[str, Any]:
    return {"event": event, "filters": [{"path": path, "operator": "exists"}]}


def _graph(nodes: dict[str, tuple[str, dict[str, Any]]], *edges: str) -> Graph:
    """Build a graph; an edge is written `from>to` or `from:handle>to`."""
    drawn = []
    for index, edge in enumerate(edges):
        left, _, target = edge.partition(">")
        source, _, handle = left.partition(":")
        drawn.append({"id": f"e{index}", "source": source, "target": target, "sourceHandle": handle or None})
    return {
        "nodes": [{"id": node_id, "type": kind, "data": data} for node_id, (kind, data) in nodes.items()],
        "edges": drawn,
    }


_TRIGGER = ("app_event", dict[str, Any]())
_PLAN = "{{ contact.plan | default('none') }}"
_BODY = {"n": "{{ n }}", "contact": "{{ contactId }}", "plan": _PLAN, "canary": "{{ canary }}", "remark": OBEYED[0]}
_MAIL = (
    "send_email",
    {"subject": "About {{ n }}", "body": f"Dear {{{{ contactId }}}}, your plan is {_PLAN}. {{{{ canary }}}}"},
)
_INAPP = ("send_inapp", {"title": "About {{ n }}", "body": "{{ event }} {{ canary }} {{ remark | default('') }}"})
_HAS_EMAIL = ("condition", {"filters": [{"path": "email", "operator": "exists"}]})
_HAS_WALLET = ("condition", {"filters": [{"path": "walletAddress", "operator": "exists"}]})
_MOMENT = ("delay", {"seconds": 1})
_COUNT = ("update_contact", {"attributes": {COUNTER: f"{{{{ contact.{COUNTER} | default(0) + 1 }}}}"}})


def _tag(name: str) -> tuple[str, dict[str, Any]]:
    return ("add_tag", {"tag": name})


def _tagging(name: str) -> tuple[Graph]:
    return (_graph({"t": _TRIGGER, "x": _tag(name)}, "t>x"),)


def rules(url: str) -> tuple[Rule, ...]:
    """Return the rules. Webhooks go to paths under `url`, one path per event."""
    hook = ("send_webhook", {"url": url + "/{{ n }}", "body": _BODY})
    return (
        Rule("everything", {}, lambda sent: True, _tagging("everything")),
        Rule(
            "euros",
            {
                "eventNames": ["Deposit", "withdrawal"],
                "filters": [{"path": "currency", "operator": "eq", "value": "EUR"}],
            },
            lambda sent: _named(sent, "deposit", "withdrawal") and _payload(sent)["currency"] == "EUR",
            _tagging("euros"),
        ),
        Rule(
            FORMULA,
            {
                "filters": [
                    {"path": "note", "operator": "contains", "value": "grüße"},
                    {"path": "lines", "operator": "exists"},
                ]
            },
            lambda sent: "note" in _payload(sent) and "lines" in _payload(sent),
            _tagging("noted"),
        ),
        Rule(
            "posted",
            _requires("signup", "lines"),
            lambda sent: _has_lines(sent, "signup"),
            (_graph({"t": _TRIGGER, "h": hook, "x": _tag("posted")}, "t>h", "h>x"),),
        ),
        Rule("mailed", _requires("deposit", "lines"), lambda sent: _has_lines(sent, "deposit"), (_mailed(),)),
        Rule("patient", _requires("withdrawal", "note"), lambda sent: _has_note(sent, "withdrawal"), (_patient(hook),)),
        Rule(
            "switched",
            _requires("signup", "lines"),
            lambda sent: _has_lines(sent, "signup"),
            (_graph({"t": _TRIGGER, "d": _MOMENT, "h": hook, "x": _tag("switched")}, "t>d", "d>h", "h>x"),),
            Lifecycle.SWITCHED,
        ),
        Rule(
            "retired",
            _requires("page.view", "note"),
            lambda sent: _has_note(sent, "page.view"),
            (_graph({"t": _TRIGGER, "d": _MOMENT, "i": _HAS_WALLET, "m": _INAPP}, "t>d", "d>i", "i:true>m"),),
            Lifecycle.RETIRED,
        ),
        Rule(
            "notified",
            _requires("signup", "note"),
            lambda sent: _has_note(sent, "signup"),
            (_graph({"t": _TRIGGER, "i": _HAS_WALLET, "m": _INAPP}, "t>i", "i:true>m"),),
        ),
        Rule(
            "edited",
            _requires("page.view", "lines"),
            lambda sent: _has_lines(sent, "page.view"),
            _edited(),
            Lifecycle.EDITED,
        ),
        *(
            Rule(name, {"event": TICK}, lambda sent: _named(sent, TICK), (_guarded(message, name),))
            for name, message in zip(GUARDED, (_INAPP, hook), strict=True)
        ),
        Rule(COUNTED, {"event": TICK}, lambda sent: _named(sent, TICK), (_graph({"t": _TRIGGER, "u": _COUNT}, "t>u"),)),
        Rule(
            "unpublished",
            _requires("withdrawal", "lines"),
            lambda sent: _has_lines(sent, "withdrawal"),
            (_graph({"t": _TRIGGER, "h": hook}, "t>h"),),
            Lifecycle.UNPUBLISHED,
        ),
    )


def _guarded(message: tuple[str, dict[str, Any]], tag: str) -> Graph:
    is_tagged = ("condition", {"filters": [{"path": "contact.tags", "operator": "contains", "value": tag}]})
    nodes = {"t": _TRIGGER, "c": is_tagged, "m": message, "x": _tag(tag)}
    return _graph(nodes, "t>c", "c:false>m", "m>x")


def _mailed() -> Graph:
    nodes = {"t": _TRIGGER, "i": _HAS_EMAIL, "m": _MAIL, "x": _tag("mailed"), "end": ("exit", dict[str, Any]())}
    return _graph(nodes, "t>i", "i:true>m", "m>x", "i:false>end")


def _patient(hook: tuple[str, dict[str, Any]]) -> Graph:
    """Wait a second, then for a deposit.

    A contact that deposits gets an in-app message; on timeout a webhook is sent.
    """
    nodes = {
        "t": _TRIGGER,
        "d": _MOMENT,
        "w": ("wait_for_event", {"event": "deposit", "timeoutSeconds": 5}),
        "i": _HAS_WALLET,
        "m": _INAPP,
        "x": _tag("came"),
        "h": hook,
    }
    return _graph(nodes, "t>d", "d>w", "w:matched>i", "i:true>m", "i:false>x", "m>x", "w:timeout>h")


def _edited() -> tuple[Graph, Graph]:
    """Return two graphs without a common node id."""
    before = {"t": _TRIGGER, "d": _MOMENT, "x": _tag("before")}
    later = {"t2": _TRIGGER, "x2": _tag("early"), "d2": _MOMENT, "y2": _tag("later")}
    return _graph(before, "t>d", "d>x"), _graph(later, "t2>x2", "x2>d2", "d2>y2")


async def publish(url: str, sink: str, org: str, key: str) -> list[Automation]:
    """Publish every rule as an automation of an organization. Webhooks go to paths under `sink`."""
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", headers=headers, timeout=30) as client:
        return [Automation(org, await _publish(client, rule), rule) for rule in rules(sink)]


async def _publish(client: httpx.AsyncClient, rule: Rule) -> str:
    """Publish the graphs of a rule in order, as versions 1 and 2."""
    first, *others = rule.graphs
    body = {"name": rule.name, "triggerSpec": {"type": "app_event", **rule.trigger}, "graph": first}
    made = (await client.post("/automations", json=body)).raise_for_status().json()
    path, revision = f"/automations/{made['id']}", made["revision"]
    if rule.lifecycle is not Lifecycle.UNPUBLISHED:
        revision = (await client.post(f"{path}/publish", json={})).raise_for_status().json()["revision"]
    for graph in others:
        (await client.put(path, json={"revision": revision, "graph": graph})).raise_for_status()
        (await client.post(f"{path}/publish", json={})).raise_for_status()
    return str(made["id"])


class Author:
    """Changes automations through any API process during the faults, and logs the changes that succeeded."""

    def __init__(self, callers: Callers, log: Log) -> None:
        self._callers = callers
        self._log = log

    def coroutines(self, automation: Automation, middle: float) -> list[Coroutine[Any, Any, None]]:
        """Return the coroutines that change an automation until cancelled.

        `middle` is the number of seconds until a retired one is archived.
        """
        caller = self._callers.caller(automation.org, automation.rule.name)
        match automation.rule.lifecycle:
            case Lifecycle.SWITCHED:
                return [self._switch(caller, automation), self._replay(caller)]
            case Lifecycle.EDITED:
                return [self._edit(caller, automation)]
            case Lifecycle.RETIRED:
                return [self._retire(caller, automation, middle)]
            case Lifecycle.STAYS | Lifecycle.UNPUBLISHED:
                return []

    async def _switch(self, caller: Caller, automation: Automation) -> None:
        for active in itertools.cycle((False, True)):
            await asyncio.sleep(caller.chance.uniform(1, 3))
            await self._stop(caller, automation, "activate" if active else "deactivate")

    async def _retire(self, caller: Caller, automation: Automation, middle: float) -> None:
        await asyncio.sleep(middle)
        while not await self._stop(caller, automation, "archive"):
            await asyncio.sleep(0.2)

    async def _edit(self, caller: Caller, automation: Automation) -> None:
        for version in itertools.cycle((1, 2)):
            await asyncio.sleep(caller.chance.uniform(1, 3))
            if await _post(caller, f"/automations/{automation.id}/rollback", {"version": version}):
                self._log.published.append(PublishedVersion(automation.id, now_us()))

    async def _replay(self, caller: Caller) -> None:
        """Replay the dead entries of an organization from time to time."""
        while True:
            await asyncio.sleep(caller.chance.uniform(5, 10))
            await _post(caller, "/entries/replay", {"state": "dead"})

    async def _stop(self, caller: Caller, automation: Automation, verb: str) -> bool:
        began = now_us()
        done = await _post(caller, f"/automations/{automation.id}/{verb}", {})
        if done:
            self._log.switched.append(ActivationChange(automation.id, verb == "activate", began, now_us()))
        return done


async def _post(caller: Caller, path: str, body: dict[str, Any]) -> bool:
    """Send a request to any API process. Returns whether it succeeded."""
    return await caller.request("POST", path, "automations", json=body) is not None
