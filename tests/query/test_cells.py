"""Values in JSON, Arrow and CSV equal those in Postgres."""

import csv
import io
from datetime import UTC, date, datetime
from decimal import Decimal

import polars
import pyarrow as pa
import pytest

from api.query.cells import array_elements

ARROW = "application/vnd.apache.arrow.stream"
EVERY_TYPE = """
    SELECT * FROM (VALUES
        (true, 1::int2, 2::int4, 9223372036854775807::int8, 0.1::float4, 1e300::float8, 12.30::numeric(10,2),
         12345678901234567890.5::numeric, '00000000-0000-0000-0000-0000000000aa'::uuid, 'é "x", y', '2026-01-02'::date,
         '2026-01-02 03:04:05.060+00'::timestamptz, '{"b": [1.10, null]}'::jsonb, ARRAY['a', 'b "c", d', NULL, ''],
         '1 day 02:00'::interval),
        (null, null, null, null, null, null, null::numeric(10,2), null, null, null, null, null, null, null, null)
    ) t (bool, int2, int4, int8, float4, float8, money, numeric, uuid, text, date, at, json, list, span)
"""


async def test_json_keeps_every_type(service):
    response = await service.ann.post(EVERY_TYPE)
    assert response.headers["content-type"] == "application/json"
    assert '[true,1,2,9223372036854775807,0.1,1e+300,12.30,12345678901234567890.5,"00000000' in response.text
    answer = response.json()
    assert [column["type"] for column in answer["columns"][7:]] == [
        *("numeric", "uuid", "text", "date", "timestamptz", "jsonb", "text[]", "interval")
    ]
    assert answer["rows"][0][8:] == [
        "00000000-0000-0000-0000-0000000000aa",
        'é "x", y',
        "2026-01-02",
        "2026-01-02T03:04:05.06Z",
        {"b": [1.10, None]},
        ["a", 'b "c", d', None, ""],
        "1 day 02:00:00",
    ]
    assert answer["rows"][1] == [None] * 15


async def test_arrow_keeps_every_type(service):
    response = await service.ann.post(EVERY_TYPE, accept=ARROW)
    assert response.headers["content-type"] == ARROW
    table = pa.ipc.open_stream(response.content).read_all()
    assert [str(kind) for kind in table.schema.types] == [
        *("bool", "int16", "int32", "int64", "float", "double", "decimal128(10, 2)", "decimal128(38, 9)", "string"),
        *("string", "date32[day]", "timestamp[us, tz=UTC]", "string", "list<item: string>", "string"),
    ]
    first, second = table.to_pylist()
    assert list(first.values())[5:] == [
        *(1e300, Decimal("12.30"), Decimal("12345678901234567890.5"), "00000000-0000-0000-0000-0000000000aa"),
        *('é "x", y', date(2026, 1, 2), datetime(2026, 1, 2, 3, 4, 5, 60_000, UTC), '{"b": [1.10, null]}'),
        *(["a", 'b "c", d', None, ""], "1 day 02:00:00"),
    ]
    assert set(second.values()) == {None}


async def test_csv_keeps_every_type_and_distinguishes_null_from_empty(service):
    response = await service.ann.post(EVERY_TYPE, accept="text/csv")
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.reader(io.StringIO(response.text)))
    assert rows[0][:3] == ["bool", "int2", "int4"]
    assert rows[1][3:13] == [
        *("9223372036854775807", "0.1", "1e+300", "12.30", "12345678901234567890.5"),
        *("00000000-0000-0000-0000-0000000000aa", 'é "x", y', "2026-01-02", "2026-01-02T03:04:05.06Z"),
        '{"b": [1.10, null]}',
    ]
    assert (await service.ann.post("SELECT '', NULL, 'x'", accept="text/csv")).text.splitlines()[1] == '"",,x'


async def test_csv_for_spreadsheets_has_no_formulas(service):
    starts = ["=1+1", "+1", "-1", "@a", "\t=1", "\r=1"]
    sql = 'SELECT -1 AS n, unnest($1::text[]) AS "=x"'
    for spreadsheet in (True, False):
        response = await service.ann.client.post(
            "/api/v1/sql",
            json={"sql": sql, "params": [[*starts, "a=1"]], "spreadsheet": spreadsheet},
            headers={"Authorization": f"Bearer {service.ann.key}", "Accept": "text/csv"},
        )
        header, *rows = csv.reader(io.StringIO(response.text, newline=""))
        mark = "'" if spreadsheet else ""
        assert header == ["n", f"{mark}=x"]
        assert rows == [*(["-1", mark + text] for text in starts), ["-1", "a=1"]]


async def test_aggregates_arrive_in_polars_as_numbers(service):
    statement = "SELECT count(*) AS n, sum(x::bigint) AS total, avg(x) AS mean FROM generate_series(1, 3) x"
    frame = polars.read_ipc_stream((await service.ann.post(statement, accept=ARROW)).content)
    assert frame.schema == {"n": polars.Int64, "total": polars.Decimal(38, 9), "mean": polars.Decimal(38, 9)}
    assert frame.row(0) == (3, 6, 2)
    third = (await service.ann.post("SELECT 2 / 3.0 AS x", accept=ARROW)).content
    assert polars.read_ipc_stream(third)["x"].to_list() == [Decimal("0.666666667")]


async def test_an_empty_answer_has_its_columns(service):
    statement = "SELECT id, tags FROM contacts WHERE false"
    frame = polars.read_ipc_stream((await service.ann.post(statement, accept=ARROW)).content)
    assert frame.schema == {"id": polars.String, "tags": polars.List(polars.String)}
    columns = [{"name": "id", "type": "uuid"}, {"name": "tags", "type": "text[]"}]
    assert (await service.ann.post(statement)).json() == {"columns": columns, "rows": []}
    assert (await service.ann.post(statement, accept="text/csv")).text == "id,tags\r\n"


async def test_values_without_a_json_number_are_text(service):
    statement = (
        "SELECT 'NaN'::float8, '-Infinity'::float8, 'NaN'::numeric, 'infinity'::timestamptz, '0044-03-15 BC'::date"
    )
    assert await service.ann.rows(statement) == [["NaN", "-Infinity", "NaN", "infinity", "0044-03-15 BC"]]


@pytest.mark.parametrize("value", ["'infinity'::timestamptz", "'NaN'::numeric", "1e40::numeric", "'infinity'::date"])
async def test_values_that_arrow_cannot_hold_are_refused_by_column(service, value):
    response = await service.ann.post(f"SELECT {value} AS odd", accept=ARROW)
    assert response.status_code == 400
    assert response.json()["error"].startswith('sql: column "odd" has a value that does not fit')


async def test_two_columns_of_one_name_are_allowed_in_json_and_refused_in_arrow(service):
    assert await service.ann.rows("SELECT 1 AS id, 2 AS id") == [[1, 2]]
    response = await service.ann.post("SELECT 1 AS id, 2 AS id", accept=ARROW)
    assert response.json()["error"] == 'sql: two columns are named "id"; rename one of them with AS'


async def test_a_table_without_columns_still_has_rows(service):
    assert await service.ann.rows("SELECT FROM contacts") == [[]]


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("text/html, */*;q=0.8", "application/json"),
        ("text/csv, */*;q=0.1", "text/csv; charset=utf-8; header=present"),
    ],
)
async def test_the_form_follows_accept(service, accept, media_type):
    assert (await service.ann.post("SELECT 1", accept=accept)).headers["content-type"] == media_type


async def test_an_unknown_form_is_406(service):
    response = await service.ann.post("SELECT 1", accept="image/png")
    assert response.status_code == 406
    assert response.json()["error"].startswith("Accept must allow one of application/json")


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        (b"{}", []),
        (b'{a,"b, c",NULL,"NULL","","q\\"\\\\"}', [b"a", b"b, c", None, b"NULL", b"", b'q"\\']),
        (b'{{a,"}"},{c,d}}', [b'{a,"}"}', b"{c,d}"]),
        (b"[0:1]={a,b}", [b"a", b"b"]),
    ],
)
def test_an_array_is_read_as_postgres_writes_it(cell, expected):
    assert array_elements(cell) == expected


@pytest.mark.parametrize(("codings", "is_small"), [("identity", False), ("gzip, deflate", True), ("", True)])
async def test_arrow_is_compressed_unless_the_client_refuses_compression(service, codings, is_small):
    headers = {"Authorization": f"Bearer {service.ann.key}", "Accept": ARROW, "Accept-Encoding": codings}
    body = {"sql": "SELECT repeat('a', 100) AS x FROM generate_series(1, 1000)"}
    response = await service.ann.client.post("/api/v1/sql", json=body, headers=headers)
    assert pa.ipc.open_stream(response.content).read_all()["x"].to_pylist() == ["a" * 100] * 1000
    assert (len(response.content) < 10_000) is is_small


@pytest.mark.parametrize("accept", ["application/json", "text/csv", ARROW])
async def test_rows_of_any_width_arrive_complete_and_in_order(service, accept):
    wide = ", ".join(f"CASE WHEN x % 3 > 0 THEN x + {n} END AS c{n}" for n in range(300))
    response = await service.ann.post(f"SELECT {wide} FROM generate_series(1, 400) x", accept=accept)
    match accept:
        case "application/json":
            rows = response.json()["rows"]
        case "text/csv":
            lines = list(csv.reader(io.StringIO(response.text)))[1:]
            rows = [[int(cell) if cell else None for cell in line] for line in lines]
        case _:
            rows = [list(row.values()) for row in pa.ipc.open_stream(response.content).read_all().to_pylist()]
    assert rows == [[x + n if x % 3 else None for n in range(300)] for x in range(1, 401)]
