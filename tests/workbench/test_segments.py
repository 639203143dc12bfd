"""Segments are defined, inspected and used in automations and reports, or frozen from frames."""

from typing import Any

import polars as pl
import pytest

from tests.installation import until
from tests.running import Running
from workbench import InvalidArgumentError, InvalidRequestError, NotFoundError, SqlError, Workbench, segments

BIG = (
    "SELECT id AS contact_id FROM contacts WHERE starts_with(external_id, 'seg-') "
    "AND (metadata ->> 'balance')::int > :least"
)


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


@pytest.fixture(scope="module", autouse=True)
def segment_events(wb: Workbench) -> None:
    for number in range(6):
        attributes = {"balance": number * 100}
        wb.events.send("seg:deposit", external_id=f"seg-{number}", attributes=attributes, payload={"amount": number})


def test_defining_shows_the_size_and_its_change(wb: Workbench) -> None:
    segment = wb.segments.define("rich", sql=BIG, every="30m", least=300)
    assert (segment.name, segment.size, str(segment.every)) == ("rich", 2, "0:30:00")
    assert "rich: 2 contacts\n2 entered, 0 left, 0 before" in repr(segment)
    changed = wb.segments.define("rich", sql=BIG, least=100)
    assert (changed.size, str(changed.every)) == (4, "0:30:00")
    assert "2 entered, 0 left, 2 before" in changed._repr_html_()
    assert "unchanged" in repr(wb.segments.define("rich", sql=BIG, least=100))
    history = changed.history().select("size", "entered", "departed")
    assert history.rows() == [(2, 2, 0), (4, 2, 0), (4, 0, 0)]


def test_an_automation_starts_for_contacts_that_enter_a_segment(wb: Workbench) -> None:
    sql = "SELECT id AS contact_id FROM contacts WHERE external_id = :name"
    segment = wb.segments.define("newly-rich", sql=sql, params={"name": "newly-rich"})
    welcome = wb.automation("Newly rich").on_segment_entered("newly-rich").add_tag("rich").publish()
    wb.events.send("deposit", external_id="newly-rich")
    assert segment.refresh().size == 1
    until(lambda: [entry.state for entry in welcome.entries()] == ["completed"], "the engine runs the entry")
    assert "rich" in wb.contact(external_id="newly-rich").tags
    assert "segment_entered" in repr(wb.contact(external_id="newly-rich").timeline)
    assert welcome.backtest(days=1).entries()["entry"].to_list() == [welcome.entries().latest.event_id]
    with pytest.raises(InvalidRequestError, match="in use by the automation 'Newly rich'"):
        segment.delete()
    welcome.archive()
    segment.delete()


def test_a_segment_is_a_table_of_its_members_and_a_picture_of_its_sizes(wb: Workbench) -> None:
    wb.segments.define("some", sql=BIG, least=300)
    some = wb.segments["some"]
    members = some.members()
    assert sorted(members["external_id"]) == ["seg-4", "seg-5"]
    assert members.columns == ["contact_id", "entered_at", "external_id", "email", "wallet_address"]
    assert "data:image/svg+xml;base64," in some.history()._repr_html_()
    assert "SELECT id AS contact_id" in some._repr_html_()


def test_all_segments_are_a_table_and_a_sequence(wb: Workbench) -> None:
    wb.segments.define("listed", sql=BIG, least=0)
    assert "listed" in wb.segments
    assert "listed" in wb.segments._ipython_key_completions_()
    wb.segments.define("listed-later", sql=BIG, least=300)
    assert all("listed-later" in shown for shown in wb.segments._repr_mimebundle_().values())
    wb.segments["listed-later"].delete()
    assert len(wb.segments) == len(wb.segments.names) == len(list(wb.segments))
    (line,) = [line for line in repr(wb.segments).splitlines() if line.startswith("listed ")]
    assert line.split()[1:3] == ["5", "0"]
    assert line.endswith("fresh")
    assert "data:image/svg+xml;base64," in wb.segments._repr_html_()
    row = wb.segments.frame().filter(pl.col("name") == "listed").row(0, named=True)
    assert (row["kind"], row["size"], row["week_ago"], row["last_error"]) == ("query", 5, 5, None)


def test_a_preview_counts_changes_and_stores_nothing(wb: Workbench) -> None:
    wb.segments.define("tried", sql=BIG, least=300)
    preview = wb.segments.preview(BIG, least=0, name="tried")
    assert (preview.size, len(preview.sample)) == (5, 5)
    assert "5 contacts, found in" in repr(preview)
    assert "3 would enter, 0 would leave." in preview._repr_html_()
    assert wb.segments["tried"].size == 2


def test_mistakes_are_explained(wb: Workbench) -> None:
    wb.segments.define("known", sql=BIG, least=300)
    with pytest.raises(SqlError, match="line 1: SELECT id AS contact_id FROM contcts\n"):
        wb.segments.define("a", sql="SELECT id AS contact_id FROM contcts")
    with pytest.raises(SqlError, match="must return a column contact_id; its columns are id"):
        wb.segments.define("a", sql="SELECT id FROM contacts")
    with pytest.raises(SqlError, match="Only SELECT"):
        wb.segments.define("a", sql="DELETE FROM contacts")
    with pytest.raises(InvalidRequestError, match="name: must be 1 to"):
        wb.segments.define("", sql=BIG, least=1)
    with pytest.raises(InvalidRequestError, match="such as 'big-spenders'"):
        wb.segments.define("Big Spenders", sql=BIG, least=1)
    with pytest.raises(InvalidArgumentError, match="every='often' is not a duration"):
        wb.segments.define("a", sql=BIG, every="often", least=1)
    with pytest.raises(InvalidRequestError, match="a minute to a week"):
        wb.segments.define("a", sql=BIG, every="1s", least=1)
    with pytest.raises(InvalidRequestError, match=r"params\.least: is missing"):
        wb.segments.define("a", sql=BIG)
    with pytest.raises(NotFoundError, match=r"did you mean 'known'\?"):
        wb.segments["knwon"]
    with pytest.raises(InvalidArgumentError, match="Write it like this"):
        wb.segments.define("a")


def test_a_segment_in_use_is_not_deleted(wb: Workbench) -> None:
    segment = wb.segments.define("used", sql=BIG, least=300)
    automation = wb.automation("uses a segment").on("seg:deposit")
    automation = automation.when("contact.segments", contains="used").then(lambda b: b.add_tag("rich")).publish()
    with pytest.raises(InvalidRequestError, match="'used' is in use by the automation 'uses a segment'"):
        segment.delete()
    automation.archive()
    segment.delete()
    assert "used" not in wb.segments.names


def test_an_undefined_segment_causes_a_warning(wb: Workbench) -> None:
    wb.segments.define("big-fish", sql=BIG, least=300)
    automation = wb.automation("asks").on("seg:deposit")
    asking = automation.when("contact.segments", contains="bigfish").then(lambda b: b.add_tag("rich"))
    warnings = [warning.message for warning in asking.check()]
    assert "unknown segment 'bigfish'; did you mean 'big-fish'?" in warnings
    fine = automation.when("contact.segments", contains="big-fish").then(lambda b: b.add_tag("rich"))
    assert [warning for warning in fine.check() if "segment" in warning.message] == []
    assert "If contact.segments contains “big-fish”" in fine.describe()


def test_a_simulation_reads_the_segments_of_the_contact(wb: Workbench) -> None:
    wb.segments.define("simulated", sql=BIG, least=300)
    automation = wb.automation("thanks").on("seg:deposit").when("contact.segments", contains="simulated")
    automation = automation.then(lambda b: b.add_tag("thanked")).otherwise(lambda b: b.exit())
    for external_id, outcomes in (("seg-5", ["tagged"]), ("seg-0", ["exited"])):
        simulation = automation.simulate({"contact": {"externalId": external_id}})
        assert [step.outcome for step in simulation.steps][-1:] == outcomes, simulation
    assert "in no segment" in automation.simulate({"contact": {"externalId": "nobody"}})._repr_html_()
    assert "simulated" in wb.contact(external_id="seg-5").segments


@pytest.mark.parametrize(
    ("ask", "count"),
    [
        (lambda wb, **of: wb.funnel(["seg:deposit", "seg:deposit"], **of)["contacts"].to_list()[0], 2),
        (lambda wb, **of: wb.active_users("seg:deposit", **of)["contacts"].sum(), 2),
        (lambda wb, **of: wb.revenue("seg:deposit", "amount", **of)["total"].sum(), 9),
        (lambda wb, **of: wb.retention("seg:deposit", **of)["size"].max(), 2),
        (lambda wb, **of: wb.cohorts("seg:deposit", "seg:deposit", **of)["size"].max(), 2),
        (lambda wb, **of: wb.paths("seg:deposit", **of)["contacts"].sum(), 2),
        (lambda wb, **of: wb.time_to_convert("seg:deposit", "seg:deposit", **of)["contacts"].sum(), 0),
        (lambda wb, **of: wb.message_performance(**of).height, 0),
    ],
)
def test_reports_can_be_of_one_segment(wb: Workbench, ask: Any, count: int) -> None:
    wb.segments.define("reported", sql=BIG, least=300)
    assert ask(wb, segment="reported") == count


def test_a_report_of_a_segment_names_the_segment(wb: Workbench) -> None:
    wb.segments.define("reported", sql=BIG, least=300)
    report = wb.revenue("seg:deposit", "amount", segment="reported")
    assert report.view.title == "amount of seg:deposit, of reported"
    assert "segment = :segment" in report.statement
    assert wb.sql(report.statement, **report.params).rows() == report.rows()
    with pytest.raises(NotFoundError, match="did you mean 'reported'"):
        wb.revenue("seg:deposit", "amount", segment="reportd")


def test_an_audience_stores_the_query_of_its_frame(wb: Workbench) -> None:
    frame = wb.sql(BIG, least=300)
    segment = wb.audience(frame, name="invited")
    assert (
        wb.audience(
            wb.sql("SELECT unnest(:ids ::uuid[]) AS contact_id", ids=frame["contact_id"]), name="by-column"
        ).size
        == 2
    )
    assert (segment.size, segment.sql, segment.params) == (2, BIG, {"least": 300})
    assert wb.segments["invited"].size == 2
    assert segment.provenance["queryHash"] == frame.query_hash
    assert segment.provenance["watermark"] == frame.watermark
    assert "which does not change: 2 rows from wb.sql" in repr(segment)
    again = wb.audience(frame["contact_id"].to_list()[:1], name="invited")
    assert (again.size, again.provenance) == (1, {"rows": 1, "unknown": 0})
    assert "0 entered, 1 left, 2 before" in repr(again)
    assert wb.audience(pl.LazyFrame(frame), name="invited").size == 2
    with pytest.raises(InvalidArgumentError, match="'invited' is an audience"):
        wb.segments.define("invited", sql=BIG, least=1)


def test_a_large_frame_is_stored_in_parts(wb: Workbench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_MAX_PART", 1)
    ids = wb.sql(BIG, least=200)["contact_id"].to_list()
    segment = wb.audience(ids, name="parts")
    assert (segment.size, segment.provenance) == (3, {"rows": 3, "unknown": 0})
    again = wb.audience(ids[1:], name="parts")
    assert "0 entered, 1 left, 3 before" in repr(again)


def test_invalid_audiences_are_explained(wb: Workbench) -> None:
    with pytest.raises(InvalidArgumentError, match="no column contact_id; its columns: id, email"):
        wb.audience(pl.DataFrame({"id": ["a"], "email": ["b"]}), name="x")
    with pytest.raises(InvalidRequestError, match="must be the id of a contact"):
        wb.audience(["ann"], name="x")
    with pytest.raises(InvalidArgumentError, match="An audience needs a frame"):
        wb.audience("ann", name="x")
    wb.segments.define("by-query", sql=BIG, least=1)
    with pytest.raises(InvalidArgumentError, match="is defined by a query"):
        wb.audience([], name="by-query")
    empty = wb.audience(["00000000-0000-0000-0000-000000000000"], name="nobody")
    assert "1 id left out: unknown or erased" in empty._repr_html_()
