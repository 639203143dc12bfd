"""Each operation pays for its work before or right after it does it, and results have bounds."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from tests.language.strategies import NOW
from workbench.language.expression import (
    MAX_ITERATIONS,
    MAX_OUTPUT,
    MAX_WORK,
    OverBudgetError,
    RenderBudget,
    TemplateError,
    to_json_value,
)
from workbench.language.filter import Where, passes
from workbench.language.template import compile_template, render

TEXT = "y" * 160
CONTEXT: dict[str, Any] = {"t": TEXT, "list": [1, 2, 3, 4, 5, 6, 7, 8], "object": {"a": 1, "b": 2}}
TOO_LONG = f"makes more than {MAX_OUTPUT} characters"


@pytest.mark.parametrize(
    ("source", "work", "passes", "output"),
    [
        ("{{ t | upper }}", 11, 0, 160),  # one, and one for every 16 characters
        ("{{ t + t }}", 21, 0, 320),
        ("{{ t ~ t ~ 1 }}", 21, 0, 321),
        ("{{ t | replace('y', 'zz') }}", 11 + 21, 0, 320),
        ("{{ [t, t] | join(', ') }}", 2 * 11 + 21, 0, 322),
        ("{{ t | truncate(32) }}", 3, 0, 34),
        ("{{ list | sum }}", 8, 8, 2),
        ("{% for x in list %}{{ x }}{% endfor %}", 8 * 4, 8, 8),  # four nodes
        ("{% for x in object %}{{ x }}{% else %}-{% endfor %}", 2 * 6, 2, 2),
        ("{% if 'z' in t %}{% endif %}", 11, 0, 0),
        ("{% if 'z' in list %}{% endif %}", 2, 0, 0),  # an element like two characters
        ("{% if 'z' in object %}{% endif %}", 1, 0, 0),
        ("{{ t }}{{ t | length }}{{ 1 + 2 }}é", 0, 0, 160 + 3 + 1 + 2),
    ],
)
def test_the_price_of_each_operation(source: str, work: int, passes: int, output: int) -> None:
    budget = RenderBudget()
    compile_template(source).render(CONTEXT, budget)
    assert vars(budget) == {
        "_work": MAX_WORK - work,
        "_iterations": MAX_ITERATIONS - passes,
        "_output": MAX_OUTPUT - output,
    }


def test_a_budget_can_be_spent_to_its_end() -> None:
    budget = RenderBudget()
    budget.pay_loop(MAX_ITERATIONS, 49)
    budget.pay_search(998 * 16 + 15)
    budget.pay_output(MAX_OUTPUT - 3)
    assert [budget.pay_text(""), *budget.pay_chunks(iter(["a", "é"]))] == ["", "a", "é"]
    for pay, reason in (
        (lambda: budget.pay_text(""), "does too much work: use fewer or shorter loops"),
        (lambda: budget.pay_search(0), "does too much work: use fewer or shorter loops"),
        (lambda: budget.pay_loop(1, 0), "loops more than 1000 times"),
        (lambda: budget.pay_output(1), TOO_LONG),
        (lambda: list(budget.pay_chunks(iter("a"))), TOO_LONG),
        (lambda: RenderBudget().pay_text("a" * (MAX_OUTPUT + 1)), TOO_LONG),
    ):
        with pytest.raises(TemplateError) as caught:
            pay()
        assert (str(caught.value), type(caught.value) is OverBudgetError) == (reason, "work" in reason)
    RenderBudget().pay_output(MAX_OUTPUT)
    assert RenderBudget().pay_text("a" * MAX_OUTPUT) == "a" * MAX_OUTPUT


@pytest.mark.parametrize(
    ("source", "length"),
    [
        ("{{ (half ~ half ~ more) | length }}", MAX_OUTPUT),
        ("{{ (half + (half + more)) | length }}", MAX_OUTPUT),
        ("{{ [half, half, more] | join | length }}", MAX_OUTPUT),
        ("{{ [half, more] | join(quarter) | length }}", MAX_OUTPUT * 3 // 4),  # counted as if it were after both
        ("{{ (half + more) | replace('x', 'xx') | length }}", MAX_OUTPUT),
        ("{{ (half + half + more) | truncate(10 * 262144) | length }}", MAX_OUTPUT),
    ],
)
def test_a_text_on_the_way_has_at_most_256_ki_characters(source: str, length: int) -> None:
    context = {"half": "x" * (MAX_OUTPUT // 2), "more": "", "quarter": "x" * (MAX_OUTPUT // 4)}
    assert render(source, context) == str(length)
    with pytest.raises(TemplateError, match=f"^{TOO_LONG}$"):
        render(source, context | {"more": "x"})


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{{ 'abc'|truncate(0) }} {{ 'abc'|truncate(-5) }} {{ 'abc'|truncate(1) }} {{ 'abc'|truncate(2) }}",
            "… … … a…",
        ),
        ("{{ 'a'|truncate(0) }}{{ ''|truncate(0) }}", "…"),
        ("{{ large|sum }}", "123456789012345678901234567890.225"),
        ("{{ t|truncate }}", "y" * 79 + "…"),
        ("{{ t|truncate(160) }}", TEXT),
        ("{{ 1.5|round(-1) }} {{ 1.25|round(21) }}", "2 1.25000000000000000000"),
        ("{{ 2.5 - 0.5 }} {{ 3 - 5 }} {{ +5 }} {{ +2.5 }} {{ -(-3) }}", "2.0 -2 5 2.5 3"),
        ("{{ object[key] }} {{ object['b' ~ ''] }} {{ list[0] }} {{ list[-8] }}", "1 2 1 1"),
        ("{{ list[[1, 1]|sum] }}", "3"),
        ("{{ 2 / 3 }}", "0.6666666666666666666666666666666667"),
        ("{{ -1 / 3 }}", "-0.3333333333333333333333333333333333"),
        ("{{ objects|sum('n') }} {{ objects|sum('none') }} {{ [1, 0.5]|sum }}", "3.5 0 1.5"),
        ("{{ [0.5, 1]|sum }} {{ 1234567.891|number(21) }}", "1.5 1,234,567.89100000000000000000"),
        ("{% for x in list %}{% if loop.first %}{{ loop.revindex0 }}{% endif %}{% endfor %}", "7"),
    ],
)
def test_numbers_and_lengths(source: str, text: str) -> None:
    large = [Decimal("123456789012345678901234567890.125"), Decimal("0.1")]
    objects = [{"n": 1}, {"n": Decimal("2.5"), "none": None}, {"n": None}, 5]
    assert render(source, {**CONTEXT, "objects": objects, "key": "a", "large": large}) == text


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ now + 1 }}", "needs a number, not a date"),
        ("{{ object + 1 }}", "needs a number, not an object"),
        ("{{ set + 1 }}", "needs a number, not something else"),
        ("{{ nowhere|sum }}", "the value 'nowhere' is missing"),
        ("{{ t|sum }}", "needs a list to sum, not a text"),
        ("{{ [t]|sum }}", "needs a number, not a text"),
        ("{{ object == 1 }}", "compares an object: only texts and numbers can be compared"),
        ("{{ now|length }}", "a date has no length"),
        ("{{ none|first }}", "null has no first or last element"),
        ("{{ 1 in true }}", "`in` needs a text, a list or an object, not true or false"),
        ("{{ now }}", "only values of the event and the contact can be printed"),
        ("{{ object[t] }}", "the value before it has no such key"),
        ("{{ object[8] }}", "the value before it has no key 8"),
        ("{{ list[8] }}", "the value before it has no key 8"),
        ("{{ list[-9] }}", "the value before it has no key -9"),
        ("{{ list['a'] }}", "the value before it has no key 'a'"),
        ("{% for x in list %}{{ loop.cycle }}{% endfor %}", "the value before it has no key 'cycle'"),
        ("{{ large * 10 + 1 }}", "computes a number with too many digits"),
        ("{{ (0 - large) * 10 + 1 }}", "computes a number with too many digits"),
    ],
)
def test_a_failure_says_the_kind_of_a_value_and_not_the_value(source: str, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(source, {**CONTEXT, "now": NOW, "set": {1}, "large": 10**308})
    assert str(caught.value) == reason


def test_only_json_values_can_be_kept() -> None:
    kept = ["a", 1, True, None, Decimal("1.50"), {"a": 1}, [1]]
    assert list(map(to_json_value, [*kept, (1,), 0.1])) == [*kept, [1], Decimal("0.1")]
    with pytest.raises(TemplateError) as error:
        to_json_value(NOW)
    assert str(error.value) == "only values of the event and the contact can be kept"


@pytest.mark.parametrize(
    ("expression", "is_true"),
    [
        ("day | days_since == 1 and '2026-10-20T00:00:00.000001Z' | days_since == 0", True),
        ("day | date | date == day | date and day | date != '2026-10-21'", True),
        ("day | date in ['2026-10-20'] and day | date not in ['2026-10-21', 5]", True),
        ("day | date < 5", False),
        ("'-1.5e2' | decimal == -150 and '0' | decimal == 0", True),
        ("'01' | decimal == 1", False),
        ("' 1' | decimal == 1", False),
        ("(1.25 | round(places=1)) == 1.3", True),
        ("'1.' | decimal == 1", False),
        ("'٣' | decimal == 3", False),
        ("1 < 2 < 3 and not 1 < 3 < 2", True),
        ("'a' < 'b' and 'b' >= 'b' and 'a' <= 'b' and 'b' > 'a'", True),
        ("true > false", False),
        ("true == true and true != false and none == none", True),
        ("none != 'a' and 'a' != none", True),
        ("none != list or 1 != 'a' or list != list", False),
        ("1 in [1.0] and 1 not in [true] and 'a' in 'abc' and 'a' not in 'bc'", True),
        ("1 in '123' or 1 not in '23' or list in [list] or list not in [1]", False),
        ("'a' in object and 'c' not in object", True),
        ("t | replace('y', '') == ''", True),
    ],
)
def test_where_compares_values_of_one_kind(expression: str, is_true: bool) -> None:
    context = {**CONTEXT, "day": "2026-10-20"}
    assert passes(Where(expression), context, datetime(2026, 10, 21, tzinfo=UTC)) is is_true
    assert not passes(
        Where("day | days_since == 1"), context, datetime(2026, 10, 21, tzinfo=UTC) - timedelta.resolution
    )
