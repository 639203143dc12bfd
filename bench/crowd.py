"""Ten thousand idle sockets: their cost in one API process, and the time until each one has received a push.

The sessions are sealed by the code of the route, without ten thousand signatures. The messages are stored by the code
of the engine.
"""

import asyncio
import resource
import time
from collections.abc import Sequence

import msgspec

from api.clock import Clock, uuid7
from api.crypto import Keyring
from api.inapp.sessions import Sessions
from api.store.database import Database as Store
from api.store.messages import NewMessage, add_inapp_messages, announce_messages
from api.store.query import run
from bench import postgres, site
from bench.effort import Effort
from bench.postgres import SECRET, Database, Postgres
from bench.processes import Service, peak_memory
from bench.sockets import Arrivals, connect, sign_in
from bench.table import Row, at_most, row
from tests.inapp.wallet import Wallet

SOCKETS = 10_000
_FILES = SOCKETS + 1_000
_STORED_AT_ONCE = 200  # as many as an engine claims at once


def rows(server: Postgres, effort: Effort) -> list[Row]:
    """Open the sockets and push to all of them in every round."""
    _may_open_files()
    database = postgres.prepared(server, "crowd")
    with site.bare_apis(server, database, 1) as (service,):
        opened, seconds = asyncio.run(_gathered(database, service, effort.rounds))
        memory = peak_memory(service.pid) / 1e6
    name = f"{SOCKETS:,} sockets of one process"
    return [
        row(f"{name}, memory", "MB", [memory], None, at_most(600)),
        row(f"{name}, push to each", "s", seconds, None, at_most(5)),
        row("  opened", "sockets/s", [opened]),
    ]


def _may_open_files() -> None:
    """Raise the limit of open files for the clients' sockets; raise RuntimeError if the system allows too few."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < _FILES:
        raise RuntimeError(f"{SOCKETS:,} sockets need {_FILES:,} open files, and `ulimit -Hn` is {most:,}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, most))


async def _gathered(database: Database, service: Service, rounds: int) -> tuple[float, list[float]]:
    """Return how many sockets a second were opened, and the seconds of each round."""
    (token,) = await sign_in(database, service.port, [Wallet(b"\x01" * 32)])
    crowd = _Wallets(database, token)
    await crowd.store.open()
    begun = time.perf_counter()
    lines = await connect([service.port], crowd.tokens, crowd.arrivals)
    opened = SOCKETS / (time.perf_counter() - begun)
    _warm_up, *seconds = [await crowd.push() for _ in range(1 + rounds)]
    for line in lines:
        line.close()
    await crowd.store.close()
    return opened, seconds


class _Wallets:
    """The wallets of one organization, each with a socket."""

    def __init__(self, database: Database, token: str) -> None:
        self.store = Store(database.dsn, size=1)
        self.arrivals = Arrivals()
        self._clock = Clock()
        self._stored = 0
        sessions = Sessions(self.store, Keyring(SECRET), self._clock)
        session = sessions.open(token)
        assert session is not None
        self._org_id = session.org_id
        self._wallets = [f"0x{number:040x}" for number in range(SOCKETS)]
        self.tokens = [sessions.seal(msgspec.structs.replace(session, wallet=wallet)) for wallet in self._wallets]

    async def push(self) -> float:
        """Store a message for every wallet. Returns the seconds until all have it."""
        begun = time.perf_counter()
        for start in range(0, SOCKETS, _STORED_AT_ONCE):
            await self._tell(self._wallets[start : start + _STORED_AT_ONCE])
        await self.arrivals.until(self._stored)
        return time.perf_counter() - begun

    async def _tell(self, wallets: Sequence[str]) -> None:
        rows = [self._message(wallet) for wallet in wallets]
        async with self.store.transaction() as tx:
            await run(
                tx, add_inapp_messages(self._org_id, rows, self._clock.now()), announce_messages(self._org_id, wallets)
            )

    def _message(self, wallet: str) -> NewMessage:
        self._stored += 1
        new = self._new_id
        ids = (new(), new(), new(), new(), "n", "inapp")
        return NewMessage(*ids, wallet_address=wallet, subject=str(self._stored), body="There you are.")

    def _new_id(self) -> str:
        return uuid7(self._clock.unique_now_us())
