"""Pages of a chain as a follower stores them, made by hand: no node, every block at the second a test wants."""

from datetime import datetime, timedelta
from typing import Any

from api.authoring import automations
from api.authoring.automations import Author
from api.chain.answers import Log
from api.chain.storing import Keeper, Page, Told
from api.chain.watching import NOTHING, Watched, read_watched
from api.language.codec import encode
from api.language.keccak import topic
from api.store.authoring import AutomationRow
from api.store.calls import COMMIT, run
from api.store.chain import LEASE, Taken, take_chain
from tests.chain.scripted import CONTRACT, TRANSFER
from tests.chain.world import World

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
    """Return a log of a block made at a moment; who gets something gets as much as the block's number."""
    topics = [topic(TRANSFER), "0x" + "0" * 64, f"0x{int(to, 16):064x}"]
    place = (block, f"0x{block:064x}", f"0x{block:060x}{index:04x}", index)
    return Log(contract, topics, f"0x{block:064x}", *place, int(at.timestamp()))


class Chain:
    """One chain, followed by hand."""

    def __init__(self, world: World, taken: Taken, chain_id: int = 5, **limits: Any) -> None:
        self.world = world
        self.taken = taken
        self.chain_id = chain_id
        self.keeper = Keeper(world.keyring, **limits)
        self.number = 0
        self.watched = NOTHING

    @classmethod
    async def of(cls, world: World, chain_id: int = 5, **limits: Any) -> "Chain":
        now = world.clock.now()
        async with world.database.transaction() as tx:
            taken, _ = await run(tx, take_chain(chain_id, now, now + LEASE), COMMIT)
        assert taken is not None
        return cls(world, taken, chain_id, **limits)

    async def look(self) -> Watched:
        """Read what is followed now."""
        async with self.world.database.transaction() as tx:
            self.watched = await read_watched(tx, self.chain_id, self.watched)
        return self.watched

    async def keep(self, number: int, *logs: Log, asked: Watched | None = None) -> Told:
        """Store the blocks up to one, as read for what was followed then (None: for what is now)."""
        now = self.world.clock.now()
        watched = await self.look() if asked is None else asked
        page = Page(self.number, number, number, list(logs), [(number, f"0x{number:064x}")])
        async with self.world.database.transaction() as tx:
            told = await self.keeper.keep(tx, self.taken.lease, now + LEASE, watched, page, now)
        self.number = number
        return told

    async def entered(self) -> list[int]:
        """Return the blocks whose logs started something, in order."""
        query = "SELECT o.block_number FROM entries e JOIN onchain_events o ON o.org_id = e.org_id AND o.id = e.event_id ORDER BY 1"
        return [row[0] for row in await self.world.fetch(query)]


class Authored:
    """An automation that is changed the way people change it."""

    def __init__(self, world: World, row: AutomationRow) -> None:
        self.world = world
        self.row = row

    @classmethod
    async def of(cls, world: World, **spec: Any) -> "Authored":
        """Publish one that tells who gets tokens how many."""
        nodes = [{"id": "t", "type": "onchain_event"}, {"id": "n", "type": "send_inapp", "data": SAY}]
        graph = {"nodes": nodes, "edges": [{"source": "t", "target": "n"}]}
        draft = automations.Draft("Tokens", encode(SPEC | spec), encode(graph), True)
        made = cls(world, await automations.create(world.database, made_by(world), draft))
        await made.publish()
        return made

    async def publish(self, **spec: Any) -> None:
        """Publish it with another trigger."""
        if spec:
            edit = automations.Edit(self.row.revision, None, encode(SPEC | spec), None, None)
            await self.let(automations.update, edit)
        await self.let(automations.publish, None)

    async def let(self, change: Any, *more: Any, **named: Any) -> None:
        """Do one of the changes of `api.authoring.automations`."""
        row = await change(self.world.database, made_by(self.world), self.row.id, *more, **named)
        assert isinstance(row, AutomationRow), row
        self.row = row


def made_by(world: World) -> Author:
    return Author(world.org_id, "00000000-0000-7000-8000-00000000000a", world.clock.now_us())


def later(world: World, seconds: float) -> datetime:
    """Let time pass; return the moment."""
    world.clock.ahead += timedelta(seconds=seconds)
    return world.clock.now()
