"""The columns of payloads have the exact values, and sorted files are merged in their order."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from api.parts import files

KEYS = ("a", "ab", 'q"', "back\\", "é", "n: ")
_TEXTS = st.text('aé":,{}[]\\ ', max_size=6) | st.sampled_from([*KEYS, '"a": 1', 'a": '])
_NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=3).map(
    lambda number: f"{number:f}"
) | st.integers().map(str)
_SCALARS = st.none() | st.booleans() | _TEXTS | _NUMBERS.map(lambda text: msgspec.Raw(text.encode()))
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_TEXTS, inner, max_size=2), max_leaves=4
)


def text_of(value: Any) -> str:
    """Return the text that jsonb has for a value: a blank after each colon and comma."""
    match value:
        case msgspec.Raw():
            return bytes(value).decode()
        case dict():
            return "{" + ", ".join(f"{text_of(key)}: {text_of(item)}" for key, item in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(text_of, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def shortest(millionths: int) -> str:
    text = f"{Decimal(millionths).scaleb(-6):f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


@given(st.lists(st.dictionaries(st.sampled_from(KEYS) | _TEXTS, _VALUES, max_size=5), min_size=1, max_size=5))
def test_the_columns_of_payloads_are_exact(payloads: list[dict[str, Any]]) -> None:
    columns = iter(files.typed_columns(pa.array([text_of(payload) for payload in payloads]), KEYS))
    for key, numbers, texts in zip(KEYS, columns, columns, strict=False):
        for payload, number, text in zip(payloads, numbers.to_pylist(), texts.to_pylist(), strict=True):
            expected = text_of(payload[key]) if key in payload else None
            if expected is not None and expected[0] in "{[":
                expected = expected[0]
            assert (text if text is not None or number is None else shortest(number)) == expected
            if number is not None:
                assert expected is not None
                assert Decimal(number).scaleb(-6) == Decimal(expected)


def test_a_key_may_look_like_what_separates_members() -> None:
    payloads = pa.array(['{"a": "x", ": ": 1, ", ": 5, "], ": [1]}', "{}", '{", ": 2}', "{}"])
    keys = files.common_keys(payloads)
    assert sorted(keys) == [", ", ": ", "], ", "a"]
    columns = iter(files.typed_columns(payloads, sorted(keys)))
    assert [(number.to_pylist(), text.to_pylist()) for number, text in zip(columns, columns, strict=False)] == [
        ([5_000_000, None, 2_000_000, None], [None, None, None, None]),
        ([1_000_000, None, None, None], [None, None, None, None]),
        ([None, None, None, None], ["[", None, None, None]),
        ([None, None, None, None], ['"x"', None, None, None]),
    ]


def test_numbers_have_millionths_where_they_are_exact() -> None:
    texts = ["1", "12.50", "-0.000001", "0.0000001", "123456789012.5", "1234567890123", "true", '"1"', "null"]
    columns = files.typed_columns(pa.array([f'{{"n": {text}}}' for text in texts] + ["{}"]), ["n"])
    assert [column.to_pylist() for column in columns] == [
        [1_000_000, 12_500_000, -1, None, 123_456_789_012_500_000, None, None, None, None, None],
        [None, "12.50", None, "0.0000001", None, "1234567890123", "true", '"1"', "null", None],
    ]


def test_a_slice_of_payloads_has_its_own_columns() -> None:
    payloads = pa.array(['{"n": 1}', '{"n": "x"}', '{"n": [1, 2]}', '{"m": {"n": 5}}', '{"n": 2}'])
    assert [column.to_pylist() for column in files.typed_columns(payloads.slice(1, 4), ["n"])] == [
        [None, None, None, 2_000_000],
        ['"x"', "[", None, None],
    ]


def table(chance: np.random.Generator, rows: int, contacts: int) -> pa.Table:
    columns = (
        chance.integers(0, contacts, rows),
        chance.integers(0, 3, rows).astype(np.int32),
        chance.integers(0, 9, rows),
    )
    ids = pa.array([chance.bytes(16) for _ in range(rows)], pa.binary(16))
    payloads = pa.array([f'{{"n": {number}}}' for number in range(rows)])
    base = pa.table([*map(pa.array, (*columns, columns[2], columns[2])), ids, payloads], files.schema(()))
    return files.sort(base)


def write(path: Path, events: pa.Table, keys: tuple[str, ...]) -> None:
    writer = files.FileWriter(path, keys, path.name, 0, "other")
    writer.write(files.with_typed_columns(events, keys))
    writer.finish()


def test_ties_are_ordered_by_id() -> None:
    events = table(np.random.default_rng(1), 2_000, 5)
    order = sorted(events.select(["contact", "occurred_at", "id"]).to_pylist(), key=lambda row: tuple(row.values()))
    assert events.select(["contact", "occurred_at", "id"]).to_pylist() == order


def test_files_are_merged_in_order_whatever_their_keys(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(files, "CHUNK_ROWS", 100)
    monkeypatch.setattr(files, "READ_ROWS", 64)
    chance = np.random.default_rng(2)
    parts = [table(chance, rows, contacts) for rows, contacts in ((900, 40), (300, 3), (1, 1), (500, 200))]
    for number, part in enumerate(parts):
        write(tmp_path / str(number), part, ("n",) if number % 2 else ())
    paths = [tmp_path / str(number) for number in range(len(parts))]
    merged = pa.concat_tables(files.merge(paths, ("n",)))
    expected = files.sort(pa.concat_tables(parts))
    assert merged.select(expected.column_names).equals(expected)
    assert merged["number:n"].to_pylist() == [
        1_000_000 * json.loads(text)["n"] for text in merged["payload"].to_pylist()
    ]
    without = np.array([0, 2])
    rest = pa.concat_tables(files.merge(paths, (), without))
    assert rest.equals(expected.filter(pa.array(~np.isin(expected["contact"].to_numpy(), without))))
    assert [files.has_contacts(path, np.array([100, 150])) for path in paths] == [False, False, False, True]
