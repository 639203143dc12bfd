"""The JSON shapes of segments. Every `show` turns a sealed email address into the form that the caller may see."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.segments.candidates import CandidateCounts
from api.segments.definition import open_params
from api.segments.segments import SegmentPreview, SegmentResult
from api.store.segments import MembersChange, SegmentKind, SegmentRow, SizeRow
from workbench.language.codec import Json, decode

Show = Callable[[str], str]


class SegmentView(msgspec.Struct, frozen=True, rename="camel"):
    """A segment.

    `size` is the number of members at `refreshed_at`; with `last_error`, the members are still those of that time.
    `next_at` is the time of the next refresh.
    """

    id: str
    name: str
    kind: SegmentKind
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


class SegmentListItem(SegmentView, frozen=True, rename="camel"):
    """A segment in a list. `daily`: its size on each of the last 30 days, oldest first; null before it existed."""

    daily: list[int | None]


class SegmentDetailView(SegmentView, frozen=True, rename="camel"):
    """A segment with its size after each of its latest changes, newest first."""

    history: tuple[SizeRow, ...]


class SegmentResultView(SegmentView, frozen=True, rename="camel"):
    """A segment after a change. `found`: counts of the query or of the ids; null if the members were not compared."""

    found: CandidateCounts | None
    change: MembersChange | None


class SegmentPreviewView(msgspec.Struct, frozen=True, rename="camel"):
    """Counts of a query, some of its contacts, its duration, and the change in the segment that it is meant for."""

    size: int
    rows: int
    nulls: int
    unknown: int
    sample: list[str]
    seconds: float
    change: MembersChange | None


def segment_view(row: SegmentRow, show: Show) -> SegmentView:
    return SegmentView(**_fields(row, show))


def segment_list_item(row: SegmentRow, daily: list[int | None], show: Show) -> SegmentListItem:
    return SegmentListItem(**_fields(row, show), daily=daily)


def segment_detail_view(row: SegmentRow, history: Sequence[SizeRow], show: Show) -> SegmentDetailView:
    return SegmentDetailView(**_fields(row, show), history=tuple(history))


def segment_result_view(result: SegmentResult, show: Show) -> SegmentResultView:
    return SegmentResultView(**_fields(result.row, show), found=result.counts, change=result.change)


def segment_preview_view(preview: SegmentPreview) -> SegmentPreviewView:
    counts = msgspec.structs.asdict(preview.counts)
    return SegmentPreviewView(**counts, sample=preview.sample, seconds=round(preview.seconds, 3), change=preview.change)


def _fields(row: SegmentRow, show: Show) -> dict[str, Any]:
    columns = set(SegmentView.__struct_fields__) & set(SegmentRow.__struct_fields__)
    provenance = decode(row.provenance)
    if "params" in provenance:
        provenance["params"] = open_params(provenance["params"], show)
    params = None if row.params is None else open_params(decode(row.params), show)
    return {name: getattr(row, name) for name in columns} | {
        "params": params,
        "provenance": provenance,
        "next_at": row.due_at,
    }
