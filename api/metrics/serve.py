"""Metrics of all processes: each writes a file in the data folder once a second, and any process serves all files.

A file older than STALE_AFTER_S belongs to a process that has ended or hangs: readers ignore it, and the next process
that starts removes it. Every sample gets a label `process`. Sums would be wrong: when one of several processes
restarts, its part falls to zero, and the sum looks like a restart of all.

`GET /metrics` has an address of its own. All processes listen there (SO_REUSEPORT), so the metrics stay available when
one of them ends.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from api.metrics.collect import ProcessMetrics
from api.settings import Settings
from api.wire.http1 import MAX_HEAD_BYTES, Head, read_head

PUBLISH_INTERVAL_S = 1.0
STALE_AFTER_S = 15.0
REQUEST_TIMEOUT_S = 5.0

_SUFFIX = ".prom"

_log = logging.getLogger("workbench.observe")


@asynccontextmanager
async def publish(process: ProcessMetrics, settings: Settings) -> AsyncIterator[None]:
    """Publish the metrics of a process until the block ends; with WORKBENCH_METRICS, serve those of all processes."""
    folder = metrics_folder(settings.data_dir)
    tasks = [asyncio.create_task(publish_file(process, folder))]
    if settings.metrics is not None:
        tasks.append(asyncio.create_task(serve_metrics(settings.metrics, folder)))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def metrics_folder(data_dir: Path) -> Path:
    return data_dir / "metrics"


async def publish_file(process: ProcessMetrics, folder: Path) -> None:
    """Write the metrics of this process every second until cancelled; then remove its file."""
    file = folder / f"{process.name}{_SUFFIX}"
    try:
        _prepare_folder(folder)
        while True:
            part = file.with_suffix(".new")
            part.touch(mode=0o600)
            part.write_bytes(process.text())
            part.replace(file)  # atomic: readers never see half a file
            await asyncio.sleep(PUBLISH_INTERVAL_S)
    except OSError as error:  # such as a full disk: the process works without metrics
        _log.warning("metrics_not_published", extra={"reason": error.strerror})
    finally:
        with contextlib.suppress(OSError):
            file.unlink(missing_ok=True)


def read_published(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the metrics of every running process."""
    for file in sorted(folder.glob(f"*{_SUFFIX}")):
        with contextlib.suppress(OSError):
            if not _is_stale(file):
                yield file.stem, file.read_text("utf-8")


def _prepare_folder(folder: Path) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for file in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may have removed it
            if _is_stale(file):
                file.unlink()


def _is_stale(file: Path) -> bool:
    return time.time() - file.stat().st_mtime > STALE_AFTER_S  # noqa: TID251  the file system's clock, not the database's


class MergedMetrics:
    """The metrics of several processes, given as (name, text), merged into one collection."""

    def __init__(self, published: Iterable[tuple[str, str]]) -> None:
        self._families: dict[str, Metric] = {}
        for process, text in published:
            for family in text_string_to_metric_families(text):
                merged = self._families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                merged.samples += [
                    sample._replace(labels={"process": process, **sample.labels}) for sample in family.samples
                ]

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()

    def text(self) -> bytes:
        return generate_latest(self)


async def serve_metrics(address: tuple[str, int], folder: Path) -> None:
    """Serve `GET /metrics` until cancelled. If the address is not available, log that and return."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                writer.write(await _respond(reader, folder))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client is slow, gone, or does not speak HTTP
        finally:
            writer.close()

    host, port = address
    try:
        server = await asyncio.start_server(handle, host, port, limit=MAX_HEAD_BYTES, reuse_port=True)
    except OSError as error:
        _log.error("metrics_not_served", extra={"host": host, "port": port, "reason": error.strerror})
        return
    async with server:
        await server.serve_forever()


async def _respond(reader: asyncio.StreamReader, folder: Path) -> bytes:
    head = read_head((await reader.readuntil(b"\r\n\r\n"))[:-4])
    if not isinstance(head, Head):
        return _response("400 Bad Request", "text/plain", b"the request is not valid HTTP\n")
    if head.target.partition("?")[0] != "/metrics":
        return _response("404 Not Found", "text/plain", b"no such route; use GET /metrics\n")
    if head.method != "GET":
        return _response("405 Method Not Allowed", "text/plain", b"method not allowed; use GET\n")
    # Runs in a thread, because parsing the files of many processes would delay the requests of this one.
    text = await asyncio.to_thread(lambda: MergedMetrics(read_published(folder)).text())
    return _response("200 OK", CONTENT_TYPE_LATEST, text)


def _response(status: str, content_type: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
