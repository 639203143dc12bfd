"""Serves an application in the event loop of the test, with the connection class of the real process."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from api.app import App, connection_class
from tests.sockets import listening_socket


@asynccontextmanager
async def served(app: App) -> AsyncIterator[int]:
    """Serve until the block ends; yield the port."""
    app.config.TOUCHUP = False  # rewrites methods of Sanic in place, which works once per process
    sock = listening_socket("127.0.0.1", 0)
    server = await app.create_server(sock=sock, protocol=connection_class(app), return_asyncio_server=True)
    assert server is not None
    await server.startup()
    await server.before_start()
    await server.start_serving()
    await server.after_start()
    try:
        yield int(sock.getsockname()[1])
    finally:
        await server.before_stop()
        server.close()
        await server.wait_closed()
        await server.after_stop()
