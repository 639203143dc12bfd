"""What authors send: a new automation, an edit of one, and what the language has to say about its specs."""

import re
from typing import Any

import msgspec

from api.authoring.fields import Fields, read_fields
from api.language.check import Remark, check, errors
from api.language.codec import decode
from api.language.graph import Graph, read_graph
from api.language.problem import Problem, Problems
from api.language.simulate import Automation
from api.language.trigger import Trigger, read_trigger

MAX_NAME = 200
MAX_SPEC_BYTES = 262_144
EMPTY_GRAPH = b'{"nodes":[],"edges":[]}'

_NODE_PATH = re.compile(r"graph\.nodes\[\d+\]\.")


class Draft(msgspec.Struct, frozen=True):
    """A new automation. Specs are JSON text as sent."""

    name: str
    trigger_spec: bytes
    graph: bytes
    active: bool


class Edit(msgspec.Struct, frozen=True):
    """Changes to the automation as it was at `revision`; None leaves a part as it is."""

    revision: int
    name: str | None
    trigger_spec: bytes | None
    graph: bytes | None
    active: bool | None


def read_draft(body: bytes) -> Draft | Problems:
    """Return the new automation in a body, or everything that is wrong with it. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("name")
    fields.require("triggerSpec")
    edit = _read_parts(fields, 1)
    if fields.problems or edit.name is None or edit.trigger_spec is None:
        return tuple(fields.problems)
    return Draft(edit.name, edit.trigger_spec, edit.graph or EMPTY_GRAPH, edit.active is not False)


def read_edit(body: bytes) -> Edit | Problems:
    """Return the edit in a body, or everything that is wrong with it. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the one your edit started from")
    edit = _read_parts(fields, fields.number("revision") or 1)
    return tuple(fields.problems) or edit


def _read_parts(fields: Fields, revision: int) -> Edit:
    name, active = fields.text("name", MAX_NAME), fields.flag("active")
    trigger_spec, trigger = read_spec(fields, "triggerSpec")
    if trigger_spec is not None and isinstance(found := read_trigger(trigger), tuple):
        fields.problems.extend(found)
    graph, value = read_spec(fields, "graph")
    if graph is not None and isinstance(shape := read_graph(value), tuple):
        fields.problems.extend(shape)
    return Edit(revision, name, trigger_spec, graph, active)


def read_spec(fields: Fields, name: str) -> tuple[bytes | None, Any]:
    """Return a spec as JSON text and decoded; (None, None) when it is absent, too large or cannot be stored."""
    raw = fields.raw(name)
    if raw is None:
        return None, None
    if len(raw) > MAX_SPEC_BYTES:
        fields.refuse(name, f"is {len(raw)} bytes, at most {MAX_SPEC_BYTES} are allowed")
        return None, None
    before = len(fields.problems)
    value = fields.value(name)
    return (raw, value) if len(fields.problems) == before else (None, None)


def read_specs(trigger_spec: bytes, graph: bytes) -> Automation | Problems:
    """Return stored specs as the language reads them, or what is wrong (rules may have grown since they were stored)."""
    trigger, shape = read_trigger(decode(trigger_spec)), read_graph(decode(graph))
    if isinstance(trigger, Trigger) and isinstance(shape, Graph):
        return Automation(trigger, shape)
    return tuple(problem for found in (trigger, shape) if isinstance(found, tuple) for problem in found)


def remarks_on(trigger_spec: bytes, graph: bytes) -> tuple[Remark, ...]:
    """Return every remark on stored specs, errors first. Compiles templates."""
    found = read_specs(trigger_spec, graph)
    if isinstance(found, tuple):
        return tuple(Remark("error", problem.reason, field=problem.field) for problem in found)
    return check(found.trigger, found.graph or Graph())


def objections(trigger_spec: bytes, graph: bytes) -> Problems:
    """Return what stands against publishing stored specs, one problem per error. Compiles templates."""
    return tuple(_objection(remark) for remark in errors(remarks_on(trigger_spec, graph)))


def _objection(remark: Remark) -> Problem:
    if remark.node_id is None:
        return Problem(remark.field or "graph", remark.message)
    where = _NODE_PATH.sub("", remark.field, count=1) if remark.field else ""
    return Problem(f"node {remark.node_id}", f"{where}: {remark.message}" if where else remark.message)
