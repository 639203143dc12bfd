"""Pages: one document, without a network, in which everything from outside is escaped."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from workbench.language.page import (
    MAX_COHORT_CELLS,
    MAX_PAGE_ROWS,
    PageSection,
    RelativeTime,
    cell_text,
    chart_svg,
    page_html,
    row_limit,
)

NOW = datetime(2026, 11, 27, 8, tzinfo=UTC)
DAYS = [(datetime(2026, 11, day, tzinfo=UTC), day * 10, day % 2 == 0) for day in (1, 2, 3)]
ACTIVE = PageSection(
    title="Active", columns=("at", "contacts", "complete"), rows=DAYS, report=True, query_hash="abc", watermark="2026~x"
)


def test_a_page_is_one_document_without_a_network_with_hashes_and_a_heading_for_each_report() -> None:
    page = page_html("Monday", [ACTIVE, PageSection(title="Broken", error="no such column")], NOW)
    assert re.findall(r"(?:src|href)=|url\(|@import", page) == []
    assert "default-src 'none'" in page
    assert re.findall(r"<h[12][^>]*>([^<]*)<", page) == ["Monday", "Active", "Broken"]
    assert ("Query abc, as of 2026~x" in page, "no such column" in page) == (True, True)
    assert re.findall(r'<th scope="col"[^>]*>([^<]*)<', page) == ["from", "contacts", ""]
    assert re.findall(r"<td[^>]*>([^<]*)<", page)[:3] == ["2026-11-01", "10", "in part"]
    assert page.count("<rect") == 3
    assert 'aria-label="Active: contacts by from; the same numbers as in the table below"' in page
    assert "<svg" not in page_html("Monday", [ACTIVE], NOW, charts=False)


def test_texts_of_customers_are_texts() -> None:
    hostile = "<script>alert(1)</script>\u202e"
    section = PageSection(title=hostile, columns=(hostile, "events"), rows=[(hostile, 1), ("b", 2)], warnings=[hostile])
    page = page_html(hostile, [section], NOW)
    assert "<script" not in page
    assert page.count("&lt;script&gt;") >= 5


@pytest.mark.parametrize(
    ("columns", "rows", "marks"),
    [
        (("event", "events"), [("a", 3), ("b", 1)], 2),
        (("path", "contacts"), [(["a", "b"], 3), (["a"], 1)], 2),
        (("event", "events"), [("a", 3), ("a", 1)], 0),  # no name of its own
        (("event",), [("a",), ("b",)], 0),
        (("step", "event", "contacts"), [(1, "a", 3), (2, "b", None)], 2),
        (("asset", "number"), [("a", 3), ("b", 1)], 2),
        (("n",), [], 0),
        (("event", "events"), [("a", 10**400), ("b", 1)], 0),  # no number that can be drawn
    ],
)
def test_a_chart_needs_names_and_numbers(columns: tuple[str, ...], rows: list[tuple[object, ...]], marks: int) -> None:
    assert chart_svg(PageSection(title="t", columns=columns, rows=rows)).count("<rect") == marks


def test_columns_of_sql_are_shown_as_they_are_named_and_only_those_of_reports_have_words() -> None:
    columns, row = ("at", "rate", "after_seconds", "complete"), ("x", 3, 90, False)

    def texts(*, report: bool) -> list[str]:
        page = page_html("t", [PageSection(title="t", columns=columns, rows=[row], report=report)], NOW)
        return re.findall(r"<t[hd] [^>]*>([^<]*)<", page)

    assert texts(report=False) == [*columns, "x", "3", "90", "false"]
    assert texts(report=True) == ["from", "rate", "after", "", "x", "300.0%", "1 minute 30 seconds", "in part"]


WEEKS = [datetime(2026, 11, day, tzinfo=UTC) for day in (9, 16)]
RETENTION = PageSection(
    title="Back",
    columns=("cohort", "size", "number", "contacts", "share", "complete"),
    rows=[
        (WEEKS[0], 10, 0, 10, 1.0, True),
        (WEEKS[0], 10, 1, 4, 0.4, True),
        (WEEKS[0], 10, 2, 2, 0.2, False),
        (WEEKS[1], 1_000, 0, 1_000, 1.0, True),
        (WEEKS[1], 1_000, 1, 0, 0.0, False),
    ],
    report=True,
    titles={"number": "week"},
)


def cells(page: str) -> list[list[str]]:
    """Return the texts of the table of a page, row by row."""
    return [re.findall(r"<t[hd] [^>]*>([^<]*)<", row) for row in page.split("<tr>")[1:]]


def test_a_report_by_cohort_has_a_row_for_each_cohort_and_shades_its_cells() -> None:
    page = page_html("t", [RETENTION], NOW, charts=False)
    assert cells(page) == [
        ["cohort", "size", "week 0", "week 1", "week 2"],
        ["2026-11-09", "10", "100.0%", "40.0%", "20.0%*"],
        ["2026-11-16", "1,000", "100.0%", "0.0%*", ""],
    ]
    assert re.findall(r"220,(0\.\d\d)", page) == ["0.00"] * 3 + ["0.00", "0.55", "0.28", "0.00", "0.00"]
    assert "The share of the cohort that came back. Week 0 is that of the first event. * In part" in page
    assert cells(page_html("t", [RETENTION], NOW)) == cells(page)  # without a chart
    cut = msgspec.structs.replace(RETENTION, complete=False)  # more rows of the last cohort were not read
    assert ("2026-11-16" in page_html("t", [cut], NOW), "The first 1 row;" in page_html("t", [cut], NOW)) == (
        False,
        True,
    )


def test_a_report_of_sums_by_cohort_and_segment_has_a_row_for_each_of_both() -> None:
    columns = ("segment", "cohort", "size", "number", "events", "total", "per_contact", "so_far", "complete")
    rows = [
        (segment, WEEKS[0], 2, number, 1, Decimal(5), Decimal("2.5"), value, True)
        for segment in ("old", "new")
        for number, value in enumerate((Decimal("2.5"), None if segment == "new" else Decimal(5)))
    ]
    section = PageSection(title="t", columns=columns, rows=rows, report=True, titles={"number": "month"})
    assert cells(page_html("t", [section], NOW)) == [
        ["segment", "cohort", "size", "month 0", "month 1"],
        ["old", "2026-11-09", "2", "2.50", "5.00"],
        ["new", "2026-11-09", "2", "2.50", ""],
    ]
    plain = msgspec.structs.replace(section, report=False)
    assert len(cells(page_html("t", [plain], NOW))) == 5  # columns of SQL are shown as they are


def test_a_report_by_cohort_may_have_more_rows() -> None:
    columns = RETENTION.columns
    limits = [row_limit(columns, report=True), row_limit(columns, report=False), row_limit(columns[:-1], report=True)]
    assert limits == [MAX_COHORT_CELLS, MAX_PAGE_ROWS, MAX_PAGE_ROWS]


@pytest.mark.parametrize(
    ("segment", "number"), [(["a"], 0), ({"a": 1}, 0), ("a", None)], ids=["list", "object", "no number"]
)
def test_what_only_has_the_columns_of_a_report_by_cohort_is_a_plain_table(segment: Any, number: int | None) -> None:
    row = (segment, WEEKS[0], 1, number, 1, 0.5, True)
    section = PageSection(title="t", columns=("segment", *RETENTION.columns), rows=[row], report=True)
    assert len(cells(page_html("t", [section], NOW))[1]) == len(row)


def test_a_chart_of_more_than_30_bars_says_how_many_rows_it_leaves_out() -> None:
    rows = [(f"asset {number:02}", number) for number in range(33)]
    chart = chart_svg(PageSection(title="t", columns=("asset", "events"), rows=rows))
    assert (chart.count("<rect"), "3 more rows in the table below" in chart) == (30, True)


@pytest.mark.parametrize(("name", "shown", "end"), [("x" * 60, f"{'x' * 20}…{'x' * 19}", 300), ("abcd", "abcd", 30)])
def test_names_of_bars_have_the_room_that_they_need_and_long_ones_are_cut(name: str, shown: str, end: int) -> None:
    chart = chart_svg(PageSection(title="t", columns=("asset", "events"), rows=[(name, 3), ("b", 1)]))
    assert re.findall(r'<text x="(\d+)" y="15" text-anchor="end">([^<]*)<', chart) == [(str(end), shown)]


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("of_first", Decimal("0.25"), "25.0%"),
        ("median_seconds", 90_000, "1 day 1 hour"),
        ("n", 1_234_567, "1,234,567"),
        ("n", Decimal("1234.5"), "1,234.50"),
        ("at", NOW, "2026-11-27 08:00:00"),
        ("payload", {"a": 1}, '{"a":1}'),
        ("x", None, ""),
        ("median_seconds", 1e18, "1,000,000,000,000,000,000.00"),
        ("within_seconds", 10**400, "1.00000e+400"),
        ("share", float("nan"), "NaN"),
        ("n", Decimal("Infinity"), "Infinity"),
    ],
)
def test_a_cell_is_written_in_the_unit_of_its_column(column: str, value: object, text: str) -> None:
    assert cell_text(column, value) == text


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (RelativeTime(), NOW),
        (RelativeTime(seconds=86_400), NOW - timedelta(days=1)),
        (RelativeTime(every="week", periods=1), datetime(2026, 11, 16, tzinfo=UTC)),
        (RelativeTime(every="month", periods=2), datetime(2026, 9, 1, tzinfo=UTC)),
    ],
)
def test_a_relative_time_counts_back_from_the_run(time: RelativeTime, expected: datetime) -> None:
    assert time.before(NOW) == expected
