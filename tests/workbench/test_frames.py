"""JSON is decoded into structs without loss of digits."""

from decimal import Decimal

import polars as pl
import pytest

from tests.running import Running
from workbench import InvalidArgumentError, NotFoundError
from workbench.frames import structs


def decoded(*texts: str | None) -> tuple[pl.DataType, list[object]]:
    series = structs(pl.Series("json", texts, dtype=pl.String))
    return series.dtype, series.to_list()


def test_objects_are_structs_with_every_key_that_occurs() -> None:
    assert decoded('{"a": 1, "b": {"c": ["x", null]}}', None, '{"b": {"c": [], "d": true}}') == (
        pl.Struct({"a": pl.Int64, "b": pl.Struct({"c": pl.List(pl.String), "d": pl.Boolean})}),
        [{"a": 1, "b": {"c": ["x", None], "d": None}}, None, {"a": None, "b": {"c": [], "d": True}}],
    )


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["9007199254740993", "-1"], pl.Int64, [9007199254740993, -1]),
        (["9223372036854775808"], pl.Decimal(38, 0), [Decimal(9223372036854775808)]),
        (["12345678901234567890.10", "1"], pl.Decimal(38, 2), [Decimal("12345678901234567890.10"), Decimal("1.00")]),
        (["1e3", "0.00001"], pl.Decimal(38, 5), [Decimal(1000), Decimal("0.00001")]),
        (["1e300", "1"], pl.String, ["1E+300", "1"]),
        (["0", "0.0"], pl.Decimal(38, 1), [Decimal(0), Decimal(0)]),
        (['"a"', "null"], pl.String, ["a", None]),
        (['"a"', "1.50", '{"b": [1]}', "true"], pl.String, ["a", "1.50", '{"b":[1]}', "true"]),
        (["null", "null"], pl.Null, [None, None]),
        (["[]", "[[1], [2.5]]"], pl.List(pl.List(pl.Decimal(38, 1))), [[], [[Decimal(1)], [Decimal("2.5")]]]),
        ([], pl.Null, []),
    ],
)
def test_values_are_kept_exactly(texts: list[str], kind: pl.DataType, values: list[object]) -> None:
    assert decoded(*texts) == (kind, values)


def test_objects_without_keys_stay_objects() -> None:
    kind, values = decoded("{}", "{}")
    assert isinstance(kind, pl.Struct)
    assert len(values) == 2


def test_a_payload_is_text_unless_structs_are_requested(running: Running) -> None:
    wb = running.workbench()
    wb.events.send("typed", external_id="t", payload={"amount": Decimal("12345678901234567890.10"), "asset": "ETH"})
    frame = wb.sql("SELECT event, payload FROM app_events WHERE event = 'typed'")
    assert frame["payload"].to_list() == ['{"asset": "ETH", "amount": 12345678901234567890.10}']
    decoded = frame.structs("payload").unnest("payload")
    assert decoded.columns == ["event", "asset", "amount"]
    assert decoded["amount"].to_list() == [Decimal("12345678901234567890.10")]
    assert wb.structs(frame.filter(pl.col("event") == "typed"), "payload")["payload"].dtype == pl.Struct(
        {"asset": pl.String, "amount": pl.Decimal(38, 2)}
    )
    with pytest.raises(InvalidArgumentError, match="'payloads' is not a text column"):
        frame.structs("payloads")
    with pytest.raises(InvalidArgumentError, match="Column 'event' contains values that are not valid JSON"):
        frame.structs("event")


def test_numbers_and_moments_are_exact(running: Running) -> None:
    frame = running.workbench().sql(
        """SELECT 0.1::numeric(20, 4) AS declared, 9007199254740993 + 0.000000001 AS free, sum(x::bigint) AS total,
                  timestamptz '2026-03-01 12:00:00.123456+05:30' AS at, timestamp '2026-03-01 12:00' AS local,
                  date '2026-03-01' AS day, '1 day'::interval AS span
           FROM generate_series(9007199254740993, 9007199254740994) x"""
    )
    assert frame.schema == {
        "declared": pl.Decimal(20, 4),
        "free": pl.Decimal(38, 9),
        "total": pl.Decimal(38, 9),
        "at": pl.Datetime("us", "UTC"),
        "local": pl.Datetime("us"),
        "day": pl.Date,
        "span": pl.String,
    }
    (row,) = frame.rows()
    assert row[:3] == (Decimal("0.1000"), Decimal("9007199254740993.000000001"), Decimal(18014398509481987))
    assert row[3].isoformat() == "2026-03-01T06:30:00.123456+00:00"


def test_events_have_a_column_for_each_field_of_the_payload(running: Running) -> None:
    wb = running.workbench()
    payloads = [
        {"usd": Decimal("12345678901234567890.10"), "size": 1, "id": "p1", "by": {"card": True}},
        {"usd": 1, "size": "large", "extra": 9007199254740993},
    ]
    for payload in payloads:
        wb.events.send("framed", external_id="f1", payload=payload)
    frame = wb.events.frame("Framed", days=1)
    types = {"usd": pl.Decimal(38, 2), "size": pl.String, "payload.id": pl.String, "extra": pl.Int64}
    assert {name: frame.schema[name] for name in types} == types
    assert frame.schema["by"] == pl.Struct({"card": pl.Boolean})
    assert frame["usd"].to_list() == [Decimal("12345678901234567890.10"), Decimal("1.00")]
    assert (frame["size"].to_list(), frame["extra"].to_list()) == (["1", "large"], [None, 9007199254740993])
    note = "size is text, because its values have several types: 1 number, 1 text."
    assert list(frame.notes) == [note]
    assert note in repr(frame)
    assert f"<p>{note}</p>" in frame._repr_html_()
    empty = wb.events.frame("framed", since="2020-01-01", until="2020-01-02")
    assert (len(empty), {name: empty.schema[name] for name in types}) == (0, types)
    with pytest.raises(NotFoundError, match="did you mean"):
        wb.events.frame("framd")
    with pytest.raises(InvalidArgumentError, match="`days` or `since`"):
        wb.events.frame("framed", days=1, since="2026-01-01")
