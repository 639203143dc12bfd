"""The two effects as users of the libraries would write them: a tag and a message, each in one statement."""

import psycopg
from psycopg_pool import AsyncConnectionPool

IN_FLIGHT = 20  # jobs or workflows of one process; with 50 they were no faster
_TAG = "UPDATE contacts SET tags = tags || 'depositor'::text WHERE id = %s AND NOT 'depositor' = ANY(tags)"
_MESSAGE = "INSERT INTO messages (contact_id, title, body) VALUES (%s, 'Thank you', %s)"


def connections(dsn: str) -> AsyncConnectionPool[psycopg.AsyncConnection]:
    """Return a pool for the effects; each use of a connection is one transaction."""
    return AsyncConnectionPool(dsn, min_size=4, max_size=IN_FLIGHT, open=False)


async def add_tag(connection: psycopg.AsyncConnection, contact_id: int) -> None:
    """Tag a contact that has no tag yet."""
    await connection.execute(_TAG, (contact_id,))


async def send_message(connection: psycopg.AsyncConnection, contact_id: int, amount: int) -> None:
    """Store a message for a contact."""
    await connection.execute(_MESSAGE, (contact_id, f"Your deposit of {amount} USDC is here."))
