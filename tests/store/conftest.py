"""A database whose connections go from hand to hand."""

from collections.abc import AsyncIterator

import pytest

from api.store.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A pool of one connection: whoever comes next gets it."""
    opened = Database(database_url, size=1)
    await opened.open()
    yield opened
    await opened.close()
