"""Pages: one document, without a network, in which everything from outside is escaped."""

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pytest

from workbench.language.page import (
    MAX_COHORT_CELLS,
    MAX_PAGE_ROWS,
    PageSection,
    RelativeTime,
    cell_text,
    chart_svg,
    column_title,
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


def test_a_chart_over_time_has_a_column_for_each_time_and_writes_the_first_the_last_and_the_highest() -> None:
    assert chart_svg(ACTIVE) == (
        '<svg viewBox="0 0 640 180" width="640" height="180" role="img" '
        'aria-label="Active: contacts by from; the same numbers as in the table below">'
        '<rect x="21.3" y="116.7" width="170.7" height="43.3"><title>2026-11-01: 10</title></rect>'
        '<rect x="234.7" y="73.3" width="170.7" height="86.7"><title>2026-11-02: 20</title></rect>'
        '<rect x="448.0" y="30.0" width="170.7" height="130.0"><title>2026-11-03: 30</title></rect>'
        '<text x="0" y="176">2026-11-01</text><text x="640" y="176" text-anchor="end">2026-11-03</text>'
        '<text x="533.3" y="24.0" text-anchor="middle">30</text></svg>'
    )


@pytest.mark.parametrize(("peak", "anchor"), [(0, "start"), (2, "start"), (3, "middle"), (29, "middle"), (30, "end")])
def test_the_highest_number_of_a_chart_stays_inside(peak: int, anchor: str) -> None:
    rows = [(NOW + timedelta(days=day), int(day == peak)) for day in range(32)]
    chart = chart_svg(PageSection(title="t", columns=("at", "n"), rows=rows))
    assert f'<text x="{peak * 20 + 10:.1f}" y="24.0" text-anchor="{anchor}">1</text>' in chart


def test_a_chart_of_bars_has_names_numbers_and_no_bar_below_zero() -> None:
    rows = [("ETH", 3), ("DAI", 1), ("BTC", -1), ("SOL", None)]
    assert chart_svg(PageSection(title="Sums", columns=("asset", "sold"), rows=rows)) == (
        '<svg viewBox="0 0 640 92" width="640" height="92" role="img" '
        'aria-label="Sums: sold by asset; the same numbers as in the table below">'
        '<text x="22" y="15" text-anchor="end">ETH</text><rect x="30" y="4" width="500.0" height="14"/>'
        '<text x="536.0" y="15">3</text>'
        '<text x="22" y="37" text-anchor="end">DAI</text><rect x="30" y="26" width="166.7" height="14"/>'
        '<text x="202.7" y="37">1</text>'
        '<text x="22" y="59" text-anchor="end">BTC</text><rect x="30" y="48" width="0.0" height="14"/>'
        '<text x="36.0" y="59">-1</text>'
        '<text x="22" y="81" text-anchor="end">SOL</text><rect x="30" y="70" width="0.0" height="14"/>'
        '<text x="36.0" y="81"></text></svg>'
    )


@pytest.mark.parametrize(
    ("columns", "row", "report", "axes"),
    [
        (("asset", "n", "total", "contacts"), ("a", 1, 2, 3), False, "total by asset"),
        (("asset", "n", "m"), ("a", 1, 2), False, "n by asset"),
        (("asset", "empty", "m"), ("a", None, 2), False, "m by asset"),
        (("asset", "yes", "m"), ("a", True, 2), False, "m by asset"),
        (("step", "event", "of_first"), (1, "a", 0.5), True, "% of step 1 by event"),
        (("step", "event", "of_first"), (1, "a", 0.5), False, "step by event"),
        (("number", "asset", "m"), (1, "a", 5), True, "m by asset"),
        (("path", "asset", "m"), (["a"], "b", 5), True, "m by asset"),
    ],
)
def test_a_chart_shows_the_most_telling_number(
    columns: tuple[str, ...], row: tuple[object, ...], report: bool, axes: str
) -> None:
    others = ["other" if isinstance(value, str) else ["c"] if isinstance(value, list) else value for value in row]
    chart = chart_svg(PageSection(title="t", columns=columns, rows=[row, others], report=report))
    assert f'aria-label="t: {axes}; the same' in chart
    assert (">50.0%<" in chart) is ("%" in axes)


@pytest.mark.parametrize(("days", "axes"), [(1, None), (2, "n by at"), (120, "n by at"), (121, "n by day")])
def test_a_chart_over_time_has_2_to_120_columns(days: int, axes: str | None) -> None:
    rows = [(NOW + timedelta(days=day), f"day {day}", 1) for day in range(days)]
    chart = chart_svg(PageSection(title="t", columns=("at", "day", "n"), rows=rows))
    assert re.findall('aria-label="t: ([^;]*);', chart) == ([] if axes is None else [axes])


def test_the_whole_document() -> None:
    sections = [
        msgspec.structs.replace(ACTIVE, rows=DAYS[:1], warnings=["late"], complete=False),
        PageSection(title="Broken", error="no such column"),
        PageSection(title="Empty", columns=("a",), query_hash="abc"),
    ]
    whole = page_html("Monday", sections, NOW)
    assert page_html("Monday", sections, NOW, charts=False) == whole  # one row makes no chart
    page = re.sub(r"padding[^;]*;border[^;]*;vertical[^;]*;", "", whole)
    assert (
        page.partition("<body>")[2]
        == """
<main>
<h1>Monday</h1>
<p class="soft">Made on 2026-11-27 08:00 UTC</p>
<section aria-labelledby="s1">
<h2 id="s1">Active</h2>
<p><b>Warning:</b> late</p>

<div class="wide" role="region" aria-labelledby="s1" tabindex="0"><table>
<thead><tr>
<th scope="col" style="text-align:left">from</th>
<th scope="col" style="text-align:right">contacts</th>
<th scope="col" style="text-align:left"></th>
</tr></thead>
<tbody>
<tr>
<td style="text-align:left;white-space:nowrap">2026-11-01</td>
<td style="text-align:right;white-space:nowrap">10</td>
<td style="text-align:left;white-space:nowrap">in part</td>
</tr>
</tbody>
</table></div>
<p class="soft">The first 1 row; the query returns more.</p>
<p class="soft">Query abc, as of 2026~x</p>
</section>
<section aria-labelledby="s2">
<h2 id="s2">Broken</h2>
<p class="bad"><b>This report failed:</b> no such column</p>
</section>
<section aria-labelledby="s3">
<h2 id="s3">Empty</h2>
<p>No data in this period.</p>
<p class="soft">Query abc</p>
</section>
</main>
</body>
</html>"""
    )


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
    assert chart_svg(RETENTION) == ""
    assert re.findall(r"<t[hd] [^>]*text-align:(\w+)", page) == [*["left", "right", "right", "right", "right"] * 3]
    cut = msgspec.structs.replace(RETENTION, complete=False)  # more rows of the last cohort were not read
    assert ("2026-11-16" in page_html("t", [cut], NOW), "The first 1 row;" in page_html("t", [cut], NOW)) == (
        False,
        True,
    )


def test_a_cohort_without_a_share_above_zero_has_no_shade() -> None:
    first, zero = RETENTION.rows[0], (WEEKS[0], 10, 1, 0, 0.0, True)
    for rows, texts in (([first], ["100.0%"]), ([first, zero], ["100.0%", "0.0%"])):
        only = msgspec.structs.replace(RETENTION, rows=rows, complete=False)  # the only cohort stays
        page = page_html("t", [only], NOW)
        assert cells(page)[1] == ["2026-11-09", "10", *texts]
        assert set(re.findall(r"220,(0\.\d\d)", page)) == {"0.00"}


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
    assert "The total per contact so far. Month 0 is that of the first event.<" in page_html("t", [section], NOW)
    plain = msgspec.structs.replace(section, report=False)
    assert len(cells(page_html("t", [plain], NOW))) == 5  # columns of SQL are shown as they are


def test_a_report_by_cohort_may_have_more_rows() -> None:
    columns = RETENTION.columns
    limits = [row_limit(columns, report=True), row_limit(columns, report=False), row_limit(columns[:-1], report=True)]
    assert limits == [MAX_COHORT_CELLS, MAX_PAGE_ROWS, MAX_PAGE_ROWS]
    assert row_limit(("cohort", "size", "number", "complete"), report=True) == MAX_PAGE_ROWS
    assert row_limit(("cohort", "size", "number", "complete", "so_far"), report=True) == MAX_COHORT_CELLS


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
    assert chart.count("<rect") == 30
    assert chart.endswith('<text x="68" y="675">3 more rows in the table below</text></svg>')
    assert 'height="686"' in chart
    assert "1 more row in" in chart_svg(PageSection(title="t", columns=("asset", "events"), rows=rows[:31]))
    assert "more row" not in chart_svg(PageSection(title="t", columns=("asset", "events"), rows=rows[:30]))


@pytest.mark.parametrize(
    ("name", "shown", "end"),
    [("x" * 41, f"{'x' * 20}…{'x' * 19}", 300), ("x" * 40, "x" * 40, 300), ("a\nb", "a\\u000ab", 60)],
)
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
        ("n", 10**39, f"{10**39:,}"),
        ("n", 10**40, "1.00000e+40"),
        ("after_seconds", 10**10, "115,740 days 17 hours"),
        ("after_seconds", 10**11, "100,000,000,000"),
        ("after_seconds", 0.4, "no time"),
        ("within_seconds", 3_725, "1 hour 2 minutes"),
        ("complete", True, ""),
        ("complete", False, "in part"),
        ("other", True, "true"),
        ("day", DAYS[0][0].date(), "2026-11-01"),
        ("at", DAYS[0][0], "2026-11-01"),
        ("at", DAYS[0][0] + timedelta(minutes=1), "2026-11-01 00:01:00"),
        ("path", ["a", "b"], "a → b"),
        ("values", ["a", 1], '["a",1]'),
        ("contact_id", UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    ],
)
def test_a_cell_is_written_in_the_unit_of_its_column(column: str, value: object, text: str) -> None:
    assert cell_text(column, value) == text


def test_the_heading_of_a_column() -> None:
    titles = [column_title(name) for name in ("per_contact_so_far", "of_first")]
    assert [*titles, column_title("number", {"number": "week"})] == ["per contact so far", "% of step 1", "week"]


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
