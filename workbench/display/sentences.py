"""A whole automation in plain English, indented by branch."""

from collections.abc import Iterable

from api.language.action import Condition, Split, WaitForEvent
from api.language.graph import Graph, Node
from api.language.onchain import OnChain
from api.language.trigger import Trigger
from workbench.display.words import conditions, events, rules, title, value


def sentences(trigger: Trigger, graph: Graph) -> list[str]:
    """Return the automation as lines of plain English."""
    only = f", and {conditions(trigger.filters)}" if trigger.filters else ""
    arrives = f"a {events(trigger)} event arrives" if trigger.names else "any event arrives"
    if trigger.source is not None:
        arrives = _logged(trigger.source, events(trigger))
    beside = [f"  ({rule})" for rule in rules(graph.settings)]
    lines = [f"When {arrives}{only}:", *beside]
    start = graph.start
    following = graph.following.get((start.id, None)) if start else None
    if start is None or following is None:
        return [*lines, "  nothing happens yet."]
    lines += _Telling(graph).steps(following, None, 1)
    return lines


def _logged(source: OnChain, what: str) -> str:
    since = f", and {source.confirmations} blocks stand on top of it" if source.confirmations else ""
    who = "" if source.creates_contacts else " known"
    return f"the contract logs {what}, about the{who} wallet in “{source.wallet_arg}”{since}"


class _Telling:
    """Walks a graph once; a step told before is only referred to, so that joins and knots stay short."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._told: set[str] = set()

    def steps(self, node_id: str | None, until: str | None, depth: int) -> list[str]:
        lines: list[str] = []
        margin = "  " * depth
        while node_id is not None and node_id != until:
            node = self._graph.by_id.get(node_id)
            if node is None:
                break
            if node_id in self._told:
                return [*lines, f"{margin}• go on with “{node_id}” as above."]
            self._told.add(node_id)
            if len(node.handles) > 1:
                node_id = self._fork(node, until, depth, lines)
                continue
            lines.append(f"{margin}• {_sentence(title(node))}")
            node_id = self._graph.following.get((node.id, None))
        return lines

    def _fork(self, node: Node, until: str | None, depth: int, lines: list[str]) -> str | None:
        """Tell what happens on each way, up to where all meet again; return that node."""
        targets = [self._graph.following.get((node.id, way)) for way in node.handles]
        join = _meeting(self._graph, targets) or until
        margin = "  " * depth
        (first, *others) = zip(_headings(node), targets, strict=True)
        told = self.steps(first[1], join, depth + 1)
        after = [(heading, self.steps(target, join, depth + 1)) for heading, target in others]
        lines.append(f"{margin}• {first[0]}:")
        lines += told or [f"{margin}  • nothing more."]
        for heading, steps in after:
            if steps:
                lines += [f"{margin}  {heading}:", *steps]
        return join


def _headings(node: Node) -> list[str]:
    """Return what stands over each way out."""
    match node.action:
        case Split(branches=branches):
            first, *others = [f"{each.percent} % go along {value(each.handle)}" for each in branches]
            return [f"Split: {first}", *others]
        case WaitForEvent():
            return [f"{_sentence(title(node))} When it comes", "Otherwise"]
        case Condition():
            return [_sentence(title(node)).removesuffix("."), "Otherwise"]
        case _:
            return [str(way) for way in node.handles]


def _meeting(graph: Graph, starts: Iterable[str | None]) -> str | None:
    """Return the nearest node that all ways lead to."""
    first, *others = [_reachable(graph, start) for start in starts]
    return next((node for node in first if all(node in other for other in others)), None)


def _reachable(graph: Graph, start: str | None) -> dict[str, None]:
    """Return the nodes reached from `start`, itself included, nearest first."""
    seen = {start: None} if start is not None else {}
    waiting = [*seen]
    for node in waiting:
        ways = graph.by_id[node].handles if node in graph.by_id else ()
        for handle in ways:
            target = graph.following.get((node, handle))
            if target is not None and target not in seen:
                seen[target] = None
                waiting.append(target)
    return seen


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
