"""Texts of stored messages, for readers who may not see addresses: by what the versions that sent them look at."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from api.language.action import Action
from api.language.codec import decode
from api.language.graph import Graph, read_graph
from api.language.unfilled import Texts, unfilled
from api.store import histories
from api.store.database import Transaction

Row = TypeVar("Row", bound=msgspec.Struct)


async def without_addresses(
    tx: Transaction, org_id: int, rows: Sequence[Row], entry_of: Callable[[Row], str]
) -> list[Row]:
    """Return rows of messages (`node_id, channel, subject, body` and maybe `recipient`) without the addresses in their texts."""
    graphs = await histories.graphs_of_entries(tx, org_id, {entry_of(row) for row in rows})
    return await asyncio.to_thread(_told, rows, entry_of, graphs)


def _told(rows: Sequence[Row], entry_of: Callable[[Row], str], graphs: Sequence[histories.GraphRow]) -> list[Row]:
    actions: dict[str, Mapping[str, Action]] = {}
    for each in graphs:
        actions |= dict.fromkeys(each.entry_ids, _actions(each.graph))
    return [_without(row, actions.get(entry_of(row), {})) for row in rows]


def _actions(text: bytes) -> Mapping[str, Action]:
    graph = read_graph(decode(text))
    return {node.id: node.action for node in graph.nodes} if isinstance(graph, Graph) else {}


def _without(row: Any, actions: Mapping[str, Action]) -> Any:
    url = getattr(row, "recipient", None) if row.channel == "webhook" else None
    texts = unfilled(actions.get(row.node_id), Texts(row.subject, row.body, url))
    changes = {"subject": texts.subject, "body": texts.body} | ({} if url is None else {"recipient": texts.url})
    return msgspec.structs.replace(row, **changes)
