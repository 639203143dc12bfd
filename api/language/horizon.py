"""How long an entry takes at most, and how long after it entered what a contact does is put down to an automation.

What is counted is what a graph can make an entry wait for by itself: delays, waits for events, quiet hours, and tries of what fails by
the schedules of retries. What nobody can know beforehand is not: a pause, an engine that is behind, a receiver that asks to be
left alone for longer, a contact that changes its time zone while it waits for the end of its quiet hours.
"""

from datetime import time, timedelta

from api.language.action import Delay, SendEmail, SendInapp, SendWebhook, WaitForEvent
from api.language.graph import Graph
from api.language.moves import TABLE
from api.language.retry import DEFAULT_POLICY, JITTER, Channel, RetryPolicy
from api.language.settings import QuietHours

AFTERWARDS = timedelta(days=7)
SET_BACK = timedelta(hours=7)  # the most that the clocks of a zone were set back at once since 1970

_DAY = timedelta(days=1)


def horizon(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return the longest that an entry of a published graph takes by itself, and seven days."""
    return longest_wait(graph, retries) + AFTERWARDS


def longest_wait(graph: Graph, retries: RetryPolicy = DEFAULT_POLICY) -> timedelta:
    """Return the sum of what the steps wait at most, on the way that has most of it. A loop, which only drafts have, counts once."""
    ahead: dict[str, list[str]] = {}
    for edge in graph.edges:
        ahead.setdefault(edge.source, []).append(edge.target)
    longest: dict[str, timedelta] = {}
    for node_id in _last_first(graph, ahead):
        after = max((longest.get(each, timedelta()) for each in ahead.get(node_id, ())), default=timedelta())
        longest[node_id] = after + _waits(graph, node_id, retries)
    return longest.get(graph.start.id, timedelta()) if graph.start is not None else timedelta()


def _waits(graph: Graph, node_id: str, retries: RetryPolicy) -> timedelta:
    action = graph.by_id[node_id].action
    match action:
        case Delay(wait=wait):
            return wait
        case WaitForEvent(timeout=timeout):
            return timeout
        case SendInapp() | SendEmail():
            channel = TABLE[type(action)].channel
            return _tried(retries, channel) + retries.most_attempts(channel) * _quiet(graph.settings.quiet_hours)
        case SendWebhook():
            return _tried(retries, "webhook")
        case _:
            return timedelta()


def _tried(retries: RetryPolicy, channel: Channel) -> timedelta:
    """Return the time between the first try and the last."""
    return timedelta(seconds=sum(retries.delays(channel)) * (1 + JITTER))


def _quiet(hours: QuietHours | None) -> timedelta:
    """Return the longest that quiet hours last; every try may fall into them anew."""
    if hours is None:
        return timedelta()
    return (_of_day(hours.end) - _of_day(hours.start)) % _DAY + SET_BACK


def _of_day(clock: time) -> timedelta:
    return timedelta(hours=clock.hour, minutes=clock.minute)


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
