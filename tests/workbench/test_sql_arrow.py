"""An Arrow stream is split into its record batches, however its bytes arrive."""

import io

import polars as pl
import pyarrow as pa
import pytest

from api.query.arrow import ArrowStream
from workbench.sql import END, CutShortError, batches


def stream(*batches: list[str], compression: str | None = "zstd") -> bytes:
    schema = pa.schema([("word", pa.string()), ("encoded", pa.dictionary(pa.int8(), pa.string()))])
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for words in batches:
            encoded = pa.array(words, pa.string()).dictionary_encode().cast(schema.field("encoded").type)
            writer.write_batch(pa.record_batch([pa.array(words), encoded], schema=schema))
    return sink.getvalue()


def pieces(raw: bytes, length: int) -> list[bytes]:
    return [raw[at : at + length] for at in range(0, len(raw), length)]


@pytest.mark.parametrize("length", [1, 7, 100, 10**6])
@pytest.mark.parametrize("compression", ["zstd", None])
def test_each_batch_is_a_separate_stream(length: int, compression: str | None) -> None:
    raw = stream(["a", "b"], ["b", "a"], ["a"] * 500, compression=compression)
    frames = [pl.read_ipc_stream(frame_bytes) for frame_bytes in batches(pieces(raw, length))]
    assert [frame.height for frame in frames] == [2, 2, 500]
    assert pl.concat(frames)["word"].to_list() == ["a", "b", "b", "a", *["a"] * 500]
    assert frames[1]["encoded"].to_list() == ["b", "a"]


def test_a_batch_is_yielded_before_the_next_arrives() -> None:
    raw, more = stream(["a"]), stream(["a"], ["b"])
    remaining = iter(pieces(more, 1))
    first = next(batches(remaining))
    assert pl.read_ipc_stream(first)["word"].to_list() == ["a"]
    assert len(list(remaining)) == len(more) - (len(raw) - 8)


def test_a_stream_without_rows_has_its_columns() -> None:
    (only,) = batches([stream()])
    assert pl.read_ipc_stream(only).columns == ["word", "encoded"]


def test_the_reason_for_which_a_stream_ends_is_read_and_other_readers_refuse_it() -> None:
    raw = stream(["a", "b"], ["c"])[: -len(END)] + ArrowStream.failure("took longer than 10 s")
    with pytest.raises(CutShortError, match=r"^took longer than 10 s$"):
        list(batches(pieces(raw, 7)))
    with pytest.raises(OSError, match="negative metadata length"):
        pa.ipc.open_stream(raw).read_all()


def test_a_truncated_stream_is_an_error() -> None:
    raw = stream(["a", "b"], ["c"])
    for length in range(len(raw)):
        with pytest.raises(CutShortError):
            list(batches([raw[:length]]))
