"""Values read in Postgres's binary form equal those read in its text form."""

import pyarrow as pa
import pytest

ARROW = "application/vnd.apache.arrow.stream"
VALUES = {
    "bool": ["true", "false", "null", "true"],
    "int2": ["-32768", "32767", "null", "0"],
    "int4": ["-2147483648", "null", "2147483647", "-1"],
    "int8": ["-9223372036854775808", "9223372036854775807", "null", "1"],
    "oid": ["0", "4294967295", "null", "26"],
    "float4": ["'-0'", "'infinity'", "'1e-45'", "0.1", "null"],
    "float8": ["'-0'", "'-infinity'", "5e-324", "0.1", "null"],
    "date": ["'0001-01-01'", "'9999-12-31'", "null", "'1969-12-31'", "'2000-01-01'"],
    "timestamp": ["'0001-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'", "null", "'1969-12-31 23:59:59.999999'"],
    "timestamptz": ["'0001-01-01 00:00:00Z'", "null", "'9999-12-31 23:59:59.999999Z'", "'2000-01-01 02:00+02'"],
    "uuid": ["'00000000-0000-0000-0000-0000000000aa'", "null", "'FEDCBA98-7654-3210-0123-456789ABCDEF'"],
    "jsonb": ["""'{"b": [1.10, null, "é"]}'""", "null", "'null'", "'[]'"],
    "json": ["""'{"b":   1}'""", "null"],
    "text": ["''", "null", "'é \U0001f600'", "'a b'"],
    "varchar(7)": ["''", "null", "'seven!!'"],
    "char(3)": ["'a'", "null"],
    "name": ["'events'", "null"],
}


def _table(content: bytes) -> pa.Table:
    return pa.ipc.open_stream(content).read_all()


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("which", ["all", "none", "null"])
async def test_the_binary_and_the_text_form_have_equal_values(service, kind, which):
    rows = ", ".join(f"(CAST({value} AS {kind}))" for value in (VALUES[kind] if which != "null" else ["null", "null"]))
    query = f"SELECT v FROM (VALUES {rows}) t (v)" + (" WHERE false" if which == "none" else "")
    binary = _table((await service.ann.post(query, accept=ARROW)).content)
    text = _table((await service.ann.post(query.replace("v FROM", "v, 1.5::numeric AS n FROM"), accept=ARROW)).content)
    assert binary.schema.field("v").equals(text.schema.field("v"), check_metadata=True)
    assert repr(binary["v"].to_pylist()) == repr(text["v"].to_pylist())  # 0.0 and -0.0 are equal, their texts are not
    assert binary.num_rows == (len(VALUES[kind]) if which == "all" else 2 if which == "null" else 0)


async def test_the_binary_and_the_text_form_of_many_rows_have_equal_values(service):
    query = """
        SELECT v FROM (SELECT md5(n::text)::uuid AS id, n % 7 = 0 AS odd,
            timestamptz '2026-01-01 00:00Z' + n * interval '1 s' AS at, CASE WHEN n % 3 > 0 THEN n END AS n,
            jsonb_build_object('n', n) AS json FROM generate_series(1, 9000) n) t"""
    binary, text = [
        _table((await service.ann.post(query.replace("v FROM", columns), accept=ARROW)).content)
        for columns in ("* FROM", "*, 1.5::numeric AS money FROM")
    ]
    assert binary.num_rows == 9000
    assert binary.equals(text.drop_columns(["money"]))


@pytest.mark.parametrize(
    "value",
    [
        "timestamptz 'infinity'",
        "timestamp '-infinity'",
        "date 'infinity'",
        "date '0001-12-31 BC'",
        "timestamptz '10000-01-01 00:00Z'",
        "timestamp '0001-12-31 23:59:59.999999 BC'",
        "date '10000-01-01'",
    ],
)
async def test_moments_that_arrow_cannot_hold_are_refused_in_both_forms(service, value):
    for query in (f"SELECT {value} AS v", f"SELECT {value} AS v, 1.5::numeric AS n"):
        response = await service.ann.post(query, accept=ARROW)
        assert response.status_code == 400
        assert 'column "v" has a value that does not fit' in response.json()["error"]
