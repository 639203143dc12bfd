"""Puts a TCP proxy in front of Postgres, which tests slow down or break."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from psycopg.conninfo import conninfo_to_dict

from api.store.database import libpq_dsn


class PostgresProxy:
    """Forwards connections to the database of `dsn`; each piece arrives `pause()` seconds late, in order."""

    def __init__(self, dsn: str, pause: Callable[[], float] = lambda: 0.0) -> None:
        self._database = conninfo_to_dict(libpq_dsn(dsn))
        self._pause = pause
        self._writers: set[asyncio.StreamWriter] = set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        """Yield the address of the database behind the proxy."""
        async with await asyncio.start_server(self._forward, "127.0.0.1", 0) as server:
            database, port = self._database, server.sockets[0].getsockname()[1]
            try:
                yield f"postgresql://{database['user']}:{database['password']}@127.0.0.1:{port}/{database['dbname']}"
            finally:
                self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await self._connect()
        both = {writer, server_writer}
        self._writers |= both
        try:
            await asyncio.gather(self._carry(reader, server_writer), self._carry(server_reader, writer))
        finally:
            self._writers -= both

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, port = str(self._database["host"]), str(self._database["port"])
        if host.startswith("/"):
            return await asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
        return await asyncio.open_connection(host, port)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                await asyncio.sleep(self._pause())
                writer.write(piece)
                await writer.drain()
        writer.close()
