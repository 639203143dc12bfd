"""Templates are rendered and evaluated as documented (docs/trust.md M4, M6, M7, M9)."""

from decimal import Decimal
from typing import Any

import pytest

from workbench.language.codec import decode
from workbench.language.expression import MAX_OUTPUT
from workbench.language.template import (
    MAX_DEPTH,
    MAX_NODES,
    MAX_SOURCE,
    MAX_TOKENS,
    RenderBudget,
    TemplateError,
    compile_template,
    evaluate,
    evaluate_texts,
    render,
    required_paths,
)

CONTEXT = decode(
    b"""{"name": "Ann", "amount": 0.1, "whole": 12345678901234567890123, "large": 123456789012345678901234567890.125,
         "hundred": 1E+2, "yes": true, "nothing": null, "list": [1, "b", 2.50], "object": {"k": {"z": [true, 1E+2]}},
         "evil": "{{ 7 * 7 }}<script>", "small": -0.001, "loop": "own", "max": 1e308,
         "payload": {"self": 1}, "contact": {"tier": "gold"}}"""
)

LARGE = "123456789012345678901234567890.125"


def failure(source: str, context: dict[str, Any] | None = None) -> str:
    with pytest.raises(TemplateError) as caught:
        render(source, CONTEXT if context is None else context)
    return str(caught.value)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("", ""),
        ("plain {text}", "plain {text}"),
        ("Hi {{ name }}!", "Hi Ann!"),
        ("{{ contact.tier }} {{ contact['tier'] }} {{ object.k.z[0] }} {{ list[-1] }}", "gold gold true 2.50"),
        ("{{ payload['self'] }} {{ loop }}", "1 own"),
        ("{{ nothing }}|{{ yes }}|{{ hundred }}|{{ amount }}", "|true|100|0.1"),
        ("{{ object }} {{ list }}", '{"k":{"z":[true,1E+2]}} [1,"b",2.50]'),
        ("{{ name ~ yes ~ nothing ~ hundred ~ list }}", 'Anntrue100[1,"b",2.50]'),
        ("{{ name + '!' }}", "Ann!"),
        ("{% if amount > 0 and yes %}a{% elif yes %}b{% else %}c{% endif %}", "a"),
        ("{{ 'a' if nothing else 'b' }}{{ 'c' if nothing }}", "b"),
        ("{% for x in list %}{{ loop.index }}/{{ loop.length }}:{{ x }} {% endfor %}", "1/3:1 2/3:b 3/3:2.50 "),
        ("{% for k in object %}{{ k }}{% else %}-{% endfor %}", "k"),
        ("{% for x in list if x is number %}{{ x }},{% endfor %}", "1,2.50,"),
        ("{{ 1 in list }} {{ 'k' in object }} {{ 'nn' in name }} {{ 5 not in list }}", "true true true true"),
        ("{{ nowhere|default('x') }} {{ object.a.b.c|default('y') }} {{ nothing|d('z') }}", "x y "),
        ("{% if nowhere is defined %}a{% else %}b{% endif %}", "b"),
        ("{# a comment #}{% raw %}{{ name }}{% endraw %}", "{{ name }}"),
        ("line\n", "line\n"),
        ("{{ name }}\r\n", "Ann\n"),
        ("a\r\nb\r", "a\nb\n"),
    ],
)
def test_templates_render_values(source: str, text: str) -> None:
    assert render(source, CONTEXT) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 0.1 + 0.2 }}", "0.3"),
        ("{{ amount == 0.1 }} {{ amount >= 0.1 }} {{ amount * 3 == 0.3 }}", "true true true"),
        ("{{ 7 / 2 }} {{ 10 / 5 }} {{ 1 / 8 }}", "3.5 2 0.125"),
        ("{{ whole + 1 }} {{ whole * whole }}", f"{12345678901234567890124} {12345678901234567890123**2}"),
        ("{{ whole / 1000 }}", "12345678901234567890.123"),
        ("{{ large + 1 }}", "123456789012345678901234567891.125"),
        ("{{ -large }} {{ -large|abs }}", f"-{LARGE} {LARGE}"),
        ("{{ large|number(2) }}", "123,456,789,012,345,678,901,234,567,890.13"),
        ("{{ whole|number(2) }}", "12,345,678,901,234,567,890,123.00"),
        ("{{ small|number(2) }} {{ small|round(2) }}", "0.00 0.00"),
        ("{{ 2.675|round(2) }} {{ 2.5|round }} {{ -2.5|round }} {{ 7|round(3) }}", "2.68 3 -3 7"),
        ("{{ 1.005|number(2) }} {{ 1234.5|number }}", "1.01 1,235"),
        ("{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ '1' == 1 }}", "true true false"),
    ],
)
def test_arithmetic_is_exact(source: str, text: str) -> None:
    assert render(source, CONTEXT) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ 'ann lee'|upper }} {{ 'ANN'|lower }}", "ANN LEE ann"),
        ("{{ 'ann lee'|title }} {{ 'ann LEE'|capitalize }}", "Ann Lee Ann lee"),
        ("[{{ ' a '|trim }}] {{ list|length }} {{ name|count }}", "[a] 3 3"),
        ("{{ list|first }} {{ list|last }} {{ name|first }} {{ []|first|default('none') }}", "1 2.50 A none"),
        ("{{ list|join(', ') }} {{ ['a', yes, nothing]|join }}", "1, b, 2.50 atrue"),
        ("{{ 'a-b-c'|replace('-', '+') }} {{ 'ab'|replace('', '.') }} {{ 5|replace(5, 6) }}", "a+b+c .a.b. 6"),
        ("{{ 'abcdef'|truncate(4) }} {{ 'abc'|truncate(3) }} {{ 'ab cd'|truncate(4) }}", "abc… abc ab…"),
        ("{{ 5|abs }} {{ -5|abs }}", "5 5"),
    ],
)  # fmt: skip
def test_each_filter_returns_its_text(source: str, text: str) -> None:
    assert render(source, CONTEXT) == text


def test_m7_values_are_never_rendered_again() -> None:
    assert render("{{ evil }} {{ '{{ 1 }}' }}", CONTEXT) == "{{ 7 * 7 }}<script> {{ 1 }}"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ nowhere }}", "the value 'nowhere' is missing"),
        ("{{ contact.nope }}", "the value before it has no key 'nope'"),
        ("{{ contact.nope.deeper }}", "the value before it has no key 'nope'"),
        ("{{ list[9] }}", "the value before it has no key 9"),
        ("{% if nowhere %}{% endif %}", "the value 'nowhere' is missing"),
        ("{{ nowhere ~ 'a' }}", "the value 'nowhere' is missing"),
        ("{{ nowhere|upper }}", "the value 'nowhere' is missing"),
        ("{{ nowhere + 1 }}", "the value 'nowhere' is missing"),
        ("{{ nowhere|number }}", "the value 'nowhere' is missing"),
        ("{{ nowhere|length }}", "the value 'nowhere' is missing"),
        ("{{ nowhere|join }}", "the value 'nowhere' is missing"),
        ("{{ nowhere|first }}", "the value 'nowhere' is missing"),
        ("{{ nowhere == 1 }}", "the value 'nowhere' is missing"),
        ("{{ 1 in nowhere }}", "the value 'nowhere' is missing"),
        ("{% for x in nowhere %}{% endfor %}", "the value 'nowhere' is missing"),
        ("{{ name.upper }}", "the value before it has no key 'upper'"),
        ("{{ []|last }}", "an empty list has no first or last element"),
    ],
)
def test_m6_a_missing_value_fails_and_is_named(source: str, reason: str) -> None:
    assert failure(source) == reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ name + 1 }}", "needs a number, not a text"),
        ("{{ yes + 1 }}", "needs a number, not true or false"),
        ("{{ nothing * 2 }}", "needs a number, not null"),
        ("{{ 'a' * 2 }}", "needs a number, not a text"),
        ("{{ list + list }}", "needs a number, not a list"),
        ("{{ -name }}", "needs a number, not a text"),
        ("{{ name|number }}", "needs a number, not a text"),
        ("{{ amount|number('x') }}", "needs a number, not a text"),
        ("{{ name|truncate(list) }}", "needs a number, not a list"),
        ("{{ name < 1 }}", "compares values that have no order, such as a text and a number"),
        ("{{ list == list }}", "compares a list: only texts and numbers can be compared"),
        ("{{ 1 in 5 }}", "`in` needs a text, a list or an object, not a number"),
        ("{{ 5|length }}", "a number has no length"),
        ("{{ object|first }}", "an object has no first or last element"),
        ("{{ name|join }}", "needs a list to join, not a text"),
        ("{% for x in 5 %}{% endfor %}", "cannot loop over a number"),
        ("{% for a, b in list %}{% endfor %}", "uses a value or arguments of the wrong type"),
        ("{{ name|upper(1, 2) }}", "uses a value or arguments of the wrong type"),
        ("{{ 1 / 0 }}", "divides by zero"),
        ("{{ 0 / 0.0 }}", "divides by zero"),
        ("{{ max * max * max * max }}", "computes a number with too many digits"),
    ],
)
def test_a_value_of_a_wrong_type_fails_without_showing_its_content(source: str, reason: str) -> None:
    assert failure(source) == reason


TESTS = "defined, undefined, none, string, number, boolean, mapping, sequence, true, false"
FILTERS = (
    "abs, capitalize, count, d, default, first, join, last, length, lower, "
    "number, replace, round, sum, title, trim, truncate, upper, urlencode"
)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% include 'x' %}", "line 1: include is not allowed here"),
        ("{% import 'x' as x %}", "line 1: import is not allowed here"),
        ("{% from 'x' import y %}", "line 1: fromimport is not allowed here"),
        ("{% extends 'x' %}", "line 1: extends is not allowed here"),
        ("{% block a %}{% endblock %}", "line 1: block is not allowed here"),
        ("{% macro a() %}{% endmacro %}", "line 1: macro is not allowed here"),
        ("{% call a() %}{% endcall %}", "line 1: callblock is not allowed here"),
        ("{% set a = 1 %}", "line 1: assign is not allowed here"),
        ("{% set a %}b{% endset %}", "line 1: assignblock is not allowed here"),
        ("{% with a = 1 %}{% endwith %}", "line 1: with is not allowed here"),
        ("{% filter upper %}{% endfilter %}", "line 1: filterblock is not allowed here"),
        ("{% autoescape true %}{% endautoescape %}", "line 1: scope is not allowed here"),
        ("{% do name %}", "line 1: Encountered unknown tag 'do'."),
        ("{% debug %}", "line 1: Encountered unknown tag 'debug'."),
        ("{% for x in list recursive %}{% endfor %}", "line 1: recursive loops are not allowed here"),
        ("{{ name() }}", "line 1: call is not allowed here"),
        ("{{ name|nope }}", f"line 1: unknown filter 'nope'; the filters are {FILTERS}"),
        ("{{ name is nope }}", f"line 1: unknown test 'nope'; the tests are {TESTS}"),
        ("{{ name is eq(1) }}", f"line 1: unknown test 'eq'; the tests are {TESTS}"),
        ("{{ 2 ** 2 }}", "line 1: pow is not allowed here"),
        ("{{ 5 % 2 }}", "line 1: mod is not allowed here"),
        ("{{ 5 // 2 }}", "line 1: floordiv is not allowed here"),
        ("{{ name[0:1] }}", "line 1: slice is not allowed here"),
        ("{{ {'a': 1} }}", "line 1: dict is not allowed here"),
        ("{{ list|join(*list) }}", "line 1: * and ** are not allowed here"),
        ("{{ list|join(**object) }}", "line 1: * and ** are not allowed here"),
        ("{{ _budget }}", "line 1: the name '_budget' cannot be used; write payload['_budget']"),
        (
            "{% for _budget in list %}{% endfor %}",
            "line 1: the name '_budget' cannot be used; write payload['_budget']",
        ),
        ("{{ self }}", "line 1: the name 'self' cannot be used; write payload['self']"),
        ("{{ x", "line 1: unexpected end of template, expected 'end of the expression'."),
        (
            "{% if x %}",
            "line 1: Unexpected end of template. Jinja was looking for the following tags: 'elif' or 'else' or 'endif'."
            " The innermost block that needs to be closed is 'if'.",
        ),
        ("{{ 1e400 }}", "line 1: a number has too many digits"),
        ("{{ " + "9" * 400 + " }}", "line 1: a number has too many digits"),
        ("{{ '\\x' }}", "line 1: truncated \\xXX escape"),
        ("a\0b", "contains U+0000 or an unpaired surrogate"),
        ("a\ud800b", "contains U+0000 or an unpaired surrogate"),
    ],
)
def test_m4_forbidden_syntax_is_refused_when_compiled(source: str, reason: str) -> None:
    with pytest.raises(TemplateError) as error:
        compile_template(source)
    assert str(error.value) == reason


@pytest.mark.parametrize("source", ["{{ '\\x00' }}", "{{ '\\ud83d' ~ name }}", "{{ ['\\udc00']|first }}"])
def test_a_text_that_cannot_be_stored_is_a_failure(source: str) -> None:
    assert failure(source) == "contains U+0000 or an unpaired surrogate"


def test_m9_a_template_sees_only_its_context() -> None:
    for name in ("range", "dict", "lipsum", "cycler", "joiner", "namespace", "config", "environment", "context", "env"):
        assert failure(f"{{{{ {name} }}}}", {}) == f"the value {name!r} is missing"


def test_rendering_does_not_change_the_context() -> None:
    context = {"list": [1, 2], "_budget": "own"}
    assert render("{% for x in list %}{{ x }}{% endfor %}", context) == "12"
    assert context == {"list": [1, 2], "_budget": "own"}


def test_paths_are_those_that_a_template_reads() -> None:
    source = "{{ a }} {{ payload.b.c }} {{ contact['tier']|upper }}"
    source += " {% for x in l.m %}{{ x.y }}{{ loop.index }}{{ z }}{% endfor %}"
    assert compile_template(source).paths == {"a", "payload.b.c", "contact.tier", "l.m", "z"}
    assert compile_template("plain").paths == frozenset()


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("{% for x in [x] %}{{ x.y }}{% endfor %}", {"x"}),
        ("{% for x in a %}{{ x }}{% else %}{{ x }}{% endfor %}", {"a", "x"}),
        ("{% for x in a if x.b and c %}{{ x }}{% endfor %}{{ loop }}", {"a", "c", "loop"}),
        ("{% for a in l %}{{ x.y }}{% for x in m %}{{ x.y }}{{ a }}{% endfor %}{% endfor %}", {"l", "m", "x.y"}),
        ("{% for a, b in l %}{{ a }}{{ b.c }}{% endfor %}", {"l"}),
    ],
)
def test_names_of_a_loop_hide_those_of_the_context_in_its_body_only(source: str, paths: set[str]) -> None:
    assert compile_template(source).paths == paths


@pytest.mark.parametrize(("size", "fits"), [(MAX_OUTPUT - 1, True), (MAX_OUTPUT, True), (MAX_OUTPUT + 1, False)])
@pytest.mark.parametrize("character", ["x", "é"])
@pytest.mark.parametrize("source", ["{{ a }}{{ b }}", "{{ a }}{% if a %}{{ b }}{% endif %}"])
def test_output_is_at_most_256_kb(size: int, fits: bool, character: str, source: str) -> None:
    wide = len(character.encode())
    context = {"a": character * (size // wide), "b": "x" * (size % wide)}
    if fits:
        assert len(render(source, context).encode()) == size
    else:
        assert "makes more than" in failure(source, context)


@pytest.mark.parametrize("html", [False, True])
@pytest.mark.parametrize("name", [*CONTEXT, "nowhere"])
def test_a_text_of_names_reads_like_any_other(name: str, html: bool) -> None:
    plain, other = (f"a < {{{{ {name} }}}}{end}\n" for end in ("", "{% if false %}b{% endif %}"))
    if name in CONTEXT:
        assert render(plain, CONTEXT, html=html) == render(other, CONTEXT, html=html)
    else:
        assert failure(plain) == failure(other) == "the value 'nowhere' is missing"


def test_python_floats_are_printed_as_written() -> None:
    assert render("{{ a }} {{ a + 0.2 }} {{ b }}", {"a": 0.1, "b": 1e22}) == "0.1 0.3 10000000000000000000000"
    assert render("{{ a == 0.1 }}", {"a": 0.1}) == "true" == render("{{ a == 0.1 }}", {"a": Decimal("0.1")})


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("{{ amount }}", Decimal("2.50")),
        ("{{amount * 2}}", Decimal("5.00")),
        ("{{ flag }}", True),
        ("{{ nothing }}", None),
        ("{{ list }}", [1, {"a": "b"}]),
        ("{{ list[1] }}", {"a": "b"}),
        ("{{ nope | default(3) }}", 3),
        ("{{ amount > 2 }}", True),
        ("{{ 0.1 }}", Decimal("0.1")),
        ("{{ name | upper }}", "ANN"),
        (" {{ amount }}", " 2.50"),
        ("{{ amount }}{{ amount }}", "2.502.50"),
        ("{% if flag %}{{ amount }}{% endif %}", "2.50"),
        ("{{ amount }}{# said #}", Decimal("2.50")),
        ("plain", "plain"),
    ],
)
def test_a_template_of_one_expression_evaluates_to_its_value(source: str, value: Any) -> None:
    context = {"amount": Decimal("2.50"), "flag": True, "nothing": None, "list": [1, {"a": "b"}], "name": "ann"}
    result = evaluate(source, context, RenderBudget())
    assert (result, type(result)) == (value, type(value))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ nope }}", "the value 'nope' is missing"),
        ("{{ amount * amount }}", "outside"),
        ("{{ loop }}", "the value 'loop' is missing"),
        ("{{ text }}", "makes more than"),
    ],
)
def test_a_value_that_cannot_be_stored_is_refused(source: str, reason: str) -> None:
    with pytest.raises(TemplateError, match=reason):
        evaluate(source, {"amount": 10**200, "text": "x" * 262_144}, RenderBudget())


def test_templates_with_one_budget_share_its_output() -> None:
    budget, context = RenderBudget(), {"text": "x" * 100_000}
    evaluate("{{ text }}", context, budget)
    evaluate("> {{ text }}", context, budget)
    with pytest.raises(TemplateError, match="makes more than"):
        evaluate("{{ text }}", context, budget)


def test_m7_html_escapes_values_once_and_text_escapes_nothing() -> None:
    context = {"name": "<script>alert('&')</script>", "list": ["<"]}
    assert render("<b>{{ name }}</b>", context, html=True) == (
        "<b>&lt;script&gt;alert(&#39;&amp;&#39;)&lt;/script&gt;</b>"
    )
    assert render("<b>{{ name }}</b>", context) == f"<b>{context['name']}</b>"
    for source in (
        "{{ name | upper }}",
        "{{ name ~ name }}",
        "{{ '<' }}",
        "{{ list }}",
        "{{ list | join }}",
        "{{ nope | d('<') }}",
    ):
        assert "<" not in render(source, context, html=True)


def test_m7_a_value_with_braces_is_not_evaluated_again() -> None:
    context = {"name": "{{ secret }}", "secret": "s"}
    assert render("{{ name }}", context) == render("{{ name }}", context, html=True) == "{{ secret }}"
    assert evaluate("{{ name }}", context, RenderBudget()) == "{{ secret }}"


def test_values_can_be_part_of_a_url() -> None:
    assert render("{{ 'a b/c?d&é' | urlencode }}", {}) == "a%20b%2Fc%3Fd%26%C3%A9"


@pytest.mark.parametrize(
    ("source", "paths"),
    [
        ("{{ a|d('x') }}{{ b|default(c) }}{{ d is defined }}{{ e }}", {"e"}),
        ("{% if a %}{{ b }}{% else %}{{ c }}{% endif %}", {"a"}),
        ("{{ b if a else c }}{% for x in l.m %}{{ x.y }}{{ z }}{% endfor %}", {"a", "l.m"}),
        ("{{ a and b }}{{ c or d }}{{ not e }}", {"a", "c", "e"}),
        ("{{ a.b['c'] ~ a[d] }}", {"a.b.c", "a", "d"}),
    ],
)
def test_required_are_the_paths_that_are_always_read_and_have_no_default(source: str, paths: set[str]) -> None:
    assert required_paths(source) == paths


def test_all_texts_of_a_value_are_evaluated_within_one_budget() -> None:
    value = {"a": ["{{ n }}", 5, {"b": "n: {{ n }}"}], "c": None, "d": True}
    assert evaluate_texts(value, {"n": Decimal("1.50")}, RenderBudget()) == {
        "a": [Decimal("1.50"), 5, {"b": "n: 1.50"}],
        "c": None,
        "d": True,
    }
    half = {"text": "x" * (MAX_OUTPUT // 2)}
    with pytest.raises(TemplateError, match="makes more than"):
        evaluate_texts(["{{ text }}"] * 3, half, RenderBudget())


@pytest.mark.parametrize(
    ("fits", "exceeds", "reason"),
    [
        ("x" * MAX_SOURCE, "x" * (MAX_SOURCE + 1), "is longer than 65536 characters"),
        ("{{ 1 }}" * (MAX_NODES - 2), "{{ 1 }}" * (MAX_NODES - 1), "has more than 1000 parts"),
        ("{# #}" * (MAX_TOKENS // 3), "{# #}" * (MAX_TOKENS // 3 + 1), "has more than 5000 words and signs"),
        ("{{ " + "-" * (MAX_DEPTH - 2) + "1 }}", "{{ " + "-" * (MAX_DEPTH - 1) + "1 }}", "is nested too deeply"),
    ],
)
def test_the_largest_template(fits: str, exceeds: str, reason: str) -> None:
    compile_template(fits)
    with pytest.raises(TemplateError) as caught:
        compile_template(exceeds)
    assert str(caught.value) == reason


def test_a_template_is_a_text_unless_it_is_said_to_be_html() -> None:
    assert compile_template("{{ a }}").render({"a": "<"}) == "<"
    assert compile_template("{{ a }}", html=True).render({"a": "<"}) == "&lt;"
