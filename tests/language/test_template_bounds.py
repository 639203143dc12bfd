"""Templates run no code and are bounded: docs/trust.md M1-M3 and M10, with the known attacks on Jinja2's sandbox."""

import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.language.codec import encode
from workbench.language.contact import ContactState
from workbench.language.event import Identifiers
from workbench.language.expression import FILTERS, TESTS
from workbench.language.facts import Facts, full_context
from workbench.language.template import RenderBudget, TemplateError, compile_template, evaluate, render

SECONDS = 2.0  # a bomb would take minutes or gigabytes; what is left takes up to 0.1 s on an idle machine
CONTEXT = full_context(
    Facts(
        "paid",
        Identifiers("0xa", "ann@b.co", "u1", "0xA"),
        {
            "text": "y" * 16_000,
            "list": list(range(1_000)),
            "nested": [[1, [2, [3]]], {"a": {"b": "c"}}],
            "number": 10**300,
            "words": ["a" * 100] * 100,
            "nothing": None,
        },
        ContactState("c1", attributes={"tier": "gold"}, tags=("vip",)),
    )
)

ATTACKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ text['__class__'] }}",
    "{{ text.__class__ }}",
    "{{ text|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ nested|map(attribute='__class__')|list }}",
    "{{ nested|map('attr', '__class__') }}",
    "{{ nested|selectattr('__class__') }}",
    "{{ nested|groupby('__class__') }}",
    "{{ nested|sort(attribute='__class__') }}",
    "{{ nested|sum(attribute='__class__') }}",
    "{{ nested|tojson }}",
    "{{ nested|pprint }}",
    "{{ nested|xmlattr }}",
    "{{ '%s'|format(nested) }}",
    "{{ '{0.__class__}'.format(text) }}",
    "{{ '{0.__class__}'.format_map(payload) }}",
    "{{ ('{0.__class__}'|string).format(text) }}",
    "{{ 'a'.replace.__self__ }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'] }}",
    "{{ lipsum(n=10**9) }}",
    "{{ self.__init__.__globals__ }}",
    "{{ self._TemplateReference__context }}",
    "{{ self|upper }}",
    "{{ self ~ '' }}",
    "{{ context }}",
    "{{ environment }}",
    "{{ config }}",
    "{{ request }}",
    "{{ get_flashed_messages.__globals__ }}",
    "{{ caller }}",
    "{{ varargs }}",
    "{{ super() }}",
    "{{ loop }}",
    "{% for x in list %}{{ loop }}{% endfor %}",
    "{% for x in list %}{{ loop ~ '' }}{% endfor %}",
    "{% for x in list %}{{ loop|upper }}{% endfor %}",
    "{% for x in list %}{{ [loop]|join }}{% endfor %}",
    "{% for x in list %}{{ [loop] }}{% endfor %}",
    "{% for x in list %}{{ loop|first }}{% endfor %}",
    "{% for x in list %}{{ x in loop }}{% endfor %}",
    "{% for x in list %}{{ loop == loop }}{% endfor %}",
    "{% for x in list %}{{ loop.__class__ }}{% endfor %}",
    "{% for x in list %}{{ loop._iterable }}{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a') }}{% endfor %}",
    "{% for x in list %}{{ loop.previtem }}{% endfor %}",
    "{% for x in list %}{% for y in loop %}{% endfor %}{% endfor %}",
    "{{ nothing|default(loop) }}{{ nothing|default(self) }}",
    "{% set x = namespace() %}{% set x.a = 1 %}",
    "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends text %}",
    "{{ dict(a=1) }}",
    "{{ range(10**9)|list }}",
    "{{ _budget }}{{ _budget.spend }}",
    "{{ ''|_each(1) }}",
    "{{ 'x'|_decimal }}",
    "{{ text is callable }}",
    "{{ text is filter }}",
    "{% trans %}{{ text.__class__ }}{% endtrans %}",
    "{{ contact.tags.append('x') }}",
    "{{ payload.update({'a': 1}) }}",
    "{{ payload.__setitem__ }}",
    "{{ (1).__class__ }}",
    "{{ 1.0.__class__ }}",
    "{{ true.__class__ }}",
    "{{ none.__class__ }}",
    "{{ nowhere.__class__ }}",
    "{{ [].__class__ }}",
    "{{ ().__class__.__base__ }}",
]

BOMBS = [
    "{{ 9**9**9 }}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ 'a'|center(10**9) }}",
    "{{ 'a'|indent(10**9) }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ list|batch(1, 10**9) }}",
    "{{ list|slice(10**9) }}",
    "{{ 'a'|wordwrap(1) }}",
    "{{ 1|round(10**9) }}{{ 1.5|round(10**300) }}{{ number|number(10**300) }}",
    "{{ text|truncate(10**300) }}",
    "{{ text|replace('', text) }}",
    "{{ text|replace('y', text)|replace('y', text) }}",
    "{{ words|join(text) }}",
    "{{ list|join(text) }}",
    "{{ " + "+".join(["text"] * 45) + " }}",
    "{{ " + "~".join(["text"] * 400) + " }}",
    "{{ " + "*".join(["number"] * 45) + " }}",
    "{{ " + "*".join(["9" * 300] * 45) + " }}",
    "{{ text }}" * 400,
    "{{ payload }}" * 400,
    "{% for x in list %}{{ text }}{% endfor %}",
    "{% for x in list %}{% for y in list %}{% endfor %}{% endfor %}",
    "{% for x in list %}{% for y in list %}{% for z in list %}{{ z }}{% endfor %}{% endfor %}{% endfor %}",
    "{% for x in words %}{% for y in words %}{% if text|upper %}{% endif %}{% endfor %}{% endfor %}",
    "{% for x in list %}{% if text|title|title|title %}{% endif %}{% endfor %}",
    "{% for x in list if text|upper %}{% endfor %}",
    "{% for x in list %}{% if " + " + ".join(["text"] * 15) + " %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if " + " ~ ".join(["text"] * 15) + " %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if (payload ~ '')|length %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if payload|upper|length %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if list|join(',') %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if words|join|replace('a', 'bb') %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if 'z' in list or 'z' in text or 'yz' in text %}{% endif %}{% endfor %}",
    "{% for x in list %}{% if " + " or ".join(["number * number < number"] * 10) + " %}{% endif %}{% endfor %}",
    "{% for x in list %}" + "{% if x > 1 and number > 1 %}{% endif %}" * 60 + "{% endfor %}",
    "{{ " + " and ".join(["text|title"] * 48) + " }}",
    "{{ " + " or ".join(["(payload ~ '' == 1)"] * 48) + " }}",
    "{{ " + "(" * 3_000 + "1" + ")" * 3_000 + " }}",
    "{{ " + "[" * 3_000 + "]" * 3_000 + " }}",
    "{{ " + "-" * 3_000 + "1 }}",
    "{{ " + "not " * 3_000 + "1 }}",
    "{{ " + "a." * 4_000 + "b }}",
    "{{ a" + "[0]" * 4_000 + " }}",
    "{{ 1" + "|abs" * 4_000 + " }}",
    "{{ " + " if 1 else ".join(["1"] * 3_000) + " }}",
    "{% if a %}" * 2_000 + "{% endif %}" * 2_000,
    "{% for a in list %}" * 30 + "{% endfor %}" * 30,
    "{{ " + "9" * 60_000 + " }}",
    "{{ 0x" + "f" * 60_000 + " }}",
    "{{ 0." + "1" * 60_000 + " }}",
    "{{ '" + "\\n" * 30_000 + "' }}",
    "{{ 1 }}" * 9_000,
    "{% if 1 %}{% elif 1 %}" + "{% elif 1 %}" * 4_000 + "{% endif %}",
    "{" * 65_536,
    "{{" * 32_768,
    "{#" * 32_768,
    "{% raw %}" * 7_000,
    "{{ '" * 16_000,
    " " * 65_000 + "{{",
    "{{" + " " * 65_000 + "}}",
    "{{ a" + "\n" * 60_000 + " }}",
    "x" * 65_537,
]  # fmt: skip


def outcome(source: str) -> str:
    try:
        return render(source, CONTEXT)
    except TemplateError as error:
        return f"refused: {error}"


def as_html(source: str) -> str:
    try:
        return render(source, CONTEXT, html=True)
    except TemplateError as error:
        return f"refused: {error}"


def as_value(source: str) -> str:
    try:
        value = evaluate(source, CONTEXT, RenderBudget())
    except TemplateError as error:
        return f"refused: {error}"
    return value if isinstance(value, str) else encode(value).decode()  # raises if the value is not JSON


@pytest.mark.parametrize("outcome", [outcome, as_html, as_value])
def test_m1_no_attack_reaches_a_python_object(outcome: Callable[[str], str]) -> None:
    for source in ATTACKS:
        result = outcome(source)
        assert result.startswith("refused: ") or result in ("", *(" " * n for n in range(9))), (source, result)
        assert not re.search(r"<(class|module|function|bound|Loop|Template|built)|object at 0x|Traceback", result), (
            result
        )


@pytest.mark.parametrize("source", BOMBS, ids=range(len(BOMBS)))
def test_m2_m3_m10_template_bombs_are_refused_quickly(source: str) -> None:
    before = time.process_time()
    result = outcome(source)
    assert time.process_time() - before < SECONDS
    assert len(result) <= 262_144


@pytest.mark.parametrize("source", [bomb for bomb in BOMBS if bomb.startswith("{{") and bomb.endswith("}}")])
def test_m2_m3_values_are_bounded_like_templates(source: str) -> None:
    before = time.process_time()
    result = as_value(source)
    assert time.process_time() - before < SECONDS
    assert len(result) <= 262_144


def test_only_the_listed_filters_and_tests_exist() -> None:
    assert set(FILTERS) == {
        "abs",
        "capitalize",
        "count",
        "d",
        "default",
        "first",
        "join",
        "last",
        "length",
        "lower",
        "number",
        "replace",
        "round",
        "sum",
        "title",
        "trim",
        "truncate",
        "upper",
        "urlencode",
    }
    assert " ".join(sorted(TESTS)) == "boolean defined false mapping none number sequence string true undefined"


fragments = st.sampled_from(
    [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{{-",
        "-}}",
        "{%-",
        "-%}",
        "for",
        "in",
        "if",
        "elif",
        "else",
        "endif",
        "endfor",
        "is",
        "not",
        "and",
        "or",
        "x",
        "text",
        "list",
        "number",
        "nested",
        "payload",
        "contact",
        "loop",
        "self",
        "_budget",
        ".",
        ".a",
        "['a']",
        "[0]",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        ",",
        "|",
        "~",
        "+",
        "-",
        "*",
        "/",
        "%",
        "**",
        "==",
        "<",
        "<=",
        "!=",
        "1",
        "0.5",
        "1e9",
        "'a'",
        '"b"',
        "upper",
        "join",
        "replace",
        "number",
        "round",
        "truncate",
        "default",
        "first",
        "length",
        "defined",
        "none",
        "true",
        "set",
        "macro",
        "include",
        "raw",
        "endraw",
        "\n",
        "\\",
        "é",
        "😀",
        "\x00",
        "\u2028",
    ]
)
soups = st.lists(fragments | st.text(max_size=3), max_size=25).map(" ".join)
OPERATORS = ["+", "-", "*", "/", "~", "==", "<", "in", "and", "or", "is"]
expressions = st.recursive(
    st.sampled_from(
        ["text", "list", "number", "nested", "payload.list", "nope", "1", "0.5", "'a'", "[1, 'b']", "nothing", "true"]
    ),
    lambda inner: st.builds("({} {} {})".format, inner, st.sampled_from(OPERATORS), inner)
    | st.builds("{}|{}".format, inner, st.sampled_from(FILTERS))
    | st.builds("{}|{}({})".format, inner, st.sampled_from(FILTERS), inner)
    | st.builds("{}.{}".format, inner, st.sampled_from(["a", "__class__", "items"]))
    | st.builds("-{}".format, inner)
    | st.builds("({} if {} else {})".format, inner, inner, inner),
    max_leaves=8,
)  # fmt: skip


@given(soups)
def test_random_text_is_rendered_or_refused(source: str) -> None:
    outcome(source)


@given(expressions)
def test_random_expressions_are_rendered_or_refused(expression: str) -> None:
    result = outcome("{{ " + expression + " }}{% for x in " + expression + " %}{{ x }}{% endfor %}")
    assert not re.search(r"<class|object at 0x|Decimal\(|Undefined", result), result


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3))
def test_values_are_rendered_unchanged(value: str, more: dict[str, Any]) -> None:
    value = value.encode(errors="ignore").decode().replace("\0", "")
    assert render("{{ value }}", {**more, "value": value}) == value


def test_compiled_templates_are_cached() -> None:
    assert compile_template("Hi {{ name }}") is compile_template("Hi {{ name }}")
