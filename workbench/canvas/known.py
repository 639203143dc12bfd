"""What can be filled in by choosing: events and their values, tags, attributes, segments, as the server knows them.

Looked up when a canvas asks, kept for a minute. Without a server, or without the right to ask, there is just nothing to choose from.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import msgspec

from api.language.catalog import Chained, Seen, check_against, events_of, is_on_chain, segments_of
from api.language.check import Remark
from api.language.codec import decode
from api.language.graph import Graph
from api.language.onchain import OnChain
from api.language.trigger import BUILT_INS, Trigger
from workbench import surroundings
from workbench.author import JsonObject
from workbench.catalog import Catalog, EventShape
from workbench.chains import chained
from workbench.connection import Connection
from workbench.display.words import value
from workbench.errors import WorkbenchError
from workbench.known_segments import known_names

_FRESH = 60.0  # seconds
_MOST_LOOKED_AT = 8  # events of one automation; each costs a look at its newest payloads
_LATEST = "SELECT metadata::text, tags FROM contacts ORDER BY updated_at DESC LIMIT 300"
_LOGS = """
SELECT o.args::text, o.block_time::text, o.args ->> :wallet_arg, c.id::text
FROM onchain_events o LEFT JOIN contacts c ON c.id = o.contact_id AND c.wallet_address = o.args ->> :wallet_arg
WHERE o.chain_id = :chain_id AND o.contract = :contract AND o.signature = :signature AND NOT o.removed AND o.args ? :wallet_arg
ORDER BY o.id DESC LIMIT 12
"""
_T = TypeVar("_T")


class People(msgspec.Struct, frozen=True):
    """What the contacts changed last have in common: names of attributes with some of their values, and tags."""

    attributes: dict[str, list[str]] = {}
    tags: tuple[str, ...] = ()


class Known:
    """What the server knows. Every answer is at most a minute old."""

    def __init__(self, connection: Connection | None) -> None:
        self._connection = connection if connection is not None and connection.has_key else None
        self._catalog = Catalog(self._connection) if self._connection is not None else None
        self._kept: dict[str, tuple[float, Any]] = {}

    def choices(self, events: Iterable[str]) -> JsonObject:
        """Return what can be chosen in an automation that knows these events, as a browser takes it."""
        people = self._people()
        paths = {name: _paths(shape) for name in events if (shape := self._shape(name)) is not None}
        return {
            "events": [{"name": each, "count": count} for each, count in self._events()],
            "paths": paths,
            "builtIns": [*BUILT_INS],
            "attributes": [{"name": name, "samples": some} for name, some in people.attributes.items()],
            "tags": [*people.tags],
            "segments": [*(self._segments() or ())],
        }

    def objections(self, trigger: Trigger, graph: Graph) -> list[Remark]:
        """Return warnings about events and values that nobody has sent, and segments that nobody has defined."""
        names = [name for name, _ in self._events()]
        on_chain = self._chained() if is_on_chain(trigger, graph) else None
        if not names and on_chain is None:
            return []
        looked_at = [each for each in events_of(trigger, graph) if each in names][:_MOST_LOOKED_AT]
        shapes = {name: shape for name in looked_at if (shape := self._shape(name)) is not None}
        paths = {name: frozenset(each.path for each in shape.paths) for name, shape in shapes.items()}
        segments = self._segments() if segments_of(graph) else None
        return [*check_against(Seen(tuple(names), paths, segments, on_chain), trigger, graph)]

    def _events(self) -> list[tuple[str, int]]:
        return self._once("events", lambda: [(each.event, each.count) for each in self._catalog or ()], [])

    def _shape(self, name: str) -> EventShape | None:
        catalog = self._catalog
        if catalog is None or name not in dict(self._events()):
            return None
        return self._once(f"event {name}", lambda: catalog[name], None)

    def _people(self) -> People:
        return self._once("people", lambda: _people(self.rows(_LATEST)), People())

    def _segments(self) -> tuple[str, ...] | None:
        connection = self._connection
        if connection is None:
            return None
        return self._once("segments", lambda: known_names(connection), None)

    def _chained(self) -> Chained | None:
        connection = self._connection
        return None if connection is None else self._once("chains", lambda: chained(connection), None)

    def logs(self, source: OnChain) -> list[list[Any]]:
        """Return the newest logs that an automation starts from: parameters as JSON, when, the wallet, and its contact if known."""
        which = {
            "chain_id": source.chain_id,
            "contract": source.contract,
            "signature": source.declared.canonical,
            "wallet_arg": source.wallet_arg,
        }
        return self._once(f"logs {which}", lambda: self.rows(_LOGS, **which), [])

    def rows(self, query: str, **params: Any) -> list[list[Any]]:
        """Return the rows of a query; none without a server."""
        if self._connection is None:
            return []
        rows: list[list[Any]] = self._connection.post("/sql", {"sql": query, "params": params})["rows"]
        return rows

    def _once(self, what: str, ask: Callable[[], _T], otherwise: _T) -> _T:
        at, known = self._kept.get(what, (-_FRESH, otherwise))
        kept: _T = known
        if surroundings.seconds() - at < _FRESH:
            return kept
        try:
            kept = ask()
        except WorkbenchError:
            kept = otherwise
        self._kept[what] = surroundings.seconds(), kept
        return kept


def _paths(shape: EventShape) -> list[JsonObject]:
    return [
        {"path": each.path, "types": [*each.types], "samples": [value(some) for some in each.samples[:3]]}
        for each in shape.paths
    ]


def _people(rows: list[list[Any]]) -> People:
    attributes: dict[str, list[str]] = {}
    tags: dict[str, None] = {}
    for metadata, own in rows:
        tags |= dict.fromkeys(own or ())
        for name, each in decode((metadata or "{}").encode()).items():
            some = attributes.setdefault(name, [])
            if len(some) < 3 and value(each) not in some:
                some.append(value(each))
    return People(dict(sorted(attributes.items())), tuple(sorted(tags)))
