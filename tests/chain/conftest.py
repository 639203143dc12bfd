"""Fixtures for a real node and a real database.

Tests that use the node are marked `chain`; `make chain` runs them.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from api import settings
from api.auth import keys
from api.channels.outgoing import open_transports
from api.store.database import Database
from tests.chain.anvil import Anvil, Token, running
from tests.chain.organization import ChainOrg

ANN = "0x00000000000000000000000000000000000000aa"
BOB = "0x00000000000000000000000000000000000000bb"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    folder = Path(__file__).parent
    for item in items:
        if folder in item.path.parents and "anvil" in getattr(item, "fixturenames", ()):
            item.add_marker("chain")


@pytest.fixture
async def org(database_url: str, tmp_path: Path) -> AsyncIterator[ChainOrg]:
    org_id = await keys.create_org(database_url, "chain")
    database = Database(database_url, size=6, lock_ms=10_000, hot=True)
    await database.open()
    transports = open_transports(settings.read({"WORKBENCH_DATA_DIR": str(tmp_path)}))
    org = ChainOrg(database, org_id, transports)
    yield org
    await org.unfollow()
    await transports.close()
    await database.close()


@pytest.fixture
def anvil(tmp_path: Path) -> Iterator[Anvil]:
    with running(tmp_path) as node:
        yield node


@pytest.fixture
def token(anvil: Anvil) -> Token:
    return Token(anvil)
