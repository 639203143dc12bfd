"""What the language knows and the engine does not do yet; publication refuses it.

To be deleted, with its one use in `draft`, when the engine has caught up.
"""

from collections.abc import Iterator

from api.language.action import Delay, RemoveTag, SendEmail, SendWebhook, UpdateContact, WaitForEvent
from api.language.graph import Graph
from api.language.problem import Problem, Problems
from api.language.settings import NO_SETTINGS

_NOT_YET = "is not yet delivered by the engine"


def not_yet(graph: Graph) -> Problems:
    """Return one problem for each part of a graph that the engine would not carry out."""
    return tuple(_missing(graph))


def _missing(graph: Graph) -> Iterator[Problem]:
    for node in graph.nodes:
        if isinstance(node.action, SendEmail | SendWebhook | RemoveTag | UpdateContact | Delay | WaitForEvent):
            yield Problem(f"node {node.id}", f"{node.kind} {_NOT_YET}")
    if graph.settings != NO_SETTINGS:
        yield Problem("graph.settings", _NOT_YET)
