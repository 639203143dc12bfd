"""The automations that are measured, as a user would post them."""

from itertools import pairwise
from typing import Any

_EVENT = "deposit"
_MESSAGE = {"title": "Thank you", "body": "Your deposit of {{ amountUsd }} {{ asset }} is here."}


def thanks() -> dict[str, Any]:
    """Return an automation of two steps: it tags a contact that deposits and sends a message."""
    nodes = [
        _node("start", "app_event", event=_EVENT),
        _node("tag", "add_tag", tag="depositor"),
        _node("message", "send_inapp", recipientMode="triggering_profile", **_MESSAGE),
        _node("done", "exit"),
    ]
    return _automation(nodes, [("start", None), ("tag", None), ("message", None), ("done", None)])


def thanks_for_much() -> dict[str, Any]:
    """Return the same automation with a condition before the steps: five nodes."""
    nodes = thanks()["graph"]["nodes"]
    much = _node("much", "condition", filters=[{"path": "amountUsd", "operator": "exists"}])
    nodes.insert(1, much)
    return _automation(nodes, [("start", None), ("much", "true"), ("tag", None), ("message", None), ("done", None)])


def _node(node_id: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"id": node_id, "type": kind, "data": {"actionType": kind, **data}}


def _automation(nodes: list[dict[str, Any]], way: list[tuple[str, str | None]]) -> dict[str, Any]:
    """Return an automation whose nodes form a chain; each node comes with the handle by which entries leave it."""
    edges = [
        {"id": f"{source}-{target}", "source": source, "target": target, "sourceHandle": handle}
        for (source, handle), (target, _) in pairwise(way)
    ]
    spec = {"type": "app_event", "event": _EVENT}
    return {"name": "thanks", "triggerSpec": spec, "graph": {"nodes": nodes, "edges": edges}}
