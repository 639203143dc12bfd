from pathlib import Path

from bench import plots, record
from bench.effort import Measurement
from bench.figures import Slice, quantiles
from bench.table import ratio_at_least, row

SLICE = Slice(10, 10, 0, 1.0, {"202": 10}, quantiles([1.0, 2.0, 5.0]), {"service": 0.5, "postgres": 0.1, "load": 0.1})


def measured(*names: str) -> Measurement:
    rows = [row("  figure", "events/s", [10.0], ("reference", [20.0]), ratio_at_least(0.4)), row("plain", "ms", [1.0])]
    return Measurement(rows, {name: [SLICE, SLICE] for name in names})


def test_the_last_record_of_a_part_is_kept_with_its_verdicts(tmp_path: Path) -> None:
    record.keep("singles", measured("old"), tmp_path)
    record.keep("singles", measured("new"), tmp_path)
    last = record.last("singles", tmp_path)
    assert last is not None
    assert (last.rows, last.slices, last.is_met) == (measured().rows, {"new": [SLICE, SLICE]}, {"figure": True})
    assert record.last("batches", tmp_path) is None


def test_pictures_are_drawn_from_existing_records(tmp_path: Path) -> None:
    assert plots.draw(tmp_path, tmp_path) == []
    record.keep("latency", measured("half", "bare"), tmp_path)
    record.keep("growth-1", measured("new", "full"), tmp_path)
    drawn = plots.draw(tmp_path, tmp_path)
    assert [path.name for path in drawn] == ["latency.svg", "growth.svg"]
    assert all(path.read_text().startswith("<svg") for path in drawn)
