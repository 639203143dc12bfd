"""The files of an organization's events that are valid in one snapshot, and the events that are not in them.

events = files (without touched contacts) + rows from `closed` on (without them) + all rows of touched contacts
"""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import NamedTuple

from api.parts import files
from api.parts.build import PAGE_ROWS, read_pages
from api.private_files import PrivateFileError
from api.store import parts as store
from api.store.analyst import Snapshot, export_snapshot
from api.store.database import Transaction
from api.store.parts import EVENT_ROWS, EventPage, PartFile, Progress, RowKind, TouchedContact

MAX_UNFILED_ROWS = 1_000_000  # that are not in files
_TOUCHED_PER_PAGE = 500
_BEYOND = 2**62  # no transaction has this number


class NoPartsError(Exception):
    """The parts of an organization cannot be read here; the message says why."""


class Listing(NamedTuple):
    """What a reader finds in a snapshot."""

    snapshot: Snapshot
    progress: Progress
    parts: Sequence[PartFile]
    touched: Sequence[TouchedContact]

    @property
    def touched_numbers(self) -> list[int]:
        return sorted(contact.number for contact in self.touched if contact.number is not None)


async def read_listing(tx: Transaction, data_dir: Path, org_id: int) -> Listing:
    """Return the files that are valid in this snapshot. Raises NoPartsError, and OSError if a file is missing."""
    shared = await export_snapshot(tx)
    progress = await store.find_progress(tx, org_id)
    if shared is None or progress is None:
        raise NoPartsError("no parts")
    if progress.system_identifier != shared[1].system_identifier:
        raise NoPartsError("the parts are of another cluster")
    try:
        folder = await files.look(files.find_folder_id, data_dir)
    except PrivateFileError as error:  # of a mounted folder whose server does not answer
        raise NoPartsError(str(error)) from error
    if progress.folder != folder:
        raise NoPartsError("the parts are in another folder")
    if await store.count_tail(tx, org_id, progress.closed, MAX_UNFILED_ROWS + 1) > MAX_UNFILED_ROWS:
        raise NoPartsError("the parts are too far behind")
    parts = await store.list_parts(tx, org_id)
    await files.look(_check_sizes, data_dir, org_id, parts)
    return Listing(shared[1], progress, parts, await store.list_touched(tx, org_id))


def _check_sizes(data_dir: Path, org_id: int, parts: Sequence[PartFile]) -> None:
    for part in parts:
        if files.path(data_dir, org_id, part.file).stat().st_size != part.size:
            raise NoPartsError(f"the file {part.file} has another size")


async def read_unfiled(
    tx: Transaction, org_id: int, closed: int, touched: Sequence[TouchedContact], kind: RowKind = EVENT_ROWS
) -> AsyncIterator[tuple[EventPage, bool]]:
    """Yield the events from `closed` on, or logs, then all those of touched contacts; the flag says which of both.

    The first still have rows of touched contacts. Raises NoPartsError if there are more than `MAX_UNFILED_ROWS`.
    """
    rows = 0
    async for page, _ in read_pages(tx, org_id, closed, _BEYOND, kind):
        if page is not None:
            rows += len(page)
            if rows > MAX_UNFILED_ROWS:
                raise NoPartsError("the parts are too far behind")
            yield page, False
    for start in range(0, len(touched), _TOUCHED_PER_PAGE):
        ids = [contact.contact_id for contact in touched[start : start + _TOUCHED_PER_PAGE]]
        after = store.FIRST_ID
        while page := await store.read_contacts(tx, org_id, ids, _BEYOND, PAGE_ROWS, kind, after):
            rows += len(page)
            if rows > MAX_UNFILED_ROWS:
                raise NoPartsError("the touched contacts have too many events")
            yield page, True
            after = page.last_id
