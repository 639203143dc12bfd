"""The actions of nodes: one struct per kind, which declares the fields of its `data`, and how they are read.

A field has one of the types below. Its type decides how it is read, and how forms, sentences and Python code write it
(`workbench/display/kinds.py`), so a kind with fields of these types needs no code but its struct and its behaviour,
which is in `nodes`. Reading never raises: a node that cannot be read becomes an `InvalidAction` with its problems, so
that a draft can be stored and checked while it is wrong.
"""

import re
from collections.abc import Iterator, Mapping
from datetime import time, timedelta
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args, get_type_hints

import msgspec

from workbench.language.body import SLUG, SLUG_CHARACTERS
from workbench.language.channel import CONNECTION, EMAIL, INAPP, WEBHOOK, Channel
from workbench.language.codec import Json
from workbench.language.event import MAX_ATTRIBUTES, attribute_problems, is_awaitable_name
from workbench.language.filter import Filter
from workbench.language.local_time import MAX_CLOCK_SETBACK, TIMEZONE_ATTRIBUTE
from workbench.language.locales import MAX_LOCALES, NOT_A_LOCALE, choose_locale, locale_tag
from workbench.language.problem import Problem, Problems
from workbench.language.snippets import Library, expand_all
from workbench.language.starts import START_TYPES
from workbench.language.template import TemplateError, compile_template
from workbench.language.trigger import ONCHAIN_EVENT, is_trigger, read_filters

MAX_ID_LENGTH = 128  # characters of an id or a handle; Postgres indexes node ids
MAX_TAG = 64  # characters
MAX_WAIT = timedelta(days=366)
MAX_BRANCHES = 100
MAX_COLLECTED = 1_000  # events of an entry, with the one that started it
MAX_URL = 2_048  # characters
MAX_FIELDS = 50  # of a connection
FIELD_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_]{0,63}")
NOT_A_FIELD = "the name of a field has 1 to 64 characters of a-z, A-Z, 0-9 and _, and begins with a letter"

_ORIGIN = r"https?://[^\s\x00-\x1f/?#@\\:{}][^\s\x00-\x1f/?#@\\{}]*"
# The origin excludes user information (`@`) and templates (`{`), which could choose the server.
_URL = re.compile(_ORIGIN + r"([/?#][^\s\x00-\x1f\x7f]*)?", re.IGNORECASE)
_URL_TEMPLATE = re.compile(_ORIGIN + r"([/?#].*)?", re.IGNORECASE | re.DOTALL)
_PLACEHOLDER = re.compile(r"{{.*?}}|{%.*?%}|{#.*?#}", re.DOTALL)

Handle: TypeAlias = str | None
"""The handle that an edge leaves by; nodes that do not branch have only None."""

# mypy checks that each match on a field type is exhaustive, so it reports every match that lacks a new one.
FieldType: TypeAlias = Literal[
    "line",
    "text",
    "url",
    "body",
    "object",
    "tag",
    "attributes",
    "filters",
    "duration",
    "event",
    "branches",
    "recipient",
    "missing",
    "switch",
    "clock",
    "weekdays",
    "date",
    "shift",
    "zone",
    "locales",
    "path",
    "number",
    "connection",
    "fields",
    "topic",
]
Line: TypeAlias = Annotated[str, "line"]  # a template, on one line in forms
Text: TypeAlias = Annotated[str, "text"]  # a template
Url: TypeAlias = Annotated[str, "url"]  # a template that inserts values only after the host name
Body: TypeAlias = Annotated[Json, "body"]  # a template, or JSON with templates as texts
Object: TypeAlias = Annotated[dict[str, Any], "object"]
Tag: TypeAlias = Annotated[str, "tag"]
Attributes: TypeAlias = Annotated[dict[str, Json], "attributes"]  # their texts are templates
# Read from `filters` and `where`. Those of a wait test the awaited event, others the event that started the entry.
Filters: TypeAlias = Annotated[tuple[Filter, ...], "filters"]
Duration: TypeAlias = Annotated[timedelta, "duration"]  # how long the node may wait; whole seconds in `data`
EventName: TypeAlias = Annotated[str, "event"]  # an event that the node waits for
Branches: TypeAlias = Annotated[tuple["Branch", ...], "branches"]  # the handles of the node
RecipientMode: TypeAlias = Annotated[Literal["triggering_profile"], "recipient"]  # the only mode in the contract
OnMissing: TypeAlias = Annotated[Literal["fail", "skip"], "missing"]  # the message, if something it needs is missing
Switch: TypeAlias = Annotated[bool, "switch"]  # off by default
Clock: TypeAlias = Annotated[time, "clock"]  # a time of day; `09:00` in `data`
Weekdays: TypeAlias = Annotated[tuple[int, ...], "weekdays"]  # from 1 (Monday) to 7 (Sunday); empty: every day
DatePath: TypeAlias = Annotated[str, "date"]  # of a date; a name alone in `data` is that of an attribute of the contact
Shift: TypeAlias = Annotated[timedelta, "shift"]  # between a date and the moment; whole seconds in `data`
ZoneAttribute: TypeAlias = Annotated[str, "zone"]  # the attribute of the contact with its time zone
PayloadPath: TypeAlias = Annotated[str, "path"]  # of a value in the payload of an event
EventLimit: TypeAlias = Annotated[int, "number"]  # of the events in a list
Locales: TypeAlias = Annotated[dict[str, dict[str, str]], "locales"]  # the lines and texts of the action, by locale
Topic: TypeAlias = Annotated[str, "topic"]  # the name of a topic

ConnectionName: TypeAlias = Annotated[str, "connection"]
FieldValues: TypeAlias = Annotated[dict[str, Json], "fields"]  # of a connection, by name; their texts are templates


class _Action(msgspec.Struct, frozen=True):
    """The base of actions. The `tag` of a struct is the kind of its nodes. `channel`: the one the node sends by.

    FORK: the key of the field without which a node does not branch; None: it branches by all `HANDLES` in any case.
    SIDE_HANDLES: those that the steps written after the node in Python follow only if the author says so.
    """

    HANDLES: ClassVar[tuple[Handle, ...]] = (None,)
    FORK: ClassVar[str | None] = None
    SIDE_HANDLES: ClassVar[tuple[Handle, ...]] = ()
    channel: ClassVar[Channel | None] = None

    @property
    def handles(self) -> tuple[Handle, ...]:
        """The handles, in the order in which they are drawn."""
        return self.HANDLES

    @property
    def problem(self) -> Problem | None:
        """A contradiction between the fields, with the key of one of them; None if there is none."""
        return None


class TriggerNode(_Action, frozen=True):
    """The start of an entry. `events`: the names in its data, which only the check reads; the trigger decides."""

    events: tuple[str, ...] = ()


class MessageAction(_Action, frozen=True, kw_only=True):
    """The base of actions that send a message.

    `on_missing`: whether a message without an address, or without a value of its texts, is skipped, or fails the entry
    as the contract says. `topic`: what it is about; contacts that declined the topic do not get it.
    """

    on_missing: OnMissing = msgspec.field(name="onMissing", default="fail")
    topic: Topic | None = None


class LocalizedMessage(MessageAction, frozen=True, kw_only=True):
    """The base of messages with texts in several locales. `locales`: the texts other than the default ones, by tag."""

    locales: Locales = {}

    def in_locale(self, wanted: Json, default: str | None = None) -> tuple[Self, str | None]:
        """Return the message with only the texts for a locale, and the locale that was chosen.

        `default`: the locale of the default texts, which are also the texts if no locale fits (None).
        """
        chosen = choose_locale({*self.locales, default}, wanted)
        return msgspec.structs.replace(self, **self.locales.get(chosen or "", {}), locales={}), chosen


class SendInapp(LocalizedMessage, frozen=True, tag="send_inapp"):
    """Store and push a message for the wallet of the event, otherwise of its contact."""

    channel = INAPP
    title: Line
    body: Text
    data: Object | None = None
    recipient: RecipientMode = msgspec.field(name="recipientMode", default="triggering_profile")


class SendEmail(LocalizedMessage, frozen=True, tag="send_email"):
    """Send an email. A body that begins with `<` is HTML, and its values are escaped.

    `track_clicks`: a click on a link of the email is an event of the contact. `confirms`: the topic that the contact
    confirms with the link `{{ confirm_url }}`.
    """

    channel = EMAIL
    subject: Line
    body: Text
    track_clicks: Switch = msgspec.field(name="trackClicks", default=False)
    confirms: Topic | None = None

    @property
    def html(self) -> bool:
        return self.body.lstrip()[:1] == "<"


class SendWebhook(MessageAction, frozen=True, tag="send_webhook"):
    """POST to a URL. `body` None: the event."""

    channel = WEBHOOK
    url: Url
    body: Body = None


class SendVia(LocalizedMessage, frozen=True, tag="send_via"):
    """Send the request of a connection, with values for its fields. A locale has the fields that differ in it."""

    channel = CONNECTION
    connection: ConnectionName
    body: FieldValues = msgspec.field(name="fields")

    def in_locale(self, wanted: Json, default: str | None = None) -> tuple[Self, str | None]:
        chosen = choose_locale({*self.locales, default}, wanted)
        texts = self.locales.get(chosen or "", {})
        return msgspec.structs.replace(self, body={**self.body, **texts}, locales={}), chosen


class AddTag(_Action, frozen=True, tag="add_tag"):
    """Add a tag to the contact."""

    tag: Tag


class RemoveTag(_Action, frozen=True, tag="remove_tag"):
    """Remove a tag from the contact."""

    tag: Tag


class UpdateContact(_Action, frozen=True, tag="update_contact"):
    """Merge attributes into the contact's."""

    attributes: Attributes


class Condition(_Action, frozen=True, tag="condition"):
    """Follow `true` if all filters pass, otherwise `false`."""

    HANDLES = ("true", "false")
    filters: Filters


class Delay(_Action, frozen=True, tag="delay"):
    """Continue after a fixed time."""

    wait: Duration = msgspec.field(name="seconds")


class WaitForEvent(_Action, frozen=True, tag="wait_for_event"):
    """Follow `matched` when the contact sends an event that passes the filters, `timeout` if none arrives in time."""

    HANDLES = ("matched", "timeout")
    event: EventName
    filters: Filters
    timeout: Duration = msgspec.field(name="timeoutSeconds")


class WaitUntil(_Action, frozen=True, tag="wait_until"):
    """Continue at a time of day, or at a date of the contact or of the event that started the entry.

    With a date: follow `reached` at its moment, `missed` if there is no date, if the moment has passed, or if it is
    later than `MAX_WAIT` after the node was reached.
    """

    HANDLES = ("reached", "missed")
    FORK = "attribute"
    SIDE_HANDLES = ("missed",)
    clock: Clock | None = msgspec.field(name="time", default=None)
    weekdays: Weekdays = ()
    date: DatePath | None = msgspec.field(name="attribute", default=None)
    shift: Shift = msgspec.field(name="offsetSeconds", default=timedelta())
    zone: ZoneAttribute = msgspec.field(name="timezoneAttribute", default=TIMEZONE_ATTRIBUTE)

    @property
    def handles(self) -> tuple[Handle, ...]:
        return (None,) if self.date is None else self.HANDLES

    @property
    def problem(self) -> Problem | None:
        if self.date is None and self.clock is None:
            return Problem("time", "is missing: write a time of day, or an attribute with a date")
        if self.date is None and self.shift:
            return Problem("offsetSeconds", "needs an attribute with a date")
        if self.clock is not None and self.shift % timedelta(days=1):
            return Problem("offsetSeconds", "must be whole days (86,400 seconds each) if there is a time of day")
        return None

    @property
    def longest(self) -> timedelta:
        """The longest time from when the node is reached."""
        if self.date is not None:
            return MAX_WAIT
        return timedelta(days=7 if self.weekdays else 1) + MAX_CLOCK_SETBACK

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes of the contact on which the end of the wait depends."""
        first, _, rest = (self.date or "").partition(".")
        return frozenset({self.zone, rest.partition(".")[0]} if first == "contact" else {self.zone})


class Collect(_Action, frozen=True, tag="collect"):
    """Wait while later events of the name that started the entry join it; texts see all of them as `events`.

    It ends after a time, at a time of day, or with the event that makes them `max`. `key`: only events with the same
    value at this path of the payload join.
    """

    wait: Duration | None = msgspec.field(name="seconds", default=None)
    clock: Clock | None = msgspec.field(name="until", default=None)
    key: PayloadPath | None = None
    max: EventLimit = MAX_COLLECTED

    @property
    def problem(self) -> Problem | None:
        if self.wait is None and self.clock is None:
            return Problem("seconds", "is missing: write a number of seconds, or a time of day as `until`")
        if self.wait is not None and self.clock is not None:
            return Problem("until", "cannot be combined with `seconds`: write one of them")
        return None

    @property
    def longest(self) -> timedelta:
        """The longest time from when the node is reached."""
        return timedelta(days=1) + MAX_CLOCK_SETBACK if self.wait is None else self.wait

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes of the contact on which the end of the wait depends."""
        return frozenset() if self.clock is None else frozenset({TIMEZONE_ATTRIBUTE})


class Branch(msgspec.Struct, frozen=True):
    """One branch of a split, with its share of the contacts."""

    handle: str
    percent: int


class Split(_Action, frozen=True, tag="split"):
    """Follow one of the branches; a contact always takes the same one."""

    branches: Branches

    @property
    def handles(self) -> tuple[Handle, ...]:
        return tuple(branch.handle for branch in self.branches)


class Exit(_Action, frozen=True, tag="exit"):
    """End the entry."""

    HANDLES = ()


class InvalidAction(msgspec.Struct, frozen=True):
    """A node that cannot run, with its problems. Drafts may contain such nodes; published graphs never do."""

    channel: ClassVar[Channel | None] = None
    problems: Problems
    handles: tuple[Handle, ...] = (None,)


StepAction: TypeAlias = (
    SendInapp
    | SendEmail
    | SendWebhook
    | SendVia
    | AddTag
    | RemoveTag
    | UpdateContact
    | Condition
    | Delay
    | WaitForEvent
    | WaitUntil
    | Collect
    | Split
    | Exit
)
Action: TypeAlias = TriggerNode | StepAction | InvalidAction
STEP_ACTIONS: dict[str, type[StepAction]] = {
    str(action.__struct_config__.tag): action for action in get_args(StepAction)
}
TRIGGER_KINDS = ("app_event", ONCHAIN_EVENT, *START_TYPES)
NODE_KINDS = (*TRIGGER_KINDS, *STEP_ACTIONS)


class DataField(msgspec.Struct, frozen=True):
    """A field of the `data` of a node: its key, its type, and the attribute of the action."""

    key: str
    type: FieldType
    attribute: str
    optional: bool


def _fields_of(action: type[StepAction]) -> tuple[DataField, ...]:
    hints, fields = get_type_hints(action, include_extras=True), []
    for field in msgspec.structs.fields(action):
        hint = hints[field.name]
        # An optional field is a union of its annotated type and None.
        annotated = next(part for part in (hint, *get_args(hint)) if hasattr(part, "__metadata__"))
        fields.append(DataField(field.encode_name, annotated.__metadata__[0], field.name, not field.required))
    return tuple(fields)


FIELDS: dict[str, tuple[DataField, ...]] = {kind: _fields_of(action) for kind, action in STEP_ACTIONS.items()}


@cache
def fields_of_type(kind: str, *types: FieldType) -> tuple[DataField, ...]:
    """Return the fields of a kind of step that have one of these types."""
    return tuple(field for field in FIELDS.get(kind, ()) if field.type in types)


def read_action(kind: str, data: Mapping[str, Any], node: str, library: Library | None = None) -> Action:
    """Return the action of a node; `node` is its path, such as `graph.nodes[2]`, for the problems.

    `library`: the snippets that texts of messages may include; None: as in `expand`.
    """
    if is_trigger(kind):
        name, listed = data.get("event"), data.get("eventNames")
        names = [name, *listed] if isinstance(listed, list) else [name]
        return TriggerNode(tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)))
    action = STEP_ACTIONS.get(kind)
    if action is None:
        reason = f"unknown node kind {kind!r}; the kinds are {', '.join(NODE_KINDS)}"
        return InvalidAction((Problem(f"{node}.type", reason),))
    problems: list[Problem] = []
    texts = fields_of_type(kind, "line", "text", "body", "locales", "fields") if action.channel is not None else ()
    expanded = {
        field.key: expand_all(data[field.key], library, f"{node}.data.{field.key}", problems)
        for field in texts
        if field.key in data
    }
    data = {**data, **expanded}
    values = {
        field.attribute: _read_field(kind, field, data, node, problems)
        for field in FIELDS[kind]
        if field.key in data or not field.optional
    }
    if not problems:
        read = action(**values)
        if read.problem is None:
            return read
        problems.append(Problem(f"{node}.data.{read.problem.field}", read.problem.reason))
    return InvalidAction(tuple(problems), handles_of(kind, data))


def handles_of(kind: str, data: Mapping[str, Any]) -> tuple[Handle, ...]:
    """Return the handles of a node, even of one that is incomplete or of an unknown kind."""
    # Percentages that do not add up to 100 make a split invalid while they are typed; its edges must not disappear.
    for field in fields_of_type(kind, "branches"):
        listed = data.get(field.key)
        items = listed if isinstance(listed, list | tuple) else ()
        names = [item.get("handle") for item in items if isinstance(item, dict)]
        return tuple(dict.fromkeys(name for name in names if isinstance(name, str) and name)) or (None,)
    action = STEP_ACTIONS.get(kind)
    if action is None or (action.FORK is not None and data.get(action.FORK) is None):
        return (None,)
    return action.HANDLES


def side_handles(kind: str) -> tuple[Handle, ...]:
    """Return the handles of a kind that the steps written after it in Python follow only if the author says so."""
    return STEP_ACTIONS[kind].SIDE_HANDLES if kind in STEP_ACTIONS else ()


def templates_in(action: Action | MessageAction) -> Iterator[str]:
    """Yield the templates that are rendered when the action runs, in all locales."""
    for value in _values(action, "line", "text", "url", "body", "attributes", "locales", "fields"):
        yield from texts_in(value)


def filters_in(action: Action) -> tuple[Filter, ...]:
    """Return the filters of an action: of the event that it waits for, or else of the event that started the entry."""
    return tuple(filter_ for filters in _values(action, "filters") for filter_ in filters)


def topics_in(action: Action) -> dict[str, str]:
    """Return the topics that an action names, by the key of the field."""
    if isinstance(action, TriggerNode | InvalidAction):
        return {}
    fields = fields_of_type(str(type(action).__struct_config__.tag), "topic")
    names = {field.key: getattr(action, field.attribute) for field in fields}
    return {key: name for key, name in names.items() if name is not None}


def awaited_event(action: Action) -> str | None:
    """Return the name of the event that an action waits for."""
    return next(_values(action, "event"), None)


def longest_wait(action: Action) -> timedelta:
    """Return the longest wait that an action itself asks for: the sum of its durations."""
    return action.longest if isinstance(action, WaitUntil | Collect) else sum(_values(action, "duration"), timedelta())


def _values(action: Action | MessageAction, *types: FieldType) -> Iterator[Any]:
    for field in fields_of_type(str(type(action).__struct_config__.tag), *types):
        yield getattr(action, field.attribute)


def _read_field(kind: str, declared: DataField, data: Mapping[str, Any], node: str, problems: list[Problem]) -> Any:
    """Return the value of a field; add what is wrong with it to `problems`."""
    value, field = data.get(declared.key), f"{node}.data.{declared.key}"
    match declared.type:
        case "line" | "text":
            return _read_template(value, field, problems)
        case "url":
            url = _read_template(value, field, problems)
            if url and (wrong := url_problem(url, field)) is not None:
                problems.append(wrong)
            return url
        case "body":
            if value == "":
                problems.append(Problem(field, "must not be empty; leave it out to send the event"))
            for text in texts_in(value):
                _check_template(text, field, problems)
            return value
        case "object":
            if value is not None and not isinstance(value, dict):
                problems.append(Problem(field, "must be an object"))
            return value
        case "tag":
            if not isinstance(value, str) or not 0 < len(value) <= MAX_TAG or "\0" in value:
                problems.append(Problem(field, f"must be 1 to {MAX_TAG} characters"))
            return value
        case "attributes":
            if not isinstance(value, dict) or not 0 < len(value) <= MAX_ATTRIBUTES:
                problems.append(Problem(field, f"must be an object of 1 to {MAX_ATTRIBUTES} attributes"))
                return {}
            for text in texts_in(value):
                _check_template(text, field, problems)
            # A template can only be checked against the limits once it is rendered.
            constants = {name: "" if isinstance(item, str) and "{" in item else item for name, item in value.items()}
            node = field.removesuffix("attributes")
            problems += [Problem(f"{node}{problem.field}", problem.reason) for problem in attribute_problems(constants)]
            return value
        case "filters":
            return read_filters(data, f"{node}.data", problems)
        case "duration":
            max_seconds = MAX_WAIT // timedelta(seconds=1)
            if type(value) is int and 1 <= value <= max_seconds:
                return timedelta(seconds=value)
            reason = f"must be a whole number of seconds from 1 to {max_seconds:,} (366 days)"
            problems.append(Problem(field, reason))
            return None
        case "event":
            return read_event_name(value, field, problems)
        case "branches":
            return _read_branches(value, field, problems)
        case "recipient":
            if value != "triggering_profile":
                problems.append(Problem(field, "must be triggering_profile"))
            return value
        case "missing":
            if value not in ("fail", "skip"):
                problems.append(Problem(field, "must be fail or skip"))
            return value
        case "switch":
            if not isinstance(value, bool):
                problems.append(Problem(field, "must be true or false"))
            return value
        case "topic":
            if not isinstance(value, str) or not SLUG.fullmatch(value):
                problems.append(Problem(field, f"must be the name of a topic: {SLUG_CHARACTERS}"))
            return value
        case "clock" | "weekdays" | "date" | "shift" | "zone":
            if (problem := timing_problem(declared.type, value)) is not None:
                problems.append(Problem(field, problem))
                return None
            return _read_timing(declared.type, value)
        case "path":
            if not isinstance(value, str) or not 0 < len(value) <= MAX_ID_LENGTH:
                problems.append(Problem(field, f"must be a path of 1 to {MAX_ID_LENGTH} characters, like orderId"))
                return None
            return value.removeprefix("payload.")
        case "number":
            if type(value) is not int or not 2 <= value <= MAX_COLLECTED:
                problems.append(Problem(field, f"must be a whole number from 2 to {MAX_COLLECTED:,}"))
            return value
        case "locales":
            texts, locales = fields_of_type(kind, "line", "text"), dict[str, dict[str, str]]()
            names = {text.key: text.attribute for text in texts}
            if not isinstance(value, dict) or len(value) > MAX_LOCALES:
                problems.append(Problem(field, f"must be an object of at most {MAX_LOCALES} locales"))
                return locales
            for name, written in value.items():
                tag, path = locale_tag(name), f"{field}.{name}"
                if tag is None:
                    problems.append(Problem(path, NOT_A_LOCALE))
                elif tag in locales:
                    problems.append(Problem(path, f"is the locale {tag} once more"))
                elif not isinstance(written, dict):
                    problems.append(Problem(path, f"must be an object with {' and '.join(names) or 'fields'}"))
                elif not names and not (written and all(map(FIELD_NAME.fullmatch, written))):
                    problems.append(Problem(path, f"must have a field; {NOT_A_FIELD}"))
                else:
                    locales[tag] = {
                        attribute: _read_template(written.get(key), f"{path}.{key}", problems)
                        for key, attribute in (names or {name: name for name in written}).items()
                    }
            return locales
        case "connection":
            if not isinstance(value, str) or not SLUG.fullmatch(value):
                problems.append(Problem(field, f"must have {SLUG_CHARACTERS}"))
            return value
        case "fields":
            if not isinstance(value, dict) or len(value) > MAX_FIELDS:
                problems.append(Problem(field, f"must be an object of at most {MAX_FIELDS} fields"))
                return {}
            for name, item in value.items():
                if not FIELD_NAME.fullmatch(name):
                    problems.append(Problem(f"{field}.{name}", NOT_A_FIELD))
                for text in texts_in(item):
                    _check_template(text, f"{field}.{name}", problems)
            return value


_CLOCK = re.compile(r"([01]\d|2[0-3]):[0-5]\d", re.ASCII)


def is_clock(value: Any) -> bool:
    """Return whether a value is a time of day such as 09:00."""
    return isinstance(value, str) and _CLOCK.fullmatch(value) is not None


def timing_problem(field_type: FieldType, value: Any) -> str | None:
    """Return why a value cannot be that of a field about times, or None."""
    match field_type:
        case "clock":
            return None if is_clock(value) else "must be a time of day from 00:00 to 23:59, like 09:00"
        case "weekdays":
            is_list = isinstance(value, list) and value and all(type(day) is int and 1 <= day <= 7 for day in value)
            valid = is_list and len(set(value)) == len(value)
            return None if valid else "must be an array of different weekdays from 1 (Monday) to 7 (Sunday)"
        case "shift":
            most = MAX_WAIT // timedelta(seconds=1)
            valid = type(value) is int and -most <= value <= most and value != 0
            return None if valid else f"must be a whole number of seconds, not 0, up to {most:,} (366 days) either way"
        case _:
            # Engine and ingest write the names of attributes into lists with commas.
            valid = isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH and "," not in value
            return None if valid else f"must be a name of 1 to {MAX_ID_LENGTH} characters without commas"


def _read_timing(field_type: FieldType, value: Any) -> Any:
    match field_type:
        case "clock":
            return time.fromisoformat(value)
        case "weekdays":
            return tuple(value)
        case "shift":
            return timedelta(seconds=value)
        case "date":
            return value if value.startswith(("contact.", "payload.")) else f"contact.{value}"
        case _:
            return value


def read_event_name(value: Any, field: str, problems: list[Problem]) -> str:
    """Return the name of an awaited event in lower case; add a problem if it is not a name."""
    if isinstance(value, str) and is_awaitable_name(value):
        return value.lower()
    reason = (
        "must be the name of an event: 1 to 64 characters of a-z A-Z 0-9 _ . : -, or of a contract log: 0x…:Transfer"
    )
    problems.append(Problem(field, reason))
    return ""


def is_webhook_url(url: str) -> bool:
    """Return whether a webhook can be sent to a URL: http or https, no credentials, no white space."""
    return len(url) <= MAX_URL and _URL.fullmatch(url) is not None


def url_problem(template: str, field: str) -> Problem | None:
    """Return why a template cannot be the URL of a request, or None."""
    # Values may only follow the host: a value of the contact must not choose the server that gets the request.
    # The length is checked first: the search for placeholders takes time with the square of it.
    if len(template) <= MAX_URL and _URL_TEMPLATE.fullmatch(template):
        example = _PLACEHOLDER.sub("x", template)
        if is_webhook_url(example):
            return None
    limits = f"at most {MAX_URL} characters; values may only follow the host"
    return Problem(field, f"must be an http or https URL of {limits}")


def is_valid_id(value: Any) -> bool:
    """Return whether a value can be the id of a node or an edge, or a handle."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID_LENGTH


def _read_template(value: Any, field: str, problems: list[Problem]) -> str:
    if not isinstance(value, str) or not value:
        problems.append(Problem(field, "must be a non-empty text"))
        return ""
    _check_template(value, field, problems)
    return value


def _check_template(text: str, field: str, problems: list[Problem]) -> None:
    try:
        compile_template(text)
    except TemplateError as error:
        problems.append(Problem(field, str(error)))


def _read_branches(value: Any, field: str, problems: list[Problem]) -> tuple[Branch, ...]:
    if not isinstance(value, list) or not 2 <= len(value) <= MAX_BRANCHES:
        problems.append(Problem(field, f"must be an array of 2 to {MAX_BRANCHES} branches"))
        return ()
    branches: list[Branch] = []
    for index, item in enumerate(value):
        handle, percent = (item.get("handle"), item.get("percent")) if isinstance(item, dict) else (None, None)
        if not is_valid_id(handle):
            problems.append(Problem(f"{field}[{index}].handle", f"must be 1 to {MAX_ID_LENGTH} characters"))
        elif type(percent) is not int or not 0 <= percent <= 100:
            problems.append(Problem(f"{field}[{index}].percent", "must be a whole number from 0 to 100"))
        else:
            branches.append(Branch(str(handle), percent))
    if len({branch.handle for branch in branches}) < len(branches):
        problems.append(Problem(field, "two branches have the same handle"))
    if len(branches) == len(value) and (total := sum(branch.percent for branch in branches)) != 100:
        problems.append(Problem(field, f"the percentages sum to {total}, not to 100"))
    return tuple(branches)


def texts_in(value: Json) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts_in(item)
        case dict():
            for item in value.values():
                yield from texts_in(item)
        case _:
            return
