"""A reference for the engine: the same two steps as jobs of procrastinate, a queue on Postgres, in one transaction.

Run as a module with a DSN, it creates its schema and reads commands from stdin: `lay N` defers N jobs, `work` runs all
deferred jobs. It answers each command with an empty line.
"""

import asyncio
import logging
import sys

import procrastinate
from procrastinate.types import JSONValue

from bench import effects
from bench.traffic import CONTACTS


async def main(dsn: str) -> None:
    """Execute commands until stdin ends."""
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=dsn, max_size=effects.IN_FLIGHT))
    async with app.open_async(), effects.connections(dsn) as pool:
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()

        @app.task(name="thank")
        async def thank(contact_id: int, amount: int) -> None:
            async with pool.connection() as connection:
                await effects.add_tag(connection, contact_id)
                await effects.send_message(connection, contact_id, amount)

        print(flush=True)
        while order := (await asyncio.to_thread(sys.stdin.readline)).split():
            match order:
                case ["lay", count]:
                    jobs: list[dict[str, JSONValue]] = [
                        {"contact_id": number % CONTACTS, "amount": number % 1000} for number in range(int(count))
                    ]
                    await thank.batch_defer_async(*jobs)
                case _:
                    await app.run_worker_async(
                        wait=False, concurrency=effects.IN_FLIGHT, listen_notify=False, install_signal_handlers=False
                    )
            print(flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
