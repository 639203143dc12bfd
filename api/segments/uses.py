"""Who counts on a segment: automations whose live version asks for it, segments whose query does."""

import asyncio
import re

from api.language.catalog import segments_of
from api.language.codec import decode
from api.language.graph import Graph, read_graph
from api.store import segments as store
from api.store.database import Transaction
from api.store.segments import SegmentRow


async def uses(tx: Transaction, org_id: int, name: str) -> list[str]:
    """Return them in words, with their names."""
    graphs = await store.published_graphs(tx, org_id)
    asking = await asyncio.to_thread(lambda: [each for each, graph in graphs if name in _asked(graph)])
    others = [row.name for row in await store.list_segments(tx, org_id) if row.name != name and _mentions(row, name)]
    return [*(f"the automation {each!r}" for each in asking), *(f"the segment {each!r}" for each in others)]


def _asked(graph: bytes) -> tuple[str, ...]:
    found = read_graph(decode(graph))
    return segments_of(found) if isinstance(found, Graph) else ()


def _mentions(row: SegmentRow, name: str) -> bool:
    """Return whether a query looks at members and has the name among its texts or values."""
    if row.sql is None or not re.search(r"\bsegment_members\b", row.sql, re.IGNORECASE):
        return False
    values = b"" if row.params is None else row.params
    return f"'{name}'" in row.sql or f'"{name}"'.encode() in values
