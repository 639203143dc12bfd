"""Texts include snippets by name, within the bounds of templates, and what cannot be included is refused."""

from typing import Any

import pytest

from workbench.language.actions import InvalidAction, SendEmail, SendVia, read_action
from workbench.language.check import check
from workbench.language.codec import decode, encode
from workbench.language.graph import Graph, read_graph
from workbench.language.problem import Problem
from workbench.language.snippets import (
    MAX_ADDED,
    MAX_DEPTH,
    MAX_PINNED,
    Library,
    SnippetText,
    expand,
    expand_all,
    names_in,
    read_snippets,
)
from workbench.language.template import MAX_SOURCE, TemplateError, render, required_paths
from workbench.language.trigger import Trigger

LIBRARY = {
    "sign": SnippetText(1, "{{ contact.name }} of {{ shop | default('Acme') }}\n"),
    "top": SnippetText(1, "<html>{% if vip %}*{% endif %}"),
    "layout": SnippetText(2, "{% include 'top' %}-{% include \"sign\" %}"),
    "loop": SnippetText(1, "a{% include 'pool' %}"),
    "pool": SnippetText(1, "{% include 'loop' %}"),
    "broken": SnippetText(1, "{% if a %}"),
    "brace": SnippetText(1, "{"),
    "unknown": SnippetText(1, "\n{% include 'singe' %}"),
}


def test_a_snippet_stands_for_its_text_and_sees_what_the_text_around_it_sees() -> None:
    text = expand("{% for shop in shops %}{%- include 'sign' -%} , {% endfor %}", Library(LIBRARY))
    assert render(text, {"shops": ["a", "b"], "contact": {"name": "Ann"}}) == "Ann of a, Ann of b, "
    text = expand(
        "{% include 'layout' %}{% raw %}{% include 'x' %}{% endraw %}{# {% include 'x' %} #}", Library(LIBRARY)
    )
    assert render(text, {"vip": 1, "contact": {"name": "<"}}, html=True) == ("<html>*-&lt; of Acme{% include 'x' %}")
    assert required_paths(text) == {"vip", "contact.name"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("{% include 'sign' %}", "{{ contact.name }} of {{ shop | default('Acme') }}"),
        ('{%- include\t"top"-%} a', "<html>{% if vip %}*{% endif %}a"),
        ("{% if a %}{% include 'top' %}{% endif %}", "{% if a %}<html>{% if vip %}*{% endif %}{% endif %}"),
        ("include {% raw %}{% include 'top' %}{% endraw %}", "include {% raw %}{% include 'top' %}{% endraw %}"),
        ("{{ include }} {# include #}", "{{ include }} {# include #}"),
        ("include {% if", "include {% if"),
        ("{ {%- include 'line' %}", "{ {# #}"),
        ("{ {%- include 'set' %}", "{ {% if a %}{% endif %}"),
        ("{ {%- include 'off' %}", "{ % off"),
        ("{ {%- include 'hash' %}", "{ # x"),
        ("{%include 'top'%}", "<html>{% if vip %}*{% endif %}"),
    ],
)
def test_a_text_is_expanded(text: str, expanded: str) -> None:
    more = {
        "line": SnippetText(1, "{# #}"),
        "set": SnippetText(1, "{% if a %}{% endif %}"),
        "off": SnippetText(1, "% off"),
        "hash": SnippetText(1, "# x"),
    }
    assert expand(text, Library(LIBRARY | more)) == expanded


def test_a_text_without_a_library_shows_the_names() -> None:
    assert expand("a {% include 'sign' %}{%- include 'x' %} b", None) == "a [sign][x] b"


def test_all_texts_of_a_value_are_expanded_and_each_problem_has_its_field() -> None:
    problems: list[Problem] = []
    value = {"a": ["{% include 'top' %}", 5, {"b": "{% include 'nope' %}"}], "c": {"d": "{% include x %}"}, "e": None}
    expanded = expand_all(value, Library(LIBRARY), "n.data", problems)
    assert expanded == {"a": [LIBRARY["top"].body, 5, {"b": "?"}], "c": {"d": "?"}, "e": None}
    assert [(problem.field, problem.reason) for problem in problems] == [
        ("n.data.a.b", "line 1: unknown snippet 'nope'"),
        ("n.data.c.d", 'line 1: a snippet is included by its name, like {% include "footer" %}'),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "\n{% include\n 'loop' %}",
            "snippet 'loop': snippet 'pool': line 1: the snippet 'loop' includes itself: loop → pool → loop",
        ),
        ("\n\n{%\ninclude\nname %}", 'line 3: a snippet is included by its name, like {% include "footer" %}'),
        ("{% include 'sign' 'top' %}", 'line 1: a snippet is included by its name, like {% include "footer" %}'),
        ("{% include sign %}", 'line 1: a snippet is included by its name, like {% include "footer" %}'),
        ("{% include 'brace' %}", "snippet 'brace': must not end with {"),
    ],
)
def test_the_reason_why_a_text_cannot_be_included(text: str, reason: str) -> None:
    with pytest.raises(TemplateError) as caught:
        expand(text, Library(LIBRARY))
    assert str(caught.value) == reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("\n{% include 'sing' %}", "line 2: unknown snippet 'sing'; did you mean 'sign'?"),
        ("{% include 'loop' %}", "snippet 'loop': snippet 'pool': line 1: the snippet 'loop' includes itself: loop →"),
        ("{% include name %}", 'line 1: a snippet is included by its name, like {% include "footer" %}'),
        ("{% include 'si' ~ 'gn' %}", "line 1: a snippet is included by its name"),
        ("{% include ['sign'] %}", "line 1: a snippet is included by its name"),
        ("{% include 'sign' ignore missing %}", "line 1: a snippet is included by its name"),
        ("{% include '../x' %}", "line 1: a snippet is included by its name"),
        ("{% include 'broken' %}", "snippet 'broken': line 1: "),
        ("{% include 'brace' %}{ a }}", "snippet 'brace': must not end with {"),
        ("{% include 'unknown' %}", "snippet 'unknown': line 2: unknown snippet 'singe'"),
        ("{% include 'sign' ", "line 1: "),
    ],
)  # fmt: skip
def test_an_include_that_means_no_text_is_refused_at_its_node_and_field(text: str, reason: str) -> None:
    data = {"subject": "s", "body": "b", "locales": {"de": {"subject": text, "body": "b"}}}
    action = read_action("send_email", data, "n", Library(LIBRARY))
    assert isinstance(action, InvalidAction)
    (problem,) = action.problems
    assert (problem.field, problem.reason[: len(reason)]) == ("n.data.locales.de.subject", reason)


def test_all_texts_of_a_message_include_snippets() -> None:
    library, include = Library(LIBRARY), "{% include 'top' %}"
    assert read_action("send_email", {"subject": include, "body": include}, "n", library) == SendEmail(
        LIBRARY["top"].body, LIBRARY["top"].body
    )
    via = read_action("send_via", {"connection": "chat", "fields": {"text": include}}, "n", library)
    assert via == SendVia("chat", {"text": LIBRARY["top"].body})


def test_only_texts_of_messages_include_snippets() -> None:
    include = "{% include 'sign' %}"
    for kind, data in (
        ("update_contact", {"attributes": {"a": include}}),
        ("send_webhook", {"url": f"https://a.co/{include}"}),
    ):
        action = read_action(kind, data, "n", Library(LIBRARY))
        assert isinstance(action, InvalidAction)
        assert "include is not allowed here" in action.problems[0].reason
    assert not isinstance(
        read_action("send_webhook", {"url": "https://a.co", "body": [include]}, "n", Library(LIBRARY)), InvalidAction
    )


def test_snippets_have_the_bounds_of_a_template() -> None:
    doubling = {f"s{n}": SnippetText(1, f"{{% include 's{n + 1}' %}}" * 2) for n in range(MAX_DEPTH)}
    with pytest.raises(TemplateError, match="nested"):
        expand("{% include 's0' %}", Library(doubling | {f"s{MAX_DEPTH}": SnippetText(1, "x")}))
    wide = {
        "a": SnippetText(1, "{% include 'b' %}" * 1_000),
        "b": SnippetText(1, "{% include 'c' %}" * 1_000),
        "c": SnippetText(1, "xy"),
    }
    with pytest.raises(TemplateError, match="is longer than 65536 characters with its snippets"):
        expand("{% include 'a' %}" * 1_000, Library(wide))
    parts = read_action(
        "send_email",
        {"subject": "s", "body": "{% include 'c' %}"},
        "n",
        Library({"c": SnippetText(1, "{{ a }}" * 1_000)}),
    )
    assert isinstance(parts, InvalidAction)
    assert "has more than 1000 parts" in parts.problems[0].reason
    assert expand("include " * 9_000, Library({})) == "include " * 9_000  # which the compiler refuses, as it is longer
    assert MAX_SOURCE < 9_000 * 8


def test_repetition_costs_as_much_as_the_texts_are_long() -> None:
    nothing = {f"s{n}": SnippetText(1, f"{{% include 's{n + 1}' %}}" * 1_000) for n in range(MAX_DEPTH - 1)}
    assert expand("{% include 's0' %}", Library(nothing | {f"s{MAX_DEPTH - 1}": SnippetText(1, "\n")})) == ""
    long = {"long": {"version": 1, "body": "x" * MAX_SOURCE}}
    read = graph("b", long, ["{% include 'long' %}"] * (MAX_ADDED // MAX_SOURCE + 1))
    assert isinstance(read, Graph)
    action = read.by_id["w"].action
    assert isinstance(action, InvalidAction)
    reason = "snippets add more than 4,194,304 characters to the texts of the automation"
    assert [(problem.field, problem.reason) for problem in action.problems] == [("graph.nodes[2].data.body", reason)]


def test_white_space_at_the_ends_of_a_snippet_is_that_of_a_template() -> None:
    library = Library({"line": SnippetText(1, "a\r\n"), "value": SnippetText(1, "{{ n }}")})
    assert render(expand("{% include 'line' %}.", library), {}) == "a."
    assert render(expand("h1 { {%- include 'value' -%} } { {{- n -}} }", library), {"n": 1}) == "h1 { 1} {1}"


def encode_of(snippet: SnippetText) -> Any:
    return decode(encode(snippet))


def graph(body: str, snippets: Any, posted: Any = None) -> Any:
    nodes = [
        {"id": "t", "type": "app_event"},
        {"id": "m", "type": "send_email", "data": {"subject": "s", "body": body}},
        {"id": "w", "type": "send_webhook", "data": {"url": "https://a.co", "body": posted}},
    ]
    written = {
        "nodes": nodes,
        "edges": [{"source": "t", "target": "m"}, {"source": "m", "target": "w"}],
        "snippets": snippets,
    }
    return read_graph(decode(encode(written)))


def test_a_published_graph_has_its_snippets_and_a_draft_shows_their_names() -> None:
    body = "{% include 'sign' %}"
    pinned = graph(body, {"sign": {"version": 1, "body": "<b>"}})
    assert isinstance(pinned, Graph)
    assert pinned.by_id["m"].action == SendEmail("s", "<b>")
    assert pinned.by_id["m"].action.html
    assert graph(body, None).by_id["m"].action == SendEmail("s", "[sign]")
    (error,) = [item for item in check(Trigger(frozenset({"a"})), graph(body, {})) if item.level == "error"]
    assert (error.node_id, error.field) == ("m", "graph.nodes[1].data.body")
    assert error.message == "line 1: unknown snippet 'sign'"


@pytest.mark.parametrize("snippets", [[], {"a": "text"}, {"a": {"version": 1}}])
def test_snippets_of_another_shape_are_refused(snippets: Any) -> None:
    reason = "must be an object of snippets, each with its version and body"
    assert graph("b", snippets) == (Problem("graph.snippets", reason),)


def test_snippets_that_are_too_long_together_are_refused() -> None:
    snippets = {"a": {"version": 1, "body": "x" * (MAX_PINNED + 1)}}
    assert graph("b", snippets) == (Problem("graph.snippets", "have more than 262,144 characters together"),)


def test_ten_snippets_may_be_nested() -> None:
    chain = {f"s{n}": SnippetText(1, f"{{% include 's{n + 1}' %}}") for n in range(10)}
    library = Library(chain | {"s10": SnippetText(1, "x")})
    assert expand("{% include 's1' %}", library) == "x"
    deeper = Library(library.snippets)
    with pytest.raises(TemplateError, match=r"^(snippet 's\d': ){10}line 1: more than 10 snippets are nested$"):
        expand("{% include 's0' %}", deeper)


def test_snippets_fill_their_bounds() -> None:
    half = SnippetText(1, "x" * (MAX_PINNED // 2))
    pinned = read_snippets({"a": encode_of(half), "b": encode_of(half)}, "s")
    assert isinstance(pinned, Library)
    assert pinned.snippets == {"a": half, "b": half}
    assert read_snippets(None, "s") is None
    full = Library({"full": SnippetText(1, "x" * MAX_SOURCE)})
    assert expand("{% include 'full' %}", full) == "x" * MAX_SOURCE
    with pytest.raises(TemplateError, match="is longer than 65536 characters with its snippets"):
        expand(".{% include 'full' %}", full)
    for _ in range(MAX_ADDED // MAX_SOURCE - 2):
        expand("{% include 'full' %}", full)
    with pytest.raises(TemplateError, match="snippets add more than 4,194,304 characters"):
        expand("{% include 'full' %}", full)


def test_names_are_found_in_all_texts_of_a_value() -> None:
    value = [{"a": "{% include 'x' %}{%- include \"y\" -%}"}, ["{% include z %}", "include 'w'", 5, None]]
    assert names_in(value) == {"x", "y"}
