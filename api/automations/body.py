"""Parsing of request bodies: the fields of a JSON object one by one, with all problems collected; drafts and edits.

Specs stay JSON text all the way to the database, so every number is stored as it was written. null counts as absent;
unknown fields are ignored.
"""

import re
from datetime import datetime
from typing import Any, TypeVar

import msgspec

from api.clock import from_us
from workbench.language.check import Diagnostic, check, errors
from workbench.language.codec import MalformedJsonError, decode, replace_lone_surrogates, storage_problem
from workbench.language.event import parse_timestamp
from workbench.language.graph import Graph, read_graph
from workbench.language.problem import Problem, Problems
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import Trigger, read_trigger

MAX_NAME = 200
MAX_SPEC_BYTES = 262_144
EMPTY_GRAPH = b'{"nodes":[],"edges":[]}'

_NODE_PATH = re.compile(r"graph\.nodes\[\d+\]\.")
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_T = TypeVar("_T")


class Fields:
    """The fields of one JSON object; `problems` collects what is wrong with them."""

    def __init__(self, fields: dict[str, msgspec.Raw]) -> None:
        self._fields = fields
        self.problems: list[Problem] = []

    def refuse(self, field: str, reason: str) -> None:
        self.problems.append(Problem(field, reason))

    def raw(self, name: str) -> bytes | None:
        raw = bytes(self._fields.get(name, b"null"))
        return None if raw == b"null" else raw

    def value(self, name: str) -> Any:
        """Return the decoded value of a field, None if it is absent or cannot be stored."""
        raw = self.raw(name)
        if raw is None:
            return None
        try:
            value = decode(raw)
        except MalformedJsonError as error:
            self.refuse(name, str(error))
            return None
        if reason := storage_problem(value):
            self.refuse(name, reason)
            return None
        return value

    def text(self, name: str, max_length: int) -> str | None:
        """Return a string of 1 to `max_length` characters that are not all blank."""
        text = self._typed(name, str, "must be a string")
        if text is None:
            return None
        if not text.strip() or len(text) > max_length:
            self.refuse(name, f"must be 1 to {max_length} characters, not all blank")
        return text

    def flag(self, name: str) -> bool | None:
        return self._typed(name, bool, "must be true or false")

    def number(self, name: str) -> int | None:
        """Return a whole number from 1 to 2,147,483,647."""
        number = self._typed(name, int, "must be a whole number")
        if number is not None and not 1 <= number < 2**31:
            self.refuse(name, f"must be from 1 to {2**31 - 1}")
        return number

    def moment(self, name: str) -> datetime | None:
        text = self._typed(name, str, "must be a string")
        moment_us = None if text is None else parse_timestamp(text)
        if text is not None and moment_us is None:
            self.refuse(name, "must be an RFC 3339 date and time with a zone, like 2026-11-20T10:00:00Z")
        return None if moment_us is None else from_us(moment_us)

    def require(self, name: str) -> None:
        if self.raw(name) is None:
            self.refuse(name, "is required")

    def _typed(self, name: str, kind: type[_T], problem: str) -> _T | None:
        value = self.value(name)
        if value is None or type(value) is kind:
            return value
        self.refuse(name, problem)
        return None


def read_fields(body: bytes) -> Fields | Problems:
    """Return the fields of a body (none if it is empty), or the problems of the body as a whole."""
    if not body.strip(b" \t\r\n"):
        return Fields({})
    try:
        body.decode()  # the decoder below does not check the UTF-8 of raw fields
        return Fields(_OBJECT.decode(replace_lone_surrogates(body)))
    except msgspec.ValidationError:
        return (Problem("", "the body must be one JSON object"),)
    except (ValueError, RecursionError) as error:  # includes UnicodeDecodeError and msgspec.DecodeError
        return (Problem("", f"malformed JSON: {error}"),)


class NewAutomation(msgspec.Struct, frozen=True):
    """A new automation; the specs are JSON text as sent."""

    name: str
    trigger_spec: bytes
    graph: bytes
    active: bool


class AutomationEdit(msgspec.Struct, frozen=True):
    """Changes to the automation as it was at `revision`; None: unchanged."""

    revision: int
    name: str | None
    trigger_spec: bytes | None
    graph: bytes | None
    active: bool | None


def read_draft(body: bytes) -> NewAutomation | Problems:
    """Return the new automation in a body, or all its problems. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    fields.require("name")
    fields.require("triggerSpec")
    edit = _read_edited_fields(fields, 1)
    if fields.problems or edit.name is None or edit.trigger_spec is None:
        return tuple(fields.problems)
    return NewAutomation(edit.name, edit.trigger_spec, edit.graph or EMPTY_GRAPH, edit.active is not False)


def read_edit(body: bytes) -> AutomationEdit | Problems:
    """Return the edit in a body, or all its problems. Compiles templates."""
    fields = read_fields(body)
    if isinstance(fields, tuple):
        return fields
    if fields.raw("revision") is None:
        fields.refuse("revision", "is required: the revision that your edit started from")
    edit = _read_edited_fields(fields, fields.number("revision") or 1)
    return tuple(fields.problems) or edit


def _read_edited_fields(fields: Fields, revision: int) -> AutomationEdit:
    name, active = fields.text("name", MAX_NAME), fields.flag("active")
    trigger_spec, trigger = read_spec(fields, "triggerSpec")
    if trigger_spec is not None and isinstance(parsed := read_trigger(trigger), tuple):
        fields.problems.extend(parsed)
    graph, value = read_spec(fields, "graph")
    if graph is not None and isinstance(parsed_graph := read_graph(value), tuple):
        fields.problems.extend(parsed_graph)
    return AutomationEdit(revision, name, trigger_spec, graph, active)


def read_spec(fields: Fields, name: str) -> tuple[bytes | None, Any]:
    """Return a spec as JSON text and decoded; (None, None) if it is absent, too large or cannot be stored."""
    raw = fields.raw(name)
    if raw is None:
        return None, None
    if len(raw) > MAX_SPEC_BYTES:
        fields.refuse(name, f"is {len(raw)} bytes, at most {MAX_SPEC_BYTES} are allowed")
        return None, None
    before = len(fields.problems)
    value = fields.value(name)
    return (raw, value) if len(fields.problems) == before else (None, None)


def read_specs(trigger_spec: bytes, graph: bytes) -> SimulatedAutomation | Problems:
    """Return stored specs parsed, or their problems (the rules may have become stricter since they were stored)."""
    trigger, shape = read_trigger(decode(trigger_spec)), read_graph(decode(graph))
    if isinstance(trigger, Trigger) and isinstance(shape, Graph):
        return SimulatedAutomation(trigger, shape)
    return tuple(problem for part in (trigger, shape) if isinstance(part, tuple) for problem in part)


def diagnostics(trigger_spec: bytes, graph: bytes) -> tuple[Diagnostic, ...]:
    """Return all errors and warnings for stored specs, errors first. Compiles templates."""
    automation = read_specs(trigger_spec, graph)
    if isinstance(automation, tuple):
        return tuple(Diagnostic("error", problem.reason, field=problem.field) for problem in automation)
    return check(automation.trigger, automation.graph or Graph())


def publication_errors(trigger_spec: bytes, graph: bytes) -> Problems:
    """Return the errors that prevent the publication of stored specs, one problem each. Compiles templates."""
    problems = []
    for error in errors(diagnostics(trigger_spec, graph)):
        if error.node_id is None:
            problems.append(Problem(error.field or "graph", error.message))
        else:
            field = _NODE_PATH.sub("", error.field, count=1) if error.field else ""
            problems.append(Problem(f"node {error.node_id}", f"{field}: {error.message}" if field else error.message))
    return tuple(problems)
