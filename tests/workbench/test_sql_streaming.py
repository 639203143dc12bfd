"""Results larger than memory are read frame by frame or into a file; truncated ones are never shown as complete."""

import subprocess
import sys
from collections.abc import Iterator
from http.server import HTTPServer
from io import BytesIO
from pathlib import Path
from typing import ClassVar

import polars as pl
import pytest

from tests.http_server import Handler, serving
from tests.running import Running
from workbench import SqlError, Workbench

ENDLESS = "WITH RECURSIVE n AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM n) SELECT x, repeat('x', 1000) AS word FROM n"
MANY = "SELECT x, md5(x::text) AS word, x / 4.0 AS part, now() AS at FROM generate_series(1, 20000) x"
LATE = "SELECT 1 / (15000 - x) AS x FROM generate_series(1, 20000) x"
PLACES = 3  # queries of an organization that run at once


@pytest.fixture(scope="module")
def wb(running: Running) -> Workbench:
    return running.workbench()


def test_the_frames_of_a_stream_make_up_the_result(wb: Workbench) -> None:
    frames = list(wb.sql(MANY, stream=True))
    assert len(frames) > 2
    whole = wb.sql(MANY)
    assert pl.concat(frames).drop("at").equals(pl.DataFrame(whole).drop("at"))
    assert {tuple(frame.schema.items()) for frame in frames} == {tuple(whole.schema.items())}


def test_a_stream_takes_parameters_and_can_be_repeated(wb: Workbench) -> None:
    words = wb.sql("SELECT unnest(:words ::text[]) AS word", stream=True, words=["a", "it's"])
    assert [frame["word"].to_list() for frame in words] == [["a", "it's"]]
    assert [frame["word"].to_list() for frame in words.frames()] == [["a", "it's"]]


def test_a_stream_without_rows_is_one_frame_with_all_columns(wb: Workbench) -> None:
    (frame,) = wb.sql("SELECT id, created_at FROM app_events WHERE false", stream=True)
    assert frame.schema == {"id": pl.String, "created_at": pl.Datetime("us", "UTC")}


def test_leaving_early_ends_the_query(wb: Workbench) -> None:
    for _ in range(PLACES + 2):
        for frame in wb.sql(ENDLESS, stream=True):
            assert frame["x"][0] == 1
            break
    assert wb.sql("SELECT 1 AS one")["one"].to_list() == [1]


def test_a_syntax_error_shows_its_position(wb: Workbench) -> None:
    with pytest.raises(SqlError, match="evnt"):
        list(wb.sql("SELECT evnt FROM app_events", stream=True))


def test_a_failure_in_a_stream_is_an_error_after_the_rows_before_it(wb: Workbench) -> None:
    heights: list[int] = []
    with pytest.raises(SqlError, match="rows are missing: division by zero"):
        heights.extend(frame.height for frame in wb.sql(LATE, stream=True))
    assert 0 < sum(heights) < 15_000
    with pytest.raises(SqlError, match="rows are missing: division by zero"):
        wb.sql(LATE)


def test_a_result_becomes_a_parquet_file(wb: Workbench, tmp_path: Path) -> None:
    path = wb.sql(MANY, stream=True).to_parquet(tmp_path / "many.parquet")
    assert path == tmp_path / "many.parquet"
    stored = pl.read_parquet(path)
    assert stored["x"].to_list() == list(range(1, 20_001))
    assert stored.schema == wb.sql(MANY).schema
    assert wb.sql("SELECT 1 AS x WHERE false", stream=True).to_parquet(str(path)) == path
    assert pl.read_parquet(path).schema == {"x": pl.Int32}
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("query", [LATE, "SELECT evnt FROM app_events"])
def test_a_parquet_file_is_complete_or_unchanged(wb: Workbench, tmp_path: Path, query: str) -> None:
    path = tmp_path / "kept.parquet"
    with pytest.raises(SqlError):
        wb.sql(query, stream=True).to_parquet(path)
    assert not list(tmp_path.iterdir())
    path.write_bytes(b"of before")
    with pytest.raises(SqlError):
        wb.sql(query, stream=True).to_parquet(path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"of before"]


class _TruncatingServer(Handler):
    """Answers with an Arrow stream without its last bytes, and with the Content-Length of the short body."""

    codings: ClassVar[list[str | None]] = []

    def do_POST(self) -> None:
        self.codings.append(self.headers["Accept-Encoding"])
        stream = BytesIO()
        pl.DataFrame({"x": [1, 2]}).write_ipc_stream(stream)
        self.answer(200, stream.getvalue()[:-8])


@pytest.fixture
def truncating() -> Iterator[Workbench]:
    with serving(HTTPServer(("127.0.0.1", 0), _TruncatingServer)) as server:
        yield Workbench(f"http://127.0.0.1:{server.server_port}", "wb_x")


def test_a_truncated_response_is_an_error(truncating: Workbench) -> None:
    with pytest.raises(SqlError, match="rows are missing: the connection was lost"):
        truncating.sql("SELECT 1")
    with pytest.raises(SqlError, match="rows are missing: the connection was lost"):
        list(truncating.sql("SELECT 1", stream=True))


def test_compression_is_off_only_on_the_same_machine(truncating: Workbench) -> None:
    # The same host, under an address that the workbench does not recognize as local
    elsewhere = Workbench(truncating.url.replace("127.0.0.1", "127.1"), "wb_x")
    _TruncatingServer.codings.clear()
    for wb in (truncating, elsewhere):
        with pytest.raises(SqlError):
            wb.sql("SELECT 1")
    assert [coding == "identity" for coding in _TruncatingServer.codings] == [True, False]


MEASURED = """
import resource, sys
from pathlib import Path
from workbench import Workbench
rows, target = int(sys.argv[1]), sys.argv[2]
query = "SELECT x, repeat(md5(x::text), 32) AS word FROM generate_series(1, :rows) x"
stream = Workbench().sql(query, stream=True, rows=rows)
if target:
    stream.to_parquet(Path(target))
else:
    assert sum(frame.height for frame in stream) == rows
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.parametrize("into_a_file", [False, True])
def test_memory_does_not_grow_with_the_rows(running: Running, tmp_path: Path, into_a_file: bool) -> None:
    def megabytes(rows: int) -> int:
        target = str(tmp_path / "rows.parquet") if into_a_file else ""
        command = [sys.executable, "-c", MEASURED, str(rows), target]
        done = subprocess.run(command, env=running.environment(), capture_output=True, text=True, check=True)
        return int(done.stdout)

    few, many = megabytes(20_000), megabytes(200_000)  # 20 and 200 MB
    assert many - few < 90, (few, many)
