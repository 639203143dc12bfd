"""Array literals have the values that they were made from, for any texts."""

from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import connect

from api.store.query import joined, plain, quoted, records, uuids

TEXTS = st.lists(st.one_of(st.none(), st.sampled_from(["null", "NULL", "", "a,b", '"', "\\", "{}", " "]), st.text()))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=TEXTS.map(lambda texts: [text and text.replace("\0", "") for text in texts]))
def test_any_texts_are_passed_unchanged(database_url: str, texts: list[str | None]) -> None:
    utf8 = [text if text is None else text.encode("utf-8", "ignore").decode() for text in texts]
    with connect(database_url) as connection:
        assert connection.execute("SELECT %s::text[]", (quoted(utf8),)).fetchone() == (utf8,)


def test_numbers_ids_and_json_are_passed_unchanged(database_url: str) -> None:
    objects = ['{"a": "b,c\\n\\u001e"}', "{}", '{"x": [1, 2]}']
    with connect(database_url) as connection:
        row = connection.execute(
            "SELECT %s::bigint[], %s::text[], string_to_array(%s, chr(30))",
            (plain([1, None, -3]), joined(["a", "b"]), records(objects)),
        ).fetchone()
    assert row == ([1, None, -3], ["a", "b"], objects)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_uuids_are_passed_unchanged(database_url: str, count: int) -> None:
    sent = [str(UUID(int=n)) if n % 2 else UUID(int=n).hex for n in range(count)]
    with connect(database_url) as connection:
        pgconn = connection.pgconn
        result = pgconn.exec_params(b"SELECT $1::uuid[]::text", [uuids(sent)], param_formats=[1])
    expected = "{" + ",".join(str(UUID(value)) for value in sent) + "}"
    assert result.get_value(0, 0) == expected.encode()
