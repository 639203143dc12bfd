"""Checks of an automation before it is published: errors prevent publication, warnings inform the author.

`check` reads only the trigger and the graph. `check_against` compares them with the catalog: events that were never
received, properties that they never had, unknown segments, chains that are not followed. `CatalogFacts` is a plain
value, which the server and the workbench each load in their own way.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Literal

import msgspec

from workbench.language.actions import (
    Action,
    AddTag,
    Collect,
    Condition,
    Exit,
    Handle,
    InvalidAction,
    LocalizedMessage,
    MessageAction,
    RemoveTag,
    SendEmail,
    TriggerNode,
    UpdateContact,
    WaitUntil,
    awaited_event,
    filters_in,
    longest_wait,
    templates_in,
    topics_in,
)
from workbench.language.channel import CHANNELS, INAPP, Channel, Recipient
from workbench.language.connections import ConnectionDefinition, check_connections
from workbench.language.event import EVENT_NAME, LOG_NAME
from workbench.language.facts import EVENTS
from workbench.language.filter import OPERATORS, Filter, Where
from workbench.language.graph import Graph, Node, search_depth_first, targets_by_source
from workbench.language.locales import choose_locale, locale_tag
from workbench.language.onchain import source_warnings
from workbench.language.problem import nearest_name, suggestion
from workbench.language.starts import StartSource
from workbench.language.template import compile_template, compile_where, required_paths
from workbench.language.topics import CONFIRM_LINK, link_values
from workbench.language.trigger import BUILT_INS, Trigger

Level = Literal["error", "warning"]
Consent = Literal["accept_dropped", "every_event"]  # the arguments of `publish()` that agree
TRIGGER_FILTERS, GOAL_FILTERS = "triggerSpec.filters", "graph.settings.goal.filters"
NO_EVENT_NAME = "no event name: every custom event of the organization starts this automation"
EVERY_EVENT = ""  # the name in `CatalogFacts.undeliverable` for a trigger without names


class Diagnostic(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An error or a warning about an automation, with the node or the field it is about.

    `consent`: notebook, canvas and `automations apply` do not publish unless the user agrees to it. Over HTTP it is a
    warning like the others, as the contract says.
    """

    level: Level
    message: str
    node_id: str | None = None
    field: str | None = None
    consent: Consent | None = None

    def __str__(self) -> str:
        return f"{self.node_id}: {self.message}" if self.node_id else self.message


def check(trigger: Trigger, graph: Graph) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of an automation, errors first."""
    diagnostics = [
        *_check_nodes(graph),
        *_check_edges(graph),
        *_check_paths(graph),
        *_check_branches(graph),
        *_check_settings(graph),
        *_check_trigger(trigger, graph),
        *_check_filters(trigger, graph),
        *_check_where(trigger, graph),
        *_check_overridden_built_ins(trigger, graph),
        *_check_guards(graph),
        *_check_collected(trigger, graph),
        *_check_locales(graph),
        *_check_confirmations(graph),
        *(warning for channel in CHANNELS.values() for warning in _check_recipients(trigger, graph, channel)),
        *(warning for channel in CHANNELS.values() for warning in _check_deliverable(trigger, graph, channel)),
    ]
    return tuple(sorted(diagnostics, key=lambda diagnostic: diagnostic.level != "error"))


def errors(diagnostics: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Return the diagnostics that prevent publication."""
    return tuple(diagnostic for diagnostic in diagnostics if diagnostic.level == "error")


def without_consent(
    diagnostics: Iterable[Diagnostic], agreed: Collection[Consent]
) -> Iterator[tuple[Diagnostic, Consent]]:
    """Yield the diagnostics that the user has to agree to, and has not, with the argument that agrees."""
    for diagnostic in diagnostics:
        if diagnostic.consent is not None and diagnostic.consent not in agreed:
            yield diagnostic, diagnostic.consent


def context_paths(node: Node) -> set[str]:
    """Return the paths that a node reads in the event that started the entry, and in the contact."""
    paths = {path for filter_ in _filters_on_entry(node) for path in filter_.paths}
    if isinstance(node.action, WaitUntil) and node.action.date is not None:
        paths.add(node.action.date)
    if isinstance(node.action, Collect) and node.action.key is not None:
        paths.add(f"payload.{node.action.key}")
    for text in templates_in(node.action):
        paths |= compile_template(text).paths
    return paths - _links_of(node.action)


def _links_of(action: Action | MessageAction) -> set[str]:
    """Return the names of the links that the texts of an email can have."""
    return {*link_values(action.confirms)} if isinstance(action, SendEmail) else set()


def _filters_on_entry(node: Node) -> tuple[Filter, ...]:
    """Return the filters on the event that started the entry; those of a wait see the later event."""
    return filters_in(node.action) if awaited_event(node.action) is None else ()


def _check_nodes(graph: Graph) -> Iterator[Diagnostic]:
    ids: set[str] = set()
    for node in graph.nodes:
        if node.id in ids:
            yield Diagnostic("error", "has the same id as another node", node.id)
        ids.add(node.id)
        if isinstance(node.action, InvalidAction) and node is not graph.stand_in:
            for problem in node.action.problems:
                yield Diagnostic("error", problem.reason, node.id, problem.field)
    triggers = [node for node in graph.nodes if isinstance(node.action, TriggerNode)]
    if not graph.nodes:
        yield Diagnostic("error", "the graph is empty: it needs a trigger node and at least one step")
    elif not triggers:
        message = "starts the entries as the first node, because the graph has no trigger node"
        consent: Consent | None = None
        if graph.stand_in is not None:
            message = f"the node kind {graph.stand_in.kind!r} is unknown and will be dropped: the step only {message}"
            consent = "accept_dropped"
        yield Diagnostic("warning", message, graph.nodes[0].id, consent=consent)
    elif graph.nodes[0] is not triggers[0]:
        yield Diagnostic("warning", "should be the first node of the graph", triggers[0].id)
    for node in triggers[1:]:
        yield Diagnostic("error", "is a second trigger node: a graph has one", node.id)


def _check_edges(graph: Graph) -> Iterator[Diagnostic]:
    connected: set[tuple[str, Handle]] = set()
    drawn: set[tuple[str, Handle, str]] = set()
    for edge in graph.edges:
        source, target = graph.by_id.get(edge.source), graph.by_id.get(edge.target)
        if source is None:
            node_id = None if target is None else target.id
            yield Diagnostic("error", f"an edge starts at node {edge.source!r}, which does not exist", node_id)
            continue
        if target is None:
            yield Diagnostic("error", f"an edge leads to node {edge.target!r}, which does not exist", source.id)
        if edge.handle not in source.handles and (
            not isinstance(source.action, InvalidAction) or source is graph.stand_in
        ):
            if isinstance(source.action, Exit):
                message = "ends the entry: no edge leaves it"
            elif source.handles == (None,):
                message = f"does not branch: its edge has no sourceHandle, such as {edge.handle!r}"
            else:
                message = (
                    "has an edge without sourceHandle" if edge.handle is None else f"has no branch {edge.handle!r}"
                )
                message = f"{message}: its branches are {_list(source.handles, 'and')}"
            yield Diagnostic("error", message, source.id)
        if (edge.source, edge.handle, edge.target) in drawn:
            yield Diagnostic("error", f"has two edges from the same handle to {edge.target!r}", source.id)
        drawn.add((edge.source, edge.handle, edge.target))
        connected.add((edge.source, edge.handle))
    for node in graph.nodes:
        if isinstance(node.action, InvalidAction):
            continue
        if isinstance(node.action, WaitUntil) and node.action.date is not None:
            reached, missed = ({target for *end, target in drawn if end == [node.id, way]} for way in node.handles)
            for target_id in sorted(reached & missed):
                message = f"contacts that have no date or a past date reach {target_id!r}, too"
                yield Diagnostic("warning", message, node.id)
        if len(node.handles) > 1 and not any((node.id, handle) in connected for handle in node.handles):
            yield Diagnostic("error", f"connect {_list(node.handles, 'or')} to a step", node.id)


def _list(handles: Iterable[Handle], conjunction: str) -> str:
    *names, last = filter(None, handles)
    return f"{', '.join(names)} {conjunction} {last}"


def _check_paths(graph: Graph) -> Iterator[Diagnostic]:
    """Report loops and nodes that cannot be reached."""
    targets_of = targets_by_source((edge.source, edge.target) for edge in graph.edges)
    for source, target in search_depth_first(graph.by_id, targets_of)[1]:
        yield Diagnostic("error", f"leads back to {target!r}: a graph has no loops", source)
    if graph.start is None:
        return
    reachable = _reachable(graph.start.id, graph.links)
    for node in graph.nodes:
        if node.id not in reachable:
            yield Diagnostic("error", "cannot be reached from the trigger", node.id)
    for node_id, fork in graph.route.shared:
        message = f"is in a branch of {fork!r} that another branch follows: only steps of that branch may lead to it"
        yield Diagnostic("error", message, node_id)
    for node_id, fork in graph.route.missed:
        message = f"would be left out where a later branch of {fork!r} does not lead to it: draw that branch first"
        yield Diagnostic("error", message, node_id)
    if reachable == {graph.start.id} and (isinstance(graph.start.action, TriggerNode) or graph.stand_in is not None):
        yield Diagnostic("error", "nothing follows the trigger", graph.start.id)


def _reachable(start: str, links: Iterable[tuple[str, str]]) -> set[str]:
    order, _ = search_depth_first([start], targets_by_source(links))
    return set(order)


def _check_branches(graph: Graph) -> Iterator[Diagnostic]:
    """Warn about branches that begin after a wait of an earlier branch."""
    waiting_ids = _waiting_nodes(graph)
    waiting = [node.id for node in graph.nodes if node.id in waiting_ids]
    for sequence in graph.route.sequences:
        first_wait = None
        for start, nodes in sequence.branches:
            if start not in graph.by_id:
                continue  # reported as an edge to a node that does not exist
            if first_wait is not None:
                message = f"begins after {first_wait!r}, which waits: draw its edge first if it should not wait"
                yield Diagnostic("warning", message, start)
            else:
                first_wait = next((node_id for node_id in waiting if node_id in nodes), None)


def _waiting_nodes(graph: Graph) -> set[str]:
    has_quiet_hours = graph.settings.quiet_hours is not None
    waiting = set()
    for node in graph.nodes:
        channel = node.action.channel
        if longest_wait(node.action) or (has_quiet_hours and channel is not None and channel.to_contact):
            waiting.add(node.id)
    return waiting


def _check_guards(graph: Graph) -> Iterator[Diagnostic]:
    """Warn about a condition on a tag or an attribute that a later step writes, if the entry waits before that step.

    Other entries of the contact pass the condition meanwhile.
    """
    targets_of = targets_by_source(graph.links)
    order, _ = search_depth_first(graph.by_id, targets_of)
    steps = [graph.by_id[node_id] for node_id in order if node_id in graph.by_id]  # each after its targets
    writing = [step for step in steps if isinstance(step.action, AddTag | RemoveTag | UpdateContact)]
    waiting = _waiting_nodes(graph)
    # By the steps that write: for each step from which one of them can be reached, the first step before it that waits.
    first_waits: dict[frozenset[str], dict[str, str | None]] = {}
    for node in graph.nodes:
        for filter_ in _filters_on_entry(node):
            writers = frozenset(step.id for step in writing if _writes(step, filter_))
            if writers not in first_waits:
                waits = first_waits[writers] = dict.fromkeys(writers)
                for step in steps:
                    ahead = [waits[target] for target in targets_of.get(step.id, ()) if target in waits]
                    if ahead and step.id not in writers:
                        waits[step.id] = step.id if step.id in waiting else next(filter(None, ahead), None)
            waiting_id = first_waits[writers].get(node.id)
            if waiting_id is not None:
                message = (
                    f"{filter_.path} is written after {waiting_id!r}, which waits: until then, other entries of the"
                    " contact pass this condition. Write it before that step"
                )
                yield Diagnostic("warning", message, node.id)


def _check_collected(trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    """Check that events start an automation that collects them, and that steps read the list after it is complete."""
    collecting = {node.id for node in graph.nodes if isinstance(node.action, Collect)}
    if trigger.source is not None:
        for index, node in enumerate(graph.nodes):
            if node.id in collecting:
                message = f"collects events, but a {trigger.type} starts this automation: an app_event must start it"
                yield Diagnostic("error", message, node.id, f"graph.nodes[{index}].type")
    links = [link for link in graph.links if link[0] not in collecting]
    early = set() if graph.start is None else _reachable(graph.start.id, links) - collecting
    for node in graph.nodes:
        if node.id in early and any(path.partition(".")[0] == EVENTS for path in context_paths(node)):
            has = "has only the event that started the entry" if collecting else "is a value of the event"
            message = f"reads {EVENTS!r}, which {has}: no step before it on every way collects events"
            yield Diagnostic("warning", message, node.id)


def _check_locales(graph: Graph) -> Iterator[Diagnostic]:
    """Warn about messages that have no texts in a locale of another message."""
    messages = [(node.id, node.action) for node in graph.nodes if isinstance(node.action, LocalizedMessage)]
    locales = dict.fromkeys(tag for _, message in messages for tag in message.locales)
    for node_id, message in messages:
        own = {*message.locales, graph.settings.default_locale}
        if lacking := [tag for tag in locales if choose_locale(own, tag) is None]:
            yield Diagnostic("warning", f"has no texts in {', '.join(lacking)}, as another message has", node_id)


def _check_confirmations(graph: Graph) -> Iterator[Diagnostic]:
    """Report emails that ask to confirm a topic without a link for it, in one of their locales."""
    for node in graph.nodes:
        action = node.action
        if not isinstance(action, SendEmail) or action.confirms is None:
            continue
        for locale, body in {"": action.body, **{tag: texts["body"] for tag, texts in action.locales.items()}}.items():
            if CONFIRM_LINK not in compile_template(body).paths:
                path = f"locales.{locale}.body" if locale else "body"
                message = f"must have the link {{{{ {CONFIRM_LINK} }}}}, which confirms the topic {action.confirms!r}"
                yield Diagnostic("error", message, node.id, path)


def unknown_topics(graph: Graph, topics: Collection[str]) -> Iterator[Diagnostic]:
    """Yield an error for each topic that a node names and the organization does not have."""
    for node in graph.nodes:
        for key, name in topics_in(node.action).items():
            if name not in topics:
                hint = suggestion(name, topics, ": save it first (wb.topics.save)")
                yield Diagnostic("error", f"unknown topic {name!r}{hint}", node.id, key)


def _writes(node: Node, filter_: Filter) -> bool:
    """Return whether a node changes what a filter looks at."""
    match node.action:
        case AddTag(tag=tag) | RemoveTag(tag=tag):
            values = filter_.value if isinstance(filter_.value, list | tuple) else (filter_.value,)
            return "contact.tags" in filter_.paths and (tag in values or isinstance(filter_, Where))
        case UpdateContact(attributes=attributes):
            return any(path.split(".")[:2] == ["contact", name] for path in filter_.paths for name in attributes)
        case _:
            return False


def _check_settings(graph: Graph) -> Iterator[Diagnostic]:
    settings = graph.settings
    for problem in settings.problems:
        yield Diagnostic("error", problem.reason, field=problem.field)
    if settings.holdout and settings.goal is None and not settings.problems:
        message = "set a goal so that the holdout has something to measure"
        yield Diagnostic("warning", message, field="graph.settings.holdout")


def _check_trigger(trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    if trigger.log_source is not None:
        for message in source_warnings(trigger.log_source, trigger.filters):
            yield Diagnostic("warning", message, field=TRIGGER_FILTERS)
        return
    if isinstance(trigger.source, StartSource):
        for path, events, node_id, field in dict.fromkeys(_payload_paths(trigger, graph)):
            if not events and path.partition(".")[0] != "segment":
                message = f"{path!r} is always missing: the payload of {trigger.type} has only segment"
                yield Diagnostic("warning", message, node_id, field)
        return
    if not trigger.names:
        consent: Consent | None = "every_event" if trigger.empty_name else None
        yield Diagnostic("warning", NO_EVENT_NAME, field="triggerSpec", consent=consent)
    for name in sorted(trigger.names):
        if not EVENT_NAME.fullmatch(name):
            yield Diagnostic("warning", f"{name!r} is not a valid event name", field="triggerSpec")
    start = graph.start
    named = start.action.events if start is not None and isinstance(start.action, TriggerNode) else ()
    others = ", ".join(repr(name) for name in named if name.lower() not in trigger.names)
    if start is not None and others:
        names = ", ".join(sorted(trigger.names)) or "every event"
        message = f"names the event {others}, but triggerSpec decides: the automation starts on {names}"
        yield Diagnostic("warning", message, start.id)


def _check_filters(trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    for node in graph.nodes:
        if isinstance(node.action, Condition) and not node.action.filters:
            yield Diagnostic("warning", "has no filters: every contact follows true", node.id)
    for filter_, _, node_id, field in _uses_of_filters(trigger, graph):
        if isinstance(filter_, Where):
            continue
        if filter_.operator not in OPERATORS:
            message = f"the operator {filter_.operator!r} on {filter_.path!r} is unknown and will be dropped"
            message = f"{message}; the operators are {', '.join(OPERATORS)}"
            yield Diagnostic("warning", message, node_id, field, "accept_dropped")
        elif OPERATORS[filter_.operator].operand == "list" and not (isinstance(filter_.value, list) and filter_.value):
            lacks = "has an empty array" if filter_.value == [] else "needs an array of values"
            message = f"{filter_.operator!r} on {filter_.path!r} {lacks}: no event passes it"
            yield Diagnostic("warning", message, node_id, field)
    # Only conditions and texts see `payload` and `contact`; a trigger sees the flat context (docs/contract.md 4.7.3).
    for filter_ in trigger.filters:
        field = _field_of(filter_, TRIGGER_FILTERS)
        for path in sorted(filter_.paths):
            first, _, rest = path.partition(".")
            if first == "payload" and rest:
                message = f"the trigger sees the keys of the payload directly: write {rest!r}, not {path!r}"
                yield Diagnostic("warning", message, field=field)
            elif first == "contact" and rest:
                message = f"the trigger does not see the contact: test {path!r} in a condition"
                yield Diagnostic("warning", message, field=field)
    for node in graph.nodes:
        for filter_ in _filters_on_entry(node):
            if filter_.path not in ("contact.tags", "contact.segments") or filter_.operator not in ("eq", "neq", "in"):
                continue
            options = filter_.value if filter_.operator == "in" and isinstance(filter_.value, list) else [filter_.value]
            if any(isinstance(option, str) for option in options):
                yield Diagnostic("warning", f"{filter_.path} is a list: test whether it contains a value", node.id)


TYPE_WORDS = {
    "string": "a text",
    "number": "a number",
    "boolean": "true or false",
    "date": "a date",
    "array": "a list",
    "object": "an object",
}
_DATES = {"date", "string"}  # a text is converted to a date
_CONTACT = "contact."


def _check_where(trigger: Trigger, graph: Graph, catalog: "CatalogFacts | None" = None) -> Iterator[Diagnostic]:
    """Warn about comparisons that never hold, by the types that were seen in events and contacts, or without them."""
    types = {} if catalog is None else catalog.types
    attributes = {} if catalog is None else catalog.attributes
    for filter_, events, node_id, field in _uses_of_filters(trigger, graph):
        event_types = [types[event] for event in events if event in types]
        for sides in compile_where(filter_.path).comparisons if isinstance(filter_, Where) else ():
            if catalog is not None and not any(side.path for side in sides):
                continue  # reported without types
            shown, possible = [], []
            for side in sides:
                if side.path.startswith(_CONTACT):
                    at_path = {*attributes.get(side.path.removeprefix(_CONTACT), ())}
                elif len(event_types) == len(events):
                    at_path = {
                        name for paths in event_types for name in paths.get(side.path.removeprefix("payload."), ())
                    }
                else:
                    at_path = set()
                kinds = {side.type} if side.type else at_path
                words = " or ".join(TYPE_WORDS.get(kind, kind) for kind in sorted(kinds))
                shown.append(f"{side.path!r} ({words})" if side.path else words)
                possible.append(kinds)
            either = possible[0] | possible[1]
            if all(possible) and not possible[0] & possible[1] and "null" not in either and either != _DATES:
                yield Diagnostic("warning", f"compares {shown[0]} with {shown[1]}: this never holds", node_id, field)


def _uses_of_filters(
    trigger: Trigger, graph: Graph
) -> Iterator[tuple[Filter, tuple[str, ...], str | None, str | None]]:
    """Yield every filter with the names of the events that it tests, and its node or field."""
    names, goal = tuple(sorted(trigger.names)), graph.settings.goal
    yield from ((item, names, None, _field_of(item, TRIGGER_FILTERS)) for item in trigger.filters)
    if goal is not None:
        yield from ((item, (goal.event,), None, _field_of(item, GOAL_FILTERS)) for item in goal.filters)
    for node in graph.nodes:
        awaited = awaited_event(node.action)
        events = names if awaited is None else (awaited,)
        yield from ((item, events, node.id, None) for item in filters_in(node.action))


def _field_of(filter_: Filter, filters_field: str) -> str:
    return filters_field.removesuffix("filters") + "where" if isinstance(filter_, Where) else filters_field


def _check_overridden_built_ins(trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    """Warn about a built-in name if the automation also reads a payload key of that name, which overrides it."""
    uses = _uses(trigger, graph)
    in_payload = {
        name
        for _, paths in uses
        for name in BUILT_INS
        if any(path == f"payload.{name}" or path.startswith(f"payload.{name}.") for path in paths)
    }
    for node_id, paths in uses:
        for name in sorted(in_payload & paths):
            message = f"{name!r} is the payload's key of that name if the event has one, not the built-in value"
            yield Diagnostic("warning", message, node_id, TRIGGER_FILTERS if node_id is None else None)


def _uses(trigger: Trigger, graph: Graph) -> list[tuple[str | None, set[str]]]:
    """Return the paths that the trigger (None) and each node read."""
    return [
        (None, {path for filter_ in trigger.filters for path in filter_.paths}),
        *((node.id, context_paths(node)) for node in graph.nodes),
    ]


def _check_recipients(trigger: Trigger, graph: Graph, channel: Channel) -> Iterator[Diagnostic]:
    """Warn about messages on a path without a condition on the address that they need."""
    recipient = channel.recipient
    if recipient is None or graph.start is None:
        return
    name = recipient.field
    # The trigger of a contract log guarantees a wallet.
    if _requires(name, trigger.filters) or (trigger.log_source and name == "walletAddress"):
        return
    unchecked = _reachable_without(graph.start.id, graph, partial(_requires, name))
    for node in graph.nodes:
        fails = isinstance(node.action, MessageAction) and node.action.on_missing == "fail"
        if fails and node.action.channel is channel and node.id in unchecked:
            message = f"fails for contacts without {recipient.noun}: test {name} in a condition before this step"
            yield Diagnostic("warning", message, node.id)


def _check_deliverable(trigger: Trigger, graph: Graph, channel: Channel) -> Iterator[Diagnostic]:
    """Warn about messages to addresses that, by the filters on every path to the step, no message can reach."""
    recipient = channel.recipient
    if recipient is None or graph.start is None:
        return
    excludes = partial(_excludes, recipient)
    reached: set[str] = set() if excludes(trigger.filters) else _reachable_without(graph.start.id, graph, excludes)
    undeliverable = _reachable(graph.start.id, graph.links) - reached
    for node in graph.nodes:
        if node.action.channel is channel and node.id in undeliverable:
            message = f"is undeliverable: {recipient.limitation}, and its contacts have others"
            yield Diagnostic("warning", message, node.id)


def _reachable_without(start: str, graph: Graph, test: Callable[[Iterable[Filter]], bool]) -> set[str]:
    """Return the nodes that an entry can reach without passing a condition that satisfies `test`."""
    links = []
    for (source, handle), target in graph.next_node_ids.items():
        action = graph.by_id[source].action if source in graph.by_id else None
        if not (isinstance(action, Condition) and handle == "true" and test(action.filters)):
            links.append((source, target))
    return _reachable(start, links)


def _excludes(recipient: Recipient, filters: Iterable[Filter]) -> bool:
    """Return whether one of the filters passes only for addresses that no message can reach."""
    for filter_ in filters:
        if filter_.path in (recipient.field, f"contact.{recipient.field}") and filter_.operator in ("eq", "in"):
            values = filter_.value if isinstance(filter_.value, list) else [filter_.value]
            if values and not any(isinstance(value, str) and recipient.is_deliverable(value) for value in values):
                return True
    return False


_IDENTIFIERS = ("walletAddress", "email", "externalId")


def _requires(path: str, filters: Iterable[Filter]) -> bool:
    """Return whether one of the filters passes only if there is a value at the path."""
    if path in _IDENTIFIERS:
        same = {path, f"contact.{path}"}
    else:  # a key of the payload is also a key of the context, unless it has a reserved name
        same = {path} if path.startswith("contact.") else {path, f"payload.{path}", path.removeprefix("payload.")}
    return any(not same.isdisjoint(filter_.required) for filter_ in filters)


class ChainFacts(msgspec.Struct, frozen=True):
    """The chains that are followed, and the names of the logs that are stored, such as `0x…:transfer`."""

    chains: frozenset[int] = frozenset()
    logs: frozenset[str] = frozenset()


class Need(msgspec.Struct, frozen=True):
    """A value that a step for contacts in `segments` needs: an identifier, an attribute, or a path in the payload.

    `path` empty: nothing; the contacts are counted by their locales.
    """

    node_id: str
    path: str
    segments: tuple[str, ...] = ()


MAX_SAMPLED_CONTACTS = 10_000  # of a segment, the newest


class CatalogFacts(msgspec.Struct, frozen=True):
    """The events of the last 30 days, the payload paths of some of them, and the segments.

    `segments`, `connections`, `topics` and `chain` are None if they were not loaded. An event without `paths` was not
    examined. `types`: the types at the paths of an event. `attributes`: the types of the attributes of contacts.

    Two fields count the newest events or contacts. `undeliverable`: how many of the newest events of a name have a
    wallet that can never sign in, and how many were examined. `missing`: how many contacts lack the value of a need,
    and how many were examined, by the value of their locale attribute. These contacts are in the segments of the need,
    and have sent the newest events or are in the segment that starts the automation. `is_sample`: the segment has more
    contacts than were examined.
    """

    events: tuple[str, ...] = ()
    paths: Mapping[str, frozenset[str]] = {}
    types: Mapping[str, Mapping[str, Collection[str]]] = {}
    attributes: Mapping[str, Collection[str]] = {}
    segments: tuple[str, ...] | None = None
    connections: Mapping[str, ConnectionDefinition] | None = None
    topics: tuple[str, ...] | None = None
    chain: ChainFacts | None = None
    undeliverable: Mapping[str, tuple[int, int]] = {}
    missing: Mapping[Need, Mapping[str | None, tuple[int, int]]] = {}
    is_sample: bool = False


def events_of(trigger: Trigger, graph: Graph) -> tuple[str, ...]:
    """Return the custom events that an automation names: triggers, awaited events, the goal."""
    return tuple(dict.fromkeys(name for name, _, _ in _named_events(trigger, graph)))


def segments_of(trigger: Trigger, graph: Graph) -> tuple[str, ...]:
    """Return the segments that the trigger and the conditions of an automation name."""
    return tuple(dict.fromkeys(name for name, _, _ in _named_segments(trigger, graph)))


def needs_of(trigger: Trigger, graph: Graph) -> tuple[Need, ...]:
    """Return what messages and dates to wait for need, unless a condition before them, or the trigger, requires it."""
    is_start = isinstance(trigger.source, StartSource)
    if graph.start is None or not (trigger.names or is_start):
        return ()
    start, unguarded = graph.start.id, dict[str, set[str]]()
    reachable = _reachable(start, graph.links)
    conditions = [node.action.filters for node in graph.nodes if isinstance(node.action, Condition)]
    members = {name: Filter("contact.segments", "contains", name) for name in segments_of(trigger, graph)}
    others = {name: _reachable_without(start, graph, partial(_includes, member)) for name, member in members.items()}
    needs = []
    for node in graph.nodes:
        segments = tuple(name for name, node_ids in others.items() if node.id not in node_ids)
        if isinstance(node.action, LocalizedMessage) and node.action.locales:
            needs.append(Need(node.id, "", segments))
        for needed in _needed_paths(node.action):
            if is_start and not _is_of_contact(needed):
                continue  # a start has no other values
            if needed not in unguarded:
                requires = partial(_requires, needed)
                is_tested = any(map(requires, conditions))
                unguarded[needed] = _reachable_without(start, graph, requires) if is_tested else reachable
            if node.id in unguarded[needed] and not _requires(needed, trigger.filters):
                needs.append(Need(node.id, needed, segments))
    return tuple(dict.fromkeys(needs))


def _needed_paths(action: Action | MessageAction) -> list[str]:
    match action:
        case MessageAction(channel=channel):
            paths = {path for text in templates_in(action) for path in required_paths(text)} - _ALWAYS_THERE
            paths -= _links_of(action)
            if channel is not None and channel.recipient is not None:
                paths.add(channel.recipient.field)
        case WaitUntil(date=str() as date):
            paths = {date}
        case _:
            return []
    identifiers = {f"contact.{name}": name for name in _IDENTIFIERS}
    return [identifiers.get(path, path) for path in sorted(paths)]


def _is_of_contact(path: str) -> bool:
    return path in _IDENTIFIERS or path.startswith("contact.")


def _includes(member: Filter, filters: Iterable[Filter]) -> bool:
    return member in filters


_ALWAYS_THERE = {EVENTS, "event", "contactId", "payload", "contact", "contact.id", "contact.tags", "contact.segments"}


def compares_attributes(trigger: Trigger, graph: Graph) -> bool:
    """Return whether an expression compares an attribute of contacts with something."""
    expressions = [item.path for item, *_ in _uses_of_filters(trigger, graph) if isinstance(item, Where)]
    comparisons = (sides for text in expressions for sides in compile_where(text).comparisons)
    return any(side.path.startswith(_CONTACT) for sides in comparisons for side in sides)


def uses_chain(trigger: Trigger, graph: Graph) -> bool:
    """Return whether an automation starts from logs of contracts or waits for them."""
    return trigger.log_source is not None or any(LOG_NAME.fullmatch(name) for name, _, _ in _awaited_events(graph))


def check_against(catalog: CatalogFacts, trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    """Yield warnings about events, properties, segments and chains that do not match the catalog, errors of topics."""
    for name, node_id, field in _named_events(trigger, graph):
        if name not in catalog.events:
            yield Diagnostic("warning", unknown_event_message(name, catalog.events), node_id, field)
    for path, events, node_id, field in dict.fromkeys(_payload_paths(trigger, graph)):
        if not events or any(event not in catalog.paths for event in events):
            continue  # an event that was not examined may have any property
        paths = {payload_path for event in events for payload_path in catalog.paths[event]}
        # The catalog does not list what is inside an array, so a path that begins or continues a listed path may exist.
        if path not in paths and not any(
            other.startswith(f"{path}.") or path.startswith(f"{other}.") for other in paths
        ):
            yield Diagnostic("warning", unknown_property_message(path, events, paths), node_id, field)
    yield from _check_where(trigger, graph, catalog)
    # A key of the payload overrides a built-in (docs/contract.md 4.7.3).
    hiding = {path.partition(".")[0]: event for event in sorted(trigger.names) for path in catalog.paths.get(event, ())}
    for node_id, paths in _uses(trigger, graph):
        for name in sorted(paths & hiding.keys() & set(BUILT_INS)):
            message = f"{name!r} is a key of {hiding[name]}'s payload, which hides the built-in value"
            yield Diagnostic("warning", message, node_id, TRIGGER_FILTERS if node_id is None else None)
    yield from check_wallets(catalog.undeliverable, trigger, graph)
    yield from check_contacts(catalog, trigger, graph)
    if catalog.segments is not None:
        for name, node_id, field in _named_segments(trigger, graph):
            if name not in catalog.segments:
                hint = suggestion(name, catalog.segments, ": no contact is in it")
                yield Diagnostic("warning", f"unknown segment {name!r}{hint}", node_id, field)
    if catalog.connections is not None:
        for node_id, key, reason in check_connections(graph, catalog.connections):
            yield Diagnostic("warning", f"{key}: {reason}", node_id)
    if catalog.topics is not None:
        yield from unknown_topics(graph, catalog.topics)
    if catalog.chain is None:
        return
    source = trigger.log_source
    if source is not None and source.chain_id not in catalog.chain.chains:
        message = f"chain {source.chain_id} is not followed: add one of its nodes to WORKBENCH_EVM_RPC"
        yield Diagnostic("warning", message, None, "triggerSpec.chainId")
    own = {name.lower() for name in trigger.shown_names}
    for name, node_id, field in _awaited_events(graph):
        if LOG_NAME.fullmatch(name) and name not in catalog.chain.logs | own:
            message = f"no log {name} is stored: start an automation from it, or run `workbench chain watch`"
            yield Diagnostic("warning", message, node_id, field)


def check_contacts(catalog: CatalogFacts, trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    """Yield warnings about contacts that lack what their texts need, or that have no text in their locale."""
    source, contacts = trigger.source, "contacts of the newest events"
    if isinstance(source, StartSource):
        segment = "the organization" if source.segment is None else f"the segment {source.segment!r}"
        contacts = f"newest contacts of {segment}, a sample" if catalog.is_sample else f"contacts of {segment}"
    for need, counts in catalog.missing.items():
        yield from _check_need(need, counts, graph, contacts)


def _check_need(
    need: Need, counts: Mapping[str | None, tuple[int, int]], graph: Graph, looked_at: str
) -> Iterator[Diagnostic]:
    """Yield a warning about the contacts that lack what their text needs, or that have no text in their locale."""
    action, default = graph.by_id[need.node_id].action, graph.settings.default_locale
    count = concerned = 0
    others = Counter[str]()  # contacts with a locale that has no texts
    for locale, (lacking, sampled) in counts.items():
        message: Action | MessageAction = action
        if isinstance(action, LocalizedMessage):
            message, chosen = action.in_locale(locale, default)
            if chosen is None and (tag := locale_tag(locale)) is not None:
                others[tag] += sampled
        if need.path in _needed_paths(message):
            count, concerned = count + lacking, concerned + sampled
    contacts = f"of the {sum(sampled for _, sampled in counts.values()):,} {looked_at}"
    if not need.path and others:
        listed = [f"{tag} ({number:,})" for tag, number in others.most_common(_MAX_SHOWN_LOCALES)]
        listed += [f"{len(others) - len(listed)} more"] if len(others) > len(listed) else []
        hint = "" if default else "; set defaultLocale if that is their locale"
        text = f"has no texts in the locales of {others.total():,} {contacts}: {', '.join(listed)}"
        yield Diagnostic("warning", f"{text}. They get the default texts{hint}", need.node_id)
    # A path that no payload has is reported as unknown.
    elif count and (count < concerned or _is_of_contact(need.path)):
        verb = "fails" if isinstance(action, MessageAction) and action.on_missing == "fail" else "is skipped"
        verb = "takes 'missed'" if isinstance(action, WaitUntil) else verb
        yield Diagnostic("warning", f"{verb} for {count:,} {contacts}: {need.path} is missing", need.node_id)


_MAX_SHOWN_LOCALES = 5


def check_wallets(undeliverable: Mapping[str, tuple[int, int]], trigger: Trigger, graph: Graph) -> Iterator[Diagnostic]:
    """Yield warnings about in-app messages on events with wallets that can never sign in (`CatalogFacts`)."""
    names = {EVERY_EVENT} if trigger.is_wildcard else trigger.names
    for name in sorted(names & undeliverable.keys()):
        count, sampled = undeliverable[name]
        for node in graph.nodes if count else ():
            channel = node.action.channel
            if channel is INAPP and channel.recipient is not None:
                share = f"{count:,} of the newest {sampled:,} events{f' {name!r}' if name else ''}"
                message = f"is undeliverable to the wallets of {share}: {channel.recipient.limitation}"
                yield Diagnostic("warning", message, node.id)


def unknown_event_message(name: str, events: Collection[str]) -> str:
    """Return the message for an event that was not received, with the most similar name that was."""
    return f"no event {name!r} was received in the last 30 days{suggestion(name, events)}"


def unknown_property_message(path: str, events: tuple[str, ...], paths: Collection[str]) -> str:
    """Return the message for a path that none of these events ever had, with the most similar of their `paths`."""
    nearest = nearest_name(path, paths)
    hint = f": did you mean {nearest!r}?" if nearest else f'; wb.catalog["{events[0]}"] shows its properties'
    listed = f"{', '.join(events[:-1])} or {events[-1]}" if len(events) > 1 else events[0]
    return f"{path!r} was never seen in {listed}{hint}"


def _named_segments(trigger: Trigger, graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield every segment that the automation names, with its node or field."""
    if isinstance(trigger.source, StartSource) and trigger.source.segment is not None:
        yield trigger.source.segment, None, "triggerSpec.segment"
    for node in graph.nodes:
        for filter_ in _filters_on_entry(node):
            is_segment = filter_.path == "contact.segments" and filter_.operator == "contains"
            if is_segment and isinstance(filter_.value, str):
                yield filter_.value, node.id, None


def _named_events(trigger: Trigger, graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield every custom event that the automation names, with its node or field."""
    for name in sorted(trigger.names):
        yield name, None, "triggerSpec"
    for name, node_id, field in _awaited_events(graph):
        if not LOG_NAME.fullmatch(name):  # the catalog lists no contract logs
            yield name, node_id, field


def _awaited_events(graph: Graph) -> Iterator[tuple[str, str | None, str | None]]:
    if graph.settings.goal is not None:
        yield graph.settings.goal.event, None, "graph.settings.goal"
    for node in graph.nodes:
        if (name := awaited_event(node.action)) is not None:
            yield name, node.id, None


_PayloadPath = tuple[str, tuple[str, ...], str | None, str | None]  # path, events, node id, field


def _payload_paths(trigger: Trigger, graph: Graph) -> Iterator[_PayloadPath]:
    """Yield every path that is read in a payload, the events it is expected in, and where it is read."""
    uses: list[_PayloadPath] = [
        (path, events, node_id, field)
        for filter_, events, node_id, field in _uses_of_filters(trigger, graph)
        for path in sorted(filter_.paths)
        # Those of the trigger are reported by `check`.
        if field is None or "goal" in field or not path.startswith("payload.")
    ]
    names = tuple(sorted(trigger.names))
    uses += [(path, names, node.id, None) for node in graph.nodes for path in sorted(context_paths(node))]
    for path, events, node_id, field in uses:
        if graph.collects and node_id is not None and path.partition(".")[0] == EVENTS:
            continue  # the list of collected events
        if path not in (*BUILT_INS, "payload", "contact") and not path.startswith("contact."):
            yield path.removeprefix("payload."), events, node_id, field
