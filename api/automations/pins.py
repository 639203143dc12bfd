"""Pins: the versions of snippets that a graph includes, which a published version keeps under `snippets`."""

from api.store.database import Transaction
from api.store.snippets import list_snippets
from workbench.language.codec import decode, encode
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


async def pin_snippets(tx: Transaction, org_id: int, graph: bytes) -> bytes:
    """Return a draft's graph with the newest versions of the snippets that it includes."""
    shape = decode(graph) if b"include" in bytes(graph) else {}
    names = names_in(shape.get("nodes"))
    if not names:
        return graph
    snippets = {"snippets": await find_included(tx, org_id, names)}
    # As text, so that the other values keep all their digits.
    return bytes(graph).rstrip()[:-1] + b"," + encode(snippets)[1:]


def without_pins(graph: bytes) -> bytes:
    """Return the graph of a version as a draft."""
    if b'"snippets"' not in bytes(graph):
        return graph
    return encode({name: value for name, value in decode(graph).items() if name != "snippets"})
