"""`/openapi.json` and `/docs`: the OpenAPI document, also as an HTML page without scripts or external resources.

The document has one operation per method and route. Both are built on the first request and kept: routes do not change
while a process runs.
"""

import inspect
import json
import re
from collections.abc import Collection, Iterable
from datetime import datetime
from functools import lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, get_args

import msgspec
from jinja2 import Environment, StrictUndefined
from msgspec import UnsetType
from sanic import Blueprint, HTTPResponse, Request, Sanic, redirect
from sanic_routing.route import Route

from api.routes.request import TRACKING_PREFIX, Access, Operation
from api.routes.responses import Error, route_name
from workbench.language.body import Body, read_body, schema_overrides
from workbench.language.codec import encode
from workbench.language.version import VERSION

Object = dict[str, Any]

blueprint = Blueprint("openapi")

_HEADERS = {"cache-control": "public, max-age=300", "x-content-type-options": "nosniff"}
_PAGE_HEADERS = _HEADERS | {
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
}
_REF = "#/components/schemas/{name}"
_PATH_PARAMETER = re.compile(r"<(\w+):\w+>")
_ERRORS = {"4XX": "The request is refused; `error` says why.", "503": "Temporarily unavailable; retry."}
_KEYS = {
    "secretKey": ("A secret key: sk_live_…, sk_test_… (dry runs only) or, for notebooks, wb_…", "bearer"),
    "writeKey": ("A secret key as the name of a user without a password, as Segment's libraries send it", "basic"),
    "publishableKey": ("A key for browsers: pk_live_…", "bearer"),
}
_INTRODUCTION = (
    "Send events, run automations on them, and query both from notebooks. Every response carries `X-Request-Id`. Every "
    "error has `error` (what is wrong), `field` (where), `requestId` (how to find the request in the server's log) and "
    "`doc` (the description of the route)."
)


@blueprint.get("/openapi.json")
@Operation(answer=dict)
async def serve_document(request: Request) -> HTTPResponse:
    """Return the description of this API as OpenAPI 3.1."""
    document, _ = _built(request.app)
    return HTTPResponse(document, content_type="application/json", headers=_HEADERS)


@blueprint.get("/")
@Operation(media="text/html", status=302)
async def redirect_to_page(_: Request) -> HTTPResponse:
    """Redirect to the description of this API."""
    return redirect("/docs")


@blueprint.get("/docs")
@Operation(media="text/html")
async def serve_page(request: Request) -> HTTPResponse:
    """Return the description of this API as a page."""
    _, page = _built(request.app)
    return HTTPResponse(page, content_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)


@lru_cache(maxsize=1)
def _built(app: "Sanic[Any, Any]") -> tuple[bytes, str]:
    document = build_document(app.router.routes, VERSION)
    return encode(document), render_page(document)


def documented_routes(routes: Iterable[Route]) -> dict[str, tuple[Route, Operation]]:
    """Return the routes by `<blueprint>.<handler>`, without CORS preflights."""
    named = {route_name(route): route for route in routes if "OPTIONS" not in route.methods}
    return {name: (route, _handler(route).operation) for name, route in named.items()}


def _handler(route: Route) -> Any:
    # Sanic wraps the handler of a WebSocket in a `partial`, as its first argument.
    return route.handler.args[0] if isinstance(route.handler, partial) else route.handler


def build_document(routes: Iterable[Route], version: str) -> Object:
    documented = documented_routes(routes)
    schemas = _Schemas([described for _, described in documented.values()])
    paths: Object = {}
    for name, (route, described) in sorted(documented.items(), key=lambda item: (item[1][0].path, item[0])):
        methods = paths.setdefault("/" + _PATH_PARAMETER.sub(r"{\1}", route.path), {})
        for method in sorted(route.methods):
            methods[method.lower()] = _operation(name, route, described, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Event Workbench", "version": version, "description": _INTRODUCTION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                name: {"type": "http", "scheme": scheme, "description": text} for name, (text, scheme) in _KEYS.items()
            },
            "headers": {"RequestId": {"description": "The id of the request.", "schema": {"type": "string"}}},
        },
    }


class _Schemas:
    """The schemas of all types. A component has the name of its struct, without the suffix `View` or `Row`."""

    def __init__(self, operations: Collection[Operation]) -> None:
        types: list[Any] = [Error]
        queries = set()
        for operation in operations:
            candidates = (operation.query, operation.body, operation.answer, *operation.other_answers.values())
            types += [candidate for candidate in candidates if candidate is not None]
            if operation.query is not None:
                queries.add(operation.query.__name__)
        generated = msgspec.json.schema_components(types, ref_template=_REF)
        answers = [Error, *(described.answer for described in operations if described.answer is not None)]
        answers += [answer for described in operations for answer in described.other_answers.values()]
        _complete_answers(generated[1], answers)
        for kind in types:
            if isinstance(kind, type) and kind.__name__ in generated[1]:
                generated[1][kind.__name__]["properties"] |= schema_overrides(kind)
        text = re.sub(r'("#/components/schemas/|"title":")(\w+?)(?:View|Row)"', r'\1\2"', encode(generated).decode())
        schemas, components = json.loads(text)
        self.components: Object = {
            re.sub(r"(View|Row)$", "", name): _with_json_names(schema) for name, schema in components.items()
        }
        assert len(self.components) == len(components), "two structs give the same component name"
        # Keep the components that the schemas refer to, and those that these refer to.
        reached: set[str] = set()
        references = re.compile(rf'"{_REF.format(name="(.+?)")}"')
        pending = set(references.findall(json.dumps(schemas)))
        while pending:
            reached |= pending
            pending = set(references.findall(json.dumps([self.components[name] for name in pending]))) - reached
        self.components = {name: self.components[name] for name in sorted(reached)}
        self._queries = {name: self.components.pop(name) for name in queries}
        self._by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}

    def of(self, kind: Any) -> Object:
        schema: Object = self._by_type[id(kind)]
        return schema

    def parameters(self, query: type) -> list[Object]:
        schema = self._queries[query.__name__]
        required = schema.get("required", ())
        # A parameter can be absent, but not null.
        fields = {
            name: field["anyOf"][0] if "anyOf" in field else field for name, field in schema["properties"].items()
        }
        return [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in fields.items()
        ]


def _complete_answers(components: Object, answers: Iterable[Any]) -> None:
    """Add to the schemas of answers what msgspec leaves out: the format of times, and that a default is sent, too."""
    pending: list[Any] = [*msgspec.inspect.multi_type_info(answers)]
    completed: set[type] = set()
    while pending:
        info = pending.pop()
        if not isinstance(info, msgspec.inspect.StructType):
            parts = msgspec.structs.astuple(info) if isinstance(info, msgspec.inspect.Type) else info
            pending += [part for part in parts if isinstance(part, (msgspec.inspect.Type, tuple))]
            continue
        if info.cls in completed:
            continue
        completed.add(info.cls)
        pending += [field.type for field in info.fields]
        schema = components[info.cls.__name__]
        for field in msgspec.structs.fields(info.cls):
            hints, property_schema = get_args(field.type) or (field.type,), schema["properties"][field.encode_name]
            if datetime in hints:
                property_schema.get("anyOf", [property_schema])[0]["format"] = "date-time"
            if not field.required and UnsetType not in hints and not info.cls.__struct_config__.omit_defaults:
                schema.setdefault("required", []).append(field.encode_name)
                property_schema.pop("default", None)


def _with_json_names(schema: Object) -> Object:
    """Return the schema of a struct, with the Python names in its docstring as they are in JSON."""

    def json_name(word: re.Match[str]) -> str:
        name = re.sub("_([a-z])", lambda part: part[1].upper(), word[1])
        return f"`{name}`" if name in schema.get("properties", ()) else word[0]

    text = re.sub(r"`(\w+)`", json_name, inspect.cleandoc(schema.get("description", "")))
    for python, json_value in {"None": "null", "True": "true", "False": "false"}.items():
        text = re.sub(rf"\b{python}\b", json_value, text)
    return schema | {"description": text}


def _operation(name: str, route: Route, described: Operation, schemas: _Schemas) -> Object:
    access = described.access
    summary, _, details = (inspect.getdoc(_handler(route)) or "").partition("\n")
    path_parameters = [
        {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for parameter in _PATH_PARAMETER.findall(route.path)
    ]
    fields: Object = {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": summary,
        "parameters": path_parameters,
        "responses": _responses(described, schemas),
        "security": [],
    }
    if access.kinds:
        scheme = "publishableKey" if access.kinds == ("publishable",) else "secretKey"
        schemes = (scheme, "writeKey") if f"/{route.path}".startswith(TRACKING_PREFIX) else (scheme,)
        # Alternatives
        fields["security"] = [
            {scheme: scopes} for scheme in schemes for scopes in ([[s] for s in access.scopes] or [[]])
        ]
    if description := "\n\n".join(filter(None, (details.strip(), _requirements(access)))):
        fields["description"] = description
    if described.query is not None:
        fields["parameters"] += schemas.parameters(described.query)
    if described.body is not None:
        content = {"application/json": {"schema": schemas.of(described.body)}}
        required = not issubclass(described.body, Body) or isinstance(read_body(described.body, b""), tuple)
        fields["requestBody"] = {"required": required, "content": content}
    return fields


def _responses(described: Operation, schemas: _Schemas) -> Object:
    content: Object = {}
    if described.answer is not None:
        schema = schemas.of(described.answer)
        if described.field is not None:
            schema = {"type": "object", "properties": {described.field: schema}, "required": [described.field]}
        content["application/json"] = {"schema": schema}
    if described.media is not None:
        content[described.media] = {"schema": {"type": "string"}}
    responses = {str(described.status): _response(HTTPStatus(described.status).phrase, content)}
    for status, text in _ERRORS.items():
        described_error: Object = {"application/json": {"schema": schemas.of(Error)}}
        if status == "4XX" and described.media == "text/html":
            described_error["text/html"] = {"schema": {"type": "string"}}  # a page says it to people
        responses[status] = _response(text, described_error)
    for other_status, kind in described.other_answers.items():
        responses[str(other_status)] = _response(
            HTTPStatus(other_status).phrase, {"application/json": {"schema": schemas.of(kind)}}
        )
    return responses


def _response(text: str, content: Object) -> Object:
    response: Object = {"description": text, "headers": {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}}
    return response | ({"content": content} if content else {})


def _requirements(access: Access) -> str:
    if not access.kinds:
        return ""
    kinds = " or ".join(access.kinds)
    match [f"`{scope}`" for scope in access.scopes]:
        case []:
            return f"Requires a {kinds} key."
        case [scope]:
            return f"Requires a {kinds} key with the scope {scope}."
        case scopes:
            return f"Requires a {kinds} key with one of the scopes {', '.join(scopes)}."


_TEMPLATE = Path(__file__).with_name("page.html")


def render_page(document: Object) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)

    def example_text(schema: Object) -> str:
        return json.dumps(_example(schema, document), indent=2, ensure_ascii=False)

    environment.globals.update(type_name=type_name, example=example_text)
    groups: dict[str, list[Object]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append({"path": path, "method": method, **operation})
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(info=document["info"], groups=groups, schemas=document["components"]["schemas"])


def type_name(schema: Object) -> str:
    """Return a schema in a few words, such as `string | null` or `[Entry]`."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " | ".join(map(type_name, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(json.dumps, schema["enum"]))
    match schema.get("type"):
        case "array":
            return f"[{type_name(schema.get('items', {}))}]"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"{{…: {type_name(schema['additionalProperties'])}}}"
        case kind:
            return str(schema.get("format") or kind or "any")


def _example(schema: Object, document: Object) -> Any:
    """Return the smallest value that fits a schema: only required fields, each with its simplest value."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(document["components"]["schemas"][type_name(schema)], document)
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], document)
    match schema.get("type"):
        case "object":
            return {name: _example(schema["properties"][name], document) for name in schema.get("required", ())}
        case "array":
            return [_example(schema["items"], document)]
        case kind:
            simplest = {"integer": 1, "number": 1, "boolean": True}.get(str(kind), "…")
            return schema.get("enum", [simplest])[0]
