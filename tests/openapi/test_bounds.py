"""The service accepts exactly what is within the bounds in the document, and these are the constants of the language.

The requests are generated from the document: for every field of a body and every parameter with a bound, one with a
value at the bound and one with a value beyond it.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.openapi.conftest import OPERATIONS
from tests.openapi.test_document import UNKNOWN_ID, document
from tests.openapi.test_requests import EVENT, VALID_BODIES, headers_for
from tests.routes.conftest import Org, Service
from workbench.language import event as language
from workbench.language.actions import MAX_ID_LENGTH
from workbench.language.graph import MAX_ITEMS
from workbench.language.onchain import LOG_SOURCE_SCHEMA, MAX_CHAIN_ID, MAX_CONFIRMATIONS
from workbench.language.starts import START_SOURCE_SCHEMA, START_TYPES
from workbench.language.trigger import ALIASES, ONCHAIN_EVENT

Schema = dict[str, Any]

SQL = "SELECT id AS contact_id FROM contacts"
LOG_TRIGGER = {
    "type": ONCHAIN_EVENT,
    "chainId": 1,
    "contract": "0x" + "a" * 40,
    "signature": "Transfer(address indexed from, address indexed to, uint256 value)",
    "walletArg": "to",
}
START_TRIGGER = {"type": "schedule", "segment": "vip", "cron": "0 9 * * *"}
LONGEST_ID = "x" * MAX_ID_LENGTH  # as `text_variants` writes it
TESTED = {
    "nodes": [
        {"id": "t", "type": "app_event"},
        {"id": LONGEST_ID, "type": "send_email", "data": {"subject": "s", "body": "b"}},
    ],
    "edges": [{"source": "t", "target": LONGEST_ID}],
}
BODIES: dict[str, Any] = VALID_BODIES | {
    "automations.send_unsaved_test_messages": VALID_BODIES["automations.send_unsaved_test_messages"]
    | {"graph": TESTED},
    "automations.update": VALID_BODIES["automations.create"] | {"revision": 1},
    "automations.simulate_unsaved": VALID_BODIES["automations.simulate_unsaved"]
    | {"events": [{"afterSeconds": 60, "event": EVENT}]},
    "contacts.explain": {"automationId": UNKNOWN_ID},
    "contacts.merge": {"keep": UNKNOWN_ID, "absorb": UNKNOWN_ID.replace("7", "8")},
    "events.ingest_batch": {"events": [EVENT]},
    "segments.create": {"name": "everybody", "sql": SQL},
    "segments.extend": {"contactIds": [UNKNOWN_ID], "revision": 1},
}
EXAMPLES: dict[str, Any] = {
    "sql": SQL,
    "email": "a@example.com",
    "month": "2026-11",
    "contract": LOG_TRIGGER["contract"],
}
EXAMPLES |= {"walletAddress": LOG_TRIGGER["contract"], "operator": "eq", "value": 1, "event": EVENT}
"""Valid values by the name of a field; other fields take any value of their schema."""


class Variant(NamedTuple):
    """A value of a schema in which only the field at `path` is at a bound (and valid), or beyond it."""

    path: str
    value: Any
    valid: bool


def first_type(schema: Schema) -> str:
    kind = schema.get("type", "object" if "properties" in schema else "")
    return kind[0] if isinstance(kind, list) else kind


def example(schema: Schema, name: str = "") -> Any:
    if "anyOf" in schema:
        return example(schema["anyOf"][0], name)
    if "enum" in schema:
        return schema["enum"][0]
    match first_type(schema):
        case "object":
            return {field: example(schema["properties"][field], field) for field in schema.get("required", ())}
        case "array":
            return [example(schema["items"])]
        case "integer" | "number":
            return max(schema.get("minimum", 1), 1)
        case "boolean":
            return True
    return UNKNOWN_ID if schema.get("format") == "uuid" else EXAMPLES.get(name, "x")


def variants(schema: Schema, valid: Any, name: str = "") -> Iterator[Variant]:
    """Yield variants of a valid value, each with one field at a bound or beyond it."""
    if "anyOf" in schema:
        for choice in schema["anyOf"] if first_type(schema["anyOf"][0]) != "object" else schema["anyOf"][:1]:
            yield from variants(choice, valid, name)
        return
    if "enum" in schema:
        yield from (Variant("", value, True) for value in schema["enum"])
        yield Variant("", "no such value", False)
    match first_type(schema):
        case "object":
            yield from object_variants(schema, valid)
        case "array":
            (item, *_) = valid or [example(schema["items"])]
            if limit := schema.get("maxItems"):
                yield Variant("", [item] * limit, True)
                yield Variant("", [item] * (limit + 1), False)
            for path, value, is_valid in variants(schema["items"], item):
                yield Variant(f"[0]{path}", [value], is_valid)
        case "integer" | "number":
            for keyword, step in {"minimum": -1, "maximum": 1}.items():
                if keyword in schema:
                    yield Variant("", schema[keyword], True)
                    yield Variant("", schema[keyword] + step, False)
        case "string":
            yield from text_variants(schema, name)


def object_variants(schema: Schema, valid: dict[str, Any]) -> Iterator[Variant]:
    for name, field in schema.get("properties", {}).items():
        of_trigger = {
            **dict.fromkeys(LOG_SOURCE_SCHEMA, LOG_TRIGGER),
            **dict.fromkeys(START_SOURCE_SCHEMA, START_TRIGGER),
        }
        rest = of_trigger.get(name, valid) if "walletArg" in schema["properties"] else valid
        for path, value, is_valid in variants(field, rest.get(name, example(field, name)), name):
            yield Variant(f".{name}{path}", rest | {name: value}, is_valid)
        if name in schema.get("required", ()):
            yield Variant(f".{name}", {key: value for key, value in valid.items() if key != name}, False)
    if limit := schema.get("maxProperties"):
        yield Variant("", {f"name{index}": 1 for index in range(limit)}, True)
        yield Variant("", {f"name{index}": 1 for index in range(limit + 1)}, False)
    for _, key, is_valid in text_variants(schema.get("propertyNames", {}), ""):
        yield Variant("", {key: 1}, is_valid)
    if isinstance(values := schema.get("additionalProperties"), dict):
        for path, value, is_valid in variants(values, "x"):
            yield Variant(f".de{path}", {"de": value}, is_valid)  # a name, and also a locale


def text_variants(schema: Schema, name: str) -> Iterator[Variant]:
    shortest, longest, pattern = (schema.get(keyword) for keyword in ("minLength", "maxLength", "pattern"))
    if shortest:
        yield Variant("", "", False)
    if pattern is not None:
        yield Variant("", " ", False)
    if schema.get("format") in ("uuid", "date-time"):
        yield Variant("", "x", False)
    if longest is not None:
        text = EXAMPLES.get(name, "x").ljust(longest, " " if name == "sql" else "x")
        # No valid address has as many characters as the service reads: see below.
        if re.search(pattern or "", text) and name != "email":
            yield Variant("", text, True)
        yield Variant("", text.ljust(longest + 1, "x"), False)


def resolved(schema: Any, components: Schema) -> Any:
    """Return a schema with its references replaced by what they refer to."""
    if isinstance(schema, list):
        return [resolved(item, components) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return resolved(components[schema["$ref"].rpartition("/")[2]], components)
    return {key: resolved(value, components) for key, value in schema.items()}


def refused_fields(response: httpx.Response) -> list[str]:
    """Return the paths of the fields that are not valid, each with a leading dot."""
    if response.status_code == 400:
        answer = response.json()
        return [f".{problem.get('field', '')}" for problem in answer.get("errors", [answer])]
    results = response.json().get("results", []) if response.status_code == 202 else []
    return [f".events[0].{result['error'].partition(':')[0]}" for result in results[:1] if "error" in result]


def contradicts(variant: Variant, response: httpx.Response) -> bool:
    """Return whether the service and the document disagree about a variant. Items may be refused as their array."""
    fields = [field for field in refused_fields(response) if variant.path.startswith(field) and len(field) > 1]
    return variant.valid == bool(fields) or response.status_code >= 500


def operations(parsed: dict[str, Any]) -> dict[str, tuple[str, str, Schema]]:
    """Return method, path and operation by the name of the operation."""
    return {
        operation["operationId"]: (method, re.sub(r"\{\w+\}", UNKNOWN_ID, path), operation)
        for path, methods in parsed["paths"].items()
        for method, operation in methods.items()
    }


WITH_BODY = sorted(name for name, operation in OPERATIONS.items() if operation.body is not None)
WITH_QUERY = sorted(name for name, operation in OPERATIONS.items() if operation.query is not None)


@pytest.mark.parametrize("name", WITH_BODY)
async def test_a_body_is_accepted_within_its_documented_bounds_only(acme: Org, name: str) -> None:
    parsed, headers = await document(acme.service), await headers_for(acme, name)
    method, path, operation = operations(parsed)[name]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    schema = resolved(schema, parsed["components"]["schemas"])
    wrong = []
    for variant in variants(schema, BODIES.get(name) or example(schema)):
        url = f"http://127.0.0.1:{acme.service.port}{path}"
        response = await acme.service.client.request(method, url, json=variant.value, headers=headers)
        if contradicts(variant, response):
            wrong.append((variant.path, variant.valid, str(variant.value)[-300:], response.text))
    assert not wrong


@pytest.mark.parametrize("name", WITH_QUERY)
async def test_a_parameter_is_accepted_within_its_documented_bounds_only(acme: Org, name: str) -> None:
    parsed, headers = await document(acme.service), await headers_for(acme, name)
    method, path, operation = operations(parsed)[name]
    parameters = [parameter for parameter in operation["parameters"] if parameter["in"] == "query"]
    required = {parameter["name"]: "x" for parameter in parameters if parameter["required"]}
    wrong = []
    for parameter in parameters:
        schema = resolved(parameter["schema"], parsed["components"]["schemas"])
        # An empty parameter counts as absent.
        for path_in, value, is_valid in variants(schema, None, parameter["name"]):
            if value == "":
                continue
            variant = Variant(f".{parameter['name']}{path_in}", value, is_valid)
            url, query = f"http://127.0.0.1:{acme.service.port}{path}", required | {parameter["name"]: value}
            response = await acme.service.client.request(method, url, params=query, headers=headers)
            if contradicts(variant, response):
                wrong.append((variant, response.text))
    assert not wrong


# Path in the schema of EventBody, the keyword and its value.
BOUNDS = [
    ("event", "pattern", f"^{language.EVENT_NAME.pattern}$"),
    ("contact.email", "maxLength", language.MAX_EMAIL),
    ("contact.walletAddress", "maxLength", language.MAX_WALLET),
    ("contact.externalId", "maxLength", language.MAX_EXTERNAL_ID),
    ("idempotencyKey", "maxLength", language.MAX_KEY),
    ("attributes", "maxProperties", language.MAX_ATTRIBUTES),
    ("attributes.propertyNames", "maxLength", language.MAX_ATTRIBUTE_KEY),
    ("attributes.values", "maxLength", language.MAX_ATTRIBUTE_BYTES),
]


def property_of(components: dict[str, Any], path: str) -> dict[str, Any]:
    schema: dict[str, Any] = components["EventBody"]
    for name in path.split("."):
        if "$ref" in schema:
            schema = components[schema["$ref"].rpartition("/")[2]]
        if name == "propertyNames":
            schema = schema["propertyNames"]
        elif name == "values":
            schema = schema["additionalProperties"]
        else:
            schema = schema["properties"][name]
        schema = schema.get("anyOf", [schema])[0]
    return schema


@pytest.mark.parametrize(("path", "keyword", "bound"), BOUNDS)
async def test_the_document_has_the_bounds_of_the_language(
    service: Service, path: str, keyword: str, bound: int | str
) -> None:
    schema = property_of((await document(service))["components"]["schemas"], path)
    assert schema[keyword] == bound


def email(length: int) -> str:
    """Return a valid address: at most 64 characters before the @, labels of at most 63 characters after it."""
    local, end = "x" * 64, "@" + ".".join(["x" * 63] * 3 + ["x" * 61])
    return local + end + "x" * (length - len(local + end))


async def test_addresses_have_at_most_as_many_characters_as_the_document_says(acme: Org) -> None:
    # No valid address has 320 characters: 64 before the @ and 253 after it are the limits of the mail protocols.
    status, _ = await acme.post(EVENT | {"contact": {"email": email(64 + 1 + 253)}})
    assert status == 202
    status, refusal = await acme.post(EVENT | {"contact": {"email": email(language.MAX_EMAIL + 1)}})
    assert (status, refusal["field"]) == (400, "contact.email")


async def test_triggers_and_graphs_have_the_bounds_of_the_language(service: Service) -> None:
    schemas = (await document(service))["components"]["schemas"]
    for name in ("NewAutomation", "AutomationEdit", "UnsavedTrialBody"):
        trigger, graph = (schemas[name]["properties"][field]["properties"] for field in ("triggerSpec", "graph"))
        assert set(trigger["type"]["enum"]) == {*ALIASES, ONCHAIN_EVENT, *START_TYPES}
        assert "eventNames" in trigger
        assert trigger["chainId"]["maximum"] == MAX_CHAIN_ID
        assert trigger["confirmations"]["maximum"] == MAX_CONFIRMATIONS
        assert graph["nodes"]["maxItems"] == graph["edges"]["maxItems"] == MAX_ITEMS
