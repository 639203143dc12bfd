"""Connections: their fields, requests, and rules for answers."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from tests.language.strategies import graph_of
from workbench.language.actions import NOT_A_FIELD
from workbench.language.body import read_value
from workbench.language.check import CatalogFacts, Diagnostic, check_against
from workbench.language.connections import (
    HIDDEN,
    MAX_RETRY_AFTER_S,
    MAX_SECRET,
    MAX_SECRETS,
    MAX_TEMPLATES,
    ConnectionBody,
    ConnectionDefinition,
    ConnectionRequest,
    check_connections,
    compose_request,
    connections_of,
    read_answer,
    retry_after_in,
)
from workbench.language.problem import Problem
from workbench.language.template import TemplateError
from workbench.language.trigger import Trigger

NOW = datetime(2026, 11, 20, tzinfo=UTC)
URL = "https://api.example"
FORM_TYPE = "application/x-www-form-urlencoded"
FORM = {"content-type": f"{FORM_TYPE}; charset=utf-8"}


def define(**written: Any) -> ConnectionDefinition:
    definition = read_value(ConnectionDefinition, {"url": URL, "body": {}} | written, "")
    assert isinstance(definition, ConnectionDefinition), definition
    return definition


FIXED_HOST = "c.url: must be an http or https URL of at most 2048 characters; values may only follow the host"
STATUSES = "c.success.status: must be an array of statuses such as 204, or of 2xx"
RATES = "c.rate: must be the messages a second, a number from 0.001 to 1,000"
NAMES = "use fields.NAME, secrets.NAME or messageId"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ({"url": 5}, "c.url: must be a text"),
        ({"url": "ftp://a"}, FIXED_HOST),
        ({"url": "https://{{ fields.host }}/"}, FIXED_HOST),
        ({"url": URL + "/{{ x"}, "c.url: line 1: unexpected end of template, expected 'end of the expression'."),
        ({"method": "GET"}, "c.method: must be one of POST, PUT, PATCH"),
        ({"headers": []}, "c.headers: must be an object of at most 20 headers"),
        ({"headers": {f"x-{n}": "" for n in range(21)}}, "c.headers: must be an object of at most 20 headers"),
        ({"headers": {"a b": "x"}}, "c.headers.a b: is not the name of a header"),
        ({"headers": {"Host": "x"}}, "c.headers.Host: is set by Event Workbench"),
        ({"headers": {"x-a": 5}}, "c.headers.x-a: must be a text"),
        ({"headers": {"X-A": "1", "x-a": "2"}}, "c.headers: has a header twice"),
        ({"headers": {"Content-Type": "text/plain"}}, f"headers.content-type: must be application/json or {FORM_TYPE}"),
        ({"body": []}, "c.body: must be an object, whose texts are templates"),
        ({"body": {"a": "x" * 65_529}}, "c.body: is larger than 65,536 bytes"),
        ({"body": {"a": "{{ event }}"}}, f"c.body: 'event' is not known here: {NAMES}"),
        ({"body": {"a": "{{ fields }}"}}, f"c.body: 'fields' is not known here: {NAMES}"),
        ({"body": {"a": "{{ fields['a-b'] }}"}}, f"c.body: fields.a-b: {NOT_A_FIELD}"),
        ({"body": {"a": [f"{{{{ fields.f{n} }}}}" for n in range(51)]}}, "body: uses more than 50 fields"),
        (
            {"headers": FORM, "body": {"a": [1]}},
            "body.a: must be a text, a number or a boolean, because the body is a form",
        ),
        ({"success": {}}, "success: needs status or where"),
        ({"permanent": {}}, "permanent: needs status or where"),
        ({"success": {"status": []}}, STATUSES),
        ({"success": {"status": [99]}}, STATUSES),
        ({"success": {"status": [600]}}, STATUSES),
        ({"success": {"status": ["6xx"]}}, STATUSES),
        ({"success": {"where": " "}}, "c.success.where: must be an expression"),
        ({"success": {"where": "1 +"}}, "c.success.where: line 1: unexpected 'end of the expression'"),
        (
            {"success": {"where": "event == 1"}},
            "c.success.where: 'event' is not known here: use status, or answer with a path into it",
        ),
        ({"rate": 0}, RATES),
        ({"rate": 1_001}, RATES),
        ({"rate": True}, RATES),
        ({"rate": "5"}, RATES),
    ],
)
def test_a_connection_that_cannot_work_is_refused(written: dict[str, Any], problem: str) -> None:
    problems = read_value(ConnectionDefinition, {"url": URL, "body": {}} | written, "c")
    assert isinstance(problems, tuple)
    assert [str(item) for item in problems] == [problem]


def test_a_connection_at_its_limits_is_accepted() -> None:
    assert [define(rate=rate).rate for rate in (0.001, 1_000)] == [0.001, 1_000.0]
    assert define(success={"status": [100, 599, "1xx", "5xx"]}).success is not None
    assert len(define(headers={f"x-{n}": "" for n in range(20)}).headers) == 20
    assert len(define(body={"a": [f"{{{{ fields.f{n} }}}}" for n in range(50)]}).fields) == 50
    assert len(define(body={"a": "x" * 65_528}).body["a"]) == 65_528


def test_fields_and_secrets_are_those_of_the_templates() -> None:
    definition = define(
        url=URL + "/{{ fields.id }}/{{ secrets.path }}",
        headers={"x-a": "{{ secrets.key }} {{ messageId }}"},
        body={"a": ["{{ fields.text | default('-') }}", "{% if fields.b %}{{ fields.c }}{% endif %}"]},
    )
    assert definition.fields == {"id": True, "text": False, "b": True, "c": False}
    assert definition.secret_names == ("path", "key")


def test_values_are_encoded_for_their_place() -> None:
    definition = define(
        url=URL + "/{{ fields.a }}?k={{ secrets.k }}", body={"a": "{{ fields.a }}", "n": "{{ fields.n }}"}
    )
    request = compose_request(definition, {"a": '/?&"\n', "n": Decimal("1.50")}, {"k": "x/y"}, "m")
    assert request.url == URL + "/%2F%3F%26%22%0A?k=x/y"
    assert request.body == b'{"a":"/?&\\"\\n","n":1.50}'
    assert request.headers == {"content-type": "application/json"}


def test_an_object_in_the_url_is_encoded_with_its_names() -> None:
    request = compose_request(define(url=URL + "/{{ fields.a }}"), {"a": {"b/../?c": ["/"]}}, {}, "m")
    assert request.url == URL + '/{"b%2F..%2F%3Fc":["%2F"]}'


@pytest.mark.parametrize("path", ["/a/..b", "/a..", "/...", "/a?b=/../c"])
def test_points_in_a_url_are_no_path_segments(path: str) -> None:
    assert compose_request(define(url=URL + path), {}, {}, "m").url == URL + path


def test_spaces_around_a_header_are_removed() -> None:
    definition = define(headers={"authorization": "Bearer {{ fields.a }}", "x-b": " b"})
    headers = compose_request(definition, {"a": ""}, {}, "m").headers
    assert (headers["authorization"], headers["x-b"]) == ("Bearer", "b")


def test_a_body_is_a_form_if_the_header_says_so() -> None:
    definition = define(headers=FORM, body={"a": "{{ fields.a }}", "b": 2, "c": None, "d": True})
    assert compose_request(definition, {"a": "x&y=z é"}, {}, "m").body == b"a=x%26y%3Dz+%C3%A9&b=2&d=true"


@pytest.mark.parametrize("fields", [{}, {"a": "x" * 3_000}, {"a": "."}, {"a": ".."}])
def test_a_request_that_cannot_be_made_raises(fields: dict[str, Any]) -> None:
    with pytest.raises(TemplateError):
        compose_request(define(url=URL + "/{{ fields.a }}"), fields, {}, "m")


@pytest.mark.parametrize("value", ["a\r\nb: c", "a\n", "é"])
def test_a_header_has_printable_characters_only(value: str) -> None:
    with pytest.raises(TemplateError, match="the header x-a has characters"):
        compose_request(define(headers={"X-A": "{{ fields.a }}"}), {"a": value}, {}, "m")


def test_a_body_has_a_limited_number_of_templates() -> None:
    texts = [f"{{{{ fields.a }}}} {number}" for number in range(MAX_TEMPLATES + 1)]
    define(body={"a": [*texts[1:], "a", "b"]})
    (problem,) = read_value(ConnectionDefinition, {"url": URL, "body": {"a": texts}}, "")
    assert str(problem).endswith("body: has more than 100 texts with values")


@pytest.mark.parametrize(
    ("success", "permanent", "status", "answer", "verdict"),
    [
        ({"status": ["2xx"]}, None, 204, "", "sent"),
        ({"status": ["2xx"]}, None, 302, "", "refused"),
        ({"status": [201]}, {"status": ["4xx"]}, 200, "", "refused"),
        ({"status": [201]}, {"status": ["4xx"]}, 404, "", "permanent"),
        ({"where": "answer.ok"}, None, 200, {"ok": True}, "sent"),
        ({"where": "answer.ok"}, None, 200, {"ok": "true"}, "refused"),
        ({"where": "answer == 'ok'"}, None, 200, "ok", "sent"),
        ({"status": ["2xx"], "where": "answer.ok"}, None, 500, {"ok": True}, "refused"),
        (None, {"where": "answer.error in ['a', 'b']"}, 200, {"error": "b"}, "permanent"),
        (None, {"where": "status == 409"}, 409, None, "permanent"),
        (None, None, 200, {}, "refused"),
    ],
)
def test_rules_say_what_an_answer_means(success: Any, permanent: Any, status: int, answer: Any, verdict: str) -> None:
    assert define(success=success, permanent=permanent).outcome_of(status, answer, NOW) == verdict


def test_an_answer_is_json_or_text() -> None:
    assert [read_answer(content) for content in (b'{"a": 1}', b"ok", b"\xff", b"")] == [{"a": 1}, "ok", "\ufffd", ""]


@pytest.mark.parametrize("content", [b'{"a": 1e5000000000}', b'{"a": 1' + b"0" * 400 + b"}", b"[" * 40 + b"]" * 40])
def test_an_answer_with_numbers_or_levels_that_are_too_large_is_text(content: bytes) -> None:
    assert read_answer(content) == content.decode()


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ({"retry_after": Decimal("0.75")}, 0.75),
        ({"parameters": {"retry_after": 34}}, 34.0),
        ({"retry_after": -1}, 0.0),
        ({"retry_after": 10**400}, MAX_RETRY_AFTER_S),
        ({"retry_after": Decimal("1e400")}, MAX_RETRY_AFTER_S),
        ({"retry_after": "5"}, None),
        ({"retry_after": True}, None),
        ({"parameters": 5}, None),
        ("slow down", None),
    ],
)
def test_an_answer_can_say_when_to_come_back(answer: Any, seconds: float | None) -> None:
    assert retry_after_in(answer) == seconds


def test_nodes_are_checked_against_connections() -> None:
    nodes = [
        {"id": "a", "type": "send_via", "data": {"connection": name, "fields": fields}}
        for name, fields in (("chat", {"text": "x"}), ("chat", {"txt": 1}), ("cha", {}), ("mute", {}))
    ]
    graph = graph_of({"nodes": [node | {"id": str(index)} for index, node in enumerate(nodes)], "edges": []})
    connections = {"chat": define(body={"a": "{{ fields.text }}"}, success={"status": [200]}), "mute": define()}
    assert connections_of(graph) == ("chat", "cha", "mute")
    assert list(check_connections(graph, connections)) == [
        ("1", "fields.text", "is missing: the connection 'chat' needs it"),
        ("1", "fields.txt", "the connection 'chat' has no such field; did you mean 'text'?"),
        ("2", "connection", "unknown connection 'cha'; did you mean 'chat'?"),
        ("3", "connection", "the connection 'mute' has no success rule"),
    ]
    catalog = CatalogFacts((), {}, connections=connections)
    assert Diagnostic("warning", "connection: unknown connection 'cha'; did you mean 'chat'?", "2") in [
        *check_against(catalog, Trigger(), graph)
    ]


def test_a_preview_hides_secrets() -> None:
    definition = define(url=URL + "/{{ secrets.k }}", body={"a": "{{ secrets.k }}"})
    request = compose_request(definition, {}, {"k": HIDDEN}, "m")
    assert (request.url, request.body.decode()) == (f"{URL}/{HIDDEN}", f'{{"a":"{HIDDEN}"}}')


@pytest.mark.parametrize("secrets", [{}, {"a": "x", "b": "x" * MAX_SECRET}, {f"s{n}": "x" for n in range(MAX_SECRETS)}])
def test_secrets_are_read(secrets: dict[str, str]) -> None:
    body = read_value(ConnectionBody, {"url": URL, "body": {}, "secrets": secrets}, "c")
    assert isinstance(body, ConnectionBody)
    assert body.secrets == secrets


TOO_MANY = (Problem("c.secrets", "must be an object of at most 20 texts"),)
NOT_A_SECRET = Problem("c.secrets.a", "must be a text of 1 to 4,096 printable characters")


@pytest.mark.parametrize(
    ("secrets", "problems"),
    [
        ([], TOO_MANY),
        ({f"s{n}": "x" for n in range(MAX_SECRETS + 1)}, TOO_MANY),
        ({"a": 5}, (NOT_A_SECRET,)),
        ({"a": ""}, (NOT_A_SECRET,)),
        ({"a": "x" * (MAX_SECRET + 1)}, (NOT_A_SECRET,)),
        ({"a": "x\ny", "b": "ok", "1": "ok"}, (NOT_A_SECRET, Problem("c.secrets.1", NOT_A_FIELD))),
    ],
)
def test_a_secret_that_cannot_be_sent_is_named_without_its_value(secrets: Any, problems: tuple[Problem, ...]) -> None:
    assert read_value(ConnectionBody, {"url": URL, "body": {}, "secrets": secrets}, "c") == problems


def test_the_whole_request() -> None:
    written = {
        "url": URL + "/{{ fields.path }}",
        "method": "PUT",
        "headers": {"X-Id": " X{{ messageId }} ", "Authorization": "Bearer {{ secrets.key }}"},
        "body": {"text": "{{ fields.object }}"},
    }
    fields = {"path": "a b/é", "object": {"a/b": [1, "c/d"]}}
    headers = {"x-id": "Xm1", "authorization": "Bearer k", "content-type": "application/json"}
    sent = ConnectionRequest("PUT", URL + "/a%20b%2F%C3%A9", headers, b'{"text":{"a/b":[1,"c/d"]}}')
    assert compose_request(define(**written), fields, {"key": "k"}, "m1") == sent
    form = define(**written | {"headers": FORM, "body": {"a": "{{ fields.path }}", "n": 1.5, "none": None}})
    sent = ConnectionRequest("PUT", URL + "/a%20b%2F%C3%A9", FORM, b"a=a+b%2F%C3%A9&n=1.5")
    assert compose_request(form, fields, {}, "m1") == sent


def test_a_field_may_be_an_object_and_a_number_may_be_in_a_url() -> None:
    definition = define(url=URL + "/{{ fields.n }}", body={"a": "{{ fields.user.name }}"})
    assert definition.fields == {"n": True, "user": True}
    assert compose_request(definition, {"n": 5, "user": {"name": "Ann"}}, {}, "m1").url == URL + "/5"


def test_a_url_that_its_values_make_invalid() -> None:
    with pytest.raises(TemplateError) as error:
        compose_request(define(url=URL + "/{{ fields.a }}"), {"a": "x" * 2_048}, {}, "m1")
    assert str(error.value) == "the URL is not valid after its values were filled in"


@pytest.mark.parametrize(
    ("success", "permanent", "needed"),
    [
        (None, None, False),
        ({"status": ["2xx"]}, {"status": [400]}, False),
        ({"status": ["2xx"]}, {"where": "answer.a == 1"}, True),
        ({"where": "answer.a == 1"}, None, True),
    ],
)
def test_an_answer_is_read_if_a_rule_needs_it(success: Any, permanent: Any, needed: bool) -> None:
    assert define(success=success, permanent=permanent).needs_answer is needed


def test_a_rule_is_judged_at_the_moment_of_the_answer() -> None:
    today = {"where": "answer.day | days_since == 0"}
    for rules, outcome in (({"success": today}, "sent"), ({"permanent": today}, "permanent")):
        assert define(**rules).outcome_of(200, {"day": "2026-11-20"}, NOW) == outcome
        assert define(**rules).outcome_of(200, {"day": "2026-11-19"}, NOW) == "refused"
