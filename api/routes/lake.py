"""`/api/v1/lake`: what a copy of all events on an analyst's machine consists of. See `api.parts.lake`."""

import asyncio
import logging
import os
import re
from collections.abc import AsyncIterator
from typing import Annotated, Final

import pyarrow as pa
from msgspec import Meta
from sanic import Blueprint, Request

from api.parts.lake import ANSWER_TIMEOUT_S, CONTACTS, EVENTS
from api.parts.listing import NoPartsError
from api.query.arrow import BatchStream
from api.routes.request import PRIVATE, Operation, cancel_when_key_ends, principal_of, services
from api.routes.responses import RequestRefusedError
from api.routes.sql import SQL
from workbench.language.body import Body
from workbench.language.codec import encode

blueprint = Blueprint("lake", url_prefix="/api/v1/lake")

_BYTES: Final = "application/octet-stream"
_PIECE_BYTES = 262_144
_RANGE = re.compile(r"bytes=(\d{1,15})-", re.ASCII)  # what a download that continues sends; other ranges are ignored

_log = logging.getLogger("workbench.lake")


class ContactsQuery(Body, frozen=True):
    """`above`: a number; only contacts with greater ones."""

    above: Annotated[int, Meta(ge=0, le=2**53)] = 0


@blueprint.get("/events")
@Operation(SQL, media=_BYTES)
async def read_events(request: Request) -> None:
    """List the files of events, and stream the events that are not in them.

    The answer is a line of JSON (`watermark`, `files`, `eventNumbers`, `touched`) and an Arrow stream.
    """
    lake = services(request).lake
    try:
        async with cancel_when_key_ends(request, SQL), lake.events(principal_of(request).org_id) as (manifest, batches):
            await _stream(request, batches, EVENTS, encode(manifest) + b"\n")
    except NoPartsError as error:
        raise RequestRefusedError(409, f"the events cannot be copied: {error}") from None


@blueprint.get("/contacts")
@Operation(SQL, media=_BYTES)
async def read_contacts(request: Request, query: ContactsQuery) -> None:
    """Stream the numbers that contacts have in files of events, and their ids, as an Arrow stream."""
    lake = services(request).lake
    async with cancel_when_key_ends(request, SQL), lake.contacts(principal_of(request).org_id, query.above) as batches:
        await _stream(request, batches, CONTACTS)


@blueprint.get("/files/<file_id:str>")
@Operation(SQL, media=_BYTES)
async def read_file(request: Request, file_id: str) -> None:
    """Send a file of events (Parquet). `Range: bytes=N-` continues a download; a file never changes.

    After five minutes the connection is closed, because the file may have been removed since.
    """
    context = services(request)
    async with context.database.transaction() as tx:
        opened = await context.lake.open_file(tx, principal_of(request).org_id, file_id)
    if opened is None:
        raise RequestRefusedError(404, "file not found")
    descriptor, part = opened
    try:
        range_match = _RANGE.fullmatch(request.headers.get("range", ""))
        first = int(range_match[1]) if range_match is not None else 0
        if first >= part.size:
            raise RequestRefusedError(416, f"the file has {part.size} bytes")
        headers = {
            **PRIVATE,
            "etag": f'"{part.sha256.hex()}"',
            "accept-ranges": "bytes",
            "content-length": str(part.size - first),
        }
        if range_match is not None:
            headers["content-range"] = f"bytes {first}-{part.size - 1}/{part.size}"
        async with cancel_when_key_ends(request, SQL), asyncio.timeout(ANSWER_TIMEOUT_S):
            status = 200 if range_match is None else 206
            response = await request.respond(status=status, content_type=_BYTES, headers=headers)
            for start in range(first, part.size, _PIECE_BYTES):
                await response.send(await asyncio.to_thread(os.pread, descriptor, _PIECE_BYTES, start))
            await response.eof()
    except TimeoutError:
        request.transport.abort()  # type: ignore[attr-defined]
    finally:
        os.close(descriptor)


async def _stream(
    request: Request, batches: AsyncIterator[pa.RecordBatch], schema: pa.Schema, before: bytes = b""
) -> None:
    stream = BatchStream(schema)
    batch = await anext(batches, None)  # an error of the query shows up here, while a refusal is still possible
    response = await request.respond(content_type=_BYTES, headers=PRIVATE)
    try:
        if before:
            await response.send(before)
        while batch is not None:
            piece = await asyncio.to_thread(stream.batch, batch)
            for start in range(0, len(piece), _PIECE_BYTES):
                await response.send(piece[start : start + _PIECE_BYTES])
            batch = await anext(batches, None)
        await response.send(stream.end())
        await response.eof()
    except BaseException as error:  # only a closed connection shows that the response is incomplete
        request.transport.abort()  # type: ignore[attr-defined]
        if not isinstance(error, Exception):
            raise
        _log.warning("lake_answer_broken", extra={"request_id": str(request.id), "reason": str(error)})
