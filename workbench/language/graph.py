"""Graphs of automations: nodes and edges in React Flow's shape, and the settings of the automation as a whole.

`read_graph` returns typed actions and refuses only a wrong shape; `check` judges the content. `graph.settings` belongs
to a version like its nodes, so a rollback restores it (docs/decisions/0016):

`reentry` {policy: always | once | once_per | not_while_running, days?}: whether a contact can enter more than once.
`goal` {event, filters?, where?}: the event that ends an entry early, as `exited` with outcome `goal`.
`quietHours` {from, to, timezoneAttribute?}: the hours without messages to the contact, in the contact's time zone.
`frequencyCap` {messages, seconds} or {messages, per: day, timezoneAttribute?}: the maximum number of messages that a
contact gets from all automations in a period, or in a day of its time zone.
`timezone` (an IANA name): the time zone of contacts without a valid `timezoneAttribute`, for quiet hours, caps by day,
`wait_until` and `collect`. By default that of the organization, which publication stores in the graph, beside the
settings.
`holdout` (whole percentage): the share of contacts that get nothing, for comparison with the others.
`localeAttribute` (by default `locale`): the attribute of the contact that chooses the texts of messages.
`defaultLocale`: the locale of the default texts.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, time, timedelta, tzinfo
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import msgspec

from workbench.language.actions import (
    MAX_ID_LENGTH,
    MAX_WAIT,
    STEP_ACTIONS,
    Action,
    Collect,
    Handle,
    InvalidAction,
    MessageAction,
    TriggerNode,
    UpdateContact,
    WaitUntil,
    awaited_event,
    filters_in,
    is_clock,
    is_valid_id,
    read_action,
    read_event_name,
    topics_in,
)
from workbench.language.codec import Json, storage_problem
from workbench.language.event import attribute_key
from workbench.language.facts import EVENTS
from workbench.language.filter import Filter, matches
from workbench.language.local_time import LONGEST_DAY, NOT_A_ZONE, TIMEZONE_ATTRIBUTE, find_zone, time_zone
from workbench.language.locales import LOCALE_ATTRIBUTE, NOT_A_LOCALE, locale_tag
from workbench.language.problem import Problem, Problems
from workbench.language.snippets import Library, read_snippets
from workbench.language.trigger import read_filters

MAX_ITEMS = 1_000  # nodes, and edges
MAX_REENTRY_DAYS = 3_650  # ten years
MAX_CAP_MESSAGES = 1_000
MAX_HOLDOUT_PERCENT = 50

ReentryPolicy: TypeAlias = Literal["always", "once", "once_per", "not_while_running"]
SettingName: TypeAlias = Literal[
    "reentry", "goal", "quietHours", "timezone", "frequencyCap", "holdout", "localeAttribute", "defaultLocale"
]
Target = TypeVar("Target")


class Reentry(msgspec.Struct, frozen=True):
    """Whether a contact can enter more than once. `days`: for `once_per`, periods of 24 hours."""

    policy: ReentryPolicy = "always"
    days: int = 0


class Goal(msgspec.Struct, frozen=True):
    """The event that ends an entry early."""

    event: str
    filters: tuple[Filter, ...] = ()

    def accepts(self, context: Mapping[str, Any], at: datetime) -> bool:
        """Return whether an event of its name, received at this moment, passes the filters."""
        return matches(self.filters, context, at)


class QuietHours(msgspec.Struct, frozen=True):
    """From `start` until before `end`, possibly over midnight, in the zone named by an attribute of the contact.

    Webhooks address systems, not people, so neither quiet hours nor the frequency cap apply to them.
    """

    start: time
    end: time
    attribute: str = TIMEZONE_ATTRIBUTE


class FrequencyCap(msgspec.Struct, frozen=True):
    """The maximum number of messages to a contact in any period of this length, or on any day of its calendar.

    `zone_attribute`: for days, the attribute with the time zone of the contact; `period` is then the longest day.
    """

    messages: int
    period: timedelta
    zone_attribute: str | None = None


class AutomationSettings(msgspec.Struct, frozen=True):
    """The settings of an automation. A setting with `problems` is left out; published versions have none.

    `organization_timezone`: the time zone of the organization, from `timezone` of the graph. `preview_locale`: replaces
    the locale of the contact in a preview or a test.
    """

    reentry: Reentry = Reentry()
    goal: Goal | None = None
    quiet_hours: QuietHours | None = None
    frequency_cap: FrequencyCap | None = None
    holdout: int = 0
    timezone: str | None = None
    organization_timezone: str | None = None
    locale_attribute: str = LOCALE_ATTRIBUTE
    default_locale: str | None = None
    preview_locale: str | None = None
    problems: Problems = ()

    def zone_of(self, contact_zone: Json) -> tzinfo:
        """Return the time zone of a contact with this value of its attribute."""
        return time_zone(contact_zone, self.timezone, self.organization_timezone)


DEFAULT_SETTINGS = AutomationSettings()


PINS = ("snippets", "timezone")  # keys of a graph that publication adds


def follows_clocks(graph: Mapping[str, Any]) -> bool:
    """Return whether a decoded graph depends on the time zone of its contacts, and does not name one itself."""
    nodes, settings = graph.get("nodes"), graph.get("settings")
    settings = settings if isinstance(settings, dict) else {}
    kinds = [node.get("type") for node in nodes if isinstance(node, dict)] if isinstance(nodes, list) else []
    cap = settings.get("frequencyCap")
    has_day = isinstance(cap, dict) and cap.get("per") is not None
    has_clock = has_day or "wait_until" in kinds or "collect" in kinds or settings.get("quietHours") is not None
    return has_clock and settings.get("timezone") is None


class Node(msgspec.Struct, frozen=True):
    """One node. `kind`: its type as written; `action`: its meaning."""

    id: str
    kind: str
    action: Action

    @property
    def handles(self) -> tuple[Handle, ...]:
        """The handles that edges may leave by, in order."""
        return self.action.handles


class Edge(msgspec.Struct, frozen=True):
    """A connection from one node to another; `handle` names the branch of the source."""

    id: str
    source: str
    target: str
    handle: Handle = None


class Graph(msgspec.Struct, frozen=True, dict=True):
    """Nodes and edges in the order in which they are written, and the settings."""

    nodes: tuple[Node, ...] = ()
    edges: tuple[Edge, ...] = ()
    settings: AutomationSettings = DEFAULT_SETTINGS

    @cached_property
    def by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def route(self) -> "Route":
        """The way that entries take. `edges` may leave several times by one handle; a route leaves once."""
        handles = {node.id: node.handles for node in self.nodes}
        return find_route(handles, [(edge.source, edge.handle, edge.target) for edge in self.edges])

    @cached_property
    def next_node_ids(self) -> dict[tuple[str, Handle], str]:
        """The next node of each (node id, handle)."""
        return self.route.next_node_ids

    @property
    def links(self) -> list[tuple[str, str]]:
        """Pairs of a node and a next node of it."""
        return [(source, target) for (source, _), target in self.next_node_ids.items()]

    @cached_property
    def actions(self) -> frozenset[type[Action]]:
        return frozenset(type(node.action) for node in self.nodes)

    @cached_property
    def waits(self) -> dict[str, str]:
        """The name of the event that each waiting node waits for, by the id of the node."""
        names = {node_id: awaited_event(node.action) for node_id, node in self.by_id.items()}
        return {node_id: name for node_id, name in names.items() if name is not None}

    @cached_property
    def awaited(self) -> dict[str, list[tuple[Filter, ...]]]:
        """For each event that a wait or the goal names, the filters of those waits and of the goal."""
        goal = self.settings.goal
        awaited = {} if goal is None else {goal.event: [goal.filters]}
        for node_id, name in self.waits.items():
            awaited.setdefault(name, []).append(filters_in(self.by_id[node_id].action))
        return awaited

    @cached_property
    def followed_attributes(self) -> frozenset[str]:
        """The attributes of the contact on which the end of a `wait_until` or a `collect` depends."""
        actions = [node.action for node in self.nodes if isinstance(node.action, WaitUntil | Collect)]
        return frozenset(name for action in actions for name in action.attributes)

    @cached_property
    def collects(self) -> bool:
        """Whether entries collect events."""
        return Collect in self.actions

    @cached_property
    def topics(self) -> frozenset[str]:
        """The topics of its messages."""
        actions = (node.action for node in self.nodes)
        return frozenset(action.topic for action in actions if isinstance(action, MessageAction) and action.topic)

    @cached_property
    def named_topics(self) -> frozenset[str]:
        """The topics that its nodes name: those of messages, and those that contacts confirm."""
        return self.topics.union(name for node in self.nodes for name in topics_in(node.action).values())

    @cached_property
    def wakes(self) -> frozenset[str]:
        """The causes that wake entries: the names of awaited events, and the keys of followed attributes."""
        return frozenset(self.awaited).union(map(attribute_key, self.followed_attributes))

    @cached_property
    def awaits_steadily(self) -> bool:
        """Whether an event that passes none of the awaited filters on arrival may be ignored for good.

        False if a filter reads the contact, which may have changed when the event is evaluated again, or the collected
        events, which differ by entry. Also False if an entry changes the time zone of its own quiet hours: it must be
        woken, because its due time changes.
        """
        hours = self.settings.quiet_hours
        moves_quiet_hours = hours is not None and any(
            isinstance(node.action, UpdateContact) and hours.attribute in node.action.attributes for node in self.nodes
        )
        filters = (filter_ for awaited in self.awaited.values() for filters in awaited for filter_ in filters)
        paths = (path for filter_ in filters for path in filter_.paths)
        changing = {"contact", EVENTS} if self.collects else {"contact"}
        return not moves_quiet_hours and not any(path.partition(".")[0] in changing for path in paths)

    @cached_property
    def start(self) -> Node | None:
        """The trigger node, otherwise the first node (docs/contract.md 4.7.8)."""
        return next((node for node in self.nodes if isinstance(node.action, TriggerNode)), next(iter(self.nodes), None))

    @cached_property
    def stand_in(self) -> Node | None:
        """The first node, if it has an unknown kind. Without a trigger node, entries start at it."""
        start = self.start
        is_unknown = start is not None and isinstance(start.action, InvalidAction) and start.kind not in STEP_ACTIONS
        return start if is_unknown else None


class BranchSequence(msgspec.Struct, frozen=True):
    """A handle of a node that several edges leave by.

    `branches`: the first node of each branch, with the nodes that are run before the next branch begins.
    """

    source: str
    branches: tuple[tuple[str, frozenset[str]], ...]


class Route(msgspec.Struct, frozen=True):
    """The next node of each (node id, handle), and the branches that are run in sequence.

    `shared`: nodes of a branch that another one follows, to which steps outside that branch lead, each with the source
    of the branches. Such a node would have two ways on, so its graph cannot be published. `missed`: nodes that a branch
    leads to and a later one runs, but not on each of its ways.
    """

    next_node_ids: dict[tuple[str, Handle], str]
    sequences: tuple[BranchSequence, ...] = ()
    shared: tuple[tuple[str, str], ...] = ()
    missed: tuple[tuple[str, str], ...] = ()


def find_route(handles: Mapping[str, Sequence[Handle]], edges: Iterable[tuple[str, Handle, str]]) -> Route:
    """Return the way through nodes with these handles, given edges as (source, handle, target).

    Where several edges leave by one handle, their branches are run one after the other, in the order of the edges: the
    ends of a branch lead to the next branch. Where branches meet, the nodes from there on are run once, after the last
    branch (docs/decisions/0067).
    """
    targets: dict[tuple[str, Handle], dict[str, None]] = {}
    for source, handle, target in edges:
        targets.setdefault((source, handle), {})[target] = None
    next_ids = {end: next(iter(several)) for end, several in targets.items()}
    forking = [end for end, several in targets.items() if len(several) > 1]
    if not forking:
        return Route(next_ids)

    def reach(start: str) -> set[str]:
        reached, queue = {start}, [start]
        for node_id in queue:
            ends = ((node_id, handle) for handle in handles.get(node_id, ()))
            ahead = {next_ids[end] for end in ends if end in next_ids} - reached
            reached |= ahead
            queue += ahead
        return reached

    links = targets_by_source((end[0], target) for end, several in targets.items() for target in several)
    rank = {node_id: index for index, node_id in enumerate(search_depth_first(handles, links)[0])}
    incoming = targets_by_source((target, end) for end, several in targets.items() for target in several)
    sequences, shared = list[BranchSequence](), set[tuple[str, str]]()
    # By node where branches meet: the forks, each with the branch that comes next.
    meetings: dict[str, list[tuple[str, str]]] = {}
    for end in sorted(forking, key=lambda end: rank.get(end[0], 0)):  # inner forks first: they are part of a branch
        branches: list[tuple[str, frozenset[str]]] = []  # from the last to the first
        later: set[str] = set()
        for target in reversed(targets[end]):
            if target in later:  # a later branch leads to it, and runs it
                meetings.setdefault(target, []).append((end[0], branches[-1][0]))
                continue
            nodes = reach(target)
            own = frozenset(nodes - later)
            if branches:
                following, _ = branches[-1]
                for own_end in ((node_id, handle) for node_id in own for handle in handles.get(node_id, ())):
                    meeting = next_ids.get(own_end)
                    if meeting in own:
                        continue
                    if meeting is not None:
                        meetings.setdefault(meeting, []).append((end[0], following))
                    next_ids[own_end] = following
                entering = ((to, entry) for to in own for entry in incoming.get(to, ()))
                shared.update((to, end[0]) for to, entry in entering if entry[0] not in own and entry != end)
            branches.append((target, own))
            later |= nodes
        next_ids[end] = branches[-1][0]
        sequences.append(BranchSequence(end[0], tuple(reversed(branches))))

    missed = set[tuple[str, str]]()
    sources_of = targets_by_source((target, source) for (source, _), target in next_ids.items())
    last_ids = [
        node_id for node_id, own in handles.items() if not own or any((node_id, h) not in next_ids for h in own)
    ]
    for node_id, forks in meetings.items():
        ending, _ = search_depth_first([other for other in last_ids if other != node_id], {**sources_of, node_id: []})
        without = {*ending} - {node_id}  # the nodes from which an entry can end without running this one
        missed.update((node_id, fork) for fork, following in forks if following in without)
    return Route(next_ids, tuple(sequences), tuple(sorted(shared)), tuple(sorted(missed)))


def targets_by_source(edges: Iterable[tuple[str, Target]]) -> dict[str, list[Target]]:
    """Return the targets of each source."""
    targets: dict[str, list[Target]] = {}
    for source, target in edges:
        targets.setdefault(source, []).append(target)
    return targets


def search_depth_first(
    roots: Iterable[str], targets_of: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the nodes that can be reached, each after its targets, and the edges that lead back.

    An edge leads back if its target is on the path to it. A graph without such edges has no loops.
    """
    # The search has its own stack: a path can have 1,000 nodes, which is Python's recursion limit.
    order, back = list[str](), list[tuple[str, str]]()
    finished: dict[str, bool] = {}  # False: on the current path
    for root in roots:
        path = [(root, iter(targets_of.get(root, ())))] if root not in finished else []
        finished.setdefault(root, False)
        while path:
            node, targets = path[-1]
            target = next(targets, None)
            if target is None:
                finished[node] = True
                order.append(node)
                path.pop()
            elif target not in finished:
                finished[target] = False
                path.append((target, iter(targets_of.get(target, ()))))
            elif not finished[target]:
                back.append((node, target))
    return order, back


_ID_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_ID_LENGTH}
_NODE_SCHEMA = {
    "type": "object",
    "properties": {"id": _ID_SCHEMA, "type": {"type": "string"}, "data": {"type": ["object", "null"]}},
    "required": ["id", "type"],
}
_EDGE_SCHEMA = {
    "type": "object",
    "properties": {
        **dict.fromkeys(("source", "target"), _ID_SCHEMA),
        **{name: {"type": ["string", "null"], "maxLength": MAX_ID_LENGTH} for name in ("id", "sourceHandle")},
    },
    "required": ["source", "target"],
}
GRAPH_SCHEMA = {
    "type": "object",
    "description": "Nodes, edges and settings of an automation: docs/automation-language.md.",
    "properties": {
        "nodes": {"type": ["array", "null"], "items": _NODE_SCHEMA, "maxItems": MAX_ITEMS},
        "edges": {"type": ["array", "null"], "items": _EDGE_SCHEMA, "maxItems": MAX_ITEMS},
        "settings": {"type": ["object", "null"]},
        "timezone": {"type": ["string", "null"], "description": "Of a version: the time zone of the organization."},
        "snippets": {"type": ["object", "null"], "description": "Of a version: the snippets in its texts, by name."},
    },
}


def read_graph(value: Any, field: str = "graph") -> Graph | Problems:
    """Return the graph in a decoded JSON value, or the problems of its shape."""
    if not isinstance(value, dict):
        return (Problem(field, "must be an object with nodes and edges"),)
    if reason := storage_problem(value):
        return (Problem(field, reason),)
    library = read_snippets(value.get("snippets"), f"{field}.snippets")
    if isinstance(library, Problem):
        return (library,)
    zone = value.get("timezone")
    if zone is not None and find_zone(zone) is None:
        return (Problem(f"{field}.timezone", NOT_A_ZONE),)
    problems: list[Problem] = []
    items: list[Node | Edge] = []
    read_node = partial(_read_node, library=library)
    readers: dict[str, Callable[[Any, str], Node | Edge | Problem]] = {"nodes": read_node, "edges": _read_edge}
    for name, read in readers.items():
        listed = value.get(name)
        if listed is None:
            continue
        if not isinstance(listed, list):
            problems.append(Problem(f"{field}.{name}", "must be an array"))
            continue
        if len(listed) > MAX_ITEMS:
            reason = f"has {len(listed)} items, at most {MAX_ITEMS} are allowed"
            problems.append(Problem(f"{field}.{name}", reason))
            continue
        for index, written in enumerate(listed):
            item = read(written, f"{field}.{name}[{index}]")
            if isinstance(item, Problem):
                problems.append(item)
            else:
                items.append(item)
    if problems:
        return tuple(problems)
    return Graph(
        tuple(item for item in items if isinstance(item, Node)),
        tuple(item for item in items if isinstance(item, Edge)),
        msgspec.structs.replace(read_settings(value.get("settings"), f"{field}.settings"), organization_timezone=zone),
    )


def _read_node(value: Any, field: str, library: Library | None) -> Node | Problem:
    if not isinstance(value, dict) or not is_valid_id(value.get("id")):
        return Problem(f"{field}.id", f"must be 1 to {MAX_ID_LENGTH} characters")
    kind, data = value.get("type"), value.get("data")
    if not isinstance(kind, str):
        return Problem(f"{field}.type", "must be a string")
    if data is not None and not isinstance(data, dict):
        return Problem(f"{field}.data", "must be an object")
    return Node(value["id"], kind, read_action(kind, data or {}, field, library))


def _read_edge(value: Any, field: str) -> Edge | Problem:
    if not isinstance(value, dict):
        return Problem(field, "must be an object")
    for name in ("source", "target"):
        if not is_valid_id(value.get(name)):
            return Problem(f"{field}.{name}", f"must be the id of a node, 1 to {MAX_ID_LENGTH} characters")
    for name in ("id", "sourceHandle"):
        if value.get(name) not in (None, "") and not is_valid_id(value[name]):
            return Problem(f"{field}.{name}", f"must be a string of at most {MAX_ID_LENGTH} characters")
    return Edge(value.get("id") or "", value["source"], value["target"], value.get("sourceHandle") or None)


def read_settings(value: Any, field: str) -> AutomationSettings:
    """Return the settings in a decoded JSON value; an invalid setting is among the problems. Never raises."""
    if value is None:
        return DEFAULT_SETTINGS
    if not isinstance(value, dict):
        return AutomationSettings(problems=(Problem(field, "must be an object"),))
    problems: list[Problem] = []
    settings: dict[str, Any] = {}
    for name, written in value.items():
        path, before = f"{field}.{name}", len(problems)
        if name not in _SETTINGS:
            # A misspelt `quietHours` must not be ignored: the automation would send at night.
            problems.append(Problem(path, f"unknown setting; the settings are {', '.join(_SETTINGS)}"))
        elif written is None:
            continue
        elif name not in _PLAIN_SETTINGS and not isinstance(written, dict):
            problems.append(Problem(path, "must be an object"))
        else:
            attribute, read = _SETTINGS[name]
            setting = read(written, path, problems)
            if len(problems) == before:
                settings[attribute] = setting
    return AutomationSettings(**settings, problems=tuple(problems))


_SettingReader: TypeAlias = Callable[[Any, str, list[Problem]], Any]
_SETTINGS: dict[SettingName, tuple[str, _SettingReader]] = {}  # the attribute of `AutomationSettings`, and the reader
_PLAIN_SETTINGS = ("holdout", "timezone", "localeAttribute", "defaultLocale")  # the others are objects


def _reads(name: SettingName, attribute: str) -> Callable[[_SettingReader], _SettingReader]:
    def register(read: _SettingReader) -> _SettingReader:
        _SETTINGS[name] = attribute, read
        return read

    return register


@_reads("reentry", "reentry")
def _read_reentry(value: dict[str, Any], field: str, problems: list[Problem]) -> Reentry:
    policies = get_args(ReentryPolicy)
    if value.get("policy") not in policies:
        problems.append(Problem(f"{field}.policy", f"must be one of {', '.join(policies)}"))
        return Reentry()
    policy: ReentryPolicy = value["policy"]
    days = _positive(value, field, "days", MAX_REENTRY_DAYS, problems) if policy == "once_per" else 0
    return Reentry(policy, days)


@_reads("goal", "goal")
def _read_goal(value: dict[str, Any], field: str, problems: list[Problem]) -> Goal:
    event = read_event_name(value.get("event"), f"{field}.event", problems)
    return Goal(event, read_filters(value, field, problems))


@_reads("quietHours", "quiet_hours")
def _read_quiet_hours(value: dict[str, Any], field: str, problems: list[Problem]) -> QuietHours:
    clocks: dict[str, time] = {}
    for name in ("from", "to"):
        written = value.get(name)
        if isinstance(written, str) and is_clock(written):
            clocks[name] = time.fromisoformat(written)
        else:
            problems.append(Problem(f"{field}.{name}", "must be a time of day from 00:00 to 23:59, like 22:00"))
    if len(clocks) == 2 and clocks["from"] == clocks["to"]:
        problems.append(Problem(f"{field}.to", "must differ from `from`, otherwise every hour would be quiet"))
    attribute = _zone_attribute(value, field, problems)
    return QuietHours(clocks.get("from", time()), clocks.get("to", time()), attribute)


@_reads("timezone", "timezone")
def _read_timezone(value: Any, field: str, problems: list[Problem]) -> str | None:
    if find_zone(value) is None:
        problems.append(Problem(field, NOT_A_ZONE))
        return None
    return str(value)


@_reads("frequencyCap", "frequency_cap")
def _read_frequency_cap(value: dict[str, Any], field: str, problems: list[Problem]) -> FrequencyCap:
    messages = _positive(value, field, "messages", MAX_CAP_MESSAGES, problems)
    if (per := value.get("per")) is not None:
        if per != "day":
            problems.append(Problem(f"{field}.per", "must be day; any other period is written as `seconds`"))
        if value.get("seconds") is not None:
            problems.append(Problem(f"{field}.seconds", "has no effect with `per`: leave out one of them"))
        return FrequencyCap(messages, LONGEST_DAY, _zone_attribute(value, field, problems))
    seconds = _positive(value, field, "seconds", MAX_WAIT // timedelta(seconds=1), problems)
    return FrequencyCap(messages, timedelta(seconds=seconds))


@_reads("holdout", "holdout")
def _read_holdout(value: Any, field: str, problems: list[Problem]) -> int:
    if type(value) is int and 1 <= value <= MAX_HOLDOUT_PERCENT:
        return value
    problems.append(Problem(field, f"must be a whole percentage from 1 to {MAX_HOLDOUT_PERCENT}"))
    return 0


@_reads("localeAttribute", "locale_attribute")
def _read_locale_attribute(value: Any, field: str, problems: list[Problem]) -> str:
    if isinstance(value, str) and value:
        return value
    problems.append(Problem(field, "must be the name of an attribute of the contact"))
    return LOCALE_ATTRIBUTE


@_reads("defaultLocale", "default_locale")
def _read_default_locale(value: Any, field: str, problems: list[Problem]) -> str | None:
    tag = locale_tag(value)
    if tag is None:
        problems.append(Problem(field, NOT_A_LOCALE))
    return tag


def _zone_attribute(value: dict[str, Any], field: str, problems: list[Problem]) -> str:
    attribute = value.get("timezoneAttribute")
    if attribute is None:
        return TIMEZONE_ATTRIBUTE
    if isinstance(attribute, str) and attribute:
        return attribute
    problems.append(Problem(f"{field}.timezoneAttribute", "must be the name of an attribute of the contact"))
    return TIMEZONE_ATTRIBUTE


def _positive(value: dict[str, Any], field: str, name: str, maximum: int, problems: list[Problem]) -> int:
    number = value.get(name)
    if type(number) is int and 1 <= number <= maximum:
        return number
    problems.append(Problem(f"{field}.{name}", f"must be a whole number from 1 to {maximum:,}"))
    return 1
