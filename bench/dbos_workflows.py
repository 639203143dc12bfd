"""A reference for the engine: the same two steps as DBOS workflows. Each step is a transaction that DBOS logs.

Run as a module with a DSN and a name for the process, it reads commands from stdin: `work FIRST END` runs the workflows
with these numbers and answers with an empty line. Workflows are called directly, which is twice as fast as a queue of
DBOS.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator

from dbos import DBOS, DBOSConfig

from bench import effects
from bench.traffic import CONTACTS


async def main(dsn: str, name: str) -> None:
    """Execute commands until stdin ends."""
    DBOS(
        config=DBOSConfig(name="bench", system_database_url=dsn, executor_id=name, log_level="ERROR", enable_otlp=False)
    )
    pool = effects.connections(dsn)

    @DBOS.step()
    async def add_tag(contact_id: int) -> None:
        async with pool.connection() as connection:
            await effects.add_tag(connection, contact_id)

    @DBOS.step()
    async def send_message(contact_id: int, amount: int) -> None:
        async with pool.connection() as connection:
            await effects.send_message(connection, contact_id, amount)

    @DBOS.workflow()
    async def thank(contact_id: int, amount: int) -> None:
        await add_tag(contact_id)
        await send_message(contact_id, amount)

    DBOS.launch()
    async with pool:
        print(flush=True)
        while order := (await asyncio.to_thread(sys.stdin.readline)).split():
            first, end = map(int, order[1:])
            numbers = iter(range(first, end))
            await asyncio.gather(*(_take_turns(thank, numbers) for _ in range(effects.IN_FLIGHT)))
            print(flush=True)
    DBOS.destroy()


async def _take_turns(thank: Callable[[int, int], Awaitable[None]], numbers: Iterator[int]) -> None:
    for number in numbers:
        await thank(number % CONTACTS, number % 1000)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
