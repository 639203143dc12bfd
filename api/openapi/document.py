"""`/openapi.json` and `/docs`: the OpenAPI document, also as an HTML page without scripts or external resources.

The document has one operation per method and route. Both are built on the first request and kept: routes do not change
while a process runs.
"""

import inspect
import json
import re
from collections.abc import Collection, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, StrictUndefined
from sanic import Blueprint, HTTPResponse, Request, Sanic
from sanic_routing.route import Route

from api.openapi.operations import OPERATIONS, SUMMARIES, Access, Error, Operation
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
    "publishableKey": ("A key for browsers: pk_live_…", "bearer"),
}
_INTRODUCTION = (
    "Send events, run automations on them, and query both from notebooks. Every answer carries `X-Request-Id`. Every "
    "error has `error` (what is wrong), `field` (where), and `requestId` (how to find the request in the server's log)."
)


@blueprint.get("/openapi.json")
async def serve_document(request: Request) -> HTTPResponse:
    """Return the description of this API as OpenAPI 3.1."""
    document, _ = _built(request.app)
    return HTTPResponse(document, content_type="application/json", headers=_HEADERS)


@blueprint.get("/docs")
async def serve_page(request: Request) -> HTTPResponse:
    """Return the description of this API as a page."""
    _, page = _built(request.app)
    return HTTPResponse(page, content_type="text/html; charset=utf-8", headers=_PAGE_HEADERS)


@lru_cache(maxsize=1)
def _built(app: "Sanic[Any, Any]") -> tuple[bytes, str]:
    document = build_document(app.router.routes, VERSION)
    return encode(document), render_page(document)


def documented_routes(routes: Iterable[Route]) -> dict[str, Route]:
    """Return the routes by `<blueprint>.<handler>`, without CORS preflights."""
    return {route.name.partition(".")[2]: route for route in routes if "OPTIONS" not in route.methods}


def build_document(routes: Iterable[Route], version: str) -> Object:
    """Return the OpenAPI document; a route without an entry in OPERATIONS has only its summary."""
    routes_by_name = documented_routes(routes)
    operations = {name: OPERATIONS.get(name, Operation()) for name in routes_by_name}
    schemas = _Schemas(operations.values())
    paths: Object = {}
    for name, route in sorted(routes_by_name.items(), key=lambda item: item[1].path):
        methods = paths.setdefault("/" + _PATH_PARAMETER.sub(r"{\1}", route.path), {})
        for method in sorted(route.methods):
            methods[method.lower()] = _operation(name, route, operations[name], schemas)
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
        text = re.sub(r'("#/components/schemas/|"title": ")(\w+?)(?:View|Row)"', r'\1\2"', json.dumps(generated))
        schemas, components = json.loads(text)
        self.components = {re.sub(r"(View|Row)$", "", name): schema for name, schema in components.items()}
        assert len(self.components) == len(components), "two structs give the same component name"
        self._queries = {name: self.components.pop(name) for name in queries}
        self._by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}

    def of(self, kind: Any) -> Object:
        schema: Object = self._by_type[id(kind)]
        return schema

    def parameters(self, query: type) -> list[Object]:
        schema = self._queries[query.__name__]
        required = schema.get("required", ())
        return [
            {"name": name, "in": "query", "required": name in required, "schema": field}
            for name, field in schema["properties"].items()
        ]


def _operation(name: str, route: Route, operation: Operation, schemas: _Schemas) -> Object:
    access = operation.access
    summary, _, details = (SUMMARIES.get(name) or inspect.getdoc(route.handler) or "").partition("\n")
    path_parameters = [
        {"name": parameter, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for parameter in _PATH_PARAMETER.findall(route.path)
    ]
    fields: Object = {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": summary,
        "parameters": path_parameters,
        "responses": _responses(operation, schemas),
        "security": [],
    }
    if access.kinds:
        scheme = "publishableKey" if access.kinds == ("publishable",) else "secretKey"
        fields["security"] = [{scheme: [scope]} for scope in access.scopes] or [{scheme: []}]  # alternatives
    if description := "\n\n".join(filter(None, (details.strip(), _requirements(access)))):
        fields["description"] = description
    if operation.query is not None:
        fields["parameters"] += schemas.parameters(operation.query)
    if operation.body is not None:
        content = {"application/json": {"schema": schemas.of(operation.body)}}
        fields["requestBody"] = {"required": operation.body_required, "content": content}
    return fields


def _responses(operation: Operation, schemas: _Schemas) -> Object:
    content: Object = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": schemas.of(operation.answer)}
    if operation.media is not None:
        content[operation.media] = {"schema": {"type": "string"}}
    responses = {str(operation.status): _response("OK", content)}
    for status, text in _ERRORS.items():
        responses[status] = _response(text, {"application/json": {"schema": schemas.of(Error)}})
    for other_status, kind in operation.other_answers.items():
        text = "OK" if other_status < 400 else _ERRORS["503"]
        responses[str(other_status)] = _response(text, {"application/json": {"schema": schemas.of(kind)}})
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
