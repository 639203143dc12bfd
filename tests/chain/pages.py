"""Pages of a chain as a follower stores them, built without a node, with blocks of any time."""

from datetime import datetime, timedelta
from typing import Any

from api.automations import automations
from api.automations.automations import Author
from api.automations.body import AutomationEdit, NewAutomation
from api.chain.rpc import Log
from api.chain.watch import NO_WATCHES, ChainWatches, read_watches
from api.chain.write import BlockPage, PageResult, PageWriter
from api.store.automations import AutomationRow
from api.store.chain import LEASE_DURATION, ChainLease, claim_chain
from api.store.query import COMMIT, run
from tests.chain.organization import ChainOrg
from tests.chain.scripted import CONTRACT, TRANSFER
from workbench.language.abi import event_topic
from workbench.language.codec import encode

SAY = {"title": "{{ value }}", "body": "{{ walletAddress }}"}
SPEC = {
    "type": "onchain_event",
    "chainId": 5,
    "contract": CONTRACT,
    "signature": TRANSFER,
    "walletArg": "to",
    "createContacts": True,
}


def wallet(number: int) -> str:
    return f"0x{number:040x}"


def transfer(block: int, to: str, at: datetime, *, contract: str = CONTRACT, index: int = 0) -> Log:
    """Return a log of a block of a given time; the amount is the number of the block."""
    topics = [event_topic(TRANSFER), "0x" + "0" * 64, f"0x{int(to, 16):064x}"]
    place = (block, f"0x{block:064x}", f"0x{block:060x}{index:04x}", index)
    return Log(contract, topics, f"0x{block:064x}", *place, int(at.timestamp()))


class Chain:
    """One chain, followed without a process."""

    def __init__(self, org: ChainOrg, claim: ChainLease, chain_id: int = 5, **limits: Any) -> None:
        self.org = org
        self.claim = claim
        self.chain_id = chain_id
        self.writer = PageWriter(org.keyring, **limits)
        self.number = 0
        self.watches = NO_WATCHES

    @classmethod
    async def of(cls, org: ChainOrg, chain_id: int = 5, **limits: Any) -> "Chain":
        now = org.clock.now()
        async with org.database.transaction() as tx:
            claim, _ = await run(tx, claim_chain(chain_id, now, now + LEASE_DURATION), COMMIT)
        assert claim is not None
        return cls(org, claim, chain_id, **limits)

    async def read_watches(self) -> ChainWatches:
        """Read the current watches."""
        async with self.org.database.transaction() as tx:
            self.watches = await read_watches(tx, self.chain_id, self.watches)
        return self.watches

    async def store(self, number: int, *logs: Log, requested: ChainWatches | None = None) -> PageResult:
        """Store the blocks up to `number`, as read for the watches `requested` (None: the current ones)."""
        now = self.org.clock.now()
        watches = await self.read_watches() if requested is None else requested
        page = BlockPage(self.number, number, number, list(logs), [(number, f"0x{number:064x}")])
        async with self.org.database.transaction() as tx:
            result = await self.writer.write(tx, self.claim, now + LEASE_DURATION, watches, page, now)
        self.number = number
        return result

    async def entered(self) -> list[int]:
        """Return the blocks with logs that started entries, in order."""
        rows = await self.org.fetch(
            "SELECT o.block_number FROM entries e"
            " JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id ORDER BY 1"
        )
        return [block_number for (block_number,) in rows]


class AuthoredAutomation:
    """An automation that is changed through the functions of the API."""

    def __init__(self, org: ChainOrg, row: AutomationRow) -> None:
        self.org = org
        self.row = row

    @classmethod
    async def of(cls, org: ChainOrg, **spec: Any) -> "AuthoredAutomation":
        """Publish an automation that sends each receiver of tokens the amount."""
        nodes = [{"id": "t", "type": "onchain_event"}, {"id": "n", "type": "send_inapp", "data": SAY}]
        graph = {"nodes": nodes, "edges": [{"source": "t", "target": "n"}]}
        draft = NewAutomation(name="Tokens", trigger_spec=encode(SPEC | spec), graph=encode(graph))
        made = cls(org, await automations.create(org.database, author_of(org), draft))
        await made.publish()
        return made

    async def publish(self, **spec: Any) -> None:
        """Publish it with another trigger."""
        if spec:
            edit = AutomationEdit(self.row.revision, None, encode(SPEC | spec), None, None)
            await self.apply(automations.update, edit)
        await self.apply(automations.publish, None)

    async def apply(self, change: Any, *more: Any, **named: Any) -> None:
        """Apply one of the changes of `api.automations.automations`."""
        row = await change(self.org.database, author_of(self.org), self.row.id, *more, **named)
        assert isinstance(row, AutomationRow), row
        self.row = row


def author_of(org: ChainOrg) -> Author:
    return Author(org.org_id, "00000000-0000-7000-8000-00000000000a", org.clock.now_us())


def later(org: ChainOrg, seconds: float) -> datetime:
    """Let time pass; return the new time."""
    org.clock.ahead += timedelta(seconds=seconds)
    return org.clock.now()
