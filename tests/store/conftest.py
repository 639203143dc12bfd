"""Provides a pool with one connection, so that every transaction uses the connection of the previous one."""

from collections.abc import AsyncIterator

import pytest

from api.store.database import Database


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, size=1)
    await opened.open()
    yield opened
    await opened.close()
