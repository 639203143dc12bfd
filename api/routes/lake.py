"""`/api/v1/lake`: what a copy of all events on an analyst's machine consists of. See `api.parts.lake`."""

import asyncio
import os
import re
from typing import Annotated, BinaryIO, Final

from msgspec import Meta
from sanic import Blueprint, Request

from api.parts import files
from api.parts.listing import NoPartsError
from api.routes.request import PRIVATE, Operation, cancel_when_key_ends, principal_of, services
from api.routes.responses import RequestRefusedError
from api.routes.sql import SQL
from workbench.language.body import Body
from workbench.language.codec import encode

blueprint = Blueprint("lake", url_prefix="/api/v1/lake")

_BYTES: Final = "application/octet-stream"
_PIECE_BYTES = 262_144
ANSWER_TIMEOUT_S = 300.0  # a file that is removed meanwhile stays for `build.REMOVED_FILE_S`
_RANGE = re.compile(r"bytes=(\d{1,15})-", re.ASCII)  # what a download that continues sends; other ranges are ignored


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
        async with cancel_when_key_ends(request, SQL), lake.events(principal_of(request).org_id) as (manifest, rows):
            await _send_rows(request, encode(manifest) + b"\n", rows)
    except NoPartsError as error:
        raise RequestRefusedError(409, f"the events cannot be copied: {error}") from None


@blueprint.get("/contacts")
@Operation(SQL, media=_BYTES)
async def read_contacts(request: Request, query: ContactsQuery) -> None:
    """Stream the numbers that contacts have in files of events, and their ids, as an Arrow stream."""
    lake = services(request).lake
    async with cancel_when_key_ends(request, SQL), lake.contacts(principal_of(request).org_id, query.above) as rows:
        await _send_rows(request, b"", rows)


@blueprint.get("/files/<file_id:str>")
@Operation(SQL, media=_BYTES)
async def read_file(request: Request, file_id: str) -> None:
    """Send a file of events (Parquet). `Range: bytes=N-` continues a download; a file never changes.

    After five minutes the connection is closed, because the file may have been removed since.
    """
    context, org_id = services(request), principal_of(request).org_id
    async with context.lake.slot(org_id):
        opened = await context.lake.open_file(context.database, org_id, file_id)
        if opened is None:
            raise RequestRefusedError(404, "file not found")
        file, part = opened
        with file:
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
            async with cancel_when_key_ends(request, SQL):
                await _send(request, 200 if range_match is None else 206, headers, file.fileno(), first, part.size)


async def _send_rows(request: Request, before: bytes, rows: BinaryIO) -> None:
    """Send `before` and a whole file."""
    size = os.fstat(rows.fileno()).st_size
    headers = {**PRIVATE, "content-length": str(len(before) + size)}
    await _send(request, 200, headers, rows.fileno(), 0, size, before=before)


async def _send(
    request: Request,
    status: int,
    headers: dict[str, str],
    descriptor: int,
    first: int,
    end: int,
    *,
    before: bytes = b"",
) -> None:
    """Send `before`, and the bytes of a file from `first` to `end`."""
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            response = await request.respond(status=status, content_type=_BYTES, headers=headers)
            if before:
                await response.send(before)
            for start in range(first, end, _PIECE_BYTES):
                await response.send(await files.look(os.pread, descriptor, _PIECE_BYTES, start))
            await response.eof()
    except TimeoutError:  # only a closed connection shows that the response is incomplete
        request.transport.abort()  # type: ignore[attr-defined]
