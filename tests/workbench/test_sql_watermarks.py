"""A frame has the watermark and the hash of its query, and the query can be repeated at that watermark."""

from collections.abc import Callable

import polars as pl
import pytest

from tests.running import Running
from workbench import InvalidArgumentError, SqlError, Workbench
from workbench.display.charts import report
from workbench.frames import Result

COUNT = "SELECT count(*) AS n FROM app_events WHERE event = :event"


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_a_result_is_repeated_despite_later_events(wb: Workbench) -> None:
    wb.events.send("watermarked", external_id="w", payload={"n": 1})
    first = wb.sql(COUNT, event="watermarked")
    wb.events.send_many(
        [{"event": "watermarked", "contact": {"externalId": "w"}, "payload": {"n": n}} for n in range(5)]
    )
    again = wb.sql(COUNT, event="watermarked", as_of=first.watermark)
    assert [frame["n"][0] for frame in (first, again, wb.sql(COUNT, event="watermarked"))] == [1, 1, 6]
    assert (again.query_hash, again.watermark) == (first.query_hash, first.watermark)
    (streamed,) = wb.sql(COUNT, event="watermarked", as_of=first, stream=True)
    assert streamed.equals(first)
    assert streamed.watermark == first.watermark


def test_a_derived_frame_has_no_watermark(wb: Workbench) -> None:
    frame = wb.sql("SELECT 1 AS one")
    assert frame.query_hash
    assert frame.watermark
    assert (frame.head(1).query_hash, frame.head(1).watermark) == (None, None)
    assert str(frame) == str(pl.DataFrame({"one": [1]}, schema={"one": pl.Int32}))


def rename(frame: pl.DataFrame) -> None:
    frame.columns = ["two"]


@pytest.mark.parametrize(
    "change",
    [
        rename,
        lambda frame: frame.__setitem__((0, "one"), 5),
        lambda frame: frame.drop_in_place("one"),
        lambda frame: frame.extend(pl.DataFrame(frame)),
        lambda frame: frame.insert_column(0, pl.Series("two", [2])),
        lambda frame: frame.replace_column(0, pl.Series("two", [2])),
        lambda frame: frame.hstack([pl.Series("two", [2])], in_place=True),
        lambda frame: frame.vstack(pl.DataFrame(frame), in_place=True),
    ],
)
def test_a_frame_changed_in_place_has_no_watermark(change: Callable[[pl.DataFrame], object]) -> None:
    frame = Result({"one": [1]})
    frame.statement, frame.params, frame.query_hash, frame.watermark = "SELECT 1 AS one", {}, "hash", "mark"
    table = report(frame, "revenue", "One")
    frame.vstack(frame.clone()).hstack([pl.Series("two", [2, 2])])
    assert (frame.query_hash, table.watermark, table.view is None) == ("hash", "mark", False)
    for result in (frame, table):
        change(result)
        assert (result.statement, result.params, result.query_hash, result.watermark) == (None,) * 4
    assert table.view is None


def test_a_frame_without_a_watermark_cannot_be_repeated(wb: Workbench) -> None:
    changed = wb.sql("SELECT 1 AS one").head(1)
    for without in (changed, changed.watermark):
        with pytest.raises(InvalidArgumentError, match=r"as_of takes a result of wb\.sql"):
            wb.sql("SELECT 1 AS one", as_of=without)


def test_contacts_have_no_history(wb: Workbench) -> None:
    with pytest.raises(SqlError, match="asOf covers only app_events"):
        wb.sql("SELECT * FROM contacts", as_of=wb.sql("SELECT 1 AS one").watermark)
    with pytest.raises(SqlError, match="asOf: is not the watermark"):
        wb.sql("SELECT * FROM app_events", as_of="yesterday")
