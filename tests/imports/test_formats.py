"""Files of several vendors are read by columns and cells, and unreadable files give errors."""

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api.imports.formats import HistoryFile, ReadOptions, find_sources
from api.imports.row import UnreadableFileError
from workbench.language.codec import decode

ORDERS = """\
ts;event;customer;contact.email;total;zip;note
2025-03-04 05:06:07;Order Completed;c1;a@example.com;12.50;01234;"a
b"
2025-03-04T05:06:08+01:00;order;c2;;;;
"""
ORDER_COLUMNS = {
    "ts": "occurredAt",
    "customer": "contact.externalId",
    "total": "payload.order.total",
    "zip": "payload.zip",
    "note": "",
}


def read(path: Path, after: int = 0, **options: Any) -> list[tuple[int, Any]]:
    """Return the rows of a file or folder: events as values, refusals as their reasons."""
    rows = []
    for source in sources(path, **options):
        with source.open(after) as (rows_of_source, _):
            rows += [(line, str(bad[0]) if bad else decode(text)) for line, text, bad in rows_of_source]
    return rows


def sources(path: Path, **options: Any) -> list[HistoryFile]:
    return find_sources([path], ReadOptions(**options))[0]


def test_columns_of_csv_fill_the_mapped_fields(tmp_path: Path) -> None:
    (tmp_path / "orders.csv").write_text("\ufeff" + ORDERS)
    assert read(tmp_path / "orders.csv", columns=ORDER_COLUMNS) == [
        (
            3,
            {
                "event": "order_completed",
                "contact": {"externalId": "c1", "email": "a@example.com"},
                "occurredAt": "2025-03-04T05:06:07Z",
                "payload": {"order": {"total": decode(b"12.50")}, "zip": "01234"},
            },
        ),
        (4, {"event": "order", "contact": {"externalId": "c2"}, "occurredAt": "2025-03-04T05:06:08+01:00"}),
    ]


@pytest.mark.parametrize(
    ("column", "cell", "value"),
    [
        ("payload.x", "1", 1),
        ("payload.x", "-0.10", decode(b"-0.10")),
        ("payload.x", "007", "007"),
        ("payload.x", "1 000", "1 000"),
        ("payload.x", "true", True),
        ("payload.x", "TRUE", "TRUE"),
        ("payload.x:text", "1", "1"),
        ("payload.x:boolean", "Yes", True),
        ("payload.x:json", '{"a": [1]}', {"a": [1]}),
        ("payload.x:number", "1e3", decode(b"1e3")),
        ("payload.x:number", "one", "payload.x: is not a number"),
        ("payload.x:milliseconds", "1741064767123", "2025-03-04T05:06:07.123000Z"),
    ],
)
def test_cells_have_their_apparent_type_or_the_declared_one(
    tmp_path: Path, column: str, cell: str, value: object
) -> None:
    (tmp_path / "a.tsv").write_text(f"event\tc\nsignup\t{cell}\n")
    ((_, cells),) = read(tmp_path / "a.tsv", columns={"c": column})
    assert (cells if isinstance(cells, str) else cells["payload"]["x"]) == value


def test_an_invalid_row_affects_no_other_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'event,email\na,x\nb\n"c,never closed\nd,\xff\ne,z\n')
    assert [(line, row if isinstance(row, str) else row["event"]) for line, row in read(tmp_path / "a.csv")] == [
        (2, "a"),
        (3, "has 1 cells, the header has 2"),
        (4, "is not a row of CSV: unexpected end of data"),
        (5, "is not UTF-8: invalid start byte at byte 3"),
        (6, "e"),
    ]


@pytest.mark.parametrize("name", ["a.csv", "a.ndjson", "a.parquet", "a.csv.gz", "a.ndjson.zst"])
def test_reading_resumes_after_any_line(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, 5_000)
    whole = read(tmp_path / name)
    assert len(whole) == 5_000
    for at in (0, 2_500, 4_999):
        assert read(tmp_path / name, after=whole[at][0]) == whole[at + 1 :]


def write(path: Path, count: int) -> None:
    records = [{"event": "e", "email": f"a{n}@example.com", "occurred_at": "2025-03-04"} for n in range(count)]
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path, row_group_size=1_200)
        return
    lines = ["event,email,occurred_at", *(",".join(record.values()) for record in records)]
    text = "\n".join(lines if ".csv" in path.name else map(json.dumps, records)).encode()
    match path.suffix:
        case ".gz":
            path.write_bytes(gzip.compress(text))
        case ".zst":
            with pa.output_stream(path, compression="zstd") as file:
                file.write(text)
        case _:
            path.write_bytes(text)


def test_segment_is_recognised_and_its_names_are_normalized(tmp_path: Path) -> None:
    records = [
        {
            "type": "track",
            "event": "Order Completed",
            "userId": 7,
            "anonymousId": "an1",
            "properties": {"total": 12},
            "timestamp": "2025-03-04T05:06:07.000Z",
            "messageId": "m1",
            "context": {"ip": "10.0.0.1", "traits": {"email": "Ann@example.com"}},
        },
        {
            "type": "identify",
            "userId": "7",
            "traits": {"email": "a@b.cc", "plan": "pro", "at": {"x": 1}},
            "messageId": "m2",
        },
        {"type": "page", "anonymousId": "an2", "name": "Home", "messageId": "m3"},
    ]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, records)))
    (source,), names = find_sources([tmp_path / "a.json"], ReadOptions())
    with source.open() as (rows, _):
        events = [decode(text) for _, text, _ in rows]
    assert source.dialect == "segment"
    assert names.changed == {"Order Completed": "order_completed"}
    assert events[0] == {
        "event": "order_completed",
        "contact": {"externalId": "7", "email": "Ann@example.com"},
        "attributes": {},
        "payload": {"total": 12, "anonymousId": "an1"},
        "occurredAt": "2025-03-04T05:06:07.000Z",
        "idempotencyKey": "m1",
    }
    assert [(read["event"], read["contact"], read["attributes"], read["payload"]) for read in events[1:]] == [
        ("identify", {"externalId": "7", "email": "a@b.cc"}, {"plan": "pro"}, {"traits": {"at": {"x": 1}}}),
        ("page", {"externalId": "an2", "email": None}, {}, {"name": "Home"}),
    ]


def test_posthog_is_recognised_in_any_kind_of_file(tmp_path: Path) -> None:
    properties = {"$browser": "F", "$set": {"plan": "a", "email": "z@example.com"}}
    record = {
        "uuid": "x1",
        "event": "$pageview",
        "distinct_id": "d1",
        "properties": properties,
        "timestamp": "2025-03-04 05:06:07.123000",
        "team_id": 1,
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    flat = record | {"properties": json.dumps(properties)}
    pq.write_table(pa.Table.from_pylist([flat]), tmp_path / "a.parquet")
    expected = {
        "event": "pageview",
        "contact": {"externalId": "d1", "email": "z@example.com"},
        "attributes": {"plan": "a"},
        "payload": {"$browser": "F", "$set": {"plan": "a"}},
        "occurredAt": "2025-03-04T05:06:07.123000Z",
        "idempotencyKey": "x1",
    }
    assert read(tmp_path / "a.jsonl") == read(tmp_path / "a.parquet") == [(1, expected)]


def test_the_files_of_a_folder_are_read_in_the_order_of_their_paths(tmp_path: Path) -> None:
    for name in (
        "month=2/part-0.ndjson",
        "month=1/part-1.ndjson",
        "_SUCCESS.json",
        "a.rejected.ndjson",
        "notes.txt",
        ".hidden/a.ndjson",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    assert [source.name for source in sources(tmp_path)] == ["month=1/part-1.ndjson", "month=2/part-0.ndjson"]


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (
            "a.csv",
            b"event,amount\n",
            "column 'amount' has no known meaning; map it to a field, like --map 'amount=payload.amount'",
        ),
        ("a.csv", b"name\n", "column 'name' has no known meaning"),
        ("a.csv", b"email\n", "has no column named event"),
        ("a.csv", b"event,email,contact.email\n", "two columns go to contact.email"),
        ("a.csv", b"", "is empty"),
        ("a.xlsx", b"", "is not one of"),
        ("a.ndjson.gz", b"no gzip", "Not a gzipped file"),
        ("a.ndjson.gz", gzip.compress(b"{}\n" * 9_999, mtime=0)[:-9], "ended before"),
        ("a.parquet", b"PAR1", "a.parquet: "),
    ],
)
def test_an_unreadable_file_is_an_error_with_the_reason(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableFileError) as error:
        read(tmp_path / name)
    assert reason in str(error.value)
