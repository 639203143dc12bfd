"""Pins: what a published version keeps of its organization: the versions of snippets, and the time zone."""

from typing import Any

from api.store.access import find_timezone
from api.store.database import Transaction
from api.store.snippets import list_snippets
from workbench.language.codec import decode, encode
from workbench.language.graph import PINS, follows_clocks
from workbench.language.snippets import MAX_PINNED, SnippetText, names_in


async def find_included(tx: Transaction, org_id: int, names: set[str]) -> dict[str, SnippetText]:
    """Return the newest versions of snippets, and of those that they include."""
    snippets: dict[str, SnippetText] = {}
    missing = names
    while missing:
        rows = await list_snippets(tx, org_id, sorted(missing))
        snippets |= {row.name: SnippetText(row.version, row.body) for row in rows}
        if sum(len(snippet.body) for snippet in snippets.values()) > MAX_PINNED:
            break  # which reading the graph refuses
        missing = {name for row in rows for name in names_in(row.body)} - snippets.keys() - missing
    return snippets


async def pin(tx: Transaction, org_id: int, graph: bytes) -> bytes:
    """Return a draft's graph with the newest versions of its snippets, and the time zone if it needs one."""
    graph = without_pins(graph)
    shape = decode(graph)
    pins: dict[str, Any] = {}
    if names := names_in(shape.get("nodes")):
        pins["snippets"] = await find_included(tx, org_id, names)
    if follows_clocks(shape) and (zone := await find_timezone(tx, org_id)) is not None:
        pins["timezone"] = zone
    if not pins:
        return graph
    # As text, so that the other values keep all their digits.
    return bytes(graph).rstrip()[:-1] + b"," + encode(pins)[1:]


def without_pins(graph: bytes) -> bytes:
    """Return the graph of a version as a draft."""
    shape = decode(graph)
    if shape.keys().isdisjoint(PINS):
        return graph
    return encode({name: value for name, value in shape.items() if name not in PINS})
