"""Where the nodes of a graph go: layers from top to bottom, few crossings, straight lines where possible.

The usual four steps (Sugiyama): layers by longest path, stand-ins where an edge passes a layer, order by the average place of the
neighbours, then for each layer the places nearest to those of its neighbours that keep the order and the distance.
Loops and edges to nowhere, which drafts may have, are left out of the reckoning.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

import msgspec

Link: TypeAlias = tuple[str, str]
_Spot: TypeAlias = tuple[str, ...]  # ("n", id) a node; ("p", source, target, layer) a stand-in on a long edge

_SWEEPS = 9  # odd: the last one goes down, so that the first way out ends up left
_PASSING = 0.35  # a passing edge takes this share of a node's width


class Layout(msgspec.Struct, frozen=True):
    """Centres of nodes, and the points that each edge passes between its ends, in units of one node and one layer."""

    places: dict[str, tuple[float, int]]
    passing: dict[Link, tuple[tuple[float, int], ...]]


def place(nodes: Sequence[str], links: Iterable[Link]) -> Layout:
    """Return the layout of `nodes`, where `links` come in the order in which ways out are to be drawn, left to right."""
    known = [link for link in dict.fromkeys(links) if link[0] in set(nodes) and link[1] in set(nodes)]
    straight = _without_loops(nodes, known)
    layers, chains = _layered(nodes, straight)
    above, below = _neighbours(chains)
    for sweep in range(_SWEEPS):
        if sweep % 2 == 0:
            _reorder(layers, above, below)
        else:
            _reorder(layers[::-1], below, above)
    at = _settle(layers, above, below)
    row = {spot: index for index, layer in enumerate(layers) for spot in layer}
    return Layout(
        {spot[1]: (at[spot], row[spot]) for spot in at if spot[0] == "n"},
        {
            link: tuple((at[spot], row[spot]) for spot in chain[1:-1])
            for link, chain in zip(straight, chains, strict=True)
        },
    )


def _without_loops(nodes: Sequence[str], links: Sequence[Link]) -> list[Link]:
    following: dict[str, list[str]] = {}
    for source, target in links:
        following.setdefault(source, []).append(target)
    done: dict[str, bool] = {}
    back: set[Link] = set()
    for first in nodes:
        path = [(first, iter(following.get(first, ())))] if first not in done else []
        done.setdefault(first, False)
        while path:
            current, targets = path[-1]
            for target in targets:
                if target not in done:
                    done[target] = False
                    path.append((target, iter(following.get(target, ()))))
                    break
                if not done[target]:
                    back.add((current, target))
            else:
                done[current] = True
                path.pop()
    return [link for link in links if link not in back]


def _layered(nodes: Sequence[str], links: Sequence[Link]) -> tuple[list[list[_Spot]], list[list[_Spot]]]:
    depth = _depths(nodes, links)
    layers: list[list[_Spot]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        layers[depth[node]].append(("n", node))
    chains = []
    for source, target in links:
        passing: list[_Spot] = [("p", source, target, str(row)) for row in range(depth[source] + 1, depth[target])]
        for row, spot in enumerate(passing, depth[source] + 1):
            layers[row].append(spot)
        chains.append([("n", source), *passing, ("n", target)])
    return layers, chains


def _depths(nodes: Sequence[str], links: Sequence[Link]) -> dict[str, int]:
    depth = dict.fromkeys(nodes, 0)
    waiting_for = dict.fromkeys(nodes, 0)
    following: dict[str, list[str]] = {}
    for source, target in links:
        following.setdefault(source, []).append(target)
        waiting_for[target] += 1
    ready = [node for node in nodes if waiting_for[node] == 0]
    while ready:
        current = ready.pop(0)
        for target in following.get(current, ()):
            depth[target] = max(depth[target], depth[current] + 1)
            waiting_for[target] -= 1
            if waiting_for[target] == 0:
                ready.append(target)
    return depth


_Near: TypeAlias = dict[_Spot, list[_Spot]]


def _neighbours(chains: Iterable[Sequence[_Spot]]) -> tuple[_Near, _Near]:
    above: _Near = {}
    below: _Near = {}
    for chain in chains:
        for upper, lower in pairwise(chain):
            above.setdefault(lower, []).append(upper)
            below.setdefault(upper, []).append(lower)
    return above, below


def _reorder(layers: Sequence[list[_Spot]], near: _Near, ways: _Near) -> None:
    """Sort each layer by the average place of its neighbours in the one before, siblings by the order of their ways."""
    for before, layer in pairwise(layers):
        index = {spot: place for place, spot in enumerate(before)}
        born = {spot: place for parent in before for place, spot in enumerate(ways.get(parent, ()))}
        rank = {}
        for own, spot in enumerate(layer):
            others = [index[other] for other in near.get(spot, ())]
            rank[spot] = (sum(others) / len(others) if others else own, born.get(spot, 0))
        layer.sort(key=rank.__getitem__)


def _settle(layers: Sequence[Sequence[_Spot]], above: _Near, below: _Near) -> dict[_Spot, float]:
    at = {spot: float(index) for layer in layers for index, spot in enumerate(layer)}
    for sweep in range(_SWEEPS):
        downwards = sweep % 2 == 0
        for layer in layers if downwards else layers[::-1]:
            _nearest(layer, at, above if downwards else below)
    least = min(at.values(), default=0.0)
    return {spot: value - least for spot, value in at.items()}


def _nearest(layer: Sequence[_Spot], at: dict[_Spot, float], near: _Near) -> None:
    """Move a layer's spots as near as they can get to the middle of their neighbours (least squares, order kept)."""
    offsets = [0.0]
    for left, right in pairwise(layer):
        offsets.append(offsets[-1] + (_room(left) + _room(right)) / 2)
    blocks: list[list[float]] = []  # [sum, count] of pooled neighbours: isotonic regression
    for spot, offset in zip(layer, offsets, strict=True):
        others = near.get(spot)
        wanted = sum(at[other] for other in others) / len(others) if others else at[spot]
        blocks.append([wanted - offset, 1])
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            total, count = blocks.pop()
            blocks[-1][0] += total
            blocks[-1][1] += count
    means = [total / count for total, count in blocks for _ in range(int(count))]
    for spot, offset, mean in zip(layer, offsets, means, strict=True):
        at[spot] = mean + offset


def _room(spot: _Spot) -> float:
    return 1.0 if spot[0] == "n" else _PASSING
