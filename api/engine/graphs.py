"""Published graphs, compiled: they never change, so each is read once."""

import asyncio

from api.language.codec import decode
from api.language.graph import Graph, read_graph
from api.store import facts as store
from api.store.calls import run
from api.store.database import Database
from api.store.engine import Claim


class Graphs:
    """The graphs that this process has driven."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[tuple[int, str, int], Graph] = {}

    async def learn(self, org_id: int, claims: list[Claim]) -> None:
        """Read what is not known yet of the graphs that claimed entries run."""
        for claim in claims:
            if claim.version is not None and (org_id, claim.automation_id, claim.version) not in self._known:
                self._known[org_id, claim.automation_id, claim.version] = await self._read(
                    org_id, claim.automation_id, claim.version
                )

    def of(self, org_id: int, claim: Claim) -> Graph | None:
        """Return the graph that an entry runs; None when nothing is published."""
        return None if claim.version is None else self._known[org_id, claim.automation_id, claim.version]

    async def _read(self, org_id: int, automation_id: str, version: int) -> Graph:
        async with self._database.transaction() as tx:
            (raw,) = await run(tx, store.load_graph(org_id, automation_id, version))
        # Compiling long templates takes up to seconds: in a thread, and outside the transaction.
        graph = await asyncio.to_thread(read_graph, decode(raw)) if raw is not None else ()
        return graph if isinstance(graph, Graph) else Graph()
