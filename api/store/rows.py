"""Rows of an analyst's query as columns of Arrow, each cell in Postgres's text form, or in its binary form.

What costs time is one Python call per cell. So psycopg makes tuples of whole rows, and Arrow takes them apart, both in C; a few
hundred rows at a time, while they are in the processor's cache.
"""

from typing import TypeAlias

import msgspec
import pyarrow as pa
from psycopg import postgres
from psycopg.adapt import AdaptersMap, Transformer
from psycopg.pq import Format
from psycopg.pq.abc import PGresult
from psycopg.types.string import ByteaBinaryLoader

Cells: TypeAlias = pa.BinaryArray

_ANY_TYPE = 0
_UNKNOWN = 705

_AS_SENT = AdaptersMap()
_AS_SENT.register_loader(_ANY_TYPE, ByteaBinaryLoader)


class Column(msgspec.Struct, frozen=True):
    """A column of a result: `type` is Postgres's name of its type, `modifier` the declared size (-1: none).

    `binary`: whether its cells are in Postgres's binary form.
    """

    name: str
    type: str
    oid: int
    modifier: int
    binary: bool = False


class Batch:
    """Rows as they come, a block at a time; `nbytes` is what they hold."""

    def __init__(self, empty: pa.StructArray) -> None:
        self.rows = self.nbytes = 0
        self._blocks = [empty]

    def add(self, block: pa.StructArray) -> None:
        """Take some more rows."""
        self._blocks.append(block)
        self.rows += len(block)
        self.nbytes += block.nbytes

    def columns(self) -> list[Cells]:
        """Return the cells of each column."""
        columns: list[Cells] = pa.concat_arrays(self._blocks).flatten()
        return columns


class Blocks:
    """Makes blocks of the results of one query."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        self.columns = columns
        self._type = pa.struct([(str(position), pa.binary()) for position in range(len(columns))])
        self._rows = Transformer(_AS_SENT)
        self._rows.set_loader_types([column.oid for column in columns], Format.BINARY)

    def batch(self) -> Batch:
        """Return a batch without rows."""
        return Batch(pa.array([], self._type))

    def block(self, result: PGresult) -> pa.StructArray:
        """Return the rows of a result."""
        self._rows.set_pgresult(result, set_loaders=False)
        return pa.array(self._rows.load_rows(0, result.ntuples, tuple), self._type)


def described(result: PGresult) -> tuple[Column, ...]:
    """Return the columns of a result."""
    return tuple(
        Column(
            (result.fname(index) or b"").decode(),
            _type_name(result.ftype(index)),
            result.ftype(index),
            result.fmod(index),
        )
        for index in range(result.nfields)
    )


def _type_name(oid: int) -> str:
    known = postgres.types.get(oid)
    if known is None:
        return "text" if oid == _UNKNOWN else f"oid {oid}"
    return known.name if known.oid == oid else f"{known.name}[]"
