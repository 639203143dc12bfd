"""The parser of segments' queries: it groups operators as Postgres does, and refuses what it does not know."""

from collections import Counter

import psycopg
import pytest

from api.query.sql_parser import parse
from api.query.sql_tree import Expression, FunctionCall, SqlOperation, UnsupportedSqlError
from api.store.database import libpq_dsn

EXPRESSIONS = [
    "NOT a = b",
    "c OR d AND NOT c OR d",
    "NOT c IS NULL AND d",
    "c ISNULL OR d NOTNULL",
    "c = d IS NOT TRUE",
    "c IS NOT DISTINCT FROM a = b",
    "-a ^ b",
    "- a + b",
    "2 ^ 3 ^ a",
    "a - b - 1",
    "a + b * 2 % 3 - 2 ^ 2",
    "a<-1 AND a<-b",
    "a+-b - -b",
    "a*-1",
    "a != b AND a <> b",
    "a % 2 = 0 AND b <> 3",
    "a + 1 BETWEEN b - 1 AND b + 1 AND c",
    "NOT a BETWEEN 1 AND 2 OR c",
    "a NOT IN (1, b + 2) = c",
    "s NOT LIKE 'x' || s AND c",
    "j -> 'a' ->> 'b' = 'c' || s",
    "j ->> 'n' || s LIKE 'x'",
    "j #>> array['a', 'b'] = 's'",
    "j @> '{}' AND j ? 'a'",
    "s = ANY (tags) AND NOT 'x' = ALL (tags || s)",
    "tags || array['a'] @> tags",
    "tags[a + 1] || tags[1]::text",
    "-a::numeric + b",
    "cast(a + 1 AS text) || b::text",
    "at > now() - interval '1 day' * 2",
    "at AT TIME ZONE 'UTC' > current_date + 1",
    "extract(dow FROM at AT TIME ZONE 'UTC') + 1",
    "CASE WHEN a = 1 OR c THEN b + 1 ELSE -b END * 2",
    "CASE a WHEN 1 THEN c OR d END",
    "coalesce(a, b) + greatest(a, b + 1) / 2",
    "EXISTS (SELECT 1) OR (SELECT 2) = a + 1",
    "a IN (SELECT 1) = c",
]

REFUSED = {
    "SELECT": "an incomplete statement is not supported (character 7)",
    "SELECT a AS": "an incomplete statement is not supported (character 12)",
    "SELECT a FROM t LIMIT 1": "LIMIT is not supported (character 17)",
    "SELECT a FROM t FOR UPDATE": "FOR is not supported (character 17)",
    "SELECT a FROM t; SELECT 1": "SELECT is not supported (character 18)",
    "SELECT DISTINCT ON (a) b FROM t": "DISTINCT ON is not supported (character 17)",
    "SELECT a FROM t NATURAL JOIN t": "NATURAL JOIN is not supported (character 17)",
    "SELECT a FROM t RIGHT JOIN t ON c": "RIGHT JOIN is not supported (character 17)",
    "SELECT a FROM s.t": "a table with its schema is not supported (character 16)",
    "SELECT a FROM (VALUES (1)) t": "a join in parentheses, or VALUES, is not supported (character 16)",
    "SELECT a FROM LATERAL (SELECT 1) t": "LATERAL is not supported (character 23)",
    "SELECT count(*) OVER ()": "a window function is not supported (character 17)",
    "SELECT array_agg(a ORDER BY a)": "ORDER is not supported (character 20)",
    "SELECT (a, b)": "a row of values is not supported (character 10)",
    "SELECT a IN ((SELECT 1))": "a subquery in two pairs of parentheses is not supported (character 24)",
    "SELECT a = ANY (SELECT 1)": "ANY (SELECT …) is not supported (character 17)",
    "SELECT a = ANY (((SELECT 1)))": "a subquery in two pairs of parentheses is not supported (character 29)",
    "SELECT a BETWEEN SYMMETRIC 1 AND 2": "BETWEEN SYMMETRIC is not supported (character 28)",
    "SELECT a LIKE 'b' ESCAPE 'c'": "ESCAPE is not supported (character 19)",
    'SELECT a COLLATE "C"': "COLLATE is not supported (character 10)",
    "SELECT a::money": "the type money is not supported (character 11)",
    "SELECT a::timestamp(0)": "a time with a precision is not supported (character 21)",
    "SELECT a[1:2]": ": is not supported (character 11)",
    "SELECT 1e-3": "1E is not supported (character 8)",
    "SELECT 0x1F": "0X1F is not supported (character 8)",
    'SELECT U&"a"': "& is not supported (character 9)",
    "SELECT current_user": "CURRENT_USER is not supported (character 8)",
}


@pytest.mark.parametrize("sql", REFUSED)
def test_what_is_not_known_is_refused_with_its_place(sql: str) -> None:
    with pytest.raises(UnsupportedSqlError) as refusal:
        parse(sql)
    assert str(refusal.value) == REFUSED[sql]


def test_operators_group_as_in_postgres(database_url: str) -> None:
    """Postgres reads the same from an expression as from the one with parentheses where the parser sees operands."""
    with psycopg.connect(libpq_dsn(database_url)) as connection:
        connection.execute(
            "CREATE TEMP TABLE t (a int, b int, c boolean, d boolean, s text, j jsonb, tags text[], at timestamptz)"
        )
        read = {}
        for expression in EXPRESSIONS:
            texts = (f"SELECT {expression} AS x FROM t", f"SELECT {with_parentheses(expression)} AS x FROM t")
            read[expression] = tuple(stored(connection, text) for text in texts)
    assert {expression: pair for expression, pair in read.items() if pair[0] != pair[1]} == {}


def stored(connection: psycopg.Connection, sql: str) -> str:
    """Return a query as Postgres stores it: with parentheses around all operations."""
    connection.execute(f"CREATE OR REPLACE TEMP VIEW v AS {sql}".encode())
    ((text,),) = connection.execute("SELECT pg_get_viewdef('v'::regclass)").fetchall()
    connection.execute("DROP VIEW v")
    return str(text)


def with_parentheses(expression: str) -> str:
    """Return an expression with parentheses around the operations that the parser takes for operands."""
    (item,) = parse(f"SELECT {expression}").body.items
    opening: Counter[int] = Counter()
    closing: Counter[int] = Counter()

    def mark(node: Expression) -> None:
        operands = node.operands if isinstance(node, SqlOperation) else ()
        if isinstance(node, FunctionCall):
            operands = (*node.arguments, *(() if node.filter is None else (node.filter,)))
        for operand in operands:
            if isinstance(operand, SqlOperation):
                opening[operand.start - len("SELECT ")] += 1
                closing[operand.end - len("SELECT ")] += 1
            mark(operand)

    mark(item.value)
    return "".join(
        ")" * closing[place] + "(" * opening[place] + character for place, character in enumerate(f"{expression} ")
    )
