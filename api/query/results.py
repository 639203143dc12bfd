"""The result of an analyst's query: columns, batches of rows, and the watermark that brings the same result back later.

Email addresses are stored sealed and shown in clear only for a key with `pii:read`, otherwise masked
(`a•••@example.com`). Every sealed address in a text is replaced, wherever in the text it is, so a result never carries
the sealed form.

A watermark is `2026-11-21T12:00:00.000000Z~…`: a readable time, and the snapshot, sealed because its transaction
numbers count the transactions of all organizations. The time is part of what is sealed.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pyarrow as pa

from api.crypto import EmailDisplay, OrgKeys
from api.store.analyst import Cells, ContactChoice, ResultColumn, RowBatch, Snapshot

_SEALED = re.compile(rb"enc[1-9][0-9]?_(?:[0-9a-f]{2})+")
_MAX_CACHED_EMAILS = 20_000
# bool, numbers, dates, times and uuid: their texts cannot contain an address.
_OIDS_WITHOUT_EMAILS = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950})


class EmailReplacer:
    """Replaces the sealed addresses of one organization by clear or masked ones."""

    def __init__(self, show: EmailDisplay) -> None:
        self._show = show
        self._cache: dict[bytes, bytes] = {}

    def replace(self, columns: tuple[ResultColumn, ...], batch: list[Cells]) -> list[Cells]:
        return [
            cells if column.oid in _OIDS_WITHOUT_EMAILS else self._replace_in(cells, column.type.endswith("[]"))
            for column, cells in zip(columns, batch, strict=True)
        ]

    def _replace_in(self, cells: Cells, is_array: bool) -> Cells:
        content = cells.buffers()[2]
        # One search over the whole column is ten times faster than one per cell.
        if content is None or _SEALED.search(content.to_pybytes()) is None:
            return cells
        visible = self._visible_in_array if is_array else self._visible
        values = cells.to_pylist()
        return pa.array([None if value is None else _SEALED.sub(visible, value) for value in values], pa.binary())

    def _visible_in_array(self, sealed: re.Match[bytes]) -> bytes:
        # A local part may contain braces, which delimit arrays in Postgres's text form.
        return self._visible(sealed).replace(b"{", b"\\{").replace(b"}", b"\\}")

    def _visible(self, sealed: re.Match[bytes]) -> bytes:
        visible = self._cache.get(sealed[0])
        if visible is None:
            try:
                visible = self._show(sealed[0].decode()).encode()
            except ValueError:  # other text that happens to look like a sealed address
                visible = sealed[0]
            if len(self._cache) >= _MAX_CACHED_EMAILS:
                self._cache.clear()
            self._cache[sealed[0]] = visible
        return visible


class QueryResult:
    """The columns, and all rows in batches; the first batch has been read already.

    `watermark` identifies the snapshot that the query read; None where the database cannot tell. `choice`: the
    contacts that it read; None if the caller gave no `choose`.
    """

    def __init__(
        self,
        watermark: str | None,
        columns: tuple[ResultColumn, ...],
        first: RowBatch,
        rest: AsyncIterator[RowBatch],
        emails: EmailReplacer,
        choice: ContactChoice | None = None,
    ) -> None:
        self.watermark = watermark
        self.columns = columns
        self.choice = choice
        self._first = first
        self._rest = rest
        self._emails = emails

    async def batches(self) -> AsyncIterator[RowBatch]:
        """Yield every batch once, with sealed addresses; raise QueryError or DatabaseUnavailableError."""
        yield self._first
        async for batch in self._rest:
            yield batch

    def visible_columns(self, batch: RowBatch) -> list[Cells]:
        return self._emails.replace(self.columns, batch.columns())


def write_watermark(snapshot: Snapshot, keys: OrgKeys) -> str:
    at = snapshot.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    numbers = (snapshot.system_identifier, snapshot.first_number, snapshot.end, *snapshot.open)
    return f"{at}~{urlsafe_b64encode(keys.seal_snapshot(' '.join(map(str, numbers)), at)).decode().rstrip('=')}"


def read_watermark(watermark: str, keys: OrgKeys) -> Snapshot:
    """Return the snapshot of a watermark; raise ValueError if it was not issued to the organization of `keys`."""
    at, _, sealed = watermark.partition("~")
    padded = sealed + "=" * (-len(sealed) % 4)
    numbers = keys.open_snapshot(urlsafe_b64decode(padded.encode("ascii")), at)
    system_identifier, first_number, end, *open_numbers = map(int, numbers.split(" "))
    return Snapshot(system_identifier, first_number, end, tuple(open_numbers), datetime.fromisoformat(at))
