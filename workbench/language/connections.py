"""Connections: named requests to providers, such as chat and text message services, with secrets and rules for answers.

A step `send_via` has the values of the connection's fields. The connection is read when the message is sent. Its
templates use `fields.NAME`, `secrets.NAME` and `messageId`, which is the same for every attempt. Values cannot change
the structure of a request. In the URL they are percent-encoded. The body is JSON whose texts are templates; they are
rendered first, and then the body is encoded as JSON or as a form. Secrets are inserted into the URL unchanged.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Meta, field

from workbench.language.actions import (
    FIELD_NAME,
    MAX_FIELDS,
    NOT_A_FIELD,
    Action,
    SendVia,
    is_webhook_url,
    texts_in,
    url_problem,
)
from workbench.language.body import Body
from workbench.language.codec import Json, MalformedJsonError, decode, encode, storage_problem
from workbench.language.graph import Graph
from workbench.language.problem import Problem, Problems, suggestion
from workbench.language.template import (
    RenderBudget,
    TemplateError,
    compile_template,
    compile_where,
    evaluate_texts,
    render,
    required_paths,
)

MAX_HEADERS = 20
MAX_SECRETS = 20
MAX_SECRET = 4_096  # characters
MAX_RATE = 1_000  # messages a second
MAX_BODY = 65_536  # bytes of the template of a body
MAX_TEMPLATES = 100  # in a body: each may have to be compiled again whenever a message leaves
MAX_RETRY_AFTER_S = 86_400.0  # as long as the longest delay of the retry schedules
HIDDEN = "***"  # in place of a secret, also in a header

_FORM = "application/x-www-form-urlencoded"
_JSON = re.compile(r"application/([\w.-]+\+)?json", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}", re.ASCII)
_HEADER_VALUE = re.compile(r"[\x20-\x7e]*", re.ASCII)
_DOT_SEGMENT = re.compile(r"[^?#]*/\.{1,2}(?:[/?#]|$)", re.ASCII)  # which a client or server resolves to another path
# Headers that frame the request, or that the sender sets.
_OWN_HEADERS = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "user-agent",
    }
)
_STATUS_CLASS = re.compile(r"[1-5]xx", re.ASCII)

AnswerOutcome: TypeAlias = Literal["sent", "permanent", "refused"]


def _read_url(value: Any, path: str) -> str | Problems:
    problem = _template_problem(value, path) or url_problem(value, path)
    return (problem,) if problem is not None else str(value)


def _read_headers(value: Any, path: str) -> dict[str, str] | Problems:
    if not isinstance(value, dict) or len(value) > MAX_HEADERS:
        return (Problem(path, f"must be an object of at most {MAX_HEADERS} headers"),)
    problems: list[Problem] = []
    for name, written in value.items():
        at = f"{path}.{name}"
        if not _HEADER_NAME.fullmatch(name):
            problems.append(Problem(at, "is not the name of a header"))
        elif name.lower() in _OWN_HEADERS:
            problems.append(Problem(at, "is set by Event Workbench"))
        elif (problem := _template_problem(written, at)) is not None:
            problems.append(problem)
    if len({name.lower() for name in value}) < len(value):
        problems.append(Problem(path, "has a header twice"))
    return tuple(problems) or value


def _read_body(value: Any, path: str) -> dict[str, Json] | Problems:
    if not isinstance(value, dict):
        return (Problem(path, "must be an object, whose texts are templates"),)
    if len(encode(value)) > MAX_BODY:
        return (Problem(path, f"is larger than {MAX_BODY:,} bytes"),)
    texts = [*texts_in(value)]
    if sum("{" in text for text in texts) > MAX_TEMPLATES:
        return (Problem(path, f"has more than {MAX_TEMPLATES} texts with values"),)
    problems = [problem for text in texts if (problem := _template_problem(text, path)) is not None]
    return tuple(problems) or value


def _template_problem(source: Any, path: str) -> Problem | None:
    if not isinstance(source, str):
        return Problem(path, "must be a text")
    try:
        paths = compile_template(source).paths
    except TemplateError as error:
        return Problem(path, str(error))
    for used in sorted(paths):
        first, _, rest = used.partition(".")
        if used != "messageId" and (first not in ("fields", "secrets") or not rest):
            return Problem(path, f"{used!r} is not known here: use fields.NAME, secrets.NAME or messageId")
    for name in _names("fields", (source,)):
        if not FIELD_NAME.fullmatch(name):
            return Problem(path, f"fields.{name}: {NOT_A_FIELD}")
    return None


def _read_secrets(value: Any, path: str) -> dict[str, str] | Problems:
    if not isinstance(value, dict) or len(value) > MAX_SECRETS:
        return (Problem(path, f"must be an object of at most {MAX_SECRETS} texts"),)
    # The value is in no message: errors are stored and shown.
    problems = [
        Problem(f"{path}.{name}", f"must be a text of 1 to {MAX_SECRET:,} printable characters")
        for name, secret in value.items()
        if not isinstance(secret, str) or not 0 < len(secret) <= MAX_SECRET or not _HEADER_VALUE.fullmatch(secret)
    ]
    problems += [Problem(f"{path}.{name}", NOT_A_FIELD) for name in value if not FIELD_NAME.fullmatch(name)]
    return tuple(problems) or value


def _read_status(value: Any, path: str) -> list[int | str] | Problems:
    valid = isinstance(value, list) and all(
        (type(item) is int and 100 <= item <= 599) or (isinstance(item, str) and _STATUS_CLASS.fullmatch(item))
        for item in value
    )
    return value if valid and value else (Problem(path, "must be an array of statuses such as 204, or of 2xx"),)


def _read_where(value: Any, path: str) -> str | Problems:
    if not isinstance(value, str) or not value.strip():
        return (Problem(path, "must be an expression"),)
    try:
        paths = compile_where(value).paths
    except TemplateError as error:
        return (Problem(path, str(error)),)
    for used in sorted(paths):
        if used.partition(".")[0] not in ("status", "answer"):
            return (Problem(path, f"{used!r} is not known here: use status, or answer with a path into it"),)
    return value


def _read_rate(value: Any, path: str) -> float | Problems:
    is_number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    # As a float, because a decimal of 0.001 is less than the float of that name. An integer may be too large for one.
    if is_number and 0 < value <= MAX_RATE and float(value) >= 0.001:
        return float(value)
    return (Problem(path, f"must be the messages a second, a number from 0.001 to {MAX_RATE:,}"),)


_STATUS_SCHEMA = {"type": "array", "items": {"type": ["integer", "string"]}, "examples": [["2xx"], [200, 204]]}
_TEXTS_SCHEMA = {"type": "object", "additionalProperties": {"type": "string"}}


class AnswerRule(Body, frozen=True):
    """A rule for answers of a provider. It holds for an answer if all of its parts do.

    `status`: statuses such as 204, or classes such as `2xx`. `where`: an expression over `status` and `answer`, the
    JSON of the answer (its text, if it is not JSON).
    """

    status: Annotated[list[int | str], Meta(extra={"read": _read_status, "schema": _STATUS_SCHEMA})] | None = None
    where: Annotated[str, Meta(extra={"read": _read_where, "schema": {"type": "string"}})] | None = None

    def holds(self, status: int, answer: Json, at: datetime) -> bool:
        if self.status is not None and status not in self.status and f"{status // 100}xx" not in self.status:
            return False
        return self.where is None or compile_where(self.where).holds({"status": status, "answer": answer}, at)


class ConnectionDefinition(Body, frozen=True, kw_only=True):
    """The request of a connection, and what its answers mean.

    `url`, `headers`, and the texts in `body` are templates. A body is sent as JSON, or as a form if the header
    `content-type` says so. `success`: which answers mean that the message was sent; a connection without it cannot be
    published. `permanent`: which answers mean that no later attempt can succeed. After any other answer the message is
    retried. `rate`: the number of messages a second, of all engines together.
    """

    url: Annotated[str, Meta(extra={"read": _read_url, "schema": {"type": "string"}})]
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: Annotated[dict[str, str], Meta(extra={"read": _read_headers, "schema": _TEXTS_SCHEMA})] = field(
        default_factory=dict
    )
    body: Annotated[dict[str, Any], Meta(extra={"read": _read_body, "schema": {"type": "object"}})]
    success: AnswerRule | None = None
    permanent: AnswerRule | None = None
    rate: Annotated[float, Meta(extra={"read": _read_rate, "schema": {"type": "number"}})] | None = None

    def conflicts(self) -> Iterable[Problem]:
        for name, rule in (("success", self.success), ("permanent", self.permanent)):
            if rule is not None and rule.status is None and rule.where is None:
                yield Problem(name, "needs status or where")
        if self.content_type == _FORM:
            for name, value in self.body.items():
                if isinstance(value, dict | list):
                    yield Problem(f"body.{name}", "must be a text, a number or a boolean, because the body is a form")
        elif not _JSON.fullmatch(self.content_type):
            yield Problem("headers.content-type", f"must be application/json or {_FORM}")
        if len(self.fields) > MAX_FIELDS:
            yield Problem("body", f"uses more than {MAX_FIELDS} fields")

    @property
    def request(self) -> Json:
        """The parts of the request that may contain secrets."""
        return [self.url, self.method, {**self.headers}, self.body]

    @property
    def content_type(self) -> str:
        """The type of the body, without parameters."""
        written = next((text for name, text in self.headers.items() if name.lower() == "content-type"), "")
        return written.partition(";")[0].strip().lower() or "application/json"

    @property
    def fields(self) -> dict[str, bool]:
        """The fields of its templates, in order, and whether each is required."""
        templates = tuple(texts_in([self.url, [*self.headers.values()], self.body]))
        required = {path for text in templates for path in required_paths(text)}
        return {
            name: any(path.split(".")[:2] == ["fields", name] for path in required)
            for name in _names("fields", templates)
        }

    @property
    def secret_names(self) -> tuple[str, ...]:
        return _names("secrets", texts_in([self.url, [*self.headers.values()], self.body]))

    @property
    def needs_answer(self) -> bool:
        """Whether its rules read more than the status."""
        return any(rule is not None and rule.where is not None for rule in (self.success, self.permanent))

    def outcome_of(self, status: int, answer: Json, at: datetime) -> AnswerOutcome:
        if self.success is not None and self.success.holds(status, answer, at):
            return "sent"
        return "permanent" if self.permanent is not None and self.permanent.holds(status, answer, at) else "refused"


class ConnectionBody(ConnectionDefinition, frozen=True, kw_only=True):
    """A connection. `secrets`: the values of `secrets.NAME`; they can be replaced, but not read.

    A secret that is left out keeps its value if the request (`url`, `method`, `headers`, `body`) stays the same. If it
    changes, all secrets must be sent again: otherwise a change could send them to another server.
    """

    secrets: Annotated[dict[str, str], Meta(extra={"read": _read_secrets, "schema": _TEXTS_SCHEMA})] = field(
        default_factory=dict
    )


class ConnectionRequest(msgspec.Struct, frozen=True):
    """The request of one message."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes


def compose_request(
    definition: ConnectionDefinition, fields: Mapping[str, Json], secrets: Mapping[str, str], message_id: str
) -> ConnectionRequest:
    """Return the request with the values filled in; raise TemplateError if one is missing or not possible there."""
    context = {"fields": fields, "secrets": secrets, "messageId": message_id}
    url = render(definition.url, {**context, "fields": _percent_encoded({**fields})})
    if not is_webhook_url(url) or _DOT_SEGMENT.match(url):
        raise TemplateError("the URL is not valid after its values were filled in")
    # A value that is empty would leave a space at the end, which no header can have.
    headers = {name.lower(): render(value, context).strip(" ") for name, value in definition.headers.items()}
    for name, value in headers.items():
        if not _HEADER_VALUE.fullmatch(value):
            raise TemplateError(f"the header {name} has characters that no header can have")
    headers.setdefault("content-type", "application/json")
    body = evaluate_texts(definition.body, context, RenderBudget())
    assert isinstance(body, dict), "as its template"
    if definition.content_type == _FORM:
        pairs = {
            name: value if isinstance(value, str) else encode(value).decode()
            for name, value in body.items()
            if value is not None
        }
        return ConnectionRequest(definition.method, url, headers, urlencode(pairs).encode())
    return ConnectionRequest(definition.method, url, headers, encode(body))


def read_answer(content: bytes) -> Json:
    """Return an answer as JSON, or as text if it is not JSON or has numbers that are too large for expressions."""
    with contextlib.suppress(MalformedJsonError):
        answer: Json = decode(content)
        if storage_problem(answer) is None:
            return answer
    return content.decode(errors="replace")


def retry_after_in(answer: Json) -> float | None:
    """Return the seconds after which a request may be repeated, as Discord and Telegram say it in the answer."""
    if not isinstance(answer, dict):
        return None
    parameters = answer.get("parameters")
    seconds = answer.get("retry_after", parameters.get("retry_after") if isinstance(parameters, dict) else None)
    if not isinstance(seconds, int | Decimal) or isinstance(seconds, bool):
        return None
    return float(min(max(seconds, 0), Decimal(MAX_RETRY_AFTER_S)))


def connections_of(graph: Graph) -> tuple[str, ...]:
    """Return the names of the connections that a graph sends messages with."""
    return tuple(dict.fromkeys(node.action.connection for node in graph.nodes if isinstance(node.action, SendVia)))


def check_connections(graph: Graph, connections: Mapping[str, ConnectionDefinition]) -> Iterator[tuple[str, str, str]]:
    """Yield why connections cannot send their messages: the id of the node, the field of its `data`, the reason."""
    for node in graph.nodes:
        for key, reason in _check_action(node.action, connections):
            yield node.id, key, reason


def _check_action(action: Action, connections: Mapping[str, ConnectionDefinition]) -> Iterator[tuple[str, str]]:
    if not isinstance(action, SendVia):
        return
    definition = connections.get(action.connection)
    if definition is None:
        hint = suggestion(action.connection, tuple(connections))
        yield "connection", f"unknown connection {action.connection!r}{hint}"
        return
    if definition.success is None:
        yield "connection", f"the connection {action.connection!r} has no success rule"
    fields = definition.fields
    for name, is_required in fields.items():
        if is_required and name not in action.body:
            yield f"fields.{name}", f"is missing: the connection {action.connection!r} needs it"
    written = [(f"fields.{name}", name) for name in action.body]
    written += [(f"locales.{tag}.{name}", name) for tag, texts in action.locales.items() for name in texts]
    for path, name in written:
        if name not in fields:
            hint = suggestion(name, tuple(fields))
            yield path, f"the connection {action.connection!r} has no such field{hint}"


def _names(namespace: str, templates: Iterable[str]) -> tuple[str, ...]:
    """Return the names below a namespace that templates use, in order."""
    paths = (path for text in templates for path in sorted(compile_template(text).paths))
    return tuple(dict.fromkeys(path.split(".")[1] for path in paths if path.startswith(f"{namespace}.")))


def _percent_encoded(value: Json) -> Json:
    match value:
        case str():
            return quote(value, safe="")
        case list():
            return [_percent_encoded(item) for item in value]
        case dict():
            return {quote(name, safe=""): _percent_encoded(item) for name, item in value.items()}
        case _:
            return value
