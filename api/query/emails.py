"""Sealed addresses on their way out: in clear for a key that may see them, masked as `a•••@example.com` otherwise.

Every sealed address in a text is replaced, wherever it stands, so a result never carries the sealed form.
"""

import re

import pyarrow as pa

from api.keyring import OrgKeys
from api.language.email import mask_email
from api.store.rows import Cells, Column

_SEALED = re.compile(rb"enc[1-9][0-9]?_(?:[0-9a-f]{2})+")
_REMEMBERED = 20_000
_NO_TEXT = frozenset({16, 20, 21, 23, 26, 700, 701, 1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950})
"""Types whose text cannot hold an address: bool, numbers, dates, times and uuid."""


class Emails:
    """How the addresses of one organization look to one reader."""

    def __init__(self, keys: OrgKeys, clear: bool) -> None:
        self._keys = keys
        self._clear = clear
        self._shown: dict[bytes, bytes] = {}

    def show(self, columns: tuple[Column, ...], batch: list[Cells]) -> list[Cells]:
        """Return a batch with every sealed address shown as this reader may see it."""
        return [
            cells if column.oid in _NO_TEXT else self._column(cells, column.type.endswith("[]"))
            for column, cells in zip(columns, batch, strict=True)
        ]

    def _column(self, cells: Cells, is_array: bool) -> Cells:
        texts = cells.buffers()[2]
        if texts is None or _SEALED.search(texts.to_pybytes()) is None:  # ten times faster than asking each
            return cells
        show = self._show_in_array if is_array else self._show
        return pa.array([None if cell is None else _SEALED.sub(show, cell) for cell in cells.to_pylist()], pa.binary())

    def _show_in_array(self, sealed: re.Match[bytes]) -> bytes:
        return self._show(sealed).replace(b"{", b"\\{").replace(b"}", b"\\}")

    def _show(self, sealed: re.Match[bytes]) -> bytes:
        shown = self._shown.get(sealed[0])
        if shown is None:
            if len(self._shown) >= _REMEMBERED:
                self._shown.clear()
            shown = self._shown[sealed[0]] = self._open(sealed[0])
        return shown

    def _open(self, sealed: bytes) -> bytes:
        try:
            address = self._keys.open_email(sealed.decode())
        except ValueError:  # looks like one and is none
            return sealed
        return (address if self._clear else mask_email(address)).encode()
