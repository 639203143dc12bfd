"""The document: one operation for each method of each route, their types as schemas."""

import inspect
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec
from sanic_routing.route import Route

from api.openapi.operation import Access, Error, Operation
from api.openapi.operations import OPERATIONS, SENTENCES

_REF = "#/components/schemas/{name}"
_PLACE = re.compile(r"<(\w+):\w+>")
_ERRORS = {"4XX": "The request is refused, and the answer says why.", "503": "It cannot be answered now; try again."}
_KEYS = {
    "secretKey": ("A secret key: sk_live_…, sk_test_… (dry runs only) or, for notebooks, wb_…", "bearer"),
    "publishableKey": ("A key for browsers: pk_live_…", "bearer"),
}
_INTRODUCTION = (
    "Events in, automations out, and notebooks to see both. Every answer carries `X-Request-Id`; every refusal says in "
    "`error` what is wrong, in `field` where, and in `requestId` how to find it in the server's log."
)
Object = dict[str, Any]


def described(routes: Iterable[Route]) -> dict[str, Route]:
    """Return the routes that callers use, by name; a browser's preflight is none of them."""
    return {route.name.partition(".")[2]: route for route in routes if "OPTIONS" not in route.methods}


def document(routes: Iterable[Route], version: str) -> Object:
    """Return the document. A route nobody has described is there with its sentence alone."""
    found = described(routes)
    operations = {name: OPERATIONS.get(name, Operation()) for name in found}
    schemas = _Schemas(operations.values())
    paths: Object = {}
    for name, route in sorted(found.items(), key=lambda item: item[1].path):
        path = paths.setdefault(_path(route), {})
        for method in sorted(route.methods):
            path[method.lower()] = _operation(name, route, operations[name], schemas)
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
    """The schemas of all types, each under its name."""

    def __init__(self, operations: Collection[Operation]) -> None:
        given = [(each.query, each.body, each.answer, *each.instead.values()) for each in operations]
        types = [Error, *(kind for each in given for kind in each if kind is not None)]
        found, self.components = msgspec.json.schema_components(types, ref_template=_REF)
        queries = {each.query.__name__ for each in operations if each.query is not None}
        self._queries = {name: self.components.pop(name) for name in queries}
        self._of = {id(kind): schema for kind, schema in zip(types, found, strict=True)}

    def of(self, kind: Any) -> Mapping[str, Any]:
        """Return the schema of a type, mostly a reference."""
        return self._of[id(kind)]

    def parameters(self, query: type) -> list[Object]:
        """Return the fields of a type as parameters of the query."""
        schema = self._queries[query.__name__]
        required = schema.get("required", ())
        return [
            {"name": name, "in": "query", "required": name in required, "schema": each}
            for name, each in schema["properties"].items()
        ]


def _path(route: Route) -> str:
    return "/" + _PLACE.sub(r"{\1}", route.path)


def _operation(name: str, route: Route, operation: Operation, schemas: _Schemas) -> Object:
    summary, _, more = (SENTENCES.get(name) or inspect.getdoc(route.handler) or "").partition("\n")
    written: Object = {
        "operationId": name,
        "tags": [name.partition(".")[0]],
        "summary": summary,
        "parameters": [_place(each) for each in _PLACE.findall(route.path)],
        "responses": _responses(operation, schemas),
        "security": _security(operation.access),
    }
    if text := _description(operation.access, more.strip()):
        written["description"] = text
    if operation.query is not None:
        written["parameters"] += schemas.parameters(operation.query)
    if operation.body is not None:
        content = {"application/json": {"schema": schemas.of(operation.body)}}
        written["requestBody"] = {"required": operation.body_required, "content": content}
    return written


def _place(name: str) -> Object:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _responses(operation: Operation, schemas: _Schemas) -> Object:
    content: Object = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": schemas.of(operation.answer)}
    if operation.media is not None:
        content[operation.media] = {"schema": {"type": "string"}}
    responses = {str(operation.status): _response("As asked.", content)}
    for status, text in _ERRORS.items():
        responses[status] = _response(text, {"application/json": {"schema": schemas.of(Error)}})
    for other, kind in operation.instead.items():
        responses[str(other)] = _response("As asked.", {"application/json": {"schema": schemas.of(kind)}})
    return responses


def _response(text: str, content: Object) -> Object:
    response: Object = {"description": text, "headers": {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}}
    return response | ({"content": content} if content else {})


def _security(access: Access) -> list[Object]:
    if not access.kinds:
        return []
    scheme = "publishableKey" if access.kinds == ("publishable",) else "secretKey"
    return [{scheme: [scope]} for scope in access.scopes] or [{scheme: []}]


def _description(access: Access, more: str) -> str:
    if not access.kinds:
        return more
    scopes = f" with {' or '.join(access.scopes)}" if access.scopes else ""
    return "\n\n".join(filter(None, (more, f"For {' and '.join(access.kinds)} keys{scopes}.")))
