"""The document as one page of HTML."""

import json
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

_TEMPLATE = Path(__file__).with_name("page.html")
Object = dict[str, Any]


def page(document: Object) -> str:
    """Return the page."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.globals.update(type_of=type_of, example=lambda schema: _example_text(schema, document))
    groups: dict[str, list[Object]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][0], []).append({"path": path, "method": method, **operation})
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(info=document["info"], groups=groups, schemas=document["components"]["schemas"])


def type_of(schema: Object) -> str:
    """Return a schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for choice, written in (("anyOf", type_of), ("enum", json.dumps)):
        if choice in schema:
            return " | ".join(map(written, schema[choice]))
    match schema.get("type"):
        case "array":
            return f"[{type_of(schema.get('items', {}))}]"
        case "object" if isinstance(schema.get("additionalProperties"), dict):
            return f"{{…: {type_of(schema['additionalProperties'])}}}"
        case kind:
            return str(schema.get("format") or kind or "any")


def _example_text(schema: Object, document: Object) -> str:
    return json.dumps(_example(schema, document), indent=2, ensure_ascii=False)


def _example(schema: Object, document: Object) -> Any:
    """Return the least that fits a schema: what is required, and of that the simplest."""
    if "examples" in schema:
        return schema["examples"][0]
    if "$ref" in schema:
        return _example(document["components"]["schemas"][type_of(schema)], document)
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], document)
    match schema.get("type"):
        case "object":
            return {name: _example(schema["properties"][name], document) for name in schema.get("required", ())}
        case "array":
            return [_example(schema["items"], document)]
        case kind:
            return schema.get("enum", [_SIMPLEST.get(str(kind), "…")])[0]


_SIMPLEST: Object = {"integer": 1, "number": 1, "boolean": True}
