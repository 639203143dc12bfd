"""One organization with automations that start from logs, a follower in the loop of the test, and an engine."""

import asyncio
from typing import Any

from api.chain.follow import Follower
from api.chain.rpc import EvmNode
from api.chain.write import PageWriter
from tests.chain.anvil import Anvil, Token
from tests.engine.conftest import EngineBench

TRANSFER = "Transfer(address indexed from, address indexed to, uint256 value)"
TIMEOUT_S = 60.0  # after some failures of a node, the follower pauses for 16 s

Row = tuple[Any, ...]


class ChainOrg(EngineBench):
    """One organization with automations that start from logs, and a follower."""

    task: asyncio.Task[None] | None = None

    async def automation(self, *args: Any, **settings: Any) -> str:
        """Publish an automation that has been live for years, because test chains have clocks of their own."""
        automation_id = await super().automation(*args, **settings)
        await self.execute("UPDATE automations SET live_since = '2020-01-01' WHERE id = %s", automation_id)
        return automation_id

    async def on_chain(self, token: Token, version: int | None = 1, delay: int = 0, **spec: Any) -> str:
        """Publish an automation that sends each receiver of tokens the amount."""
        trigger = {
            "type": "onchain_event",
            "chainId": 31337,
            "contract": token.address,
            "signature": TRANSFER,
            "walletArg": "to",
            "confirmations": 0,
            "createContacts": True,
        }
        say = {"title": "{{ value }}", "body": "{{ event }} of {{ contract }} in {{ txHash }}"}
        nodes = [{"id": "t", "type": "onchain_event"}, {"id": "n", "type": "send_inapp", "data": say}]
        if not delay:
            return await self.automation(nodes, [("t", "n")], version, trigger | spec)
        nodes.insert(1, {"id": "d", "type": "delay", "data": {"seconds": delay}})
        return await self.automation(nodes, [("t", "d"), ("d", "n")], version, trigger | spec)

    def follow(self, url: str) -> None:
        self.task = asyncio.create_task(self._follow(url))

    async def _follow(self, url: str) -> None:
        node = EvmNode(url)
        try:
            await Follower(self.database, PageWriter(self.keyring), self.clock, node).run()
        finally:
            await node.close()

    async def unfollow(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
            self.task = None

    async def read_up_to(self, node: Anvil) -> None:
        """Wait until everything in the chain is stored."""
        head = await asyncio.to_thread(lambda: node.head)
        await self.until("SELECT number, hash FROM chain_blocks ORDER BY number DESC LIMIT 1", head)

    async def until(self, query: str, expected: Row, seconds: float = TIMEOUT_S) -> None:
        """Wait until a query returns one row, `expected`."""
        async with asyncio.timeout(seconds):
            while await self.fetch(query) != [expected]:
                assert self.task is None or not self.task.done(), self.task
                await asyncio.sleep(0.05)

    async def logs(self, columns: str = "args ->> 'to', args ->> 'value', removed") -> list[Row]:
        return await self.fetch(f"SELECT {columns} FROM onchain_events ORDER BY block_number, log_index")

    async def messages(self) -> list[Row]:
        """Run the engine, then return (wallet, title) of all messages."""
        await self.drive()
        return await self.fetch(
            "SELECT c.wallet_address, m.subject FROM messages m JOIN contacts c USING (org_id)"
            " WHERE c.id = m.contact_id ORDER BY 1, 2"
        )
