"""`GET /metrics` on an address of its own, for Prometheus: any process of this machine answers for all of them.

Each listens on the same address (SO_REUSEPORT), so there is no first among them, and none whose end takes the numbers away.
"""

import asyncio
import logging
from pathlib import Path

from api.observe.merged import CONTENT_TYPE, Merged
from api.observe.published import read_published
from api.wire.head import MAX_HEAD, Head, read_head

_PATIENCE_SECONDS = 5.0

_log = logging.getLogger("workbench.observe")


async def keep_listening(address: tuple[str, int], folder: Path) -> None:
    """Answer until cancelled. Where the address cannot be had the process goes on without, and says so."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                writer.write(await _answer(reader, folder))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked is slow, gone, or no client of HTTP
        finally:
            writer.close()

    host, port = address
    try:
        server = await asyncio.start_server(serve, host, port, limit=MAX_HEAD, reuse_port=True)
    except OSError as error:
        _log.error("metrics_not_served", extra={"host": host, "port": port, "reason": error.strerror})
        return
    async with server:
        await server.serve_forever()


async def _answer(reader: asyncio.StreamReader, folder: Path) -> bytes:
    head = read_head((await reader.readuntil(b"\r\n\r\n"))[:-4])
    if not isinstance(head, Head):
        return _response("400 Bad Request", "text/plain", b"the request is not valid HTTP\n")
    if head.target.partition("?")[0] != "/metrics":
        return _response("404 Not Found", "text/plain", b"there is only /metrics here\n")
    if head.method != "GET":
        return _response("405 Method Not Allowed", "text/plain", b"only GET is taken here\n")
    text = await asyncio.to_thread(lambda: Merged(read_published(folder)).text())
    return _response("200 OK", CONTENT_TYPE, text)


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
