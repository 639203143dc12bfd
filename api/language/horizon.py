"""How long after it entered what a contact does is put down to an automation: as long as that can wait, and a week."""

from datetime import timedelta

from api.language.action import Delay, WaitForEvent
from api.language.graph import Graph

AFTERWARDS = timedelta(days=7)


def horizon(graph: Graph) -> timedelta:
    """Return the longest that an entry of a published graph can wait by its own steps, and seven days."""
    return longest_wait(graph) + AFTERWARDS


def longest_wait(graph: Graph) -> timedelta:
    """Return the sum of delays and timeouts on the way that has most of them. A loop, which only drafts have, counts once."""
    ahead: dict[str, list[str]] = {}
    for edge in graph.edges:
        ahead.setdefault(edge.source, []).append(edge.target)
    longest: dict[str, timedelta] = {}
    for node_id in _last_first(graph, ahead):
        after = max((longest.get(each, timedelta()) for each in ahead.get(node_id, ())), default=timedelta())
        longest[node_id] = after + _waits(graph, node_id)
    return longest.get(graph.start.id, timedelta()) if graph.start is not None else timedelta()


def _waits(graph: Graph, node_id: str) -> timedelta:
    match graph.by_id[node_id].action:
        case Delay(wait=wait):
            return wait
        case WaitForEvent(timeout=timeout):
            return timeout
        case _:
            return timedelta()


def _last_first(graph: Graph, ahead: dict[str, list[str]]) -> list[str]:
    """Return the nodes that the start leads to, each after all that it leads to; no recursion, for a graph may be long."""
    if graph.start is None:
        return []
    order, seen = [], {graph.start.id}
    stack = [(graph.start.id, iter(ahead.get(graph.start.id, ())))]
    while stack:
        node_id, targets = stack[-1]
        following = next((each for each in targets if each in graph.by_id and each not in seen), None)
        if following is None:
            order.append(node_id)
            stack.pop()
        else:
            seen.add(following)
            stack.append((following, iter(ahead.get(following, ()))))
    return order
