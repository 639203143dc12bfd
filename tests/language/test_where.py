"""`where`: an expression in the language of texts that holds or does not, whatever the values, and never fails."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.language.strategies import NOW, graph_of
from workbench.language.check import CatalogFacts, check, check_against, compares_attributes
from workbench.language.codec import decode, normalize
from workbench.language.contact import ContactState
from workbench.language.event import Event, Identifiers, read_event
from workbench.language.filter import Where, explain, matches, passes
from workbench.language.graph import read_graph
from workbench.language.problem import Problem
from workbench.language.simulate import SimulatedAutomation, simulate
from workbench.language.template import MAX_WHERE, TemplateError, compile_where
from workbench.language.trigger import Trigger, fires, needs_email, read_trigger

CONTEXT: dict[str, Any] = decode(
    """{
    "amountUsd": 600, "tenth": 0.1, "digits": "600", "nothing": null, "yes": true, "big": "18446744073709551616000",
    "huge": 18446744073709551616000, "list": [1, "a", true], "object": {"k": 1}, "a.b": 5, "_odd": 1, "self": 2,
    "self.x": 3, "time": "2026-10-21T12:00:00+02:00", "day": "2026-10-21", "bad": "2026-10-21T12:00:00", "é": "É",
    "zero": 0, "long": "xxxxxxxxxxxxxxxx", "contact": {"country": "DE", "tags": ["vip"], "a.b": 7, "limit": 500}
    }""".encode()
)


def holds(expression: str, context: dict[str, Any] = CONTEXT) -> bool:
    return passes(Where(expression), context, NOW)


@pytest.mark.parametrize(
    "expression",
    [
        'amountUsd > 500 and contact.country in ["DE", "AT"]',
        "amountUsd > contact.limit",
        "500 < amountUsd <= 600",
        "tenth == 0.1 and tenth + 0.2 == 0.3",
        "huge > 18446744073709551615999 and huge == 18446744073709551616000.0",
        "big | decimal == huge",
        "(digits | decimal) > 500",
        "yes and yes == true and not zero == 1",
        "nothing == none and nothing != 5",
        'contact.country | lower == "de"',
        'contact.country ~ "-1" == "DE-1"',
        '"vip" in contact.tags and "x" not in contact.tags',
        '"00" in digits',
        "contact.tags | length == 1",
        "time | date in [5, 'soon', '2026-10-21T10:00:00Z'] and time | date not in [5, 'soon', '2026-10-22']",
        "time | date < '2026-10-22' and time | date == '2026-10-21T10:00:00Z' and day | date < time | date",
        "time | days_since == 30 and day | days_since == 30 and '2026-11-21' | days_since == -1",
        "0.12345678901234567890123 > 0.12345678901234567890122 and tenth > -1.5e3",
        "(nope | default(7)) > 6",
        "nope > 5 or amountUsd == 600",
        "nope is undefined and amountUsd is defined",
        "600 in [amountUsd, nope]",
        "amountUsd > 5 if yes else false",
        # Paths are those of filters: a literal key first; every key that is a name.
        "a.b == 5 and _odd == 1 and self.x == 3",
        'contact["a.b"] == 7 and contact["country"] == "DE"',
        "é == 'É'",
    ],
)
def test_an_expression_holds(expression: str) -> None:
    assert holds(expression)


@pytest.mark.parametrize(
    "expression",
    [
        # A missing value
        "nope > 5",
        "nope == 5",
        "nope != 5",
        "nope == none",
        "nope in [1]",
        "nope not in [1]",
        "5 in nope",
        "nope == nope",
        "nope != none",
        "nope.deep > 5",
        "nope",
        "amountUsd + nope > 1",
        # A value of another type
        "digits > 500",
        "digits == 600",
        "digits != 600",
        "yes == 1",
        "yes > 0",
        "1 in [yes]",
        "true in [1]",
        "6 in digits",
        "6 not in digits",
        "nothing > 0",
        "list == list",
        "object == object",
        "object > 1",
        "list in list",
        "big > 1",
        # What fails in a text
        "amountUsd / zero > 1",
        "amountUsd / zero != 1",
        "bad | date < '2027-01-01'",
        "bad | days_since > 0",
        "zero | days_since > 0",
        "contact.country | date < '2027-01-01'",
        "contact.country | decimal > 1",
        "'1e999999999' | decimal > 1",
        "amountUsd | join == ''",
        "list | first | upper | number == '1'",
        # Only true is true
        "amountUsd",
        "contact.country and yes",
        "yes and contact.country",
        "none or zero",
        "amountUsd if yes else 1",
        "1, 2",
    ],
)
def test_an_expression_does_not_hold(expression: str) -> None:
    assert not holds(expression)


def test_the_comparison_alone_is_false() -> None:
    assert holds("not nope > 5")
    assert holds("not (digits == 600)")
    assert holds("not amountUsd / zero > 1")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "line 1: Expected an expression, got 'end of the expression'"),
        ("amountUsd >", "line 1: unexpected 'end of the expression'"),
        ("amountUsd > 5 5", "line 1: expected token 'end of the expression', got 'integer'"),
        ("days_since(time) > 5", "line 1: write `value | days_since`, not `days_since(value)`"),
        ("range(5)", "line 1: call is not allowed here"),
        ("time | since > 5", "line 1: unknown filter 'since'; the filters are abs"),
        ("time is recent", "line 1: unknown test 'recent'; the tests are defined"),
        ("a }} b {{ c", "is not one expression"),
        ("a }}{% for x in y %}{{ x }}{% endfor %}{{ b", "is not one expression"),
        ("2 ** 5", "line 1: pow is not allowed here"),
        ("{'a': 1} == a", "line 1: dict is not allowed here"),
        ("a[1:2]", "line 1: slice is not allowed here"),
        ("(" * 200 + "1" + ")" * 200, "is nested too deeply"),
        (" and ".join(["a > 1"] * 60), "is nested too deeply"),
        ("a == " + "9" * 500, "line 1: a number has too many digits"),
        ("a == " + "9" * 5_000, "has a number with too many digits"),
        ("a == 1e309", "line 1: a number has too many digits"),
        ("a in [" + "1," * 1_500 + "]", "has more than 1000 parts"),
        ("a" * (MAX_WHERE + 1), f"is longer than {MAX_WHERE:,} characters"),
    ],
)
def test_an_expression_that_cannot_be_read_is_refused_naming_node_and_field(expression: str, reason: str) -> None:
    (problem,) = read_trigger({"type": "app_event", "where": expression})
    assert problem.field == "triggerSpec.where"
    assert problem.reason.startswith(reason)
    node = {"id": "c", "type": "condition", "data": {"where": expression}}
    graph = graph_of({"nodes": [node], "settings": {"goal": {"event": "paid", "where": expression}}})
    found = [(error.node_id, error.field) for error in check(Trigger(), graph) if error.level == "error"]
    assert ("c", "graph.nodes[0].data.where") in found
    assert (None, "graph.settings.goal.where") in found


def test_where_must_be_a_text() -> None:
    spec = {"type": "app_event", "where": 5}
    assert read_trigger(spec) == (Problem("triggerSpec.where", "must be a text, such as amountUsd > 500"),)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.decimals(allow_nan=False, allow_infinity=False, places=3)
    | st.text(max_size=5)
    | st.sampled_from(["2026-10-21", "1e5", "-0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["x", "y.z", ""]), inner, max_size=3),
    max_leaves=6,
)
atoms = st.sampled_from(
    ["x", "x.y", "x['y.z']", "x[y]", "y[0]", "z", "1", "-0.5", "'a'", "none", "true", "[x, 1]", "'2026-10-21'"]
)
expressions = st.recursive(
    atoms,
    lambda inner: st.one_of(
        st.builds(
            "({} {} {})".format,
            inner,
            st.sampled_from(("==", "!=", "<", "<=", ">=", "in", "not in", "+", "-", "*", "/", "~", "and", "or")),
            inner,
        ),
        st.builds(
            "({} | {})".format,
            inner,
            st.sampled_from(
                (
                    "upper",
                    "length",
                    "date",
                    "days_since",
                    "decimal",
                    "round",
                    "round(z)",
                    "number(2)",
                    "first",
                    "join('x')",
                    "default(3)",
                    "default(z, true)",
                    "replace('', 'ab')",
                    "truncate(2)",
                )
            ),
        ),
        st.builds("(not {})".format, inner),
        st.builds("(-{})".format, inner),
        st.builds("({} is {})".format, inner, st.sampled_from(("defined", "none", "number", "sequence"))),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("{}[{}]".format, inner, inner),
    ),
    max_leaves=8,
)


@given(expressions, st.dictionaries(st.sampled_from("xyz"), values))
@example("(x == 1) is defined", {})
@example("5 | round(x) == 5", {})
@example("(x == 1) == false", {})
def test_no_expression_fails_whatever_the_values(expression: str, context: dict[str, Any]) -> None:
    try:
        compiled = compile_where(expression)
    except TemplateError:
        return
    assert compiled.holds(normalize(context), NOW) in (True, False)
    if any(path.partition(".")[0] not in context for path in compiled.required):
        assert not compiled.holds(normalize(context), NOW)


def test_an_expression_has_a_budget_of_work() -> None:
    bomb = "x" + " | replace('', 'xxxxxxxxxxxxxxxx')" * 8
    assert not holds(f"({bomb}) | length > 0", {"x": "x" * 16_000})
    assert not holds("1 in [" + ",".join(["x | title"] * 480) + "] or true", {"x": "a b " * 4_000})
    assert not holds("x" + " * x" * 40 + " > 0", {"x": 10**300})


def test_an_expression_is_judged_at_a_moment() -> None:
    where = Where("day | days_since == 1")
    trigger = Trigger(frozenset({"paid"}), (where,))
    for at, passed in [(datetime(2026, 10, 22, tzinfo=UTC), True), (datetime(2026, 10, 23, tzinfo=UTC), False)]:
        assert [passes(where, CONTEXT, at), matches([where], CONTEXT, at)] == [passed] * 2
        assert explain([where], CONTEXT, at)[0].passed is passed
        assert fires(trigger, "paid", CONTEXT, at) is passed


def test_numbers_of_python_are_exact_too() -> None:
    assert holds("x == 0.1 or x > 0.1", {"x": 0.5})
    assert not holds("x > 0 or x <= 0 or x == x", {"x": float("nan")})
    assert not holds("x > 0 or x == x", {"x": Decimal("NaN")})


def test_days_are_counted_at_the_moment_of_the_decision() -> None:
    where = Where("time | days_since >= 31")
    assert not passes(where, CONTEXT, datetime(2026, 11, 21, 9, 59, 59, tzinfo=UTC))
    assert passes(where, CONTEXT, datetime(2026, 11, 21, 10, tzinfo=UTC))


def test_an_explanation_has_the_values_that_were_read() -> None:
    (verdict,) = explain([Where("amountUsd > 700 or nope == 1")], CONTEXT, NOW)
    assert (verdict.path, verdict.operator, verdict.passed) == ("amountUsd > 700 or nope == 1", "where", False)
    assert verdict.actual == {"amountUsd": 600}


def test_a_trigger_that_reads_the_email_in_an_expression_needs_it() -> None:
    trigger = read_trigger({"type": "app_event", "where": "amountUsd > 5 and email is defined"})
    assert isinstance(trigger, Trigger)
    assert needs_email(trigger)


def _warnings(where: str, seen: dict[str, tuple[str, ...]]) -> list[str]:
    trigger = read_trigger({"type": "app_event", "event": "deposit", "where": where})
    graph = read_graph({"nodes": [{"id": "t", "type": "app_event"}, {"id": "x", "type": "exit"}], "edges": []})
    assert isinstance(trigger, Trigger)
    assert not isinstance(graph, tuple)
    catalog = CatalogFacts(("deposit",), {"deposit": frozenset(seen)}, {"deposit": seen})
    found = [*check(trigger, graph), *check_against(catalog, trigger, graph)]
    return [item.message for item in found if item.level == "warning" and item.field == "triggerSpec.where"]


@pytest.mark.parametrize(
    ("where", "messages"),
    [
        ("amountUsd > 500", []),
        ("amountUsd > '500'", ["compares 'amountUsd' (a number) with a text: this never holds"]),
        ("asset == 5", ["compares 'asset' (a text) with a number: this never holds"]),
        ("asset in ['USDC', 5]", ["compares 'asset' (a text) with a number: this never holds"]),
        ("asset == amountUsd", ["compares 'asset' (a text) with 'amountUsd' (a number): this never holds"]),
        ("asset | length > '5'", ["compares a number with a text: this never holds"]),
        ("amountUsd == none or asset | date < '2026-01-01'", []),
        ("amountUsd and asset == 'x'", ["compares 'amountUsd' (a number) with true or false: this never holds"]),
        ("amuntUsd > 500", ["'amuntUsd' was never seen in deposit: did you mean 'amountUsd'?"]),
        ("contact.tier == 'gold'", ["the trigger does not see the contact: test 'contact.tier' in a condition"]),
    ],
)
def test_the_check_says_what_never_holds(where: str, messages: list[str]) -> None:
    assert _warnings(where, {"amountUsd": ("number",), "asset": ("string",)}) == messages


def test_a_condition_with_only_an_expression_has_conditions() -> None:
    node = {"id": "c", "type": "condition", "data": {"where": "amountUsd > 500"}}
    graph = graph_of({"nodes": [{"id": "t", "type": "app_event"}, node, {"id": "x", "type": "exit"}]})
    assert not [item for item in check(Trigger(), graph) if "has no filters" in item.message]


def test_a_step_masks_an_address_that_an_expression_read() -> None:
    data = {
        "where": "email == 'ann@b.co' and contact.email is defined",
        "filters": [{"path": "payload", "operator": "where", "value": 1}, {"path": "size", "operator": "where"}],
    }
    graph = graph_of({"nodes": [{"id": "t", "type": "app_event"}, {"id": "c", "type": "condition", "data": data}],
                      "edges": [{"source": "t", "target": "c"}]})  # fmt: skip
    contact = ContactState("c1", Identifiers(email="ann@b.co"))
    event = read_event(b'{"event": "paid", "contact": {"externalId": "u"}, "payload": {"size": 1}}', 0)
    assert isinstance(event, Event)
    trace = simulate(SimulatedAutomation(Trigger(), graph, "a"), event, contact, NOW)
    assert trace.steps[-1].handle == "true"
    by_path = {verdict["path"]: verdict["actual"] for verdict in trace.steps[-1].detail["verdicts"]}
    assert by_path == {"payload": {"size": 1}, "size": 1, data["where"]: dict.fromkeys(
        ("email", "contact.email"), "a•••@b.co"
    )}  # fmt: skip


@pytest.mark.parametrize(
    ("where", "messages"),
    [
        ("contact.age >= 18", ["compares 'contact.age' (a text) with a number: this never holds"]),
        ("contact.age == '18' and contact.plan == 5 or contact.unknown > 1", []),
        ("contact.age == amountUsd", ["compares 'contact.age' (a text) with 'amountUsd' (a number): this never holds"]),
        ("(contact.age | decimal) >= contact.plan", []),
    ],
)
def test_the_check_knows_the_types_of_attributes(where: str, messages: list[str]) -> None:
    trigger = read_trigger({"type": "app_event", "event": "deposit"})
    data = {"actionType": "condition", "where": where}
    nodes = [{"id": "t", "type": "app_event"}, {"id": "c", "type": "condition", "data": data}]
    graph = read_graph({"nodes": nodes, "edges": [{"id": "e", "source": "t", "target": "c"}]})
    assert isinstance(trigger, Trigger)
    assert not isinstance(graph, tuple)
    assert compares_attributes(trigger, graph)
    seen = {"amountUsd": ("number",)}
    attributes = {"age": ("string",), "plan": ("string", "number")}
    catalog = CatalogFacts(("deposit",), {"deposit": frozenset(seen)}, {"deposit": seen}, attributes)
    assert [item.message for item in check_against(catalog, trigger, graph)] == messages


@pytest.mark.parametrize(
    ("where", "required"),
    [
        ("a > 1 and b == 2", {"a", "b"}),
        ("a > 1 or b == 2", set()),
        ("a is defined and b is none", {"a"}),
        ("(a | default(1)) > b and (c | d(1)) > 0", {"b"}),
        ("not a > 1 and b", {"b"}),
        ("1 in [a, b] and c in d.e", {"c", "d.e"}),
        ("(a if b else c) == none", set()),
        ("(a == 1) == false and (b | upper) == 'X'", {"b"}),
    ],
)
def test_the_values_without_which_an_expression_cannot_hold(where: str, required: set[str]) -> None:
    assert compile_where(where).required == required


@pytest.mark.parametrize(
    ("where", "comparisons"),
    [
        ("amount > 5", ["amount number"]),
        ("1 < a < b.c", ["number a", "a b.c"]),
        ("a in [1, 'x', none, true] and 1 not in [c] and a in b", ["a number", "a string", "a null", "a boolean"]),
        ("(a | upper) == (b | length) and (a | default(2)) == (a + 1)", ["string number", "? ?"]),
        ("(a ~ 'x') == -b and (a * 2) > (a - 1) and (a / 2) > +a", ["string number", "number number", "number number"]),
        ("(a > 1) == (b is defined)", ["a number"]),
        ("[a] == b", ["? b"]),
        ("(not a) == none", ["boolean null", "a boolean"]),
    ],
)
def test_the_sides_of_the_comparisons(where: str, comparisons: list[str]) -> None:
    shown = [" ".join(side.path or side.type or "?" for side in sides) for sides in compile_where(where).comparisons]
    assert sorted(item for item in shown if item != "boolean boolean") == sorted(comparisons)


def test_digits_may_be_grouped() -> None:
    assert holds("amountUsd == 6_00 and amountUsd + 0.5 == 6_00.5")


def test_an_expression_of_the_longest_length_is_valid() -> None:
    assert compile_where("a" * MAX_WHERE).paths == {"a" * MAX_WHERE}
