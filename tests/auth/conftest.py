"""A database with one organization."""

from collections.abc import AsyncIterator

import pytest

from api.auth import keys
from api.crypto import Keyring
from api.store.database import Database


@pytest.fixture
def keyring() -> Keyring:
    return Keyring("a test's secret")


@pytest.fixture
async def org(database_url: str) -> str:
    await keys.create_org(database_url, "acme")
    return "acme"


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    opened = Database(database_url, size=2)
    await opened.open()
    yield opened
    await opened.close()
