"""The life of an API process: it serves, and when it is told to stop (SIGTERM, SIGINT) it drains.

Of several processes each has a listening socket of its own, over which the kernel spreads connections. Each also looks
into the others' queues now and then: who waits there was meant for a process that died, hangs, or is just starting.

A draining process accepts nothing new, answers what was begun, and says `Connection: close` with every answer. A silent
connection may bring one more request: to close it at once would cut off one that is on its way. Only then do the parts stop.
"""

import asyncio
import contextlib
import functools
import gc
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sanic.application.state import ApplicationServerInfo
from sanic.http import Stage
from sanic.http.constants import HTTP

from api import tracing
from api.app import App
from api.loop import run
from api.observe.api_process import collect
from api.observe.lag import Lag
from api.observe.process import Process
from api.observe.tasks import told
from api.routes.entrance import Parts
from api.routes.express import ExpressConnection

BACKLOG = 4096
RELIEF = 0.1  # seconds between looks into the queues of others
SILENCE = 1.0  # seconds in which an idle connection may bring one more request
PATIENCE = 15.0  # seconds until connections are ended, whatever they wait for
_TICK = 0.02

Connect = Callable[[], ExpressConnection]


def serve(app: App, sockets: list[socket.socket], ready: Callable[[], None] = lambda: None) -> None:
    """Serve on the first of the bound sockets, and help with the others; `ready` is called when requests are answered."""
    if app.ctx.parts.settings.tracing:
        tracing.install("api")
    _may_open_many_files()
    gc.freeze()  # what is loaded by now stays; collections need not walk it,
    gc.set_threshold(20_000, 20, 50)  # and a request leaves no cycles to hurry after
    run(_serve(app, sockets, ready))


def _may_open_many_files() -> None:
    """Every connection is a file: may have as many as the system lets us, not the 1,024 that are usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # macOS names a limit that it does not take
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(app: App, sockets: list[socket.socket], ready: Callable[[], None]) -> None:
    told_to_stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told_to_stop.set)
    own, *others = sockets
    server = await _start(app, own)
    connect = _connecting(app, server.connections)
    ready()
    async with _told(app):
        await _relieve(others, connect, told_to_stop)
    last = _accept(sockets)
    server.close()
    for listening in others:
        listening.close()
    await _connect(last, connect)
    await server.before_stop()
    await _drain(app, server.connections)
    await server.after_stop()


@asynccontextmanager
async def _told(app: App) -> AsyncIterator[None]:
    """Publish the numbers of this process until the block ends."""
    parts: Parts = app.ctx.parts
    lag = Lag(parts.service, parts.clock)
    looking = asyncio.create_task(lag.keep())
    async with told(Process("api", lambda: collect(parts, lag)), parts.settings):
        yield
    looking.cancel()


async def _start(app: App, listening: socket.socket) -> Any:  # Sanic's server, whose methods have no types
    # Sanic looks here for the versions it speaks, and without an answer sends an empty Alt-Svc
    app.state.server_info.append(ApplicationServerInfo({"version": HTTP.VERSION_1}))
    server: Any = await app.create_server(
        sock=listening,
        protocol=ExpressConnection,
        backlog=BACKLOG,
        access_log=False,
        asyncio_server_kwargs={"start_serving": False},
    )
    await server.startup()
    await server.before_start()
    await server.start_serving()
    await server.after_start()
    return server


async def _relieve(others: list[socket.socket], connect: Connect, told_to_stop: asyncio.Event) -> None:
    """Accept what waits in the queues of other processes, until told to stop."""
    while not told_to_stop.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(RELIEF if others else None):
                await told_to_stop.wait()
        await _connect(_accept(others), connect)


def _accept(sockets: list[socket.socket]) -> list[socket.socket]:
    """Return the connections that wait in the queues, usually none."""
    accepted: list[socket.socket] = []
    for listening in sockets:
        listening.setblocking(False)
        with contextlib.suppress(OSError):
            while True:
                accepted.append(listening.accept()[0])
    return accepted


async def _connect(accepted: list[socket.socket], connect: Connect) -> None:
    for each in accepted:
        each.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(connect, each)


def _connecting(app: App, connections: set[ExpressConnection]) -> Connect:
    """Return what makes a connection for an accepted socket, as the server itself does."""
    return functools.partial(
        ExpressConnection,
        loop=asyncio.get_running_loop(),
        app=app,
        connections=connections,
        websocket_max_size=app.config.WEBSOCKET_MAX_SIZE,
        websocket_ping_interval=app.config.WEBSOCKET_PING_INTERVAL,
        websocket_ping_timeout=app.config.WEBSOCKET_PING_TIMEOUT,
    )


async def _drain(app: App, connections: set[ExpressConnection]) -> None:
    """Let every connection end in peace, and after PATIENCE without it."""
    app.config.KEEP_ALIVE = False  # of requests that begin now
    for connection in connections:
        if connection.http is not None and connection.http.stage in (Stage.REQUEST, Stage.HANDLER):
            connection.http.keep_alive = False  # its answer has not begun
    loop = asyncio.get_running_loop()
    since = loop.time()
    while (passed := loop.time() - since) < PATIENCE:
        await asyncio.sleep(_TICK)  # also lets those begin that have just been accepted
        if not connections:
            return
        if passed > SILENCE:
            _close_idle(connections)
    for connection in tuple(connections):
        connection.abort()  # type: ignore[no-untyped-call]


def _close_idle(connections: set[ExpressConnection]) -> None:
    for connection in tuple(connections):
        if not connection.recv_buffer:  # else a request has just arrived
            connection.close_if_idle()
