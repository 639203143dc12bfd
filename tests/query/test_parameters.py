"""Values are bound, never pasted: `$n` from a list, `:name` from an object."""

import msgspec
import pytest

from api.auth import keys
from api.query.parameters import BoundStatement, bind
from workbench.language.problem import Problem


def bound(text: str, params: object) -> str:
    result = bind(text, params, lambda email: email)
    assert isinstance(result, BoundStatement), result
    return result.statement


def refused(text: str, params: object) -> str:
    result = bind(text, params, lambda email: email)
    assert isinstance(result, Problem), result
    return str(result)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT ':a' || 'it''s :a'",
        r"SELECT E'\':a' || e'x\\'",
        "SELECT E'a'\n  'b\\':a'",
        'SELECT ":a" AS "x "" :a"',
        "SELECT $$ :a $$ || $tag$ $$ :a $tag$",
        "SELECT 1 -- :a\n",
        "SELECT 1 /* :a /* :a */ :a */",
        "SELECT now()::timestamptz, 1::int",
        "SELECT tags[1:n] FROM contacts",
        "SELECT make_date(year := 2026, month := 1, day := 1)",
        "SELECT 'never closed :a",
    ],
)
def test_text_that_looks_like_a_parameter_is_not_replaced(text):
    assert bound(text, {}) == text


def test_a_name_used_twice_is_one_parameter():
    text = "SELECT :a::int, :b_2, x[:a] WHERE y=:a"
    assert bound(text, {"a": 1, "b_2": 2}) == "SELECT $1::int, $2, x[$1] WHERE y=$1"


@pytest.mark.parametrize(
    ("text", "params", "sentence"),
    [
        ("SELECT :a", {}, "params.a: is missing: the statement uses :a"),
        ("SELECT :a", None, "params.a: is missing: the statement uses :a"),
        ("SELECT 1", {"a": 1}, "params.a: is not used: the statement has no :a"),
        ("SELECT $2", [1], "params: $2 has no value, 1 given"),
        ("SELECT $2", [1, 2], "params[0]: is not used: the statement has no $1"),
        ("SELECT $1", {"a": 1}, "params: $1 takes its value from a list; with an object write :name"),
        ("SELECT 1", "x", "params: must be a list for $1, $2, … or an object for :name"),
        (
            "SELECT :a",
            {"a": [1, "x"]},
            "params.a: must be a list of values of one type: text, numbers, booleans or objects",
        ),
        ("SELECT :a", {"a": "x\0"}, "params.a: contains U+0000 or an unpaired surrogate"),
        ("SELECT 1", [0] * 1001, "params: at most 1000 parameters are allowed"),
    ],
)
def test_a_parameter_that_does_not_fit_is_named(text, params, sentence):
    assert refused(text, params) == sentence


async def test_values_of_every_type_arrive(service):
    statement = "SELECT :t, :b, :i, :big, :huge, :f, :n, :o -> 'k', :at::timestamptz, cardinality(:xs)"
    params = {"t": "it's", "b": True, "i": -5, "big": 2**40, "huge": 10**30, "f": 0.1, "n": None, "o": {"k": [1]}}
    params |= {"at": "2026-01-02T03:04:05Z", "xs": [1, 2, 3]}
    row = ["it's", True, -5, 2**40, 10**30, 0.1, None, [1], "2026-01-02T03:04:05Z", 3]
    assert await service.ann.rows(statement, params) == [row]


@pytest.mark.parametrize("values", [["canary_a", 'q"\\,{}'], ["canary_a", None]])
async def test_a_list_is_an_array(service, values):
    statement = "SELECT external_id FROM contacts WHERE external_id = ANY (:ids)"
    assert await service.ann.rows(statement, {"ids": values}) == [["canary_a"]]
    assert await service.ann.rows("SELECT $1::text[]", [values]) == [[values]]


async def test_postgres_infers_the_type_of_text(service):
    statement = "SELECT count(*) FROM app_events WHERE created_at > $1 AND id = $2 AND payload ->> $3 = 'true'"
    params = ["2026-01-01T00:00:00Z", "00000000-0000-0000-0000-000000000001", "ok"]
    assert await service.ann.rows(statement, params) == [[1]]


async def test_an_error_has_its_position_in_the_text_as_sent(service):
    text = "SELECT :first, :second, nothing FROM contacts"
    body = (await service.ann.post(text, {"first": 1, "second": 2})).json()
    assert body["error"] == 'sql: column "nothing" does not exist'
    assert body["position"] == text.index("nothing") + 1
    body = (await service.ann.post("SELECT jsonb_build_array(:what)", {"what": "x"})).json()
    assert body["error"] == "sql: could not determine data type of parameter :what"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "sql"),
        ({"sql": 1}, "sql"),
        ({"sql": "  "}, "sql"),
        ({"sql": "SELECT '\0'"}, "sql"),
        ({"sql": "x" * 100_001}, "sql"),
        ({"sql": "SELECT :a"}, "params.a"),
        ({"sql": "SELECT 1", "params": 1}, "params"),
    ],
)
async def test_a_bad_body_names_its_field(service, body, field):
    headers = {"Authorization": f"Bearer {service.ann.key}"}
    response = await service.ann.client.post("/api/v1/sql", json=body, headers=headers)
    assert response.status_code == 400
    assert response.json()["field"] == field


async def test_a_key_without_the_scope_is_403_and_no_key_401(service, keyring):
    live = await keys.create(service.dsn, keyring, "a", "live")
    response = await msgspec.structs.replace(service.ann, key=live).post("SELECT 1")
    assert (response.status_code, response.json()["error"]) == (403, "this key lacks the scope sql:read")
    assert (await msgspec.structs.replace(service.ann, key="none").post("SELECT 1")).status_code == 401
