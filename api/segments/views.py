"""What callers see of segments: the JSON shapes, nothing else."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.language.codec import Json, decode
from api.segments.definition import opened
from api.segments.finding import Found
from api.segments.segments import Filled, Preview
from api.store.members import Change
from api.store.segments import Kind, SegmentRow, SizeRow

Shown = Callable[[str], str]


class SegmentView(msgspec.Struct, frozen=True, rename="camel"):
    """A segment. `size` is of `refreshed_at`; with `last_error` the members are still those of then. `next_at`: the next try."""

    id: str
    name: str
    kind: Kind
    size: int
    sql: str | None
    params: Json
    every_seconds: int | None
    provenance: dict[str, Any]
    refreshed_at: datetime | None
    last_error: str | None
    failing_since: datetime | None
    next_at: datetime | None
    revision: int
    created_at: datetime
    created_by: str
    updated_at: datetime
    updated_by: str
    archived_at: datetime | None


class ListedView(SegmentView, frozen=True, rename="camel"):
    """A segment in a list; `daily` is how large it was on each of the last 30 days, oldest first, null before it was there."""

    daily: list[int | None]


class ShownView(SegmentView, frozen=True, rename="camel"):
    """A segment with its size after each of its newest changes, newest first."""

    history: tuple[SizeRow, ...]


class FilledView(SegmentView, frozen=True, rename="camel"):
    """A segment that was just filled: what was found, who came and who went; null when nothing was looked for."""

    found: Found | None
    change: Change | None


class PreviewView(msgspec.Struct, frozen=True, rename="camel"):
    """What a query would find, in how many seconds; `change`: in the segment that it was tried for."""

    size: int
    rows: int
    nulls: int
    unknown: int
    sample: list[str]
    seconds: float
    change: Change | None


def segment_view(row: SegmentRow, shown: Shown) -> SegmentView:
    """Return the view of a segment."""
    return SegmentView(**_fields(row, shown))


def listed_view(row: SegmentRow, daily: list[int | None], shown: Shown) -> ListedView:
    """Return the view of a segment in a list."""
    return ListedView(**_fields(row, shown), daily=daily)


def shown_view(row: SegmentRow, history: Sequence[SizeRow], shown: Shown) -> ShownView:
    """Return the view of a segment with its sizes."""
    return ShownView(**_fields(row, shown), history=tuple(history))


def filled_view(filled: Filled, shown: Shown) -> FilledView:
    """Return the view of a segment that was filled."""
    return FilledView(**_fields(filled.row, shown), found=filled.found, change=filled.change)


def preview_view(tried: Preview) -> PreviewView:
    """Return the view of a query that was tried."""
    there = tried.found
    return PreviewView(
        there.size, there.rows, there.nulls, there.unknown, tried.sample, round(tried.seconds, 3), tried.change
    )


def _fields(row: SegmentRow, shown: Shown) -> dict[str, Any]:
    values = {
        name: getattr(row, name) for name in SegmentView.__struct_fields__ if name in SegmentRow.__struct_fields__
    }
    provenance = decode(row.provenance)
    if "params" in provenance:
        provenance["params"] = opened(provenance["params"], shown)
    params = None if row.params is None else opened(decode(row.params), shown)
    return values | {"params": params, "provenance": provenance, "next_at": row.due_at}
