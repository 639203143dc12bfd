"""Bodies of the requests on automations: new ones and edits, and the checks of their specs.

Specs stay JSON text all the way to the database, so every number is stored as it was written.
"""

import re
from typing import Annotated

from msgspec import Meta

from workbench.language.body import Body, Name, Number
from workbench.language.check import Diagnostic, check, errors
from workbench.language.codec import decode
from workbench.language.graph import GRAPH_SCHEMA, Graph, read_graph
from workbench.language.problem import Problem, Problems
from workbench.language.simulate import SimulatedAutomation
from workbench.language.trigger import TRIGGER_SCHEMA, Trigger, read_trigger

MAX_SPEC_BYTES = 262_144
MAX_NAME = 200  # characters, as of `Name`
EMPTY_GRAPH = b'{"nodes":[],"edges":[]}'

_NODE_PATH = re.compile(r"graph\.nodes\[\d+\]\.")

TriggerText = Annotated[bytes, Meta(max_length=MAX_SPEC_BYTES, extra={"read": read_trigger, "schema": TRIGGER_SCHEMA})]
GraphText = Annotated[bytes, Meta(max_length=MAX_SPEC_BYTES, extra={"read": read_graph, "schema": GRAPH_SCHEMA})]
Revision = Annotated[Number, Meta(description="the revision that your edit started from")]


class NewAutomation(Body, frozen=True, rename="camel", kw_only=True):
    """A new automation: its trigger and its graph. docs/automation-language.md describes both."""

    name: Annotated[Name, Meta(description="By default the names of its events.")] | None = None
    trigger_spec: TriggerText
    graph: GraphText = EMPTY_GRAPH
    active: (
        Annotated[bool, Meta(description="By default true, and false for a key without automations:write.")] | None
    ) = None

    @property
    def name_or_default(self) -> str:
        """The name, by default the names of the events of its trigger."""
        trigger = read_trigger(decode(self.trigger_spec))
        names = trigger.awaitable_names if isinstance(trigger, Trigger) else ()
        return self.name or ", ".join(names)[:MAX_NAME] or "Every event"


class AutomationEdit(Body, frozen=True, rename="camel"):
    """Changes to the automation as it was at `revision`."""

    revision: Revision
    name: Name | None = None
    trigger_spec: TriggerText | None = None
    graph: GraphText | None = None
    active: bool | None = None


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
